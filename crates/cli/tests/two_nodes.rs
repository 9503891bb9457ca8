//! What docs/SEMANTICS.md promises of two nodes, seen through two mounts of one pool.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Cluster, can_mount, sh, wait_until};

/// Longest wait for what comes about by itself, on a machine that does much else.
const LONG: Duration = Duration::from_mins(1);

#[test]
fn a_write_that_returned_is_seen_by_the_other_node_without_reopening() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(4, 256, 2);
    let (a, b) = (c.node(0), c.node(1));
    fs::write(a.join("f"), "one").unwrap();
    let mut on_b = File::open(b.join("f")).unwrap();
    let mut text = String::new();
    on_b.read_to_string(&mut text).unwrap();
    assert_eq!(text, "one");
    for round in 0..200 {
        let (from, open) = if round % 2 == 0 { (a, &on_b) } else { (b, &on_b) };
        let content = format!("round {round:04}");
        fs::write(from.join("f"), &content).unwrap();
        let mut seen = vec![0; content.len()];
        open.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, content.as_bytes());
        assert_eq!(fs::metadata(a.join("f")).unwrap().len(), content.len() as u64);
        assert_eq!(fs::metadata(b.join("f")).unwrap().len(), content.len() as u64);
    }
    drop(on_b);
    c.finish();
}

/// What the nodes have issued to the devices so far: reads, compare-and-writes.
fn issued(c: &Cluster) -> [u64; 2] {
    let of = |dir: &Path| -> [u64; 2] {
        let said = common::ok(&["status", "--io", "--json", dir.to_str().unwrap()]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let sum = |count: &dyn Fn(&serde_json::Value) -> u64| {
            said["io"][0]["members"].as_array().unwrap().iter().map(count).sum()
        };
        let reads = |m: &serde_json::Value| m["reads"]["requests"].as_u64().unwrap();
        let compares = |m: &serde_json::Value| m["compare_and_writes"].as_u64().unwrap();
        [sum(&reads), sum(&compares)]
    };
    let [one, other] = [c.node(0), c.node(1)].map(of);
    [one[0] + other[0], one[1] + other[1]]
}

/// By messages: one compare-and-write for each hand-over, and no read of a record. If they were lost, each would
/// cost two of both.
#[test]
fn a_hand_over_is_one_compare_and_write() {
    const CYCLES: u64 = 300;
    if !can_mount() {
        return;
    }
    let c = Cluster::new(1, 256, 2);
    fs::write(c.node(0).join("f"), "begin").unwrap();
    let on_a = OpenOptions::new().write(true).open(c.node(0).join("f")).unwrap();
    let on_b = File::open(c.node(1).join("f")).unwrap();
    let cycle = |n: u64| {
        let (content, mut seen) = (format!("{n:08}"), [0; 8]);
        on_a.write_all_at(content.as_bytes(), 0).unwrap();
        on_b.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, content.as_bytes());
    };
    (0..20).for_each(cycle);
    let before = issued(&c);
    (0..CYCLES).for_each(cycle);
    let after = issued(&c);
    let [reads, compares] = [after[0] - before[0], after[1] - before[1]];
    println!("{CYCLES} cycles: {reads} reads, {compares} compare-and-writes");
    // On a machine that does much else some answers come too late.
    assert!((2 * CYCLES..3 * CYCLES).contains(&compares), "{compares}");
    assert!(reads < 3 * CYCLES, "{reads}");
    drop((on_a, on_b));
    c.finish();
}

#[test]
fn names_are_the_same_everywhere_at_once() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.node(0), c.node(1));
    assert!(!b.join("x").exists()); // a negative name is cached on B ...
    fs::create_dir(a.join("x")).unwrap();
    assert!(b.join("x").is_dir()); // ... and must not outlive A's mkdir
    fs::write(b.join("x/file"), "1").unwrap();
    fs::rename(a.join("x/file"), a.join("x/other")).unwrap();
    assert!(!b.join("x/file").exists() && b.join("x/other").exists());
    fs::hard_link(b.join("x/other"), b.join("link")).unwrap();
    assert_eq!(fs::metadata(a.join("link")).unwrap().nlink(), 2);
    std::os::unix::fs::symlink("x/other", a.join("sym")).unwrap();
    assert_eq!(fs::read_to_string(b.join("sym")).unwrap(), "1");
    fs::set_permissions(a.join("link"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(b.join("x/other")).unwrap().permissions().mode() & 0o777, 0o640);
    fs::remove_file(b.join("x/other")).unwrap();
    assert_eq!(fs::metadata(a.join("link")).unwrap().nlink(), 1);
    fs::remove_file(a.join("link")).unwrap();
    fs::remove_dir(b.join("x")).unwrap();
    assert!(!a.join("x").exists());
    let left: Vec<_> = fs::read_dir(b).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["sym"]);
    c.finish();
}

#[test]
fn both_nodes_write_blocks_of_one_file_and_readers_of_both_see_them() {
    const BLOCKS: u64 = 64;
    if !can_mount() {
        return;
    }
    let c = Cluster::new(4, 256, 2);
    let dirs = [c.node(0), c.node(1)];
    fs::write(dirs[0].join("f"), vec![0; 4096 * BLOCKS as usize]).unwrap();
    let open = |dir: &Path| OpenOptions::new().read(true).write(true).open(dir.join("f")).unwrap();
    let writers = dirs.map(open);
    let block = |round: u64, at: u64| {
        let mut block = vec![(round + at) as u8; 4096];
        block[..8].copy_from_slice(&round.to_le_bytes());
        block
    };
    let is_everywhere = |files: &[File; 2], at: u64, expected: &[u8]| {
        for file in files {
            let mut seen = vec![0; 4096];
            file.read_exact_at(&mut seen, at * 4096).unwrap();
            assert!(seen == expected, "block {at}");
        }
    };
    for round in 1..6 {
        std::thread::scope(|scope| {
            for (n, file) in writers.iter().enumerate() {
                scope.spawn(move || {
                    for at in (n as u64..BLOCKS).step_by(2) {
                        file.write_all_at(&block(round, at), at * 4096).unwrap();
                    }
                });
            }
        });
        // Through descriptors past the kernel's cache, and through its cache.
        let readers = dirs.map(|dir| File::open(dir.join("f")).unwrap());
        for at in 0..BLOCKS {
            is_everywhere(&writers, at, &block(round, at));
            is_everywhere(&readers, at, &block(round, at));
        }
        // What a reader has cached is not what it reads after the next write.
        for n in [0, 1, 1, 0] {
            let at = round * 7 % BLOCKS;
            let again = block(round + 100 + n, at);
            writers[n as usize].write_all_at(&again, at * 4096).unwrap();
            is_everywhere(&readers, at, &again);
            let times = dirs.map(|dir| fs::metadata(dir.join("f")).unwrap().modified().unwrap());
            assert_eq!(times[0], times[1]);
        }
    }
    drop(writers);
    c.finish();
}

/// Truncations are let in while a file's lock is being given up, and may take it exclusively at that moment.
#[test]
fn files_that_programs_of_both_nodes_truncate_all_the_time_are_handed_over() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let dirs = [c.node(0), c.node(1)];
    let until = Instant::now() + Duration::from_secs(4);
    let run = |dir: &Path, seed: u64| {
        let (mut n, mut done) = (seed * 7919, 0_u64);
        while Instant::now() < until {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
            let path = dir.join(format!("f{}", (n >> 33) % 20));
            let to = (n >> 40) % 100_000;
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
            let file = file.unwrap();
            if n >> 63 == 0 {
                file.write_all_at(&vec![1; (to % 8192) as usize], to).unwrap();
            } else {
                file.set_len(if to.is_multiple_of(3) { 0 } else { to }).unwrap();
            }
            done += 1;
        }
        done
    };
    let done: Vec<u64> = std::thread::scope(|scope| {
        let all = (0..8).map(|n| scope.spawn(move || run(dirs[n as usize % 2], n + 1)));
        all.collect::<Vec<_>>().into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(done.iter().all(|done| *done > 0), "{done:?}");
    c.finish();
}

#[test]
fn appends_of_both_nodes_are_all_there() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
    File::create(a.join("log")).unwrap();
    let writers: Vec<_> = [a.clone(), b]
        .into_iter()
        .enumerate()
        .map(|(n, dir)| {
            std::thread::spawn(move || {
                let mut file = OpenOptions::new().append(true).open(dir.join("log")).unwrap();
                for i in 0..300 {
                    file.write_all(format!("node {n} line {i:05}\n").as_bytes()).unwrap();
                }
            })
        })
        .collect();
    for w in writers {
        w.join().unwrap();
    }
    let text = fs::read_to_string(a.join("log")).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 600);
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 600, "lines were lost or doubled");
    c.finish();
}

#[test]
fn shared_mappings_see_the_other_node() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.node(0).display().to_string(), c.node(1).display().to_string());
    let script = format!(
        r#"
import mmap, os
fa = os.open("{a}/m", os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(fa, 8192)
ma = mmap.mmap(fa, 8192)
fb = os.open("{b}/m", os.O_RDWR)
mb = mmap.mmap(fb, 8192)
for n in range(50):
    ma[0:8] = b"A%07d" % n
    assert mb[0:8] == b"A%07d" % n, (n, mb[0:8])
    mb[4096:4104] = b"B%07d" % n
    assert ma[4096:4104] == b"B%07d" % n, (n, ma[4096:4104])
assert open("{b}/m", "rb").read(8) == b"A%07d" % 49
"#
    );
    fs::write(c.disks.path("m.py"), script).unwrap();
    sh(&format!("timeout 60 python3 {}", c.disks.path("m.py")));
    c.finish();
}

#[test]
fn program_locks_exclude_across_nodes() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.node(0).display(), c.node(1).display());
    let script = format!(
        r#"
import fcntl, mmap, os, time
open("{a}/l", "w").close()
fa = os.open("{a}/l", os.O_RDWR); fb = os.open("{b}/l", os.O_RDWR)
def child(f):
    pid = os.fork()
    if pid == 0:
        os._exit(f())
    return os.waitpid(pid, 0)[1] >> 8
def refused(call):
    def run():
        try: call()
        except BlockingIOError: return 0
        return 1
    return run
fcntl.lockf(fa, fcntl.LOCK_EX, 100, 0)
assert child(refused(lambda: fcntl.lockf(fb, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 50))) == 0
assert child(lambda: fcntl.lockf(fb, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 100) or 0) == 0
free = mmap.mmap(-1, 1)
pid = os.fork()
if pid == 0:
    fcntl.lockf(fb, fcntl.LOCK_EX, 10, 50)
    os._exit(0 if free[0] else 1)
time.sleep(0.5); free[0] = 1; fcntl.lockf(fa, fcntl.LOCK_UN, 100, 0)
assert os.waitpid(pid, 0)[1] == 0
fcntl.flock(fa, fcntl.LOCK_EX)
assert refused(lambda: fcntl.flock(fb, fcntl.LOCK_EX | fcntl.LOCK_NB))() == 0
fcntl.flock(fa, fcntl.LOCK_UN); fcntl.flock(fb, fcntl.LOCK_EX | fcntl.LOCK_NB)
"#
    );
    fs::write(c.disks.path("l.py"), script).unwrap();
    sh(&format!("timeout 60 python3 {}", c.disks.path("l.py")));
    c.finish();
}

#[test]
fn an_unlinked_file_lives_while_another_node_has_it_open() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.node(0), c.node(1));
    fs::write(a.join("f"), vec![7; 300_000]).unwrap();
    let mut open = File::open(b.join("f")).unwrap();
    let free_before = sh(&format!("stat -f -c %f {}", a.display()));
    fs::remove_file(a.join("f")).unwrap();
    assert!(!b.join("f").exists());
    let mut all = Vec::new();
    open.seek(SeekFrom::Start(0)).unwrap();
    open.read_to_end(&mut all).unwrap();
    assert_eq!(all, vec![7; 300_000]);
    drop(open);
    let began = Instant::now();
    loop {
        let free = sh(&format!("stat -f -c %f {}", b.display()));
        if free.trim().parse::<u64>().unwrap() > free_before.trim().parse::<u64>().unwrap() {
            break;
        }
        assert!(began.elapsed() < LONG, "the blocks are never freed");
        std::thread::sleep(Duration::from_millis(200));
    }
    c.finish();
}

#[test]
fn a_killed_node_loses_nothing_that_was_fsynced_and_the_other_goes_on() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(4, 512, 0);
    for _ in 0..2 {
        c.mount(&["io_timeout=80"]);
    }
    let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
    fs::create_dir(a.join("d")).unwrap();
    let acknowledged = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counter = acknowledged.clone();
    let writer = std::thread::spawn(move || {
        for n in 0_u32.. {
            let done = (|| -> std::io::Result<()> {
                let mut file = File::create(a.join(format!("d/{n}")))?;
                file.write_all(&n.to_le_bytes().repeat(1 + n as usize * 97 % 9000))?;
                file.sync_all()
            })();
            if done.is_err() {
                return;
            }
            counter.store(n + 1, std::sync::atomic::Ordering::SeqCst);
        }
    });
    let done = || acknowledged.load(std::sync::atomic::Ordering::SeqCst);
    wait_until("files are acknowledged", || done() > 10);
    c.kill(0);
    let began = Instant::now();
    fs::write(b.join("d/after"), "alive").unwrap();
    let waited = began.elapsed();
    writer.join().unwrap();
    c.detach(0);
    // A second or two, or more where the machine does much else; by its silence alone a node is missed
    // after more than a minute.
    assert!(waited < LONG, "node B needed {waited:?}");
    let count = done();
    for n in 0..count {
        let expected = n.to_le_bytes().repeat(1 + n as usize * 97 % 9000);
        let found = fs::read(b.join(format!("d/{n}"))).unwrap();
        assert!(found == expected, "file {n} of {count}");
    }
    // For people: no values as the program has them.
    let log = fs::read_to_string(format!("{}.log", b.display())).unwrap();
    assert!(log.contains("recovering a dead node") && !log.contains('{'), "{log}");
    c.finish();
}

/// The kernel then waits, inside the node's process, for pages that nobody will write any more: the
/// process would not end, and its liveness lock would stay.
#[test]
fn a_node_killed_while_its_pages_are_dropped_ends_and_is_recovered() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.node(0), c.node(1));
    fs::write(a.join("mapped"), vec![1; 1 << 20]).unwrap();
    File::open(a.join("mapped")).unwrap().sync_all().unwrap();
    let program = "import mmap,os,sys\n\
        m = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 1 << 20)\n\
        while True:\n for n in range(0, 1 << 20, 4096): m[n] = m[n] ^ 1";
    let mut writer = std::process::Command::new("python3")
        .args(["-c", program])
        .arg(a.join("mapped"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let script = "wc -c <\"$1/mapped\"; echo alive >\"$1/after\"";
    let mut reader = std::process::Command::new("sh")
        .args(["-euc", script, "sh"])
        .arg(b)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let node = c.pid(0);
    c.kill(0);
    // It ends by itself only if a page is missing just then. Killed, it ends unless it is stuck.
    writer.kill().unwrap();
    // Programs of their own: one that hangs is left behind.
    let began = Instant::now();
    for program in [&mut reader, &mut writer] {
        while program.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < LONG, "{program:?} hangs");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let mut seen = String::new();
    reader.stdout.take().unwrap().read_to_string(&mut seen).unwrap();
    assert_eq!(seen.trim(), "1048576");
    assert_eq!(fs::read_to_string(b.join("after")).unwrap(), "alive\n");
    let task = format!("/proc/{node}/task");
    while fs::read_dir(&task).is_ok_and(|tasks| tasks.count() > 1) {
        assert!(began.elapsed() < LONG, "{node} is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
    c.detach(0);
    c.finish();
}

#[test]
fn after_all_nodes_died_the_next_mount_recovers() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2, 256, 2);
    for (n, node) in [c.node(0).to_owned(), c.node(1).to_owned()].iter().enumerate() {
        let mut file = File::create(node.join(format!("f{n}"))).unwrap();
        file.write_all(&vec![n as u8; 100_000]).unwrap();
        file.sync_all().unwrap();
    }
    c.kill(0);
    c.kill(1);
    c.detach(0);
    c.detach(1);
    c.nodes.clear();
    let dir = c.disks.dir.path().join("again");
    c.nodes.push(dir.clone());
    c.nodes.clear();
    let again = c.mount(&[]);
    for n in 0..2_u8 {
        assert_eq!(fs::read(again.join(format!("f{n}"))).unwrap(), vec![n; 100_000]);
    }
    c.finish();
}

#[test]
fn programs_run_from_the_mount() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 512, 2);
    let (a, b) = (c.node(0).display(), c.node(1).display());
    sh(&format!(
        r#"
        cp /bin/ls {a}/ls; {b}/ls -d {b} >/dev/null
        cd {a} && git init -q repo && cd repo && git config user.email t@t && git config user.name t
        for i in $(seq 50); do echo $i >f$i; done; git add . && git commit -qm one
        cd {b}/repo && git status --porcelain | (! grep .) && git log --oneline | grep -q one
        cat >{a}/hello.c <<'C'
#include <stdio.h>
int main(void) {{ puts("hello"); return 0; }}
C
        gcc -o {a}/hello {a}/hello.c && test "$({b}/hello)" = hello
        tar -C /usr/include -cf {a}/inc.tar linux && mkdir {b}/x && tar -C {b}/x -xf {a}/inc.tar
        diff -r /usr/include/linux {a}/x/linux
        sqlite3 {a}/db 'create table t(x); insert into t values (1),(2);'
        sqlite3 {b}/db 'insert into t values (3);'
        test "$(sqlite3 {a}/db 'select sum(x) from t')" = 6
        sqlite3 {b}/db 'pragma journal_mode=delete; begin; insert into t values (10); rollback; pragma integrity_check;' | grep -q ok
        "#
    ));
    c.finish();
}

#[test]
fn a_full_pool_says_so_and_keeps_what_was_there() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 128, 2);
    let (a, b) = (c.node(0), c.node(1));
    fs::write(a.join("early"), vec![1; 1 << 20]).unwrap();
    let mut file = File::create(a.join("fill")).unwrap();
    let chunk = vec![2_u8; 1 << 20];
    let error = loop {
        if let Err(e) = file.write_all(&chunk) {
            break e;
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    drop(file);
    assert_eq!(fs::read(b.join("early")).unwrap(), vec![1; 1 << 20]);
    fs::remove_file(b.join("fill")).unwrap();
    let began = Instant::now();
    while fs::write(b.join("again"), vec![3; 16 << 20]).is_err() {
        assert!(began.elapsed() < LONG, "space never comes back");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(fs::read(a.join("again")).unwrap(), vec![3; 16 << 20]);
    c.finish();
}

/// Blocks that `df` calls available, and their size.
fn available(mount: &Path) -> (u64, u64) {
    let out = std::process::Command::new("stat").args(["-f", "-c", "%a %S"]).arg(mount).output();
    let text = String::from_utf8(out.unwrap().stdout).unwrap();
    let mut numbers = text.split_whitespace().map(|n| n.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn what_df_calls_available_is_allocated_though_the_other_node_writes() {
    const BUSY: u64 = 8 << 20;
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 128, 2);
    let (a, b) = (c.node(0), c.node(1));
    fs::write(b.join("early"), vec![1; 1 << 20]).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // It allocates all the time, and has no more than that in all.
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                fs::write(b.join("busy"), vec![2; BUSY as usize / 2]).unwrap();
                fs::remove_file(b.join("busy")).unwrap();
            }
        });
        std::thread::sleep(Duration::from_secs(2));
        let (blocks, size) = available(a);
        let len = blocks * size - BUSY;
        let file = a.join("all");
        let done = std::process::Command::new("fallocate")
            .args(["-l", &len.to_string()])
            .arg(&file)
            .status();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(done.unwrap().success(), "{len} bytes of {}", blocks * size);
        assert_eq!(fs::metadata(&file).unwrap().blocks() * 512, len);
    });
    // Both say the same soon, and what is left can be had, too, on the other node.
    std::thread::sleep(Duration::from_secs(1));
    let began = Instant::now();
    while available(a) != available(b) {
        assert!(began.elapsed() < LONG, "{:?} and {:?}", available(a), available(b));
        std::thread::sleep(Duration::from_millis(50));
    }
    let (blocks, size) = available(b);
    sh(&format!("fallocate -l {} {}/rest", blocks * size, b.display()));
    fs::remove_file(b.join("all")).unwrap();
    fs::write(a.join("again"), vec![3; 16 << 20]).unwrap();
    c.finish();
}

#[test]
fn direct_and_buffered_agree() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(4, 256, 2);
    let (a, b) = (c.node(0), c.node(1));
    sh(&format!(
        "head -c 8M /dev/urandom >{0}/src && dd if={0}/src of={1}/copy bs=1M oflag=direct status=none && cmp {0}/src {0}/copy && \
         dd if={1}/copy of={0}/back bs=64K iflag=direct status=none && cmp {1}/src {1}/back",
        a.display(),
        b.display()
    ));
    let direct =
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(a.join("copy")).unwrap();
    fs::write(b.join("copy"), vec![9; 4096]).unwrap();
    let mut page = braid_fs::pool::device::AlignedBuf::zeroed(4096);
    direct.read_exact_at(&mut page, 0).unwrap();
    assert!(page.iter().all(|&x| x == 9), "direct read of what the other node wrote");
    drop(direct);
    c.finish();
}

/// Stores into a shared mapping of its own file without a pause, while a hundred threads ask for the size of the
/// other's file; both end once the third file is there.
const STORE_AND_ASK: &str = "import ctypes, mmap, os, sys, threading, time
mine, other, stop = sys.argv[1:]
SIZE, EMPTY_PATH, FORCE_SYNC = 1 << 20, 0x1000, 0x2000
fd = os.open(other, os.O_RDONLY)
if os.fork() == 0:
    # In a process of its own: a store that waits for its page would keep the other threads from running.
    pages = (ctypes.c_char * SIZE).from_buffer(mmap.mmap(os.open(mine, os.O_RDWR), SIZE))
    n = 0
    while not os.path.exists(stop):
        for _ in range(100): ctypes.memset(pages, n % 256, SIZE); n += 1
    os._exit(0)
libc = ctypes.CDLL(None)
def ask():
    out = ctypes.create_string_buffer(256)
    while not os.path.exists(stop): assert libc.statx(fd, b'', EMPTY_PATH | FORCE_SYNC, 0x7ff, out) == 0
threads = [threading.Thread(target=ask) for n in range(100)]
for t in threads: t.start()
for t in threads: t.join()
assert os.wait()[1] == 0
";

/// Each node's threads all wait for a file of the other one. What a program stores there by a mapping needs a page
/// first, and the file goes to the other node only after that page: it is not kept waiting for a thread.
#[test]
fn nodes_whose_threads_all_wait_for_mapped_files_of_each_other_go_on() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1, 256, 0);
    let [a, b] = [(); 2].map(|()| c.mount(&["workers_max=16"]).display().to_string());
    let (program, stop) = (c.disks.path("store.py"), c.disks.path("stop"));
    fs::write(&program, STORE_AND_ASK).unwrap();
    sh(&format!("for f in x y; do truncate -s 1M {a}/$f; done; ls -l {b}"));
    let ends = sh(&format!(
        "python3 {program} {a}/x {a}/y {stop} & one=$!; python3 {program} {b}/y {b}/x {stop} & two=$!
        sleep 8; touch {stop}; sleep 40 & wait -n -p first $one $two; wait -n -p second $one $two $!
        echo $first $second | tr ' ' '\\n' | grep -c -e ^$one'$' -e ^$two'$'; kill $one $two $! 2>/dev/null || true"
    ));
    assert_eq!(ends.trim(), "2", "programs hang");
    c.finish();
}

/// Reads pages of a file that the kernel must not keep, by eight processes, until the other file is there.
const FILL_PAGES: &str = "import os, random, sys
path, stop = sys.argv[1:]
children = 0
while children < 8:
    children += 1
    if os.fork() == 0:
        fd = os.open(path, os.O_RDONLY)
        pages = os.fstat(fd).st_size // 4096
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        while not os.path.exists(stop):
            for _ in range(100):
                page = random.randrange(pages)
                os.posix_fadvise(fd, page * 4096, 4096, os.POSIX_FADV_DONTNEED)
                assert len(os.pread(fd, 4096, page * 4096)) == 4096
        os._exit(0)
for _ in range(children): assert os.wait()[1] == 0
";

/// Whoever may read a file may have its pages read again and again. The other node gets it all the same, and what
/// it has written is seen.
#[test]
fn a_file_whose_pages_are_filled_without_a_pause_goes_to_the_other_node() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1, 256, 0);
    let [a, b] = [(); 2].map(|()| c.mount(&[]).display().to_string());
    let (program, stop) = (c.disks.path("fill.py"), c.disks.path("stop"));
    fs::write(&program, FILL_PAGES).unwrap();
    sh(&format!("head -c 4000000 /dev/urandom > {a}/file; ls -l {b}"));
    let said = sh(&format!(
        "python3 {program} {a}/file {stop} & fills=$!
        sleep 1
        for n in 1 2 3 4 5; do
            timeout -k 1 20 dd of={b}/file bs=4096 seek=$n count=1 conv=notrunc status=none if=/dev/zero || echo late
            head -c $(( (n + 1) * 4096 )) {a}/file | tail -c 4096 | tr -d '\\0' | wc -c
        done
        touch {stop}; wait $fills && echo ended"
    ));
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["0", "0", "0", "0", "0", "ended"]);
    c.finish();
}
