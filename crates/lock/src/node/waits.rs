//! Which nodes keep threads of this one waiting: for the log, and for people.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use braid_format::node::SlotState;

use super::{FenceMethod, NodeView};
use crate::Life;

/// Waits shorter than this are everyday.
pub(super) const LONG: Duration = Duration::from_secs(5);
/// The same is said again after so long.
const AGAIN: Duration = Duration::from_mins(1);

/// Of a node whose slot cannot be read.
pub(super) const UNREADABLE: &str = "its slot cannot be read, so nothing says whether it lives, or has left: run `braid check --repair` after unmounting all nodes";

/// What a node is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// So many of its locks.
    Locks(usize),
    /// That it says it uses the pool's epoch of this number (its low bits): until then nobody changes
    /// anything.
    Epoch(u32),
}

/// A node that keeps threads of this one waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeWait {
    /// The node, as far as its slot says.
    pub node: NodeView,
    /// Its process is stopped, as far as that is seen here.
    pub stopped: bool,
    /// What for.
    pub awaited: Awaited,
    /// For so long at most.
    pub longest: Duration,
}

impl fmt::Display for NodeWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, stopped, awaited, longest } = self;
        let (slot, longest) = (node.life.slot, longest.as_secs_f64());
        let host = if node.host.is_empty() { String::new() } else { format!(" ({})", node.host) };
        match awaited {
            Awaited::Locks(locks) => {
                let s = if *locks == 1 { "" } else { "s" };
                write!(
                    f,
                    "{locks} lock{s} of node {slot}{host} have been waited for, for {longest:.1} s at most: "
                )?;
            }
            Awaited::Epoch(epoch) => write!(
                f,
                "all changes wait until node {slot}{host} takes note of the pool's last change (epoch {epoch}, in use here for {longest:.1} s): "
            )?,
        }
        match (node.state, node.recoverer) {
            _ if node.unreadable.is_some() => {
                write!(f, "{UNREADABLE}")
            }
            _ if node.damage.is_some() => {
                write!(
                    f,
                    "it is dead, and its recovery has met damage: run `braid check --repair` after unmounting all nodes"
                )
            }
            (SlotState::Recovering, Some(by)) => {
                write!(f, "it is dead, and node {} recovers it", by.slot)
            }
            (SlotState::Active, _) if node.beating && !stopped => match awaited {
                Awaited::Locks(_) => write!(f, "it lives, and has not given them up"),
                Awaited::Epoch(_) => write!(f, "it lives, and has not done so"),
            },
            _ => {
                let silent = node.last_beat.unwrap_or_default().as_secs_f64();
                if *stopped {
                    write!(f, "its process ({}) is stopped, and ", node.pid)?;
                } else {
                    write!(f, "it ")?;
                }
                write!(f, "has shown no heartbeat for {silent:.1} s; ")?;
                match node.fence {
                    FenceMethod::Kernel => write!(
                        f,
                        "its process is killed after {:.1} s of silence, then it is recovered",
                        node.timing.suspect_after().as_secs_f64()
                    ),
                    FenceMethod::Operator => write!(
                        f,
                        "nothing here can fence it: if its host is off, say so (`braid fence POOL {slot} --confirm`)"
                    ),
                    by => write!(
                        f,
                        "it is fenced by {} after {:.1} s of silence, then recovered",
                        by.name(),
                        node.timing.suspect_after().as_secs_f64()
                    ),
                }
            }
        }
    }
}

/// Which waits were logged, and when. Bounded by the number of slots.
#[derive(Debug, Default)]
pub(super) struct WaitLog(HashMap<Life, Instant>);

impl WaitLog {
    /// Logs each wait that has not been logged lately.
    pub fn log(&mut self, waits: Vec<NodeWait>) {
        let now = Instant::now();
        self.0.retain(|_, at| now.saturating_duration_since(*at) < AGAIN);
        for wait in waits {
            self.0.entry(wait.node.life).or_insert_with(|| {
                tracing::warn!("{wait}");
                now
            });
        }
    }
}
