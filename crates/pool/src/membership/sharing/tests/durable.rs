//! Epochs whose writer died before their labels were durable, but after others had seen them.

use braid_device::{AlignedBuf, FaultKind, On};
use braid_format::label::Label;

use super::*;

/// Power cuts, each of which takes back another part of what was not flushed.
const CUTS: u64 = 12;

struct Fixture {
    a: Arc<Node>,
    b: Arc<Node>,
    /// Two mirrors, and a spare, to which nothing is written but its labels.
    disks: Vec<Arc<FaultyDevice>>,
}

impl Fixture {
    fn new() -> Self {
        let plan = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
        let disk = |i| {
            let memory = MemoryDevice::new(&format!("d{i}"), Bytes(16 << 20), Bytes(512));
            FaultyDevice::new(memory as Arc<dyn Device>, plan.clone())
        };
        let disks: Vec<_> = (0..5).map(disk).collect();
        let of = |n: usize| disks[..n].iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let mirrored = CreateOptions {
            redundancy: Redundancy::Mirror(2),
            log_slots: 2,
            ..CreateOptions::new("p")
        };
        let pool = Pool::create(of(4), &mirrored).unwrap();
        pool.add_spare(disks[4].clone(), false).unwrap();
        drop(pool);
        let nodes = nodes_of(2, &|| of(5));
        Self { a: nodes[0].clone(), b: nodes[1].clone(), disks }
    }

    /// The first node takes a member out, and dies before it has flushed the first label.
    fn begins_and_dies(&self) -> Label {
        let mut next = crate::labels::next_epoch(&self.a.pool.label());
        next.members[1].state = MemberState::Failed;
        next.members[1].state_epoch = next.epoch;
        for i in [0, 2, 3, 4] {
            self.write_label(&next, i, 0);
        }
        self.a.dies();
        next
    }

    fn write_label(&self, label: &Label, member: u16, copy: u32) {
        let own = Label { member: MemberIndex(member), ..label.clone() };
        let at = [Some(Label::COPY0_AT), Label::copy1_at(Bytes(16 << 20))];
        let at = at[copy as usize].unwrap();
        let mut image = AlignedBuf::zeroed(own.encoded_len());
        own.encode(copy, at, &mut image).unwrap();
        self.disks[usize::from(member)].write(at, &image).unwrap();
    }

    fn assembled(&self) -> Pool {
        let disks = self.disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        Pool::assemble(disks).unwrap()
    }

    fn power_cut(&self, seed: u64) -> Pool {
        for (i, disk) in (0..).zip(&self.disks) {
            disk.crash(seed * 31 + i).unwrap();
        }
        let pool = self.assembled();
        pool.heal_labels().unwrap();
        for slot in 0..2 {
            pool.recover_log(slot).unwrap();
        }
        pool
    }
}

#[test]
fn what_is_written_in_an_epoch_of_a_dead_node_outlasts_a_power_cut() {
    for cut in 0..CUTS {
        let fixture = Fixture::new();
        let next = fixture.begins_and_dies();
        assert!(fixture.b.pool.follow().unwrap());
        assert_eq!(fixture.b.state(1), MemberState::Failed);
        let bytes: Vec<u8> = (0..=255).cycle().take(2 << 20).collect();
        fixture.b.pool.write(ByteOffset(0), &bytes).unwrap();
        fixture.b.pool.flush().unwrap();
        let pool = fixture.power_cut(cut);
        assert_eq!(pool.label().change_id, next.change_id, "power cut {cut}");
        let mut back = vec![0; bytes.len()];
        pool.read(ByteOffset(0), &mut back).unwrap();
        assert!(back == bytes, "power cut {cut}");
    }
}

/// A second label says that all first ones are durable.
#[test]
fn labels_are_healed_in_an_order_that_stands_a_power_cut() {
    for cut in 0..CUTS {
        let fixture = Fixture::new();
        fixture.begins_and_dies();
        let pool = fixture.assembled();
        fixture.disks[4].arm(On::Write, 0, FaultKind::Fails);
        pool.heal_labels().unwrap();
        fixture.power_cut(cut);
    }
}

/// A member that cannot be made to keep its label is taken out before anything is changed.
#[test]
fn a_member_whose_label_does_not_stay_is_taken_out() {
    for cut in 0..CUTS {
        let fixture = Fixture::new();
        fixture.begins_and_dies();
        let bytes = vec![9; 1 << 20];
        for on in 0..8 {
            fixture.disks[4].arm(On::Flush, on, FaultKind::Fails);
        }
        assert!(fixture.b.pool.follow().unwrap());
        fixture.b.pool.write(ByteOffset(0), &bytes).unwrap();
        assert_eq!(fixture.b.state(4), MemberState::Failed);
        fixture.b.pool.flush().unwrap();
        let pool = fixture.power_cut(cut);
        let mut back = vec![0; bytes.len()];
        pool.read(ByteOffset(0), &mut back).unwrap();
        assert!(back == bytes, "power cut {cut}");
    }
}

/// A member fails while an epoch is made durable, and the next epoch takes it out. The second labels of the
/// first of these epochs are durable before a first label of the next one is written.
#[test]
fn who_fails_while_an_epoch_is_made_firm_leaves_every_member_a_label_that_counts() {
    for (cut, fails) in (0..CUTS).flat_map(|cut| (0..6).map(move |fails| (cut, fails))) {
        let fixture = Fixture::new();
        let next = fixture.begins_and_dies();
        // One second label stands, and all first ones.
        fixture.write_label(&next, 0, 1);
        fixture.disks.iter().for_each(|d| d.flush().unwrap());
        assert!(fixture.b.pool.follow().unwrap());
        for on in 0..8 {
            fixture.disks[4].arm(On::Flush, on, FaultKind::Fails);
        }
        // Nothing of the change that takes this member out may be durable.
        fixture.disks[0].arm(On::Flush, fails, FaultKind::Fails);
        fixture.b.pool.write(ByteOffset(0), &[9; 4096]).ok();
        let pool = fixture.power_cut(cut);
        assert!(pool.label().epoch >= next.epoch, "power cut {cut}, flush {fails}");
    }
}

/// A member may keep the label of a change that came to nothing while it cannot be read: it was not
/// used by itself since it failed, and must not look so.
#[test]
fn the_number_of_a_change_that_came_to_nothing_is_not_given_again() {
    let fixture = Fixture::new();
    for node in [&fixture.a, &fixture.b] {
        node.pool.write(ByteOffset(0), &[9; 4096]).unwrap();
    }
    // The first of a mirror cannot be spared without the second.
    fixture.disks[0].arm(On::Flush, 0, FaultKind::Fails);
    fixture.disks[4].arm(On::Flush, 0, FaultKind::Gone);
    fixture.a.pool.fail_member(MemberIndex(1)).unwrap_err();
    fixture.disks[4].heal();
    let tried = crate::labels::Found::read(fixture.disks[4].clone()).newest().unwrap().epoch;
    assert!(tried > fixture.a.pool.label().epoch);
    fixture.a.dies();
    fixture.disks[4].arm(On::Read, 0, FaultKind::Gone);
    let error = fixture.disks[4].read(ByteOffset(0), &mut [0; 512]).unwrap_err();
    fixture.b.pool.0.fail_members(&vec![(fixture.b.pool.label().members[4].uuid, error)]).unwrap();
    assert_eq!(fixture.b.state(4), MemberState::Failed);
    assert!(fixture.b.pool.label().epoch > tried, "{}", fixture.b.pool.label().epoch);
    fixture.disks[4].heal();
    assert_eq!(fixture.assembled().label().epoch, fixture.b.pool.label().epoch);
}

/// A change begins over the first label of each member: the second must be there.
#[test]
fn a_second_label_that_has_rotted_is_written_anew_before_a_change() {
    for cut in 0..CUTS {
        let plan = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
        let disk = |i| {
            let memory = MemoryDevice::new(&format!("d{i}"), Bytes(16 << 20), Bytes(512));
            FaultyDevice::new(memory as Arc<dyn Device>, plan.clone())
        };
        let disks: Vec<_> = (0..5).map(disk).collect();
        let four = || disks[..4].iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let pool = Pool::create(four(), &CreateOptions::new("p")).unwrap();
        let second = Label::copy1_at(Bytes(16 << 20)).unwrap();
        disks[2].write(second, &[0x5a; 4096]).unwrap();
        disks[2].flush().unwrap();
        // Nothing of the change is flushed.
        disks[0].arm(On::Write, 0, FaultKind::Fails);
        pool.add_spare(disks[4].clone(), false).unwrap_err();
        for (i, disk) in (0..).zip(&disks) {
            disk.crash(cut * 31 + i).unwrap();
        }
        let members = Pool::assemble(four()).unwrap().info().members.len();
        assert_eq!(members, 4, "power cut {cut}");
    }
}
