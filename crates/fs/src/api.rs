//! The facade: every call that fronts may make. It locks nothing and decides nothing beyond
//! opening and closing: each call goes to the module that does it, and a fatal result makes the
//! node withdraw.

#![expect(
    clippy::missing_errors_doc,
    reason = "every call fails with `Error`, whose variants say why and which errno that is"
)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_format::{InodeNo, LockNo, MemberIndex};
use braid_lock::{Company, Life, Local, Mode, NodeView, NodeWait};
use braid_pool::device::{AlignedBuf, Change, Device};
use braid_pool::{CatchUp, MemberSelector, Pool, PropertyChange};

use crate::attr::{
    Attr, Cred, DirEntry, EarlyReply, Fh, KernelCache, SetAttr, StatFs, WithAttrs, Write,
    WriteFlags,
};
use crate::core::Core;
use crate::data::{ReadHold, ReadRange};
use crate::error::{Error, Result};
use crate::inode::Locked;
use crate::maintenance::MaintenanceStatus;
use crate::mount::Mounted;
use crate::options::MountOptions;
use crate::plock::Canceller;
use crate::plock_table::{LockDone, Plock, WaitId};
use crate::{data, namei, orphan, plock, writeback, xattr};

/// How long `statfs` waits for files that are about to be deleted.
const STATFS_PATIENCE: Duration = Duration::from_millis(100);
/// Of open(2).
const O_TRUNC: i32 = 0o1000;

/// A mounted file system. Cheap to clone; thread-safe; calls block.
#[derive(Clone)]
pub struct Fs {
    pub(crate) mounted: Arc<Mounted>,
}

/// What [`Fs::clear`] has forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Members that were suspected to return garbage.
    pub suspects: Vec<MemberIndex>,
    /// Blocks of damaged metadata that were met.
    pub damaged: usize,
    /// The last scrub could not decide something.
    pub undecided: bool,
    /// Something had gone wrong with the filling or moving of a member, or with a scrub.
    pub errors: bool,
}

impl Fs {
    /// Joins the cluster on `pool` as a node: claims a slot, recovers what dead nodes left, starts
    /// the heartbeat. Blocks until the node can serve.
    ///
    /// # Errors
    /// No file system on the pool, no slot free, or a device failed.
    pub fn mount(pool: Pool, options: MountOptions, kernel: Arc<dyn KernelCache>) -> Result<Self> {
        Ok(Self { mounted: Arc::new(Mounted::new(pool, options, kernel)?) })
    }
    /// Mounts for reading a pool whose devices nobody can write. This node is alone: what a node
    /// writes (its slot, its heartbeat, the replay of a journal) stays in memory. Nothing else may
    /// write the devices meanwhile: this node would not see it.
    ///
    /// # Errors
    /// A node of another host has it mounted, or left it mounted; as [`Fs::mount`].
    #[expect(clippy::needless_pass_by_value, reason = "called in place of `mount`, which keeps it")]
    pub fn mount_protected(
        pool: Pool,
        options: MountOptions,
        kernel: Arc<dyn KernelCache>,
    ) -> Result<Self> {
        let pool = pool.on_scratch()?;
        drop(crate::exclusive_use::claim(&crate::volume::Volume::open(pool.clone())?)?);
        Self::mount(pool, MountOptions { read_only: true, ..options }, kernel)
    }
    /// Leaves the cluster: everything dirty becomes durable, the slot free. Other clones of this
    /// handle fail from then on. For another node it waits for as long as a dead one is fenced, and an `io_timeout`
    /// more.
    ///
    /// # Errors
    /// A device failed, or another node did not give up what leaving needs; the node then counts as dead and others
    /// replay its journal.
    pub fn unmount(&self) -> Result<()> {
        self.unmount_telling(&|_| ())
    }
    /// As [`Fs::unmount`]; `tell` is called from a thread of its own after 5 s, and then now and then, with what
    /// the node waits for, if that is other nodes. The log has it, too.
    ///
    /// # Errors
    /// As there.
    pub fn unmount_telling(&self, tell: &(dyn Fn(&str) + Sync)) -> Result<()> {
        self.mounted.unmount(tell)
    }
    /// After [`Fs::unmount`]: what could not be given back because of damage, a sentence each. The next owner of
    /// the slot inherits it, and gives it back once that is repaired.
    pub fn left_for_later(&self) -> Vec<String> {
        self.mounted.left_for_later()
    }
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.mounted.core
    }
    /// The pool below.
    pub fn pool(&self) -> &Pool {
        &self.core().volume.pool
    }
    /// Who this node is.
    pub fn life(&self) -> Life {
        self.core().me
    }
    /// The file system's own number: another one is another file system.
    pub fn uuid(&self) -> [u8; 16] {
        self.core().volume.sb.fs_uuid
    }
    /// Whether nothing that the node `life` was asked for can reach the devices any more: it has left, or is dead and
    /// fenced. What it held locked may still have to be recovered. In doubt not. Reads the node's slot.
    pub fn life_has_ended(&self, life: Life) -> bool {
        self.core().membership.life_has_ended(life)
    }
    /// Who else can have used the file system since `life` ended, this node's own or one that it came after: others may
    /// have had what that one held. Reads the node slots.
    pub fn company_since(&self, life: Life) -> Company {
        self.core().membership.company_since(life)
    }
    /// The root directory's number.
    pub fn root(&self) -> InodeNo {
        self.core().volume.root()
    }
    /// Whether the file system has one node slot only: no other node can ever mount it beside this one.
    pub fn is_single_node(&self) -> bool {
        self.core().volume.sb.node_slots.get() == 1
    }
    /// Reads the pool's labels, and uses what other nodes have made of it: its members and their places
    /// are then those of the newest epoch. Waits for requests under way if there is one.
    ///
    /// # Errors
    /// A device failed, or what this node reaches does not hold every byte in the new epoch.
    pub fn follow_pool(&self) -> Result<()> {
        self.run(|core| Ok(core.volume.pool.follow().map(drop)?))
    }
    /// Waits until every node that lives uses the pool as this node does, for the node's `io_timeout` at most:
    /// `None`, or how long that is, and those that do not yet, as far as they are known.
    ///
    /// # Errors
    /// This node has withdrawn.
    pub fn await_all_nodes(&self) -> Result<Option<(Duration, Vec<NodeView>)>> {
        self.core().check_alive()?;
        let limit = self.core().options.timing.io_timeout();
        let Some(late) = self.pool().await_all_nodes(limit)? else { return Ok(None) };
        let is_late = |n: &NodeView| late.iter().any(|l| l.slot == n.life.slot);
        Ok(Some((limit, self.status().nodes.into_iter().filter(is_late).collect())))
    }
    /// What this node does for the pool's redundancy.
    pub fn maintenance(&self) -> MaintenanceStatus {
        self.mounted.maintenance.status()
    }
    /// Other nodes that could not fill or move a member of the pool as it is now
    /// ([`NodeView::stuck`]). Their logs say why. They try again now and then.
    pub fn stuck(&self) -> Vec<NodeView> {
        self.mounted.stuck()
    }
    /// Begins to read everything and heal what rotted (`run`), or ends that.
    pub fn scrub(&self, run: bool) {
        self.mounted.maintenance.scrub(run);
    }
    /// Takes a member out of the pool; with `force` also if those that would stand in for it are suspected
    /// to return garbage.
    pub fn fail_member(&self, member: impl Into<MemberSelector>, force: bool) -> Result<()> {
        self.core().check_alive()?;
        if force {
            self.pool().fail_member_by_force(member)?;
        } else {
            self.pool().fail_member(member)?;
        }
        self.mounted.maintenance.wake();
        Ok(())
    }
    /// Takes a member offline. Whether it can catch up when it is back
    /// ([`Pool::take_offline`](braid_pool::Pool::take_offline)).
    pub fn take_offline(&self, member: impl Into<MemberSelector>) -> Result<bool> {
        self.core().check_alive()?;
        Ok(self.pool().take_offline(member)?)
    }
    /// Brings a member back on its own device, and begins to fill what it has missed.
    pub fn bring_online(
        &self,
        member: impl Into<MemberSelector>,
        device: &Arc<dyn Device>,
    ) -> Result<CatchUp> {
        self.core().check_alive()?;
        let caught = self.pool().bring_online(member, device)?;
        self.mounted.maintenance.begin();
        Ok(caught)
    }
    /// Puts a device in the place of a member and begins to fill it.
    pub fn replace_member(
        &self,
        member: impl Into<MemberSelector>,
        device: Arc<dyn Device>,
        force: bool,
    ) -> Result<()> {
        self.core().check_alive()?;
        self.pool().replace(member, device, force)?;
        self.mounted.maintenance.begin();
        Ok(())
    }
    /// Changes settings that stay with the pool ([`Pool::set_properties`]).
    pub fn set_properties(&self, changes: &[PropertyChange]) -> Result<()> {
        self.core().check_alive()?;
        Ok(self.pool().set_properties(changes)?)
    }
    /// Forgets what an operator has taken note of: that a member, or any, is suspected to return garbage; without a
    /// member also what the last scrub of this node could not decide, damaged metadata that it has met, and what went
    /// wrong last. What is still wrong is met again. Members that are out stay out.
    ///
    /// # Errors
    /// As [`Pool::clear_suspicion`].
    pub fn clear(&self, member: Option<MemberSelector>) -> Result<Cleared> {
        self.core().check_alive()?;
        let suspects = self.pool().clear_suspicion(member)?;
        let label = self.pool().label();
        let uuid = |m: &MemberIndex| label.members.get(usize::from(m.0)).map(|member| member.uuid);
        self.mounted.maintenance.trusted(&suspects.iter().filter_map(uuid).collect::<Vec<_>>());
        let (mut cleared, all) = (Cleared { suspects, ..Cleared::default() }, member.is_none());
        if all {
            cleared.damaged = self.core().meta.damages.clear();
            (cleared.undecided, cleared.errors) = self.mounted.maintenance.forget();
        }
        Ok(cleared)
    }
    /// What [`Fs::clear`] would forget, or be refused for; nothing is changed.
    ///
    /// # Errors
    /// As there.
    pub fn plan_clear(&self, member: Option<MemberSelector>) -> Result<Cleared> {
        self.core().check_alive()?;
        let suspects = self.pool().plan_clear(member)?;
        let mut cleared = Cleared { suspects, ..Cleared::default() };
        if member.is_none() {
            cleared.damaged = self.core().meta.damages.all().len();
            (cleared.undecided, cleared.errors) = self.maintenance().found();
        }
        Ok(cleared)
    }
    /// Adds a device that steps in for the next member that fails.
    pub fn add_spare(&self, device: Arc<dyn Device>, force: bool) -> Result<MemberIndex> {
        self.core().check_alive()?;
        let member = self.pool().add_spare(device, force)?;
        self.mounted.maintenance.wake();
        Ok(member)
    }
    /// The operator's word that the host of the node in `slot` is off: it is recovered.
    ///
    /// # Errors
    /// It shows signs of life, or is of this host.
    pub fn vouch_dead(&self, slot: braid_format::NodeId) -> Result<()> {
        self.core().check_alive()?;
        self.mounted.vouch(slot)
    }
    /// Whether another node of this host shows no heartbeat: its process may be dead and not ended.
    pub fn has_silent_neighbour(&self) -> bool {
        self.mounted.has_silent_neighbour()
    }
    /// Freezes the pool for all nodes: on return what programs had written before is stable, and no node changes
    /// anything but lock records, slots and heartbeats, until [`Fs::thaw`], or for `time` at most. Changes wait
    /// meanwhile; reads go on. Images of all members that are made meanwhile, one after the other, fit together. The
    /// nodes have `patience` to make stable what they have.
    ///
    /// # Errors
    /// [`Error::Freeze`]; nothing is frozen then.
    pub fn freeze(&self, time: Duration, patience: Duration) -> Result<()> {
        self.freeze_unless(time, patience, &|| false)
    }
    /// As [`Fs::freeze`], until `given_up`: whoever wants it may end.
    ///
    /// # Errors
    /// As there; [`NotFrozen::GivenUp`](braid_lock::NotFrozen::GivenUp).
    pub fn freeze_unless(
        &self,
        time: Duration,
        patience: Duration,
        given_up: &dyn Fn() -> bool,
    ) -> Result<()> {
        self.run(|core| core.membership.freeze(time, patience, given_up).map_err(Error::from))
    }
    /// Ends this node's freeze.
    ///
    /// # Errors
    /// [`Error::Freeze`]: this node has frozen nothing, or its time was over; or it is thawed, and not all nodes may have
    /// waited all the time ([`NotFrozen::Broken`](braid_lock::NotFrozen::Broken)).
    pub fn thaw(&self) -> Result<()> {
        self.run(|core| core.membership.thaw().map_err(Error::from))
    }
    /// The node that has frozen the pool, if changes of this node wait for that.
    pub fn frozen_by(&self) -> Option<braid_format::NodeId> {
        self.mounted.core.membership.frozen_by()
    }
    /// Locks of this node: those that went to other nodes most often (`hot`), or those that are
    /// waited for and then the others; at most `most`.
    pub fn locks(&self, hot: bool, most: usize) -> Vec<crate::mount::NamedLock> {
        self.mounted.locks(hot, most)
    }
    /// One lock of this node, if it is in memory.
    pub fn lock_view(&self, lock: LockNo) -> Option<crate::mount::NamedLock> {
        self.mounted.lock(lock)
    }
    /// Changes of the pool that this node waits for, and for whom.
    pub fn waits(&self) -> Vec<NodeWait> {
        self.mounted.waits()
    }
    /// For status displays.
    pub fn status(&self) -> crate::mount::NodeStatus {
        self.mounted.status()
    }
    /// Why the node withdrew, if it did.
    pub fn withdrawn(&self) -> Option<String> {
        self.core().withdrawn.get().map(ToString::to_string)
    }
    fn run<T>(&self, f: impl FnOnce(&Arc<Core>) -> Result<T>) -> Result<T> {
        let core = self.core();
        core.check_alive()?;
        core.watch(f(core))
    }
    fn change<T>(&self, f: impl FnOnce(&Arc<Core>) -> Result<T>) -> Result<T> {
        let _change = self.enter_change()?;
        self.change_now(f)
    }
    /// A change begins. A mount that may change nothing says so at once, also while the pool is frozen.
    fn enter_change(&self) -> Result<Change<'_>> {
        if self.core().options.read_only {
            return Err(Error::ReadOnly);
        }
        self.core().enter_change()
    }
    /// As [`Fs::change`], for one that has begun.
    fn change_now<T>(&self, f: impl FnOnce(&Arc<Core>) -> Result<T>) -> Result<T> {
        if self.core().options.read_only {
            return Err(Error::ReadOnly);
        }
        self.run(f)
    }
    /// The inode behind `name` in `dir`.
    pub fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        self.run(|c| namei::lookup(c, dir, name))
    }
    /// An inode by its number, which a caller kept, or made up: it goes to the kernel as from
    /// [`Fs::lookup`]. Unless the inode is in memory this takes the lock of its resource group, shared.
    ///
    /// # Errors
    /// [`Error::Stale`]: there is no inode.
    pub fn lookup_number(&self, ino: InodeNo) -> Result<Attr> {
        self.run(|c| namei::lookup_number(c, ino))
    }
    /// Attributes.
    pub fn getattr(&self, ino: InodeNo) -> Result<Attr> {
        self.run(|c| namei::getattr(c, ino))
    }
    /// Changes attributes.
    pub fn setattr(&self, ino: InodeNo, set: &SetAttr, _fh: Option<Fh>) -> Result<Attr> {
        self.change(|c| namei::setattr(c, ino, set))
    }
    /// Makes a special file (or an empty regular one).
    pub fn mknod(
        &self,
        dir: InodeNo,
        name: &[u8],
        mode: u32,
        rdev: u64,
        cred: &Cred,
    ) -> Result<Attr> {
        self.change(|c| namei::mknod(c, dir, name, mode, rdev, cred))
    }
    /// Makes a directory.
    pub fn mkdir(&self, dir: InodeNo, name: &[u8], mode: u32, cred: &Cred) -> Result<Attr> {
        self.change(|c| namei::mkdir(c, dir, name, mode, cred))
    }
    /// Makes a symbolic link.
    pub fn symlink(&self, dir: InodeNo, name: &[u8], target: &[u8], cred: &Cred) -> Result<Attr> {
        self.change(|c| namei::symlink(c, dir, name, target, cred))
    }
    /// A symbolic link's target.
    pub fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>> {
        self.run(|c| namei::readlink(c, ino))
    }
    /// Gives an inode another name.
    pub fn link(&self, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        self.change(|c| namei::link(c, ino, dir, name))
    }
    /// Gives an inode that has no name its first one, and this link count.
    pub(crate) fn adopt(&self, ino: InodeNo, dir: InodeNo, new: (&[u8], u32)) -> Result<()> {
        self.change(|c| namei::adopt(c, ino, dir, new))
    }
    /// Removes a name that is not a directory's.
    pub fn unlink(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.change(|c| namei::unlink(c, dir, name))
    }
    /// Removes an empty directory.
    pub fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.change(|c| namei::rmdir(c, dir, name))
    }
    /// Renames; `flags` as renameat2(2).
    pub fn rename(
        &self,
        dir: InodeNo,
        name: &[u8],
        new_dir: InodeNo,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        self.change(|c| namei::rename(c, dir, name, new_dir, new_name, flags))
    }
    /// Lists a directory from `cookie` (0: from the start) until `emit` says, by returning `true`, that it is full.
    pub fn readdir(
        &self,
        ino: InodeNo,
        cookie: u64,
        with: WithAttrs,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.run(|c| namei::readdir(c, ino, cookie, with, emit))
    }

    fn open_locked(&self, locked: &Locked, flags: i32) -> Fh {
        self.core().handles.insert(locked.inode.clone(), flags)
    }
    /// Creates (`O_EXCL`: only if new) and opens a regular file.
    pub fn create(
        &self,
        dir: InodeNo,
        name: &[u8],
        mode: u32,
        flags: i32,
        cred: &Cred,
    ) -> Result<(Attr, Fh)> {
        const O_EXCL: i32 = 0o200;
        self.change(|c| {
            let locked = namei::create(c, dir, name, mode, cred, flags & O_EXCL != 0)?;
            let size = locked.st().raw.size.get();
            if flags & O_TRUNC != 0 && size > 0 {
                // Another node made it a moment ago.
                let _changes = c.changes(locked.ino());
                data::truncate(c, &locked, 0)?;
            }
            let fh = self.open_locked(&locked, flags);
            Ok((namei::hand_out(c, &locked), fh))
        })
    }
    /// Makes and opens a file without a name.
    pub fn tmpfile(&self, dir: InodeNo, mode: u32, flags: i32, cred: &Cred) -> Result<(Attr, Fh)> {
        self.change(|c| {
            let locked = namei::tmpfile(c, dir, mode, cred)?;
            let fh = self.open_locked(&locked, flags);
            Ok((namei::hand_out(c, &locked), fh))
        })
    }
    /// Opens an inode. `O_TRUNC` truncates it, also if it is opened to be read: the caller has checked
    /// that the program may write it.
    pub fn open(&self, ino: InodeNo, flags: i32) -> Result<Fh> {
        let writing = matches!(flags & 3, 1 | 2);
        let truncates = flags & O_TRUNC != 0;
        if writing && self.core().options.read_only {
            return Err(Error::ReadOnly);
        }
        let _change = truncates.then(|| self.enter_change()).transpose()?;
        self.run(|c| {
            if truncates {
                let locked = c.lock_exclusive(ino)?;
                if locked.is_dir() {
                    return Err(Error::IsDirectory);
                }
                let _changes = c.changes(ino);
                xattr::drop_capability(c, &locked)?;
                data::truncate(c, &locked, 0)?;
                return Ok(self.open_locked(&locked, flags));
            }
            // A writer comes under an exclusive lock: see `Inode::writers`.
            let mode = if writing { Mode::Exclusive } else { Mode::Shared };
            let locked = c.lock(ino, mode, Local::Shared)?;
            if locked.is_dir() && writing {
                return Err(Error::IsDirectory);
            }
            if writing && locked.inode.has_pages() {
                // The number of blocks: see `Locked::attr`.
                c.kernel.attributes_changed(ino);
            }
            Ok(self.open_locked(&locked, flags))
        })
    }
    /// Closes. An unlinked file's last close deletes it.
    pub fn release(&self, fh: Fh) -> Result<()> {
        let core = self.core();
        let file = core.handles.remove(fh)?;
        let inode = file.inode.clone();
        drop(file);
        if inode.opens.load(Ordering::Acquire) > 0 || core.withdrawn.get().is_some() {
            return Ok(());
        }
        // While the pool is frozen it is left for later.
        let Some(_change) = core.freeze.try_enter() else { return Ok(()) };
        self.run(|c| orphan::last_close(c, &inode))
    }
    /// The front below which programs work (the kernel) has given back its last reference to `ino`:
    /// an inode without a name is deleted if nothing else uses it.
    pub fn forget(&self, ino: InodeNo) -> Result<()> {
        self.run(|c| orphan::forget(c, ino))
    }
    /// A program closed a descriptor: its fcntl locks on the file go.
    pub fn flush(&self, fh: Fh, lock_owner: u64) -> Result<()> {
        self.run(|c| {
            let file = c.handles.get(fh)?;
            plock::drop_owner(c, file.inode.ino, lock_owner)
        })
    }
    /// Contents (and all metadata, unless `data_only`) durable on return.
    pub fn fsync(&self, fh: Fh, data_only: bool) -> Result<()> {
        self.run(|c| writeback::fsync(c, &c.handles.get(fh)?.inode, data_only))
    }
    /// A directory's changes durable on return.
    pub fn fsync_dir(&self, _ino: InodeNo) -> Result<()> {
        self.run(|c| c.meta.commit())
    }
    /// Everything of this node durable on return.
    pub fn sync(&self) -> Result<()> {
        self.run(writeback::make_stable)
    }
    /// Reads into `buf` (its length asked for); returns the bytes read. What begins with a block is not
    /// copied.
    pub fn read(&self, fh: Fh, offset: u64, buf: &mut AlignedBuf) -> Result<usize> {
        let len = u32::try_from(buf.len()).unwrap_or(u32::MAX);
        self.read_into(fh, ReadRange { offset, len, fill: false }, buf).map(|(n, _)| n)
    }
    /// Reads a range and hands its bytes to `reply` while the inode's lock is still held, so that what
    /// `reply` puts into the kernel's cache cannot outlive the lock.
    pub fn read_reply<R>(
        &self,
        fh: Fh,
        range: ReadRange,
        reply: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        self.run(|c| data::read_reply(c, &*c.handles.get(fh)?, range, reply))
    }
    /// As [`Fs::read_reply`], into the caller's memory. The inode's lock is held until what is
    /// returned beside the number of bytes is dropped. Whole blocks are read straight into it, also
    /// behind those bytes.
    pub fn read_into(
        &self,
        fh: Fh,
        range: ReadRange,
        memory: &mut [u8],
    ) -> Result<(usize, ReadHold)> {
        self.run(|c| data::read_into(c, &*c.handles.get(fh)?, range, memory))
    }
    /// Writes; returns the bytes written.
    pub fn write(&self, fh: Fh, offset: u64, bytes: &[u8], flags: WriteFlags) -> Result<usize> {
        self.write_behind(fh, Write { offset, bytes, flags }, &mut ())
    }
    /// As [`Fs::write`]. Large writes use `reply` once nothing but a device can refuse them any
    /// more; they return when the devices have the bytes, all the same. `fsync` reports what
    /// becomes of a write that was answered early.
    pub fn write_behind(
        &self,
        fh: Fh,
        what: Write<'_>,
        reply: &mut dyn EarlyReply,
    ) -> Result<usize> {
        // What the kernel gives back of its pages is under way already: others may wait for it, also a freeze.
        let _change = if what.flags.from_page_cache { None } else { Some(self.enter_change()?) };
        self.change_now(|c| data::write(c, &*c.handles.get(fh)?, what, reply))
    }
    /// fallocate(2).
    pub fn fallocate(&self, fh: Fh, mode: i32, offset: u64, len: u64) -> Result<()> {
        self.fallocate_beside_pages(fh, mode, offset, len, &mut ())
    }
    /// As [`Fs::fallocate`]. `reply` gets the zeros that pages in the kernel may not have
    /// ([`EarlyReply::unseen`]).
    pub fn fallocate_beside_pages(
        &self,
        fh: Fh,
        mode: i32,
        offset: u64,
        len: u64,
        reply: &mut dyn EarlyReply,
    ) -> Result<()> {
        self.change(|c| data::fallocate(c, &*c.handles.get(fh)?, mode, offset, len, reply))
    }
    /// lseek(2) with `SEEK_DATA` or `SEEK_HOLE`.
    pub fn lseek(&self, fh: Fh, offset: u64, whence: i32) -> Result<u64> {
        self.run(|c| data::lseek(c, &*c.handles.get(fh)?, offset, whence))
    }
    /// copy_file_range(2); returns the bytes copied. `reply` gets the writes ([`EarlyReply::unseen`]).
    pub fn copy_file_range(
        &self,
        from: (Fh, u64),
        to: (Fh, u64),
        len: u64,
        reply: &mut dyn EarlyReply,
    ) -> Result<u64> {
        self.change(|c| {
            let (source, target) = (c.handles.get(from.0)?, c.handles.get(to.0)?);
            data::copy_file_range(c, (&*source, from.1), (&*target, to.1), len, reply)
        })
    }

    /// An extended attribute's value.
    pub fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        self.run(|c| xattr::get(c, ino, name))
    }
    /// Sets an extended attribute; `flags` as setxattr(2), or [`crate::KILL_GROUP`].
    pub fn setxattr(&self, ino: InodeNo, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        self.change(|c| xattr::set(c, ino, name, value, flags))
    }
    /// Names of extended attributes, each followed by NUL.
    pub fn listxattr(&self, ino: InodeNo) -> Result<Vec<u8>> {
        self.run(|c| xattr::list(c, ino))
    }
    /// Removes an extended attribute.
    pub fn removexattr(&self, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.change(|c| xattr::remove(c, ino, name))
    }

    /// Totals: of blocks for file data, and of inodes that there is room for. No device is touched:
    /// counters plus this node's and the others' published changes.
    pub fn statfs(&self) -> Result<StatFs> {
        self.run(|c| {
            // A program that has just removed a file expects to see its space.
            c.orphans.await_leaving(STATFS_PATIENCE);
            Ok(self.stat_of(c.alloc.totals()))
        })
    }
    /// The same for displays: neither for the lease nor, for longer than a moment, for a device. Then it
    /// is what this node knew last.
    pub fn space(&self) -> StatFs {
        self.stat_of(self.core().alloc.totals_soon())
    }
    fn stat_of(&self, t: crate::alloc::Totals) -> StatFs {
        let core = self.core();
        StatFs {
            block_size: u32::try_from(core.volume.geo.block_size.bytes().get()).unwrap_or(4096),
            blocks: t.blocks,
            free: t.free,
            available: t.available,
            files: t.inodes.saturating_add(t.files_free),
            files_free: t.files_free,
            name_max: 255,
        }
    }

    /// The lock that conflicts with `lock`, if there is one (`F_GETLK`).
    pub fn getlk(&self, ino: InodeNo, lock: &Plock) -> Result<Option<Plock>> {
        self.run(|c| plock::getlk(c, ino, lock))
    }
    /// Sets or clears a program's lock. With `wait`, blocks until it is granted or cancelled.
    pub fn setlk(&self, ino: InodeNo, lock: &Plock, wait: Option<&Canceller>) -> Result<()> {
        self.run(|c| plock::setlk(c, ino, lock, wait))
    }

    /// The same for flock(2), whose locks are on whole files and apart from those of fcntl(2).
    pub fn flock(&self, ino: InodeNo, lock: &Plock, wait: Option<&Canceller>) -> Result<()> {
        self.run(|c| plock::flock(c, ino, lock, wait))
    }

    /// As [`Self::setlk`] or, with `whole`, [`Self::flock`], without waiting here. `None`: done. If
    /// the lock has to be waited for, `done` is called with the outcome. That may be before this
    /// returns, and on a thread that `done` must not block. [`Self::end_lock_wait`] ends the wait.
    ///
    /// # Errors
    /// As `setlk`; `done` is then not called.
    pub fn lock_later(
        &self,
        ino: InodeNo,
        lock: &Plock,
        whole: bool,
        done: LockDone,
    ) -> Result<Option<WaitId>> {
        self.run(|c| plock::ask(c, ino, lock, whole, Some(done)))
    }
    /// Breaks a wait for a lock off, if it still stands: it ends with `Interrupted`.
    pub fn end_lock_wait(&self, id: WaitId) {
        plock::end_wait(self.core(), id, Err(Error::Interrupted));
    }

    /// A lock's mode on this node, for tests and status displays.
    pub fn held_mode(&self, ino: InodeNo) -> Mode {
        self.core().locks.held(ino.into())
    }
}
