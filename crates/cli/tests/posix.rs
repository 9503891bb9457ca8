//! What programs expect of any file system, through the real mount: the parts that take the kernel,
//! the front and the file system together to get right.

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};

use common::{Cluster, can_mount, sh};

/// Runs a Python program in a directory on node A; `B` is the same directory on node B.
fn python(c: &Cluster, program: &str) {
    common::python(c, &format!("{HEAD}{program}"));
}
fn on_two_nodes(program: &str) {
    common::python_on_two_nodes(&format!("{HEAD}{program}"));
}
const HEAD: &str = "
os.chdir(A)
libc = ctypes.CDLL(None, use_errno=True)
";

#[test]
fn whoever_may_not_keep_privileges_takes_them_off_by_any_change() {
    on_two_nodes(
        r#"
def write(f): os.pwrite(f, os.pread(f, 4096, 0), 0)
def allocate(f): os.posix_fallocate(f, 1 << 20, 4096)
def copy(f):
    source = os.open("/usr/bin/id", os.O_RDONLY)
    local = os.open("plain", os.O_RDONLY)
    os.copy_file_range(local, f, 4096, 0, 0)
def shorten(f): os.ftruncate(f, os.fstat(f).st_size)
def empty(f): os.close(os.open(f"/proc/self/fd/{f}", os.O_WRONLY | os.O_TRUNC))
subprocess.check_call(["cp", "/usr/bin/id", "plain"]); os.chmod("plain", 0o755)
for how in (write, allocate, copy, shorten, empty):
    name = how.__name__
    subprocess.check_call(["cp", "/usr/bin/id", name])
    os.chmod(name, 0o6777); os.stat(name)
    def change():
        file = os.open(name, os.O_RDWR); how(file); os.close(file)
        if how != empty:
            # The kernel runs it by the mode that it has.
            assert subprocess.check_output(["./" + name, "-u"]) == b"1000\n"
    unprivileged(change)
    assert os.stat(name).st_mode & 0o7777 == 0o777, (name, oct(os.stat(name).st_mode))
    assert os.stat(f"{B}/{name}").st_mode & 0o7777 == 0o777
# Without execution by the group its bit means something else.
os.close(os.open("locking", os.O_CREAT | os.O_WRONLY)); os.chmod("locking", 0o6706)
unprivileged(lambda: os.write(os.open("locking", os.O_WRONLY), b"x"))
assert os.stat("locking").st_mode & 0o7777 == 0o2706
# Capabilities go by any write, root's too.
capability = bytes.fromhex("0100000200200000000000000000000000000000")
for size in (3, 1 << 20):
    os.setxattr("plain", "security.capability", capability)
    os.setxattr("plain", "user.stays", b"1")
    os.pwrite(os.open("plain", os.O_WRONLY), b"!" * size, 0)
    refused(errno.ENODATA, os.getxattr, "plain", "security.capability")
    assert os.getxattr("plain", "user.stays") == b"1"
os.chmod("plain", 0o6755); os.pwrite(os.open("plain", os.O_WRONLY), b"!", 0)
assert os.stat("plain").st_mode & 0o7777 == 0o6755
"#,
    );
}

#[test]
fn a_directory_that_is_open_outlives_its_removal() {
    on_two_nodes(
        r#"
for remover in (A, B):
    os.mkdir("d")
    for n in range(300): os.close(os.open(f"d/{n:0200}", os.O_CREAT | os.O_WRONLY))
    d = os.open("d", os.O_RDONLY | os.O_DIRECTORY)
    assert len(os.listdir(d)) == 300
    subprocess.check_call(["rm", "-r", remover + "/d"])
    assert os.listdir(d) == []
    assert os.fstat(d).st_nlink == 0
    refused(errno.ENOENT, lambda: os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=d))
    refused(errno.ENOENT, lambda: os.mkdir("x", dir_fd=d))
    os.close(d)
os.mkdir("d"); os.mkdir("e")
d = os.open("d", os.O_RDONLY | os.O_DIRECTORY)
os.rename("e", "d")
assert os.fstat(d).st_nlink == 0 and os.stat("d").st_nlink == 2
"#,
    );
}

#[test]
fn locks_of_an_open_file_description_go_with_it() {
    on_two_nodes(
        r#"
F_OFD_SETLK = 37
def lock(f, kind): fcntl.fcntl(f, F_OFD_SETLK, struct.pack("hhqqi4x", kind, 0, 0, 10, 0))
def open_(where): return os.open(where + "/l", os.O_CREAT | os.O_RDWR)
for elsewhere in (A, B):
    one, two = open_(A), open_(elsewhere)
    lock(one, fcntl.F_WRLCK)
    refused(errno.EAGAIN, lock, two, fcntl.F_WRLCK)
    copy = os.dup(one); os.close(one)
    refused(errno.EAGAIN, lock, two, fcntl.F_WRLCK)
    os.close(copy)
    for _ in range(100):
        try: lock(two, fcntl.F_WRLCK); break
        except BlockingIOError: import time; time.sleep(0.05)
    else: raise AssertionError("the lock outlived its description")
    # Locks of this process stay while it closes only files that it never locked through.
    os.close(two)
"#,
    );
}

#[test]
fn files_with_contents_have_blocks() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let a = c.node(0);
    for size in [1_usize, 600, 3000, 4096, 100_000, 256 << 10, 1 << 20] {
        let path = a.join(format!("f{size}"));
        fs::write(&path, vec![b'x'; size]).unwrap();
        let delayed = fs::metadata(&path).unwrap().blocks();
        assert!(delayed > 0 && delayed <= size.div_ceil(4096) as u64 * 8, "{size}: {delayed}");
        File::open(&path).unwrap().sync_all().unwrap();
        assert!(fs::metadata(&path).unwrap().blocks() > 0, "{size}");
    }
    let hole = File::create(a.join("hole")).unwrap();
    hole.set_len(1 << 30).unwrap();
    assert_eq!(hole.metadata().unwrap().blocks(), 0);
    drop(hole);
    // An archiver that asks for holes takes a file without blocks for one.
    sh(&format!(
        "cd {} && tar -Scf ../all.tar f* && mkdir back && tar -C back -xf ../all.tar && \
         for f in f*; do cmp $f back/$f; done",
        a.display()
    ));
    c.finish();
}

#[test]
fn a_file_that_another_node_made_meanwhile_is_judged_like_any_other() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
    // Both create the same names at the same time and truncate: whoever comes second finds a file.
    let start = std::sync::Barrier::new(2);
    let make = |dir: &std::path::Path| {
        for n in 0..200 {
            start.wait();
            let mut how = OpenOptions::new();
            how.write(true).create(true).truncate(true).mode(0o600);
            drop(how.open(dir.join(n.to_string())).unwrap());
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| make(&a));
        s.spawn(|| make(&b));
    });
    assert_eq!(fs::read_dir(&a).unwrap().count(), 200);
    let meta = fs::metadata(b.join("0")).unwrap();
    assert_eq!((meta.permissions().mode() & 0o777, meta.len()), (0o600, 0));
    // A program may lose the race to a file that it may not touch.
    python(
        &c,
        r#"
os.mkdir("public"); os.chmod("public", 0o777)
def mine():
    for n in range(150):
        try: os.close(os.open(f"{A}/public/{n}", os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600))
        except PermissionError: pass
child = os.fork()
if child == 0:
    status = 1
    try: unprivileged(mine); status = 0
    finally: os._exit(status)
theirs = []
for n in range(150):
    f = os.open(f"{B}/public/{n}", os.O_CREAT | os.O_RDWR, 0o600)
    os.write(f, b"secret")
    if os.fstat(f).st_uid == 0: theirs.append(n)
    os.close(f)
assert os.waitpid(child, 0)[1] == 0
for n in theirs: assert open(f"{A}/public/{n}").read() == "secret", n
"#,
    );
    c.finish();
}

#[test]
fn pages_cached_while_nobody_could_write_may_be_mapped_for_writing_later() {
    // Each round A has pages under a shared lock, then dirties them through a mapping made later,
    // while B reads and asks for attributes.
    on_two_nodes(
        r#"
import mmap
SIZE = 256 << 10
f = os.open("m", os.O_CREAT | os.O_RDWR); os.pwrite(f, bytes(SIZE), 0); os.close(f)
stop = False
def other():
    while not stop:
        with open(B + "/m", "rb") as f: f.read()
        os.stat(B + "/m")
reader = threading.Thread(target=other); reader.start()
try:
    expected = bytearray(SIZE)
    for round in range(150):
        r = os.open("m", os.O_RDONLY)
        cached = mmap.mmap(r, SIZE, prot=mmap.PROT_READ)
        assert cached[:] == expected, round
        w = os.open("m", os.O_RDWR); m = mmap.mmap(w, SIZE)
        for page in range(round % 7, SIZE // 4096, 5):
            m[page * 4096] = expected[page * 4096] = round % 251 + 1
        if round % 3 == 0: m.flush()
        assert os.pread(w, SIZE, 0) == expected, round
        m.close(); os.close(w); cached.close(); os.close(r)
        with open(B + "/m", "rb") as f: assert f.read() == expected, round
finally:
    stop = True; reader.join()
"#,
    );
}

#[test]
fn one_file_on_two_nodes_agrees_with_a_model_beside_other_readers() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2, 256, 0);
    for _ in 0..2 {
        c.mount(&["nocachedata"]);
    }
    // One program orders all changes and knows what must stand there; others read meanwhile, so that
    // the file's lock is asked for again and again.
    python(
        &c,
        r#"
import mmap
R = random.Random(7); MAX = 300_000
def disturb(path):
    while True:
        if R.random() < 0.5: os.stat(path)
        else:
            with open(path, "rb") as f: os.pread(f.fileno(), 5000, R.randrange(MAX))
        time.sleep(R.choice((0, 0, 0.001, 0.003)))
paths = [A + "/f", B + "/f"]
writers = [os.open(p, os.O_RDWR | os.O_CREAT) for p in paths]
readers = [os.open(p, os.O_RDONLY) for p in paths]
others = []
for p in paths * 2:
    pid = os.fork()
    if pid == 0:
        signal.alarm(50); disturb(p)
    others.append(pid)
maps = [None, None]; model = bytearray()
def resize(size):
    if size < len(model): del model[size:]
    else: model.extend(bytes(size - len(model)))
def place(at, data):
    if at > len(model): resize(at)
    model[at:at + len(data)] = data
def same(got, at, length, what):
    assert got == model[at:at + length], (what, at, length, len(got), len(model))
def settle(n):
    # The kernel looks at the size it last heard of when a page is touched: ask until it has this one.
    left = bytes(4)
    while struct.unpack("i", left)[0] != len(model):
        os.fstat(writers[n]); left = fcntl.ioctl(writers[n], 0x541B, bytes(4))
try:
    for step in range(2000):
        n = R.randrange(2); at = R.randrange(MAX); length = R.choice((1, 3000, R.randrange(1, 60_000)))
        data = bytes([R.randrange(1, 256)]) * length
        what = R.choice(("read", "read", "write", "append", "truncate", "stat", "map", "unmap", "load", "store", "store"))
        if what == "read": same(os.pread(R.choice((readers, writers))[n], length, at), at, length, (step, n))
        elif what == "write": assert os.pwrite(writers[n], data, at) == length; place(at, data)
        elif what == "append" and len(model) < MAX: os.pwrite(writers[n], data, len(model)); place(len(model), data)
        elif what == "truncate": R.choice((lambda: os.truncate(paths[n], at), lambda: os.ftruncate(writers[n], at)))(); resize(at)
        elif what == "stat": assert os.stat(paths[n]).st_size == len(model), step
        elif what in ("map", "unmap"):
            if maps[n]: maps[n].close()
            maps[n] = mmap.mmap(writers[n], len(model)) if what == "map" and model else None
        elif maps[n] and model:
            at %= min(len(maps[n]), len(model)); length = min(length, len(maps[n]) - at, len(model) - at)
            settle(n)
            if what == "load": same(maps[n][at:at + length], at, length, (step, n, what))
            else: maps[n][at:at + length] = data[:length]; place(at, data[:length])
    for r in readers: same(os.pread(r, MAX * 2, 0), 0, MAX * 2, "end")
finally:
    for pid in others: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
"#,
    );
    c.finish();
}

#[test]
fn access_lists_are_enforced_inherited_and_in_step_with_the_mode() {
    on_two_nodes(
        r#"
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
OWNER, USER, GROUP_OBJ, GROUP, MASK, OTHERS = 1, 2, 4, 8, 16, 32
def acl(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", t, p, i) for t, p, i in entries)
N = 0xffffffff
def lists(user, mask=7, owner=7, group=0, others=0, who=1000):
    return acl((OWNER, owner, N), (USER, user, who), (GROUP_OBJ, group, N), (MASK, mask, N), (OTHERS, others, N))
def mode(name): return os.stat(name).st_mode & 0o7777
def may(name, how, yes):
    def call():
        assert os.access(name, how) == yes, (name, how, yes)
    unprivileged(call)
os.chmod(".", 0o755)
# A user who is named may do what the list and the mask say, on both nodes, at once.
with open("f", "w") as f: f.write("text")
os.chmod("f", 0o600)
for where in (A, B):
    may(f"{where}/f", os.R_OK, False)
for setter, other in ((A, B), (B, A)):
    for user, mask in ((6, 7), (6, 4), (4, 7), (0, 7)):
        os.setxattr(f"{setter}/f", ACCESS, lists(user, mask, 6))
        for where in (setter, other):
            may(f"{where}/f", os.R_OK, user & mask & 4 != 0)
            may(f"{where}/f", os.W_OK, user & mask & 2 != 0)
            assert mode(f"{where}/f") == 0o600 | mask << 3
# chmod changes the mask, and the mask only.
os.setxattr("f", ACCESS, lists(6, 7, 6, group=1))
os.chmod("f", 0o640)
assert os.getxattr(B + "/f", ACCESS) == lists(6, 4, 6, group=1)
may(B + "/f", os.R_OK, True); may(B + "/f", os.W_OK, False)
os.removexattr("f", ACCESS)
refused(errno.ENODATA, os.getxattr, B + "/f", ACCESS)
assert mode("f") == 0o640 and ACCESS not in os.listxattr("f")
# A list that a mode can say is the mode.
os.setxattr("f", ACCESS, acl((OWNER, 7, N), (GROUP_OBJ, 5, N), (OTHERS, 1, N)))
assert mode(B + "/f") == 0o751 and ACCESS not in os.listxattr("f")
refused(errno.EINVAL, os.setxattr, "f", ACCESS, acl((OWNER, 7, N)))
refused(errno.EACCES, os.setxattr, "f", DEFAULT, lists(7))
# What is made in a directory gets its default list instead of what the umask leaves.
os.umask(0o077)
os.mkdir("d"); os.setxattr("d", DEFAULT, lists(7, group=5)); os.chmod("d", 0o755)
for where in (B, A):
    d = where + "/d"; one = os.path.basename(where)
    os.close(os.open(f"{d}/{one}file", os.O_CREAT | os.O_WRONLY, 0o666))
    assert os.getxattr(f"{A}/d/{one}file", ACCESS) == lists(7, 6, 6, group=5)
    assert mode(f"{d}/{one}file") == 0o660
    os.mkdir(f"{d}/{one}dir", 0o750)
    assert os.getxattr(f"{A}/d/{one}dir", DEFAULT) == lists(7, group=5)
    assert os.getxattr(f"{A}/d/{one}dir", ACCESS) == lists(7, 5, group=5)
    os.mkfifo(f"{d}/{one}fifo", 0o600); assert mode(f"{d}/{one}fifo") == 0o600
    may(f"{d}/{one}dir", os.X_OK, True)
    os.symlink("x", f"{d}/{one}link")
    tmp = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o666); assert os.fstat(tmp).st_mode & 0o777 == 0o660
    os.close(tmp)
os.removexattr("d", DEFAULT); os.close(os.open(B + "/d/plain", os.O_CREAT | os.O_WRONLY, 0o666))
assert mode("d/plain") == 0o600 and os.listxattr("d/plain") == []
# Who is not in the group loses its bit by setting a list.
os.close(os.open("g", os.O_CREAT)); os.chown("g", 1000, 7); os.chmod("g", 0o2770)
unprivileged(lambda: os.setxattr("g", ACCESS, lists(7, who=1001)))
assert mode(B + "/g") == 0o770
"#,
    );
}

#[test]
fn a_directory_is_an_upper_layer_of_an_overlay() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.node(0).display(), c.node(1).display());
    let lower = c.disks.path("lower");
    let merged = c.disks.path("merged");
    sh(&format!(
        r#"
mkdir -p {lower}/dir {merged} {a}/upper {a}/work
for f in one two three dir/inner; do echo $f > {lower}/$f; done
mount -t overlay overlay -o lowerdir={lower},upperdir={a}/upper,workdir={a}/work {merged}
trap 'umount {merged}' EXIT
cd {merged}
rm one
mv two moved
echo more >> three
mv dir/inner dir/outer
mkdir fresh; echo new > fresh/file; rm -r fresh
rm -r dir; mkdir dir; test -z "$(ls -A dir)"
test "$(ls | tr '\n' ' ')" = "dir moved three "
test "$(cat moved three | tr '\n' ' ')" = "two three more "
test -e {lower}/one -a -e {lower}/two
cd /
# The other node sees the layer as it is.
test -c {b}/upper/one -a -c {b}/upper/two
test "$(stat -c '%t %T' {b}/upper/two)" = "0 0"
test "$(getfattr --only-values -n trusted.overlay.opaque {b}/upper/dir)" = y || ! command -v getfattr
"#
    ));
    c.finish();
}

/// Attributes as large and as many as Linux has them, set on one node and read on the other.
#[test]
fn attributes_of_64_kib_pass_between_nodes() {
    on_two_nodes(
        r#"
os.close(os.open("f", os.O_CREAT | os.O_WRONLY))
def value(n, size): return bytes((i * 7 + n) % 251 for i in range(256)) * (size // 256) + b"x" * (size % 256)
os.setxattr("f", "user.k", b"v" * 3900)
assert os.getxattr(B + "/f", "user.k") == b"v" * 3900
refused(errno.E2BIG, os.setxattr, "f", "user.k", b"v" * 65537)
def free(): return os.statvfs(A).f_bfree
left = None
for n, size in enumerate((65536, 70, 65535, 4000, 65536, 0, 20000, 65536)):
    setter, other = ((A, B), (B, A))[n % 2]
    for k in range(6):
        os.setxattr(f"{setter}/f", f"user.{k}", value(n + k, size))
    for k in range(6):
        assert os.getxattr(f"{other}/f", f"user.{k}") == value(n + k, size), (n, k)
assert sorted(os.listxattr(B + "/f")) == sorted(["user.k"] + [f"user.{k}" for k in range(6)])
# The sizes that getxattr tells, and those that it refuses.
libc.getxattr.restype = libc.listxattr.restype = ctypes.c_ssize_t
room = ctypes.create_string_buffer(65536)
assert libc.getxattr(b"f", b"user.0", None, 0) == 65536
assert libc.getxattr(b"f", b"user.0", room, 65536) == 65536
assert libc.getxattr(b"f", b"user.0", room, 65535) == -1 and ctypes.get_errno() == errno.ERANGE
assert libc.listxattr(b"f", room, 3) == -1 and ctypes.get_errno() == errno.ERANGE
assert libc.listxattr(b"f", None, 0) == 7 * 7
# As many names as one listing holds, and no more.
os.close(os.open("names", os.O_CREAT | os.O_WRONLY))
for n in range(266): os.setxattr("names", f"user.{n:0240}", b"%d" % n)
refused(errno.ENOSPC, os.setxattr, "names", f"user.{266:0240}", b"")
assert len(os.listxattr(B + "/names")) == 266
assert os.getxattr(B + "/names", f"user.{200:0240}") == b"200"
# What goes serves again once that is durable: 24 rounds of 418 blocks take what a few of them need.
# (Blocks of metadata stay metadata, and are taken in chunks.)
os.sync(); before = free()
for n in range(24):
    for k in range(6): os.setxattr("f", f"user.{k}", value(n, 65536 - n))
    for k in range(6): os.removexattr("f", f"user.{k}")
    with open("gone", "w"): pass
    for k in range(16): os.setxattr("gone", f"user.{k}", value(k, 65536))
    refused(errno.ENOSPC, os.setxattr, "gone", "user.more", b"x")
    os.unlink("gone")
    os.sync()
assert before - free() < 6 * 418, (before, free())
assert os.listxattr(B + "/f") == ["user.k"]
# A list with as many entries as the kernel passes on.
def acl(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", t, p, i) for t, p, i in entries)
N = 0xffffffff
def named(n): return acl((1, 7, N), *((2, 4, 1000 + i) for i in range(n)), (4, 0, N), (16, 7, N), (32, 0, N))
with open("f", "w") as f: f.write("text")
os.chmod(".", 0o755); os.chmod("f", 0o600)
unprivileged(lambda: refused(errno.EACCES, open, B + "/f"))
os.setxattr("f", "system.posix_acl_access", named(507))
assert os.getxattr(B + "/f", "system.posix_acl_access") == named(507)
unprivileged(lambda: open(B + "/f").close())
os.mkdir("d"); os.setxattr("d", "system.posix_acl_default", named(507)); os.mkdir(B + "/d/e")
assert os.getxattr("d/e", "system.posix_acl_default") == named(507)
"#,
    );
}

#[test]
fn stores_through_a_mapping_are_data_and_not_a_hole() {
    on_two_nodes(
        r#"
import mmap
SIZE = 4 << 20
def copies(name):
    # Each way by which programs find out where data is.
    subprocess.check_call(["cp", "--sparse=auto", name, "copy"])
    subprocess.check_call(["cmp", name, "copy"])
    subprocess.check_call(f"tar -Scf - {name} | tar -xOf - > copy && cmp {name} copy", shell=True)
    source, to = os.open(name, os.O_RDONLY), os.open("copy", os.O_RDWR | os.O_TRUNC)
    at = 0
    while at < SIZE: at += os.copy_file_range(source, to, SIZE - at, at, at)
    os.close(source); os.close(to)
    subprocess.check_call(["cmp", name, "copy"])
for name, read_before in (("m", False), ("n", True)):
    f = os.open(name, os.O_CREAT | os.O_RDWR); os.ftruncate(f, SIZE)
    if read_before:
        # Pages are there before anybody opens the file to write.
        os.close(f); open(name, "rb").read(); f = os.open(name, os.O_RDWR)
    assert os.stat(name).st_blocks == 0 or read_before
    m = mmap.mmap(f, SIZE); m[1 << 20:(1 << 20) + 5] = b"first"
    assert os.lseek(f, 0, os.SEEK_DATA) <= 1 << 20
    assert os.lseek(f, 1 << 20, os.SEEK_HOLE) > 1 << 20
    assert os.stat(name).st_blocks > 0
    os.close(f); copies(name)
    m[3 << 20:(3 << 20) + 6] = b"second"; copies(name)
    # Another node takes the lock, and with it what the kernel has here.
    there = os.open(f"{B}/{name}", os.O_RDONLY)
    assert os.lseek(there, 2 << 20, os.SEEK_DATA) == 3 << 20; os.close(there)
    m.close()
# Without a mapping holes are holes, though the file is open for writing.
f = os.open("h", os.O_CREAT | os.O_RDWR); os.pwrite(f, b"x" * 4096, 1 << 20); os.ftruncate(f, SIZE)
assert os.lseek(f, 0, os.SEEK_DATA) == 1 << 20
assert os.lseek(f, 1 << 20, os.SEEK_HOLE) == (1 << 20) + 4096
os.close(f)
"#,
    );
}

/// Two programs of one node, each with bytes of its own in one page: the one stores them through a mapping,
/// the other writes them, by itself or out of another file.
#[test]
fn a_write_beside_stores_through_a_mapping_of_the_same_page_is_kept() {
    on_two_nodes(
        r#"
import mmap, multiprocessing, struct, time
SECONDS, SIZE = 4, 8192
f = os.open("f", os.O_CREAT | os.O_RDWR); os.pwrite(f, bytes(SIZE), 0); os.fsync(f)
source = os.open("source", os.O_CREAT | os.O_RDWR)
end = time.monotonic() + SECONDS
def stores():
    m, n = mmap.mmap(os.open("f", os.O_RDWR), SIZE), 0
    while time.monotonic() < end:
        n += 1; m[0:8] = struct.pack("<Q", n)
    # Each store is later than all copies that it could be lost by: the last one counts.
    m.flush()
    found = struct.unpack("<Q", os.pread(os.open("f", os.O_RDWR), 8, 0))[0]
    assert found == n, ("the last store is lost", n, found)
def ours(at, copied):
    n = 0
    while time.monotonic() < end:
        n += 1; record = struct.pack("<Q", n) * 4
        if copied and n % 4 == 0:
            os.pwrite(source, record, 0)
            assert os.copy_file_range(source, f, 32, 0, at) == 32
        else:
            assert os.pwrite(f, record, at) == 32
        if n % 16 == 0: os.fsync(f)
        for _ in range(3):
            found = os.pread(f, 32, at)
            assert found == record, ("a write is lost", n, found)
    assert n > 100, n
programs = [multiprocessing.Process(target=stores),
    multiprocessing.Process(target=ours, args=(2048, False)),
    multiprocessing.Process(target=ours, args=(3000, True)),
    multiprocessing.Process(target=ours, args=(4080, False))]
for p in programs: p.start()
for p in programs: p.join()
assert [p.exitcode for p in programs] == [0] * 4
"#,
    );
}

#[test]
fn whoever_may_write_a_file_can_truncate_it_while_it_is_opened_to_be_read() {
    on_two_nodes(
        r#"
for where in (A, B):
    with open("f", "wb") as f: f.write(b"contents" * 1000)
    with open(f"{B}/f", "rb") as f: f.read()
    f = os.open(f"{where}/f", os.O_RDONLY | os.O_TRUNC)
    assert os.fstat(f).st_size == 0 and os.read(f, 10) == b""
    os.close(f)
    assert os.stat(f"{A}/f").st_size == os.stat(f"{B}/f").st_size == 0
with open("f", "wb") as f: f.write(b"contents")
os.chmod(A, 0o755); os.chmod("f", 0o644)
unprivileged(lambda: refused(errno.EACCES, os.open, "f", os.O_RDONLY | os.O_TRUNC))
assert os.stat("f").st_size == 8
os.mkdir("d"); refused(errno.EISDIR, os.open, "d", os.O_RDONLY | os.O_TRUNC)
"#,
    );
}

/// A mount has `noatime`: nothing but a program's word changes the time of access.
#[test]
fn reading_leaves_the_time_of_access_alone_and_setting_it_is_seen_everywhere() {
    on_two_nodes(
        r#"
import mmap
os.mkdir(A + "/d"); open(A + "/d/x", "w").close(); os.symlink("f", A + "/l")
with open(A + "/f", "w") as f: f.write("contents")
def times(where, name):
    st = os.stat(where + name, follow_symlinks=False); return st.st_atime_ns, st.st_mtime_ns
def read_all(where):
    with open(where + "/f", "rb") as f:
        assert f.read() == b"contents"
        with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m: assert m[:3] == b"con"
    assert os.listdir(where + "/d") == ["x"] and os.readlink(where + "/l") == "f"
for n, setter in enumerate((A, B, A, B)):
    other = B if setter == A else A
    for name in ("/f", "/d", "/l"):
        # Before what it says of the contents, as after it: `relatime` would change the first.
        want = [(10**9 * (n + 1) + 123, 2 * 10**18 + n), (2 * 10**18 + n, 10**9)][n // 2]
        os.utime(setter + name, ns=want, follow_symlinks=False)
        for where in (other, setter): assert times(where, name) == want, (n, where, name)
    for where in (A, B, A): read_all(where)
    for name in ("/f", "/d", "/l"):
        for where in (A, B): assert times(where, name) == want, (n, where, name, times(where, name))
# To now, and of the contents alone.
before = time.time_ns(); os.utime(B + "/f"); assert times(A, "/f")[0] >= before - 10**9
kept = times(A, "/f")[0]
with open(B + "/f", "a") as f: f.write("more")
assert times(A, "/f")[0] == kept and os.stat(A + "/f").st_size == 12
"#,
    );
}
