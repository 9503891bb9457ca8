//! Requests about names and attributes.

use braid_format::InodeNo;
use braid_fs::mode::S_ISGID;
use braid_fs::{Attr, Errno, FileSystem, SetAttr, TimeSet};

use super::operations::{MODE_BITS, O_EXCL, O_RDWR};
use super::outcome::seen;
use super::permissions::{READ, SEARCH, Visit, WRITE};
use super::served::Served;
use super::session::Session;
use crate::wire::{
    Caller, OpenFlags, RENAME_EXCHANGE, Reply, Request, Status, write_entry, write_listed,
};

/// Of renameat2(2).
const RENAME_NOREPLACE: u32 = 1;

impl<F: FileSystem> Served<F> {
    /// Does one.
    ///
    /// # Errors
    /// What the client is told.
    pub(super) fn names(
        &self,
        session: &Session,
        (caller, request): (Option<&Caller>, Request),
    ) -> Result<Reply, Status> {
        let is_mount = caller.is_some();
        let mut visit = Visit::new(self, caller);
        let files = &self.files;
        match request {
            Request::Lookup { dir, name } => {
                visit.inode_for(dir, SEARCH)?;
                let attr = visit.lookup(dir, &name)?;
                if is_mount && attr.is_regular() {
                    visit.keep(attr.ino, session.id, (dir, &name));
                }
                Ok(Reply::Attr(attr))
            }
            Request::GetAttr { ino } => visit.inode(ino).map(Reply::Attr),
            Request::SetAttr { ino, set, handle } => {
                let attr = visit.inode(ino)?;
                let file = session.file(handle).filter(|f| f.ino == ino && f.writable);
                let set = may_set(&visit, (&attr, file.is_some()), set)?;
                seen(files.setattr(ino, &set, None)).map(Reply::Attr)
            }
            Request::StatFs => seen(files.statfs()).map(Reply::Totals),
            Request::Create { dir, name, mode, flags } => {
                let at = visit.inode_for(dir, WRITE | SEARCH)?;
                let (mode, cred) =
                    (visit.principal.mode_in(&at, mode & MODE_BITS), visit.principal.cred(0));
                let (attr, fh) = seen(files.create(dir, &name, mode, O_RDWR | O_EXCL, &cred))?;
                visit.note(&attr);
                let flags = OpenFlags { write: true, ..flags };
                self.keep(session, &attr, (fh, flags))
            }
            Request::MkDir { dir, name, mode } => {
                visit.inode_for(dir, WRITE | SEARCH)?;
                let attr =
                    seen(files.mkdir(dir, &name, mode & MODE_BITS, &visit.principal.cred(0)))?;
                visit.note(&attr);
                Ok(Reply::Attr(attr))
            }
            Request::Unlink { dir, name } => {
                let at = visit.inode(dir)?;
                visit.may_remove(&at, &name)?;
                self.takes_away(session, (dir, &name));
                seen(files.unlink(dir, &name)).map(|()| Reply::Done)
            }
            Request::RmDir { dir, name } => {
                let at = visit.inode(dir)?;
                visit.may_remove(&at, &name)?;
                seen(files.rmdir(dir, &name)).map(|()| Reply::Done)
            }
            Request::Rename { from, to, no_replace } => {
                let flags = if no_replace { RENAME_NOREPLACE } else { 0 };
                self.rename(session, &mut visit, (&from, &to), flags).map(|()| Reply::Done)
            }
            Request::SyncDir { dir } => {
                visit.inode(dir)?;
                seen(files.fsync_dir(dir)).map(|()| Reply::Done)
            }
            Request::Ping | Request::Bye => Ok(Reply::Done),
            _ => Err(Status::REQUEST),
        }
    }

    /// Renames, if the caller may.
    ///
    /// # Errors
    /// What the client is told.
    pub(super) fn rename(
        &self,
        session: &Session,
        visit: &mut Visit<'_, F>,
        (from, to): (&Named, &Named),
        flags: u32,
    ) -> Result<(), Status> {
        let (dir, new_dir) = (visit.inode(from.0)?, visit.inode(to.0)?);
        if !visit.principal.is_root() {
            visit.may_remove(&dir, &from.1)?;
            match visit.may_remove(&new_dir, &to.1) {
                Err(status) if status.errno() == Some(Errno::NOENT) => {}
                may => may?,
            }
            if from.0 != to.0 {
                let also = (flags & RENAME_EXCHANGE != 0).then_some(to);
                for moves in std::iter::once(from).chain(also) {
                    // A directory's way up is written in it.
                    let moved = visit.lookup(moves.0, &moves.1)?;
                    if moved.is_dir() {
                        visit.may(&moved, WRITE)?;
                    }
                }
            }
        }
        self.takes_away(session, (to.0, &to.1));
        seen(self.files.rename((from.0, &from.1), (to.0, &to.1), flags))
    }

    /// A client is about to take a name away: what it has found by it need not stay for it.
    fn takes_away(&self, session: &Session, name: (InodeNo, &[u8])) {
        self.release(self.references.looked_up().take_named(session.id, name));
    }

    /// Lists a directory into `most` bytes, from `cookie` on, with attributes if that is asked for.
    ///
    /// # Errors
    /// What the client is told.
    pub(super) fn list(
        &self,
        session: &Session,
        visit: &mut Visit<'_, F>,
        (dir, handle): (InodeNo, u64),
        (cookie, most, with_attributes): (u64, usize, bool),
    ) -> Result<Vec<u8>, Status> {
        let attr = visit.inode(dir)?;
        // Whoever has it open has been allowed to read it.
        if session.file(handle).is_none_or(|file| file.ino != dir) {
            visit.may(&attr, READ)?;
        }
        let mut entries = Vec::new();
        let mut emit = |mut entry: braid_fs::DirEntry<'_>| {
            entry.attr = entry.attr.map(|attr| self.options.ids.shown(&attr));
            if !with_attributes {
                return !write_entry(&mut entries, most, &entry);
            }
            let fits = write_listed(&mut entries, most, &entry);
            if let Some(attr) = entry.attr.filter(|_| fits) {
                visit.note(&attr);
            }
            !fits
        };
        seen(self.files.readdir(dir, cookie, with_attributes, &mut emit))?;
        Ok(entries)
    }
}

/// A name in a directory.
pub(super) type Named = (InodeNo, Vec<u8>);

/// What the caller may change of a file, `writable` through an open one: as chmod(2), chown(2), truncate(2) and
/// utimensat(2) say. Whoever may write a file may also take its set-user-ID and set-group-ID bits away, as a write
/// does.
fn may_set<F: FileSystem>(
    visit: &Visit<'_, F>,
    (attr, writable): (&Attr, bool),
    mut set: SetAttr,
) -> Result<SetAttr, Status> {
    let principal = &visit.principal;
    if principal.is_root() {
        return Ok(set);
    }
    let refused = Err(Status::of(Errno::PERM));
    let owns = principal.owns(attr);
    let only_owners = [set.mode, set.uid, set.gid].iter().any(Option::is_some);
    if only_owners && !owns || set.uid.is_some_and(|uid| uid != attr.uid) {
        return refused;
    }
    if let Some(gid) = set.gid.filter(|gid| *gid != attr.gid)
        && !principal.person().is_in(gid)
    {
        return refused;
    }
    if let Some(mode) = &mut set.mode
        && !principal.person().is_in(set.gid.unwrap_or(attr.gid))
    {
        *mode &= !S_ISGID;
    }
    let is_exact = |time: Option<TimeSet>| matches!(time, Some(TimeSet::At(_)));
    if (is_exact(set.atime) || is_exact(set.mtime)) && !owns {
        return refused;
    }
    // Nothing is to be set: only the change time of somebody else's file would be.
    let times = set.atime.is_some() || set.mtime.is_some();
    let by_writing = set.size.is_some() || set.kill_privileges;
    if !owns && !times && !by_writing {
        return refused;
    }
    let through_open = writable && by_writing;
    if !owns && !through_open {
        visit.may(attr, WRITE)?;
    }
    set.kill_privileges |= set.size.is_some() || set.uid.is_some() || set.gid.is_some();
    Ok(set)
}
