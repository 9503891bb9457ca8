//! Golden messages, and bytes from strangers.

use std::fmt::Write as _;
use std::path::Path;

use braid_format::lock_record::Life;
use braid_format::{Incarnation, InodeNo, NodeId};
use braid_fs::{Attr, Errno, Plock, PlockKind, SetAttr, StatFs, Time, TimeSet};
use proptest::prelude::*;

use super::*;

/// `offset: hex  text`, 16 bytes a row.
fn dump(bytes: &[u8]) -> String {
    let mut out = format!("length {}\n", bytes.len());
    for (i, row) in bytes.chunks(16).enumerate() {
        write!(out, "{:04x}:", i * 16).unwrap();
        for b in row {
            write!(out, " {b:02x}").unwrap();
        }
        let text = row.iter().map(|b| if (32..127).contains(b) { char::from(*b) } else { '.' });
        writeln!(out, "  {}", text.collect::<String>()).unwrap();
    }
    out
}

/// Compares with the golden file; `BRAID_GOLDEN=write` writes it anew.
fn golden(name: &str, (mut header, args): (Header, Vec<u8>), data: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{name}.txt"));
    let mut bytes = header.seal(&args, data).to_vec();
    bytes.extend_from_slice(&args);
    bytes.extend_from_slice(data);
    let now = dump(&bytes);
    if std::env::var_os("BRAID_GOLDEN").is_some_and(|v| v == "write") {
        std::fs::write(&path, &now).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_else(|e| {
        panic!("{}: {e} (a new message needs its golden file)", path.display())
    });
    assert_eq!(now, kept, "the bytes of {name} are not the golden ones");
    let head: [u8; RawHeader::LEN] = bytes[..RawHeader::LEN].try_into().unwrap();
    assert_eq!(Header::decode(&head).unwrap(), header);
    header.check_args(&args).unwrap();
    header.check_data(data).unwrap();
}

fn attr() -> Attr {
    let time = |sec| Time { sec, nsec: 999_999_999 };
    Attr {
        ino: InodeNo(0x1122_3344),
        generation: 7,
        size: 1 << 40,
        blocks512: 99,
        atime: time(-1),
        mtime: time(2),
        ctime: time(3),
        btime: time(4),
        mode: 0o100_644,
        nlink: 1,
        uid: 1000,
        gid: 100,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn life() -> ServerLife {
    let life = Life { slot: NodeId(5), incarnation: Incarnation(0x77) };
    ServerLife { pool: [0xba; 16], life }
}

fn set() -> SetAttr {
    SetAttr {
        mode: Some(0o600),
        gid: Some(5),
        size: Some(4096),
        atime: Some(TimeSet::Now),
        mtime: Some(TimeSet::At(Time { sec: 17, nsec: 3 })),
        ..SetAttr::default()
    }
}

/// One of each.
fn requests() -> Vec<(&'static str, Request)> {
    let (dir, name, handle) = (InodeNo(2), b"file".to_vec(), 0x55);
    let flags = OpenFlags { write: true, lock: true, ..OpenFlags::default() };
    let hello = |begin, slot| {
        let (pool, client) = (b"safe".to_vec(), b"host".to_vec());
        let version = if let Begin::After(..) = begin { NEWEST_VERSION } else { VERSION };
        Request::Hello(Hello { version, begin, slot, pool, client })
    };
    let (offset, length) = (1 << 33, 1 << 20);
    vec![
        ("hello", hello(Begin::Session, 0)),
        ("hello_join", hello(Begin::Join([0xab; 16]), 3)),
        ("hello_after", hello(Begin::After([0xab; 16], life()), 3)),
        ("ping", Request::Ping),
        ("bye", Request::Bye),
        ("lookup", Request::Lookup { dir, name: name.clone() }),
        ("getattr", Request::GetAttr { ino: dir }),
        ("setattr", Request::SetAttr { ino: dir, set: set(), handle: 0 }),
        ("readdir", Request::ReadDir { dir, cookie: 77, length, handle: 0 }),
        ("statfs", Request::StatFs),
        ("create", Request::Create { dir, name: name.clone(), mode: 0o644, flags }),
        ("open", Request::Open { ino: dir, generation: 9, flags: OpenFlags::default() }),
        ("close", Request::Close { handle }),
        ("read", Request::Read { handle, offset, length, keep: false }),
        ("read_keep", Request::Read { handle, offset, length, keep: true }),
        ("write", Request::Write { handle, offset, how: how::STABLE }),
        ("append", Request::Write { handle, offset: 0, how: how::APPEND }),
        ("commit", Request::Commit { handle }),
        ("checksum", Request::Checksum { handle, offset, length }),
        ("mkdir", Request::MkDir { dir, name: name.clone(), mode: 0o755 }),
        ("unlink", Request::Unlink { dir, name: name.clone() }),
        ("rmdir", Request::RmDir { dir, name: name.clone() }),
        (
            "rename",
            Request::Rename {
                from: (dir, name),
                to: (InodeNo(3), b"other".to_vec()),
                no_replace: true,
            },
        ),
        ("sync_dir", Request::SyncDir { dir }),
    ]
}

/// One of each of those that only mounts make.
fn mount_requests() -> Vec<(&'static str, Request)> {
    let (ino, dir, name, handle) = (InodeNo(7), InodeNo(2), b"file".to_vec(), 0x55);
    let (offset, len, mode, umask) = (1 << 33, 1 << 40, 0o100_644, 0o022);
    let xattr = b"user.a/b".to_vec();
    let (from, to) = ((dir, name.clone()), (InodeNo(3), b"other".to_vec()));
    let requests = vec![
        ("readlink", MountRequest::ReadLink { ino }),
        ("getxattr", MountRequest::GetXattr { ino, name: xattr.clone() }),
        ("setxattr", MountRequest::SetXattr { ino, name: xattr.clone(), flags: 1 }),
        ("listxattr", MountRequest::ListXattr { ino }),
        ("removexattr", MountRequest::RemoveXattr { ino, name: xattr }),
        (
            "make_file",
            MountRequest::MakeFile { dir, name: name.clone(), mode, umask, flags: 0o102 },
        ),
        ("open_as", MountRequest::OpenAs { ino, flags: 2, again: true }),
        ("tmpfile", MountRequest::TmpFile { dir, mode, umask, flags: 2 }),
        ("list", MountRequest::List { dir, cookie: 77, length: 1 << 16, handle }),
        ("seek", MountRequest::Seek { handle, offset, whence: 3 }),
        ("allocate", MountRequest::Allocate { handle, offset, len, mode: 1 }),
        ("copy", MountRequest::Copy { handle, offset, to: 0x66, to_offset: 4096, len }),
        ("sync", MountRequest::Sync),
        (
            "make_node",
            MountRequest::MakeNode { dir, name: name.clone(), mode: 0o020_600, umask, rdev: 0x103 },
        ),
        ("symlink", MountRequest::SymLink { dir, name: name.clone() }),
        ("link", MountRequest::Link { ino, dir, name }),
        ("rename_as", MountRequest::RenameAs { from, to, flags: 2 }),
    ];
    let requests = requests.into_iter().map(|(name, request)| (name, Request::Mount(request)));
    let kind = PlockKind::Exclusive;
    let lock = Plock { start: 5, end: u64::MAX, kind, owner: 0x1234, pid: 99, uid: 0 };
    let locks = [
        ("getlock", LockRequest::GetLock { handle, lock }),
        ("lock", LockRequest::Lock { handle, whole: false, again: true, lock }),
        ("lock_wait", LockRequest::LockWait { handle, whole: true, lock, wait: 8 }),
        ("end_wait", LockRequest::EndWait { wait: 8 }),
        ("events", LockRequest::Events { seen: 3, patience_ms: 5000 }),
    ];
    let leases = Request::Leases { done: 9, patience_ms: 500 };
    let locks = locks.map(|(name, request)| (name, Request::Lock(request)));
    requests.chain(locks).chain([("leases", leases)]).collect()
}

#[test]
fn requests_of_mounts_are_the_golden_ones_and_are_read_back() {
    let groups = vec![4, 27, u32::MAX];
    let caller = Caller { generations: [9, 11], uid: 1000, gid: 100, groups };
    for (name, request) in mount_requests() {
        let data: &[u8] = match request.op() {
            op::SYMLINK => b"../target",
            op::SETXATTR => b"value",
            _ => b"",
        };
        let (mut header, plain) = request.encode();
        let args = [caller.encode(), plain].concat();
        (header.sequence, header.prefixed) = (12, true);
        golden(name, (header, args.clone()), data);
        header.seal(&args, data);
        let (who, rest) = Caller::split(&header, &args).unwrap();
        assert_eq!(who.as_ref(), Some(&caller));
        let read = Request::decode(&header, rest).unwrap();
        assert_eq!(format!("{read:?}"), format!("{request:?}"));
        let decoded = |args: &[u8]| {
            Caller::split(&header, args).and_then(|(_, rest)| Request::decode(&header, rest))
        };
        for len in 0..args.len() {
            assert!(decoded(&args[..len]).is_err(), "{name} cut at {len}");
        }
        assert!(decoded(&[&args[..], &[0]].concat()).is_err(), "{name} with a byte more");
    }
    let many = Caller { groups: vec![1; 200], ..caller };
    let header = Header { prefixed: true, ..Header::request(op::PING) };
    let kept = Caller::split(&header, &many.encode()).unwrap().0.unwrap();
    assert_eq!(kept.groups.len(), GROUPS_MAX);
    let mut hostile = Caller::default().encode();
    *hostile.last_mut().unwrap() = 255;
    hostile.resize(hostile.len() + 255 * 4, 0);
    assert!(Caller::split(&header, &hostile).is_err(), "more groups than there may be");
}

#[test]
fn requests_are_the_golden_ones_and_are_read_back() {
    for (name, request) in requests() {
        let data: &[u8] = if request.op() == op::WRITE { b"contents" } else { b"" };
        let (mut header, args) = request.encode();
        header.sequence = 0x0102_0304_0506_0708;
        golden(name, (header, args.clone()), data);
        header.seal(&args, data);
        let read = Request::decode(&header, &args).unwrap();
        assert_eq!(format!("{read:?}"), format!("{request:?}"));
        // Nothing at all says that it is not to be kept.
        for len in usize::from(name == "read_keep")..args.len() {
            assert!(Request::decode(&header, &args[..len]).is_err(), "{name} cut at {len}");
        }
        let more = [&args[..], &[0]].concat();
        assert!(Request::decode(&header, &more).is_err(), "{name} with a byte more");
    }
}

#[test]
fn what_replies_say_of_leases_is_golden_and_is_read_back() {
    let changed = vec![InodeNo(7), InodeNo(0x1122_3344_5566_7788)];
    let note = LeaseNote { granted: true, all: false, changed };
    let request = Header { sequence: 12, ..Header::request(op::GETATTR) };
    let (mut header, plain) = Reply::Attr(attr()).encode(&request);
    header.prefixed = true;
    let args = [note.encode(), plain].concat();
    golden("reply_leased", (header, args.clone()), b"");
    let (read, rest) = LeaseNote::split(&header, &args).unwrap();
    assert_eq!((&read, Reply::decode(&header, rest).unwrap()), (&note, Reply::Attr(attr())));
    for len in 0..note.encode().len() {
        assert!(LeaseNote::split(&header, &args[..len]).is_err(), "cut at {len}");
    }
    let many = LeaseNote { changed: vec![InodeNo(1); 65], ..LeaseNote::default() };
    let read = LeaseNote::split(&header, &many.encode()).unwrap().0;
    assert!(read.all && !read.granted && read.changed.is_empty());
    assert!(
        LeaseNote::split(&header, &[4, 0]).is_err() && LeaseNote::split(&header, &[0, 65]).is_err()
    );

    let inodes = vec![InodeNo(7), InodeNo(8)];
    let recalls = Recalls { number: 5, term_ms: 2000, all: false, inodes };
    let data = recalls.encode();
    golden("reply_leases", (Header::reply(&Header::request(op::LEASES), 0), vec![]), &data);
    assert_eq!(Recalls::read(&data), Some(recalls));
    assert_eq!(Recalls::read(&data[1..]), None);

    let entry =
        braid_fs::DirEntry { ino: InodeNo(5), next: 9, kind: 8, name: b"one", attr: Some(attr()) };
    let mut data = Vec::new();
    assert!(write_listed(&mut data, 1000, &entry));
    assert!(write_listed(&mut data, 1000, &braid_fs::DirEntry { attr: None, ..entry }));
    let most = data.len() + 10;
    assert!(!write_listed(&mut data, most, &entry));
    golden("reply_list", (Header::reply(&Header::request(op::LIST), 0), vec![]), &data);
    let read = read_listed(&data).unwrap();
    assert_eq!((read.len(), read[0].attr, read[1].attr), (2, Some(attr()), None));
    assert_eq!(read_listed(&data[..data.len() - 1]), None);
}

#[test]
fn replies_are_the_golden_ones_and_are_read_back() {
    let totals = StatFs {
        block_size: 4096,
        blocks: 1000,
        free: 500,
        available: 400,
        files: 100,
        files_free: 50,
        name_max: 255,
    };
    let welcome = Welcome {
        version: VERSION,
        session: [0xcd; 16],
        slots: 16,
        data_max: 4 << 20,
        session_ms: 30_000,
        verifier: 0xfeed,
        root: InodeNo(2),
        life: None,
    };
    let of_node = Welcome { version: NEWEST_VERSION, life: Some(life()), ..welcome };
    let kind = PlockKind::Shared;
    let lock = Plock { start: 5, end: 9, kind, owner: 0, pid: 99, uid: 0 };
    let replies = [
        ("reply_hello", op::HELLO, Reply::Welcome(welcome)),
        ("reply_hello_life", op::HELLO, Reply::Welcome(of_node)),
        ("reply_getattr", op::GETATTR, Reply::Attr(attr())),
        ("reply_open", op::OPEN, Reply::Opened { handle: 0x55, attr: attr() }),
        ("reply_read", op::READ, Reply::Done),
        ("reply_write", op::WRITE, Reply::Written { length: 8, verifier: 0xfeed }),
        ("reply_checksum", op::CHECKSUM, Reply::Checksum { sum: u128::MAX - 5, length: 8 }),
        ("reply_statfs", op::STATFS, Reply::Totals(totals)),
        ("reply_seek", op::SEEK, Reply::Number(1 << 33)),
        ("reply_getlock", op::GETLOCK, Reply::InTheWay(Some(lock))),
        ("reply_getlock_none", op::GETLOCK, Reply::InTheWay(None)),
    ];
    for (name, op, reply) in replies {
        let request = Header { sequence: 12, ..Header::request(op) };
        let data: &[u8] = if op == op::READ { b"contents" } else { b"" };
        let (header, args) = reply.encode(&request);
        golden(name, (header, args.clone()), data);
        assert_eq!(Reply::decode(&header, &args).unwrap(), reply);
        // Nothing at all says that no lock is in the way.
        for len in usize::from(op == op::GETLOCK)..args.len() {
            // A server that is no node says no life.
            let is_other = (name, len) == ("reply_hello_life", args.len().saturating_sub(22));
            let read = Reply::decode(&header, &args[..len]);
            assert!(is_other || read.is_err(), "{name} cut at {len}");
        }
    }
    let event = LockEvent { number: 4, wait: 8, errno: 35 };
    let mut data = Vec::new();
    write_event(&mut data, &event);
    let reply = Header::reply(&Header::request(op::EVENTS), 0);
    golden("reply_events", (reply, vec![]), &data);
    assert_eq!(read_events(&data), Some(vec![event]));
    assert_eq!(read_events(&data[1..]), None);
    let status = Status::of(Errno::NOSPC);
    golden("reply_error", (Header::reply(&Header::request(op::WRITE), status.0), vec![]), b"");
    assert_eq!(status.errno(), Some(Errno::NOSPC));
    assert_eq!(Status::NO_SESSION.errno(), None);
}

#[test]
fn names_that_no_directory_can_hold_are_refused() {
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
        let request = Request::Lookup { dir: InodeNo(2), name: name.to_vec() };
        let (header, args) = request.encode();
        assert!(Request::decode(&header, &args).is_err(), "{name:?}");
    }
}

#[test]
fn entries_are_read_back_and_stay_within_their_bound() {
    let entry = |name: &'static [u8]| braid_fs::DirEntry {
        ino: InodeNo(5),
        next: 9,
        kind: 8,
        name,
        attr: None,
    };
    let mut data = Vec::new();
    assert!(write_entry(&mut data, 60, &entry(b"one")));
    assert!(write_entry(&mut data, 60, &entry(b"two")));
    assert!(!write_entry(&mut data, 60, &entry(b"three")));
    let read = read_entries(&data).unwrap();
    assert_eq!(read.iter().map(|e| &e.name[..]).collect::<Vec<_>>(), [&b"one"[..], b"two"]);
    assert!((1..data.len()).filter(|n| read_entries(&data[..*n]).is_some()).eq([data.len() / 2]));
}

proptest! {
    #[test]
    fn any_header_is_decoded_or_refused(bytes in prop::array::uniform32(any::<u8>())) {
        let mut all = [0; RawHeader::LEN];
        all[..32].copy_from_slice(&bytes);
        prop_assert!(Header::decode(&all).is_err());
    }

    /// With a good checksum, so that the fields are looked at.
    #[test]
    fn sealed_lengths_are_within_the_limits(
        kind in 0_u8..4, op in any::<u8>(), args in any::<u32>(), data in any::<u32>(), flag in 0_u8..3,
    ) {
        let mut bytes = Header::request(op).seal(b"", b"");
        bytes[4] = kind;
        bytes[6] = flag;
        bytes[40..44].copy_from_slice(&args.to_le_bytes());
        bytes[44..48].copy_from_slice(&data.to_le_bytes());
        bytes[60..].fill(0);
        let crc = braid_format::crc::crc32c(&bytes);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        let within = args as usize <= ARGS_MAX && data as usize <= DATA_MAX;
        let good = (1..3).contains(&kind) && flag < 2 && within;
        prop_assert_eq!(Header::decode(&bytes).is_ok(), good);
    }

    #[test]
    fn a_changed_bit_is_noticed(at in 0_usize..RawHeader::LEN * 8) {
        let mut bytes = Header::request(op::READ).seal(b"args", b"data");
        bytes[at / 8] ^= 1 << (at % 8);
        prop_assert!(Header::decode(&bytes).is_err());
    }

    #[test]
    fn any_arguments_are_decoded_or_refused(
        op in any::<u8>(), args in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let header = Header::request(op);
        if let Ok(request) = Request::decode(&header, &args) {
            // What was read is what was there.
            prop_assert_eq!(request.encode().1, &args[..]);
        }
        let named = Header { prefixed: true, ..header };
        if let Ok((Some(caller), rest)) = Caller::split(&named, &args) {
            prop_assert_eq!([&caller.encode()[..], rest].concat(), &args[..]);
        }
        if let Ok((note, rest)) = LeaseNote::split(&named, &args) {
            prop_assert_eq!([&note.encode()[..], rest].concat(), &args[..]);
        }
        if let Some(recalls) = Recalls::read(&args) {
            prop_assert_eq!(recalls.encode(), &args[..]);
        }
        let _ = read_listed(&args);
        let _ = read_events(&args);
        let _ = Reply::decode(&header, &args);
        let _ = read_entries(&args);
    }

    /// Arguments that are nearly right.
    #[test]
    fn damaged_arguments_are_decoded_or_refused(
        which in 0_usize..46, at in any::<prop::sample::Index>(), value in any::<u8>(),
    ) {
        let all = [requests(), mount_requests()].concat();
        let (header, mut args) = all[which].1.encode();
        if !args.is_empty() {
            let at = at.index(args.len());
            args[at] = value;
        }
        if let Ok(request) = Request::decode(&header, &args) {
            prop_assert_eq!(request.encode().1, args);
        }
    }
}
