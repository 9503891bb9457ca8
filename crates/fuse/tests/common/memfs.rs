//! A file system in memory, to try the transport without devices. It checks what the transport
//! promises (alignment of payloads, size of requests) and can play the other node: change contents
//! behind the kernel's back.

#![allow(clippy::pedantic, clippy::unwrap_used, reason = "for tests")]
#![allow(dead_code, reason = "each user needs a part of it")]

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use braid_format::InodeNo;
use braid_fs::{
    Answer, Attr, Canceller, Cred, DirEntry, EarlyReply, Errno, Fh, FileSystem, KernelCache,
    LockAnswer, Plock, PlockKind, SetAttr, StatFs, Time, TimeSet, Write, WriteFlags,
};
use braid_fuse::KernelLink;
use parking_lot::{Condvar, Mutex, RwLock};

/// The root's number: not 1, so that its translation is tried.
pub const ROOT: u64 = 500;
const FIRST_COOKIE: u64 = 3;
const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

#[derive(Debug, Default)]
struct Dir {
    parent: u64,
    next: u64,
    by_name: HashMap<Vec<u8>, u64>,
    by_cookie: BTreeMap<u64, (Vec<u8>, u64)>,
}

impl Dir {
    fn find(&self, name: &[u8]) -> Option<u64> {
        let cookie = self.by_name.get(name)?;
        self.by_cookie.get(cookie).map(|(_, ino)| *ino)
    }
    fn add(&mut self, name: &[u8], ino: u64) {
        let cookie = self.next.max(FIRST_COOKIE);
        self.next = cookie + 1;
        self.by_name.insert(name.to_vec(), cookie);
        self.by_cookie.insert(cookie, (name.to_vec(), ino));
    }
    fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let cookie = self.by_name.remove(name)?;
        self.by_cookie.remove(&cookie).map(|(_, ino)| ino)
    }
}

#[derive(Debug)]
enum Body {
    File(Vec<u8>),
    Dir(Dir),
    Link(Vec<u8>),
    Special,
}

#[derive(Debug)]
struct State {
    attr: Attr,
    body: Body,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    opens: u32,
}

impl State {
    fn dir(&self) -> Answer<&Dir> {
        if let Body::Dir(dir) = &self.body { Ok(dir) } else { Err(Errno::NOTDIR) }
    }
    fn dir_mut(&mut self) -> Answer<&mut Dir> {
        if let Body::Dir(dir) = &mut self.body { Ok(dir) } else { Err(Errno::NOTDIR) }
    }
    fn file_mut(&mut self) -> Answer<&mut Vec<u8>> {
        if let Body::File(bytes) = &mut self.body { Ok(bytes) } else { Err(Errno::INVAL) }
    }
    fn attr(&self) -> Attr {
        let size = match &self.body {
            Body::File(bytes) | Body::Link(bytes) => bytes.len() as u64,
            Body::Dir(dir) => dir.by_name.len() as u64,
            Body::Special => 0,
        };
        Attr { size, blocks512: size.div_ceil(512), ..self.attr }
    }
}

type Node = Arc<Mutex<State>>;

#[derive(Debug, Clone)]
struct Handle {
    ino: u64,
    node: Node,
    flags: i32,
}

#[derive(Debug, Default)]
struct Locks {
    fcntl: HashMap<u64, Vec<Plock>>,
    flock: HashMap<u64, Vec<Plock>>,
}

/// What it saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Reads for pages.
    pub fills: AtomicUsize,
    /// Reads by programs.
    pub direct_reads: AtomicUsize,
    /// Writes by programs.
    pub writes: AtomicUsize,
    /// Writes of pages.
    pub page_writes: AtomicUsize,
    /// Whole-page writes whose memory was not page aligned.
    pub misaligned: AtomicUsize,
    /// Most bytes in one write.
    pub largest_write: AtomicUsize,
    /// Most bytes in one read.
    pub largest_read: AtomicUsize,
    /// Most reads at one time.
    pub reads_at_once: AtomicUsize,
    pub lookups: AtomicUsize,
    pub getattrs: AtomicUsize,
    pub listings: AtomicUsize,
    pub releases: AtomicUsize,
    reading: AtomicUsize,
}

/// The file system.
#[derive(Debug)]
pub struct MemFs {
    nodes: RwLock<HashMap<u64, Node>>,
    handles: RwLock<HashMap<Fh, Handle>>,
    next: AtomicU64,
    locks: Mutex<Locks>,
    waits: Mutex<Vec<Canceller>>,
    lock_freed: Condvar,
    /// What it saw.
    pub seen: Seen,
    /// Every read takes this long, as if from a disk.
    pub read_delay: Mutex<Duration>,
    /// Between finding a name and saying so.
    pub lookup_delay: Mutex<Duration>,
    /// Between the arrival of a write and its being done.
    pub write_delay: Mutex<Duration>,
    /// Reads wait while this is set.
    pub hold_reads: AtomicBool,
    /// Writes wait while this is set.
    pub hold_writes: AtomicBool,
    /// Hears of inodes that are handed out.
    pub link: OnceLock<Arc<KernelLink>>,
}

fn now() -> Time {
    let t = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Time { sec: t.as_secs() as i64, nsec: t.subsec_nanos() }
}

impl MemFs {
    pub fn new() -> Arc<Self> {
        let fs = Self {
            nodes: RwLock::default(),
            handles: RwLock::default(),
            next: AtomicU64::new(ROOT + 1),
            locks: Mutex::default(),
            waits: Mutex::default(),
            lock_freed: Condvar::new(),
            seen: Seen::default(),
            read_delay: Mutex::new(Duration::ZERO),
            lookup_delay: Mutex::new(Duration::ZERO),
            write_delay: Mutex::new(Duration::ZERO),
            hold_reads: AtomicBool::new(false),
            hold_writes: AtomicBool::new(false),
            link: OnceLock::new(),
        };
        let root = Dir { parent: ROOT, ..Dir::default() };
        fs.insert(ROOT, S_IFDIR | 0o755, 0, &Cred::default(), Body::Dir(root));
        Arc::new(fs)
    }
    fn insert(&self, ino: u64, mode: u32, rdev: u64, cred: &Cred, body: Body) -> Node {
        let t = now();
        let attr = Attr {
            ino: InodeNo(ino),
            generation: 1,
            size: 0,
            blocks512: 0,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            mode: mode & !(cred.umask & 0o777),
            nlink: if matches!(body, Body::Dir(_)) { 2 } else { 1 },
            uid: cred.uid,
            gid: cred.gid,
            rdev,
            blksize: 4096,
            flags: 0,
        };
        let state = State { attr, body, xattrs: BTreeMap::new(), opens: 0 };
        let node = Arc::new(Mutex::new(state));
        self.nodes.write().insert(ino, Arc::clone(&node));
        node
    }
    fn node(&self, ino: u64) -> Answer<Node> {
        self.nodes.read().get(&ino).cloned().ok_or(Errno::STALE)
    }
    fn handle(&self, fh: Fh) -> Answer<Handle> {
        self.handles.read().get(&fh).cloned().ok_or(Errno::BADF)
    }
    fn open_node(&self, ino: u64, node: Node, flags: i32) -> Fh {
        node.lock().opens += 1;
        let fh = self.next.fetch_add(1, Ordering::Relaxed);
        self.handles.write().insert(fh, Handle { ino, node, flags });
        fh
    }
    fn make(&self, dir: u64, name: &[u8], mode: u32, cred: &Cred, body: Body) -> Answer<Node> {
        let parent = self.node(dir)?;
        let mut parent = parent.lock();
        if parent.dir()?.find(name).is_some() {
            return Err(Errno::EXIST);
        }
        let ino = self.next.fetch_add(1, Ordering::Relaxed);
        let is_dir = matches!(body, Body::Dir(_));
        let node = self.insert(ino, mode, 0, cred, body);
        parent.dir_mut()?.add(name, ino);
        parent.attr.mtime = now();
        parent.attr.nlink += u32::from(is_dir);
        Ok(node)
    }
    fn drop_link(&self, ino: u64) -> Answer<()> {
        let node = self.node(ino)?;
        let mut state = node.lock();
        state.attr.nlink = state.attr.nlink.saturating_sub(1);
        state.attr.ctime = now();
        if state.attr.nlink == 0 && state.opens == 0 {
            self.nodes.write().remove(&ino);
        }
        Ok(())
    }
    /// The number behind a path of one name in the root.
    pub fn ino_of(&self, name: &str) -> u64 {
        self.node(ROOT).unwrap().lock().dir().unwrap().find(name.as_bytes()).unwrap()
    }
    /// Changes contents as another node would; the caller then tells the kernel.
    pub fn write_elsewhere(&self, ino: u64, bytes: &[u8]) {
        *self.node(ino).unwrap().lock().file_mut().unwrap() = bytes.to_vec();
    }
    /// Adds an empty file as another node would.
    pub fn create_elsewhere(&self, name: &str) {
        let body = Body::File(Vec::new());
        self.make(ROOT, name.as_bytes(), S_IFREG | 0o644, &Cred::default(), body).unwrap();
    }
    /// Removes a file as another node would.
    pub fn unlink_elsewhere(&self, name: &str) {
        self.unlink(InodeNo(ROOT), name.as_bytes()).unwrap();
    }
    /// Open files.
    pub fn open_files(&self) -> usize {
        self.handles.read().len()
    }
    /// Waits for locks that have begun.
    pub fn lock_waits(&self) -> usize {
        self.waits.lock().len()
    }
    /// Contents of a file.
    pub fn contents(&self, ino: u64) -> Vec<u8> {
        self.node(ino).unwrap().lock().file_mut().unwrap().clone()
    }

    fn conflict(held: &[Plock], want: &Plock) -> Option<Plock> {
        let clash = |h: &&Plock| {
            h.owner != want.owner
                && h.start <= want.end
                && want.start <= h.end
                && (h.kind == PlockKind::Exclusive || want.kind == PlockKind::Exclusive)
        };
        held.iter().find(clash).copied()
    }
    fn put(held: &mut Vec<Plock>, want: &Plock) {
        let mut kept = Vec::new();
        for h in held.drain(..) {
            if h.owner != want.owner || h.end < want.start || want.end < h.start {
                kept.push(h);
                continue;
            }
            if h.start < want.start {
                kept.push(Plock { end: want.start - 1, ..h });
            }
            if h.end > want.end {
                kept.push(Plock { start: want.end + 1, ..h });
            }
        }
        if want.kind != PlockKind::Unlock {
            kept.push(*want);
        }
        *held = kept;
    }
    fn set_lock(
        &self,
        ino: u64,
        want: &Plock,
        wait: Option<&Canceller>,
        whole: bool,
    ) -> Answer<()> {
        let range = Plock { start: 0, end: u64::MAX, ..*want };
        let want = if whole { &range } else { want };
        let mut locks = self.locks.lock();
        loop {
            let table = if whole { &mut locks.flock } else { &mut locks.fcntl };
            let held = table.entry(ino).or_default();
            if want.kind == PlockKind::Unlock || Self::conflict(held, want).is_none() {
                Self::put(held, want);
                self.lock_freed.notify_all();
                return Ok(());
            }
            let Some(canceller) = wait else { return Err(Errno::AGAIN) };
            if canceller.is_cancelled() {
                return Err(Errno::INTR);
            }
            self.lock_freed.wait_for(&mut locks, Duration::from_millis(5));
        }
    }
    fn set_times(attr: &mut Attr, set: &SetAttr) {
        let at = |t: TimeSet| match t {
            TimeSet::Now => now(),
            TimeSet::At(t) => t,
        };
        attr.atime = set.atime.map_or(attr.atime, at);
        attr.mtime = set.mtime.map_or(attr.mtime, at);
        attr.ctime = now();
    }
}

/// What is mounted.
#[derive(Debug, Clone)]
pub struct Shared(pub Arc<MemFs>);

impl std::ops::Deref for Shared {
    type Target = MemFs;
    fn deref(&self) -> &MemFs {
        &self.0
    }
}

impl FileSystem for Shared {
    fn root(&self) -> InodeNo {
        self.0.root()
    }
    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Answer<Attr> {
        self.0.lookup(dir, name)
    }
    fn lookup_number(&self, ino: InodeNo) -> Answer<Attr> {
        Ok(self.out(self.getattr(ino)?))
    }
    fn forget(&self, _ino: InodeNo) -> Answer<()> {
        Ok(())
    }
    fn getattr(&self, ino: InodeNo) -> Answer<Attr> {
        self.seen.getattrs.fetch_add(1, Ordering::Relaxed);
        Ok(self.node(ino.get())?.lock().attr())
    }
    fn setattr(&self, ino: InodeNo, set: &SetAttr, _fh: Option<Fh>) -> Answer<Attr> {
        let node = self.node(ino.get())?;
        let mut state = node.lock();
        if let Some(size) = set.size {
            state.file_mut()?.resize(size as usize, 0);
            state.attr.mtime = now();
        }
        let attr = &mut state.attr;
        attr.mode = set.mode.map_or(attr.mode, |m| attr.mode & S_IFMT | m & !S_IFMT);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        MemFs::set_times(attr, set);
        Ok(state.attr())
    }
    fn mknod(&self, dir: InodeNo, name: &[u8], mode: u32, rdev: u64, cred: &Cred) -> Answer<Attr> {
        let body = if mode & S_IFMT == S_IFREG { Body::File(Vec::new()) } else { Body::Special };
        let node = self.make(dir.get(), name, mode, cred, body)?;
        let mut state = node.lock();
        state.attr.rdev = rdev;
        Ok(self.out(state.attr()))
    }
    fn mkdir(&self, dir: InodeNo, name: &[u8], mode: u32, cred: &Cred) -> Answer<Attr> {
        let body = Body::Dir(Dir { parent: dir.get(), ..Dir::default() });
        let node = self.make(dir.get(), name, S_IFDIR | mode, cred, body)?;
        let attr = node.lock().attr();
        Ok(self.out(attr))
    }
    fn symlink(&self, dir: InodeNo, name: &[u8], target: &[u8], cred: &Cred) -> Answer<Attr> {
        let body = Body::Link(target.to_vec());
        let node = self.make(dir.get(), name, S_IFLNK | 0o777, cred, body)?;
        let attr = node.lock().attr();
        Ok(self.out(attr))
    }
    fn readlink(&self, ino: InodeNo) -> Answer<Vec<u8>> {
        match &self.node(ino.get())?.lock().body {
            Body::Link(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL),
        }
    }
    fn link(&self, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Answer<Attr> {
        let node = self.node(ino.get())?;
        let parent = self.node(dir.get())?;
        let mut parent = parent.lock();
        if parent.dir()?.find(name).is_some() {
            return Err(Errno::EXIST);
        }
        parent.dir_mut()?.add(name, ino.get());
        let mut state = node.lock();
        state.attr.nlink += 1;
        Ok(self.out(state.attr()))
    }
    fn unlink(&self, dir: InodeNo, name: &[u8]) -> Answer<()> {
        self.0.unlink(dir, name)
    }
    fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Answer<()> {
        let parent = self.node(dir.get())?;
        let mut parent = parent.lock();
        let ino = parent.dir()?.find(name).ok_or(Errno::NOENT)?;
        if !self.node(ino)?.lock().dir()?.by_name.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        parent.dir_mut()?.remove(name);
        parent.attr.nlink -= 1;
        self.nodes.write().remove(&ino);
        Ok(())
    }
    fn rename(&self, from: (InodeNo, &[u8]), to: (InodeNo, &[u8]), flags: u32) -> Answer<()> {
        let old = self.node(from.0.get())?;
        let new = self.node(to.0.get())?;
        let ino = old.lock().dir()?.find(from.1).ok_or(Errno::NOENT)?;
        let there = new.lock().dir()?.find(to.1);
        match (flags, there) {
            (0, there) => {
                old.lock().dir_mut()?.remove(from.1);
                new.lock().dir_mut()?.remove(to.1);
                new.lock().dir_mut()?.add(to.1, ino);
                if let Some(gone) = there.filter(|gone| *gone != ino) {
                    self.drop_link(gone)?;
                }
            }
            (1, None) => {
                old.lock().dir_mut()?.remove(from.1);
                new.lock().dir_mut()?.add(to.1, ino);
            }
            (1, Some(_)) => return Err(Errno::EXIST),
            (2, Some(other)) => {
                old.lock().dir_mut()?.remove(from.1);
                old.lock().dir_mut()?.add(from.1, other);
                new.lock().dir_mut()?.remove(to.1);
                new.lock().dir_mut()?.add(to.1, ino);
            }
            _ => return Err(Errno::INVAL),
        }
        if let Body::Dir(dir) = &mut self.node(ino)?.lock().body {
            dir.parent = to.0.get();
        }
        Ok(())
    }
    fn readdir(
        &self,
        ino: InodeNo,
        cookie: u64,
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Answer<()> {
        self.seen.listings.fetch_add(1, Ordering::Relaxed);
        let node = self.node(ino.get())?;
        let state = node.lock();
        let dir = state.dir()?;
        let dots = [(1, &b"."[..], ino.get()), (2, b"..", dir.parent)];
        for (next, name, number) in dots {
            let entry =
                DirEntry { ino: InodeNo(number), next, kind: S_IFDIR >> 12, name, attr: None };
            if cookie < next && emit(entry) {
                return Ok(());
            }
        }
        let listed = dir.by_cookie.range(cookie.max(2) + 1..).try_for_each(|(next, (name, n))| {
            let Ok(node) = self.node(*n) else { return ControlFlow::Continue(()) };
            let attr = node.lock().attr();
            let entry = DirEntry {
                ino: InodeNo(*n),
                next: *next,
                kind: attr.mode >> 12 & 0xf,
                name,
                attr: plus.then_some(attr),
            };
            if plus {
                self.out(attr);
            }
            if emit(entry) {
                if plus && let Some(link) = self.link.get() {
                    link.kept_back(InodeNo(*n));
                }
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        let _ = listed;
        Ok(())
    }
    fn create(
        &self,
        dir: InodeNo,
        name: &[u8],
        mode: u32,
        flags: i32,
        cred: &Cred,
    ) -> Answer<(Attr, Fh)> {
        let body = Body::File(Vec::new());
        let node = self.make(dir.get(), name, S_IFREG | mode, cred, body)?;
        let attr = node.lock().attr();
        Ok((self.out(attr), self.open_node(attr.ino.get(), node, flags)))
    }
    fn tmpfile(&self, _dir: InodeNo, mode: u32, flags: i32, cred: &Cred) -> Answer<(Attr, Fh)> {
        let ino = self.next.fetch_add(1, Ordering::Relaxed);
        let node = self.insert(ino, S_IFREG | mode, 0, cred, Body::File(Vec::new()));
        node.lock().attr.nlink = 0;
        let attr = node.lock().attr();
        Ok((self.out(attr), self.open_node(ino, node, flags)))
    }
    fn open(&self, ino: InodeNo, flags: i32) -> Answer<Fh> {
        let node = self.node(ino.get())?;
        if flags & 0o1000 != 0 && flags & 3 != 0 {
            node.lock().file_mut()?.clear();
        }
        Ok(self.open_node(ino.get(), node, flags))
    }
    fn release(&self, fh: Fh) -> Answer<()> {
        self.seen.releases.fetch_add(1, Ordering::Relaxed);
        let handle = self.handles.write().remove(&fh).ok_or(Errno::BADF)?;
        let mut state = handle.node.lock();
        state.opens -= 1;
        if state.opens == 0 && state.attr.nlink == 0 {
            self.nodes.write().remove(&handle.ino);
        }
        Ok(())
    }
    fn flush(&self, fh: Fh, lock_owner: u64) -> Answer<()> {
        let handle = self.handle(fh)?;
        if let Some(held) = self.locks.lock().fcntl.get_mut(&handle.ino) {
            held.retain(|l| l.owner != lock_owner);
            self.lock_freed.notify_all();
        }
        Ok(())
    }
    fn fsync(&self, fh: Fh, _data_only: bool) -> Answer<()> {
        self.handle(fh).map(|_| ())
    }
    fn fsync_dir(&self, _ino: InodeNo) -> Answer<()> {
        Ok(())
    }
    fn sync(&self) -> Answer<()> {
        Ok(())
    }
    type Hold = ();
    fn read_into(
        &self,
        fh: Fh,
        offset: u64,
        len: u32,
        fill: bool,
        memory: &mut [u8],
    ) -> Answer<(usize, ())> {
        let copy = |bytes: &[u8]| {
            memory[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        };
        Ok((self.read_reply(fh, offset, len, fill, copy)?, ()))
    }
    fn read_reply<R>(
        &self,
        fh: Fh,
        offset: u64,
        len: u32,
        fill: bool,
        reply: impl FnOnce(&[u8]) -> R,
    ) -> Answer<R> {
        let seen = &self.seen;
        let count = if fill { &seen.fills } else { &seen.direct_reads };
        count.fetch_add(1, Ordering::Relaxed);
        seen.largest_read.fetch_max(len as usize, Ordering::Relaxed);
        let at_once = seen.reading.fetch_add(1, Ordering::Relaxed) + 1;
        seen.reads_at_once.fetch_max(at_once, Ordering::Relaxed);
        let delay = *self.read_delay.lock();
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        while self.hold_reads.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let handle = self.handle(fh)?;
        let mut state = handle.node.lock();
        let bytes = state.file_mut()?;
        let from = (offset as usize).min(bytes.len());
        let to = (offset as usize + len as usize).min(bytes.len());
        let result = reply(&bytes[from..to]);
        seen.reading.fetch_sub(1, Ordering::Relaxed);
        Ok(result)
    }
    fn write(&self, fh: Fh, what: Write<'_>, _: &mut dyn EarlyReply) -> Answer<usize> {
        let Write { offset, bytes, flags } = what;
        let seen = &self.seen;
        let count = if flags.from_page_cache { &seen.page_writes } else { &seen.writes };
        count.fetch_add(1, Ordering::Relaxed);
        seen.largest_write.fetch_max(bytes.len(), Ordering::Relaxed);
        if bytes.len().is_multiple_of(4096) && !(bytes.as_ptr() as usize).is_multiple_of(4096) {
            seen.misaligned.fetch_add(1, Ordering::Relaxed);
        }
        let delay = *self.write_delay.lock();
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        while self.hold_writes.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let handle = self.handle(fh)?;
        let mut state = handle.node.lock();
        let contents = state.file_mut()?;
        let at = if flags.append { contents.len() } else { offset as usize };
        let mut end = at + bytes.len();
        if flags.from_page_cache {
            end = end.min(contents.len());
        }
        if end > contents.len() {
            contents.resize(end, 0);
        }
        if at < end {
            contents[at..end].copy_from_slice(&bytes[..end - at]);
        }
        state.attr.mtime = now();
        Ok(bytes.len())
    }
    fn fallocate(
        &self,
        fh: Fh,
        mode: i32,
        offset: u64,
        len: u64,
        _: &mut dyn EarlyReply,
    ) -> Answer<()> {
        let handle = self.handle(fh)?;
        let mut state = handle.node.lock();
        let contents = state.file_mut()?;
        let (from, to) = (offset as usize, (offset + len) as usize);
        match mode {
            0 if to > contents.len() => contents.resize(to, 0),
            0 => {}
            3 => {
                let end = to.min(contents.len());
                contents[from.min(end)..end].fill(0);
            }
            _ => return Err(Errno::OPNOTSUPP),
        }
        Ok(())
    }
    fn lseek(&self, fh: Fh, offset: u64, whence: i32) -> Answer<u64> {
        let handle = self.handle(fh)?;
        let size = handle.node.lock().attr().size;
        match whence {
            _ if offset >= size => Err(Errno::NXIO),
            3 => Ok(offset),
            4 => Ok(size),
            _ => Err(Errno::INVAL),
        }
    }
    fn copy_file_range(
        &self,
        from: (Fh, u64),
        to: (Fh, u64),
        len: u64,
        _: &mut dyn EarlyReply,
    ) -> Answer<u64> {
        let source = self.handle(from.0)?.node;
        let bytes = {
            let mut state = source.lock();
            let all = state.file_mut()?;
            let start = (from.1 as usize).min(all.len());
            let end = (from.1.saturating_add(len) as usize).min(all.len());
            all[start..end].to_vec()
        };
        let what = Write { offset: to.1, bytes: &bytes, flags: WriteFlags::default() };
        self.write(to.0, what, &mut ())?;
        Ok(bytes.len() as u64)
    }
    fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Answer<Vec<u8>> {
        let node = self.node(ino.get())?;
        let state = node.lock();
        state.xattrs.get(name).cloned().ok_or(Errno::NODATA)
    }
    fn setxattr(&self, ino: InodeNo, name: &[u8], value: &[u8], flags: i32) -> Answer<()> {
        let node = self.node(ino.get())?;
        let mut state = node.lock();
        match (flags, state.xattrs.contains_key(name)) {
            (1, true) => return Err(Errno::EXIST),
            (2, false) => return Err(Errno::NODATA),
            _ => {}
        }
        state.xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }
    fn listxattr(&self, ino: InodeNo) -> Answer<Vec<u8>> {
        let node = self.node(ino.get())?;
        let state = node.lock();
        Ok(state.xattrs.keys().flat_map(|k| [k, &b"\0"[..]].concat()).collect())
    }
    fn removexattr(&self, ino: InodeNo, name: &[u8]) -> Answer<()> {
        let node = self.node(ino.get())?;
        let mut state = node.lock();
        state.xattrs.remove(name).map(|_| ()).ok_or(Errno::NODATA)
    }
    fn statfs(&self) -> Answer<StatFs> {
        Ok(StatFs {
            block_size: 4096,
            blocks: 1 << 20,
            free: 1 << 19,
            available: 1 << 19,
            files: 1 << 16,
            files_free: 1 << 15,
            name_max: 255,
        })
    }
    fn getlk(&self, ino: InodeNo, lock: &Plock) -> Answer<Option<Plock>> {
        let locks = self.locks.lock();
        Ok(locks.fcntl.get(&ino.get()).and_then(|held| MemFs::conflict(held, lock)))
    }
    fn setlk(&self, ino: InodeNo, lock: &Plock) -> Answer<()> {
        self.set_lock(ino.get(), lock, None, false)
    }
    fn flock(&self, ino: InodeNo, lock: &Plock) -> Answer<()> {
        self.set_lock(ino.get(), lock, None, true)
    }
    type Wait = usize;
    fn lock_later(
        &self,
        ino: InodeNo,
        lock: &Plock,
        whole: bool,
        done: LockAnswer,
    ) -> Answer<Option<usize>> {
        match self.set_lock(ino.get(), lock, None, whole) {
            Err(Errno::AGAIN) => {}
            done => return done.map(|()| None),
        }
        let canceller = Canceller::new();
        let mut waits = self.waits.lock();
        waits.push(canceller.clone());
        let (fs, lock) = (self.clone(), *lock);
        std::thread::spawn(move || done(fs.set_lock(ino.get(), &lock, Some(&canceller), whole)));
        Ok(Some(waits.len() - 1))
    }
    fn end_lock_wait(&self, wait: usize) {
        self.waits.lock()[wait].cancel();
    }
}

impl MemFs {
    fn root(&self) -> InodeNo {
        InodeNo(ROOT)
    }
    /// Says that an inode is handed out.
    fn out(&self, attr: Attr) -> Attr {
        if let Some(link) = self.link.get() {
            link.handed_out(attr.ino);
        }
        attr
    }
    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Answer<Attr> {
        self.seen.lookups.fetch_add(1, Ordering::Relaxed);
        let ino = {
            let node = self.node(dir.get())?;
            let state = node.lock();
            let dir = state.dir()?;
            if name == b".." { Some(dir.parent) } else { dir.find(name) }
        };
        let node = self.node(ino.ok_or(Errno::NOENT)?)?;
        let attr = self.out(node.lock().attr());
        let delay = *self.lookup_delay.lock();
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        Ok(attr)
    }
    fn unlink(&self, dir: InodeNo, name: &[u8]) -> Answer<()> {
        let parent = self.node(dir.get())?;
        let ino = parent.lock().dir_mut()?.remove(name).ok_or(Errno::NOENT)?;
        self.drop_link(ino)
    }
}
