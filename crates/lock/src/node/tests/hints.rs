//! Hints between nodes of several hosts, and between nodes that no network joins.

use std::net::SocketAddr;

use super::*;
use crate::hints::HintsBy;

fn heard_by(host: u8, hints: HintsBy, all: &MemoryNodes, locks: &MemoryStore) -> Node {
    let nodes = all.process();
    let log = Arc::new(Log::default());
    let identity =
        HostIdentity { boot_id: [host; 16], machine_id: [host; 16], host: format!("host{host}") };
    // Beats that are far too slow for what is asked here.
    let timing = Timing::of_beat(Duration::from_secs(2));
    let options = JoinOptions { identity: Some(identity), hints, timing, ..JoinOptions::default() };
    let member = Membership::join(Arc::new(nodes.clone()), options, log.clone()).unwrap();
    let (locks, ops) = (Arc::new(locks.clone()), Arc::new(Plain));
    let managed =
        LockManager::new(member.me(), locks, member.clone(), ops, ManagerOptions::default());
    let manager = managed.unwrap();
    member.attach(&manager).unwrap();
    Node { nodes, member, manager, log }
}

fn tcp() -> HintsBy {
    HintsBy::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))
}

/// Hands a lock to and fro; the median.
fn hand_overs(a: &Node, b: &Node, times: usize) -> Duration {
    let mut took = Vec::new();
    for _ in 0..times {
        for node in [a, b] {
            let began = Instant::now();
            drop(node.manager.acquire(LockNo(5), Mode::Exclusive, Local::Exclusive).unwrap());
            took.push(began.elapsed());
        }
    }
    took.sort_unstable();
    took[took.len() / 2]
}

fn hints_received(node: &Node) -> u64 {
    node.manager.stats().hints_received
}

#[test]
fn nodes_of_two_hosts_hear_each_other_by_tcp() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let (a, b) = (heard_by(1, tcp(), &all, &locks), heard_by(2, tcp(), &all, &locks));
    // The first one to join sees the other with its next look.
    wait_until("seen", || a.member.nodes().len() == 2);
    let took = hand_overs(&a, &b, 30);
    assert!(took < Duration::from_secs(1), "by heartbeats it takes longer: {took:?}");
    assert!(hints_received(&a) > 20 && hints_received(&b) > 20);
}

#[test]
fn whom_no_network_joins_hears_by_heartbeats_that_come_sooner() {
    for (of_a, of_b) in [(HintsBy::None, HintsBy::None), (tcp(), HintsBy::Unix)] {
        let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
        let (a, b) = (heard_by(1, of_a, &all, &locks), heard_by(2, of_b, &all, &locks));
        wait_until("seen", || a.member.nodes().len() == 2);
        let took = hand_overs(&a, &b, 5);
        assert!(took < Duration::from_secs(1), "a beat would be 2 s: {took:?}");
    }
}

/// Nobody is there who takes connections: the rest goes by heartbeats, and nothing waits for it.
#[test]
fn a_firewall_costs_time_only() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let (a, b) = (heard_by(1, tcp(), &all, &locks), heard_by(2, tcp(), &all, &locks));
    wait_until("seen", || a.member.nodes().len() == 2);
    for node in [&a, &b] {
        node.member.inner.hints.tcp().unwrap().close();
    }
    assert!(hand_overs(&a, &b, 5) < Duration::from_secs(1));
}
