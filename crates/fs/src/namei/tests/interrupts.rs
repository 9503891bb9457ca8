//! An operation that waits for another node's lock, and is interrupted, has not begun.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use braid_lock::interrupt::Interrupt;

use super::*;

type Operation = Box<dyn Fn(&Arc<Core>) -> Result<()> + Send + Sync>;

/// root: d/ (f, g, sub/), e/
struct Tree {
    d: InodeNo,
    e: InodeNo,
    f: InodeNo,
    g: InodeNo,
    sub: InodeNo,
}

impl Tree {
    fn new(node: &Arc<Core>) -> Self {
        let root = node.volume.root();
        let (d, e) = (make_dir(node, root, "d"), make_dir(node, root, "e"));
        let (f, g) = (touch_file(node, d, "f").ino, touch_file(node, d, "g").ino);
        Self { d, e, f, g, sub: make_dir(node, d, "sub") }
    }
    /// Operations, and whose locks each needs.
    fn operations(&self) -> Vec<(&'static str, Vec<InodeNo>, Operation)> {
        let Self { d, e, f, g, sub } = *self;
        let op = |o: fn(&Arc<Core>, [InodeNo; 3]) -> Result<()>| -> Operation {
            Box::new(move |core| o(core, [d, e, f]))
        };
        vec![
            ("lookup", vec![d, f], op(|c, [d, ..]| lookup(c, d, b"f").map(drop))),
            ("getattr", vec![f], op(|c, [.., f]| getattr(c, f).map(drop))),
            ("mkdir", vec![d], op(|c, [d, ..]| mkdir(c, d, b"n", 0o777, &CRED).map(drop))),
            ("create", vec![d], op(|c, [d, ..]| create(c, d, b"c", 0o666, &CRED, true).map(drop))),
            (
                "symlink",
                vec![d],
                op(|c, [d, ..]| symlink(c, d, b"s", &[b'x'; 4000], &CRED).map(drop)),
            ),
            ("tmpfile", vec![d], op(|c, [d, ..]| tmpfile(c, d, 0o666, &CRED).map(drop))),
            (
                "setattr",
                vec![f],
                op(|c, [.., f]| {
                    let set = SetAttr { mode: Some(0o600), size: Some(5), ..SetAttr::default() };
                    setattr(c, f, &set).map(drop)
                }),
            ),
            ("link", vec![e, f], op(|c, [_, e, f]| link(c, f, e, b"l").map(drop))),
            // From here on "f" is inode g.
            ("exchange", vec![d, f, g], op(|c, [d, ..]| rename(c, d, b"f", d, b"g", 2))),
            ("rename away", vec![d, e, g], op(|c, [d, e, _]| rename(c, d, b"f", e, b"f2", 0))),
            ("rename back", vec![d, e, g], op(|c, [d, e, _]| rename(c, e, b"f2", d, b"f", 0))),
            ("rmdir", vec![d, sub], op(|c, [d, ..]| rmdir(c, d, b"sub"))),
            ("replace", vec![d, f, g], op(|c, [d, ..]| rename(c, d, b"f", d, b"g", 0))),
            ("unlink", vec![d, g], op(|c, [d, ..]| unlink(c, d, b"g"))),
        ]
    }
    /// What stands there, and what is reserved of this node's orphan lists and of its space.
    fn state(&self, node: &Arc<Core>) -> String {
        let list = |dir| names(node, dir);
        let attr = |ino| getattr(node, ino).map(|a| (a.nlink, a.mode, a.size));
        let inos = [self.d, self.e, self.f, self.g, self.sub];
        let attrs: Vec<_> = inos.into_iter().map(|i| format!("{:?}", attr(i).ok())).collect();
        let reserved = (orphan::reserved(node), node.alloc.reserved());
        format!("{:?} {:?} {attrs:?} {reserved:?}", list(self.d), list(self.e))
    }
}

/// Does `operation` on a thread that is interrupted while another node keeps a lock. How it ended.
fn interrupted(node: &Arc<Core>, operation: &Operation, kept: Locked) -> Option<Result<()>> {
    let (interrupt, (tell, told)) = (Interrupt::of_requests(), channel());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _scope = interrupt.scope();
            interrupt.begin(1, 0);
            tell.send(operation(node)).unwrap();
        });
        let began = Instant::now();
        loop {
            match told.recv_timeout(Duration::from_millis(5)) {
                Err(RecvTimeoutError::Timeout) if began.elapsed() > Duration::from_mins(1) => {
                    drop(kept);
                    return None;
                }
                Err(_) => interrupt.trip(1),
                Ok(how) => return Some(how),
            }
        }
    })
}

#[test]
fn an_interrupted_operation_has_not_begun() {
    let pool = pool();
    let (a, b) = (mount(&pool, 0), mount(&pool, 1));
    let tree = Tree::new(&a);
    for (what, needs, operation) in tree.operations() {
        let before = tree.state(&a);
        for ino in needs {
            let kept = b.lock_exclusive(ino).unwrap();
            let how = interrupted(&a, &operation, kept);
            assert!(
                matches!(&how, Some(Err(e)) if e.errno() == rustix::io::Errno::INTR.raw_os_error()),
                "{what}, inode {ino}: {how:?}"
            );
            assert_eq!(tree.state(&a), before, "{what}, inode {ino}");
        }
        operation(&a).unwrap();
    }
    b.unmount();
    a.unmount_clean();
}
