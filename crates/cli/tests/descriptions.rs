//! Open file descriptions: locks that belong to one, and asynchronous writes through one of which this
//! node's kernel knows an old size.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use common::{Cluster, can_mount};

/// Runs a program with these arguments; what it says.
fn python(program: &str, args: &[&str]) -> String {
    let done = Command::new("python3").args(["-c", program]).args(args).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Eight processes open, lock, write, read and close. The kernel numbers descriptions by their addresses, and
/// gives a number again before it has said that its file is closed.
const LOCK_AND_CLOSE: &str = "
import fcntl, os, struct, sys, time
path, kind = sys.argv[1:]
whole = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)
children = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        wrong = 0
        for n in range(100):
            f = os.open(path, os.O_RDWR)
            if kind == 'flock': fcntl.flock(f, fcntl.LOCK_EX)
            else: fcntl.fcntl(f, {'posix': fcntl.F_SETLKW, 'ofd': 38}[kind], whole)
            me = b'%016d' % os.getpid()
            os.pwrite(f, me, 0)
            if n % 3 == 0: time.sleep(.001)
            wrong += os.pread(f, 16, 0) != me
            os.close(f)
        os._exit(min(wrong, 100))
    children.append(child)
print(sum(os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children))";

#[test]
fn locks_of_descriptions_exclude_while_others_are_closed() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(1, 256, 1);
    let path = c.nodes[0].join("f");
    fs::write(&path, [b'0'; 16]).unwrap();
    for kind in ["flock", "ofd", "posix"] {
        assert_eq!(python(LOCK_AND_CLOSE, &[path.to_str().unwrap(), kind]).trim(), "0", "{kind}");
    }
    c.finish();
}

/// A file that the other node has made longer: an asynchronous write from a bad buffer, then ftruncate(2).
const WRITE_IN_VAIN: &str = "
import ctypes, errno, os, platform, sys
a, b, flags = sys.argv[1], sys.argv[2], int(sys.argv[3])
u16, u32, u64, i64 = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64
class Iocb(ctypes.Structure):
    _fields_ = [('data', u64), ('key', u32), ('rw_flags', u32), ('op', u16), ('prio', u16), ('fd', u32),
                ('buf', u64), ('len', u64), ('offset', i64), ('reserved', u64), ('flags', u32), ('event', u32)]
class Event(ctypes.Structure):
    _fields_ = [('data', u64), ('iocb', u64), ('res', i64), ('res2', i64)]
setup, getevents, submit = (206, 208, 209) if platform.machine() == 'x86_64' else (0, 4, 2)
call = ctypes.CDLL(None, use_errno=True).syscall
context = u64(0)
assert call(setup, 8, ctypes.byref(context)) == 0
fa = os.open(a, os.O_CREAT | os.O_RDWR)
os.pwrite(fa, b'a' * 4096, 0)
fb = os.open(b, os.O_RDWR | flags)
assert os.fstat(fb).st_size == 4096
os.pwrite(fa, b'a' * (1 << 20), 0)
os.fsync(fa)
iocb = Iocb(op=1, fd=fb, buf=4096, len=4096, offset=65536)
pointer = ctypes.pointer(iocb)
assert call(submit, context, ctypes.c_long(1), ctypes.byref(pointer)) == 1, ctypes.get_errno()
event = Event()
assert call(getevents, context, ctypes.c_long(1), ctypes.c_long(1), ctypes.byref(event), None) == 1
assert event.res == -errno.EFAULT, event.res
print(os.fstat(fa).st_size, os.fstat(fb).st_size, end=' ')
os.ftruncate(fb, 4096)
print(os.fstat(fa).st_size, os.fstat(fb).st_size)";

#[test]
fn an_asynchronous_write_that_fails_cuts_nothing_off() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(1, 256, 2);
    let [a, b] = [0, 1].map(|n| c.nodes[n].join("f").to_str().unwrap().to_owned());
    for flags in [0, libc::O_DIRECT] {
        let said = python(WRITE_IN_VAIN, &[&a, &b, &flags.to_string()]);
        assert_eq!(said.trim(), "1048576 1048576 4096 4096");
        fs::remove_file(&a).unwrap();
    }
    c.finish();
}

/// Dumps its core, by a thread beside others.
const ABORT: &str = "
import os, resource, signal, threading, time
resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
for n in range(4): threading.Thread(target=time.sleep, args=[60]).start()
threading.Thread(target=signal.raise_signal, args=[signal.SIGQUIT]).start()
time.sleep(60)";

/// The kernel empties the file of a core dump, outside of any system call that does so. Where it puts core dumps
/// into the program's directory.
#[test]
fn a_core_dump_is_whole() {
    if !can_mount() {
        return;
    }
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.starts_with('|') || pattern.contains('/') {
        return braid_testkit::skip("core dumps go elsewhere (kernel.core_pattern)");
    }
    let c = Cluster::new(1, 256, 1);
    let dir = c.nodes[0].join("dir");
    fs::create_dir(&dir).unwrap();
    let done = Command::new("python3").args(["-c", ABORT]).current_dir(&dir).status().unwrap();
    assert!(done.core_dumped(), "{done}");
    let dumps: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(dumps.len(), 1, "{dumps:?}");
    let dump = fs::read(&dumps[0]).unwrap();
    assert!(dump.starts_with(b"\x7fELF") && dump.len() > 100 << 10, "{} bytes", dump.len());
    c.finish();
}
