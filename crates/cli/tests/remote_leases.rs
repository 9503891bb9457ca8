//! Mounts from a server keep what they have asked for, and never show what is old.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::remote::Remote;
use common::served::Served;
use common::{Cluster, Disks, can_mount, ok, sh, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// The longest that others wait for a client, and as long again for a machine with much to do.
const BOUND: Duration = Duration::from_millis(2 * 2400);

/// A node and a server of one pool.
fn setting() -> (Cluster, Served) {
    let c = Cluster::of(Disks::new(2, 500), 1, &["--nodes", "4"]);
    let served = Served::new(&c.disks, &["--insecure", "--listen", "127.0.0.1:0"]);
    (c, served)
}

fn finish(mut c: Cluster) {
    c.unmount_all();
    let said = ok(&c.disks.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}

/// Runs a Python program on two mounts from one server (`A` and `C`) and a node of the same pool (`B`); `dirs` are all
/// three. Returns how many leases each mount then has.
fn on_two_mounts_and_a_node(program: &str) -> [u64; 2] {
    let (c, served) = setting();
    let mounts = ["a", "c"].map(|name| Remote::plain(&c.disks, name, &served));
    let [a, c_mount] = &mounts;
    let node = c.node(0).to_str().unwrap().to_owned();
    let dirs = format!("\nC = '{}'; dirs = [A, B, C]\n", c_mount.dir);
    a.python(&c.disks, &node, &format!("{dirs}{program}"));
    let leases = mounts.each_ref().map(|mount| status(mount, "leases"));
    mounts.into_iter().for_each(Remote::unmount);
    served.end();
    finish(c);
    leases
}

/// A mount from the server, and the paths of a file on the node and on that mount, which keeps its attributes.
fn mount_with_kept_file(c: &Cluster, served: &Served) -> (Remote, String, String) {
    let remote = Remote::plain(&c.disks, "remote", served);
    let (there, here) = (format!("{}/file", c.node(0).display()), format!("{}/file", remote.dir));
    std::fs::write(&there, "one").unwrap();
    chmod(&there, 0o640);
    assert_eq!(std::fs::read(&here).unwrap(), b"one");
    await_kept(&remote, &here);
    (remote, there, here)
}

/// What the process of a mount says of itself.
fn status(remote: &Remote, field: &str) -> u64 {
    let said: serde_json::Value =
        serde_json::from_str(&ok(&["status", "--json", &remote.dir])).unwrap();
    said["remote_mounts"][0][field].as_u64().unwrap()
}

fn mode(path: &str) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}
fn chmod(path: &str, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_was_asked_once_is_asked_no_more() {
    if !can_mount() {
        return;
    }
    let (c, served) = setting();
    let remote = Remote::plain(&c.disks, "remote", &served);
    let dir = &remote.dir;
    sh(&format!(
        "mkdir -p {dir}/a/b && cd {dir}/a/b && for n in $(seq 200); do echo $n > f$n; done"
    ));
    let asked = |script: &str| {
        let before = status(&remote, "requests");
        sh(script);
        status(&remote, "requests") - before
    };
    let walk = format!("find {dir} -printf '%s %m %p\\n' | sort | md5sum");
    wait_until("names and attributes are kept", || {
        sh(&walk);
        // Directories are opened and listed anew.
        asked(&walk) < 30
    });
    assert!(status(&remote, "leases") > 200);
    let read = format!("cat {dir}/a/b/f* | md5sum");
    wait_until("contents are kept", || {
        sh(&read);
        // Opened and closed.
        asked(&read) < 420
    });
    let stats =
        format!("python3 -c 'import os\nfor n in range(1, 201): os.stat(\"{dir}/a/b/f%d\" % n)'");
    wait_until("attributes are kept", || asked(&stats) < 5);
    let plain = Remote::new(&c.disks, "plain", &served.url, &["--insecure", "-o", "nocacheattr"]);
    sh(&format!("test $(ls {}/a/b | wc -l) = 200", plain.dir));
    assert_eq!(status(&plain, "leases"), 0);
    plain.unmount();
    remote.unmount();
    served.end();
    finish(c);
}

/// Everything that the kernel and the client keep is asked for before each change, and after it.
#[test]
fn what_is_kept_is_never_old() {
    if !can_mount() {
        return;
    }
    let leases = on_two_mounts_and_a_node(
        r#"
random.seed(5)
os.mkdir(f"{A}/d"); model = {}
def look(d, when):
    assert sorted(os.listdir(f"{d}/d")) == sorted(model), (when, d)
    for n in range(6):
        path = f"{d}/d/f{n}"
        if n not in names(): refused(errno.ENOENT, os.stat, path); continue
        mode, text, tag = model[f"f{n}"]
        s = os.stat(path)
        assert (stat.S_IMODE(s.st_mode), s.st_size) == (mode, len(text)), (when, path, oct(s.st_mode), s.st_size)
        with open(path, "rb") as f: assert f.read() == text, (when, path)
        assert os.listxattr(path) == (["user.tag"] if tag else []), (when, path)
        if tag: assert os.getxattr(path, "user.tag") == tag, (when, path)
def names(): return {int(name[1:]) for name in model}
def change(d, n):
    path, name = f"{d}/d/f{n}", f"f{n}"
    if name not in model:
        text = os.urandom(random.choice([0, 10, 9000, 300_000]))
        with open(path, "wb") as f: f.write(text)
        os.chmod(path, 0o644); model[name] = (0o644, text, None); return
    mode, text, tag = model[name]
    what = random.randrange(8)
    if what == 0: os.unlink(path); del model[name]
    elif what == 1: mode = random.choice([0o600, 0o640, 0o755]); os.chmod(path, mode)
    elif what == 2: tag = os.urandom(5); os.setxattr(path, "user.tag", tag)
    elif what == 3:
        with open(path, "ab") as f: f.write(b"more")
        text += b"more"
    elif what == 4: text = text[:len(text) // 2]; os.truncate(path, len(text))
    elif what == 5:
        other = f"f{(n + 1) % 6}"; os.rename(path, f"{d}/d/{other}")
        del model[name]; model[other] = (mode, text, tag); return
    elif what == 6 and tag: tag = None; os.removexattr(path, "user.tag")
    elif what == 7 and text:
        at = random.randrange(len(text))
        with open(path, "r+b") as f: f.seek(at); f.write(b"!")
        text = text[:at] + b"!" + text[at + 1:]
    if name in model: model[name] = (mode, text, tag)
for round in range(150):
    for d in dirs: look(d, (round, "before"))
    change(random.choice(dirs), random.randrange(6))
    for d in random.sample(dirs, 3): look(d, (round, "after"))
"#,
    );
    assert!(leases.iter().all(|held| *held > 0), "{leases:?}");
}

/// A name is looked up first, and what it has led to is opened then.
#[test]
fn a_file_that_another_replaces_without_a_pause_can_be_opened() {
    if !can_mount() {
        return;
    }
    on_two_mounts_and_a_node(
        r#"
open(f"{A}/f", "w").close()
def replace(d):
    while time.time() < end:
        with open(f"{d}/t", "w") as f: f.write("x")
        os.rename(f"{d}/t", f"{d}/f")
for d in [B, C]:
    end = time.time() + 3
    pid = os.fork()
    if pid == 0:
        try: replace(d); os._exit(0)
        except BaseException as e: print(repr(e), file=sys.stderr); os._exit(1)
    opened = 0
    while time.time() < end:
        os.close(os.open(f"{A}/f", os.O_RDONLY)); opened += 1
    assert opened > 20, (d, opened)
    assert os.waitpid(pid, 0)[1] == 0
"#,
    );
}

/// Programs on both mounts ask all the time, while all three change files.
#[test]
fn programs_beside_others_that_change_files_see_nothing_old() {
    if !can_mount() {
        return;
    }
    on_two_mounts_and_a_node(
        r#"
import mmap
shared = mmap.mmap(-1, 4096)
def put(at, n): shared[8 * at:8 * at + 8] = struct.pack("<Q", n)
def get(at): return struct.unpack("<Q", shared[8 * at:8 * at + 8])[0]
OWNER, SIZE, TEXT, NAME, STOP, READS = range(6)
fds = [os.open(f"{d}/f", os.O_RDWR | os.O_CREAT) for d in dirs]
os.pwrite(fds[0], bytes(4096), 0); os.mkdir(f"{A}/names"); open(f"{A}/names/0", "w").close(); put(SIZE, 4096)
def reader(d, seed):
    fd = os.open(f"{d}/f", os.O_RDONLY); reads = 0
    while not get(STOP):
        least = [get(n) for n in range(4)]
        s = os.stat(f"{d}/f")
        assert s.st_uid >= least[OWNER] and s.st_size >= least[SIZE], (d, s.st_uid, s.st_size, least)
        found = struct.unpack("<Q", os.pread(fd, 8, 0))[0]
        assert found >= least[TEXT], (d, found, least)
        with open(f"{d}/f", "rb") as f: found = struct.unpack("<Q", f.read(8))[0]
        assert found >= least[TEXT], (d, found, least)
        names = [int(name) for name in os.listdir(f"{d}/names")]
        assert not names or max(names) >= least[NAME], (d, names, least)
        assert not os.path.exists(f"{d}/names/{least[NAME] - 1}"), (d, least)
        reads += 1
    put(READS + seed, reads); os._exit(0)
pids = []
for n, d in enumerate([A, A, C, C]):
    pid = os.fork()
    if pid == 0:
        try: reader(d, n)
        except BaseException as e: print(repr(e), file=sys.stderr); put(STOP, 1); os._exit(1)
    pids.append(pid)
end, n = time.time() + 6, 0
while time.time() < end and not get(STOP):
    n += 1
    d = random.randrange(3)
    os.pwrite(fds[d], struct.pack("<Q", n), 0); put(TEXT, n)
    d = random.randrange(3)
    os.chown(f"{dirs[d]}/f", n, -1); put(OWNER, n)
    d = random.randrange(3)
    os.pwrite(fds[d], b"x", 4095 + n); put(SIZE, 4096 + n)
    d = random.randrange(3)
    os.rename(f"{dirs[d]}/names/{n - 1}", f"{dirs[d]}/names/{n}"); put(NAME, n)
    if n % 3 == 0: time.sleep(0.02)
put(STOP, 1)
assert [ended(pid) for pid in pids] == [0] * 4
assert n > 20 and all(get(READS + seed) > 20 for seed in range(4)), (n, [get(READS + seed) for seed in range(4)])
"#,
    );
}

/// Whether a program that asks for a file's mode is told within a second.
fn asks(path: &str) -> Option<String> {
    let mut child =
        Command::new("stat").args(["-c", "%a", path]).stdout(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        if child.try_wait().unwrap().is_some() {
            let mut told = String::new();
            std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut told).unwrap();
            return Some(told.trim().to_owned());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// Waits until a file's attributes are kept by the kernel.
fn await_kept(remote: &Remote, path: &str) {
    wait_until("it is kept", || {
        mode(path);
        let before = status(remote, "requests");
        mode(path);
        status(remote, "requests") == before
    });
}

#[test]
fn a_client_that_is_stopped_holds_nobody_up_for_long_and_wakes_up_without_what_is_old() {
    if !can_mount() {
        return;
    }
    let (c, served) = setting();
    let (remote, there, here) = mount_with_kept_file(&c, &served);
    let pid = Pid::from_raw(i32::try_from(status(&remote, "pid")).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    wait_until("all of its threads are stopped", || {
        let states = sh(&format!("cat /proc/{}/task/*/stat", pid.as_raw_nonzero()));
        states.lines().all(|line| line.contains(") T"))
    });
    let begun = Instant::now();
    chmod(&there, 0o600);
    std::fs::write(&there, "another").unwrap();
    let took = begun.elapsed();
    // Whoever asks the stopped client now is not told what was.
    let told = asks(&here);
    let later = Instant::now();
    chmod(&there, 0o604);
    let took_later = later.elapsed();
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!((mode(&here), std::fs::read(&here).unwrap()), (0o604, b"another".to_vec()));
    assert!(told.is_none() || told.as_deref() == Some("600"), "{told:?}");
    assert!(took < BOUND, "{took:?}");
    assert!(took_later < Duration::from_secs(1), "it has lost its leases: {took_later:?}");
    let log = std::fs::read_to_string(c.disks.path("serve.log")).unwrap();
    assert!(log.contains("is late"), "{log}");
    // After a while it keeps things again.
    await_kept(&remote, &here);
    remote.unmount();
    served.end();
    finish(c);
}

#[test]
fn what_a_killed_server_has_granted_is_kept_no_more() {
    if !can_mount() {
        return;
    }
    let (c, served) = setting();
    let (remote, there, here) = mount_with_kept_file(&c, &served);
    let address = served.address().to_owned();
    served.kill();
    chmod(&there, 0o600);
    let told = asks(&here);
    assert!(told.is_none() || told.as_deref() == Some("600"), "{told:?}");
    let served = Served::new(&c.disks, &["--insecure", "--listen", &address]);
    assert_eq!(mode(&here), 0o600);
    await_kept(&remote, &here);
    remote.unmount();
    served.end();
    finish(c);
}
