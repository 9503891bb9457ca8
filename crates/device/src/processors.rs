//! On which processors a thread runs.
//!
//! A thread that keeps to one processor hands that down to the threads it starts. Those that are
//! started from a request, whoever happens to make it, say at their start that they roam.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Those of this process, once a thread has left them.
static ALL: OnceLock<CpuSet> = OnceLock::new();

/// Keeps this thread on a processor. One that it may not use changes nothing.
pub fn keep_to(processor: usize) {
    let mut set = CpuSet::new();
    if processor >= CpuSet::MAX_CPU {
        return;
    }
    set.set(processor);
    if let Ok(all) = sched_getaffinity(None) {
        // The first caller has not been kept to one yet.
        let _ = ALL.set(all);
        let _ = sched_setaffinity(None, &set);
    }
}

/// Lets this thread run wherever the process may, if the one that started it keeps to a processor.
pub fn roam() {
    if let Some(all) = ALL.get() {
        let _ = sched_setaffinity(None, all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> CpuSet {
        sched_getaffinity(None).unwrap()
    }

    #[test]
    fn what_a_kept_thread_starts_may_roam() {
        let before = own();
        let one = (0..CpuSet::MAX_CPU).find(|n| before.is_set(*n)).unwrap();
        std::thread::spawn(move || {
            keep_to(CpuSet::MAX_CPU);
            keep_to(one);
            assert_eq!(own().count(), 1);
            std::thread::spawn(move || {
                assert_eq!(own().count(), 1);
                roam();
                assert!(own() == before);
            })
            .join()
            .unwrap();
        })
        .join()
        .unwrap();
    }
}
