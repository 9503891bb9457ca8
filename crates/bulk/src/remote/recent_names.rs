//! What names led to when the kernel looked them up last. No I/O.
//!
//! The kernel looks a name up before it has it removed or renamed. If the server then ends before it answers, the
//! change may be made or not; what the name led to tells: it is repeated only if the name leads there still, and nobody
//! can have made it again meanwhile.

use std::collections::{HashMap, VecDeque};

use braid_format::InodeNo;
use braid_fs::{Attr, Time};
use parking_lot::Mutex;

use super::inode::Inode;

/// So many are remembered.
const MOST: usize = 4096;

type Name = (InodeNo, Vec<u8>);

/// Where a name led.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Led {
    inode: Inode,
    changed: Time,
}

impl Led {
    fn to(attr: &Attr) -> Self {
        let inode = Inode { ino: attr.ino, generation: attr.generation };
        Self { inode, changed: attr.ctime }
    }
    /// Whether a name leads to the same inode now.
    pub fn is_same(&self, now: &Attr) -> bool {
        self.inode == Self::to(now).inode
    }
    /// Whether the name may have been removed or renamed meanwhile, and made again by another. An inode with other
    /// names can be linked again, and its change time shows that. A file with one name can only be renamed back, which
    /// looks like any other change of it: since those are much more likely, it counts as not made again.
    pub fn may_be_made_again(&self, now: &Attr) -> bool {
        !now.is_dir() && now.nlink > 1 && now.ctime != self.changed
    }
}

/// What is remembered of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remembered {
    /// Nothing.
    Unknown,
    /// It led nowhere.
    Nowhere,
    /// It led there.
    There(Led),
}

impl Remembered {
    /// Where it led.
    pub fn led(self) -> Option<Led> {
        match self {
            Self::There(led) => Some(led),
            Self::Unknown | Self::Nowhere => None,
        }
    }
    /// Whether the name leads now to what it led to then; one that leads nowhere may have been unknown.
    pub fn is_as_before(self, now: Option<&Attr>) -> bool {
        match (self, now) {
            (Self::There(led), Some(now)) => led.is_same(now),
            (Self::Unknown | Self::Nowhere, None) => true,
            _ => false,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// `None`: nowhere.
    names: HashMap<Name, Option<Led>>,
    /// Names, the oldest first.
    order: VecDeque<Name>,
}

/// The names that were looked up last.
#[derive(Debug, Default)]
pub struct RecentNames(Mutex<State>);

impl RecentNames {
    /// A name leads there; `None`: nowhere.
    pub fn note(&self, dir: InodeNo, name: &[u8], attr: Option<&Attr>) {
        self.put((dir, name), attr.map(Led::to));
    }
    /// The same, of what another name is known to have led to.
    pub fn put(&self, (dir, name): (InodeNo, &[u8]), led: Option<Led>) {
        let mut state = self.0.lock();
        let name = (dir, name.to_vec());
        if state.names.insert(name.clone(), led).is_some() {
            return;
        }
        state.order.push_back(name);
        if state.order.len() > MOST
            && let Some(oldest) = state.order.pop_front()
        {
            state.names.remove(&oldest);
        }
    }
    /// What is remembered of a name.
    pub fn of(&self, (dir, name): (InodeNo, &[u8])) -> Remembered {
        match self.0.lock().names.get(&(dir, name.to_vec())) {
            None => Remembered::Unknown,
            Some(None) => Remembered::Nowhere,
            Some(Some(led)) => Remembered::There(*led),
        }
    }
}
