//! Limits of what this process may use (`ulimit`): lifted as far as they may be, and refused where they
//! would end a node later.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::SIGXFSZ;

use crate::terminal::size;

/// Limits that hold up or end a process that runs for long.
const LIFTED: [Resource; 7] = [
    Resource::As,
    Resource::Cpu,
    Resource::Data,
    Resource::Fsize,
    Resource::Memlock,
    Resource::Nproc,
    Resource::Stack,
];
/// Descriptors that are asked for: programs that are started inherit the limit, and some look at each
/// number below it.
const DESCRIPTORS: u64 = 1 << 16;

/// Stack of the thread that does what the command line says.
const STACK: usize = 8 << 20;

/// Address space of a thread: its stack, as the standard library makes it, and what guards it.
const THREAD: u64 = (2 << 20) + (64 << 10);
/// Threads of a node besides those that answer requests.
const OTHER_THREADS: u64 = 128;
/// Address space of the program, its libraries, and what the allocator reserves.
const PROGRAM: u64 = 256 << 20;
/// Descriptors of a node: sockets, rings, files of this host; and for each device its own, the connections
/// to its target among them.
const OPEN: u64 = 256;
const OPEN_FOR_DEVICE: u64 = 8;

/// What a node may come to use.
#[derive(Debug, Clone, Copy)]
pub struct Need<'a> {
    /// Bound of its memory, bytes.
    pub memory: u64,
    /// Threads that answer requests.
    pub workers: usize,
    /// Its devices.
    pub devices: &'a [PathBuf],
}

/// Runs a program with its limits lifted, in a thread whose stack does not depend on them.
pub fn lifted(run: impl FnOnce() -> ExitCode + Send + 'static) -> ExitCode {
    for resource in LIFTED {
        lift(resource, None);
    }
    lift(Resource::Nofile, Some(DESCRIPTORS));
    // With a handler, a write beyond the largest file that this process may make is an error and no death.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).ok();
    match std::thread::Builder::new().name("braid".into()).stack_size(STACK).spawn(run) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(error) => {
            eprintln!(
                "braid: cannot start a thread: {error}; are memory (ulimit -v, -d) or processes (ulimit -u) limited?"
            );
            ExitCode::FAILURE
        }
    }
}

/// Sets a limit to what this process may set it to; where `most` says so, to no more than that.
fn lift(resource: Resource, most: Option<u64>) {
    let mut limit = getrlimit(resource);
    let wanted = match (limit.maximum, most) {
        (Some(hard), Some(most)) => Some(hard.min(most)),
        (hard, most) => hard.or(most),
    };
    let enough = match (limit.current, wanted) {
        (None, _) => true,
        (Some(now), Some(wanted)) => now >= wanted,
        (Some(_), None) => false,
    };
    if !enough {
        limit.current = wanted;
        // The limit stays what it was; a node says so if it is too small.
        let _ = setrlimit(resource, limit);
    }
}

/// Refuses limits with which a node would fail later, while it is in use.
///
/// # Errors
/// Names the limit, what it is, and what is needed.
pub fn suffice(need: Need<'_>) -> Result<()> {
    let limit = |resource| getrlimit(resource).current;
    if let Some(seconds) = limit(Resource::Cpu) {
        bail!(
            "the limit of processor time (ulimit -t) is {seconds} s and would end this node once it has used so much: mount without that limit"
        );
    }
    let threads = u64::try_from(need.workers).unwrap_or(u64::MAX).saturating_add(OTHER_THREADS);
    let space = need.memory.saturating_mul(2);
    let space = space.saturating_add(threads.saturating_mul(THREAD)).saturating_add(PROGRAM);
    for (resource, name) in [
        (Resource::As, "address space (ulimit -v)"),
        (Resource::Data, "memory for data (ulimit -d)"),
    ] {
        if let Some(bytes) = limit(resource).filter(|bytes| *bytes < space) {
            bail!(
                "the limit of {name} is {}, and this node may need {}: raise the limit, or give smaller values of -o memory= (now {}) and -o workers_max= (now {})",
                size::show(bytes),
                size::show(space),
                size::show(need.memory),
                need.workers,
            );
        }
    }
    let open = OPEN + OPEN_FOR_DEVICE * need.devices.len() as u64;
    if let Some(files) = limit(Resource::Nofile).filter(|files| *files < open) {
        bail!(
            "the limit of open files (ulimit -n) is {files}, and this node may need {open}: raise the limit"
        );
    }
    if let Some(most) = limit(Resource::Fsize) {
        for device in need.devices {
            let file = std::fs::metadata(device).ok().filter(std::fs::Metadata::is_file);
            if let Some(file) = file.filter(|file| file.len() > most) {
                bail!(
                    "the limit of file sizes (ulimit -f) is {}, and {} has {}: raise the limit",
                    size::show(most),
                    device.display(),
                    size::show(file.len()),
                );
            }
        }
    }
    Ok(())
}
