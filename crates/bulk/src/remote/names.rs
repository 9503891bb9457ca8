//! Names, attributes and extended attributes.

use std::sync::atomic::Ordering;

use braid_format::InodeNo;
use braid_fs::mode::{S_IFDIR, S_IFMT};
use braid_fs::{Answer, Attr, Cred, DirEntry, Errno, Fh, SetAttr};

use super::calls::About;
use super::files::RemoteFile;
use super::inode::Inode;
use super::recent_names::Remembered;
use super::{Remote, caller};
use crate::wire::{
    Caller, MountRequest, RENAME_EXCHANGE, Reply, Request, read_entries, read_listed,
};

/// Bytes of a directory that are asked for at a time.
const ENTRIES: usize = 64 << 10;
/// Of open(2): what is done once, and not again when the file is opened again.
const ONCE: u32 = 0o1000 | 0o200 | 0o100;

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
        let attr = self.attr(About { caller: Some(&caller), ..About::default() }, request)?;
        self.leases.keep_attr(&attr);
        Ok(attr)
    }
    /// An inode by its number, as the kernel knows it.
    fn inode(&self, ino: InodeNo) -> (InodeNo, u64) {
        (ino, self.known.generation(ino))
    }
    /// An inode's attributes, kept or asked for.
    pub(super) fn attr_now(&self, ino: InodeNo) -> Answer<Attr> {
        match self.leases.attr(self.inode(ino)) {
            Some(attr) => Ok(attr),
            None => self.attr_of(&[ino], &Request::GetAttr { ino }),
        }
    }
    /// What a name leads to; the kernel gets the inode.
    pub(super) fn look_up(&self, dir: InodeNo, name: &[u8]) -> Answer<Attr> {
        let at = self.inode(dir);
        let found = self.leases.name(at, name).unwrap_or_else(|| {
            let request = Request::Lookup { dir, name: name.to_vec() };
            let found = self.attr_of(&[dir], &request);
            match &found {
                Ok(attr) => self.leases.keep_name(at, name, Some(attr.ino)),
                Err(Errno::NOENT) => self.leases.keep_name(at, name, None),
                Err(_) => {}
            }
            found
        });
        match &found {
            Ok(attr) => self.recent_names.note(dir, name, Some(attr)),
            Err(Errno::NOENT) => self.recent_names.note(dir, name, None),
            Err(_) => {}
        }
        let attr = found?;
        self.known.hand_out(&attr, &*self.kernel);
        Ok(attr)
    }
    /// What a name leads to from now on.
    pub(super) fn noted(&self, (dir, name): (InodeNo, &[u8]), made: Answer<Attr>) -> Answer<Attr> {
        made.inspect(|attr| self.recent_names.note(dir, name, Some(attr)))
    }
    /// Removes a name, or gives an inode another one: `from` leads to something else then, and `to` to the inode.
    ///
    /// A server that was started anew may have done it and not said so. It is repeated only if both names lead still to
    /// what they led to before, and nobody can have made `from` again: what others have made there since stays. If
    /// that cannot be known, the program gets EIO.
    pub(super) fn take_name(
        &self,
        (inodes, request): (&[InodeNo], &Request),
        from: (InodeNo, &[u8]),
        to: Option<(InodeNo, &[u8])>,
    ) -> Answer<()> {
        let names = &self.recent_names;
        let meant = names.of(from).led();
        let before = to.map(|to| names.of(to));
        let now = |(dir, name): (InodeNo, &[u8])| {
            let request = Request::Lookup { dir, name: name.to_vec() };
            match self.attr_of(&[dir], &request) {
                Ok(attr) => Ok(Some(attr)),
                Err(Errno::NOENT) => Ok(None),
                Err(errno) => Err(errno),
            }
        };
        let unknown = || {
            let name = String::from_utf8_lossy(from.1);
            tracing::error!(%name, "the server was started anew: whether a name was removed is not known");
            Errno::IO
        };
        let is_done = || {
            let meant = meant.ok_or_else(unknown)?;
            let target = to.map(now).transpose()?;
            match now(from)?.filter(|attr| meant.is_same(attr)) {
                Some(attr) => {
                    let targets = before.zip(target);
                    let is_as_before =
                        targets.is_none_or(|(before, now)| before.is_as_before(now.as_ref()));
                    let may_repeat = is_as_before && !meant.may_be_made_again(&attr);
                    if may_repeat { Ok(None) } else { Err(unknown()) }
                }
                None => match target {
                    Some(target) if !target.is_some_and(|attr| meant.is_same(&attr)) => {
                        Err(Errno::NOENT)
                    }
                    _ => Ok(Some(())),
                },
            }
        };
        let caller = self.caller(inodes);
        let about = About { caller: Some(&caller), ..About::default() };
        self.ask_unless(about, |_| request.clone(), |_, _| Ok(()), is_done)?;
        let exchanges = matches!(
            request,
            Request::Mount(MountRequest::RenameAs { flags, .. }) if flags & RENAME_EXCHANGE != 0
        );
        names.put(from, before.and_then(Remembered::led).filter(|_| exchanges));
        to.inspect(|to| names.put(*to, meant));
        Ok(())
    }
    /// An extended attribute, or, under an empty name, the list of them: kept or asked for.
    pub(super) fn get_xattr(
        &self,
        ino: InodeNo,
        name: &[u8],
        request: MountRequest,
    ) -> Answer<Vec<u8>> {
        let inode = self.inode(ino);
        if let Some(found) = self.leases.xattr(inode, name) {
            return found;
        }
        let found = self.bytes_of(ino, request);
        self.leases.keep_xattr(inode, name, &found);
        found
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
        // What is written once more later on would change size and times.
        if set.size.is_some() || set.mtime.is_some() {
            self.before_change(ino)?;
        }
        let file = fh.and_then(|fh| self.files.get(fh).ok());
        let files: Vec<&RemoteFile> = file.iter().map(|file| &**file).collect();
        let (caller, set) = (self.caller(&[ino]), *set);
        let about = About { files: &files, caller: Some(&caller), ..About::default() };
        let reply = self.reply(about, |handles| {
            let handle = handles.first().copied().unwrap_or(0);
            Request::SetAttr { ino, set, handle }
        })?;
        let Reply::Attr(attr) = reply else { return Err(Errno::IO) };
        // Not to be kept: the change was under way when it was asked for.
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
        let about = About { caller: Some(&caller), data: target, ..About::default() };
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
        self.leases.keep_attr(&attr);
        if is_new {
            self.known.hand_out(&attr, &*self.kernel);
        }
        let inode = Inode { ino: attr.ino, generation: attr.generation };
        let caller = Caller { generations: [attr.generation, 0], ..caller };
        let file = RemoteFile::new(inode, flags & !ONCE, caller, (session, handle));
        file.told.store(self.pending.lock().losses.at_open(attr.ino), Ordering::Relaxed);
        Ok((attr, self.files.insert(file)))
    }

    pub(super) fn open_inode(&self, ino: InodeNo, flags: u32) -> Answer<Fh> {
        if flags & 0o1000 != 0 {
            self.before_change(ino)?;
        }
        let request = MountRequest::OpenAs { ino, flags, again: false };
        self.open_by(ino, request, (flags, false)).map(|(_, fh)| fh)
    }

    pub(super) fn close_file(&self, fh: Fh) -> Answer<()> {
        let file = self.files.remove(fh)?;
        if !self.close_later(&file) {
            self.close(&file);
        }
        if self.files.all_of(file.inode.ino).is_empty() {
            self.pending.lock().losses.closed(file.inode.ino);
        }
        Ok(())
    }

    pub(super) fn list(
        &self,
        dir: InodeNo,
        (mut cookie, plus): (u64, bool),
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Answer<()> {
        let (caller, at) = (self.caller(&[dir]), self.inode(dir));
        let plus = plus && !self.leases.is_off();
        // Of whatever program: one that is closed meanwhile is no reason to fail.
        let mut others = self.files.all_of(dir).into_iter();
        let mut open = others.next();
        let length = u32::try_from(self.chunk.min(ENTRIES)).unwrap_or(0);
        loop {
            let files: Vec<&RemoteFile> = open.iter().map(|file| &**file).collect();
            let about = About { files: &files, caller: Some(&caller), ..About::default() };
            let request = |handles: &[u64]| {
                let handle = handles.first().copied().unwrap_or(0);
                if plus {
                    Request::Mount(MountRequest::List { dir, cookie, length, handle })
                } else {
                    Request::ReadDir { dir, cookie, length, handle }
                }
            };
            let read = if plus { read_listed } else { read_entries };
            let taken = self.ask(about, request, |_, data| read(data).ok_or(Errno::IO));
            if open.is_some() && matches!(taken, Err(Errno::BADF)) {
                open = others.next();
                continue;
            }
            let (entries, _) = taken?;
            let Some(last) = entries.last().map(|entry| entry.next) else { return Ok(()) };
            for entry in &entries {
                if let Some(attr) = &entry.attr {
                    self.leases.keep_attr(attr);
                    self.leases.keep_name(at, &entry.name, Some(entry.ino));
                    self.recent_names.note(dir, &entry.name, Some(attr));
                }
            }
            for entry in &entries {
                let (ino, next, kind, attr) = (entry.ino, entry.next, entry.kind, entry.attr);
                if let Some(attr) = &attr {
                    self.known.hand_out(attr, &*self.kernel);
                }
                if emit(DirEntry { ino, next, kind, name: &entry.name, attr }) {
                    if attr.is_some() {
                        self.kernel.kept_back(ino);
                        self.known.forget(ino, &*self.kernel);
                    }
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
        let about = About { caller: Some(&caller), data: value, ..About::default() };
        let flags = flags.cast_unsigned();
        self.done(about, |_| {
            Request::Mount(MountRequest::SetXattr { ino, name: name.to_vec(), flags })
        })
    }
}
