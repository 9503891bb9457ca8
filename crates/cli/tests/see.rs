//! What an operator sees of a mounted pool: its health in one line, `iostat`, `top`, the log.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};

use common::remote::Remote;
use common::served::Served;
use common::{Cluster, Disks, can_mount, fails, is_mounted, ok, sh, wait_until};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

/// A program that writes one file again and again until this is dropped. A file that may be written is not read or
/// written through the kernel's cache.
struct Writer(Child);

impl Writer {
    fn start(dir: &str) -> Self {
        let program = "import os, sys\n\
                       fd = os.open(sys.argv[1] + '/busy', os.O_RDWR | os.O_CREAT)\n\
                       while True:\n    for i in range(64): os.pwrite(fd, b'x' * 65536, i * 65536)\n";
        let child = Command::new("python3").args(["-c", program, dir]).spawn().unwrap();
        let busy = format!("{dir}/busy");
        wait_until("it writes", || std::fs::metadata(&busy).is_ok_and(|m| m.len() > 0));
        Self(child)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(args)).unwrap()
}

#[test]
fn status_begins_with_how_the_pool_is() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::of(Disks::new(2, 256), 0, &["--mirror", "2"]);
    let devices = cluster.disks.names().iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
    let first = |args: &[&str]| ok(args).lines().next().unwrap_or_default().to_owned();
    // Also where no node answers.
    let said = first(&["status", &devices[0], &devices[1]]);
    assert_eq!(said, "health: OK: any one member may be lost; no node has it mounted");
    let dir = cluster.mount(&[]).to_str().unwrap().to_owned();
    assert_eq!(
        first(&["status", &dir]),
        "health: OK: any one member may be lost; 1 node has it mounted"
    );
    assert_eq!(json(&["status", "--json", &dir])["pool"]["health"]["state"], "ok");
    let mounts = json(&["status", "--json"]);
    let own =
        mounts["mounts"].as_array().unwrap().iter().find(|m| m["mount_point"] == dir.as_str());
    assert_eq!(own.unwrap()["health"], "ok");
    assert!(ok(&["status"]).lines().any(|l| l.contains(&dir) && l.contains(" OK ")));

    ok(&["fail", &dir, "1"]);
    let said = first(&["status", &dir]);
    let wanted = format!(
        "health: DEGRADED: member 1 ({}) has failed; no member may be lost; `braid replace test 1 DEVICE` puts \
         another device in its place",
        devices[1]
    );
    assert_eq!(said, wanted);
    let health = &json(&["status", "--json", &dir])["pool"]["health"];
    assert_eq!(health["state"], "degraded", "{health}");
    assert!(health["findings"][0]["action"].as_str().unwrap().contains("replace"), "{health}");
    // A file takes nearly all of the rest.
    let free = sh(&format!("df --output=avail -B1 {dir} | tail -1"));
    let most = free.trim().parse::<u64>().unwrap() * 95 / 100;
    sh(&format!("fallocate -l {most} {dir}/large"));
    let said = ok(&["status", &dir]);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].contains("DEGRADED") && lines[1].starts_with("   and: FULL SOON: "), "{said}");
    assert!(lines[1].contains("braid add test"), "{said}");
    cluster.unmount_all();
    // The labels say that one has failed; without it nothing else is known.
    assert!(first(&["status", &devices[0]]).starts_with("health: DEGRADED: member 1 "));
}

#[test]
fn a_member_that_is_not_there_is_missing_and_not_failed() {
    let disks = Disks::new(2, 256);
    ok(&disks.with(&["create", "test"], &["--mirror", "2"]));
    let gone = disks.names()[1];
    std::fs::rename(gone, disks.path("elsewhere")).unwrap();
    let said = ok(&["status", disks.names()[0]]);
    let first = said.lines().next().unwrap();
    assert!(
        first.starts_with(&format!("health: DEGRADED: member 1 ({gone}) is not there; ")),
        "{said}"
    );
    assert!(
        said.contains(" missing ") && !said.contains("failed") && !said.contains("(missing)"),
        "{said}"
    );
    let json = json(&["status", "--json", disks.names()[0]]);
    assert_eq!(json["pool"]["members"][1]["state"], "missing");
}

#[test]
fn iostat_tells_each_interval_by_layer() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::of(Disks::new(2, 256), 1, &["--mirror", "2"]);
    let dir = cluster.node(0).to_str().unwrap();
    sh(&format!("dd if=/dev/zero of={dir}/f bs=64k count=20 oflag=direct 2>&1"));
    let said = ok(&["iostat", dir]);
    assert!(said.contains("since it was mounted") && said.contains("programs"), "{said}");
    assert!(!said.contains(cluster.disks.names()[0]), "{said}");
    let writer = Writer::start(dir);
    let said = ok(&["iostat", "--json", dir, "0.5", "3"]);
    let reports: Vec<Value> = said.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(reports.len(), 3, "{said}");
    assert!(reports[0]["since_mount"] == true && reports[2]["since_mount"] == false, "{said}");
    let last = &reports[2];
    let seconds = last["seconds"].as_f64().unwrap();
    assert!((0.4..60.0).contains(&seconds), "{last}");
    let of = |layer: &Value| layer["writes"]["bytes"].as_u64().unwrap();
    assert!(of(&last["programs"]) > 0, "{last}");
    // What was written past all caches is on both members.
    for layer in [&reports[0]["programs"], &reports[0]["members"][0], &reports[0]["members"][1]] {
        assert!(of(layer) >= 20 << 16, "{layer}");
    }
    assert!(last["programs"]["writes"]["mean_ms"].as_f64().unwrap() > 0.0, "{last}");
    let said = ok(&["iostat", "-v", "-l", "-q", dir]);
    for wanted in [cluster.disks.names()[1], "write size", "now", "up to", "programs write"] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    drop(writer);
    assert!(fails(&["iostat", "no-such-pool"]).contains("nothing of that name is mounted"));
    assert!(fails(&["iostat", dir, "0"]).contains("interval 0"));
    cluster.finish();
}

#[test]
fn top_tells_of_nodes_members_locks_and_programs() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new(2, 256, 2);
    let (a, b) = (cluster.node(0).to_str().unwrap(), cluster.node(1).to_str().unwrap());
    let writer = Writer::start(a);
    let said = ok(&["top", "--plain", "-n", "2", "-d", "1", a]);
    let reports: Vec<&str> = said.split("test on ").skip(1).collect();
    assert_eq!(reports.len(), 2, "{said}");
    let last = reports[1];
    for wanted in
        ["health: OK", "NODES: 2", "MEMBERS: 2", "LOCKS: ", "PROGRAMS by time", b, " python3 "]
    {
        assert!(last.contains(wanted), "{wanted}: {said}");
    }
    // A screen of its own, on a terminal.
    let program = env!("CARGO_BIN_EXE_braid");
    let command = format!("stty rows 40 cols 150; {program} top -n 1 -d 0.5 --sort written {a}");
    let screen = sh(&format!("timeout 60 script -qec '{command}' /dev/null </dev/null"));
    for wanted in ["PROGRAMS by written", "MEMBERS: 2", "around"] {
        assert!(screen.contains(wanted), "{wanted}: {screen}");
    }
    drop(writer);
    assert!(fails(&["top", "no-such-pool"]).contains("not mounted"));
    cluster.finish();
}

/// What a server serves for Prometheus at a socket, one client of which has written 1 MiB and more.
fn metrics_tell_of_clients(socket: &str) {
    let mut caller = UnixStream::connect(socket).unwrap();
    caller.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut told = String::new();
    caller.read_to_string(&mut told).unwrap();
    let value = |begin: &str| {
        let line = told.lines().find(|line| line.starts_with(begin) && line.contains("write"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    assert!(told.contains("\nbraid_service_clients 1\n"), "{told}");
    assert!(value("braid_service_request_duration_seconds_count{") >= Some(16.0), "{told}");
    assert!(value("braid_service_client_bytes_total{") >= Some(1_048_576.0), "{told}");
}

/// A pool that is served and not mounted is seen through its server, which tells of its clients.
#[test]
fn a_server_tells_of_its_clients() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(2, 700);
    ok(&disks.with(&["create", "served-only", "--nodes", "4"], &[]));
    let socket = disks.path("metrics.sock");
    let metrics = format!("unix:{socket}");
    let words = ["--insecure", "--listen", "127.0.0.1:0", "--metrics", &metrics];
    let served = Served::new(&disks, &words);
    let (url, disk) = (served.url.as_str(), disks.names()[0]);
    let said = ok(&["status", url]);
    assert!(said.starts_with("health: OK") && said.contains("for 0 clients"), "{said}");
    let remote = Remote::plain(&disks, "remote", &served);
    let dir = &remote.dir;
    sh(&format!(
        "dd if=/dev/zero of={dir}/f bs=64k count=16 conv=fsync 2>/dev/null; cat {dir}/f >/dev/null"
    ));
    // By where it is served, and by its pool.
    for name in [url, "served-only"] {
        let said = ok(&["status", name]);
        assert!(said.contains("for 1 client\n") && said.contains("127.0.0.1"), "{said}");
        assert!(said.contains("1 MiB") && said.contains("pool served-only"), "{said}");
    }
    let said = ok(&["status"]);
    assert!(said.contains(&format!("served at {url}, for 1 client")), "{said}");
    let of_url = |said: &Value| {
        let services = said["services"].as_array().unwrap().clone();
        services.into_iter().find(|service| service["url"] == url).unwrap()
    };
    let client = |said: &Value| of_url(said)["clients"][0].clone();
    let seen = client(&json(&["status", url, "--json"]));
    assert_eq!(seen["requests"]["writes"]["bytes"], 1 << 20, "{seen}");
    assert!(seen["connections"].as_u64() > Some(0), "{seen}");
    wait_until("it keeps something", || {
        sh(&format!("stat {dir}/f"));
        client(&json(&["status", url, "--json"]))["leases"].as_u64() > Some(0)
    });
    assert_eq!(
        (&seen["repeated"], &seen["requests"]["writes"]["in_progress"]),
        (&0.into(), &0.into())
    );
    // What it does now.
    let mut writer = Writer::start(dir);
    let report = ok(&["top", url, "--plain", "-n", "1", "-d", "0.5"]);
    assert!(report.contains(&format!("CLIENTS of {url}: 1")), "{report}");
    let rates = report.lines().find(|line| line.contains("127.0.0.1")).unwrap();
    assert!(rates.contains("MiB/s"), "{report}");
    assert!(!report.lines().next().unwrap().contains(" 0.0 writes/s"), "{report}");
    writer.0.kill().unwrap();
    writer.0.wait().unwrap();
    // Orders go through the server as through a mounted node.
    assert!(ok(&["nodes", url]).contains("alive"));
    let refused = fails(&["export", url, "--nfs"]);
    assert!(refused.contains("not mounted on this host"), "{refused}");
    let refused = fails(&["destroy", disk, "--yes"]);
    assert!(refused.contains("served at"), "{refused}");
    metrics_tell_of_clients(&socket);
    remote.unmount();
    wait_until("the client has left", || {
        of_url(&json(&["status", "--json"]))["clients"] == Value::Array(vec![])
    });
    let url = url.to_owned();
    served.end();
    // Other pools of this host may be served.
    assert!(!ok(&["status"]).contains(&url));
    assert!(!std::path::Path::new(&socket).exists());
}

#[test]
fn the_log_is_json_if_asked_for_and_opened_anew_at_a_hangup() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new(1, 256, 0);
    let (dir, log) = (cluster.disks.path("node"), cluster.disks.path("log"));
    std::fs::create_dir(&dir).unwrap();
    let options = format!("log={log},log_format=json");
    ok(&cluster.disks.with(&["mount"], &[&dir, "-o", &options]));
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    wait_until("it says that it is mounted", || read(&log).contains("mounted"));
    let moved = cluster.disks.path("log.1");
    std::fs::rename(&log, &moved).unwrap();
    kill_process(common::pid_of(&dir), Signal::HUP).unwrap();
    wait_until("it is opened anew", || read(&log).contains("opened anew"));
    assert!(is_mounted(dir.as_ref()));
    ok(&["unmount", &dir]);
    wait_until("it says that it is unmounted", || read(&log).contains("unmounted"));
    let lines: Vec<Value> = [&moved, &log]
        .iter()
        .flat_map(|path| {
            read(path).lines().map(|l| serde_json::from_str(l).unwrap()).collect::<Vec<_>>()
        })
        .collect();
    let mounted = lines.iter().find(|l| l["message"] == "mounted").unwrap();
    assert!(mounted["pool"] == "test" && mounted["level"] == "INFO", "{mounted}");
    for line in &lines {
        assert!(line["pool"] == "test" && line["node"].is_u64(), "{line}");
    }
    let time = mounted["timestamp"].as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z'), "{mounted}");
    assert!(!read(&moved).contains("\"unmounted\""));
    let said = fails(&cluster.disks.with(&["mount"], &[&dir, "-o", "log_format=xml"]));
    assert!(said.contains("log_format"), "{said}");
}

#[test]
fn grow_names_a_spare_that_is_too_small_now() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::of(Disks::new(2, 160), 0, &["--mirror", "2"]);
    let spare = cluster.disks.path("spare");
    sh(&format!("truncate -s 160M {spare}"));
    let dir = cluster.mount(&[]).to_str().unwrap().to_owned();
    ok(&["spare", &dir, &spare]);
    for disk in cluster.disks.names() {
        sh(&format!("truncate -s 240M {disk}"));
    }
    let wanted = format!(
        "member 2 ({spare}), a spare, is smaller than member 0, 1 and cannot take that place"
    );
    for options in [&["--dry-run"][..], &[]] {
        let said = ok(&[&["grow", dir.as_str()][..], options].concat());
        assert!(said.contains(&wanted), "{said}");
    }
    cluster.unmount_all();
}
