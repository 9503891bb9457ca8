//! `braid serve` and `braid cp`, as a user runs them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::served::{Served, wait_for_io};
use common::{Cluster, Disks, can_mount, fails, ok, sh, wait_until};

/// Serves a pool without TLS.
fn serve(disks: &Disks, listen: &str) -> Served {
    Served::new(disks, &["--insecure", "--listen", listen])
}

/// A pool that nobody has mounted.
fn pool() -> Disks {
    let disks = Disks::new(2, 700);
    ok(&disks.with(&["create", "test"], &[]));
    disks
}

fn clean(disks: &Disks) {
    let said = ok(&disks.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}

/// A file of random bytes.
fn source(disks: &Disks, mib: u32) -> String {
    let path = disks.path("source");
    sh(&format!(
        "head -c {mib}M /dev/urandom > {path}; chmod 640 {path}; touch -d 2001-02-03 {path}"
    ));
    path
}

#[test]
fn files_go_there_and_back_without_a_mount() {
    let disks = pool();
    let source = source(&disks, 20);
    let served = serve(&disks, "127.0.0.1:0");
    let (url, back) = (&served.url, disks.path("back"));
    let said = ok(&["cp", &source, &format!("{url}/a"), "--insecure", "--verify", "-p"]);
    assert!(said.contains("20 MiB in") && !said.contains("was there"), "{said}");
    ok(&["cp", &format!("{url}/a"), &back, "--insecure", "--chunk", "100000", "-p"]);
    sh(&format!("cmp {source} {back}"));
    let stat = |path: &str| sh(&format!("stat -c '%a %Y' {path}"));
    assert_eq!(stat(&back), stat(&source));
    // Into a directory of this host, and onto the root directory of the pool, by its own name.
    let dir = disks.path("dir");
    sh(&format!("mkdir {dir}; : > {dir}/empty"));
    ok(&["cp", &format!("{url}/a"), &dir, "--insecure", "--connections", "1"]);
    sh(&format!("cmp {source} {dir}/a"));
    ok(&["cp", &format!("{dir}/empty"), &format!("{url}/"), "--insecure"]);
    ok(&["cp", &format!("{url}/empty"), &format!("{dir}/e"), "--insecure"]);
    sh(&format!("cmp {dir}/empty {dir}/e; test $(ls -A {dir} | wc -l) = 3"));
    // Over what is there.
    ok(&["cp", &format!("{dir}/empty"), &format!("{url}/a"), "--insecure"]);
    ok(&["cp", &format!("{url}/a"), &back, "--insecure"]);
    sh(&format!("cmp {dir}/empty {back}"));
    served.end();
    clean(&disks);
}

/// What another user has put where the copy goes by and by, and targets that are no files.
#[test]
fn a_copy_follows_nothing_that_others_put_in_its_way() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1, 700, 1);
    let source = source(&c.disks, 1);
    let dir = c.disks.path("dir");
    sh(&format!("mkdir -m 777 {dir}; chown 1000 {source}; chmod 4755 {source}"));
    let node = c.node(0).to_str().unwrap().to_owned();
    sh(&format!("mkdir -m 777 {node}/d; echo precious | tee {dir}/precious > {node}/precious"));
    let served = serve(&c.disks, "127.0.0.1:0");
    let url = format!("{}/d", served.url);
    for (name, there, here) in [
        ("link", "ln -s ../precious", "ln -s precious"),
        ("hard", "ln NODE/precious", "ln DIR/precious"),
        ("user", "install -o 1000 /dev/null", "install -o 1000 /dev/null"),
        ("fifo", "mkfifo", "mkfifo"),
    ] {
        let made = format!("{there} NODE/d/.{name}.braid-part && {here} DIR/.{name}.braid-part");
        sh(&made.replace("NODE", &node).replace("DIR", &dir));
        ok(&["cp", &source, &format!("{url}/{name}"), "--insecure", "-p"]);
        ok(&["cp", &format!("{url}/{name}"), &format!("{dir}/{name}"), "--insecure", "-p"]);
        // Not one that runs with the rights of whoever copied it.
        let stat = format!("stat -c '%F %u %h %a' {node}/d/{name} {dir}/{name} | sort -u");
        assert_eq!(sh(&stat), "regular file 0 1 755\n", "{name}");
        sh(&format!("cmp {source} {node}/d/{name} && cmp {source} {dir}/{name}"));
    }
    assert_eq!(sh(&format!("cat {node}/precious {dir}/precious")), "precious\nprecious\n");
    sh(&format!("mkdir {node}/d/.x.braid-part; mknod {dir}/null c 1 3; mknod {node}/d/null c 1 3"));
    let refused = |from: &str, to: &str, why: &str| {
        let said = fails(&["cp", from, to, "--insecure"]);
        assert!(said.contains(why), "{from} {to}: {said}");
    };
    let no_file = "not a regular file: it is not replaced";
    refused(&source, &format!("{url}/x"), ".x.braid-part is in the way: remove it");
    refused(&source, &format!("{url}/null"), no_file);
    refused(&format!("{url}/link"), &format!("{dir}/null"), no_file);
    // A link of the user's own is followed to its file.
    sh(&format!("ln -s target {dir}/own"));
    refused(&format!("{url}/link"), &format!("{dir}/own"), "No such file");
    sh(&format!("touch {dir}/target"));
    ok(&["cp", &format!("{url}/link"), &format!("{dir}/own"), "--insecure"]);
    sh(&format!("cmp {source} {dir}/target; test -L {dir}/own"));
    sh(&format!("fallocate -l 900M {dir}/huge"));
    refused(&format!("{dir}/huge"), &format!("{url}/huge"), "there is no room for the file");
    sh(&format!("rmdir {node}/d/.x.braid-part"));
    served.end();
    c.unmount_all();
    clean(&c.disks);
}

#[test]
fn mistakes_are_named() {
    let disks = pool();
    let source = source(&disks, 1);
    let devices = disks.names().join(":");
    let said = fails(&["serve", &devices]);
    assert!(said.contains("--insecure") && said.contains("authentication"), "{said}");
    let said = fails(&["serve", &devices, "--insecure", "--owner", "root"]);
    assert!(said.contains("--owner"), "{said}");
    let said = fails(&["serve", &devices, "--insecure", "--listen", "127.0.0.1"]);
    assert!(said.contains("--listen 127.0.0.1"), "{said}");
    let said = fails(&["serve", "no-such-pool", "--insecure", "--listen", "127.0.0.1:0"]);
    assert!(said.contains("no-such-pool"), "{said}");
    let served = serve(&disks, "127.0.0.1:0");
    let url = &served.url;
    let cp =
        |source: &str, target: &str| fails(&["cp", source, target, "--insecure", "--retry", "1"]);
    let said = fails(&["cp", &source, &format!("{url}/a")]);
    assert!(said.contains("--insecure"), "{said}");
    assert!(cp(&source, "/tmp/x").contains("braid://"));
    assert!(cp(&format!("{url}/a"), &format!("{url}/b")).contains("local"));
    assert!(cp(&format!("{url}/a"), &disks.path("b")).contains("/test/a: no such file"));
    assert!(cp(&source, &format!("{url}/no/dir")).contains("/test/no"));
    assert!(cp(&source, &format!("{url}/no/")).contains("no such directory"));
    assert!(cp(&format!("{url}/"), &disks.path("b")).contains("not a regular file"));
    assert!(cp(&disks.path(""), &format!("{url}/a")).contains("not a regular file"));
    let other = format!("braid://{}/other/a", served.address());
    assert!(cp(&source, &other).contains("another pool"));
    // Nobody else is served at this address; the second server says so.
    let said = fails(&["serve", &devices, "--insecure", "--listen", served.address()]);
    assert!(said.contains(served.address()), "{said}");
    let address = served.address().to_owned();
    served.end();
    let said = cp(&source, &format!("braid://{address}/test/a"));
    assert!(said.contains(&address) && said.contains("refused"), "{said}");
    clean(&disks);
}

/// A copy, of which the process is known.
fn begin(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Kills the server in the middle of copies, there and back. They go on when it is started again.
#[test]
fn copies_go_on_when_a_killed_server_is_started_again() {
    let disks = pool();
    let (source, back) = (source(&disks, 80), disks.path("back"));
    let mut served = serve(&disks, "127.0.0.1:0");
    let (url, address) = (format!("{}/a", served.url), served.address().to_owned());
    let there = ["cp", &source, &url, "--insecure", "--chunk", "64K", "--connections", "3"];
    let again = ["cp", &url, &back, "--insecure", "--chunk", "64K", "--connections", "3"];
    for (args, field) in [(there, "rchar"), (again, "wchar")] {
        let mut copy = begin(&args);
        for mib in [8, 40] {
            wait_for_io(&copy, field, mib);
            served.kill();
            assert!(
                copy.try_wait().unwrap().is_none(),
                "the copy was done before the server was killed"
            );
            served = serve(&disks, &address);
        }
        let out = copy.wait_with_output().unwrap();
        assert!(out.status.success(), "{out:?}");
    }
    sh(&format!("cmp {source} {back}"));
    served.end();
    clean(&disks);
}

/// Kills the client in the middle; what it had copied is not copied again.
#[test]
fn a_killed_copy_is_resumed() {
    let disks = pool();
    let source = source(&disks, 60);
    let served = serve(&disks, "127.0.0.1:0");
    let url = format!("{}/a", served.url);
    let args = ["cp", &source, &url, "--insecure", "--chunk", "64K", "--connections", "3"];
    let mut copy = begin(&args);
    wait_for_io(&copy, "rchar", 20);
    copy.kill().unwrap();
    assert!(!copy.wait().unwrap().success());
    let back = disks.path("back");
    assert!(fails(&["cp", &url, &back, "--insecure"]).contains("no such file"));
    let said = ok(&args);
    assert!(said.contains("of it was there"), "{said}");
    ok(&["cp", &url, &back, "--insecure"]);
    sh(&format!("cmp {source} {back}"));
    served.end();
    clean(&disks);
}

/// A sparse file larger than the pool goes there and back, and takes no more space than before: into new files, and where
/// the part of an earlier copy has other bytes.
#[test]
fn large_holes_are_neither_sent_nor_filled() {
    let disks = pool();
    let [source, back, whole] = ["source", "back", "whole"].map(|name| disks.path(name));
    sh(&format!(
        "truncate -s 3G {source}; for at in 0 700 704 1500; do head -c 300000 /dev/urandom |
         dd of={source} bs=1M seek=$at conv=notrunc iflag=fullblock status=none; done
         head -c 300000 /dev/urandom | dd of={source} bs=1000 seek=1500000 conv=notrunc status=none
         head -c 20M /dev/urandom > {whole}"
    ));
    let served = serve(&disks, "127.0.0.1:0");
    let url = format!("{}/a", served.url);
    let space = |path: &str| {
        sh(&format!("du -k {path}")).split('\t').next().unwrap().parse::<u64>().unwrap()
    };
    let copy = |from: &str, to: &str, chunk: &str| {
        let said = ok(&["cp", from, to, "--insecure", "--chunk", chunk]);
        assert!(said.contains("of it holes"), "{said}");
    };
    copy(&source, &url, "4M");
    copy(&url, &back, "1M");
    sh(&format!("cmp {source} {back}"));
    assert!(space(&back) < space(&source) + 256, "{} of {}", space(&back), space(&source));
    // Parts of earlier copies.
    ok(&["cp", &whole, &format!("{}/.b.braid-part", served.url), "--insecure"]);
    sh(&format!("cp {whole} $(dirname {back})/.b.braid-part"));
    let url = format!("{}/b", served.url);
    copy(&source, &url, "3M");
    let back = disks.path("b");
    copy(&url, &back, "3M");
    sh(&format!("cmp {source} {back}"));
    assert!(space(&back) < space(&source) + 256, "{} of {}", space(&back), space(&source));
    served.end();
    clean(&disks);
}

/// A node that has the pool mounted and a client see each other's files at once.
#[test]
fn a_mounted_node_and_clients_see_the_same_files() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 400, 1);
    let source = source(&c.disks, 10);
    let served = serve(&c.disks, "127.0.0.1:0");
    let (url, node, back) = (&served.url, c.node(0).display(), c.disks.path("back"));
    sh(&format!("mkdir {node}/dir"));
    for round in 0..3 {
        sh(&format!("echo {round} >> {source}"));
        ok(&["cp", &source, &format!("{url}/dir/a"), "--insecure"]);
        sh(&format!("cmp {source} {node}/dir/a; test $(ls -A {node}/dir) = a"));
        sh(&format!("echo more {round} >> {node}/dir/a"));
        ok(&["cp", &format!("{url}/dir/a"), &back, "--insecure"]);
        sh(&format!("cmp {back} {node}/dir/a"));
    }
    // By the name of the mount, too: its devices are known.
    served.end();
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    let dir: PathBuf = c.node(0).to_owned();
    command.arg("serve").arg(&dir).args(["--insecure", "--listen", "127.0.0.1:0"]);
    let served = Served::begin(&mut command);
    let nodes = || ok(&["nodes", dir.to_str().unwrap()]);
    wait_until("both nodes are seen", || nodes().contains(&served.url));
    ok(&["cp", &format!("{}/dir/a", served.url), &back, "--insecure"]);
    sh(&format!("cmp {back} {node}/dir/a"));
    served.end();
    c.finish();
}
