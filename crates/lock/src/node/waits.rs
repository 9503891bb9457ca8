//! Which nodes keep threads of this one waiting: for the log, and for people.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use braid_format::node::SlotState;

use super::{FenceMethod, NodeView};
use crate::Me;

/// Waits shorter than this are everyday.
pub(super) const LONG: Duration = Duration::from_secs(5);
/// The same is said again after so long.
const AGAIN: Duration = Duration::from_mins(1);

/// A node that keeps threads of this one waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeWait {
    /// The node, as far as its slot says.
    pub node: NodeView,
    /// So many of its locks are waited for.
    pub locks: usize,
    /// For so long at most.
    pub longest: Duration,
}

impl fmt::Display for NodeWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, locks, longest } = self;
        let (slot, host) = (node.life.slot, &node.host);
        let s = if *locks == 1 { "" } else { "s" };
        write!(
            f,
            "{locks} lock{s} of node {slot} ({host}) have been waited for, for {:.1} s at most: ",
            longest.as_secs_f64()
        )?;
        match (node.state, node.recoverer) {
            _ if node.damage.is_some() => {
                write!(
                    f,
                    "it is dead, and its recovery has met damage: run `braid check --repair` after unmounting all nodes"
                )
            }
            (SlotState::Recovering, Some(by)) => {
                write!(f, "it is dead, and node {} recovers it", by.slot)
            }
            (SlotState::Active, _) if node.beating => {
                write!(f, "it lives, and has not given them up")
            }
            _ => {
                let silent = node.last_beat.unwrap_or_default().as_secs_f64();
                write!(f, "it has shown no heartbeat for {silent:.1} s; ")?;
                match node.fence {
                    FenceMethod::Kernel => {
                        write!(f, "it is of this host, and recovered once its process has ended")
                    }
                    FenceMethod::Operator => write!(
                        f,
                        "nothing here can fence it: if its host is off, say so (`braid fence POOL {slot} --confirm`)"
                    ),
                    by => write!(
                        f,
                        "it is fenced by {} after {:.1} s of silence, then recovered",
                        by.name(),
                        node.timing.suspect().as_secs_f64()
                    ),
                }
            }
        }
    }
}

/// Who was spoken of, and when. Bounded by the number of slots.
#[derive(Debug, Default)]
pub(super) struct Said(HashMap<Me, Instant>);

impl Said {
    /// Logs each wait that has not been spoken of lately.
    pub fn say(&mut self, waits: Vec<NodeWait>) {
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
