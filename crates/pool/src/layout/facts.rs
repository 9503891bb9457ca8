//! What a topology gives: bytes, redundancy, expected bandwidth, and what an operator should know.

use core::fmt;

use braid_format::Bytes;
use braid_format::label::{Label, Member, MemberState, NodeKind, Segment, SubpoolKind, TreeNode};

use super::build::unused;

/// What a label's topology gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Logical bytes.
    pub usable: Bytes,
    /// Bytes of all data areas.
    pub raw: Bytes,
    /// Of each member, bytes in no slice.
    pub unused: Vec<Bytes>,
    /// Members that may be lost yet, whichever they are, beside those that are not in sync.
    pub tolerates: u16,
    /// Bytes per second of large reads of data, when all members' are known.
    pub read: Option<Bytes>,
    /// Bytes per second of large writes of data, when all members' are known.
    pub write: Option<Bytes>,
    /// What should be said.
    pub notes: Vec<Note>,
}

/// Something an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// Bytes that cannot be used.
    Unused {
        /// The member.
        path: String,
        /// How many.
        bytes: Bytes,
        /// They could only hold data without redundancy.
        redundant: bool,
    },
    /// The slowest member, where it is much slower than the fastest.
    Slow {
        /// The member.
        path: String,
        /// Its bytes per second.
        speed: Bytes,
        /// The fastest's.
        fastest: Bytes,
        /// It takes its share only.
        weighted: bool,
    },
    /// A group that does not survive the loss of one controller, though there are several.
    OneBus {
        /// What it is.
        kind: &'static str,
        /// A member of it on that bus.
        path: String,
        /// The bus.
        bus: u16,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unused { path, bytes, redundant: true } => write!(
                f,
                "{bytes} bytes of {path} cannot be used: too few other members have space left to make them redundant"
            ),
            Self::Unused { path, bytes, redundant: false } => {
                write!(
                    f,
                    "{bytes} bytes of {path} are not used: less than a whole row, or given to no part"
                )
            }
            Self::Slow { path, speed, fastest, weighted: true } => write!(
                f,
                "{path} is slow ({} MB/s, the fastest {}): it gets a smaller share of each row",
                speed.0 / 1_000_000,
                fastest.0 / 1_000_000
            ),
            Self::Slow { path, speed, fastest, weighted: false } => write!(
                f,
                "{path} is slow ({} MB/s, the fastest {}) and slows the others of its rows down: leave it out, or take --weights auto",
                speed.0 / 1_000_000,
                fastest.0 / 1_000_000
            ),
            Self::OneBus { kind, path, bus } => write!(
                f,
                "a {kind} with {path} has more members on bus {bus} than it may lose: the loss of that controller would lose data"
            ),
        }
    }
}

impl Facts {
    /// Of a verified label.
    pub fn of(label: &Label) -> Self {
        let tree = Tree { label };
        let unused = unused(&label.nodes, &label.members);
        let data = label
            .segments
            .iter()
            .find(|s| matches!(s.subpool, SubpoolKind::Data | SubpoolKind::General))
            .and_then(|s| label.nodes.get(usize::from(s.node)));
        let tolerates = tree.roots().map(|n| tree.tolerance(n, true)).min().unwrap_or(0);
        let known = |speed: u64| Some(Bytes(speed)).filter(|s| s.0 > 0);
        let mut facts = Self {
            usable: Bytes(label.size().0 - label.holes().0),
            raw: Bytes(label.members.iter().map(|m| m.data_len.0).sum()),
            unused,
            tolerates,
            read: data.and_then(|n| known(tree.speed(n, true))),
            write: data.and_then(|n| known(tree.speed(n, false))),
            notes: Vec::new(),
        };
        facts.notes = notes(&tree, &facts);
        facts
    }
}

fn notes(tree: &Tree, facts: &Facts) -> Vec<Note> {
    let members = &tree.label.members;
    let mut notes = Vec::new();
    let redundant = tree.roots().map(|n| tree.tolerance(n, false)).min().unwrap_or(0) > 0;
    for (m, bytes) in members.iter().zip(&facts.unused).filter(|(_, b)| b.0 > 0) {
        notes.push(Note::Unused { path: m.path.clone(), bytes: *bytes, redundant });
    }
    notes.extend(tree.label.segments.iter().filter_map(|s| tree.slowest(s)));
    let mut buses: Vec<u16> = members.iter().map(|m| m.bus).filter(|b| *b != 0).collect();
    buses.sort_unstable();
    buses.dedup();
    if buses.len() > 1 {
        notes.extend(tree.label.nodes.iter().filter_map(|n| tree.one_bus(n)));
    }
    notes.dedup();
    notes
}

struct Tree<'a> {
    label: &'a Label,
}

impl<'a> Tree<'a> {
    /// The children with their weights. Those of a verified label stand before their parent.
    fn children(&self, node: &'a TreeNode) -> impl Iterator<Item = (&'a TreeNode, u16)> + use<'a> {
        let nodes = &self.label.nodes;
        node.kind
            .children()
            .iter()
            .filter_map(move |c| Some((nodes.get(usize::from(c.node))?, c.weight)))
    }

    /// The trees that hold something.
    fn roots(&self) -> impl Iterator<Item = &'a TreeNode> {
        let shown = self.label.segments.iter().filter(|s| !s.is_hole());
        shown.filter_map(|s| self.label.nodes.get(usize::from(s.node)))
    }

    /// Whether a node has its bytes, as its members are now.
    fn has_bytes(&self, node: &'a TreeNode) -> bool {
        let without = self.children(node).filter(|(c, _)| !self.has_bytes(c)).count();
        match &node.kind {
            NodeKind::Slice { member, .. } => {
                let member = self.label.members.get(usize::from(member.0));
                member
                    .is_some_and(|m| matches!(m.state, MemberState::Active | MemberState::Leaving))
            }
            NodeKind::Mirror { children, .. } => without < children.len(),
            NodeKind::Parity { parity, .. } => without <= usize::from(*parity),
            NodeKind::Stripe { .. } | NodeKind::Concat { .. } => without == 0,
        }
    }

    /// Members below a node that may be lost, whichever they are: by its shape, or beside those that
    /// are not in sync `now`.
    fn tolerance(&self, node: &'a TreeNode, now: bool) -> u16 {
        let count = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let out = || count(self.children(node).filter(|(c, _)| now && !self.has_bytes(c)).count());
        match &node.kind {
            NodeKind::Slice { .. } => 0,
            NodeKind::Mirror { children, .. } => {
                count(children.len()).saturating_sub(1).saturating_sub(out())
            }
            NodeKind::Parity { parity, .. } => parity.saturating_sub(out()),
            NodeKind::Stripe { .. } | NodeKind::Concat { .. } => {
                self.children(node).map(|(c, _)| self.tolerance(c, now)).min().unwrap_or(0)
            }
        }
    }

    /// Bytes per second at the front of a node; 0 when a member's are not known. A row of a stripe
    /// takes as long as its slowest child.
    fn speed(&self, node: &'a TreeNode, read: bool) -> u64 {
        let children = || self.children(node).map(|(c, w)| (self.speed(c, read), u64::from(w)));
        let least = children().map(|(v, _)| v).min().unwrap_or(0);
        match &node.kind {
            NodeKind::Slice { member, .. } => self
                .label
                .members
                .get(usize::from(member.0))
                .map_or(0, |m: &Member| m.bytes_per_second.0),
            NodeKind::Mirror { .. } if read && least > 0 => {
                children().map(|(v, _)| v).fold(0, u64::saturating_add)
            }
            NodeKind::Mirror { .. } => least,
            NodeKind::Parity { parity, children, .. } => {
                let data = children.len().saturating_sub(usize::from(*parity)) as u64;
                least.saturating_mul(data)
            }
            NodeKind::Concat { .. } => children().next().map_or(0, |(v, _)| v),
            NodeKind::Stripe { .. } => {
                let units: u64 = children().map(|(_, w)| w).sum();
                children().map(|(v, w)| v / w.max(1)).min().unwrap_or(0).saturating_mul(units)
            }
        }
    }

    /// The slowest member of those that share the rows of data, if it is slow.
    fn slowest(&self, segment: &Segment) -> Option<Note> {
        if !matches!(segment.subpool, SubpoolKind::Data | SubpoolKind::General) {
            return None;
        }
        let mut members = Vec::new();
        let mut weighted = false;
        let mut nodes = vec![self.label.nodes.get(usize::from(segment.node))?];
        while let Some(node) = nodes.pop() {
            if let NodeKind::Slice { member, .. } = &node.kind {
                members.extend(self.label.members.get(usize::from(member.0)));
            }
            let mut weights = self.children(node).map(|(_, weight)| weight);
            let first = weights.next();
            weighted |= weights.any(|w| Some(w) != first);
            nodes.extend(self.children(node).map(|(child, _)| child));
        }
        members.retain(|m| m.bytes_per_second.0 > 0);
        let slow = members.iter().min_by_key(|m| m.bytes_per_second)?;
        let fastest = members.iter().map(|m| m.bytes_per_second).max()?;
        let is_slow = u128::from(slow.bytes_per_second.0) * 100 < u128::from(fastest.0) * 85;
        let (path, speed) = (slow.path.clone(), slow.bytes_per_second);
        is_slow.then_some(Note::Slow { path, speed, fastest, weighted })
    }

    fn one_bus(&self, node: &'a TreeNode) -> Option<Note> {
        let (kind, may_lose) = match &node.kind {
            NodeKind::Mirror { .. } => ("mirror", self.tolerance(node, false)),
            NodeKind::Parity { parity, .. } => ("parity group", *parity),
            _ => return None,
        };
        let members: Vec<&Member> =
            self.children(node).filter_map(|(c, _)| self.first_member(c)).collect();
        members.iter().find_map(|m| {
            let on_it = members.iter().filter(|o| o.bus == m.bus).count();
            (m.bus != 0 && on_it > usize::from(may_lose)).then(|| Note::OneBus {
                kind,
                path: m.path.clone(),
                bus: m.bus,
            })
        })
    }

    fn first_member(&self, node: &'a TreeNode) -> Option<&'a Member> {
        match &node.kind {
            NodeKind::Slice { member, .. } => self.label.members.get(usize::from(member.0)),
            _ => self.children(node).next().and_then(|(c, _)| self.first_member(c)),
        }
    }
}
