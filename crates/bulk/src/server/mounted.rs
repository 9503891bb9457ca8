//! Requests that only mounts make, but for locks.

use braid_format::InodeNo;
use braid_fs::mode::{S_IFDIR, S_IFIFO, S_IFMT, S_IFREG, S_IFSOCK};
use braid_fs::{Attr, Errno, FileSystem};

use super::operations::{MODE_BITS, O_EXCL, O_TRUNC, Opening};
use super::outcome::{Outcome, seen};
use super::permissions::{READ, SEARCH, Visit, WRITE};
use super::served::Served;
use super::session::Session;
use crate::link::Buffer;
use crate::wire::{Caller, MountRequest, Reply, Status, XATTR_MAX};

/// Of open(2): access, and what is passed on of the rest (`O_TRUNC`, `O_DSYNC`, `O_SYNC`, `O_DIRECT`).
const ACCESS: u32 = 3;
const PASSED_ON: u32 = ACCESS | 0o1000 | 0o10_000 | 0o4_000_000 | 0o40_000;
/// A file that is made and removed again and again while it is opened is given up after so many tries.
const TRIES: u32 = 10;
/// Most bytes that are copied by one request, which keeps a connection.
const COPY_MAX: u64 = 64 << 20;
/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4095;
/// Of renameat2(2): leaves a device behind, which only root may make.
const RENAME_WHITEOUT: u32 = 4;

impl<F: FileSystem> Served<F> {
    /// Does one; its data is at the begin of `buffer`, and what it reads goes there.
    ///
    /// # Errors
    /// What the client is told.
    pub(super) fn mounted(
        &self,
        session: &Session,
        (caller, request): (Option<&Caller>, MountRequest),
        (buffer, data_len): (&mut Buffer, usize),
    ) -> Outcome {
        let mut visit = Visit::new(self, caller);
        let files = &self.files;
        let reply = match request {
            MountRequest::ReadLink { ino } => {
                visit.inode(ino)?;
                return self.data(buffer, &seen(files.readlink(ino))?);
            }
            MountRequest::List { dir, cookie, length, handle } => {
                let most = self.allowed(usize::try_from(length).unwrap_or(usize::MAX))?;
                let at = (dir, handle);
                let entries = self.list(session, &mut visit, at, (cookie, most, true))?;
                return self.data(buffer, &entries);
            }
            MountRequest::MakeFile { dir, name, mode, umask, flags } => {
                self.make_file(session, &mut visit, (dir, &name), (mode, umask, flags))?
            }
            MountRequest::OpenAs { ino, flags, again } => {
                let attr = visit.inode(ino)?;
                self.open_as(session, &visit, &attr, (flags, again))?
            }
            MountRequest::TmpFile { dir, mode, umask, flags } => {
                let at = visit.inode_for(dir, WRITE | SEARCH)?;
                let mode = visit.principal.mode_in(&at, mode & MODE_BITS);
                let flags = flags & PASSED_ON;
                let cred = visit.principal.cred(umask);
                let (attr, fh) = seen(files.tmpfile(dir, mode, flags.cast_signed(), &cred))?;
                visit.note(&attr);
                self.keep_opened(session, &attr, opening(&visit, fh, flags))?
            }
            MountRequest::SymLink { dir, name } => {
                visit.inode_for(dir, WRITE | SEARCH)?;
                if data_len > TARGET_MAX {
                    return Err(Status::of(Errno::NAMETOOLONG));
                }
                let (target, cred) = (buffer.take(data_len), visit.principal.cred(0));
                let attr = seen(files.symlink(dir, &name, target, &cred))?;
                visit.note(&attr);
                Reply::Attr(attr)
            }
            MountRequest::Link { ino, dir, name } => {
                visit.inode(ino)?;
                visit.inode_for(dir, WRITE | SEARCH)?;
                let attr = seen(files.link(ino, dir, &name))?;
                visit.note(&attr);
                Reply::Attr(attr)
            }
            MountRequest::MakeNode { dir, name, mode, umask, rdev } => {
                self.make_node(&mut visit, (dir, &name), (mode, umask, rdev))?
            }
            MountRequest::RenameAs { from, to, flags } => {
                if flags & RENAME_WHITEOUT != 0 && !visit.principal.is_root() {
                    return Err(Status::of(Errno::PERM));
                }
                self.rename(session, &mut visit, (&from, &to), flags).map(|()| Reply::Done)?
            }
            MountRequest::Sync => {
                seen(files.sync())?;
                Reply::Written { length: 0, verifier: self.verifier }
            }
            MountRequest::Seek { .. }
            | MountRequest::Allocate { .. }
            | MountRequest::Copy { .. } => self.by_handle(session, &request)?,
            of_xattr => return self.xattrs(&mut visit, of_xattr, (buffer, data_len)),
        };
        Ok((reply, 0))
    }

    /// Requests about extended attributes.
    fn xattrs(
        &self,
        visit: &mut Visit<'_, F>,
        request: MountRequest,
        (buffer, data_len): (&mut Buffer, usize),
    ) -> Outcome {
        let files = &self.files;
        let reply = match request {
            MountRequest::GetXattr { ino, name } => {
                let attr = visit.inode(ino)?;
                may_read(visit, &attr, &name)?;
                let mut value = seen(files.getxattr(ino, &name))?;
                self.options.ids.xattr_shown(&name, &mut value);
                return self.data(buffer, &value);
            }
            MountRequest::ListXattr { ino } => {
                visit.inode(ino)?;
                return self.data(buffer, &seen(files.listxattr(ino))?);
            }
            MountRequest::SetXattr { ino, name, flags } => {
                let attr = visit.inode(ino)?;
                may_change(visit, &attr, &name)?;
                if data_len > XATTR_MAX {
                    return Err(Status::of(Errno::TOOBIG));
                }
                let (value, flags) = (buffer.take(data_len), flags.cast_signed());
                let mapped = self.options.ids.xattr_in_pool(&name, value);
                mapped.ok_or(Status::of(Errno::INVAL))?;
                seen(files.setxattr(ino, &name, value, flags))?;
                Reply::Done
            }
            MountRequest::RemoveXattr { ino, name } => {
                let attr = visit.inode(ino)?;
                may_change(visit, &attr, &name)?;
                seen(files.removexattr(ino, &name)).map(|()| Reply::Done)?
            }
            _ => return Err(Status::REQUEST),
        };
        Ok((reply, 0))
    }

    /// Bytes that go with a reply.
    fn data(&self, buffer: &mut Buffer, bytes: &[u8]) -> Outcome {
        self.allowed(bytes.len())?;
        buffer.take(bytes.len()).copy_from_slice(bytes);
        Ok((Reply::Done, bytes.len()))
    }

    /// Requests about open files.
    fn by_handle(&self, session: &Session, request: &MountRequest) -> Result<Reply, Status> {
        let file = |handle| session.file(handle).ok_or(Status::HANDLE);
        match *request {
            MountRequest::Seek { handle, offset, whence } => {
                let fh = file(handle)?.fh;
                seen(self.files.lseek(fh, offset, whence.cast_signed())).map(Reply::Number)
            }
            MountRequest::Allocate { handle, offset, len, mode } => {
                let (fh, mode) = (file(handle)?.fh, mode.cast_signed());
                seen(self.files.fallocate(fh, mode, offset, len, &mut ())).map(|()| Reply::Done)
            }
            MountRequest::Copy { handle, offset, to, to_offset, len } => {
                let (from, into) = (file(handle)?, file(to)?);
                let (from, into) = ((from.fh, offset), (into.fh, to_offset));
                let len = len.min(COPY_MAX);
                seen(self.files.copy_file_range(from, into, len, &mut ())).map(Reply::Number)
            }
            _ => Err(Status::REQUEST),
        }
    }

    /// Opens a file of a name, which is made if there is none, as open(2) with `O_CREAT`.
    fn make_file(
        &self,
        session: &Session,
        visit: &mut Visit<'_, F>,
        (dir, name): (InodeNo, &[u8]),
        (mode, umask, flags): (u32, u32, u32),
    ) -> Result<Reply, Status> {
        let at = visit.inode_for(dir, SEARCH)?;
        let exclusive = flags & O_EXCL.cast_unsigned() != 0;
        let passed_on = flags & PASSED_ON;
        for _ in 0..TRIES {
            // Another's file is opened only if the caller may, so it must be known which of both it is.
            let found = match visit.lookup(dir, name) {
                Ok(_) if exclusive => return Err(Status::of(Errno::EXIST)),
                Ok(found) => Some(found),
                Err(status) if status.errno() == Some(Errno::NOENT) => None,
                Err(status) => return Err(status),
            };
            if let Some(found) = found {
                return self.open_as(session, visit, &found, (flags, false));
            }
            visit.may(&at, WRITE)?;
            let (mode, cred) =
                (visit.principal.mode_in(&at, mode & MODE_BITS), visit.principal.cred(umask));
            let how = (passed_on & !O_TRUNC.cast_unsigned()).cast_signed() | O_EXCL;
            match self.files.create(dir, name, mode, how, &cred) {
                Ok((attr, fh)) => {
                    visit.note(&attr);
                    return self.keep_opened(session, &attr, opening(visit, fh, passed_on));
                }
                Err(Errno::EXIST) if !exclusive => {}
                Err(errno) => return Err(Status::of(errno)),
            }
        }
        Err(Status::of(Errno::AGAIN))
    }

    /// Opens an inode, if the caller may. Its owner may open it `again` whatever its mode says by now: he may have
    /// made it so that he alone could write it, through this very open file.
    fn open_as(
        &self,
        session: &Session,
        visit: &Visit<'_, F>,
        attr: &Attr,
        (flags, again): (u32, bool),
    ) -> Result<Reply, Status> {
        let truncates = flags & O_TRUNC.cast_unsigned() != 0;
        let mut want = match flags & ACCESS {
            0 => READ,
            1 => WRITE,
            _ => READ | WRITE,
        };
        want |= if truncates { WRITE } else { 0 };
        if !attr.is_dir() && !attr.is_regular() {
            return Err(Status::of(Errno::INVAL));
        }
        if want == READ && attr.is_regular() && visit.may(attr, READ).is_err() {
            // A program is run by whoever may not read it: the kernel at the client reads it for him.
            visit.may(attr, SEARCH)?;
        } else if !(again && visit.principal.owns(attr)) {
            visit.may(attr, want)?;
        }
        let fh = seen(self.files.open(attr.ino, (flags & PASSED_ON).cast_signed()))?;
        let attr = if truncates { seen(self.files.getattr(attr.ino))? } else { *attr };
        self.keep_opened(session, &attr, opening(visit, fh, flags))
    }

    /// Makes a directory, a special file or an empty file.
    fn make_node(
        &self,
        visit: &mut Visit<'_, F>,
        (dir, name): (InodeNo, &[u8]),
        (mode, umask, rdev): (u32, u32, u64),
    ) -> Result<Reply, Status> {
        let at = visit.inode_for(dir, WRITE | SEARCH)?;
        let cred = visit.principal.cred(umask);
        let made = match mode & S_IFMT {
            S_IFDIR => self.files.mkdir(dir, name, mode & MODE_BITS, &cred),
            S_IFREG | S_IFIFO | S_IFSOCK | 0 => {
                let mode = visit.principal.mode_in(&at, mode);
                self.files.mknod(dir, name, mode, rdev, &cred)
            }
            // A device.
            _ if !visit.principal.is_root() => return Err(Status::of(Errno::PERM)),
            _ => self.files.mknod(dir, name, mode, rdev, &cred),
        };
        let attr = seen(made)?;
        visit.note(&attr);
        Ok(Reply::Attr(attr))
    }
}

fn opening<F: FileSystem>(visit: &Visit<'_, F>, fh: u64, flags: u32) -> Opening {
    Opening { fh, lock: false, user: Some(visit.principal.uid()), writable: flags & ACCESS != 0 }
}

/// Whether the caller may see an extended attribute.
fn may_read<F: FileSystem>(visit: &Visit<'_, F>, attr: &Attr, name: &[u8]) -> Result<(), Status> {
    if name.starts_with(b"user.") {
        return visit.may(attr, READ);
    }
    let hidden = name.starts_with(b"trusted.") && !visit.principal.is_root();
    if hidden { Err(Status::of(Errno::NODATA)) } else { Ok(()) }
}

/// Whether the caller may set or remove an extended attribute: xattr(7).
fn may_change<F: FileSystem>(visit: &Visit<'_, F>, attr: &Attr, name: &[u8]) -> Result<(), Status> {
    if name.starts_with(b"user.") {
        return visit.may(attr, WRITE);
    }
    let is_own = name.starts_with(b"system.") && visit.principal.owns(attr);
    if is_own || visit.principal.is_root() { Ok(()) } else { Err(Status::of(Errno::PERM)) }
}
