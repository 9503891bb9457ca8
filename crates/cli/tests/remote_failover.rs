//! Mounts from several servers of a pool: they go on with another one when a server dies.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::remote::Remote;
use common::served::{Served, wait_for_io};
use common::{Disks, can_mount, fails, ok, sh, wait_until};
use rustix::process::Signal;
use serde_json::Value;

fn pool() -> Disks {
    let disks = Disks::in_memory(2, 500);
    ok(&disks.with(&["create", "test", "--nodes", "6"], &[]));
    disks
}

fn serve(disks: &Disks, listen: &str) -> Served {
    Served::new(disks, &["--insecure", "--listen", listen])
}

/// A server at each of two ports, and what names both.
fn two(disks: &Disks) -> ([Served; 2], String) {
    let served = [serve(disks, "127.0.0.1:0"), serve(disks, "127.0.0.1:0")];
    let url = format!("braid://{},{}/test", served[0].address(), served[1].address());
    (served, url)
}

/// A node that died is recovered by the next one.
fn clean_after_death(disks: &Disks) {
    serve(disks, "127.0.0.1:0").end();
    let said = ok(&disks.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}

fn status(remote: &Remote) -> Value {
    let all: Value = serde_json::from_str(&ok(&["status", "--json", &remote.dir])).unwrap();
    all["remote_mounts"][0].clone()
}

/// A program that works until the file `count`.stop is there. What it has been told is in files beside the pool.
struct Program {
    child: Child,
    count: String,
}

/// Makes files durable under a temporary name and gives them their names; makes blocks of a file durable, one by one;
/// removes names. Each file says which round it is of.
const WRITER: &str = r#"
import os, sys, time
dir, count = sys.argv[1:]
log = os.open(f"{dir}/log", os.O_RDWR | os.O_CREAT, 0o600); os.fsync(log)
n, longest, last = 0, 0, time.monotonic()
while not os.path.exists(f"{count}.stop"):
    f = os.open(f"{dir}/temporary", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(f, b"%015d\n" % n * 256); os.fsync(f)
    os.rename(f"{dir}/temporary", f"{dir}/file{n % 4}")
    os.pwrite(log, b"%015d\n" % n, 16 * n); assert os.pread(log, 16, 16 * n) == b"%015d\n" % n
    if n % 2: os.fsync(log)
    assert os.pread(f, 16, 4080) == b"%015d\n" % n
    os.close(f)
    open(f"{dir}/removed{n}", "w").close(); os.unlink(f"{dir}/removed{n}")
    n += 1
    now = time.monotonic(); longest, last = max(longest, now - last), now
    open(f"{count}.new", "w").write(f"{n} {longest}"); os.rename(f"{count}.new", count)
"#;

impl Program {
    fn start(disks: &Disks, remote: &Remote) -> Self {
        let (script, count) = (disks.path("writer.py"), disks.path("count"));
        std::fs::write(&script, WRITER).unwrap();
        let child = Command::new("timeout")
            .args(["300", "python3", &script, &remote.dir, &count])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, count }
    }
    /// Rounds that are done, and the longest, seconds.
    fn done(&self) -> (u64, f64) {
        let text = std::fs::read_to_string(&self.count).unwrap_or_default();
        let mut words = text.split(' ');
        let rounds = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        (rounds, words.next().and_then(|word| word.parse().ok()).unwrap_or(0.0))
    }
    /// It has done some more rounds.
    fn goes_on(&self) {
        let before = self.done().0;
        wait_until("the program goes on", || self.done().0 > before + 3);
    }
    /// It ends; all that it was told of is in `dir`.
    fn end(self, dir: &str) {
        std::fs::write(format!("{}.stop", self.count), "").unwrap();
        let count = self.count.clone();
        let ended = self.child.wait_with_output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        let text = std::fs::read_to_string(&count).unwrap();
        let rounds = text.split(' ').next().unwrap();
        sh(&format!(
            r#"python3 -c '
import os
dir, n = "{dir}", {rounds}
log = open(f"{{dir}}/log", "rb").read()
assert log == b"".join(b"%015d\n" % i for i in range(n)), (len(log), n)
for i in range(n - 4, n):
    assert open(f"{{dir}}/file{{i % 4}}", "rb").read() == b"%015d\n" % i * 256, i
assert sorted(os.listdir(dir)) == ["file0", "file1", "file2", "file3", "log"], os.listdir(dir)
'"#
        ));
    }
}

/// Servers are killed one after the other. The program notices nothing but a wait.
#[test]
fn killed_servers_take_nothing_along_and_another_one_goes_on() {
    if !can_mount() {
        return;
    }
    let disks = pool();
    let (served, url) = two(&disks);
    let [first, mut other] = served;
    let addresses = [first.address().to_owned(), other.address().to_owned()];
    let remote = Remote::new(&disks, "remote", &url, &["--insecure"]);
    let said = ok(&["status", &remote.dir]);
    assert!(said.contains(&format!("{} is used since", addresses[0])), "{said}");
    let program = Program::start(&disks, &remote);
    let mut used = first;
    for round in 0..4 {
        program.goes_on();
        let begun = Instant::now();
        used.kill();
        let is_moved = || status(&remote)["server_moves"] == round + 1;
        wait_until("another server is used", is_moved);
        let moved = begun.elapsed();
        program.goes_on();
        let goes_on = begun.elapsed();
        println!("round {round}: moved after {moved:?}, went on after {goes_on:?}");
        assert!(goes_on < Duration::from_secs(20), "{goes_on:?}");
        let at = usize::try_from(round).unwrap() % 2;
        assert_eq!(status(&remote)["server"], addresses[1 - at]);
        used = std::mem::replace(&mut other, serve(&disks, &addresses[at]));
    }
    println!("the longest round: {} s", program.done().1);
    let log = remote.log();
    assert_eq!(log.matches("is dead: going on with").count(), 4, "{log}");
    program.end(&remote.dir);
    remote.unmount();
    used.end();
    other.end();
    clean_after_death(&disks);
}

/// A server that is stopped for a while is waited for. One that is stopped for long is ended by its neighbour and
/// recovered; then the client goes on there.
#[test]
fn a_stopped_server_is_waited_for_until_it_is_fenced() {
    if !can_mount() {
        return;
    }
    let disks = pool();
    let (served, url) = two(&disks);
    let [mut first, second] = served;
    let remote = Remote::new(&disks, "remote", &url, &["--insecure"]);
    let program = Program::start(&disks, &remote);
    program.goes_on();
    first.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(5));
    let stopped_at = program.done().0;
    assert_eq!(status(&remote)["connected"], false, "it is not said that there is no answer");
    first.signal(Signal::CONT);
    program.goes_on();
    assert!(program.done().0 > stopped_at);
    assert_eq!(status(&remote)["server_moves"], 0);
    let begun = Instant::now();
    first.signal(Signal::STOP);
    wait_until("it is ended", || first.has_ended());
    program.goes_on();
    println!("went on {:?} after the server was stopped", begun.elapsed());
    let now = status(&remote);
    assert_eq!((&now["server_moves"], &now["server"]), (&1.into(), &second.address().into()));
    program.end(&remote.dir);
    remote.unmount();
    second.end();
    clean_after_death(&disks);
}

/// A server that ends as a user ends it.
#[test]
fn a_server_that_leaves_is_replaced() {
    if !can_mount() {
        return;
    }
    let disks = pool();
    let (served, url) = two(&disks);
    let [first, second] = served;
    let remote = Remote::new(&disks, "remote", &url, &["--insecure"]);
    let program = Program::start(&disks, &remote);
    program.goes_on();
    let begun = Instant::now();
    first.end();
    program.goes_on();
    println!("went on {:?} after the server was ended", begun.elapsed());
    assert_eq!(status(&remote)["server"], second.address());
    program.end(&remote.dir);
    let said = ok(&["status", &remote.dir]);
    assert!(said.contains("once a server had died"), "{said}");
    remote.unmount();
    second.end();
    clean_after_death(&disks);
}

/// With certificates: a copy goes on at a second host's server, which has its own certificate.
#[test]
fn a_copy_goes_on_at_another_server_with_its_own_certificate() {
    let disks = pool();
    let (first, second) = (disks.path("first"), disks.path("second"));
    let devices = disks.names().join(":");
    ok(&["serve", "init", &devices, "--dir", &first, "--address", "127.0.0.1"]);
    let (bundle, alice) = (disks.path("two"), disks.path("alice"));
    ok(&["serve", "invite", "test", "two", "--server", "--output", &bundle, "--dir", &first]);
    ok(&["serve", "install", &bundle, "--dir", &second]);
    ok(&["serve", "invite", "test", "alice", "--output", &alice, "--dir", &first]);
    let serve = |dir: &str| Served::new(&disks, &["--dir", dir, "--listen", "127.0.0.1:0"]);
    let (one, two) = (serve(&first), serve(&second));
    let url = format!("braid://{},{}/test/copy", one.address(), two.address());
    let (source, back) = (disks.path("source"), disks.path("back"));
    sh(&format!("head -c 200M /dev/urandom > {source}"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(["cp", &source, &url, "--identity", &alice, "--verify"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_io(&child, "rchar", 40);
    one.kill();
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    ok(&["cp", &url, &back, "--identity", &alice]);
    sh(&format!("cmp {source} {back}"));
    two.end();
    let said = fails(&["cp", &source, "braid://a,b,a/test/", "--identity", &alice]);
    assert!(said.contains("a:7420 is named twice"), "{said}");
}
