//! `braid serve` and `braid cp` with TLS, as a user runs them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use braid_bulk::tls::{Folder, Validity, write_secret};
use common::remote::Remote;
use common::served::{Served, wait_for_io};
use common::{Disks, can_mount, fails, ok, sh, wait_until};
use serde_json::Value;

/// A pool that nobody has mounted, with certificates, and a client's home.
struct Pool {
    disks: Disks,
}

impl Pool {
    fn new() -> Self {
        let disks = Disks::new(2, 700);
        ok(&disks.with(&["create", "test"], &[]));
        let pool = Self { disks };
        pool.init(&pool.dir(), &[]);
        pool
    }
    fn devices(&self) -> String {
        self.disks.names().join(":")
    }
    fn path(&self, name: &str) -> String {
        self.disks.path(name)
    }
    fn dir(&self) -> String {
        self.path("etc")
    }
    fn init(&self, dir: &str, options: &[&str]) -> String {
        let devices = self.devices();
        let words = ["serve", "init", &devices, "--dir", dir, "--address", "127.0.0.1"];
        ok(&[&words[..], options].concat())
    }
    /// A command about certificates.
    fn order(&self, words: &[&str]) -> String {
        let dir = self.dir();
        ok(&[&["serve"], words, &["--dir", &dir]].concat())
    }
    /// An identity in a file.
    fn invite(&self, name: &str, options: &[&str]) -> String {
        let file = self.path(name);
        self.order(&[&["invite", "test", name, "--output", &file], options].concat());
        file
    }
    fn serve(&self, listen: &str) -> Served {
        Served::new(&self.disks, &["--dir", &self.dir(), "--listen", listen])
    }
    fn source(&self, mib: u32) -> String {
        let path = self.path("source");
        sh(&format!("head -c {mib}M /dev/urandom > {path}"));
        path
    }
    fn log(&self) -> String {
        std::fs::read_to_string(self.path("serve.log")).unwrap()
    }
    fn clean(&self) {
        let said = ok(&self.disks.with(&["check"], &[]));
        assert!(said.contains("clean"), "{said}");
    }
}

/// `braid cp`, with nothing of the environment of whoever runs the tests.
fn cp(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.arg("cp").args(words).env("HOME", "/nonexistent");
    command.env_remove("BRAID_IDENTITY").env_remove("XDG_CONFIG_HOME");
    command
}

fn done(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn said(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn refused(words: &[&str]) -> String {
    said(&cp(words).output().unwrap())
}

#[test]
fn invited_clients_copy_there_and_back() {
    let pool = Pool::new();
    let source = pool.source(20);
    let served = pool.serve("127.0.0.1:0");
    let (url, back) = (&served.url, pool.path("back"));
    let alice = pool.invite("alice", &[]);
    let said_by = done(cp(&[&source, &format!("{url}/a"), "--identity", &alice, "--verify", "-p"]));
    assert!(said_by.contains("20 MiB in"), "{said_by}");
    done(cp(&[&format!("{url}/a"), &back, "--identity", &alice, "--chunk", "100000"]));
    sh(&format!("cmp {source} {back}"));
    // A token, by standard input, by a variable, in the usual place, and on the command line.
    let token = pool.order(&["invite", "test", "bob", "--days", "2"]);
    assert_eq!(token.lines().count(), 1, "{token}");
    let get = [&format!("{url}/a")[..], &back];
    let mut command = cp(&[&get[..], &["--identity", "-"]].concat());
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(token.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let mut command = cp(&get);
    command.env("BRAID_IDENTITY", token.trim());
    done(command);
    let home = pool.path("home");
    sh(&format!(
        "mkdir -p {home}/.config/braid/bulk; umask 077; cat {alice} > {home}/.config/braid/bulk/test"
    ));
    let mut command = cp(&get);
    command.env("HOME", &home);
    done(command);
    done(cp(&[&get[..], &["--identity", token.trim()]].concat()));
    // Who has come, and is listed, by his name.
    let log = pool.log();
    assert!(log.contains("alice (") && log.contains("bob ("), "{log}");
    let listed = pool.order(&["clients", "test"]);
    assert!(listed.contains("alice") && listed.contains("bob"), "{listed}");
    let json: Value = serde_json::from_str(&pool.order(&["clients", "test", "--json"])).unwrap();
    assert_eq!(json["command"], "serve clients");
    assert_eq!(json["clients"][1]["name"], "bob");
    assert!(json["clients"][0]["last_seen"].is_string() && json["clients"][0]["revoked"].is_null());
    // Who may only read.
    let carol = pool.invite("carol", &["--read-only"]);
    done(cp(&[&get[..], &["--identity", &carol]].concat()));
    let said = refused(&[&source, &format!("{url}/b"), "--identity", &carol]);
    assert!(said.contains("Read-only file system"), "{said}");
    served.end();
    pool.clean();
}

#[test]
fn mistakes_about_identities_are_named() {
    let pool = Pool::new();
    let source = pool.source(1);
    let served = pool.serve("127.0.0.1:0");
    let target = format!("{}/a", served.url);
    let put = |options: &[&str]| refused(&[&[&source[..], &target], options].concat());
    let said = put(&[]);
    assert!(said.contains("no identity for the pool test") && said.contains("invite"), "{said}");
    let said = put(&["--insecure", "--retry", "5"]);
    assert!(said.contains("wants TLS") && said.contains("--insecure"), "{said}");
    assert!(put(&["--identity", "/no/such"]).contains("/no/such"));
    let alice = pool.invite("alice", &[]);
    assert!(put(&["--identity", &alice, "--insecure"]).contains("cannot be used with"));
    sh(&format!("cp {alice} {alice}.open; chmod 644 {alice}.open"));
    let said = put(&["--identity", &format!("{alice}.open")]);
    assert!(said.contains("chmod 600"), "{said}");
    sh(&format!("head -c 700 {alice} > {alice}.cut; chmod 600 {alice}.cut"));
    let said = put(&["--identity", &format!("{alice}.cut")]);
    assert!(said.contains("no identity of a client"), "{said}");
    let other = format!("braid://{}/other/a", served.address());
    let said = refused(&[&source, &other, "--identity", &alice]);
    assert!(said.contains("the identity of alice is for the pool test, not for other"), "{said}");
    let (now, old) = (Validity::days(0).until, pool.path("old"));
    let past = Validity { from: now - 9 * 86400, until: now - 2 * 86400 };
    let folder = Folder::find(Path::new(&pool.dir()), "test").unwrap();
    let expired = folder.invite("old", false, past).unwrap();
    write_secret(Path::new(&old), &expired.to_text()).unwrap();
    let said = put(&["--identity", &old]);
    assert!(said.contains("certificate of old expired at 20") && said.contains("clock"), "{said}");
    // Another authority for the same pool; both say that they do not trust the other.
    let other = pool.path("other");
    pool.init(&other, &[]);
    let mallory = pool.path("mallory");
    ok(&["serve", "invite", "test", "mallory", "--dir", &other, "--output", &mallory]);
    let said = put(&["--identity", &mallory]);
    assert!(
        said.contains("not of this pool's authority") && said.contains("invited again"),
        "{said}"
    );
    // Revoked before it comes.
    assert!(pool.order(&["revoke", "test", "alice"]).contains("alice is revoked"));
    let said = put(&["--identity", &alice]);
    assert!(said.contains("revoked"), "{said}");
    assert!(pool.order(&["clients", "test"]).contains("revoked"));
    let dir = pool.dir();
    let link = pool.path("link");
    sh(&format!("ln -s /dev/null {link}"));
    let said = fails(&["serve", "invite", "test", "x", "--dir", &dir, "--output", &link]);
    assert!(said.contains("not a regular file"), "{said}");
    // On the server's side.
    let (dir, devices) = (pool.dir(), pool.devices());
    let serve = |words: &[&str]| fails(&[&["serve"], words].concat());
    let again = serve(&["init", &devices, "--dir", &dir]);
    assert!(again.contains("--force") && again.contains("invited again"), "{again}");
    let name = serve(&["invite", "test", "a/b", "--dir", &dir]);
    assert!(name.contains("a/b"), "{name}");
    assert!(serve(&["revoke", "test", "nobody", "--dir", &dir]).contains("nobody of that name"));
    let none = pool.path("none");
    let said = serve(&["clients", "test", "--dir", &none]);
    assert!(said.contains("braid serve init test"), "{said}");
    let said = serve(&[&devices, "--dir", &none, "--listen", "127.0.0.1:0"]);
    assert!(said.contains("braid serve init test") && said.contains("--insecure"), "{said}");
    // A server without TLS, and a client that wants it.
    served.end();
    let served = Served::new(&pool.disks, &["--insecure", "--listen", "127.0.0.1:0"]);
    let bob = pool.invite("bob", &[]);
    let said = refused(&[&source, &format!("{}/a", served.url), "--identity", &bob]);
    assert!(said.contains("without TLS"), "{said}");
    served.end();
    pool.clean();
}

/// Kills the server in the middle of copies, there and back. They go on when it is started again.
#[test]
fn encrypted_copies_go_on_when_a_killed_server_is_started_again() {
    let pool = Pool::new();
    let (source, back) = (pool.source(80), pool.path("back"));
    let alice = pool.invite("alice", &[]);
    let mut served = pool.serve("127.0.0.1:0");
    let (url, address) = (format!("{}/a", served.url), served.address().to_owned());
    let options = ["--identity", &alice, "--chunk", "64K", "--connections", "3"];
    let there = [&[&source[..], &url], &options[..]].concat();
    let again = [&[&url[..], &back], &options[..]].concat();
    for (args, field) in [(there, "rchar"), (again, "wchar")] {
        let mut command = cp(&args);
        let mut copy = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        for mib in [8, 40] {
            wait_for_io(&copy, field, mib);
            served.kill();
            assert!(
                copy.try_wait().unwrap().is_none(),
                "the copy was done before the server was killed"
            );
            served = pool.serve(&address);
        }
        let out = copy.wait_with_output().unwrap();
        assert!(out.status.success(), "{out:?}");
    }
    sh(&format!("cmp {source} {back}"));
    served.end();
    pool.clean();
}

/// Who is revoked in the middle of a copy does not end it; whoever is let in again goes on from what is there.
#[test]
fn a_copy_ends_when_its_client_is_revoked() {
    let pool = Pool::new();
    let source = pool.source(80);
    let alice = pool.invite("alice", &[]);
    let served = pool.serve("127.0.0.1:0");
    let url = format!("{}/a", served.url);
    let words = [&source[..], &url, "--chunk", "64K", "--connections", "2", "--identity", &alice];
    let mut command = cp(&words);
    let copy = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_io(&copy, "rchar", 8);
    let begun = std::time::Instant::now();
    pool.order(&["revoke", "test", "alice"]);
    let said = said(&copy.wait_with_output().unwrap());
    assert!(said.contains("revoked"), "{said}");
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    assert!(pool.log().contains("a client is revoked: it is cut"), "{}", pool.log());
    let again = pool.invite("alice", &[]);
    let said = done(cp(&[&source, &url, "--identity", &again, "--verify"]));
    assert!(said.contains("of it was there"), "{said}");
    served.end();
    pool.clean();
}

/// As many strangers as the server has places for one address, and a good client beside them.
#[test]
fn a_copy_goes_on_beside_strangers_who_never_end_their_handshake() {
    let pool = Pool::new();
    let (source, back) = (pool.source(30), pool.path("back"));
    let alice = pool.invite("alice", &[]);
    let served = pool.serve("127.0.0.1:0");
    let url = format!("{}/a", served.url);
    let mut strangers = Vec::new();
    let mut crowd = || {
        for n in 0..140 {
            let mut stream = TcpStream::connect(served.address()).unwrap();
            stream.write_all(&[22, 3, 1, 2][..n % 5]).ok();
            strangers.push(stream);
        }
    };
    crowd();
    let mut command = cp(&[&source, &url, "--identity", &alice, "--chunk", "64K"]);
    let mut copy = command.spawn().unwrap();
    crowd();
    assert!(copy.wait().unwrap().success());
    done(cp(&[&url, &back, "--identity", &alice]));
    sh(&format!("cmp {source} {back}"));
    drop(strangers);
    served.end();
    pool.clean();
}

#[test]
fn a_second_host_serves_with_what_the_first_gave_it() {
    let pool = Pool::new();
    let source = pool.source(1);
    let bundle = pool.path("two");
    pool.order(&["invite", "test", "two", "--server", "--output", &bundle]);
    let second = pool.path("second");
    ok(&["serve", "install", &bundle, "--dir", &second]);
    assert!(
        !Path::new(&second)
            .read_dir()
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path()
            .join("ca.key")
            .exists()
    );
    let alice = pool.invite("alice", &[]);
    let served = Served::new(&pool.disks, &["--dir", &second, "--listen", "127.0.0.1:0"]);
    let words = [&source[..], &format!("{}/a", served.url), "--identity", &alice];
    done(cp(&words));
    assert!(fails(&["serve", "invite", "test", "x", "--dir", &second]).contains("ca.key"));
    let json: Value =
        serde_json::from_str(&pool.order(&["revoke", "test", "alice", "--json"])).unwrap();
    let serial = json["revoked"][0].as_str().unwrap();
    ok(&["serve", "revoke", "test", "--serial", serial, "--dir", &second]);
    wait_until("it is refused", || {
        let output = cp(&words).output().unwrap();
        String::from_utf8_lossy(&output.stderr).contains("revoked")
    });
    served.end();
    // The first server's own certificate anew, then everything.
    pool.init(&pool.dir(), &["--renew"]);
    let bob = pool.invite("bob", &[]);
    let served = pool.serve("127.0.0.1:0");
    done(cp(&[&source, &format!("{}/b", served.url), "--identity", &bob]));
    served.end();
    pool.init(&pool.dir(), &["--force"]);
    let served = pool.serve("127.0.0.1:0");
    let said = refused(&[&source, &format!("{}/b", served.url), "--identity", &bob]);
    assert!(said.contains("invited again"), "{said}");
    served.end();
    pool.clean();
}

/// A mount is its client's, who may be one that only reads, and may be revoked: then its locks are free.
#[test]
fn a_mount_ends_for_who_is_revoked() {
    if !can_mount() {
        return;
    }
    let pool = Pool::new();
    let served = pool.serve("127.0.0.1:0");
    let mount = |name: &str, options: &[&str]| {
        let identity = pool.invite(name, options);
        Remote::new(&pool.disks, &format!("at-{name}"), &served.url, &["--identity", &identity])
    };
    let (alice, bob) = (mount("alice", &[]), mount("bob", &[]));
    let eve = mount("eve", &["--read-only"]);
    sh(&format!("echo text > {}/file; cat {}/file; ! touch {}/no", alice.dir, eve.dir, eve.dir));
    let hold = format!("exec 9< {}/file; flock 9; exec sleep 60", bob.dir);
    let mut holder = Command::new("bash").args(["-c", &hold]).spawn().unwrap();
    let locked = || sh(&format!("flock -n {}/file true && echo free || echo held", alice.dir));
    wait_until("it is locked", || locked() == "held\n");
    pool.order(&["revoke", "test", "bob"]);
    wait_until("the lock is free", || locked() == "free\n");
    let refused = sh(&format!("cat {}/file 2>&1 || true", bob.dir));
    assert!(refused.contains("Input/output error"), "{refused}");
    wait_until("the log says why", || bob.log().contains("revoked"));
    assert!(ok(&["status", &bob.dir]).contains("NO ANSWER"));
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(sh(&format!("cat {}/file", alice.dir)), "text\n");
    wait_until("nobody has it open", || {
        common::braid(&["unmount", &bob.dir]).status.success()
            || !common::is_mounted(bob.dir.as_ref())
    });
    eve.unmount();
    alice.unmount();
    served.end();
    pool.clean();
}
