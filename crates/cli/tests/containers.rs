//! Nodes in containers of one host that have device nodes of their own for the same disk: each sees that the
//! other lives.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::device::Loop;
use common::{Disks, can_mount, ok, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// A mount namespace with a `/dev` that has this disk and what a mount needs; it ends when dropped, and with
/// it what is mounted in it.
struct Container {
    keeper: Child,
    dir: String,
}

impl Container {
    fn new(disk: &str, dir: String) -> Self {
        std::fs::create_dir(&dir).unwrap();
        // The copies of other tests' mounts go at once: their nodes could not leave.
        let script = "for m in $(awk '/ - fuse.braid /{ print $5 }' /proc/self/mountinfo); do umount -l $m; done
            mount -t tmpfs none /dev && mkdir -p $(dirname $1)
            mknod $1 b $2 $3 && mknod /dev/fuse c 10 229 && mknod /dev/null c 1 3
            mknod /dev/urandom c 1 9 && mkdir -p $4 && mount -t tmpfs none $4 && : > $4/ready
            exec sleep 1000";
        let number = std::os::unix::fs::MetadataExt::rdev(&std::fs::metadata(disk).unwrap());
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let mut keeper = Command::new("unshare");
        keeper.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh", disk]);
        keeper.args([&major.to_string(), &minor.to_string(), &dir]);
        let container = Self { keeper: keeper.spawn().unwrap(), dir };
        wait_until("the container is there", || {
            container.run("test -e $DIR/ready").status.success()
        });
        container
    }
    /// A shell's script in the container; `$DIR` is a directory of its own.
    fn run(&self, script: &str) -> Output {
        let namespace = format!("--mount=/proc/{}/ns/mnt", self.keeper.id());
        let mut command = Command::new("nsenter");
        command.args([&namespace, "timeout", "60", "bash", "-euc", script]);
        command.env("DIR", &self.dir).env("BRAID", env!("CARGO_BIN_EXE_braid"));
        command.stdin(Stdio::null()).output().unwrap()
    }
    /// One that must succeed; what it says.
    fn ok(&self, script: &str) -> String {
        let out = self.run(script);
        assert!(out.status.success(), "{script}: {out:?}; log: {}", self.log());
        String::from_utf8(out.stdout).unwrap()
    }
    fn mount(&self, disk: &str, options: &str) -> Output {
        self.run(&format!(
            "mkdir -p $DIR/mnt; $BRAID mount {disk} $DIR/mnt -o log=$DIR/log{options}"
        ))
    }
    fn log(&self) -> String {
        String::from_utf8(self.run("cat $DIR/log").stdout).unwrap()
    }
    /// The process of its node.
    fn node(&self) -> Pid {
        let said = self.ok("$BRAID status --json");
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let dir = format!("{}/mnt", self.dir);
        let mounts = said["mounts"].as_array().unwrap().iter();
        let mut pid =
            mounts.filter(|m| m["mount_point"] == dir.as_str()).map(|m| m["pid"].as_i64());
        Pid::from_raw(i32::try_from(pid.next_back().unwrap().unwrap()).unwrap()).unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.run("umount -l $DIR/mnt");
        self.keeper.kill().ok();
        self.keeper.wait().ok();
    }
}

/// A node that goes on when this is dropped.
struct Stopped(Pid);
impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).ok();
    }
}

#[test]
fn nodes_in_containers_with_device_nodes_of_their_own_do_not_take_each_other_over() {
    const STOPPED: Duration = Duration::from_millis(1600);
    if !can_mount() {
        return;
    }
    let disks = Disks::new(1, 256);
    let Some(device) = Loop::new(Path::new(disks.names()[0])) else {
        return braid_testkit::skip("no loop devices");
    };
    let disk = device.0.as_str();
    ok(&["create", "contained", disk, "--nodes", "3"]);
    let [a, b, c] = ["a", "b", "c"].map(|name| Container::new(disk, disks.path(name)));
    for (container, options) in [(&a, ",slot=0"), (&b, "")] {
        let out = container.mount(disk, options);
        assert!(out.status.success(), "{out:?}; {}", container.log());
    }
    let acknowledged = |node: &Container, name: &str| {
        node.ok(&format!("echo {name} > $DIR/mnt/{name}; sync $DIR/mnt/{name}"));
    };
    acknowledged(&a, "first");
    acknowledged(&b, "second");
    for stops in [false, true] {
        let begun = Instant::now();
        let stopped = stops.then(|| {
            let node = a.node();
            kill_process(node, Signal::STOP).unwrap();
            Stopped(node)
        });
        // Whoever wants its slot is refused, or waits.
        let refused = std::thread::scope(|s| {
            let mounting = s.spawn(|| c.mount(disk, ",slot=0"));
            if stops {
                std::thread::sleep(STOPPED.saturating_sub(begun.elapsed()));
            }
            drop(stopped);
            mounting.join().unwrap()
        });
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("slot 0"), "{stops}: {refused:?}");
        let name = format!("later{stops}");
        acknowledged(&a, &name);
        acknowledged(&b, &format!("{name}b"));
    }
    // A third node gets a slot of its own, and all of them see everything.
    let out = c.mount(disk, "");
    assert!(out.status.success(), "{out:?}; {}", c.log());
    for node in [&a, &b, &c] {
        let all = "first laterfalse laterfalseb latertrue latertrueb second";
        assert_eq!(node.ok("cd $DIR/mnt; cat * | sort | xargs"), format!("{all}\n"));
        let log = node.log();
        assert!(!log.contains("recover") && !log.contains("withdr"), "{log}");
    }
    for node in [&a, &b, &c] {
        node.ok("$BRAID unmount $DIR/mnt");
    }
    assert!(ok(&["check", disk]).contains("clean"));
}

/// A container of a user namespace, which was there before the host mounted the pool, uses the directory that it was
/// shown, and has it again after the host has mounted anew.
#[test]
fn a_container_uses_a_directory_of_the_host() {
    if !can_mount() || !common::device::can_be_root("mounts are shared") {
        return;
    }
    let disks = Disks::new(1, 256);
    ok(&disks.with(&["create", "shown"], &[]));
    let shown = disks.path("shown");
    let dir = format!("{shown}/pool");
    common::sh(&format!(
        "mkdir {shown}; mount -t tmpfs none {shown}; mount --make-shared {shown}; mkdir {dir}"
    ));
    let ready = format!("{shown}/ready");
    let mut container = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "--propagation", "slave"])
        .args(["sh", "-c", ": > $1; exec sleep 1000", "sh", &ready])
        .spawn()
        .unwrap();
    wait_until("the container is there", || Path::new(&ready).exists());
    let target = container.id().to_string();
    let inside = |script: &str| {
        let mut command = Command::new("nsenter");
        command.args(["--user", "--preserve-credentials", "--mount", "--target", &target]);
        let out = command.args(["sh", "-euc", script]).output().unwrap();
        assert!(out.status.success(), "{script}: {out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let mut said = Vec::new();
    for round in ["first", "second"] {
        ok(&disks.with(&["mount"], &[&dir]));
        std::fs::write(format!("{dir}/{round}"), "by the host").unwrap();
        said.push(inside(&format!("cat {dir}/{round}; echo by the container > {dir}/answer")));
        said.push(std::fs::read_to_string(format!("{dir}/answer")).unwrap());
        common::unmount_idle(dir.as_ref());
        said.push(inside(&format!("ls {dir}")));
    }
    container.kill().unwrap();
    container.wait().unwrap();
    common::sh(&format!("umount {shown}"));
    let round = ["by the host", "by the container\n", ""];
    assert_eq!(said, [round, round].concat());
}

/// What each of two users does in a user namespace of their own, whose root they are: `$1` is the command, `$2` the user.
const IN_A_USER_NAMESPACE: &str = r#"
    braid=$1
    cd $HOME
    truncate -s 128M disk
    $braid create own disk >/dev/null 2>&1
    mkdir a b u
    for dir in a b; do $braid mount disk $dir -o log=$dir.log; done
    echo one > a/f; sync a/f; echo two >> b/f; test "$(cat a/f)" = "one
two"
    test $(stat -c %u:%g b/f) = 0:0
    if chown 5 a/f 2>/dev/null; then exit 3; fi
    $braid nodes a | grep -c alive
    # A node that is killed is recovered by the other one.
    echo kept > b/kept; sync b/kept
    kill -KILL $($braid nodes a | awk '$NF ~ "/b$" { print $(NF - 1) }')
    test $(timeout 30 cat a/kept) = kept
    umount -l b
    $braid unmount a
    $braid check disk | grep -o clean
    # A unit of a target, whose liveness files are this user's own.
    $braid target --listen 127.0.0.1:0 memory:64M > units & target=$!
    trap "kill $target" EXIT
    for i in $(seq 100); do test -s units && break; sleep 0.1; done
    unit=$(head -1 units)
    $braid create unit $unit >/dev/null
    $braid mount $unit u
    echo three > u/f; cat u/f
    $braid status | grep -c /u
    $braid unmount u
    # Nobody has logged in, and the environment has no say.
    test -d /tmp/braid-$2/iscsi
"#;

/// Ordinary users who are root in user namespaces, with a `/dev/fuse` that is open to all: each mounts pools of files
/// and of units, and neither is in the other's way.
#[test]
fn users_mount_pools_in_user_namespaces_of_their_own() {
    if !can_mount() || !common::device::can_be_root("other users are played") {
        return;
    }
    let disks = Disks::new(0, 0);
    let dir = disks.dir.path().display();
    let braid = env!("CARGO_BIN_EXE_braid");
    let script = disks.path("script");
    std::fs::write(&script, format!("set -euo pipefail\n{IN_A_USER_NAMESPACE}")).unwrap();
    // The copies of other tests' mounts go at once: their nodes could not leave.
    let outside = format!(
        "for m in $(awk '/ - fuse.braid /{{ print $5 }}' /proc/self/mountinfo); do umount -l $m; done
         chmod 755 {dir}; cd {dir}; mkdir -m 1777 tmp; : > braid; mount --bind {braid} braid
         mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
         mountpoint -q /sys/fs/fuse/connections || mount -t fusectl none /sys/fs/fuse/connections
         as_user() {{
             mkdir $1; chown $1:$1 $1
             setpriv --reuid=$1 --regid=$1 --clear-groups env -i PATH=$PATH HOME={dir}/$1 TMPDIR={dir}/tmp XDG_RUNTIME_DIR={dir}/tmp \
                 timeout 100 unshare --user --map-root-user --mount bash {script} {dir}/braid $1 >$1.out 2>&1
         }}
         as_user 65533 & first=$!
         as_user 65534 || {{ cat 65534.out; exit 1; }}
         wait $first || {{ cat 65533.out; exit 1; }}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "bash", "-euc", &outside]);
    let out = command.stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    for user in ["65533", "65534"] {
        let said = std::fs::read_to_string(disks.path(&format!("{user}.out"))).unwrap();
        assert_eq!(said, "2\nclean\nthree\n1\n");
    }
}
