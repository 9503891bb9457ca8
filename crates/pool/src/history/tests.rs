use std::time::Duration;

use braid_device::{FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On};
use braid_format::ByteOffset;

use super::*;
use crate::assembly::create::CreateOptions;
use crate::layout::Redundancy;
use crate::pool::Pool;

fn disk(i: usize) -> Arc<FaultyDevice> {
    let disk = MemoryDevice::new(&format!("m{i}"), Bytes(32 << 20), Bytes(512));
    FaultyDevice::new(disk as Arc<dyn Device>, FaultPlan::default())
}

fn made(disks: &[Arc<FaultyDevice>]) -> Pool {
    let devices = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let redundancy = Redundancy::Mirror(2);
    let pool = Pool::create(devices, &CreateOptions { redundancy, ..CreateOptions::new("p") });
    let pool = pool.unwrap();
    pool.keep_history("here");
    pool
}

fn texts(pool: &Pool) -> Vec<String> {
    pool.settle_history(Duration::from_secs(10));
    pool.history().into_iter().map(|e| e.text).collect()
}

#[test]
fn what_becomes_of_members_is_told_in_order_and_outlives_the_pool_being_closed() {
    let disks: Vec<_> = (0..4).map(disk).collect();
    let pool = made(&disks);
    pool.attach(0).unwrap();
    pool.history_of_node(NodeId(5));
    pool.record(EventKind::Command, Some(1000), "fail 1");
    pool.fail_member(MemberIndex(1)).unwrap();
    pool.replace(MemberIndex(1), disks[1].clone(), true).unwrap();
    pool.rebuild(MemberIndex(1), &|_| true).unwrap();
    disks[2].arm(On::Write, 0, FaultKind::Gone);
    pool.write(ByteOffset(0), &vec![1; 1 << 20]).unwrap();
    let wanted = [
        "fail 1",
        "member 1 (m1) has failed",
        "the pool is degraded",
        "member 1 (m1) joined: being filled",
        "member 1 (m1) is filled and in use",
        "the pool is whole again",
        "member 2 (m2) has failed",
        "the pool is degraded",
    ];
    assert_eq!(texts(&pool), wanted);
    let first = pool.history().remove(0);
    assert_eq!((first.slot, first.user, &first.host[..]), (Some(NodeId(5)), Some(1000), "here"));
    drop(pool);
    let there = disks.iter().map(|d| d.clone() as Arc<dyn Device>);
    let again = Pool::assemble(there.take(2).chain([disks[3].clone() as _]).collect()).unwrap();
    assert_eq!(texts(&again), wanted);
}

#[test]
fn since_when_a_member_is_offline_is_known() {
    let disks: Vec<_> = (0..4).map(disk).collect();
    let pool = made(&disks);
    pool.attach(0).unwrap();
    let one = MemberIndex(1);
    let since = || {
        pool.settle_history(Duration::from_secs(10));
        pool.offline_since()
    };
    assert_eq!(since(), []);
    let mut last = 0;
    for _ in 0..2 {
        assert!(pool.take_offline(one).unwrap());
        let said = since();
        assert!(said.len() == 1 && said[0].0 == one && said[0].1 > last, "{said:?}");
        last = said[0].1;
        pool.bring_online(one, &(disks[1].clone() as _)).unwrap();
        assert_eq!(since(), [], "it is being filled");
        pool.rebuild(one, &|_| true).unwrap();
        // The clock of the history has no finer parts.
        std::thread::sleep(Duration::from_millis(2));
    }
    let told = texts(&pool);
    let told: Vec<&str> = told.iter().map(|t| &t[..]).skip(5).collect();
    let wanted = [
        "member 1 (m1) is offline",
        "the pool is degraded",
        "member 1 (m1) is back: what it has missed is filled",
        "member 1 (m1) is filled and in use",
        "the pool is whole again",
    ];
    assert_eq!(told, wanted);
}

/// Several nodes write at once; the newest events stay when the ring is full, on each member.
#[test]
fn the_ring_keeps_the_newest_events_of_all_writers() {
    let disks: Vec<_> = (0..2).map(disk).collect();
    let pool = made(&disks);
    let (uuid, len) = (pool.info().uuid.into_bytes(), pool.info().lock_sector);
    let writers = 4;
    std::thread::scope(|s| {
        for w in 0..writers {
            let disks = &disks;
            s.spawn(move || {
                for i in 0..400_u64 {
                    let (id, text) = (w * 1000 + i, format!("event {i} of {w}"));
                    let (host, kind) = ("host".to_owned(), EventKind::Scrub);
                    let event = Event { time: i, id, kind, slot: None, user: None, host, text };
                    let devices: Vec<&dyn Device> = disks.iter().map(|d| &**d as _).collect();
                    append(&devices, uuid, len, &event);
                }
            });
        }
    });
    let texts = texts(&pool);
    assert!((900..1200).contains(&texts.len()), "{}", texts.len());
    // Of each writer the last ones, without a gap.
    for w in 0..writers {
        let there = |i: &u64| texts.contains(&format!("event {i} of {w}"));
        let kept = (0..400).filter(there).count() as u64;
        assert!((400 - kept..400).all(|i| there(&i)), "{w}: {kept}");
    }
    let mut once = texts.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), texts.len());
}

/// A torn page costs its own events; a member that takes no event is passed over; a new one gets what the others have.
#[test]
fn damage_and_members_that_come_and_go_cost_no_more_than_they_must() {
    let mut disks: Vec<_> = (0..2).map(disk).collect();
    let pool = made(&disks);
    pool.attach(0).unwrap();
    for i in 0..40 {
        pool.record(EventKind::Scrub, None, format!("event {i}"));
    }
    assert_eq!(texts(&pool).len(), 40);
    for disk in &disks {
        disk.inner().write(HistoryPage::AT + Bytes(512), &[7; 512]).unwrap();
    }
    let left = texts(&pool);
    assert!(left.len() < 40 && left.len() > 25, "{}", left.len());
    assert!(left.contains(&"event 0".to_owned()) && left.contains(&"event 39".to_owned()));
    for gone in [0_u16, 1] {
        let new = disk(usize::from(gone) + 10);
        pool.replace(MemberIndex(gone), new.clone(), false).unwrap();
        pool.rebuild(MemberIndex(gone), &|_| true).unwrap();
        pool.record(EventKind::Scrub, None, format!("member {gone} is new"));
        pool.settle_history(Duration::from_secs(10));
        disks[usize::from(gone)] = new;
    }
    let now = texts(&pool);
    let lost: Vec<&String> = left.iter().filter(|text| !now.contains(text)).collect();
    assert!(lost.is_empty(), "{lost:?}, {now:?}");
    // Where nobody writes any more, nothing is told.
    pool.history_of_node(NodeId(0));
    pool.close();
    pool.record(EventKind::Scrub, None, "too late");
    assert!(!texts(&pool).contains(&"too late".to_owned()));
}
