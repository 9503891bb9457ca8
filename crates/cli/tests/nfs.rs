//! Exports by NFS: what docs/NFS.md promises, with NFS-Ganesha and a client of NFSv3.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod common;
#[path = "common/nfs3.rs"]
#[allow(missing_docs, reason = "test support")]
mod nfs3;

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use common::{Cluster, can_mount, fails, ok, unmount_idle, wait_until};
use nfs3::{ACCES, Attributes, Client, Handle, NOENT, ROFS, STALE, Stable};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Whether a server can run here; said where not.
fn can_export() -> bool {
    let program = Path::new("/usr/bin/ganesha.nfsd").exists();
    if can_mount() && !program {
        braid_testkit::skip(
            "exports need NFS-Ganesha (Debian packages nfs-ganesha, nfs-ganesha-vfs)",
        );
    }
    can_mount() && program
}

/// A port of this test alone, and the next one: of those that no kernel hands out by itself, or somebody might be
/// given them while a server restarts.
fn port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut ports = (0..4000).map(|_| {
        let n = std::process::id() * 16 + NEXT.fetch_add(1, Ordering::Relaxed);
        u16::try_from(10_000 + 2 * (n % 4000)).unwrap()
    });
    let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    ports.find(|port| is_free(*port) && is_free(port + 1)).expect("ports are free")
}

/// The export of a mount; ended when dropped.
struct Exported {
    dir: PathBuf,
    port: u16,
}

impl Exported {
    /// All of the mount, to all clients of this host, root included.
    fn new(dir: &Path) -> Self {
        let exported = Self { dir: dir.to_owned(), port: port() };
        exported.export("", &["--squash", "none"]);
        exported
    }
    fn export(&self, subtree: &str, options: &[&str]) -> String {
        let (name, port) = (format!("{}{subtree}", self.dir.display()), self.port.to_string());
        let server = format!("test{port}");
        let common = [
            "export",
            &name,
            "--nfs",
            "--listen",
            "127.0.0.1",
            "--port",
            &port,
            "--server",
            &server,
        ];
        ok(&[&common[..], options].concat())
    }
    fn view(&self) -> Value {
        let dir = self.dir.to_str().unwrap();
        let views: Value = serde_json::from_str(&ok(&["export", dir, "--list", "--json"])).unwrap();
        views["exports"][0].clone()
    }
    fn client(&self) -> Client {
        let mount_port = self.view()["mount_port"].as_u64().unwrap();
        Client::new(self.port, u16::try_from(mount_port).unwrap())
    }
    /// Kills the server; it is there again on return.
    fn kill_server(&self) {
        let before = self.view()["restarts"].as_u64();
        kill(&self.view()["ganesha_pid"]);
        wait_until("the server is started again", || {
            let view = self.view();
            view["restarts"].as_u64() > before && view["state"] == "serving"
        });
    }
    fn stop(&self) {
        ok(&["export", self.dir.to_str().unwrap(), "--stop"]);
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        common::braid(&["export", self.dir.to_str().unwrap(), "--stop"]);
    }
}

fn pid(of: &Value) -> Pid {
    Pid::from_raw(i32::try_from(of.as_i64().unwrap()).unwrap()).unwrap()
}

fn kill(process: &Value) {
    kill_process(pid(process), Signal::KILL).unwrap();
}

/// The kernel lets go of a deleted file a moment later.
fn until_stale(client: &mut Client, file: &Handle) {
    let client = RefCell::new(client);
    wait_until("the handle is stale", || {
        let answer = client.borrow_mut().attributes(file);
        assert!(matches!(answer, Ok(Attributes { links: 0, .. }) | Err(STALE)), "{answer:?}");
        answer.is_err()
    });
}

fn is_there(process: &Value) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

#[test]
fn files_are_written_read_renamed_linked_and_removed() {
    if !can_export() {
        return;
    }
    let c = Cluster::new(2, 256, 1);
    let exported = Exported::new(c.node(0));
    let mut client = exported.client();
    let top = client.mount("/test").unwrap();
    let file = client.create(&top, "a").unwrap();
    let data: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    for (n, part) in data.chunks(100_000).enumerate() {
        client.write(&file, 100_000 * n as u64, part, Stable::No).unwrap();
    }
    client.commit(&file).unwrap();
    assert!(fs::read(c.node(0).join("a")).unwrap() == data);
    assert_eq!(client.read(&file, 500_000, 1000).unwrap(), &data[500_000..501_000]);
    client.link(&file, &top, "b").unwrap();
    client.rename(&top, "a", "c").unwrap();
    assert_eq!(client.lookup(&top, "a"), Err(NOENT));
    let again = client.lookup(&top, "c").unwrap();
    let known = client.attributes(&again).unwrap();
    assert_eq!((known.links, known.owner, known.size), (2, 0, data.len() as u64));
    assert_eq!(client.attributes(&file).unwrap(), known);
    let names = client.list(&top).unwrap();
    assert!(names.contains(&"b".to_owned()) && names.contains(&"c".to_owned()), "{names:?}");
    client.remove(&top, "b").unwrap();
    client.remove(&top, "c").unwrap();
    until_stale(&mut client, &file);
    assert!(!c.node(0).join("c").exists());
    drop(exported);
    c.finish();
}

/// By a client that others have written.
#[test]
fn libnfs_copies_files_in_and_out() {
    if !can_export() {
        return;
    }
    if Command::new("nfs-cp").output().is_err() {
        braid_testkit::skip("no libnfs (Debian package libnfs-utils)");
        return;
    }
    let c = Cluster::new(2, 256, 1);
    let exported = Exported::new(c.node(0));
    let ports = format!("nfsport={}&mountport={}", exported.port, exported.view()["mount_port"]);
    let data = vec![0x5a; 5_000_001];
    fs::write(c.disks.path("in"), &data).unwrap();
    common::sh(&format!(
        "nfs-cp {} 'nfs://127.0.0.1/test/f?{ports}' && nfs-cat 'nfs://127.0.0.1/test/f?{ports}' > {}",
        c.disks.path("in"),
        c.disks.path("out"),
    ));
    assert!(fs::read(c.disks.path("out")).unwrap() == data);
    assert!(fs::read(c.node(0).join("f")).unwrap() == data);
    drop(exported);
    c.finish();
}

#[test]
fn who_may_do_what_is_kept() {
    if !can_export() {
        return;
    }
    let c = Cluster::new(2, 256, 1);
    for dir in ["ro", "squashed", "foreign", "foreign/deep"] {
        fs::create_dir(c.node(0).join(dir)).unwrap();
    }
    let exported = Exported { dir: c.node(0).to_owned(), port: port() };
    exported.export(":/ro", &["--squash", "none", "--ro"]);
    exported.export(":/squashed", &[]);
    exported.export(":/foreign/", &["--clients", "192.0.2.1,198.51.100.0/24"]);
    let mut client = exported.client();
    // The pool itself is not exported.
    assert!(client.mount("/test").is_err());
    assert_eq!(client.mount("/test/foreign"), Err(ACCES));
    let ro = client.mount("/test/ro").unwrap();
    assert_eq!(client.create(&ro, "f"), Err(ROFS));
    let squashed = client.mount("/test/squashed").unwrap();
    assert_eq!(client.create(&squashed, "f"), Err(ACCES), "a client's root is nobody here");
    // Nothing above an export is reached.
    if let Ok(above) = client.lookup(&squashed, "..") {
        let number = |client: &mut Client, dir| client.attributes(dir).unwrap().number;
        assert_eq!(number(&mut client, &above), number(&mut client, &squashed));
    }
    let text = ok(&["export", "--list", c.node(0).to_str().unwrap()]);
    for word in ["/test/ro", "read-only", "192.0.2.1,198.51.100.0/24", "/test/squashed", "serving"]
    {
        assert!(text.contains(word), "{text}");
    }
    ok(&["export", &format!("{}:/ro", exported.dir.display()), "--stop"]);
    assert_eq!(exported.view()["exports"].as_array().unwrap().len(), 2);
    client.attributes(&ro).unwrap_err();
    client.attributes(&squashed).unwrap();
    drop(exported);
    c.finish();
}

#[test]
fn mistakes_are_named() {
    if !can_export() {
        return;
    }
    let c = Cluster::new(2, 256, 1);
    let dir = c.node(0).to_str().unwrap().to_owned();
    fs::write(c.node(0).join("file"), "").unwrap();
    let export =
        |words: &[&str]| fails(&[&["export", "--nfs", "--listen", "127.0.0.1"], words].concat());
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap().port().to_string();
    let own = format!("process {}", std::process::id());
    let said = export(&[&dir, "--port", &taken]);
    assert!(said.contains(&own) && said.contains("--port"), "{said}");
    drop(held);
    for (words, why) in [
        (vec!["no-such-pool"], "is not mounted on this host"),
        (vec![&*format!("{dir}:/no/such")], "No such file"),
        (vec![&*format!("{dir}:/file")], "not a directory"),
        (vec![&*format!("{dir}:/../x")], "without .."),
        (vec![&*dir, "--clients", "10.0.0.0/40"], "--clients 10.0.0.0/40"),
        (vec![&*dir, "--listen", "192.0.2.1"], "no such address"),
        (vec![&*dir, "--server", "../x", "--port", "1"], "--server ../x"),
    ] {
        let said = if words.contains(&"--listen") {
            fails(&[&["export", "--nfs"], &words[..]].concat())
        } else {
            export(&words)
        };
        assert!(said.contains(why), "{words:?}: {said}");
    }
    let said = fails(&["export", &dir, "--stop"]);
    assert!(said.contains("nothing of it is exported"), "{said}");
    assert!(ok(&["export", "--list", "--json", &dir]).contains("\"exports\": []"));

    let exported = Exported::new(c.node(0));
    let said = export(&[&dir, "--port", "1"]);
    assert!(said.contains("already exports") && said.contains("--stop"), "{said}");
    let said = fails(&["unmount", &dir]);
    assert!(said.contains("exported by NFS") && said.contains("--stop"), "{said}");
    exported.stop();
    unmount_idle(c.node(0));
    c.finish();
}

#[test]
fn handles_outlive_restarts_and_mounts() {
    if !can_export() {
        return;
    }
    let mut c = Cluster::new(2, 256, 1);
    fs::create_dir(c.node(0).join("sub")).unwrap();
    let dir = c.node(0).to_owned();
    let exported = Exported::new(&dir);
    exported.export(":/sub", &["--squash", "none"]);
    let mut client = exported.client();
    let top = client.mount("/test").unwrap();
    let sub = client.mount("/test/sub").unwrap();
    let [kept, deleted] = ["kept", "deleted"].map(|name| client.create(&sub, name).unwrap());
    client.write(&kept, 0, b"kept", Stable::Yes).unwrap();
    let all_there = |client: &mut Client| {
        assert_eq!(client.read(&kept, 0, 100).unwrap(), b"kept");
        assert_eq!(client.lookup(&top, "sub").map(drop), Ok(()));
        assert_eq!(client.lookup(&sub, "kept").unwrap(), kept);
    };
    exported.kill_server();
    all_there(&mut client);
    client.attributes(&deleted).unwrap();
    exported.stop();
    let device = |dir: &Path| std::os::unix::fs::MetadataExt::dev(&fs::metadata(dir).unwrap());
    let before = device(&dir);
    c.unmount_all();
    // It takes the number that the mount had, so that the mount gets another.
    let holder = c.disks.path("holder");
    fs::create_dir(&holder).unwrap();
    common::sh(&format!("mount -t tmpfs holder {holder}"));
    let again = c.mount(&[]);
    let (after, again) = (device(&again), again.clone());
    common::sh(&format!("umount {holder}"));
    assert!(again == dir, "mounted on {}", again.display());
    println!("device numbers: {before} and {after}");
    fs::remove_file(dir.join("sub/deleted")).unwrap();
    exported.export("", &["--squash", "none"]);
    exported.export(":/sub", &["--squash", "none"]);
    let mut client = exported.client();
    all_there(&mut client);
    until_stale(&mut client, &deleted);
    drop(exported);
    c.finish();
}

/// Bytes of block `n`.
fn block(n: u32) -> Vec<u8> {
    (0..4096_u32).flat_map(|i| (n * 4096 + i).wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

#[test]
fn a_killed_server_loses_nothing_that_it_acknowledged() {
    if !can_export() {
        return;
    }
    const BATCH: u32 = 8;
    let c = Cluster::new(2, 512, 1);
    let exported = Exported::new(c.node(0));
    let mut client = exported.client();
    let top = client.mount("/test").unwrap();
    let file = client.create(&top, "f").unwrap();
    let (over, batches) = (AtomicBool::new(false), AtomicU32::new(0));
    let len = u64::try_from(block(0).len()).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                let first = batches.load(Ordering::SeqCst) * BATCH;
                // As a client of NFS must: all anew if the server is another one than when it took them.
                loop {
                    let at = |n: u32| u64::from(n) * len;
                    let mut write = |n| client.write(&file, at(n), &block(n), Stable::No).unwrap();
                    let taken: Vec<_> = (first..first + BATCH).map(&mut write).collect();
                    let committed = client.commit(&file).unwrap();
                    if taken.iter().all(|taken| *taken == committed) {
                        break;
                    }
                }
                batches.fetch_add(1, Ordering::SeqCst);
            }
        });
        for _ in 0..3 {
            let before = batches.load(Ordering::SeqCst);
            wait_until("more is written", || batches.load(Ordering::SeqCst) > before + 2);
            exported.kill_server();
        }
        over.store(true, Ordering::SeqCst);
    });
    let count = batches.load(Ordering::SeqCst) * BATCH;
    let found = fs::read(c.node(0).join("f")).unwrap();
    let chunk = usize::try_from(len).unwrap();
    for (n, part) in (0..count).zip(found.chunks(chunk)) {
        assert!(part == block(n), "block {n} of {count}");
    }
    assert!(found.len() >= count as usize * chunk);
    println!("{count} blocks of {len} bytes");
    drop(exported);
    c.finish();
}

#[test]
fn a_restarted_server_tells_clients_that_it_is_another() {
    if !can_export() {
        return;
    }
    let c = Cluster::new(2, 256, 1);
    let exported = Exported::new(c.node(0));
    let mut client = exported.client();
    let top = client.mount("/test").unwrap();
    let file = client.create(&top, "f").unwrap();
    let mut seen = Vec::new();
    for n in 0..4 {
        let taken = client.write(&file, n, b"x", Stable::No).unwrap();
        assert_eq!(client.commit(&file).unwrap(), taken);
        assert!(!seen.contains(&taken), "the verifier of an earlier start");
        seen.push(taken);
        exported.kill_server();
    }
    drop(exported);
    c.finish();
}

#[test]
fn what_another_node_does_is_seen() {
    if !can_export() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (here, there) = (c.node(0), c.node(1));
    let exported = Exported::new(here);
    let mut client = exported.client();
    let top = client.mount("/test").unwrap();
    fs::write(there.join("f"), "one").unwrap();
    let file = client.lookup(&top, "f").unwrap();
    for n in 1..50_u32 {
        let text = n.to_string().repeat(n as usize);
        fs::write(there.join("f"), &text).unwrap();
        assert_eq!(client.attributes(&file).unwrap().size, text.len() as u64);
        assert_eq!(client.read(&file, 0, 4096).unwrap(), text.as_bytes());
        fs::rename(there.join("f"), there.join("g")).unwrap();
        assert_eq!(client.lookup(&top, "f"), Err(NOENT));
        assert_eq!(client.lookup(&top, "g").unwrap(), file);
        assert!(client.list(&top).unwrap().contains(&"g".to_owned()));
        client.rename(&top, "g", "f").unwrap();
        client.write(&file, 0, b"#", Stable::No).unwrap();
        assert!(fs::read(there.join("f")).unwrap().starts_with(b"#"));
    }
    fs::remove_file(there.join("f")).unwrap();
    assert_eq!(client.lookup(&top, "f"), Err(NOENT));
    drop(exported);
    c.finish();
}

#[test]
fn another_node_takes_the_exports_over() {
    if !can_export() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let exported = Exported::new(c.node(0));
    let mut client = exported.client();
    let top = client.mount("/test").unwrap();
    let file = client.create(&top, "f").unwrap();
    let before = client.write(&file, 0, b"kept", Stable::Yes).unwrap();
    let (port, server) = (exported.port.to_string(), format!("test{}", exported.port));
    let there = c.node(1).to_str().unwrap();
    let common = [
        "export",
        there,
        "--nfs",
        "--squash",
        "none",
        "--listen",
        "127.0.0.1",
        "--server",
        &server,
    ];
    let said = fails(&[&common[..], &["--port", "9"]].concat());
    assert!(said.contains(&server) && said.contains("--takeover"), "{said}");
    let mut standby = Command::new(env!("CARGO_BIN_EXE_braid"));
    standby.args(common).args(["--port", &port, "--takeover"]).stderr(Stdio::piped());
    let mut standby = standby.spawn().unwrap();
    let mut said = String::new();
    let mut messages = BufReader::new(standby.stderr.take().unwrap());
    messages.read_line(&mut said).unwrap();
    assert!(said.contains("waiting: another node serves"), "{said}");
    c.kill(0);
    assert!(standby.wait().unwrap().success());
    let there = Exported { dir: c.node(1).to_owned(), port: exported.port };
    assert_eq!(there.view()["state"], "serving");
    assert_eq!(client.read(&file, 0, 100).unwrap(), b"kept");
    assert_eq!(client.lookup(&top, "f").unwrap(), file);
    let after = client.write(&file, 4, b"more", Stable::Yes).unwrap();
    assert_ne!(before, after);
    assert_eq!(fs::read(c.node(1).join("f")).unwrap(), b"keptmore");
    drop(there);
    c.detach(0);
    c.finish();
}

#[test]
fn a_server_ends_with_its_supervisor_and_with_its_mount() {
    if !can_export() {
        return;
    }
    let mut c = Cluster::new(2, 256, 1);
    let exported = Exported::new(c.node(0));
    let view = exported.view();
    kill(&view["pid"]);
    wait_until("the server has ended", || !is_there(&view["ganesha_pid"]));
    assert_eq!(exported.view(), Value::Null);

    exported.export("", &["--squash", "none"]);
    let view = exported.view();
    c.detach(0);
    wait_until("the supervisor has ended", || !is_there(&view["pid"]));
    assert!(!is_there(&view["ganesha_pid"]));
    wait_until("the node has left", || !ok(&["status"]).contains(c.node(0).to_str().unwrap()));
    c.nodes.clear();

    c.mount(&[]);
    exported.export("", &["--squash", "none"]);
    let view = exported.view();
    c.kill(0);
    wait_until("the supervisor has ended", || !is_there(&view["pid"]));
    assert!(!is_there(&view["ganesha_pid"]));
    c.detach(0);
}
