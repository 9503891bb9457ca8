//! What may be asked of a mounted node, and how it answers: one line of JSON each way.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::control::member::MemberId;
use crate::control::views::View;
use crate::pools::shape::ShapeArgs;

/// What may be asked of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// What the pool's members are and what is being done for them.
    Members,
    /// The same, as far as the node knows without asking a device that may not answer. From a node that has
    /// withdrawn, too.
    Look,
    /// Wait until all nodes that live have taken note of the pool's last change.
    Settle,
    /// What programs ask of it.
    Programs,
    /// Its clients, if it is a server.
    Clients,
    /// What it has asked of each member.
    Io,
    /// The nodes, as it sees them.
    Nodes,
    /// What happened to the pool.
    History,
    /// Its locks.
    Locks {
        /// Those that other nodes took most often.
        hot: bool,
        /// Most that are told.
        lines: usize,
    },
    /// What requests of programs wait for.
    Why,
    /// The operator's word that a node's host is off.
    Fence {
        /// Its slot.
        node: u16,
    },
    /// Take a member out.
    Fail {
        /// Which.
        member: MemberId,
        /// Also if those that would stand in for it are suspected to return garbage.
        #[serde(default)]
        force: bool,
    },
    /// Take a member out for a while.
    Offline {
        /// Which.
        member: MemberId,
        /// Only say what would be.
        dry_run: bool,
    },
    /// Bring it back, and fill what it has missed.
    Online {
        /// The member.
        member: MemberId,
        /// Its device's absolute path.
        device: PathBuf,
        /// Only say what would be.
        dry_run: bool,
    },
    /// Put a device in a member's place and fill it.
    Replace {
        /// The member.
        member: MemberId,
        /// The device's absolute path.
        device: PathBuf,
        /// Whatever is on it.
        force: bool,
    },
    /// Add a device that steps in for the next member that fails.
    Spare {
        /// The device's absolute path.
        device: PathBuf,
        /// Whatever is on it.
        force: bool,
    },
    /// Move what is on a member to another device.
    Evacuate {
        /// The member.
        member: MemberId,
        /// The device's absolute path, or an unused member; none: any that fits.
        to: Option<Target>,
        /// Whatever is on it.
        force: bool,
    },
    /// End such a move.
    Stay {
        /// The member.
        member: MemberId,
    },
    /// Add devices, and their space.
    Add {
        /// The devices' absolute paths; none: those that the layout names.
        devices: Vec<PathBuf>,
        /// How the space is made of them.
        shape: Box<ShapeArgs>,
        /// Whatever is on them.
        force: bool,
        /// Only say what would be.
        dry_run: bool,
    },
    /// Use what devices have more than they had.
    Grow {
        /// Only say what would be.
        dry_run: bool,
    },
    /// Move file data until all parts of the pool are equally full, or end that.
    Rebalance {
        /// Begin; it is answered when it is done.
        run: bool,
    },
    /// Take a member on which nothing stands out of the pool.
    Remove {
        /// Which.
        member: MemberId,
    },
    /// Move what is on a member to the rest of the pool, which becomes smaller. It is answered when
    /// it is done.
    Leave {
        /// The member.
        member: MemberId,
        /// Only say what would be.
        dry_run: bool,
    },
    /// End that.
    LeaveEnd,
    /// Give free space back to the devices, or end that.
    Trim {
        /// Begin; it is answered when it is done.
        run: bool,
    },
    /// Have all nodes change nothing.
    Freeze {
        /// For so many seconds at most.
        seconds: u32,
        /// They have so many seconds to write what they have.
        timeout: u32,
    },
    /// End that.
    Thaw,
    /// Forget suspicions and errors that an operator has taken note of.
    Clear {
        /// Of which member; none: all of them, and what is known of none.
        member: Option<MemberId>,
    },
    /// Say what an order would do, after the same refusals. An order of its own: a node of an older version refuses it,
    /// and would carry out one with a word that it does not know.
    Plan {
        /// It.
        of: Box<Order>,
    },
    /// Change properties: each key with its new value, or none.
    Set {
        /// Them.
        properties: Vec<(String, Option<String>)>,
    },
    /// Begin one of the orders that are answered when they are done, and answer when it has begun. An order of its
    /// own, as [`Order::Plan`].
    Background {
        /// It.
        of: Box<Order>,
        /// When a member is emptied by it: take it out of the pool then.
        remove: bool,
    },
    /// Begin to read everything and heal what rotted, or end that.
    Scrub {
        /// Begin.
        run: bool,
    },
}

impl Order {
    /// Whether it is answered at once: with what the node knows, or notes down.
    pub(super) const fn is_quick(&self) -> bool {
        matches!(
            self,
            Self::Members
                | Self::Look
                | Self::History
                | Self::Programs
                | Self::Clients
                | Self::Io
                | Self::Nodes
                | Self::Locks { .. }
                | Self::Why
                | Self::Fence { .. }
        )
    }
}

impl Order {
    /// Whether something is to be changed by it, or some work begun or ended.
    pub(super) const fn is_change(&self) -> bool {
        !self.is_quick() && !matches!(self, Self::Settle | Self::Plan { .. })
            || matches!(self, Self::Fence { .. })
    }

    /// What stands if the node ended before it answered, and what to do: the end of a sentence.
    pub(super) fn if_cut(&self) -> &'static str {
        match self {
            Self::Background { of, .. } => of.if_cut(),
            Self::Leave { .. } | Self::LeaveEnd => {
                "what has moved stays moved, and nothing new is put into that part of the pool until `braid remove` \
                 goes on with it, or `braid remove POOL --cancel` ends it"
            }
            Self::Rebalance { .. } => {
                "what has moved stays moved; `braid rebalance` goes on with the rest"
            }
            Self::Trim { .. } => {
                "what was given back stays given back; `braid trim` gives back the rest"
            }
            Self::Scrub { .. } => {
                "what was healed stays healed, and nobody reads the rest: `braid scrub` begins again"
            }
            Self::Replace { .. } | Self::Online { .. } => {
                "it may have begun. If `braid status` shows the member as rebuilding, another node, or the next one, \
                 goes on with it by itself; else give the order again"
            }
            Self::Evacuate { .. } | Self::Stay { .. } => {
                "it may have begun. If `braid status` shows that the member is moved, another node, or the next one, \
                 goes on with it by itself; else give the order again"
            }
            Self::Add { .. } | Self::Grow { .. } => {
                "the pool may have the space already, all of it or none; if it is not in use, `braid grow` finishes that"
            }
            Self::Freeze { .. } => {
                "the pool may be frozen until the time is over that was given for that; `braid thaw` on a host whose \
                 node has frozen it ends that at once"
            }
            order if order.is_change() => {
                "it may be done or not, but never half of it; if it is not, give the order again"
            }
            _ => "nothing was changed",
        }
    }
}

/// Where the contents of a member go.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A new device.
    Device(PathBuf),
    /// A member of the pool on which nothing stands.
    Member(MemberId),
}

/// An answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Done(Box<View>),
    Value(serde_json::Value),
    Refused(String),
}
