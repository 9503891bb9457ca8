//! Two nodes of one pool in one process, each with members that it has opened itself, as two hosts would: what one
//! writes the other reads at once. `cargo run --release -p braid-fs --example two_nodes`.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use braid_fs::make::{MakeOptions, make};
use braid_fs::pool::device::{AlignedBuf, Device, OpenOptions, open};
use braid_fs::pool::layout::Redundancy;
use braid_fs::pool::{CreateOptions, Pool};
use braid_fs::{Cred, Fs, MountOptions, NoKernelCache, WriteFlags};

/// Of open(2).
const O_RDWR: i32 = 2;
const O_APPEND: i32 = 0o2000;

/// A node that has opened the members itself.
fn node(paths: &[PathBuf], name: &str) -> Result<Fs, Box<dyn Error>> {
    // What `braid nodes` and the logs of other nodes call it.
    let options = MountOptions { mount_point: name.into(), ..MountOptions::default() };
    Ok(Fs::mount(Pool::assemble(open_all(paths)?)?, options, Arc::new(NoKernelCache))?)
}

fn open_all(paths: &[PathBuf]) -> Result<Vec<Arc<dyn Device>>, Box<dyn Error>> {
    paths.iter().map(|path| Ok(open(path, OpenOptions::default())?)).collect()
}

/// Runs it.
pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let paths = ["disk0", "disk1"].map(|name| folder.path().join(name)).to_vec();
    for path in &paths {
        std::fs::File::create_new(path)?.set_len(64 << 20)?;
    }
    // Either member may be lost. With mirrors or parity each node needs a log of its own.
    let (redundancy, nodes) = (Redundancy::Mirror(2), 2);
    let options = CreateOptions { redundancy, log_slots: nodes, ..CreateOptions::new("example") };
    let pool = Pool::create(open_all(&paths)?, &options)?;
    make(&pool, &MakeOptions { nodes: Some(nodes), ..MakeOptions::default() }, &mut |_, _| {})?;
    drop(pool);

    let (one, two) = (node(&paths, "one")?, node(&paths, "two")?);
    let user = Cred::default();
    let append = WriteFlags { append: true, ..WriteFlags::default() };
    let (log, of_one) = one.create(one.root(), b"log", 0o644, O_RDWR | O_APPEND, &user)?;
    // Nothing has to be made durable for that: reads return the newest contents on any node.
    let of_two = two.open(two.lookup(two.root(), b"log")?.ino, O_RDWR | O_APPEND)?;
    for _ in 0..3 {
        one.write(of_one, 0, b"one ", append)?;
        two.write(of_two, 0, b"two ", append)?;
    }
    let mut buffer = AlignedBuf::zeroed(4096);
    let read = one.read(of_one, 0, &mut buffer)?;
    assert_eq!(buffer.get(..read), Some(&b"one two one two one two "[..]));
    assert_eq!(two.getattr(log.ino)?.size, 24);
    for node in &two.status().nodes {
        println!("node {}: {}", node.life.slot, node.mount_point);
    }
    assert_eq!(two.status().nodes.len(), 2);

    for (node, file) in [(&one, of_one), (&two, of_two)] {
        node.release(file)?;
        node.unmount()?;
    }
    Ok(())
}
