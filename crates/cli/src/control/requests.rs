//! Requests that a node issued to each member, as JSON: the answer to [`Order::Io`](crate::control::Order::Io).

use braid_pool::Pool;
use braid_pool::device::Traffic;
use serde_json::{Value, json};

/// The answer, from the counts of `pool`.
pub fn answer(pool: &Pool) -> Value {
    let traffic = |t: &Traffic| {
        json!({
            "requests": t.requests(),
            "bytes": t.bytes.get(),
            "mean_ms": t.latency().map(|l| l.as_secs_f64() * 1000.0),
            "sizes": t.classes().map(|(from, n)| json!({"from": from.get(), "requests": n}))
                .collect::<Vec<_>>(),
        })
    };
    let slow = pool.slow();
    let is_slow = |index: usize| slow.iter().any(|m| usize::from(m.0) == index);
    let members = pool.devices().into_iter().zip(pool.issued());
    let members: Vec<Value> = members
        .enumerate()
        .map(|(index, (device, issued))| {
            json!({
                "index": index,
                "path": device.info().name,
                "slow": is_slow(index),
                "reads": traffic(&issued.reads),
                "writes": traffic(&issued.writes),
                "flushes": issued.flushes,
                "compare_and_writes": issued.compare_and_writes,
                "discards": issued.discards,
                "zeroes": issued.zeroes,
            })
        })
        .collect();
    json!({"pool": pool.info().name, "members": members})
}
