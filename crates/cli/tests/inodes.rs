//! Inodes that the kernel refers to without having them open, and the order of what it is told about
//! them, through the real mount.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use braid_format::dinode::{Layout, RawDinode};
use braid_format::lock_record::LockRecord;
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::tree::RawExtent;
use braid_format::{BlockNo, LockNo};
use common::{Cluster, can_mount, python, python_on_two_nodes};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// FIFOs, devices, `O_PATH` handles and working directories have no open file that the file system
/// hears of; whoever has one uses the inode all the same. That another node removes the name is not told to
/// kernels before Linux 6.18.
#[test]
fn what_the_kernel_refers_to_outlives_its_last_name() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    python(
        &c,
        r#"
os.chdir(A)
linux = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2]))
for remover in (A, B) if linux >= (6, 18) else (A,):
    os.mkfifo("f"); f = os.open("f", os.O_RDWR); os.remove(remover + "/f")
    os.write(f, b"hi\n"); assert os.read(f, 3) == b"hi\n"
    assert os.fstat(f).st_nlink == 0
    os.fchmod(f, 0o600); assert stat.S_IMODE(os.fstat(f).st_mode) == 0o600
    os.close(f)
    os.mknod("n", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    n = os.open("n", os.O_RDWR); os.remove(remover + "/n")
    assert os.fstat(n).st_nlink == 0; os.fchmod(n, 0o640); os.write(n, b"x"); os.close(n)
    with open("p", "w") as p: p.write("contents")
    p = os.open("p", os.O_PATH); os.remove(remover + "/p")
    assert (os.fstat(p).st_nlink, os.fstat(p).st_size) == (0, 8)
    with open(f"/proc/self/fd/{p}") as again: assert again.read() == "contents"
    os.close(p)
os.mkdir("d"); os.chdir("d"); os.rmdir(A + "/d")
assert os.stat(".").st_nlink == 0 and os.listdir(".") == []
try: open("x", "w")
except FileNotFoundError: pass
else: raise AssertionError("made in a removed directory")
os.chdir("/")
"#,
    );
    // What is left of them holds nothing: the check finds no orphan that was forgotten.
    c.finish();
}

/// A working directory, or an `O_PATH` handle of a directory, that another node has removed leads nowhere, also when an
/// inode of the same number has been made since.
#[test]
fn a_removed_directory_never_becomes_another() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    python(
        &c,
        r#"
import errno
def stale(call, *args):
    try: found = call(*args)
    except OSError as e: assert e.errno == errno.ESTALE, e
    else: raise AssertionError(f"{call} {args}: {found}")
os.mkdir(B + "/hidden", 0o700)
os.mkdir(B + "/gone"); os.chdir(A + "/gone"); number = os.stat(".").st_ino
handle = os.open(".", os.O_PATH)
os.rmdir(B + "/gone")
os.sync()
for n in range(2000):
    other = f"{B}/hidden/{n}"
    os.mkdir(other)
    if os.stat(other).st_ino == number: break
else: raise AssertionError("the number was not used again")
open(other + "/secret", "w").write("x")
os.sync()
stale(os.listdir, ".")
stale(os.open, "secret", os.O_RDONLY)
stale(os.open, "made", os.O_CREAT | os.O_WRONLY)
stale(os.remove, "secret")
stale(os.mkdir, "made")
stale(os.rename, A + "/hidden", "moved")
stale(os.listdir, f"/proc/self/fd/{handle}")
assert os.listdir(other) == ["secret"]
# Who looks the other one up finds it, and the old one still leads nowhere.
assert os.listdir(A + f"/hidden/{n}") == ["secret"]
try: os.listdir(".")
except OSError as e: assert e.errno in (errno.ESTALE, errno.EIO), e
else: raise AssertionError("the old directory is the other one")
os.close(handle)
os.chdir("/")
"#,
    );
    c.finish();
}

/// Space of what was removed is there when it is asked for, although the kernel gives the inode back
/// only after the removal was answered.
#[test]
fn a_removed_file_makes_room_for_the_next() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(1, 64, 1);
    python(
        &c,
        r#"
free = os.statvfs(A).f_bavail
size = free * 4096 * 3 // 4
for round in range(8):
    with open(A + "/f", "wb") as f: f.write(bytes(size))
    os.remove(A + "/f")
    assert os.statvfs(A).f_bavail > free * 9 // 10, (round, free, os.statvfs(A).f_bavail)
"#,
    );
    c.finish();
}

/// Programs that open a file while another replaces it by `rename` find the old or the new one.
#[test]
fn a_file_that_is_replaced_can_always_be_opened() {
    python_on_two_nodes(
        r#"
with open(A + "/f", "w") as f: f.write("x")
for where, rounds in ((A, 2000), (B, 40)):
    stop, end = os.pipe(); readers = []
    os.set_blocking(stop, False)
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            os.close(end); done = 1
            try:
                while True:
                    file = os.open(A + "/f", os.O_RDONLY); assert os.read(file, 9); os.close(file)
                    try:
                        if os.read(stop, 1) == b"": done = 0; break
                    except BlockingIOError: pass
            finally: os._exit(done)
        readers.append(pid)
    for n in range(rounds):
        with open(where + "/g", "w") as g: g.write("y" * (n * 97 % 5000 + 1))
        os.rename(where + "/g", where + "/f")
    os.close(end); os.close(stop)
    for pid in readers: assert os.waitpid(pid, 0)[1] == 0
"#,
    );
}

/// No reader sees a size after another has seen a larger one of a file that only grows, or a smaller one
/// of a file that another process only truncates.
#[test]
fn a_growing_file_never_shrinks_for_anybody() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 512, 1);
    python(
        &c,
        r#"
import mmap
READERS, LARGEST = 3, 1 << 40
seen = mmap.mmap(-1, 4096)  # of each reader, the largest size, or how much less than LARGEST
def size_of(k): return struct.unpack_from("Q", seen, 8 * k)[0]
for how in ("append", "allocate", "lengthen", "shorten"):
    path = f"{A}/{how}"; open(path, "w").close()
    if how == "shorten": os.truncate(path, LARGEST)
    seen[:8 * READERS] = bytes(8 * READERS)
    until = time.monotonic() + 3; readers = []
    for k in range(READERS):
        pid = os.fork()
        if pid == 0:
            file = os.open(path, os.O_RDONLY); n = 0; back = 0
            while time.monotonic() < until:
                before = max(map(size_of, range(READERS)))
                size = (os.fstat(file) if n & 1 else os.stat(path)).st_size
                if how == "shorten": size = LARGEST - size
                if size < before: back += 1; print(how, before, size, file=sys.stderr)
                struct.pack_into("Q", seen, 8 * k, max(size, size_of(k))); n += 1
            os._exit(back > 0)
        readers.append(pid)
    file = os.open(path, os.O_RDWR | (os.O_APPEND if how == "append" else 0)); size = 0
    while time.monotonic() < until and size < 64 << 20:
        if how == "append": size += os.write(file, b"x" * 77)
        elif how == "allocate": os.posix_fallocate(file, size, 100); size += 100
        else: size += 100; os.ftruncate(file, LARGEST - size if how == "shorten" else size)
    for pid in readers: assert os.waitpid(pid, 0)[1] == 0, how
"#,
    );
    c.finish();
}

/// `cp` and `mv` give a copy the mode of its original, by whatever way they try first.
#[test]
fn copies_have_the_modes_of_their_originals() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 1);
    python(
        &c,
        r#"
import tempfile
with tempfile.TemporaryDirectory() as there:
    for umask in (0o022, 0o077, 0):
        os.umask(umask)
        for mode in (0o644, 0o600, 0o755, 0o4755, 0o2750, 0o1777, 0o400, 0o7):
            for how in (["cp", "-p"], ["cp", "-a"], ["mv"]):
                name = f"{how[-1]}{umask:o}.{mode:o}"; file, folder = f"{there}/{name}", f"{there}/d{name}"
                open(file, "w").close(); os.chmod(file, mode)
                os.mkdir(folder); os.chmod(folder, mode | 0o700)
                if how == ["cp", "-p"]: how = ["cp", "-pr"]
                subprocess.check_call([*how, file, folder, A])
                got = os.stat(f"{A}/{name}").st_mode & 0o7777
                assert got == mode, (how, oct(umask), oct(mode), oct(got))
                got = os.stat(f"{A}/d{name}").st_mode & 0o7777
                assert got == mode | 0o700, (how, oct(umask), oct(mode), oct(got))
"#,
    );
    c.finish();
}

/// Where a pool's data begins on its only member.
const DATA: usize = 1 << 20;
const BLOCK: usize = 4096;
const LOCK_SECTOR: usize = 512;

/// The block of the pool on `disk` that holds these bytes.
fn block_of(disk: &Path, bytes: &[u8]) -> u64 {
    let all = fs::read(disk).unwrap();
    let place = all[DATA..].chunks(BLOCK).position(|block| block == bytes);
    u64::try_from(place.expect("on the disk")).unwrap()
}
/// Bytes that look like an inode at `block`, its lock free: a file that everybody may read, whose
/// contents are those of block `of`.
fn forged_inode(block: u64, of: u64) -> Vec<u8> {
    let (block, lock) = (BlockNo(block), LockNo(block));
    let mut slot = vec![0; BLOCK];
    let (sector, body) = slot.split_at_mut(LOCK_SECTOR);
    LockRecord::unlocked(lock, 0x1234_5678).encode(sector);
    let (raw, tail) = RawDinode::mut_from_prefix(body).unwrap();
    raw.header = MetaHeader::new(MetaKind::Dinode, block, lock);
    raw.mode.set(0o100_644);
    raw.nlink.set(1);
    raw.size.set(BLOCK as u64);
    raw.blocks.set(1);
    raw.layout.set(Layout::Extents as u16);
    raw.tail_count.set(1);
    raw.inode_generation.set(7);
    let mut extent = RawExtent::new_zeroed();
    extent.physical.set(of);
    extent.len.set(1);
    extent.write_to_prefix(tail).unwrap();
    MetaHeader::seal(body);
    slot
}

/// A program writes into its file what looks like an inode whose contents are somebody else's, and
/// somebody comes with a file handle of that block's number, as a hostile NFS client may.
#[test]
fn a_made_up_file_handle_leads_to_no_block_of_file_data() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(1, 256, 2);
    let (disk, dir) = (&c.disks.paths[0], c.node(0));
    let mut blocks = [0; 2];
    for (name, fill, block) in [("secret", b's', 0), ("bait", b'b', 1)] {
        let bytes = vec![fill; BLOCK];
        fs::write(dir.join(name), &bytes).unwrap();
        fs::File::open(dir.join(name)).unwrap().sync_all().unwrap();
        blocks[block] = block_of(disk, &bytes);
    }
    let [secret, bait] = blocks;
    let forged = forged_inode(bait, secret);
    let file = OpenOptions::new().write(true).open(dir.join("bait")).unwrap();
    file.write_all_at(&forged, 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(block_of(disk, &forged), bait, "overwritten where it was");
    python(
        &c,
        &format!(
            r#"
libc = ctypes.CDLL(None, use_errno=True)
def by_handle(mount, handle):
    root = os.open(mount, os.O_RDONLY)
    try:
        file = libc.open_by_handle_at(root, ctypes.create_string_buffer(handle), os.O_RDONLY)
        if file < 0: raise OSError(ctypes.get_errno(), "open_by_handle_at")
        return file
    finally: os.close(root)
def handle_of(path):
    buffer = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128)); mount = ctypes.c_int()
    assert libc.name_to_handle_at(-100, path.encode(), buffer, ctypes.byref(mount), 0) == 0
    return buffer.raw
# Of FUSE: bytes, kind, the number's halves, generation.
made_up = struct.pack("IiIII", 12, 0x81, {bait} >> 32, {bait} & 0xffffffff, 7)
for mount in A, B: refused(errno.ESTALE, by_handle, mount, made_up)
# Those of inodes that another node has just made lead to them, with a name and without.
kept = []
for n in range(200):
    with open(f"{{A}}/f{{n}}", "w") as f: f.write(str(n))
    kept.append(handle_of(f"{{A}}/f{{n}}"))
for n, handle in enumerate(kept):
    if n % 2: os.remove(f"{{A}}/f{{n}}")
for n, handle in enumerate(kept):
    for mount in B, A:
        if n % 2: refused(errno.ESTALE, by_handle, mount, handle); continue
        file = by_handle(mount, handle)
        assert os.read(file, 10) == str(n).encode(); os.close(file)
"#
        ),
    );
    drop(file);
    c.finish();
}
