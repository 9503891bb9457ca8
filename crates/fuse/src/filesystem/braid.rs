//! The real file system as [`Files`].

use braid_format::InodeNo;
use braid_fs::{
    Attr, Canceller, Cred, DirEntry, EarlyReply, Error, Fh, Fs, Plock, ReadHold, ReadRange,
    SetAttr, StatFs, TrimRange, WaitId, Write,
};

use crate::filesystem::files::{Answer, Errno, Files, LockAnswer};

/// What the program sees. Failures that are not the program's doing are logged here, with all
/// that errno cannot say.
fn errno(error: &Error) -> Errno {
    let errno = Errno::from_raw_os_error(error.errno());
    if errno == Errno::IO {
        tracing::error!(%error, "request failed");
    }
    errno
}

fn seen<T>(result: Result<T, Error>) -> Answer<T> {
    result.map_err(|error| errno(&error))
}

impl Files for Fs {
    fn root(&self) -> InodeNo {
        self.root()
    }
    fn is_single_node(&self) -> bool {
        self.is_single_node()
    }
    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Answer<Attr> {
        seen(self.lookup(dir, name))
    }
    fn revisit(&self, ino: InodeNo) -> Answer<Attr> {
        seen(self.revisit(ino))
    }
    fn forgotten(&self, ino: InodeNo) -> Answer<()> {
        seen(self.forgotten(ino))
    }
    fn getattr(&self, ino: InodeNo) -> Answer<Attr> {
        seen(self.getattr(ino))
    }
    fn setattr(&self, ino: InodeNo, set: &SetAttr, fh: Option<Fh>) -> Answer<Attr> {
        seen(self.setattr(ino, set, fh))
    }
    fn mknod(&self, dir: InodeNo, name: &[u8], mode: u32, rdev: u64, cred: &Cred) -> Answer<Attr> {
        seen(self.mknod(dir, name, mode, rdev, cred))
    }
    fn mkdir(&self, dir: InodeNo, name: &[u8], mode: u32, cred: &Cred) -> Answer<Attr> {
        seen(self.mkdir(dir, name, mode, cred))
    }
    fn symlink(&self, dir: InodeNo, name: &[u8], target: &[u8], cred: &Cred) -> Answer<Attr> {
        seen(self.symlink(dir, name, target, cred))
    }
    fn readlink(&self, ino: InodeNo) -> Answer<Vec<u8>> {
        seen(self.readlink(ino))
    }
    fn link(&self, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Answer<Attr> {
        seen(self.link(ino, dir, name))
    }
    fn unlink(&self, dir: InodeNo, name: &[u8]) -> Answer<()> {
        seen(self.unlink(dir, name))
    }
    fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Answer<()> {
        seen(self.rmdir(dir, name))
    }
    fn rename(&self, from: (InodeNo, &[u8]), to: (InodeNo, &[u8]), flags: u32) -> Answer<()> {
        seen(self.rename(from.0, from.1, to.0, to.1, flags))
    }
    fn readdir(
        &self,
        ino: InodeNo,
        cookie: u64,
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Answer<()> {
        seen(self.readdir(ino, cookie, plus, emit))
    }
    fn create(
        &self,
        dir: InodeNo,
        name: &[u8],
        mode: u32,
        flags: i32,
        cred: &Cred,
    ) -> Answer<(Attr, Fh)> {
        seen(self.create(dir, name, mode, flags, cred))
    }
    fn tmpfile(&self, dir: InodeNo, mode: u32, flags: i32, cred: &Cred) -> Answer<(Attr, Fh)> {
        seen(self.tmpfile(dir, mode, flags, cred))
    }
    fn open(&self, ino: InodeNo, flags: i32) -> Answer<Fh> {
        seen(self.open(ino, flags))
    }
    fn release(&self, fh: Fh) -> Answer<()> {
        seen(self.release(fh))
    }
    fn flush(&self, fh: Fh, lock_owner: u64) -> Answer<()> {
        seen(self.flush(fh, lock_owner))
    }
    fn fsync(&self, fh: Fh, data_only: bool) -> Answer<()> {
        seen(self.fsync(fh, data_only))
    }
    fn fsync_dir(&self, ino: InodeNo) -> Answer<()> {
        seen(self.fsync_dir(ino))
    }
    fn sync(&self) -> Answer<()> {
        seen(self.sync())
    }
    fn read_reply<R>(
        &self,
        fh: Fh,
        offset: u64,
        len: u32,
        fill: bool,
        reply: impl FnOnce(&[u8]) -> R,
    ) -> Answer<R> {
        seen(self.read_reply(fh, ReadRange { offset, len, fill }, reply))
    }
    type Hold = ReadHold;
    fn read_into(
        &self,
        fh: Fh,
        offset: u64,
        len: u32,
        fill: bool,
        memory: &mut [u8],
    ) -> Answer<(usize, ReadHold)> {
        seen(self.read_into(fh, ReadRange { offset, len, fill }, memory))
    }
    fn write(&self, fh: Fh, what: Write<'_>, reply: &mut dyn EarlyReply) -> Answer<usize> {
        seen(self.write_behind(fh, what, reply))
    }
    fn fallocate(&self, fh: Fh, mode: i32, offset: u64, len: u64) -> Answer<()> {
        seen(self.fallocate(fh, mode, offset, len))
    }
    fn lseek(&self, fh: Fh, offset: u64, whence: i32) -> Answer<u64> {
        seen(self.lseek(fh, offset, whence))
    }
    fn copy_file_range(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Answer<u64> {
        seen(self.copy_file_range(from, to, len))
    }
    fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Answer<Vec<u8>> {
        seen(self.getxattr(ino, name))
    }
    fn setxattr(&self, ino: InodeNo, name: &[u8], value: &[u8], flags: i32) -> Answer<()> {
        seen(self.setxattr(ino, name, value, flags))
    }
    fn listxattr(&self, ino: InodeNo) -> Answer<Vec<u8>> {
        seen(self.listxattr(ino))
    }
    fn removexattr(&self, ino: InodeNo, name: &[u8]) -> Answer<()> {
        seen(self.removexattr(ino, name))
    }
    fn statfs(&self) -> Answer<StatFs> {
        seen(self.statfs())
    }
    fn trim(&self, range: TrimRange, canceller: &Canceller) -> Answer<u64> {
        let done = seen(self.trim(range, canceller))?;
        if canceller.is_cancelled() && !done.finished {
            return Err(Errno::INTR);
        }
        Ok(done.given.get())
    }
    fn getlk(&self, ino: InodeNo, lock: &Plock) -> Answer<Option<Plock>> {
        seen(self.getlk(ino, lock))
    }
    fn setlk(&self, ino: InodeNo, lock: &Plock) -> Answer<()> {
        seen(self.setlk(ino, lock, None))
    }
    fn flock(&self, ino: InodeNo, lock: &Plock) -> Answer<()> {
        seen(self.flock(ino, lock, None))
    }
    type Wait = WaitId;
    fn lock_later(
        &self,
        ino: InodeNo,
        lock: &Plock,
        whole: bool,
        done: LockAnswer,
    ) -> Answer<Option<WaitId>> {
        seen(self.lock_later(ino, lock, whole, Box::new(move |how| done(seen(how)))))
    }
    fn end_lock_wait(&self, wait: WaitId) {
        self.end_lock_wait(wait);
    }
}
