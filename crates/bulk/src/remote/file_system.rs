//! The file system as others call it.

use std::time::{Duration, Instant};

use braid_format::InodeNo;
use braid_fs::{
    Answer, Attr, Cred, DirEntry, EarlyReply, Errno, Fh, FileSystem, LockAnswer, Plock, PlockKind,
    SetAttr, StatFs, Write,
};

use super::calls::About;
use super::{RemoteFs, caller, leases};
use crate::wire::{MountRequest, NAME_MAX, Reply, Request};

/// A name as it may stand in a request.
fn fitting(name: &[u8]) -> Answer<&[u8]> {
    if name.len() > NAME_MAX { Err(Errno::NAMETOOLONG) } else { Ok(name) }
}

impl FileSystem for RemoteFs {
    fn root(&self) -> InodeNo {
        self.0.root.ino
    }
    fn set_caller(&self, caller: &Cred) {
        caller::begin(caller);
        leases::begin();
    }
    fn attr_timeout(&self) -> Option<Duration> {
        Some(leases::attr_timeout())
    }
    fn closing(&self) {
        self.0.session.close_at(Instant::now());
    }
    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Answer<Attr> {
        self.0.look_up(dir, fitting(name)?)
    }
    fn lookup_number(&self, ino: InodeNo) -> Answer<Attr> {
        let attr = self.0.attr_now(ino)?;
        self.0.known.hand_out(&attr, &*self.0.kernel);
        Ok(attr)
    }
    fn forget(&self, ino: InodeNo) -> Answer<()> {
        self.0.known.forget(ino, &*self.0.kernel);
        Ok(())
    }
    fn getattr(&self, ino: InodeNo) -> Answer<Attr> {
        self.0.attr_now(ino)
    }
    fn setattr(&self, ino: InodeNo, set: &SetAttr, fh: Option<Fh>) -> Answer<Attr> {
        self.0.set_attr(ino, set, fh)
    }
    fn mknod(&self, dir: InodeNo, name: &[u8], mode: u32, rdev: u64, cred: &Cred) -> Answer<Attr> {
        self.0.noted((dir, name), self.0.make((dir, fitting(name)?), (mode, rdev), cred))
    }
    fn mkdir(&self, dir: InodeNo, name: &[u8], mode: u32, cred: &Cred) -> Answer<Attr> {
        self.0.noted((dir, name), self.0.make_dir((dir, fitting(name)?), mode, cred))
    }
    fn symlink(&self, dir: InodeNo, name: &[u8], target: &[u8], _cred: &Cred) -> Answer<Attr> {
        self.0.noted((dir, name), self.0.make_link((dir, fitting(name)?), target))
    }
    fn readlink(&self, ino: InodeNo) -> Answer<Vec<u8>> {
        self.0.bytes_of(ino, MountRequest::ReadLink { ino })
    }
    fn link(&self, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Answer<Attr> {
        let request = MountRequest::Link { ino, dir, name: fitting(name)?.to_vec() };
        self.0.noted((dir, name), self.0.entry(&[ino, dir], &Request::Mount(request)))
    }
    fn unlink(&self, dir: InodeNo, name: &[u8]) -> Answer<()> {
        let request = Request::Unlink { dir, name: fitting(name)?.to_vec() };
        self.0.take_name((&[dir], &request), (dir, name), None)
    }
    fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Answer<()> {
        let request = Request::RmDir { dir, name: fitting(name)?.to_vec() };
        self.0.take_name((&[dir], &request), (dir, name), None)
    }
    fn rename(&self, from: (InodeNo, &[u8]), to: (InodeNo, &[u8]), flags: u32) -> Answer<()> {
        let named = |(dir, name): (InodeNo, &[u8])| Ok((dir, fitting(name)?.to_vec()));
        let request = MountRequest::RenameAs { from: named(from)?, to: named(to)?, flags };
        self.0.take_name((&[from.0, to.0], &Request::Mount(request)), from, Some(to))
    }
    fn readdir(
        &self,
        ino: InodeNo,
        cookie: u64,
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Answer<()> {
        self.0.list(ino, (cookie, plus), emit)
    }
    fn create(
        &self,
        dir: InodeNo,
        name: &[u8],
        mode: u32,
        flags: i32,
        cred: &Cred,
    ) -> Answer<(Attr, Fh)> {
        let (flags, umask) = (flags.cast_unsigned(), cred.umask);
        let request =
            MountRequest::MakeFile { dir, name: fitting(name)?.to_vec(), mode, umask, flags };
        let (attr, fh) = self.0.open_by(dir, request, (flags, true))?;
        self.0.noted((dir, name), Ok(attr)).map(|attr| (attr, fh))
    }
    fn tmpfile(&self, dir: InodeNo, mode: u32, flags: i32, cred: &Cred) -> Answer<(Attr, Fh)> {
        let (flags, umask) = (flags.cast_unsigned(), cred.umask);
        let request = MountRequest::TmpFile { dir, mode, umask, flags };
        self.0.open_by(dir, request, (flags, true))
    }
    fn open(&self, ino: InodeNo, flags: i32) -> Answer<Fh> {
        self.0.open_inode(ino, flags.cast_unsigned())
    }
    fn release(&self, fh: Fh) -> Answer<()> {
        self.0.close_file(fh)
    }
    fn flush(&self, fh: Fh, lock_owner: u64) -> Answer<()> {
        let file = self.0.files.get(fh)?;
        // Others may open it from now on and rely on what is there: it must not be written once more then.
        if file.is_writable()
            && let Err(errno) = self.0.before_change(file.inode.ino)
        {
            tracing::debug!(%errno, "a file that was closed is not durable yet");
        }
        let kind = PlockKind::Unlock;
        let all = Plock { start: 0, end: u64::MAX, kind, owner: lock_owner, pid: 0, uid: 0 };
        self.0.lock(file.inode.ino, false, &all)?;
        if !file.is_writable() {
            return Ok(());
        }
        let lost = self.0.pending.lock().losses.tell_at_close(file.inode.ino, &file.told);
        lost.map_or(Ok(()), Err)
    }
    fn flush_may_be_interrupted(&self) -> bool {
        true
    }
    fn fsync(&self, fh: Fh, _data_only: bool) -> Answer<()> {
        self.0.sync_file(fh)
    }
    fn fsync_dir(&self, ino: InodeNo) -> Answer<()> {
        self.0.change(&[ino], &Request::SyncDir { dir: ino })
    }
    fn sync(&self) -> Answer<()> {
        self.0.flush()?;
        self.0.sync_server()
    }
    fn read_reply<R>(
        &self,
        fh: Fh,
        offset: u64,
        len: u32,
        _fill: bool,
        reply: impl FnOnce(&[u8]) -> R,
    ) -> Answer<R> {
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        if len <= self.0.chunk {
            let file = self.0.files.get(fh)?;
            let Some(kept) = self.0.kept(&file, offset, len) else {
                return self.0.read_piece(&file, (offset, false), len, reply);
            };
            if let Some(bytes) = kept.as_slice() {
                return Ok(reply(bytes));
            }
            let mut memory = vec![0; len];
            let n = kept.copy_to(&mut memory);
            return Ok(reply(memory.get(..n).unwrap_or_default()));
        }
        let mut memory = vec![0; len];
        let n = self.0.read(fh, offset, &mut memory)?;
        Ok(reply(memory.get(..n).unwrap_or_default()))
    }
    /// Nothing is held.
    type Hold = ();
    fn read_into(
        &self,
        fh: Fh,
        offset: u64,
        len: u32,
        _fill: bool,
        memory: &mut [u8],
    ) -> Answer<(usize, ())> {
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?.min(memory.len());
        let memory = memory.get_mut(..len).unwrap_or_default();
        Ok((self.0.read(fh, offset, memory)?, ()))
    }
    fn write(&self, fh: Fh, what: Write<'_>, _reply: &mut dyn EarlyReply) -> Answer<usize> {
        self.0.write(fh, what)
    }
    fn fallocate(
        &self,
        fh: Fh,
        mode: i32,
        offset: u64,
        len: u64,
        _reply: &mut dyn EarlyReply,
    ) -> Answer<()> {
        self.0.allocate(fh, mode, (offset, len))
    }
    fn lseek(&self, fh: Fh, offset: u64, whence: i32) -> Answer<u64> {
        self.0.seek(fh, offset, whence)
    }
    fn copy_file_range(
        &self,
        from: (Fh, u64),
        to: (Fh, u64),
        len: u64,
        _reply: &mut dyn EarlyReply,
    ) -> Answer<u64> {
        self.0.copy(from, to, len)
    }
    fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Answer<Vec<u8>> {
        self.0.get_xattr(ino, name, MountRequest::GetXattr { ino, name: name.to_vec() })
    }
    fn setxattr(&self, ino: InodeNo, name: &[u8], value: &[u8], flags: i32) -> Answer<()> {
        self.0.set_xattr(ino, (name, value), flags)
    }
    fn listxattr(&self, ino: InodeNo) -> Answer<Vec<u8>> {
        self.0.get_xattr(ino, b"", MountRequest::ListXattr { ino })
    }
    fn removexattr(&self, ino: InodeNo, name: &[u8]) -> Answer<()> {
        let request = MountRequest::RemoveXattr { ino, name: name.to_vec() };
        self.0.change(&[ino], &Request::Mount(request))
    }
    fn statfs(&self) -> Answer<StatFs> {
        match self.0.reply(About::default(), |_| Request::StatFs)? {
            Reply::Totals(totals) => Ok(totals),
            _ => Err(Errno::IO),
        }
    }
    fn getlk(&self, ino: InodeNo, lock: &Plock) -> Answer<Option<Plock>> {
        self.0.lock_in_the_way(ino, lock)
    }
    fn setlk(&self, ino: InodeNo, lock: &Plock) -> Answer<()> {
        self.0.lock(ino, false, lock)
    }
    fn flock(&self, ino: InodeNo, lock: &Plock) -> Answer<()> {
        self.0.lock(ino, true, lock)
    }
    /// The number of a wait.
    type Wait = u64;
    fn lock_later(
        &self,
        ino: InodeNo,
        lock: &Plock,
        whole: bool,
        done: LockAnswer,
    ) -> Answer<Option<u64>> {
        self.0.lock_later(ino, whole, (lock, done))
    }
    fn end_lock_wait(&self, wait: u64) {
        self.0.end_wait(wait);
    }
}
