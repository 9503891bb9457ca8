//! For whom a request is done, and what he may do.
//!
//! The caller's user and groups are what the client says. On a mount the client's kernel has checked permissions
//! already; here they are checked again, so that a client that an attacker controls can do no more than the users
//! whose names it may use (`Squash`).

use braid_format::InodeNo;
use braid_fs::mode::{S_ISGID, S_ISVTX};
use braid_fs::{ACCESS_LIST, Attr, Cred, Errno, FileSystem, KeptNumbers, Person};

use super::options::{ServerOptions, Squash};
use super::outcome::seen;
use super::references::Pins;
use super::served::Served;
use crate::wire::{Caller, SessionId, Status};

/// Permissions that are asked for.
pub const READ: u32 = 4;
pub const WRITE: u32 = 2;
pub const SEARCH: u32 = 1;

/// For whom a request is done.
#[derive(Debug, Clone)]
pub struct Principal {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// Owner and group of what he makes.
    owner: (u32, u32),
}

impl Principal {
    /// From what the client says. Without a caller it is a copy: by root, for the server's owner.
    pub fn of(options: &ServerOptions, caller: Option<&Caller>) -> Self {
        let is_root = caller.is_none_or(|caller| caller.uid == 0);
        match (options.squash, caller) {
            (Squash::All, _) => Self::plain(options.owner),
            (Squash::Root, _) if is_root => Self::plain(options.owner),
            (_, None) => Self { owner: options.owner, ..Self::plain((0, 0)) },
            (_, Some(Caller { uid, gid, groups, .. })) => {
                // Who is nobody's root is not in root's group by its word alone.
                let is_kept = |group: &u32| options.squash == Squash::None || *group != 0;
                let gid = if is_kept(gid) { *gid } else { options.owner.1 };
                let groups = groups.iter().copied().filter(is_kept).collect();
                Self { groups, ..Self::plain((*uid, gid)) }
            }
        }
    }
    fn plain((uid, gid): (u32, u32)) -> Self {
        Self { uid, gid, groups: Vec::new(), owner: (uid, gid) }
    }
    /// As permissions are checked.
    pub fn person(&self) -> Person<'_> {
        Person { uid: self.uid, gid: self.gid, groups: &self.groups }
    }
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
    /// Owner or root.
    pub fn owns(&self, attr: &Attr) -> bool {
        self.is_root() || self.uid == attr.uid
    }
    /// The user that has his locks.
    pub fn uid(&self) -> u32 {
        self.uid
    }
    /// Who owns what he makes. Of `umask`, which a client says, only permissions count.
    pub fn cred(&self, umask: u32) -> Cred {
        let umask = umask & 0o777;
        Cred { uid: self.owner.0, gid: self.owner.1, umask, ..Cred::default() }
    }
    /// The mode of a file that he makes in a directory: it does not run with rights of a group that he is not in.
    pub fn mode_in(&self, dir: &Attr, mode: u32) -> u32 {
        let group = if dir.mode & S_ISGID != 0 { dir.gid } else { self.owner.1 };
        if self.is_root() || self.person().is_in(group) { mode } else { mode & !S_ISGID }
    }
}

/// The inodes that a request names are looked up, and what its caller may do with them.
pub struct Visit<'a, F: FileSystem> {
    served: &'a Served<F>,
    pins: Pins<'a, F>,
    pub principal: Principal,
    generations: [u64; 2],
    /// Nothing but the root is reached without its generation.
    is_bound: bool,
    visited: usize,
    kept: KeptNumbers,
}

impl<'a, F: FileSystem> Visit<'a, F> {
    pub fn new(served: &'a Served<F>, caller: Option<&Caller>) -> Self {
        let principal = Principal::of(&served.options, caller);
        let generations = caller.map_or([0; 2], |caller| caller.generations);
        let pins = Pins::new(&served.files, &served.references);
        let is_bound = caller.is_some() && !principal.is_root();
        let kept = KeptNumbers::none();
        Self { served, pins, principal, generations, is_bound, visited: 0, kept }
    }

    /// The next inode that the request names.
    ///
    /// # Errors
    /// There is none of that number and generation.
    pub fn inode(&mut self, ino: InodeNo) -> Result<Attr, Status> {
        let attr = seen(self.pins.visit(ino))?;
        let generation = self.generations.get(self.visited).copied().unwrap_or(0);
        self.visited += 1;
        // A number alone can be guessed.
        let is_any = generation == 0 && (!self.is_bound || ino == self.served.files.root());
        if !is_any && generation != attr.generation {
            return Err(Status::of(Errno::STALE));
        }
        // Until the request is carried out it may become another's.
        self.kept.add(ino, attr.generation);
        Ok(attr)
    }
    /// The same; the caller needs `want` of it.
    ///
    /// # Errors
    /// The same; he may not.
    pub fn inode_for(&mut self, ino: InodeNo, want: u32) -> Result<Attr, Status> {
        let attr = self.inode(ino)?;
        self.may(&attr, want).map(|()| attr)
    }
    /// Takes over the reference that came with attributes.
    pub fn note(&mut self, attr: &Attr) {
        self.pins.note(attr);
    }
    /// What a name leads to.
    ///
    /// # Errors
    /// As the file system says.
    pub fn lookup(&mut self, dir: InodeNo, name: &[u8]) -> Result<Attr, Status> {
        let attr = seen(self.served.files.lookup(dir, name))?;
        self.note(&attr);
        Ok(attr)
    }

    /// What a lookup has found stays until the client has had time to open it.
    pub fn keep(&mut self, ino: InodeNo, session: SessionId, name: (InodeNo, &[u8])) {
        if let Some(ino) = self.pins.hand_over(ino) {
            self.served.release(self.served.references.looked_up().keep(ino, session, name));
        }
    }

    /// Whether the caller may do all of `want`.
    ///
    /// # Errors
    /// He may not.
    pub fn may(&self, attr: &Attr, want: u32) -> Result<(), Status> {
        let person = self.principal.person();
        let needs_list = !self.principal.owns(attr);
        let list = needs_list.then(|| self.served.files.getxattr(attr.ino, ACCESS_LIST));
        let list = match list {
            None | Some(Err(Errno::NODATA | Errno::OPNOTSUPP)) => None,
            Some(list) => Some(seen(list)?),
        };
        let may = person.may(attr, list.as_deref(), want);
        if may { Ok(()) } else { Err(Status::of(Errno::ACCESS)) }
    }

    /// Whether the caller may take a name out of a directory: what it leads to.
    ///
    /// # Errors
    /// He may not; there is no such name.
    pub fn may_remove(&mut self, dir: &Attr, name: &[u8]) -> Result<(), Status> {
        self.may(dir, WRITE | SEARCH)?;
        if dir.mode & S_ISVTX == 0 || self.principal.owns(dir) {
            return Ok(());
        }
        let found = self.lookup(dir.ino, name)?;
        if self.principal.owns(&found) { Ok(()) } else { Err(Status::of(Errno::PERM)) }
    }
}
