//! Bytes that two nodes write at the same time.

use super::moved::Shelf;
use super::*;
use crate::io::PoolRequest;
use crate::io::concurrent::settle_concurrent;
use crate::reshape::evacuate::Destination;

const PAGE: usize = 4096;

fn page(device: &FaultyDevice, at: ByteOffset) -> u8 {
    let mut page = [0; PAGE];
    device.read(at, &mut page).unwrap();
    assert!(page.iter().all(|b| *b == page[0]));
    page[0]
}

/// The old device got the other node's bytes last, the new one this node's.
#[test]
fn a_successor_without_copies_is_brought_after_the_device_that_leaves() {
    let (nodes, mut all) = nodes(2, Redundancy::None);
    let (a, b) = (&nodes[0], &nodes[1]);
    all.push(fresh("successor", &all[0]));
    let target = all.last().unwrap().clone();
    let shelf = Arc::new(Shelf(all.clone()));
    nodes.iter().for_each(|n| n.pool.simulate(shelf.clone()));
    let to = Destination::Device { device: target.clone(), force: false };
    while_all_follow(&nodes[..1], || b.pool.begin_evacuation(MemberIndex(1), to).unwrap());
    let topology = a.pool.0.epochs.read();
    // A page of the pool on the member that leaves.
    let mut pages = (0..).step_by(PAGE).map(ByteOffset);
    let on = |at: &ByteOffset| {
        let piece = topology.map.pieces(*at, Bytes::from(PAGE)).next().unwrap();
        matches!(piece.place, crate::layout::map::Place::Member(MemberIndex(1))).then_some(piece.at)
    };
    let (at, place) = pages.find_map(|at| Some((at, on(&at)?))).unwrap();
    all[1].write(place, &[2; PAGE]).unwrap();
    target.write(place, &[1; PAGE]).unwrap();
    let requests = [PoolRequest::write(at, &[1; PAGE])];
    assert!(settle_concurrent(&topology, &requests).unwrap());
    assert_eq!((page(&all[1], place), page(&target, place)), (2, 2));
}

/// Each copy of a mirror got another node's bytes last.
#[test]
fn copies_that_two_writers_left_different_are_made_the_same() {
    let (nodes, all) = nodes(2, Redundancy::Mirror(2));
    let (a, b) = (&nodes[0], &nodes[1]);
    let at = ByteOffset(8 << 20);
    a.pool.run_concurrent(&mut [PoolRequest::write(at, &[1; PAGE])]);
    let places: Vec<(MemberIndex, ByteOffset)> = {
        let topology = a.pool.0.epochs.read();
        let piece = topology.map.pieces(at, Bytes::from(PAGE)).next().unwrap();
        let crate::layout::map::Place::Group(index) = piece.place else { panic!("no mirror") };
        let group = topology.map.group(index);
        (0..2).map(|column| group.at(column, piece.at.0)).collect()
    };
    let on = |n: usize| (&all[usize::from(places[n].0.0)], places[n].1);
    assert_eq!([0, 1].map(|n| page(on(n).0, on(n).1)), [1, 1]);
    // While B writes, another writer's bytes land last on the second copy, and it has not looked yet.
    let (second, place) = on(1);
    second.write(place, &[2; PAGE]).unwrap();
    let requests = [PoolRequest::write(at, &[1; PAGE])];
    {
        let topology = b.pool.0.epochs.read();
        assert!(!settle_concurrent(&topology, &requests).unwrap());
    }
    b.pool.0.make_copies_equal(&requests).unwrap();
    assert_eq!([0, 1].map(|n| page(on(n).0, on(n).1)), [1, 1]);
    let topology = b.pool.0.epochs.read();
    assert!(settle_concurrent(&topology, &requests).unwrap());
}
