//! Makes a pool of two files in a temporary folder, mounts it in this process, writes a file durably, reads it back and
//! lists the directory: `cargo run --release -p braid-fs --example files`.

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_fs::make::{MakeOptions, make};
use braid_fs::pool::device::{AlignedBuf, Device, OpenOptions, open};
use braid_fs::pool::{CreateOptions, Pool};
use braid_fs::{Cred, Fs, MountOptions, NoKernelCache, WithAttrs, WriteFlags};

/// Of open(2).
const O_RDWR: i32 = 2;

/// Members of a pool: files of 64 MiB. Disks are opened in the same way, by the names of their device nodes.
fn members(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let paths = vec![folder.join("disk0"), folder.join("disk1")];
    for path in &paths {
        File::create_new(path)?.set_len(64 << 20)?;
    }
    Ok(paths)
}

fn open_all(paths: &[PathBuf]) -> Result<Vec<Arc<dyn Device>>, Box<dyn Error>> {
    paths.iter().map(|path| Ok(open(path, OpenOptions::default())?)).collect()
}

/// Runs it.
pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let paths = members(folder.path())?;

    // As `braid create` does. The pool is one address space; the file system is made on it.
    let pool = Pool::create(open_all(&paths)?, &CreateOptions::new("example"))?;
    make(&pool, &MakeOptions::default(), &mut |_, _| {})?;
    drop(pool);

    // As `braid mount` does, without the kernel: this process is a node of the pool from now on.
    let pool = Pool::assemble(open_all(&paths)?)?;
    let fs = Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache))?;

    // Who owns what is made. The API itself checks no permissions.
    let user = Cred::default();
    let dir = fs.mkdir(fs.root(), b"notes", 0o755, &user)?.ino;
    let (attr, handle) = fs.create(dir, b"first", 0o644, O_RDWR, &user)?;
    let written = fs.write(handle, 0, b"kept", WriteFlags::default())?;
    // On return the contents, and what leads to them, are on the devices. The name is durable then, too.
    fs.fsync(handle, false)?;

    let mut buffer = AlignedBuf::zeroed(4096);
    let read = fs.read(handle, 0, &mut buffer)?;
    assert_eq!((written, buffer.get(..read)), (4, Some(&b"kept"[..])));
    fs.release(handle)?;

    let mut names = Vec::new();
    fs.readdir(dir, 0, WithAttrs::Yes, &mut |entry| {
        names.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino));
        // Whether the list is full.
        false
    })?;
    for (name, number) in &names {
        println!("{name}: inode {number}");
    }
    assert!(names.iter().any(|(name, number)| name == "first" && *number == attr.ino));
    assert_eq!(fs.lookup(dir, b"first")?.size, 4);
    assert!(matches!(fs.lookup(dir, b"second"), Err(braid_fs::Error::NotFound)));

    // Leaves the pool: everything is durable. A program that just ends is recovered as after a crash.
    fs.unmount()?;
    Ok(())
}
