//! rename(2), case by case.

use super::*;

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// root: a/ (f, sub/), b/ (g, full/ (x), empty/)
struct Tree {
    node: super::super::fixture::Node,
    root: InodeNo,
    a: InodeNo,
    b: InodeNo,
    f: InodeNo,
    g: InodeNo,
    sub: InodeNo,
    full: InodeNo,
    empty: InodeNo,
}

fn tree() -> Tree {
    let node = mount(&pool(), 0);
    let root = node.volume.root();
    let a = make_dir(&node, root, "a");
    let b = make_dir(&node, root, "b");
    let f = touch_file(&node, a, "f").ino;
    let sub = make_dir(&node, a, "sub");
    let g = touch_file(&node, b, "g").ino;
    let full = make_dir(&node, b, "full");
    touch_file(&node, full, "x");
    let empty = make_dir(&node, b, "empty");
    Tree { node, root, a, b, f, g, sub, full, empty }
}

impl Tree {
    fn mv(&self, from: (InodeNo, &str), to: (InodeNo, &str), flags: u32) -> Result<()> {
        rename(&self.node, from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), flags)
    }
    fn at(&self, dir: InodeNo, name: &str) -> Option<InodeNo> {
        match lookup(&self.node, dir, name.as_bytes()) {
            Ok(attr) => Some(attr.ino),
            Err(Error::NotFound) => None,
            Err(e) => panic!("{e}"),
        }
    }
    fn links(&self, ino: InodeNo) -> u32 {
        getattr(&self.node, ino).unwrap().nlink
    }
}

#[test]
fn files() {
    let t = tree();
    t.mv((t.a, "f"), (t.a, "f2"), 0).unwrap();
    assert_eq!((t.at(t.a, "f"), t.at(t.a, "f2")), (None, Some(t.f)));
    t.mv((t.a, "f2"), (t.b, "f3"), 0).unwrap();
    assert_eq!((t.at(t.a, "f2"), t.at(t.b, "f3")), (None, Some(t.f)));
    // Over another file: that one goes.
    t.mv((t.b, "f3"), (t.b, "g"), 0).unwrap();
    assert_eq!((t.at(t.b, "f3"), t.at(t.b, "g")), (None, Some(t.f)));
    assert!(gone(&t.node, t.g));
    assert_eq!(t.links(t.f), 1);
    // Onto itself, and onto another name of itself: nothing happens.
    t.mv((t.b, "g"), (t.b, "g"), 0).unwrap();
    link(&t.node, t.f, t.a, b"other").unwrap();
    t.mv((t.b, "g"), (t.a, "other"), 0).unwrap();
    assert_eq!((t.at(t.b, "g"), t.at(t.a, "other")), (Some(t.f), Some(t.f)));
    assert_eq!(t.links(t.f), 2);
}

/// From, to, flags, errno.
type Case<'a> = ((InodeNo, &'a str), (InodeNo, &'a str), u32, i32);

#[test]
fn refusals() {
    let t = tree();
    let all = |t: &Tree| (names(&t.node, t.a), names(&t.node, t.b), names(&t.node, t.full));
    let before = all(&t);
    let cases: &[Case<'_>] = &[
        ((t.a, "none"), (t.b, "x"), 0, libc_errno::NOENT),
        ((t.a, "f"), (t.b, "g"), NOREPLACE, libc_errno::EXIST),
        ((t.a, "f"), (t.a, "f"), NOREPLACE, libc_errno::EXIST),
        ((t.a, "f"), (t.b, "none"), EXCHANGE, libc_errno::NOENT),
        ((t.a, "f"), (t.b, "g"), NOREPLACE | EXCHANGE, libc_errno::INVAL),
        ((t.a, "f"), (t.b, "g"), 8, libc_errno::INVAL),
        ((t.a, "f"), (t.b, "empty"), 0, libc_errno::ISDIR),
        ((t.a, "sub"), (t.b, "g"), 0, libc_errno::NOTDIR),
        ((t.a, "sub"), (t.b, "full"), 0, libc_errno::NOTEMPTY),
        ((t.root, "a"), (t.a, "x"), 0, libc_errno::INVAL),
        ((t.root, "a"), (t.sub, "x"), 0, libc_errno::INVAL),
        ((t.root, "a"), (t.sub, "x"), NOREPLACE, libc_errno::INVAL),
        ((t.root, "b"), (t.b, "empty"), EXCHANGE, libc_errno::INVAL),
        ((t.b, "empty"), (t.root, "b"), EXCHANGE, libc_errno::INVAL),
        ((t.b, "full"), (t.root, "b"), 0, libc_errno::NOTEMPTY),
        ((t.b, "g"), (t.root, "b"), 0, libc_errno::ISDIR),
        ((t.b, "g"), (t.root, "b"), EXCHANGE, libc_errno::INVAL),
        ((t.f, "x"), (t.b, "x"), 0, libc_errno::NOTDIR),
        ((t.a, "f"), (t.g, "x"), 0, libc_errno::NOTDIR),
        ((t.a, "."), (t.b, "x"), 0, libc_errno::INVAL),
        ((t.a, "f"), (t.b, ".."), 0, libc_errno::INVAL),
    ];
    for (from, to, flags, errno) in cases {
        let e = t.mv(*from, *to, *flags).expect_err(&format!("{from:?} {to:?} {flags}"));
        assert_eq!(e.errno(), *errno, "{from:?} {to:?} {flags}: {e}");
        assert_eq!(all(&t), before, "{from:?} {to:?} {flags}");
    }
}

/// Numbers as in errno.h.
mod libc_errno {
    pub const NOENT: i32 = 2;
    pub const EXIST: i32 = 17;
    pub const NOTDIR: i32 = 20;
    pub const ISDIR: i32 = 21;
    pub const INVAL: i32 = 22;
    pub const NOTEMPTY: i32 = 39;
}

#[test]
fn directories_keep_parents_and_link_counts() {
    let t = tree();
    assert_eq!((t.links(t.a), t.links(t.b), t.links(t.root)), (3, 4, 4));
    t.mv((t.a, "sub"), (t.b, "sub"), 0).unwrap();
    assert_eq!((t.links(t.a), t.links(t.b)), (2, 5));
    assert_eq!(t.at(t.sub, ".."), Some(t.b));
    // Over an empty directory.
    t.mv((t.b, "sub"), (t.b, "empty"), 0).unwrap();
    assert_eq!((t.links(t.b), t.at(t.b, "empty")), (4, Some(t.sub)));
    assert!(gone(&t.node, t.empty));
    // Deep below, then up again.
    t.mv((t.root, "a"), (t.full, "a"), 0).unwrap();
    assert_eq!((t.links(t.root), t.links(t.full)), (3, 3));
    assert!(matches!(t.mv((t.root, "b"), (t.a, "b"), 0), Err(Error::Invalid(_))));
    t.mv((t.full, "a"), (t.root, "a"), NOREPLACE).unwrap();
    assert_eq!((t.links(t.root), t.links(t.full)), (4, 2));
    assert_eq!(t.at(t.a, ".."), Some(t.root));
    // A removed directory takes nothing in.
    let fh = open(&t.node, t.sub);
    rmdir(&t.node, t.b, b"empty").unwrap();
    assert!(matches!(t.mv((t.a, "f"), (t.sub, "f"), 0), Err(Error::NotFound)));
    close(&t.node, fh);
}

#[test]
fn a_whiteout_stays_at_the_old_name() {
    const WHITEOUT: u32 = 4;
    let t = tree();
    let is_whiteout = |dir, name: &str| {
        let attr = lookup(&t.node, dir, name.as_bytes()).unwrap();
        let mut kind = 0;
        readdir(&t.node, dir, DOT_DOT, WithAttrs::No, &mut |e| {
            kind = if e.name == name.as_bytes() { e.kind } else { kind };
            false
        })
        .unwrap();
        assert_eq!((attr.mode, attr.rdev, attr.nlink, kind), (0o020_000, 0, 1, 2));
    };
    t.mv((t.a, "f"), (t.b, "h"), WHITEOUT).unwrap();
    assert_eq!(t.at(t.b, "h"), Some(t.f));
    is_whiteout(t.a, "f");
    // In one directory, and over what is there.
    t.mv((t.b, "h"), (t.b, "g"), WHITEOUT).unwrap();
    assert_eq!(t.at(t.b, "g"), Some(t.f));
    is_whiteout(t.b, "h");
    // A directory: its parents lose and get a link.
    t.mv((t.a, "sub"), (t.b, "sub"), WHITEOUT | NOREPLACE).unwrap();
    is_whiteout(t.a, "sub");
    assert_eq!((t.links(t.a), t.links(t.b), t.at(t.sub, "..")), (2, 5, Some(t.b)));
    assert!(matches!(t.mv((t.b, "g"), (t.b, "h"), WHITEOUT | NOREPLACE), Err(Error::Exists)));
    assert!(matches!(t.mv((t.b, "g"), (t.b, "h"), WHITEOUT | EXCHANGE), Err(Error::Invalid(_))));
    // Over a whiteout, which leaves another.
    t.mv((t.b, "g"), (t.b, "h"), WHITEOUT).unwrap();
    assert_eq!(t.at(t.b, "h"), Some(t.f));
    is_whiteout(t.b, "g");
    unlink(&t.node, t.a, b"f").unwrap();
    assert_eq!(t.at(t.a, "f"), None);
    t.node.unmount_clean();
}

#[test]
fn exchange() {
    let t = tree();
    t.mv((t.a, "f"), (t.b, "g"), EXCHANGE).unwrap();
    assert_eq!((t.at(t.a, "f"), t.at(t.b, "g")), (Some(t.g), Some(t.f)));
    // A file and a directory.
    t.mv((t.a, "f"), (t.b, "full"), EXCHANGE).unwrap();
    assert_eq!((t.at(t.a, "f"), t.at(t.b, "full")), (Some(t.full), Some(t.g)));
    assert_eq!(t.at(t.full, ".."), Some(t.a));
    assert_eq!((t.links(t.a), t.links(t.b)), (4, 3));
    // Two directories, both full.
    t.mv((t.a, "f"), (t.root, "b"), EXCHANGE).unwrap();
    assert_eq!((t.at(t.a, "f"), t.at(t.root, "b")), (Some(t.b), Some(t.full)));
    assert_eq!((t.at(t.b, ".."), t.at(t.full, "..")), (Some(t.a), Some(t.root)));
    assert_eq!((t.links(t.a), t.links(t.root)), (4, 4));
    // Within one directory.
    t.mv((t.a, "f"), (t.a, "sub"), EXCHANGE).unwrap();
    assert_eq!((t.at(t.a, "f"), t.at(t.a, "sub")), (Some(t.sub), Some(t.b)));
    let mut kinds = Vec::new();
    readdir(&t.node, t.b, DOT_DOT, WithAttrs::Yes, &mut |e| {
        kinds.push((String::from_utf8_lossy(e.name).into_owned(), e.kind));
        assert_eq!(e.kind, kind_of(e.attr.unwrap().mode));
        false
    })
    .unwrap();
    kinds.sort_unstable();
    assert_eq!(kinds, [("empty".into(), 4), ("full".into(), 8), ("g".into(), 8)]);
}

const DOT_DOT: u64 = crate::dir::DOT_DOT;

#[test]
fn an_open_target_lives_on_without_a_name() {
    let t = tree();
    let fh = open(&t.node, t.g);
    t.mv((t.a, "f"), (t.b, "g"), 0).unwrap();
    assert_eq!(t.links(t.g), 0);
    assert_eq!(orphan::reap(&t.node).unwrap(), 1);
    close(&t.node, fh);
    assert!(gone(&t.node, t.g));
    assert_eq!(orphan::reap(&t.node).unwrap(), 0);
}

#[test]
fn moves_in_large_directories_split_and_join_leaves() {
    let t = tree();
    for i in 0..3_000 {
        touch_file(&t.node, t.a, &format!("{i}-{}", "n".repeat(i % 200)));
    }
    for i in 0..3_000 {
        let name = format!("{i}-{}", "n".repeat(i % 200));
        let to = if i % 3 == 0 { t.a } else { t.b };
        t.mv((t.a, &name), (to, &format!("m{i}")), 0).unwrap();
    }
    assert_eq!(names(&t.node, t.a).len(), 1_000 + 4);
    assert_eq!(names(&t.node, t.b).len(), 2_000 + 5);
    for i in 0..3_000 {
        let dir = if i % 3 == 0 { t.a } else { t.b };
        unlink(&t.node, dir, format!("m{i}").as_bytes()).unwrap();
    }
    assert_eq!(names(&t.node, t.a).len(), 4);
    t.node.unmount_clean();
}

/// The way up from a place deeper than any path is not walked under the lock for which all nodes wait, and is no
/// damage.
#[test]
fn a_directory_with_directories_does_not_go_deeper_than_a_path_can_say() {
    let t = tree();
    let mut deep = t.root;
    for _ in 0..4_200 {
        deep = make_dir(&t.node, deep, "d");
    }
    let moved = t.mv((t.b, "full"), (deep, "full"), 0);
    assert!(moved.is_ok(), "without directories in it: {moved:?}");
    let refused = t.mv((t.root, "a"), (deep, "a"), 0);
    assert!(matches!(refused, Err(Error::TooDeep { .. })), "{refused:?}");
    // It can go up from there.
    make_dir(&t.node, t.full, "in");
    t.mv((deep, "full"), (t.root, "up"), 0).unwrap();
    assert!(t.node.check_alive().is_ok());
    assert!(t.node.meta.damages.all().is_empty(), "no damage");
}
