use std::sync::Arc;

use braid_device::{Device, FaultKind, FaultPlan, FaultyDevice, On};
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::pool::Pool;
use crate::redundancy::tests::{Layout, consistent, devices, dynamic, failed, pool};
use crate::reshape::tests::{Content, fresh};
use crate::{Destination, NoChecksums, Progress};

const GO: &(dyn Fn(Progress) -> bool + Sync) = &|_| true;
const SECTOR: u64 = 512;

/// `n` sectors of `member`, from byte `at` of its data on, become unreadable.
fn spoil(all: &[Arc<FaultyDevice>], pool: &Pool, member: usize, at: u64, n: u64) -> ByteOffset {
    let place = ByteOffset(pool.label().members[member].data_start.0 + at);
    all[member].spoil(place, Bytes(n * SECTOR));
    place
}

/// Whether all of a member can be read.
fn is_whole(device: &Arc<FaultyDevice>) -> bool {
    device.read(ByteOffset(0), &mut vec![0; device.info().size.to_usize()]).is_ok()
}

/// A pool that knows what it holds.
fn known(n: usize, layout: Layout) -> (Vec<Arc<FaultyDevice>>, Pool, Content) {
    let all = devices(n, |_| FaultPlan::default());
    let pool = pool(&all, layout);
    pool.attach(0).unwrap();
    let content = Content::fill(&pool, 11);
    (all, pool, content)
}

/// Members in which some bad place each takes no byte away: other sectors of the same chunk, the same
/// unit, the same page.
const SPOILT: [(u64, u64); 3] = [(4096, 4096 + 1024), (1 << 20, (1 << 20) + 512), (512, 3 << 20)];

#[test]
fn bad_places_of_several_members_are_read_around() {
    for (n, layout) in [(2, Layout::Mirror), (3, Layout::Mirror), (4, Layout::Parity(1))] {
        for (one, other) in SPOILT {
            let (all, pool, content) = known(n, layout);
            spoil(&all, &pool, 0, one, 1);
            spoil(&all, &pool, 1, other, 1);
            content.check(&pool);
            consistent(&pool, &all);
        }
    }
}

/// A compare-and-write that meets a sector which one copy cannot read writes it anew there: the member stays, and what
/// only it can read of others stays readable.
#[test]
fn a_compare_and_write_mends_what_a_copy_cannot_read() {
    use braid_device::CawOutcome;
    for n in [2, 3] {
        let all = devices(n, |_| FaultPlan::default());
        let pool = pool(&all, Layout::Mirror);
        pool.attach(0).unwrap();
        let [one, other, same] = [4096, 8192, 1 << 20];
        let value = |n: u8| vec![n; 512];
        let exchange = |at, from, to| {
            let done = pool.compare_and_write(ByteOffset(at), &value(from), &value(to));
            assert_eq!(done.unwrap(), CawOutcome::Written, "{n} copies, {at}");
        };
        [one, other, same].into_iter().for_each(|at| exchange(at, 0, 1));
        spoil(&all, &pool, 0, one, 1);
        spoil(&all, &pool, 1, other, 1);
        [one, other].into_iter().for_each(|at| exchange(at, 1, 2));
        assert_eq!(failed(&pool), [0; 0]);
        assert!(all.iter().all(is_whole));
        consistent(&pool, &all);
        // What no copy can read is lost; the rest is not.
        (0..n).for_each(|member| _ = spoil(&all, &pool, member, same, 1));
        pool.compare_and_write(ByteOffset(same), &value(1), &value(2)).unwrap_err();
        [one, other].into_iter().for_each(|at| exchange(at, 2, 3));
    }
}

#[test]
fn a_member_is_filled_around_bad_places_of_the_others() {
    for (n, layout) in [(3, Layout::Mirror), (4, Layout::Mirror), (5, Layout::Parity(2))] {
        for (one, other) in SPOILT {
            let (mut all, pool, content) = known(n, layout);
            let new = fresh("new", &all[2]);
            pool.replace(MemberIndex(2), new.clone(), false).unwrap();
            all[2] = new;
            spoil(&all, &pool, 0, one, 1);
            spoil(&all, &pool, 1, other, 1);
            assert!(pool.rebuild(MemberIndex(2), GO).unwrap(), "{layout:?}");
            assert_eq!(failed(&pool), [0; 0]);
            // What the filler needed is good again, and the rest is named by nobody but a scrub.
            assert!(is_whole(&all[0]), "{layout:?}");
            pool.scrub(&NoChecksums, &mut |_, _| true).unwrap();
            assert!(is_whole(&all[1]), "{layout:?}");
            content.check(&pool);
            consistent(&pool, &all);
        }
    }
}

#[test]
fn only_what_no_member_has_cannot_be_filled_and_is_named() {
    for (n, layout) in [(3, Layout::Mirror), (4, Layout::Parity(2)), (3, Layout::Parity(1))] {
        let (mut all, pool, content) = known(n, layout);
        let new = fresh("new", &all[2]);
        pool.replace(MemberIndex(2), new.clone(), false).unwrap();
        all[2] = new;
        let most = if layout == Layout::Parity(1) { 1 } else { 2 };
        let places: Vec<_> = (0..most).map(|m| spoil(&all, &pool, m, 8192 + 512, 1)).collect();
        let error = pool.rebuild(MemberIndex(2), GO).unwrap_err().to_string();
        let names = (0..most).any(|m| error.contains(&format!("m{m}")));
        assert!(names && error.contains(&places[0].to_string()), "{layout:?}: {error}");
        assert_eq!(pool.rebuilding(), Some(MemberIndex(2)));
        // A write there makes the sectors readable again.
        content.rewrite(&pool);
        assert!(pool.rebuild(MemberIndex(2), GO).unwrap());
        content.check(&pool);
        consistent(&pool, &all);
    }
}

#[test]
fn a_member_that_cannot_be_mended_is_lost_and_the_filling_goes_on() {
    for (n, layout) in [(3, Layout::Mirror), (5, Layout::Parity(2))] {
        let (mut all, pool, content) = known(n, layout);
        let new = fresh("new", &all[2]);
        pool.replace(MemberIndex(2), new.clone(), false).unwrap();
        all[2] = new;
        spoil(&all, &pool, 0, 4096, 1);
        all[0].arm(On::Write, 0, FaultKind::Gone);
        assert!(pool.rebuild(MemberIndex(2), GO).unwrap(), "{layout:?}");
        assert_eq!(failed(&pool), [0]);
        content.check(&pool);
        consistent(&pool, &all);
    }
}

#[test]
fn a_scrub_mends_bad_places_of_several_members() {
    for (n, layout) in [(2, Layout::Mirror), (4, Layout::Parity(1)), (5, Layout::Parity(2))] {
        for (one, other) in SPOILT {
            let (all, pool, content) = known(n, layout);
            spoil(&all, &pool, 0, one, 1);
            spoil(&all, &pool, 1, other, 1);
            let found = pool.scrub(&NoChecksums, &mut |_, _| true).unwrap();
            assert_eq!(found.undecided, Bytes(0), "{layout:?}");
            assert!(found.healed.0 >= 2 * SECTOR && is_whole(&all[0]) && is_whole(&all[1]));
            assert!(layout != Layout::Mirror || found.healed.0 == 2 * SECTOR, "{found:?}");
            content.check(&pool);
            consistent(&pool, &all);
        }
        // What nobody has is named, and only that.
        let (all, pool, content) = known(n, layout);
        let away = if layout == Layout::Parity(2) { 3 } else { 2 };
        for member in 0..away {
            spoil(&all, &pool, member, 8192, 1);
        }
        spoil(&all, &pool, 0, 16384, 1);
        let found = pool.scrub(&NoChecksums, &mut |_, _| true).unwrap();
        assert!(found.undecided.0 > 0 && found.undecided.0 <= away as u64 * SECTOR, "{found:?}");
        assert!(found.healed.0 > 0 && !found.places.is_empty());
        content.rewrite(&pool);
        content.check(&pool);
    }
}

#[test]
fn a_member_is_moved_around_its_bad_places_and_those_of_others() {
    for (n, layout) in [
        (2, Layout::Mirror),
        (3, Layout::Mirror),
        (4, Layout::Parity(1)),
        (4, Layout::StripedMirrors),
    ] {
        for leaving in [0_usize, 1] {
            for (one, other) in SPOILT {
                let (mut all, pool, content) = known(n, layout);
                let new = fresh("new", &all[leaving]);
                let to = Destination::Device { device: new.clone(), force: false };
                let member = MemberIndex(u16::try_from(leaving).unwrap());
                pool.begin_evacuation(member, to).unwrap();
                spoil(&all, &pool, leaving, one, 1);
                spoil(&all, &pool, 1 - leaving, other, 1);
                assert!(pool.evacuate(GO).unwrap(), "{layout:?}");
                assert_eq!((failed(&pool), pool.moving()), (vec![], None), "{layout:?}");
                assert!(is_whole(&all[leaving]), "mended before it left");
                all[leaving] = new;
                pool.scrub(&NoChecksums, &mut |_, _| true).unwrap();
                content.check(&pool);
                consistent(&pool, &all);
            }
        }
    }
}

#[test]
fn what_only_the_leaving_member_had_is_named() {
    let (all, pool, _) = known(2, Layout::Mirror);
    let to = Destination::Device { device: fresh("new", &all[1]), force: false };
    pool.begin_evacuation(MemberIndex(1), to).unwrap();
    spoil(&all, &pool, 0, 8192, 1);
    let place = spoil(&all, &pool, 1, 8192, 1).to_string();
    let error = pool.evacuate(GO).unwrap_err().to_string();
    assert!(error.contains("m1") && error.contains(&place), "{error}");
    assert!(pool.moving().is_some());
}

/// After a crash copies are made equal: from the first one, or from another one if the first cannot
/// be read.
#[test]
fn copies_are_made_equal_around_a_bad_place() {
    let all = devices(3, |_| FaultPlan::default());
    let first = pool(&all, Layout::Mirror);
    first.attach(0).unwrap();
    let content = Content::fill(&first, 12);
    spoil(&all, &first, 0, 4096, 1);
    spoil(&all, &first, 1, 8192, 1);
    drop(first);
    let again = Pool::assemble(all.iter().map(|d| d.clone() as Arc<dyn Device>).collect()).unwrap();
    again.recover_log(0).unwrap();
    assert_eq!(failed(&again), [0; 0]);
    assert!(is_whole(&all[0]) && is_whole(&all[1]));
    content.check(&again);
    consistent(&again, &all);
}

/// The same of parity: what of a row cannot be read is what the rest of it says.
#[test]
fn parity_is_computed_anew_around_bad_places() {
    for (n, layout) in [(4, Layout::Parity(1)), (5, Layout::Parity(2))] {
        for (one, other) in SPOILT {
            let (all, first, content) = known(n, layout);
            spoil(&all, &first, 0, one, 1);
            spoil(&all, &first, 1, other, 1);
            drop(first);
            let again = Pool::assemble(dynamic(&all)).unwrap();
            assert!(again.recover_log(0).unwrap().regions > 0);
            assert_eq!(failed(&again), [0; 0], "{layout:?}");
            assert!(is_whole(&all[0]) && is_whole(&all[1]), "{layout:?}");
            content.check(&again);
            consistent(&again, &all);
        }
    }
}

/// What no column has is left as it is; the rest is made whole.
#[test]
fn what_no_column_has_keeps_no_pool_from_being_recovered() {
    for (n, layout, most) in [
        (4, Layout::Parity(1), 2),
        (5, Layout::Parity(2), 3),
        (2, Layout::Mirror, 2),
        (3, Layout::Mirror, 3),
    ] {
        let (all, first, content) = known(n, layout);
        for member in 0..most {
            spoil(&all, &first, member, 8192, 1);
        }
        spoil(&all, &first, 0, 16384, 1);
        drop(first);
        let again = Pool::assemble(dynamic(&all)).unwrap();
        again.recover_log(0).unwrap();
        assert_eq!(failed(&again), [0; 0], "{layout:?}");
        content.rewrite(&again);
        content.check(&again);
        consistent(&again, &all);
        assert!((0..most).all(|m| is_whole(&all[m])), "{layout:?}");
    }
}
