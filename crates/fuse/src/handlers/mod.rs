//! Requests to calls: each opcode is one call of [`FileSystem`], its arguments checked and its result
//! put into the kernel's form. No decisions are made here beyond what may be cached.

mod data;
mod ioctl;
mod names;
#[cfg(test)]
mod tests;
mod truncate;
mod wire;

use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::InodeNo;
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{
    self, BatchForgetIn, EntryOut, ForgetIn, ForgetOne, InterruptIn, ReleaseIn, WriteIn, op,
};
use crate::caches::lease_gate::HoldsPages;
use crate::caches::nodes::{Keep, Nodes, Stamp};
use crate::caches::notify::{DeferredAnswers, KernelLink, Near};
use crate::counts::{RequestCounters, Unanswered};
use crate::error::BadRequest;
use crate::terms::Terms;
use crate::transport::queue::{HeldPages, QueuedRequests, RequestQueue};
use crate::transport::reply::{Device, Reply, Way};
use crate::transport::request::{Body, Request};
use crate::transport::space::Kept;
use crate::waits::handle_lookups::HandleLookups;
use crate::waits::interrupts::Interrupts;
use crate::waits::killed_programs::{
    ANY_SIGNAL, AT_EXIT, BY_OTHERS, KilledPrograms, Parked, Watched,
};
use crate::waits::lock_owners::LockOwners;
use crate::waits::lock_waits::{LockWaits, RingWaits};
use crate::waits::user_shares::Shares;
use braid_fs::KeptNumbers;
use braid_fs::lock::interrupt;
use braid_fs::{Answer, FileSystem};
use braid_fs::{Attr, Cred};

/// Whether a request's waits may end when its program is killed. What gives something back, which a
/// program's end brings about itself, is always seen through; a flush if the file system says so.
fn may_be_killed(opcode: u32) -> bool {
    !matches!(
        opcode,
        op::FLUSH
            | op::RELEASE
            | op::RELEASEDIR
            | op::FORGET
            | op::BATCH_FORGET
            | op::DESTROY
            | op::INTERRUPT
    )
}

/// Whether a request is about inodes that the kernel knows by number alone. What is about an open file needs no
/// look: its inode stays as long as it is open.
fn names_by_number(opcode: u32) -> bool {
    matches!(
        opcode,
        op::LOOKUP
            | op::GETATTR
            | op::SETATTR
            | op::READLINK
            | op::SYMLINK
            | op::MKNOD
            | op::MKDIR
            | op::UNLINK
            | op::RMDIR
            | op::RENAME
            | op::RENAME2
            | op::LINK
            | op::OPEN
            | op::OPENDIR
            | op::CREATE
            | op::TMPFILE
            | op::ACCESS
            | op::STATX
            | op::SETXATTR
            | op::GETXATTR
            | op::LISTXATTR
            | op::REMOVEXATTR
    )
}

/// Why a request gets an error.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The file system says so.
    Errno(Errno),
    /// The request makes no sense.
    Bad(BadRequest),
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}
impl From<BadRequest> for Fault {
    fn from(bad: BadRequest) -> Self {
        Self::Bad(bad)
    }
}

type Outcome<T> = Result<T, Fault>;

/// A file system and everything needed to answer for it. Shared by all threads.
#[derive(Debug)]
pub struct Server<F: FileSystem> {
    files: F,
    root: InodeNo,
    terms: Terms,
    /// No other node can change anything.
    single: bool,
    link: Arc<KernelLink>,
    interrupts: Interrupts,
    queue: Arc<RequestQueue>,
    handle_lookups: HandleLookups,
    shares: Shares,
    killed: Arc<KilledPrograms>,
    lockers: LockOwners,
    waits: Arc<LockWaits<F::Wait>>,
    ring_waits: RingWaits,
    late: Arc<DeferredAnswers>,
    counters: Arc<RequestCounters>,
}

impl<F: FileSystem> Parked for Server<F> {
    fn whose(&self) -> Vec<(u64, u32)> {
        self.waits.whose()
    }
    fn end(&self, unique: u64) {
        if let Some(wait) = self.waits.of(unique) {
            self.files.end_lock_wait(wait);
        }
    }
}

impl<F: FileSystem> Unanswered for Server<F> {
    fn for_locks(&self) -> Vec<(u32, u64, Duration)> {
        self.waits.waiting()
    }
    fn for_threads(&self) -> Vec<u32> {
        self.killed.queued().into_values().collect()
    }
}

/// One request under way.
struct Call<'a, F: FileSystem> {
    server: &'a Server<F>,
    nodeid: u64,
    cred: Cred,
    opcode: u32,
    body: Body<'a>,
    reply: Reply<'a>,
    scratch: &'a mut Vec<u8>,
    /// Bytes that it has read or written.
    moved: u64,
    /// What the request names by number.
    kept: KeptNumbers,
}

impl<F: FileSystem> Server<F> {
    /// Ready to answer, with so many threads.
    pub fn new(files: F, link: Arc<KernelLink>, terms: Terms, threads: usize) -> Self {
        let (root, single) = (files.root(), files.is_single_node());
        let late = DeferredAnswers::new(Arc::clone(&link));
        let queue = Arc::<RequestQueue>::default();
        let handle_lookups = HandleLookups::default();
        let shares = Shares::new(threads);
        let mut queues: Vec<Arc<dyn QueuedRequests>> =
            vec![queue.clone(), handle_lookups.queue().clone()];
        queues.extend(shares.queues());
        Self {
            files,
            root,
            terms,
            single,
            link,
            interrupts: Interrupts::default(),
            killed: Arc::new(KilledPrograms::new(queues)),
            queue,
            handle_lookups,
            shares,
            lockers: LockOwners::default(),
            waits: Arc::default(),
            ring_waits: RingWaits::new(threads),
            late,
            counters: Arc::default(),
        }
    }
    /// The same; its requests are counted there.
    pub fn counting(self, counters: Arc<RequestCounters>) -> Self {
        Self { counters, ..self }
    }
    /// Waits for locks end with their programs, too, from now on; and who asks what requests wait for is told of those
    /// without a thread.
    pub fn end_waits_of_killed(self: &Arc<Self>) {
        self.killed.look_at(Arc::downgrade(self));
        let this: std::sync::Weak<Self> = Arc::downgrade(self);
        self.counters.tell_of(this);
    }
    /// What was agreed on with the kernel.
    pub fn terms(&self) -> Terms {
        self.terms
    }
    /// The mount is gone: ends waits for locks, and helper threads once they are done.
    pub fn close(&self) {
        self.files.closing();
        self.interrupts.close();
        self.waits.all().into_iter().for_each(|wait| self.files.end_lock_wait(wait));
        self.killed.close();
        self.late.close();
        self.link.moves().close();
    }
    /// Requests that came by the device and that no thread answers yet.
    pub(crate) fn queue(&self) -> &RequestQueue {
        &self.queue
    }
    /// Lookups by file handle of users other than root.
    pub(crate) fn handle_lookups(&self) -> &HandleLookups {
        &self.handle_lookups
    }
    /// The way to the kernel's caches.
    pub(crate) fn link(&self) -> &KernelLink {
        &self.link
    }
    /// Takes a request that no thread has begun, and that a drop of a node's pages waits for: first those of the very
    /// pages that are dropped.
    pub(crate) fn take_held_pages(&self, node: u64) -> Option<Kept> {
        [Near::Overlaps, Near::IsPerhapsLocked].into_iter().find_map(|near| {
            let wanted =
                |held: &HeldPages| held.node == node && self.link.is_held_up_by(held, near);
            let of_users = || self.shares.calls().take_held_pages(&wanted);
            self.queue.take_held_pages(&wanted).or_else(of_users)
        })
    }
    /// Whether there is one.
    pub(crate) fn has_held_pages(&self, node: u64) -> bool {
        let near = Near::MayBeLocked;
        let wanted = |held: &HeldPages| held.node == node && self.link.is_held_up_by(held, near);
        self.queue.has_held_pages(&wanted) || self.shares.calls().has_held_pages(&wanted)
    }
    /// The bytes of a node's pages that are to be filled by requests that no thread has begun.
    pub(crate) fn unbegun_fills(&self, node: u64) -> Vec<(u64, u64)> {
        let mut fills = self.queue.unbegun_fills(node);
        fills.extend(self.shares.calls().unbegun_fills(node));
        fills
    }
    /// Which users keep threads busy.
    pub(crate) fn shares(&self) -> &Shares {
        &self.shares
    }
    /// Whose request a message is. The kernel names nobody when it says that an open file has gone: that is for whoever
    /// locked something through it, or for root, as nothing is to be unlocked then.
    pub(crate) fn user_of(&self, message: &[u8]) -> u32 {
        let Ok(mut request) = Request::parse(message) else { return 0 };
        if request.header.opcode != op::RELEASE {
            return request.header.uid;
        }
        let what = request.body.take::<ReleaseIn>();
        what.map_or(0, |what| self.lockers.user_of(wire::OpenMode::split(what.fh).0))
    }
    /// For a thread that answers, as long as it lives: what it waits for others may then end when the
    /// program that waits for the answer is killed.
    pub fn place(&self, device: &Device) -> Watched<'_> {
        self.killed.place(device)
    }
    /// Answers one message, whatever it holds. `scratch` is reused between requests.
    pub fn answer(&self, way: Way<'_>, message: &[u8], scratch: &mut Vec<u8>) {
        let request = match Request::parse(message) {
            Ok(request) => request,
            Err(bad) => {
                tracing::error!(%bad, "message from the kernel");
                return;
            }
        };
        let header = request.header;
        let reply = Reply { way, unique: header.unique };
        let counted = self.counters.begin(header.opcode, header.pid, header.nodeid);
        let mut call = Call {
            server: self,
            nodeid: header.nodeid,
            cred: Cred { uid: header.uid, gid: header.gid, pid: header.pid, umask: 0 },
            opcode: header.opcode,
            body: request.body,
            reply,
            scratch,
            moved: 0,
            kept: KeptNumbers::none(),
        };
        if names_by_number(header.opcode) {
            call.means(header.nodeid);
        }
        let _pages = call.holds_pages();
        let holds_pages = call.may_hold_pages();
        let admitted = self.link.gate().admit(header.opcode, holds_pages).map_err(Fault::from);
        let is_open_to_kills = may_be_killed(header.opcode)
            || header.opcode == op::FLUSH && self.files.flush_may_be_interrupted();
        if is_open_to_kills {
            let any = if header.opcode == op::SETLKW { ANY_SIGNAL } else { 0 };
            let by_others = if call.may_be_answered_by_others() { BY_OTHERS } else { 0 };
            let at_exit = if header.opcode == op::FLUSH { AT_EXIT } else { 0 };
            interrupt::begin(header.unique, header.pid | any | by_others | at_exit);
        }
        self.files.set_caller(&call.cred);
        let done = admitted.and_then(|()| call.run());
        interrupt::end();
        let error = match &done {
            Ok(()) => None,
            Err(Fault::Errno(errno)) => Some(*errno),
            Err(Fault::Bad(_)) => Some(Errno::INVAL),
        };
        counted.end(call.moved, error);
        match done {
            Ok(()) => {}
            Err(Fault::Errno(errno)) => reply.error(errno),
            Err(Fault::Bad(bad)) => {
                tracing::error!(opcode = header.opcode, %bad, "request from the kernel");
                if !matches!(header.opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT) {
                    reply.error(Errno::IO);
                }
            }
        }
    }
    fn nodes(&self) -> &Nodes {
        self.link.nodes()
    }
    /// The root is 1 to the kernel.
    fn ino(&self, nodeid: u64) -> InodeNo {
        if nodeid == abi::ROOT_ID { self.root } else { InodeNo(nodeid) }
    }
    fn node(&self, ino: InodeNo) -> u64 {
        if ino == self.root { abi::ROOT_ID } else { ino.get() }
    }
    /// Fills in an entry that is about to go out; the file system has counted it
    /// ([`braid_fs::KernelCache::handed_out`]). `keep`: whether its attributes may stay valid, if they
    /// are cached at all.
    fn entry(&self, attr: &Attr, stamp: Stamp, keep: Keep) -> EntryOut {
        let nodeid = self.node(attr.ino);
        let keep = if self.terms.cache_attributes { keep } else { Keep::No };
        let shown = (nodeid, wire::file_size(&self.told(attr)));
        // What is not to be kept at all is no promise.
        let most = self.files.attr_timeout();
        let keep = if most.is_some_and(|most| most.is_zero()) { Keep::No } else { keep };
        let cache = self.nodes().promise(shown, stamp, keep, Instant::now());
        self.nodes().shown(nodeid, attr.generation);
        let (attr_valid, attr_valid_nsec) = wire::valid(cache, most);
        EntryOut {
            nodeid,
            generation: attr.generation,
            entry_valid: self.names_valid(),
            attr_valid,
            attr_valid_nsec,
            attr: wire::attr(&self.told(attr)),
            ..EntryOut::default()
        }
    }
    /// Attributes as they go to the kernel.
    fn told(&self, attr: &Attr) -> Attr {
        let size = match wire::file_size(attr) {
            Some(size) => self.nodes().size_told(self.node(attr.ino), size),
            None => attr.size,
        };
        Attr { size, ..*attr }
    }
    /// The kernel gave back `count` entries, or never got them.
    fn forgot(&self, nodeid: u64, count: u64) {
        if self.nodes().forgot(nodeid, count)
            && let Err(errno) = self.files.forget(self.ino(nodeid))
        {
            tracing::debug!(nodeid, %errno, "forgotten, and perhaps to be deleted later");
        }
    }
    /// What may stay valid of an entry of directory `dir`, one at a time.
    fn keep_in(&self, dir: u64) -> Keep {
        let contested = self.nodes().contested(dir, Instant::now());
        if contested { Keep::IfKnown } else { Keep::Yes }
    }
    /// Whether an entry in a listing may go out with its inode. The kernel may take it for what it knows by the same
    /// number and name, and does not look at the generation: if it knows another inode so, a lookup tells it.
    fn may_be_listed(&self, attr: &Attr) -> bool {
        let nodeid = self.node(attr.ino);
        let known = self.nodes().generation(nodeid);
        let may = known.is_none_or(|known| known == attr.generation);
        if !may {
            self.forgot(nodeid, 1);
        }
        may
    }
    /// What may stay valid of entries in a listing.
    fn keep_listed(&self) -> Keep {
        if self.single { Keep::Yes } else { Keep::No }
    }
    fn names_valid(&self) -> u64 {
        if self.terms.cache_names { wire::FOREVER } else { 0 }
    }
    /// Whether a file opened for reading now may be read through the page cache.
    fn may_cache(&self, nodeid: u64) -> bool {
        self.terms.cache_data && !self.nodes().contested(nodeid, Instant::now())
    }
}

impl<'a, F: FileSystem> Call<'a, F> {
    fn files(&self) -> &F {
        &self.server.files
    }
    /// The kernel means the inode that it was told of by that number.
    fn means(&mut self, nodeid: u64) {
        if let Some(generation) = self.server.nodes().generation(nodeid) {
            self.kept.add(self.server.ino(nodeid), generation);
        }
    }
    fn ino(&self) -> InodeNo {
        self.server.ino(self.nodeid)
    }
    fn done(&self, result: Answer<()>) -> Outcome<()> {
        result?;
        self.reply.bytes(&[]);
        Ok(())
    }
    #[allow(clippy::unnecessary_wraps, reason = "ends a handler")]
    fn value<T: IntoBytes + Immutable>(&self, value: &T) -> Outcome<()> {
        self.reply.value(value);
        Ok(())
    }

    /// Page fills and pages that the kernel writes back can be failed while they are under way, if
    /// they came from the device.
    fn holds_pages(&self) -> Option<HoldsPages<'a>> {
        (self.may_hold_pages() && self.is_from_device())
            .then(|| self.server.link.gate().holds_pages(self.reply.unique))
    }

    /// Whether it fills pages, perhaps, or writes some back.
    fn may_hold_pages(&self) -> bool {
        self.opcode == op::READ || self.is_write_back()
    }

    /// Whether the kernel writes pages back that programs have changed.
    fn is_write_back(&self) -> bool {
        let mut body = self.body;
        self.opcode == op::WRITE
            && body.take::<WriteIn>().is_ok_and(|what| what.write_flags & abi::write::CACHE != 0)
    }
    fn is_from_device(&self) -> bool {
        matches!(self.reply.way, Way::Device(_))
    }
    /// See [`BY_OTHERS`].
    fn may_be_answered_by_others(&self) -> bool {
        self.is_from_device() && !self.is_write_back()
    }

    /// One arm per opcode.
    fn run(&mut self) -> Outcome<()> {
        match self.opcode {
            op::LOOKUP => self.lookup(),
            op::FORGET => self.forget(),
            op::BATCH_FORGET => self.batch_forget(),
            op::GETATTR => self.getattr(),
            op::STATX => self.statx(),
            op::SETATTR => self.setattr(),
            op::READLINK => self.readlink(),
            op::SYMLINK => self.symlink(),
            op::MKNOD => self.mknod(),
            op::MKDIR => self.mkdir(),
            op::UNLINK => self.unlink(),
            op::RMDIR => self.rmdir(),
            op::RENAME => self.rename(),
            op::RENAME2 => self.rename2(),
            op::LINK => self.link(),
            op::CREATE => self.create(),
            op::TMPFILE => self.tmpfile(),
            op::OPEN => self.open(),
            op::RELEASE => self.release(),
            op::READ => self.read(),
            op::WRITE => self.write(),
            op::FLUSH => self.flush(),
            op::FSYNC => self.fsync(),
            op::FALLOCATE => self.fallocate(),
            op::LSEEK => self.lseek(),
            op::IOCTL => self.ioctl(),
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => self.copy_file_range(),
            op::OPENDIR => self.opendir(),
            op::READDIR => self.readdir(false),
            op::READDIRPLUS => self.readdir(true),
            op::RELEASEDIR => self.releasedir(),
            op::DESTROY => self.done(Ok(())),
            op::FSYNCDIR => self.done(self.files().fsync_dir(self.ino())),
            op::SYNCFS => self.done(self.files().sync()),
            op::STATFS => self.value(&wire::statfs(&self.files().statfs()?)),
            op::GETXATTR => self.getxattr(),
            op::SETXATTR => self.setxattr(),
            op::LISTXATTR => self.listxattr(),
            op::REMOVEXATTR => self.removexattr(),
            op::GETLK => self.getlk(),
            op::SETLK => self.setlk(false),
            op::SETLKW => self.setlk(true),
            op::INTERRUPT => self.interrupt(),
            op::NOTIFY_REPLY => Ok(()),
            // ACCESS is among them: the kernel checks permissions itself, and does not send ACCESS
            // again once it was refused.
            _ => Err(Errno::NOSYS.into()),
        }
    }

    fn forget(&mut self) -> Outcome<()> {
        let count: ForgetIn = self.body.take()?;
        self.server.forgot(self.nodeid, count.nlookup);
        Ok(())
    }
    fn batch_forget(&mut self) -> Outcome<()> {
        let batch: BatchForgetIn = self.body.take()?;
        for _ in 0..batch.count {
            let one: ForgetOne = self.body.take()?;
            self.server.forgot(one.nodeid, one.nlookup);
        }
        Ok(())
    }
    fn interrupt(&mut self) -> Outcome<()> {
        let which: InterruptIn = self.body.take()?;
        self.server.interrupts.interrupt(which.unique);
        self.server.end(which.unique);
        if let Way::Device(device) = self.reply.way {
            self.server.killed.interrupted(which.unique, device);
        }
        Ok(())
    }
}
