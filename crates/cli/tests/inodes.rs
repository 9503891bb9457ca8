//! Inodes that the kernel refers to without having them open, and the order of what it is told about
//! them, through the real mount.

mod common;

use common::{Cluster, can_mount, python, python_on_two_nodes};

/// FIFOs, devices, `O_PATH` handles and working directories have no open file that the file system
/// hears of; whoever has one uses the inode all the same.
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
for remover in (A, B):
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
for where, rounds in ((A, 600), (B, 40)):
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
/// of a file that another process only truncates. While a file is appended to, a few looks in a second may
/// still see the size of an instant before: that is not mended yet.
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
ODD = 20  # of some 100,000 looks; see SEMANTICS, What is not promised
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
            os._exit(back > (ODD if how == "append" else 0))
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
