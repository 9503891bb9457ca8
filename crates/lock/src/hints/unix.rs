//! Hints between nodes of one host: datagrams over Unix sockets.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use braid_format::LockNo;
use braid_pool::device::{in_user_dir, user_dir};
use rustix::fs::FlockOperation;
use zerocopy::IntoBytes;

use super::message::{HINT, Received, TOGETHER_MAX, decode_all, encode};
use crate::Life;
use crate::dlock::Hint;

/// Nodes that leave while one joins, before joining does without their directory.
const BIND_ATTEMPTS_MAX: u32 = 16;

/// A node's end.
#[derive(Debug)]
pub struct HintSocket {
    me: Life,
    socket: UnixDatagram,
    path: PathBuf,
}

impl HintSocket {
    /// Longest path a socket address holds, and the slot record's field less its prefix.
    const PATH_MAX: usize = 100;
    pub(super) const PREFIX: &str = "unix:";

    /// The socket of `me` of file system `fs`, in this user's private directory (the first whose name
    /// a socket address has room for); readable and writable by this user only.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(fs: uuid::Uuid, me: Life) -> io::Result<Self> {
        let name = format!("{}-{}.sock", me.slot, me.incarnation);
        in_user_dir(|dir| Self::bind_in(&dir.join(fs.to_string()), &name, me))
    }
    fn bind_in(dir: &Path, name: &str, me: Life) -> io::Result<Self> {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        let path = dir.join(name);
        if path.as_os_str().len() > Self::PATH_MAX {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let mut attempts = 0;
        let socket = loop {
            match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir) {
                // It was there, and a sweep took it away before the look whether it is a directory.
                Err(e)
                    if e.kind() == io::ErrorKind::AlreadyExists && attempts < BIND_ATTEMPTS_MAX =>
                {
                    attempts += 1;
                    continue;
                }
                made => made?,
            }
            // Until it is bound: a sweep must not take it for what was there before.
            let held = std::fs::File::open(dir);
            if let Ok(held) = &held {
                rustix::fs::flock(held, FlockOperation::LockExclusive)?;
            }
            remove_earlier(dir, name, me)?;
            match UnixDatagram::bind(&path) {
                // The last node that was here took the directory with it just now.
                Err(e) if e.kind() == io::ErrorKind::NotFound && attempts < BIND_ATTEMPTS_MAX => {
                    attempts += 1;
                }
                bound => break bound?,
            }
        };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self { me, socket, path })
    }
    /// Where it stands.
    pub fn path(&self) -> String {
        self.path.display().to_string()
    }
    /// Sends if that is possible at once; returns whether somebody listens. If the listener's socket is
    /// full, they are lost, and their sender polls the locks instead. At most `TOGETHER_MAX`.
    pub fn send(&self, path: &str, to: Life, hints: &[(LockNo, Hint)]) -> bool {
        let mut datagram = Vec::with_capacity(hints.len() * HINT);
        for (lock, hint) in hints {
            datagram.extend_from_slice(encode(self.me, to, *lock, hint).as_bytes());
        }
        let Ok(target) = rustix::net::SocketAddrUnix::new(path) else { return false };
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        match rustix::net::sendto(&self.socket, &datagram, flags, &target) {
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => true,
            Err(_) => false,
        }
    }
    /// Waits for a datagram; nothing is in it if it is anything but hints (see [`Self::close`]).
    ///
    /// # Errors
    /// The system's.
    pub fn receive(&self) -> io::Result<Vec<Received>> {
        let mut buf = [0; TOGETHER_MAX * HINT + 1];
        let len = self.socket.recv(&mut buf)?;
        Ok(buf.get(..len).map_or_else(Vec::new, |bytes| decode_all(bytes, self.me)))
    }
    /// Makes [`Self::receive`] return at once, now and from now on; whatever became of the path.
    pub fn close(&self) {
        if let Err(e) = self.socket.shutdown(std::net::Shutdown::Both) {
            tracing::warn!("cannot close the hint socket: {e}");
        }
    }
}

impl Drop for HintSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        // The last one out; while others are there it is not empty and stays.
        if let Some(dir) = self.path.parent() {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

/// Removes what killed nodes left in this user's private directory: sockets that no process has, and
/// directories of file systems that are empty then. Those of living nodes stay, whatever happens
/// meanwhile. What cannot be looked at is left.
pub fn sweep() {
    if let Ok(dir) = user_dir() {
        sweep_in(&dir);
    }
}

fn sweep_in(private: &Path) {
    for entry in std::fs::read_dir(private).into_iter().flatten().flatten() {
        let named = entry.file_name().to_str().is_some_and(|n| uuid::Uuid::try_parse(n).is_ok());
        let dir = entry.path();
        // Whoever holds it binds a socket there just now.
        let held = std::fs::File::open(&dir).ok().filter(|held| {
            named && rustix::fs::flock(held, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
        if held.is_none() {
            continue;
        }
        for socket in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = socket.path();
            let is_socket = socket.file_type().is_ok_and(|t| t.is_socket());
            if is_socket && path.extension().is_some_and(|e| e == "sock") && is_dead(&path) {
                let _ = std::fs::remove_file(&path);
            }
        }
        // Unless somebody is there. Who has just made it makes it again.
        let _ = std::fs::remove_dir(&dir);
    }
}

/// Whether no process has this socket any more.
fn is_dead(path: &Path) -> bool {
    let refused = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
    UnixDatagram::unbound().is_ok_and(|probe| probe.connect(path).is_err_and(refused))
}

/// Sockets that this name or earlier lives of this slot left behind; the slot's liveness lock is
/// ours.
fn remove_earlier(dir: &Path, name: &str, me: Life) -> io::Result<()> {
    let slot = format!("{}-", me.slot);
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let earlier = found.to_str().is_some_and(|n| n == name || n.starts_with(&slot));
        let removed = if earlier { std::fs::remove_file(entry.path()) } else { Ok(()) };
        if let Err(e) = removed
            && e.kind() != io::ErrorKind::NotFound
        {
            return Err(e);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use braid_format::{Incarnation, NodeId};

    use super::*;

    fn me(slot: u16) -> Life {
        Life { slot: NodeId(slot), incarnation: Incarnation(3) }
    }

    #[test]
    fn sockets_deliver_and_a_full_or_missing_one_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let a = HintSocket::bind_in(dir.path(), "a", me(1)).unwrap();
        let b = HintSocket::bind_in(dir.path(), "b", me(2)).unwrap();
        assert!(a.send(&b.path(), me(2), &[(LockNo(5), Hint::Granted)]));
        let got = b.receive().unwrap().remove(0);
        assert_eq!((got.from, got.lock, got.hint), (me(1), LockNo(5), Hint::Granted));
        for _ in 0..10_000 {
            a.send(&b.path(), me(2), &[(LockNo(5), Hint::Granted)]);
        }
        assert!(!a.send("/nowhere/at/all", me(2), &[(LockNo(5), Hint::Granted)]));
        assert_eq!(b.receive().unwrap().len(), 1);
        let closed = HintSocket::bind_in(dir.path(), "c", me(3)).unwrap();
        std::fs::remove_file(dir.path().join("c")).unwrap();
        std::thread::scope(|s| {
            let waits = s.spawn(|| closed.receive().unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
            closed.close();
            assert_eq!(waits.join().unwrap(), []);
        });
        assert_eq!(closed.receive().unwrap(), []);
    }

    #[test]
    fn nothing_is_left_when_the_last_node_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("pool");
        std::fs::create_dir(&pool).unwrap();
        // Killed: it left its socket.
        std::fs::write(pool.join("1-2.sock"), "").unwrap();
        let a = HintSocket::bind_in(&pool, "1-3.sock", me(1)).unwrap();
        let b = HintSocket::bind_in(&pool, "2-3.sock", me(2)).unwrap();
        assert!(!pool.join("1-2.sock").exists());
        drop(a);
        assert!(pool.exists());
        drop(b);
        assert!(!pool.exists());
    }

    #[test]
    fn a_sweep_takes_what_the_dead_left_and_nothing_else() {
        let private = tempfile::tempdir().unwrap();
        let dir = |n: u128| private.path().join(uuid::Uuid::from_u128(n).to_string());
        let killed = |n, name: &str| {
            std::fs::create_dir_all(dir(n)).unwrap();
            drop(UnixDatagram::bind(dir(n).join(name)).unwrap());
        };
        killed(1, "0-1.sock");
        killed(1, "1-1.sock");
        killed(2, "0-1.sock");
        let lives = HintSocket::bind_in(&dir(2), "1-3.sock", me(1)).unwrap();
        std::fs::create_dir(dir(3)).unwrap();
        // Not ours to judge.
        std::fs::create_dir(dir(4)).unwrap();
        std::fs::write(dir(4).join("0-1.sock"), "no socket").unwrap();
        std::fs::create_dir(private.path().join("guards")).unwrap();
        killed(5, "0-1.sock");
        let joining = std::fs::File::open(dir(5)).unwrap();
        rustix::fs::flock(&joining, FlockOperation::LockExclusive).unwrap();
        sweep_in(private.path());
        let there = [1, 2, 3, 4, 5].map(|n| dir(n).exists());
        assert_eq!(there, [false, true, false, true, true]);
        assert!(!dir(2).join("0-1.sock").exists() && dir(2).join("1-3.sock").exists());
        assert!(private.path().join("guards").exists() && dir(5).join("0-1.sock").exists());
        let other = HintSocket::bind_in(&dir(1), "0-2.sock", me(0)).unwrap();
        other.send(&lives.path(), me(1), &[(LockNo(5), Hint::Granted)]);
        assert_eq!(lives.receive().unwrap().len(), 1);
    }

    #[test]
    fn who_joins_while_others_sweep_is_bound_in_the_end() {
        let private = tempfile::tempdir().unwrap();
        let dir = private.path().join(uuid::Uuid::from_u128(1).to_string());
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Acquire) {
                    sweep_in(private.path());
                }
            });
            for n in 0..200 {
                // Left behind by a killed node of this very name.
                let _ = std::fs::create_dir(&dir);
                let _ = UnixDatagram::bind(dir.join("1-3.sock"));
                let bound = HintSocket::bind_in(&dir, "1-3.sock", me(1));
                let there = dir.join("1-3.sock").exists();
                if bound.is_err() || !there {
                    done.store(true, std::sync::atomic::Ordering::Release);
                }
                assert!(there, "round {n}: {bound:?}");
            }
            done.store(true, std::sync::atomic::Ordering::Release);
        });
    }
}
