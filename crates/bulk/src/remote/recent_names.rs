//! What names led to when the kernel looked them up last. No I/O.
//!
//! The kernel looks a name up before it has it removed or renamed. If the server then ends before it answers, the
//! change may be made or not; what the name led to tells: it is repeated only if the name leads there still.

use std::collections::{HashMap, VecDeque};

use braid_format::InodeNo;
use braid_fs::Attr;
use parking_lot::Mutex;

use super::Inode;

/// So many are remembered.
const MOST: usize = 4096;

type Name = (InodeNo, Vec<u8>);

#[derive(Debug, Default)]
struct State {
    names: HashMap<Name, Inode>,
    /// Names, the oldest first.
    order: VecDeque<Name>,
}

/// The names that were looked up last.
#[derive(Debug, Default)]
pub struct RecentNames(Mutex<State>);

impl RecentNames {
    /// A name leads there.
    pub fn note(&self, dir: InodeNo, name: &[u8], attr: &Attr) {
        let mut state = self.0.lock();
        let name = (dir, name.to_vec());
        let inode = Inode { ino: attr.ino, generation: attr.generation };
        if state.names.insert(name.clone(), inode).is_some() {
            return;
        }
        state.order.push_back(name);
        if state.order.len() > MOST
            && let Some(oldest) = state.order.pop_front()
        {
            state.names.remove(&oldest);
        }
    }
    /// Where a name led.
    pub fn of(&self, dir: InodeNo, name: &[u8]) -> Option<Inode> {
        self.0.lock().names.get(&(dir, name.to_vec())).copied()
    }
}
