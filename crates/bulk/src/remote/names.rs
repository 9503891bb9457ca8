//! Names, attributes and extended attributes.

use braid_format::InodeNo;
use braid_fs::{Answer, Attr, Cred, DirEntry, Errno, Fh, SetAttr};
use parking_lot::Mutex;

use super::calls::About;
use super::files::{Place, RemoteFile};
use super::{Inode, Remote, caller};
use crate::wire::{Caller, MountRequest, Reply, Request, read_entries};

/// Bytes of a directory that are asked for at a time.
const ENTRIES: usize = 64 << 10;
/// Of open(2): what is done once, and not again when the file is opened again.
const ONCE: u32 = 0o1000 | 0o200 | 0o100;
const S_IFDIR: u32 = 0o040_000;
const S_IFMT: u32 = 0o170_000;

impl Remote {
    /// Who asks, about these inodes.
    pub(super) fn caller(&self, inodes: &[InodeNo]) -> Caller {
        let mut generations = [0; 2];
        for (generation, ino) in generations.iter_mut().zip(inodes) {
            *generation = self.known.generation(*ino);
        }
        caller::current(generations)
    }
    /// Attributes by a request about these inodes.
    ///
    /// # Errors
    /// What the program is to see, here and below.
    pub(super) fn attr_of(&self, inodes: &[InodeNo], request: &Request) -> Answer<Attr> {
        let caller = self.caller(inodes);
        self.attr(About { caller: Some(&caller), ..About::default() }, request)
    }
    /// The same; the kernel gets the inode.
    pub(super) fn entry(&self, inodes: &[InodeNo], request: &Request) -> Answer<Attr> {
        let attr = self.attr_of(inodes, request)?;
        self.known.hand_out(&attr, &*self.kernel);
        Ok(attr)
    }
    /// A request about these inodes that only succeeds.
    pub(super) fn change(&self, inodes: &[InodeNo], request: &Request) -> Answer<()> {
        let caller = self.caller(inodes);
        self.done(About { caller: Some(&caller), ..About::default() }, |_| request.clone())
    }
    /// Bytes about an inode.
    pub(super) fn bytes_of(&self, ino: InodeNo, request: MountRequest) -> Answer<Vec<u8>> {
        self.bytes(&self.caller(&[ino]), &Request::Mount(request))
    }

    pub(super) fn set_attr(&self, ino: InodeNo, set: &SetAttr, fh: Option<Fh>) -> Answer<Attr> {
        if set.size.is_some() {
            self.before_change(ino)?;
        }
        let file = fh.and_then(|fh| self.files.get(fh).ok());
        let files: Vec<&RemoteFile> = file.iter().map(|file| &**file).collect();
        let (caller, set) = (self.caller(&[ino]), *set);
        let about = About { files: &files, caller: Some(&caller), data: &[] };
        let reply = self.reply(about, |handles| {
            let handle = handles.first().copied().unwrap_or(0);
            Request::SetAttr { ino, set, handle }
        })?;
        if set.size.is_some()
            && let Some(file) = file.or_else(|| self.files.of(ino)).filter(|f| f.is_writable())
        {
            self.after_change(&file);
        }
        let Reply::Attr(attr) = reply else { return Err(Errno::IO) };
        Ok(attr)
    }

    pub(super) fn make(
        &self,
        (dir, name): (InodeNo, &[u8]),
        (mode, rdev): (u32, u64),
        cred: &Cred,
    ) -> Answer<Attr> {
        let (name, umask) = (name.to_vec(), cred.umask);
        let request = MountRequest::MakeNode { dir, name, mode, umask, rdev };
        self.entry(&[dir], &Request::Mount(request))
    }
    pub(super) fn make_dir(&self, at: (InodeNo, &[u8]), mode: u32, cred: &Cred) -> Answer<Attr> {
        self.make(at, (mode & !S_IFMT | S_IFDIR, 0), cred)
    }

    pub(super) fn make_link(&self, (dir, name): (InodeNo, &[u8]), target: &[u8]) -> Answer<Attr> {
        let caller = self.caller(&[dir]);
        let about = About { caller: Some(&caller), data: target, files: &[] };
        let name = name.to_vec();
        let attr = self.attr(about, &Request::Mount(MountRequest::SymLink { dir, name }))?;
        self.known.hand_out(&attr, &*self.kernel);
        Ok(attr)
    }

    /// Opens by a request about an inode; what is opened is given to `kernel`, or was there.
    pub(super) fn open_by(
        &self,
        ino: InodeNo,
        request: MountRequest,
        (flags, is_new): (u32, bool),
    ) -> Answer<(Attr, Fh)> {
        let caller = self.caller(&[ino]);
        let about = About { caller: Some(&caller), ..About::default() };
        let request = Request::Mount(request);
        let taken = self.ask(
            about,
            |_| request.clone(),
            |reply, _| match reply {
                Reply::Opened { handle, attr } => Ok((handle, attr)),
                _ => Err(Errno::IO),
            },
        );
        let ((handle, attr), session) = taken?;
        if is_new {
            self.known.hand_out(&attr, &*self.kernel);
        }
        let inode = Inode { ino: attr.ino, generation: attr.generation };
        let caller = Caller { generations: [attr.generation, 0], ..caller };
        let place = Mutex::new(Place { session, handle, lost: None });
        let file = RemoteFile { inode, flags: flags & !ONCE, caller, place };
        Ok((attr, self.files.insert(file)))
    }

    pub(super) fn open_inode(&self, ino: InodeNo, flags: u32) -> Answer<Fh> {
        let truncates = flags & 0o1000 != 0;
        if truncates {
            self.before_change(ino)?;
        }
        let request = MountRequest::OpenAs { ino, flags, again: false };
        let (_, fh) = self.open_by(ino, request, (flags, false))?;
        if truncates && let Ok(file) = self.files.get(fh) {
            self.after_change(&file);
        }
        Ok(fh)
    }

    pub(super) fn close_file(&self, fh: Fh) -> Answer<()> {
        let file = self.files.remove(fh)?;
        if !self.close_later(&file) {
            self.close(&file);
        }
        Ok(())
    }

    pub(super) fn list(
        &self,
        dir: InodeNo,
        mut cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Answer<()> {
        let caller = self.caller(&[dir]);
        // Of whatever program: one that is closed meanwhile is no reason to fail.
        let mut others = self.files.all_of(dir).into_iter();
        let mut open = others.next();
        let length = u32::try_from(self.chunk.min(ENTRIES)).unwrap_or(0);
        loop {
            let files: Vec<&RemoteFile> = open.iter().map(|file| &**file).collect();
            let about = About { files: &files, caller: Some(&caller), data: &[] };
            let request = |handles: &[u64]| {
                let handle = handles.first().copied().unwrap_or(0);
                Request::ReadDir { dir, cookie, length, handle }
            };
            let taken = self.ask(about, request, |_, data| read_entries(data).ok_or(Errno::IO));
            if open.is_some() && matches!(taken, Err(Errno::BADF)) {
                open = others.next();
                continue;
            }
            let (entries, _) = taken?;
            let Some(last) = entries.last().map(|entry| entry.next) else { return Ok(()) };
            for entry in &entries {
                let (ino, next, kind) = (entry.ino, entry.next, entry.kind);
                if emit(DirEntry { ino, next, kind, name: &entry.name, attr: None }) {
                    return Ok(());
                }
            }
            cookie = last;
        }
    }

    pub(super) fn set_xattr(
        &self,
        ino: InodeNo,
        (name, value): (&[u8], &[u8]),
        flags: i32,
    ) -> Answer<()> {
        let caller = self.caller(&[ino]);
        let about = About { caller: Some(&caller), data: value, files: &[] };
        let flags = flags.cast_unsigned();
        self.done(about, |_| {
            Request::Mount(MountRequest::SetXattr { ino, name: name.to_vec(), flags })
        })
    }
}
