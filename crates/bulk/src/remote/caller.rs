//! For which program a thread asks.

use std::cell::Cell;

use braid_fs::Cred;

use crate::wire::{Caller, GROUPS_MAX};

thread_local! {
    static CALLER: Cell<Cred> = const { Cell::new(Cred { uid: 0, gid: 0, pid: 0, umask: 0 }) };
}

/// This thread asks for that program from now on.
pub fn begin(cred: &Cred) {
    CALLER.set(*cred);
}

/// The program's user.
pub fn uid() -> u32 {
    CALLER.get().uid
}

/// The program's user, who means inodes of these generations.
pub fn current(generations: [u64; 2]) -> Caller {
    let Cred { uid, gid, pid, .. } = CALLER.get();
    // Root needs none.
    let groups = if uid == 0 { Vec::new() } else { groups(pid) };
    Caller { generations, uid, gid, groups }
}

/// The other groups of a thread. FUSE does not tell them. None of one that this process cannot see.
fn groups(thread: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|word| word.parse().ok()).take(GROUPS_MAX).collect()
}
