//! The block devices of a mounted pool are held against other programs ([`Hold`]): by one of the nodes of this
//! host, whichever was first. The others look several times a second whether it still does.
//!
//! So if the node that holds a member dies, that member is open to other programs for as long as [`LOOK`]; and if
//! it was the only node of this host, until the next mount. Files and units of iSCSI targets cannot be held.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use braid_pool::Pool;
use braid_pool::device::{Hold, Holding};

use crate::api::Fs;

/// Between two looks at the members, and at who holds them.
const LOOK: Duration = Duration::from_millis(250);

/// A block device by what it is: a name may be another device's later.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Member {
    path: PathBuf,
    device: u64,
}

/// Holds the members that no other node holds, until it is dropped.
#[derive(Debug)]
pub struct Holds {
    /// Closed, it ends the thread. Nobody waits for it: a disk may not answer.
    _stop: Option<Sender<()>>,
}

impl Holds {
    /// Of the members that the pool of `fs` has at any time. The first look is over on return.
    pub fn of(fs: &Fs) -> Self {
        let (stop, stopped) = channel();
        let mut held = ProcessHolds::default();
        held.look_at(members(fs.pool()));
        let fs = fs.clone();
        let work = move || {
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                held.look_at(members(fs.pool()));
            }
        };
        let thread = std::thread::Builder::new().name("holds".into()).spawn(work);
        if let Err(error) = &thread {
            tracing::warn!(%error, "other programs are not kept from the pool's devices");
        }
        Self { _stop: thread.is_ok().then_some(stop) }
    }
}

/// The block devices of a pool.
fn members(pool: &Pool) -> HashSet<Member> {
    let devices = pool.devices();
    let blocks = devices.iter().filter(|d| d.info().is_block && d.info().is_path);
    let paths = blocks.map(|d| PathBuf::from(&d.info().name));
    paths
        .filter_map(|path| {
            let device = std::fs::metadata(&path).ok()?.rdev();
            Some(Member { path, device })
        })
        .collect()
}

/// What one process holds.
#[derive(Debug, Default)]
struct ProcessHolds {
    holds: HashMap<Member, Hold>,
    /// What cannot be held is said once.
    told: HashSet<Member>,
}

impl ProcessHolds {
    /// Lets go of what is no member any more, and takes what nobody holds.
    fn look_at(&mut self, members: HashSet<Member>) {
        self.holds.retain(|member, _| members.contains(member));
        self.told.retain(|member| members.contains(member));
        for member in members {
            if self.holds.contains_key(&member) {
                continue;
            }
            match Hold::take(&member.path) {
                Ok(Holding::Held(hold)) => {
                    self.told.remove(&member);
                    self.holds.insert(member, hold);
                }
                Ok(Holding::ByNode) => drop(self.told.remove(&member)),
                Ok(Holding::Claimed) => self.tell(member, |device| {
                    tracing::error!(
                        device,
                        "another program has claimed this member of a mounted pool: find out what it writes there (`lsblk {device}`, `fuser -v {device}`)"
                    );
                }),
                Err(error) => self.tell(member, |device| {
                    tracing::warn!(device, %error, "other programs cannot be kept from this member");
                }),
            }
        }
    }
    fn tell(&mut self, member: Member, say: impl FnOnce(&str)) {
        if !self.told.contains(&member) {
            say(&member.path.display().to_string());
            self.told.insert(member);
        }
    }
}
