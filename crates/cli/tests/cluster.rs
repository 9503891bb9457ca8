//! Eight nodes on hosts of their own (network namespaces), one pool on units of a target on a ninth,
//! and everything that can happen to hosts and cables. Programs on all nodes write down what they did
//! and saw; a judge finds no acknowledged write lost, no read stale, no lock held twice.
//!
//! The same with the locks in etcd on the ninth, which is killed and comes back.
//!
//! A bounded round runs always. `BRAID_CLUSTER_SECONDS=N` goes on with accidents drawn from
//! `BRAID_CLUSTER_SEED` for so long.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "cluster/etcd.rs"]
mod etcd;
#[path = "cluster/judge.rs"]
mod judge;
#[path = "cluster/work.rs"]
mod work;

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::net::Net;
use common::{can_mount, ok, sh};
use rustix::process::{Pid, Signal, kill_process};

const NODES: usize = 8;
const TARGET: usize = NODES;
const UNITS: usize = 2;
/// Seconds: timers that a busy machine can keep.
const IO_TIMEOUT: u64 = 3;
/// All that an accident may take, on a machine that does much else.
const LONG: Duration = Duration::from_secs(90);
/// Which program a worker is, in this file run once more.
const WORKER: &str = "BRAID_CLUSTER_WORKER";

static STARTED: AtomicU64 = AtomicU64::new(1);
/// One cluster at a time: the networks of two would have the same names.
static ALONE: Mutex<()> = Mutex::new(());

/// Not a test: what [`Host::work`] starts.
#[test]
#[ignore = "a part of the other one"]
fn worker() {
    let Ok(words) = std::env::var(WORKER) else { return };
    let [dir, id, log, stop] = words.split('|').collect::<Vec<_>>()[..] else { return };
    work::run(dir.as_ref(), id.parse().unwrap(), log.as_ref(), stop.as_ref());
}

struct Host {
    n: usize,
    dir: String,
    log: PathBuf,
    pid: Pid,
    worker: Child,
    /// It is not as it should be: no progress is awaited.
    down: bool,
}

struct Cluster {
    net: Net,
    temp: tempfile::TempDir,
    target: Option<Child>,
    etcd: Option<etcd::Etcd>,
    hosts: Vec<Host>,
    began: Instant,
}

impl Cluster {
    fn new() -> Option<Self> {
        let net = Net::new(NODES + 1)?;
        let temp = tempfile::tempdir().unwrap();
        let (target, etcd, hosts) = (None, None, Vec::new());
        let mut cluster = Self { net, temp, target, etcd, hosts, began: Instant::now() };
        for n in 0..UNITS {
            let file = std::fs::File::create(cluster.path(&format!("unit{n}"))).unwrap();
            file.set_len(512 << 20).unwrap();
        }
        cluster.serve();
        Some(cluster)
    }
    fn say(&self, what: &str) {
        println!("{:6.2} {what}", self.began.elapsed().as_secs_f64());
    }
    fn path(&self, name: &str) -> String {
        self.temp.path().join(name).to_str().unwrap().to_owned()
    }
    /// Starts the target.
    fn serve(&mut self) {
        let at = format!("{}:3260", Net::address(TARGET));
        let mut command = self.net.command(TARGET, env!("CARGO_BIN_EXE_braid"));
        command.args(["target", "--listen", &at, "--reservations", &self.path("reservations")]);
        command.args((0..UNITS).map(|n| self.path(&format!("unit{n}"))));
        let mut target = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(target.stdout.take().unwrap());
        assert_eq!(out.lines().map_while(Result::ok).take(UNITS).count(), UNITS);
        self.target = Some(target);
    }
    fn end_target(&mut self, signal: Signal) {
        let mut target = self.target.take().unwrap();
        kill_process(Pid::from_child(&target), signal).unwrap();
        target.wait().unwrap();
    }
    /// `braid` on a host.
    fn braid(&self, host: usize, args: &[&str], tail: &[&str]) -> Command {
        let mut command = self.net.command(host, "timeout");
        command.args(["90", env!("CARGO_BIN_EXE_braid")]).args(args);
        let at = Net::address(TARGET);
        let name = |n| format!("iscsi://{at}:3260/iqn.2026-11.org.braid:target/{n}");
        command.args((0..UNITS).map(name)).args(tail);
        command.env("BRAID_INITIATOR", format!("iqn.2026-11.org.braid:host{host}"));
        command.env("BRAID_PRETENDED_HOST", format!("host{host}"));
        command
    }
    fn ok(&self, host: usize, args: &[&str], tail: &[&str]) -> String {
        let out = self.braid(host, args, tail).output().unwrap();
        assert!(out.status.success(), "{args:?}: {out:?}");
        String::from_utf8(out.stdout).unwrap()
    }
    /// Mounts on a host, anew.
    fn mount(&self, n: usize) -> (String, Pid) {
        let dir = self.path(&format!("{n}-{}", STARTED.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&dir).unwrap();
        let options = format!("log={dir}.log,io_timeout={IO_TIMEOUT}");
        self.ok(n, &["mount"], &[&dir, "-o", &options]);
        let pid = common::pid_of(&dir);
        (dir, pid)
    }
    /// Starts the programs of a node.
    fn work(&self, n: usize, dir: String, pid: Pid) -> Host {
        let id = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = PathBuf::from(self.path(&format!("log{id}")));
        let words = format!("{dir}|{id}|{}|{}", log.display(), self.path("stop"));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "worker"]).env(WORKER, words);
        let worker = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Host { n, dir, log, pid, worker, down: false }
    }
    fn come_back(&mut self, n: usize) {
        self.retire(n);
        let (dir, pid) = self.mount(n);
        self.hosts[n] = self.work(n, dir, pid);
        self.say(&format!("host {n} is back"));
    }
    /// Takes away what is left of a node that has died, or does nothing any more.
    fn retire(&mut self, n: usize) {
        let host = &mut self.hosts[n];
        let said = std::fs::read_to_string(format!("{}.log", host.dir)).unwrap();
        assert!(!said.contains("panicked"), "{said}");
        common::braid(&["unmount", "--lazy", &host.dir]);
        host.worker.kill().ok();
        let (began, pid) = (Instant::now(), host.pid);
        while rustix::process::test_kill_process(pid).is_ok() {
            assert!(
                began.elapsed() < LONG,
                "host {n}: its process does not end: {}",
                told(&host.dir)
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        host.worker.wait().unwrap();
    }
    /// Waits until every node that should has got something done since now.
    fn progress(&self) {
        let done = |host: &Host| std::fs::read_to_string(&host.log).map_or(0, |l| acked(&l));
        let up = || self.hosts.iter().filter(|h| !h.down);
        let before: Vec<usize> = up().map(done).collect();
        let began = Instant::now();
        for (host, before) in up().zip(before) {
            while done(host) < before + 2 {
                assert!(
                    began.elapsed() <= LONG,
                    "host {} does nothing: {}",
                    host.n,
                    told(&host.dir)
                );
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        self.say("all go on");
    }
    /// Nodes as one that lives sees them.
    fn nodes(&self) -> Vec<(String, u64)> {
        let up = self.hosts.iter().find(|h| !h.down).unwrap();
        let all: serde_json::Value =
            serde_json::from_str(&ok(&["nodes", "--json", &up.dir])).unwrap();
        let nodes = all["nodes"].as_array().unwrap().iter();
        let of = |n: &serde_json::Value| {
            (n["host"].as_str().unwrap().to_owned(), n["pid"].as_u64().unwrap())
        };
        nodes.map(of).collect()
    }
    /// Until the others have fenced and recovered these.
    fn recovered(&self, dead: &[usize]) {
        let began = Instant::now();
        let gone = |nodes: &[(String, u64)], n: usize| {
            let pid = u64::try_from(self.hosts[n].pid.as_raw_nonzero().get()).unwrap();
            !nodes.contains(&(format!("host{n}"), pid))
        };
        loop {
            let nodes = self.nodes();
            if dead.iter().all(|n| gone(&nodes, *n)) {
                break;
            }
            assert!(began.elapsed() < LONG, "{dead:?} are not recovered: {nodes:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        self.say(&format!("{dead:?} are fenced and recovered"));
    }
    fn signal(&self, n: usize, signal: Signal) {
        kill_process(self.hosts[n].pid, signal).unwrap();
    }

    /// A node whose cable is pulled for less than anybody waits, one for longer, one that is
    /// stopped, one that is killed; all at once, and the target is started anew before they are
    /// fenced. Then they come back.
    fn accidents(&mut self, [brief, cut, stopped, killed]: [usize; 4]) {
        self.say(&format!("cut {brief} briefly, cut {cut}, stop {stopped}, kill {killed}"));
        for n in [cut, stopped, killed] {
            self.hosts[n].down = true;
        }
        self.net.link(brief, false);
        self.net.link(cut, false);
        self.signal(stopped, Signal::STOP);
        self.signal(killed, Signal::KILL);
        std::thread::sleep(Duration::from_millis(700));
        self.net.link(brief, true);
        self.restart(Duration::from_millis(100), Signal::KILL);
        self.recovered(&[cut, stopped, killed]);
        self.progress();
        self.net.link(cut, true);
        self.signal(stopped, Signal::CONT);
        self.say("healed");
        for n in [cut, stopped] {
            self.withdraws(n);
        }
        for n in [cut, stopped, killed] {
            self.come_back(n);
        }
        self.progress();
    }
    /// A node that was fenced learns it, and says so.
    fn withdraws(&self, n: usize) {
        let log = format!("{}.log", self.hosts[n].dir);
        let began = Instant::now();
        while !std::fs::read_to_string(&log).unwrap().contains("withdraw") {
            assert!(began.elapsed() < LONG, "host {n} does not learn that it was fenced");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    fn has_withdrawn(&self, n: usize) -> bool {
        let log = std::fs::read_to_string(format!("{}.log", self.hosts[n].dir)).unwrap();
        log.contains("withdraw")
    }
    /// The target ends and is started again, with its reservations, before any lease is over: all who
    /// were up go on. On a machine that does much else some may be too late for their lease.
    fn restart(&mut self, pause: Duration, signal: Signal) {
        self.say("the target ends");
        let began = Instant::now();
        self.end_target(signal);
        std::thread::sleep(pause);
        self.serve();
        self.say(&format!("it is back, after {:?}", began.elapsed()));
        let done = |host: &Host| std::fs::read_to_string(&host.log).map_or(0, |l| acked(&l));
        let up: Vec<usize> = (0..NODES).filter(|n| !self.hosts[*n].down).collect();
        let before: Vec<usize> = up.iter().map(|n| done(&self.hosts[*n])).collect();
        let began = Instant::now();
        let mut late = Vec::new();
        for (n, before) in up.iter().zip(before) {
            while done(&self.hosts[*n]) < before + 2 {
                if self.has_withdrawn(*n) {
                    late.push(*n);
                    break;
                }
                let told = || told(&self.hosts[*n].dir);
                assert!(began.elapsed() < LONG, "host {n} does nothing: {}", told());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        self.say(&format!("{} go on, {late:?} were too late", up.len() - late.len()));
        for n in &late {
            let said = told(&self.hosts[*n].dir);
            let lease = ["cannot be written", "could not say that it lives", "has been fenced"];
            assert!(lease.iter().any(|why| said.contains(why)), "host {n}: {said}");
        }
        assert!(late.len() <= up.len() / 2, "{late:?} of {up:?} did not go on");
        late.into_iter().for_each(|n| self.come_back(n));
    }
    /// The target ends, and comes back when all leases are over: no node goes on, and what they had
    /// acknowledged is there when they are mounted again.
    fn outage(&mut self) {
        self.say("the target ends, for longer than any lease");
        self.end_target(Signal::KILL);
        std::thread::sleep(Duration::from_secs(IO_TIMEOUT) + Duration::from_millis(500));
        self.serve();
        self.say("it is back");
        (0..NODES).for_each(|n| self.withdraws(n));
        (0..NODES).for_each(|n| self.retire(n));
        let mounted = self.mount_all();
        let hosts = mounted.into_iter().enumerate().map(|(n, (dir, pid))| self.work(n, dir, pid));
        self.hosts = hosts.collect();
        self.say("all are back");
        self.progress();
    }
    fn mount_all(&self) -> Vec<(String, Pid)> {
        std::thread::scope(|s| {
            let threads: Vec<_> = (0..NODES).map(|n| s.spawn(move || self.mount(n))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    fn finish(mut self) {
        std::fs::write(self.path("stop"), "").unwrap();
        for host in &mut self.hosts {
            assert!(host.worker.wait().unwrap().success(), "a program of host {}", host.n);
        }
        let mut judge = judge::Judge::default();
        for entry in std::fs::read_dir(self.temp.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_str().unwrap().starts_with("log") {
                judge.hear(&std::fs::read_to_string(path).unwrap());
            }
        }
        // Each node sees the same.
        judge.decide(Path::new(&self.hosts[0].dir));
        judge.decide(Path::new(&self.hosts[NODES - 1].dir));
        self.say(&judge.summary());
        assert!(judge.wrong.is_empty(), "{:#?}", judge.wrong);
        for host in std::mem::take(&mut self.hosts) {
            let said = std::fs::read_to_string(format!("{}.log", host.dir)).unwrap();
            assert!(!said.contains("panicked"), "{said}");
            common::unmount_idle(Path::new(&host.dir));
        }
        let said = self.ok(0, &["check"], &[]);
        assert!(said.contains("clean"), "{said}");
        self.say("clean");
    }
}

/// The last that a node said.
fn told(dir: &str) -> String {
    let log = std::fs::read_to_string(format!("{dir}.log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// What was acknowledged.
fn acked(log: &str) -> usize {
    let begun =
        |l: &&str| !l.starts_with("error") && !l.starts_with("writes") && !l.starts_with("removes");
    log.lines().filter(begun).count()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("BRAID_CLUSTER_KEEP").is_some() {
            let kept = self.temp.path().with_extension("kept");
            std::fs::create_dir_all(&kept).ok();
            sh(&format!("cp {}/*log* {}", self.temp.path().display(), kept.display()));
            println!("logs: {}", kept.display());
        }
        for host in &mut self.hosts {
            host.worker.kill().ok();
            kill_process(host.pid, Signal::KILL).ok();
            kill_process(host.pid, Signal::CONT).ok();
            common::braid(&["unmount", "--lazy", &host.dir]);
            host.worker.wait().ok();
        }
        if let Some(target) = &mut self.target {
            target.kill().ok();
            target.wait().ok();
        }
    }
}

impl Cluster {
    /// The pool, mounted everywhere, and programs at work on it.
    fn begin(&mut self, options: &[&str]) {
        let said = [&["--nodes", "16"], options].concat();
        self.ok(0, &["create", "san"], &said);
        let mounted = self.mount_all();
        self.say("mounted");
        work::prepare(Path::new(&mounted[0].0));
        let hosts = mounted.into_iter().enumerate().map(|(n, (d, p))| self.work(n, d, p));
        self.hosts = hosts.collect();
        self.progress();
    }
    /// etcd is killed and started again; `killed` dies while it is away.
    fn without_etcd(&mut self, pause: Duration, killed: Option<usize>) {
        self.say(&format!("etcd is killed, for {pause:?}"));
        if let Some(etcd) = &mut self.etcd {
            etcd.kill();
        }
        if let Some(n) = killed {
            self.hosts[n].down = true;
            self.signal(n, Signal::KILL);
        }
        std::thread::sleep(pause);
        if let Some(etcd) = &mut self.etcd {
            assert!(etcd.run(&self.net, TARGET));
        }
        self.say("it is back");
        self.progress();
        let up = self.hosts.iter().filter(|h| !h.down);
        for host in up {
            assert!(!self.has_withdrawn(host.n), "host {}: {}", host.n, told(&host.dir));
        }
        if let Some(n) = killed {
            self.recovered(&[n]);
            self.come_back(n);
            self.progress();
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn eight_hosts_lose_nothing_whatever_happens_to_some() {
    if !can_mount() {
        return;
    }
    let _alone = ALONE.lock();
    let Some(mut c) = Cluster::new() else { return };
    c.begin(&[]);
    c.restart(Duration::from_millis(300), Signal::TERM);
    c.accidents([1, 2, 3, 4]);
    c.outage();
    let until = Duration::from_secs(number("BRAID_CLUSTER_SECONDS").unwrap_or(0));
    let mut random = number("BRAID_CLUSTER_SEED").unwrap_or(1) | 1;
    while c.began.elapsed() < until {
        let mut hosts: Vec<usize> = (0..NODES).collect();
        for n in (1..NODES).rev() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            hosts.swap(n, usize::try_from(random >> 33).unwrap() % (n + 1));
        }
        c.accidents([hosts[0], hosts[1], hosts[2], hosts[3]]);
        c.restart(Duration::from_millis(random % 1200), Signal::KILL);
        if random.is_multiple_of(4) {
            c.outage();
        }
    }
    c.finish();
}

/// What nodes hold stays theirs, and what they need beyond it waits (docs/LOCKING.md, section 14).
#[test]
fn eight_hosts_go_on_when_etcd_is_killed_and_comes_back() {
    if !can_mount() {
        return;
    }
    let _alone = ALONE.lock();
    let Some(mut c) = Cluster::new() else { return };
    c.etcd = etcd::Etcd::start(&c.net, TARGET, Path::new(&c.path("etcd")));
    if c.etcd.is_none() {
        return;
    }
    c.begin(&["--locks", &format!("etcd://{}:2379/pool", Net::address(TARGET))]);
    c.without_etcd(Duration::from_millis(500), None);
    c.without_etcd(Duration::from_secs(IO_TIMEOUT + 2), Some(5));
    c.finish();
}
