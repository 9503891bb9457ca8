//! Requests about names, attributes and extended attributes.

use std::time::Instant;

use braid_fs::{Answer, Attr, Cred, DirEntry, Fh, FileSystem, KILL_GROUP};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::wire::{self, OpenMode};
use super::{Call, Outcome, truncate};
use crate::abi::{
    self, AttrOut, CreateIn, Dirent, EntryOut, GetxattrIn, GetxattrOut, LinkIn, MkdirIn, MknodIn,
    OpenOut, ReadIn, ReleaseIn, Rename2In, RenameIn, SetattrIn, SetxattrIn, SetxattrMoreIn,
    StatxIn, StatxOut,
};
use crate::caches::moves::Moved;
use crate::caches::nodes::{Keep, Stamp};
use crate::waits::handle_lookups::is_of_handle;

/// Longest answer to a READDIR, however much is asked for.
const LISTING_MAX: usize = 256 << 10;
/// Bytes that entries are padded to.
const ENTRY_ALIGN: usize = 8;

/// Seconds and nanoseconds for which the kernel may keep attributes.
type Valid = (u64, u32);

impl<F: FileSystem> Call<'_, F> {
    /// Answers with an entry; takes its count back if the kernel does not want it any more.
    fn entry(&self, attr: &Attr, stamp: Stamp, keep: Keep) {
        let entry = self.server.entry(attr, stamp, keep);
        if !self.reply.value(&entry) {
            self.server.forgot(entry.nodeid, 1);
        }
    }
    fn stamp(&self) -> Stamp {
        self.server.nodes().stamp()
    }
    /// For entries of the directory that the request is about.
    fn keep(&self) -> Keep {
        self.server.keep_in(self.nodeid)
    }
    /// For whatever makes a new inode.
    fn made(&self, stamp: Stamp, made: Answer<Attr>) -> Outcome<()> {
        self.entry(&made?, stamp, self.keep());
        Ok(())
    }
    fn cred(&self, umask: u32) -> Cred {
        Cred { umask, ..self.cred }
    }

    pub(super) fn lookup(&mut self) -> Outcome<()> {
        let name = self.body.name()?;
        let stamp = self.stamp();
        let (lookups, on_ring) = (self.server.handle_lookups(), !self.is_from_device());
        let bounded = (on_ring && is_of_handle(name)).then(|| lookups.on_ring(self.cred.uid));
        let _under_way = bounded.transpose()?;
        // "." comes from file handles: the kernel knows the number and wants the inode.
        let found = if name == b"." {
            self.files().lookup_number(self.ino())
        } else {
            self.files().lookup(self.ino(), name)
        };
        match found {
            Ok(attr) => {
                let keep = if self.mind_moves(&attr, name) { Keep::No } else { self.keep() };
                self.entry(&attr, stamp, keep);
            }
            Err(Errno::NOENT) if self.server.terms.cache_names && name != b"." => {
                // That there is no such name may be cached too.
                let nothing =
                    EntryOut { entry_valid: self.server.names_valid(), ..EntryOut::default() };
                self.reply.value(&nothing);
            }
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }
    /// Before the answer to a lookup: the kernel may have the directory it found elsewhere. Returns whether it has.
    fn mind_moves(&self, attr: &Attr, name: &[u8]) -> bool {
        if !is_dir(attr) || name == b"." || name == b".." {
            return false;
        }
        let (moves, node) = (self.server.link.moves(), self.server.node(attr.ino));
        moves.settle(node, self.cred.pid);
        if let Some(from) = moves.elsewhere(node, self.nodeid)
            && let Ok(dir) = self.files().getattr(self.ino())
        {
            let generation = u32::try_from(dir.generation & u64::from(u32::MAX)).unwrap_or(0);
            let (dir, name, thread) = (self.nodeid, name.into(), self.cred.pid);
            moves.found(Moved { node, from, dir, generation, name, thread });
            return true;
        }
        false
    }
    pub(super) fn getattr(&mut self) -> Outcome<()> {
        let (attr, valid) = self.attributes_to_keep()?;
        self.attributes(&attr, valid)
    }
    /// Attributes, and for how long the kernel may cache them: until they change, because a thread
    /// that changes them later has the kernel drop them; not at all while they are being changed.
    fn attributes_to_keep(&self) -> Answer<(Attr, Valid)> {
        let nodes = self.server.nodes();
        let keep = self.server.terms.cache_attributes && nodes.caching(self.nodeid, Instant::now());
        let attr = self.files().getattr(self.ino())?;
        let keep = self.shows(&attr) && keep;
        Ok((attr, wire::valid(keep, self.files().attr_timeout())))
    }
    fn shows(&self, attr: &Attr) -> bool {
        let size = wire::file_size(&self.server.told(attr));
        self.server.nodes().shows(self.nodeid, size, Instant::now())
    }
    fn attributes(&self, attr: &Attr, (attr_valid, attr_valid_nsec): Valid) -> Outcome<()> {
        let attr = wire::attr(&self.server.told(attr));
        self.value(&AttrOut { attr_valid, attr_valid_nsec, attr, ..AttrOut::default() })
    }
    pub(super) fn statx(&mut self) -> Outcome<()> {
        let _wanted: StatxIn = self.body.take()?;
        let (attr, (attr_valid, attr_valid_nsec)) = self.attributes_to_keep()?;
        let stat = wire::statx(&self.server.told(&attr));
        self.value(&StatxOut { attr_valid, attr_valid_nsec, stat, ..StatxOut::default() })
    }
    pub(super) fn setattr(&mut self) -> Outcome<()> {
        let set: SetattrIn = self.body.take()?;
        let fh = (set.valid & abi::setattr::FH != 0).then(|| OpenMode::split(set.fh).0);
        let cuts = fh.is_some() && set.valid & abi::setattr::SIZE != 0;
        if cuts && !truncate::is_wanted(self.cred.pid, set.size) {
            // The kernel does not look at the answer; io_uring's own ftruncate hears it.
            return Err(Errno::OPNOTSUPP.into());
        }
        let attr = self.files().setattr(self.ino(), &wire::set_attr(&set), fh)?;
        self.shows(&attr);
        // The kernel takes these over whatever it has been told to drop meanwhile: not to be kept.
        self.attributes(&attr, (0, 0))
    }
    pub(super) fn readlink(&mut self) -> Outcome<()> {
        let target = self.files().readlink(self.ino())?;
        self.reply.bytes(&target);
        Ok(())
    }
    pub(super) fn symlink(&mut self) -> Outcome<()> {
        let (name, target) = (self.body.name()?, self.body.name()?);
        let stamp = self.stamp();
        self.made(stamp, self.files().symlink(self.ino(), name, target, &self.cred))
    }
    pub(super) fn mknod(&mut self) -> Outcome<()> {
        let how: MknodIn = self.body.take()?;
        let name = self.body.name()?;
        let (stamp, cred, rdev) = (self.stamp(), self.cred(how.umask), u64::from(how.rdev));
        self.made(stamp, self.files().mknod(self.ino(), name, how.mode, rdev, &cred))
    }
    pub(super) fn mkdir(&mut self) -> Outcome<()> {
        let how: MkdirIn = self.body.take()?;
        let name = self.body.name()?;
        let (stamp, cred) = (self.stamp(), self.cred(how.umask));
        let made = self.files().mkdir(self.ino(), name, how.mode, &cred)?;
        self.server.nodes().placed(self.server.node(made.ino), self.nodeid);
        self.made(stamp, Ok(made))
    }
    pub(super) fn unlink(&mut self) -> Outcome<()> {
        let name = self.body.name()?;
        self.done(self.files().unlink(self.ino(), name))
    }
    pub(super) fn rmdir(&mut self) -> Outcome<()> {
        let name = self.body.name()?;
        self.done(self.files().rmdir(self.ino(), name))
    }
    pub(super) fn rename(&mut self) -> Outcome<()> {
        let to: RenameIn = self.body.take()?;
        self.rename_to(to.newdir, 0)
    }
    pub(super) fn rename2(&mut self) -> Outcome<()> {
        let to: Rename2In = self.body.take()?;
        self.rename_to(to.newdir, to.flags)
    }
    fn rename_to(&mut self, newdir: u64, flags: u32) -> Outcome<()> {
        let (name, new_name) = (self.body.name()?, self.body.name()?);
        self.means(newdir);
        let to = (self.server.ino(newdir), new_name);
        self.done(self.files().rename((self.ino(), name), to, flags))
    }
    pub(super) fn link(&mut self) -> Outcome<()> {
        let old: LinkIn = self.body.take()?;
        let name = self.body.name()?;
        let stamp = self.stamp();
        self.means(old.oldnodeid);
        let attr = self.files().link(self.server.ino(old.oldnodeid), self.ino(), name)?;
        // The kernel has the inode and takes these attributes over without ordering them.
        self.entry(&attr, stamp, Keep::No);
        Ok(())
    }

    pub(super) fn create(&mut self) -> Outcome<()> {
        let how: CreateIn = self.body.take()?;
        let name = self.body.name()?;
        let (stamp, cred) = (self.stamp(), self.cred(how.umask));
        let flags = how.flags.cast_signed();
        let made = self.files().create(self.ino(), name, how.mode, flags, &cred)?;
        self.opened_entry(made, how.flags, stamp);
        Ok(())
    }
    pub(super) fn tmpfile(&mut self) -> Outcome<()> {
        let how: CreateIn = self.body.take()?;
        let (stamp, cred) = (self.stamp(), self.cred(how.umask));
        let made = self.files().tmpfile(self.ino(), how.mode, how.flags.cast_signed(), &cred)?;
        self.opened_entry(made, how.flags, stamp);
        Ok(())
    }
    fn opened_entry(&self, (attr, fh): (Attr, Fh), flags: u32, stamp: Stamp) {
        let entry = self.server.entry(&attr, stamp, self.keep());
        let mode = OpenMode::of(flags, self.server.may_cache(entry.nodeid));
        self.server.nodes().opened(entry.nodeid, mode.cached);
        let open_flags = mode.open_flags(self.server.terms.keep_pages);
        let open = OpenOut { fh: mode.number(fh), open_flags, ..OpenOut::default() };
        if !self.reply.parts(entry.as_bytes(), open.as_bytes()) {
            self.server.nodes().closed(entry.nodeid, mode.cached);
            let _ = self.files().release(fh);
            self.server.forgot(entry.nodeid, 1);
        }
    }

    /// A directory that is open outlives its removal, as a file does.
    pub(super) fn opendir(&mut self) -> Outcome<()> {
        let fh = self.files().open(self.ino(), 0)?;
        if !self.reply.value(&OpenOut { fh, ..OpenOut::default() }) {
            let _ = self.files().release(fh);
        }
        Ok(())
    }
    pub(super) fn releasedir(&mut self) -> Outcome<()> {
        let what: ReleaseIn = self.body.take()?;
        self.done(self.files().release(what.fh))
    }
    pub(super) fn readdir(&mut self, plus: bool) -> Outcome<()> {
        let from: ReadIn = self.body.take()?;
        let room = usize::try_from(from.size).unwrap_or(LISTING_MAX).min(LISTING_MAX);
        let stamp = self.stamp();
        let mut out = std::mem::take(self.scratch);
        out.clear();
        let (server, dir) = (self.server, self.nodeid);
        let mut handed_out = Vec::new();
        let listed = server.files.readdir(self.ino(), from.offset, plus, &mut |entry| {
            if out.len() + record_len(plus, entry.name.len()) > room {
                return true;
            }
            if plus {
                let attr = entry.attr.filter(|attr| server.may_be_listed(attr));
                let head = attr.map_or_else(EntryOut::default, |attr| {
                    let head = server.entry(&attr, stamp, server.keep_listed());
                    if is_dir(&attr) {
                        // The kernel may not take it: if it is elsewhere, that is left to a lookup.
                        server.nodes().place(head.nodeid, dir);
                    }
                    handed_out.push(head.nodeid);
                    head
                });
                out.extend_from_slice(head.as_bytes());
            }
            put_entry(&mut out, &entry);
            false
        });
        let taken = listed.is_ok() && self.reply.bytes(&out);
        if !taken {
            for node in handed_out {
                server.forgot(node, 1);
            }
        }
        *self.scratch = out;
        Ok(listed?)
    }

    pub(super) fn getxattr(&mut self) -> Outcome<()> {
        let wanted: GetxattrIn = self.body.take()?;
        let name = self.body.name()?;
        let value = self.files().getxattr(self.ino(), name)?;
        self.sized(wanted.size, &value)
    }
    pub(super) fn listxattr(&mut self) -> Outcome<()> {
        let wanted: GetxattrIn = self.body.take()?;
        let names = self.files().listxattr(self.ino())?;
        self.sized(wanted.size, &names)
    }
    /// The bytes if they fit; their number if that is all that is asked for.
    fn sized(&self, room: u32, bytes: &[u8]) -> Outcome<()> {
        let size = u32::try_from(bytes.len()).map_err(|_| Errno::TOOBIG)?;
        if room == 0 {
            return self.value(&GetxattrOut { size, padding: 0 });
        }
        if size > room {
            return Err(Errno::RANGE.into());
        }
        self.reply.bytes(bytes);
        Ok(())
    }
    pub(super) fn setxattr(&mut self) -> Outcome<()> {
        let how: SetxattrIn = self.body.take()?;
        let mut flags = how.flags.cast_signed() & !KILL_GROUP;
        if self.server.terms.flags & abi::init::SETXATTR_EXT != 0 {
            let more: SetxattrMoreIn = self.body.take()?;
            if more.setxattr_flags & abi::SETXATTR_KILL_SGID != 0 {
                flags |= KILL_GROUP;
            }
        }
        let name = self.body.name()?;
        let value = self.body.bytes(how.size)?;
        self.done(self.files().setxattr(self.ino(), name, value, flags))
    }
    pub(super) fn removexattr(&mut self) -> Outcome<()> {
        let name = self.body.name()?;
        self.done(self.files().removexattr(self.ino(), name))
    }
}

fn is_dir(attr: &Attr) -> bool {
    attr.mode & libc::S_IFMT == libc::S_IFDIR
}

/// Bytes that an entry takes.
fn record_len(plus: bool, name: usize) -> usize {
    let head = if plus { size_of::<EntryOut>() } else { 0 };
    (head + size_of::<Dirent>() + name).next_multiple_of(ENTRY_ALIGN)
}

fn put_entry(out: &mut Vec<u8>, entry: &DirEntry<'_>) {
    let head = Dirent {
        ino: entry.ino.get(),
        off: entry.next,
        namelen: u32::try_from(entry.name.len()).unwrap_or(u32::MAX),
        kind: entry.kind,
    };
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(entry.name);
    out.resize(out.len().next_multiple_of(ENTRY_ALIGN), 0);
}

const _: () = assert!(size_of::<EntryOut>().is_multiple_of(ENTRY_ALIGN));
