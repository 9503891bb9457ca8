//! What one node writes while another moves a member.

use braid_device::{FaultKind, On};
use braid_format::label::Member;

use super::*;
use crate::reshape::evacuate::Destination;
use crate::simulation::{Pause, Simulation};

/// Finds devices by their names.
pub(super) struct Shelf(pub Vec<Arc<FaultyDevice>>);

impl Simulation for Shelf {
    fn pause(&self, _: Pause) {
        std::thread::sleep(Duration::from_millis(1));
    }
    fn open(&self, member: &Member) -> Option<Arc<dyn Device>> {
        let named = self.0.iter().find(|d| d.info().name == member.path)?;
        Some(named.clone())
    }
}

/// A write fails on one of the two devices of a member that another node moves. Before it is taken out
/// for that, the other has copied everything and put the new device in place, which has not got it.
#[test]
fn a_successor_that_has_missed_a_write_is_not_read() {
    for on_old in [true, false] {
        let (nodes, mut all) = nodes(2, Redundancy::Mirror(2));
        let (a, b) = (&nodes[0], &nodes[1]);
        all.push(fresh("successor", &all[0]));
        let shelf = Arc::new(Shelf(all.clone()));
        nodes.iter().for_each(|n| n.pool.simulate(shelf.clone()));
        let to = Destination::Device { device: all[4].clone(), force: false };
        let moving =
            while_all_follow(&nodes[..1], || b.pool.begin_evacuation(MemberIndex(1), to).unwrap());
        assert_eq!(a.pool.moving(), Some(moving));
        let page = vec![7; 4096];
        let lost = {
            let topology = a.pool.0.epochs.read();
            let at = ByteOffset(topology.map.pieces(ByteOffset(0), Bytes(1)).next().unwrap().at.0);
            let (member, place) = topology.map.group(0).at(1, at.0);
            assert_eq!(member, MemberIndex(1));
            all[if on_old { 1 } else { 4 }].arm(On::Write, 0, FaultKind::Fails);
            let written = topology.device(member).write(place, &page);
            topology.device(MemberIndex(0)).write(place, &page).unwrap();
            assert_eq!(written.is_err(), on_old);
            written.err().map(|error| topology.named(&vec![(member, error)]))
        };
        while_all_follow(&nodes[..1], || assert!(b.pool.evacuate(&|_| true).unwrap()));
        while_all_follow(&nodes[1..], || {
            if let Some(lost) = &lost {
                a.pool.0.fail_members(lost).unwrap();
            } else {
                a.pool.0.check_migration().unwrap();
            }
        });
        assert_eq!([a.state(1), b.state(1)], [MemberState::Failed; 2], "{on_old}");
    }
}
