//! Requests about open files: their contents and the locks that programs put on them.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use braid_fs::{
    Answer, Durable, EarlyReply, FileSystem, KernelCache, LockAnswer, Plock, PlockKind, SetAttr,
    UnseenWrite, Write, WriteFlags,
};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::wire::{self, OpenMode};
use super::{Call, Outcome};
use crate::abi::{
    self, CopyFileRangeIn, FallocateIn, FlushIn, FsyncIn, LkIn, LseekIn, OpenIn, OpenOut, ReadIn,
    ReleaseIn, WriteIn, WriteOut, o, op, write,
};
use crate::caches::notify::{AnswerTo, DeferredAnswer, Growth};
use crate::error::BadRequest;
use crate::transport::reply::{Reply, Way};
use crate::waits::lock_owners::Range;
use braid_format::InodeNo;

/// The answer to a write that the devices do not have yet.
struct Early<'a, 'b, F: FileSystem> {
    call: &'a Call<'b, F>,
    size: u32,
    /// The write takes privileges off: the kernel must hear of that first.
    sheds: bool,
    sent: bool,
    unseen: Option<UnseenWrite>,
    growth: Option<Growth>,
    /// [`Nodes::cached_closes`] when it began.
    ///
    /// [`Nodes::cached_closes`]: crate::caches::nodes::Nodes::cached_closes
    closes: u32,
}
impl<F: FileSystem> EarlyReply for Early<'_, '_, F> {
    /// From here on, a page fill waits for the bytes. Pages filled before are seen to once they are
    /// written, and the program waits.
    fn may(&mut self) -> bool {
        !self.sheds
            && self.call.reply.may_be_early()
            && !self.call.server.nodes().mixed_since(self.call.nodeid, self.closes)
    }
    fn send(&mut self) {
        self.growth = None;
        self.call.reply.value_at_once(&WriteOut { size: self.size, padding: 0 });
        self.sent = true;
    }
    fn grows(&mut self, size: u64) {
        self.growth = Some(Growth::begin(&self.call.server.link, self.call.nodeid, size));
    }
    fn unseen(&mut self, write: UnseenWrite) {
        self.unseen = Some(write);
    }
}

/// Changes of contents that are never answered early.
struct Changes(Vec<UnseenWrite>);
impl EarlyReply for Changes {
    fn may(&mut self) -> bool {
        false
    }
    fn send(&mut self) {}
    fn unseen(&mut self, write: UnseenWrite) {
        self.0.push(write);
    }
}

impl<F: FileSystem> Call<'_, F> {
    pub(super) fn open(&mut self) -> Outcome<()> {
        let how: OpenIn = self.body.take()?;
        let mode = OpenMode::of(how.flags, self.server.may_cache(self.nodeid));
        let fh = self.files().open(self.ino(), how.flags.cast_signed())?;
        if how.open_flags & abi::OPEN_KILL_SUIDGID != 0
            && let Err(errno) = self.shed_privileges(self.ino())
        {
            let _ = self.files().release(fh);
            return Err(errno.into());
        }
        let nodes = self.server.nodes();
        nodes.opened(self.nodeid, mode.cached);
        let open_flags = mode.open_flags(self.server.terms.keep_pages);
        let out = OpenOut { fh: mode.number(fh), open_flags, ..OpenOut::default() };
        if !self.reply.value(&out) {
            nodes.closed(self.nodeid, mode.cached);
            let _ = self.files().release(fh);
        }
        Ok(())
    }
    /// Whether a change of the file's contents can take set-user-ID or set-group-ID bits away.
    fn is_privileged(&self, ino: InodeNo) -> Answer<bool> {
        Ok(self.files().getattr(ino)?.mode & 0o6000 != 0)
    }
    /// Takes them away, in the kernel's copy too.
    fn shed_privileges(&self, ino: InodeNo) -> Answer<()> {
        if self.is_privileged(ino)? {
            let set = SetAttr { kill_privileges: true, ..SetAttr::default() };
            self.files().setattr(ino, &set, None)?;
            self.mode_changed(ino);
        }
        Ok(())
    }
    /// The kernel takes over sizes and times after what it asked for, but runs programs by the mode
    /// it has. This drops no pages, so that nothing is waited for.
    fn mode_changed(&self, ino: InodeNo) {
        self.server.link.invalidate_inode(ino, false);
    }
    /// After changes for which the kernel does not say whether the program may keep the bits: it
    /// leaves them to root only.
    fn changed_by_program(&self, ino: InodeNo) -> Answer<()> {
        if self.cred.uid == 0 { Ok(()) } else { self.shed_privileges(ino) }
    }

    pub(super) fn release(&mut self) -> Outcome<()> {
        let what: ReleaseIn = self.body.take()?;
        let (fh, mode) = OpenMode::split(what.fh);
        let ino = self.ino();
        if what.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0
            && let Err(errno) = self.files().flock(ino, &self.unlock(fh, (0, u64::MAX)))
        {
            tracing::error!(nodeid = self.nodeid, %errno, "a flock outlives its file");
        }
        self.server.lockers.release((ino, fh), |owner, range| {
            if let Err(errno) = self.files().setlk(ino, &self.unlock(owner, range)) {
                tracing::error!(nodeid = self.nodeid, %errno, "a lock outlives its open file");
            }
        });
        let result = self.files().release(fh);
        self.server.nodes().closed(self.nodeid, mode.cached);
        self.done(result)
    }

    fn unlock(&self, owner: u64, (start, end): Range) -> Plock {
        let kind = PlockKind::Unlock;
        Plock { start, end, kind, owner, pid: self.cred.pid, uid: self.cred.uid }
    }

    pub(super) fn read(&mut self) -> Outcome<()> {
        let what: ReadIn = self.body.take()?;
        let (fh, mode) = OpenMode::split(what.fh);
        let fill = what.read_flags & abi::READ_LOCKOWNER == 0;
        if fill && !mode.cached {
            self.server.nodes().filling(self.nodeid);
        }
        let reply = self.reply;
        let mut moved = 0;
        if let Some(entry) = reply.free_entry() {
            let mut hold = None;
            let filled = entry.fill(reply.unique, &mut |memory| {
                let len = what.size.min(u32::try_from(memory.len()).unwrap_or(u32::MAX));
                let (n, lock) = self.files().read_into(fh, what.offset, len, fill, memory)?;
                hold = Some(lock);
                moved = n as u64;
                Ok(n)
            });
            self.moved = moved;
            return Ok(filled?);
        }
        let answer = |bytes: &[u8]| {
            moved = bytes.len() as u64;
            reply.bytes_at_once(bytes)
        };
        self.files().read_reply(fh, what.offset, what.size, fill, answer)?;
        self.moved = moved;
        Ok(())
    }

    pub(super) fn write(&mut self) -> Outcome<()> {
        let what: WriteIn = self.body.take()?;
        let bytes = self.body.bytes(what.size)?;
        let (fh, _) = OpenMode::split(what.fh);
        let from_page_cache = what.write_flags & write::CACHE != 0;
        let flags = WriteFlags {
            direct: what.flags & o::DIRECT != 0,
            append: what.flags & o::APPEND != 0 && !from_page_cache,
            from_page_cache,
            kill_privileges: what.write_flags & write::KILL_SUIDGID != 0,
            // As the open file says, or this one write (`RWF_DSYNC`, `RWF_SYNC`).
            durable: if from_page_cache {
                Durable::Nothing
            } else {
                Durable::of(what.flags.cast_signed())
            },
        };
        let sheds = flags.kill_privileges && self.is_privileged(self.ino())?;
        let closes = self.server.nodes().cached_closes(self.nodeid);
        let mut early = Early {
            call: self,
            size: what.size,
            sheds,
            sent: false,
            unseen: None,
            growth: None,
            closes,
        };
        let write = Write { offset: what.offset, bytes, flags };
        let written = self.files().write(fh, write, &mut early);
        let Early { sent, unseen, growth, .. } = early;
        if sent {
            if let Err(errno) = written {
                tracing::error!(nodeid = self.nodeid, %errno, "a write failed behind its program");
            }
            self.moved = u64::from(what.size);
            return Ok(());
        }
        let written = written?;
        self.moved = written as u64;
        if sheds {
            self.mode_changed(self.ino());
        }
        let written = u32::try_from(written).map_err(|_| Errno::OVERFLOW)?;
        let answer = WriteOut { size: written, padding: 0 };
        if from_page_cache || written == 0 || !self.server.nodes().mixed_since(self.nodeid, closes)
        {
            drop(growth);
            return self.value(&answer);
        }
        let range = if flags.append { (0, 0) } else { (what.offset, u64::from(written)) };
        let unseen = unseen.into_iter().collect();
        self.answer_without_pages(self.nodeid, range, (unseen, growth), answer.as_bytes());
        Ok(())
    }
    /// Answers once the kernel has dropped its pages of `range` of `node` (first byte, number of bytes; 0:
    /// to the end). Pages that were filled while the write was under way may hold what it replaced. The
    /// program must not go on before they are gone, and this thread must not wait for that.
    fn answer_without_pages(
        &self,
        node: u64,
        range: (u64, u64),
        (unseen, growth): (Vec<UnseenWrite>, Option<Growth>),
        answer: &[u8],
    ) {
        let (told, wait) = match self.reply.way {
            Way::Device(device) => (AnswerTo::Program(Arc::clone(device), self.reply.unique), None),
            // The kernel lends this thread its memory until the answer: others cannot give it.
            Way::Ring(_) => {
                let (tell, wait) = sync_channel(1);
                (AnswerTo::Thread(tell), Some(wait))
            }
        };
        let later = answer.to_vec();
        self.server.late.submit(DeferredAnswer {
            told,
            node,
            range,
            unseen,
            growth,
            answer: later,
        });
        if let Some(wait) = wait {
            // The thread that drops the other end has tried.
            let _ = wait.recv();
            self.reply.bytes(answer);
        }
    }

    pub(super) fn flush(&mut self) -> Outcome<()> {
        let what: FlushIn = self.body.take()?;
        let (fh, _) = OpenMode::split(what.fh);
        let result = self.files().flush(fh, what.lock_owner);
        self.server.lockers.flushed((self.ino(), fh), what.lock_owner);
        self.done(result)
    }
    pub(super) fn fsync(&mut self) -> Outcome<()> {
        let what: FsyncIn = self.body.take()?;
        let data_only = what.fsync_flags & abi::FSYNC_DATA_ONLY != 0;
        self.done(self.files().fsync(OpenMode::split(what.fh).0, data_only))
    }
    pub(super) fn fallocate(&mut self) -> Outcome<()> {
        let what: FallocateIn = self.body.take()?;
        let (fh, _) = OpenMode::split(what.fh);
        let mode = what.mode.cast_signed();
        let closes = self.server.nodes().cached_closes(self.nodeid);
        let mut zeroed = Changes(Vec::new());
        self.files().fallocate(fh, mode, what.offset, what.length, &mut zeroed)?;
        self.changed_by_program(self.ino())?;
        if zeroed.0.is_empty() || !self.server.nodes().mixed_since(self.nodeid, closes) {
            return self.done(Ok(()));
        }
        // The kernel puts zeros into its pages only once it has the answer.
        self.answer_without_pages(self.nodeid, (what.offset, what.length), (zeroed.0, None), &[]);
        Ok(())
    }
    pub(super) fn lseek(&mut self) -> Outcome<()> {
        let what: LseekIn = self.body.take()?;
        let (fh, _) = OpenMode::split(what.fh);
        let offset = self.files().lseek(fh, what.offset, what.whence.cast_signed())?;
        self.value(&offset)
    }
    pub(super) fn copy_file_range(&mut self) -> Outcome<()> {
        let what: CopyFileRangeIn = self.body.take()?;
        let from = (OpenMode::split(what.fh_in).0, what.off_in);
        let to = (OpenMode::split(what.fh_out).0, what.off_out);
        // The older form answers in 32 bits.
        let wide = self.opcode == op::COPY_FILE_RANGE_64;
        let len = if wide { what.len } else { what.len.min(u64::from(u32::MAX - 4095)) };
        let len = self.copied_in_pages(&what, len)?;
        let closes = self.server.nodes().cached_closes(what.nodeid_out);
        let mut writes = Changes(Vec::new());
        let copied = self.files().copy_file_range(from, to, len, &mut writes)?;
        self.moved = copied;
        self.changed_by_program(self.server.ino(what.nodeid_out))?;
        let answer = if wide {
            copied.to_ne_bytes()
        } else {
            let size = u32::try_from(copied).map_err(|_| Errno::OVERFLOW)?;
            zerocopy::transmute!(WriteOut { size, padding: 0 })
        };
        if copied == 0 || !self.server.nodes().mixed_since(what.nodeid_out, closes) {
            return self.value(&answer);
        }
        self.answer_without_pages(
            what.nodeid_out,
            (what.off_out, copied),
            (writes.0, None),
            &answer,
        );
        Ok(())
    }
    /// How many bytes may be copied so. After a copy the kernel throws away all of each page that the
    /// target's range touches (`fuse_copy_file_range`, fs/fuse/file.c), also what a program has just
    /// stored there, beside the range, through a mapping. So only whole pages are copied this way, or up
    /// to the end of the file.
    ///
    /// # Errors
    /// `EXDEV`: the kernel is to copy by reading and writing. That is also for files of which it may have
    /// pages: that are mapped, or open to be read through the page cache.
    fn copied_in_pages(&self, what: &CopyFileRangeIn, len: u64) -> Answer<u64> {
        let page = rustix::param::page_size() as u64;
        let keeps = self.server.terms.keep_pages;
        if self.server.nodes().mixed(what.nodeid_out) || keeps && !what.off_out.is_multiple_of(page)
        {
            return Err(Errno::XDEV);
        }
        let size = |node| Ok(self.files().getattr(self.server.ino(node))?.size);
        let len = len.min(size(self.nodeid)?.saturating_sub(what.off_in));
        if !keeps {
            // Pages that the kernel would read the source from may be old.
            return Ok(len);
        }
        if what.off_out.saturating_add(len) >= size(what.nodeid_out)? {
            return Ok(len);
        }
        let pages = len - len % page;
        if pages == 0 && len > 0 { Err(Errno::XDEV) } else { Ok(pages) }
    }

    pub(super) fn getlk(&mut self) -> Outcome<()> {
        let what: LkIn = self.body.take()?;
        let want = wire::plock(&what.lk, what.owner).ok_or(BadRequest::Value)?;
        let found = self.files().getlk(self.ino(), &want)?;
        self.value(&wire::file_lock(found.as_ref()))
    }
    pub(super) fn setlk(&mut self, wait: bool) -> Outcome<()> {
        let what: LkIn = self.body.take()?;
        let mut lock = wire::plock(&what.lk, what.owner).ok_or(BadRequest::Value)?;
        lock.uid = self.cred.uid;
        let whole = what.lk_flags & abi::LK_FLOCK != 0;
        let unlock = lock.kind == PlockKind::Unlock;
        let (fh, _) = OpenMode::split(what.fh);
        if !unlock {
            self.server.lockers.locks_through(fh, self.cred.uid);
        }
        if whole {
            // The kernel's number of the open file description is given again while its RELEASE is under
            // way; this one is not.
            lock.owner = fh;
        } else if !unlock {
            let range = (lock.start, lock.end);
            self.server.lockers.locking((self.ino(), fh), lock.owner, range);
        }
        if wait && !unlock {
            return self.lock_later(&lock, whole);
        }
        self.change_lock(&lock, whole)?;
        if unlock {
            return self.done(Ok(()));
        }
        self.granted(&lock, whole);
        Ok(())
    }
    fn change_lock(&self, lock: &Plock, whole: bool) -> Answer<()> {
        let (files, ino) = (self.files(), self.ino());
        if whole { files.flock(ino, lock) } else { files.setlk(ino, lock) }
    }
    /// Says that a lock is granted. If nobody hears that (its program was killed and let go, see
    /// [`crate::waits::killed`]), the lock is given up again: the file may have been closed before it came.
    fn granted(&self, lock: &Plock, whole: bool) {
        if !self.reply.bytes(&[]) {
            let unlock = Plock { kind: PlockKind::Unlock, ..*lock };
            if let Err(errno) = self.change_lock(&unlock, whole) {
                tracing::error!(nodeid = self.nodeid, %errno, "a lock outlives its program");
            }
        }
    }
    /// Asks for a lock and may have to wait: the answer may come later, from the thread that frees
    /// the lock.
    fn lock_later(&self, lock: &Plock, whole: bool) -> Outcome<()> {
        let device = match self.reply.way {
            Way::Device(device) => Arc::clone(device),
            Way::Ring(_) => return self.lock_in_ring(lock, whole),
        };
        let (waits, unique) = (Arc::clone(&self.server.waits), self.reply.unique);
        let answer = Box::new(move |how: Answer<()>| {
            waits.ended(unique);
            let reply = Reply { way: Way::Device(&device), unique };
            match how {
                Ok(()) => drop(reply.bytes(&[])),
                Err(errno) => reply.error(errno),
            }
        });
        if self.ask_for_lock(lock, whole, answer)? {
            return Ok(());
        }
        self.granted(lock, whole);
        Ok(())
    }
    /// The same for a request whose answer only this thread can give.
    fn lock_in_ring(&self, lock: &Plock, whole: bool) -> Outcome<()> {
        let waits = self.server.ring_waits.enter(self.cred.uid);
        if waits.is_none() {
            return match self.change_lock(lock, whole) {
                Err(Errno::AGAIN) => Err(Errno::NOLCK.into()),
                done => self.done(done),
            };
        }
        let (waits, unique) = (Arc::clone(&self.server.waits), self.reply.unique);
        let (tell, told) = sync_channel(1);
        let answer = Box::new(move |how: Answer<()>| {
            waits.ended(unique);
            let _ = tell.send(how);
        });
        if self.ask_for_lock(lock, whole, answer)? {
            // If the other end is dropped, the lock was not granted.
            return self.done(told.recv().unwrap_or(Err(Errno::INTR)));
        }
        self.done(Ok(()))
    }
    /// Whether the lock is waited for, and `answer` called when that ends; else it is granted.
    fn ask_for_lock(&self, lock: &Plock, whole: bool, answer: LockAnswer) -> Answer<bool> {
        let (server, unique) = (self.server, self.reply.unique);
        // An INTERRUPT that comes before the wait is known.
        let early = server.interrupts.enter(unique);
        server.waits.begin(unique, self.cred.pid, self.nodeid);
        match self.files().lock_later(self.ino(), lock, whole, answer) {
            Ok(Some(wait)) => {
                if server.waits.waits(unique, wait) && early.canceller.is_cancelled() {
                    self.files().end_lock_wait(wait);
                }
                Ok(true)
            }
            done => {
                server.waits.ended(unique);
                done.map(|_| false)
            }
        }
    }
}
