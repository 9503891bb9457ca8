//! Finds a mount of this host and gives its node an order.

use std::fmt;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::control::{
    member::MemberId,
    orders::{Answer, Order},
    views::{MemberView, View},
};
use crate::process::mounts::{self, Mount};
use crate::process::others;
use crate::terminal::answer::warning;

/// A node that has not answered a quick order for so long is stopped, or hangs.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// A command that only looks waits for so long, then does without the node's answer.
pub const LOOK_TIME: Duration = Duration::from_millis(1500);

/// The mount that a user names: by its pool, its directory, or one of its devices.
///
/// # Errors
/// There is none on this host, or several.
pub fn find(name: &str) -> Result<Mount> {
    look(name)?.with_context(|| {
        format!(
            "{name} is not mounted on this host{}: only a node that has the pool mounted can do that",
            others::besides()
        )
    })
}

/// As [`find`]; `None`: it is not mounted on this host.
///
/// # Errors
/// There are several, or it leads to a mount of another user.
pub fn look(name: &str) -> Result<Option<Mount>> {
    let mut found = named(name);
    if found.is_empty() {
        others::refuse(&[name.to_owned()])?;
    }
    if found.len() < 2 {
        return Ok(found.pop());
    }
    match answering(&found, ANSWER_TIME)? {
        Some((mount, _)) => Ok(Some(mount)),
        None => bail!("{name} names {} mounts: give the directory of one", found.len()),
    }
}

/// The mounts of this host that a user names: by their pool, a directory, or a device. If there is none, servers of
/// this host: by their pool, where clients find them, or a device.
pub fn named(name: &str) -> Vec<Mount> {
    // The node of a mount that is named may have withdrawn: nothing is asked of its directory.
    // Nor of one of another user.
    let path =
        others::at(Path::new(name)).is_none().then(|| mounts::resolved(Path::new(name)).ok());
    let path = path.flatten();
    let named = |m: &Mount| {
        m.pool == name
            || path
                .as_ref()
                .is_some_and(|p| *p == m.mount_point || m.sources.iter().any(|s| Path::new(s) == p))
    };
    let found: Vec<Mount> = mounts::mounts().into_iter().filter(named).collect();
    if !found.is_empty() {
        return found;
    }
    let named = |m: &Mount| named(m) || m.mount_point == Path::new(name);
    mounts::services().into_iter().filter(named).collect()
}

/// One of the nodes that have a pool mounted and answer within `time`: the one that fills members,
/// or else any. With its answer. A pool is changed for all of them. `None`: none answers.
///
/// # Errors
/// They are of several pools.
pub fn answering(mounts: &[Mount], time: Duration) -> Result<Option<(Mount, View)>> {
    let views = mounts.iter().zip(views_within(mounts, time));
    let mut nodes: Vec<(Mount, View)> =
        views.filter_map(|(mount, view)| Some((mount.clone(), view?))).collect();
    let Some((mount, view)) = nodes.first() else { return Ok(None) };
    if let Some((other, _)) = nodes.iter().find(|(_, other)| other.uuid != view.uuid) {
        bail!(
            "{} and {} are mounts of two pools: give the directory of one",
            mount.mount_point.display(),
            other.mount_point.display()
        );
    }
    let keeper = nodes.iter().position(|(_, view)| view.keeper).unwrap_or(0);
    Ok(Some(nodes.swap_remove(keeper)))
}

/// What the nodes of `mounts` say of their pools, in that order; `None`: one does not answer.
pub fn views(mounts: &[Mount]) -> Vec<Option<View>> {
    views_within(mounts, LOOK_TIME)
}

fn views_within(mounts: &[Mount], time: Duration) -> Vec<Option<View>> {
    let answers = mounts.iter().zip(each(mounts, &Order::Look, time));
    let of = |(mount, answer): (&Mount, Result<Answer>)| match answer.ok()? {
        Answer::Done(view) => Some(*view),
        // It runs an older program, which does not know that order.
        _ => view_of(call(mount, &Order::Members, time).ok()?).ok(),
    };
    answers.map(of).collect()
}

/// Gives all of `mounts` at once an order that is answered at once, with `time` for the answers, which come in
/// the order of `mounts`: one that is stopped costs no more time than any number of them.
fn each(mounts: &[Mount], order: &Order, time: Duration) -> Vec<Result<Answer>> {
    std::thread::scope(|scope| {
        let asked = mounts.iter().map(|mount| {
            let thread = std::thread::Builder::new();
            thread.spawn_scoped(scope, move || call(mount, order, time))
        });
        let asked: Vec<_> = asked.collect();
        let died = |_| Err(anyhow::anyhow!("a thread died"));
        let answers = asked.into_iter().map(|thread| {
            let thread = thread.context("no thread that asks a node")?;
            thread.join().unwrap_or_else(died)
        });
        answers.collect()
    })
}

/// As [`each`], for commands that only look: the answers that come. The others are named on
/// standard error.
pub fn values(mounts: &[Mount], order: &Order) -> Vec<(Mount, serde_json::Value)> {
    let answers = mounts.iter().zip(each(mounts, order, LOOK_TIME));
    let said = answers.filter_map(|(mount, answer)| match answer.and_then(value_of) {
        Ok(value) => Some((mount.clone(), value)),
        Err(why) => {
            warning!("{why:#}");
            None
        }
    });
    said.collect()
}

/// The node to which an order was given has ended before it answered: it was killed, or has failed.
#[derive(Debug)]
pub struct NodeEnded {
    dir: String,
    pool: String,
    stands: &'static str,
}

impl NodeEnded {
    fn of(mount: &Mount, order: &Order) -> Self {
        let dir = mount.mount_point.display().to_string();
        Self { dir, pool: mount.pool.clone(), stands: order.if_cut() }
    }
    /// The same while an order was followed that this node had begun.
    pub(super) fn while_following(self, order: &Order) -> Self {
        Self { stands: order.if_cut(), ..self }
    }
}

impl fmt::Display for NodeEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dir, pool, stands } = self;
        write!(
            f,
            "the node that serves {dir} has ended before it answered (it was killed, or has failed): {stands}. Look \
             with `braid status {pool}` and `braid history {pool}`, if need be when the pool is mounted again"
        )
    }
}

impl std::error::Error for NodeEnded {}

/// Gives an order to a mounted node.
///
/// # Errors
/// The node does not answer, or refuses.
pub fn order(mount: &Mount, order: &Order) -> Result<View> {
    view_of(call(mount, order, ANSWER_TIME)?)
}

/// Gives an order that takes long, unless this process is `asked` to end before it is answered: then the node hears
/// that nobody waits any more. `None`: that was so, and there was no answer.
///
/// # Errors
/// The node does not answer, or refuses.
pub fn order_unless(mount: &Mount, order: &Order, asked: &AtomicBool) -> Result<Option<View>> {
    const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let stream = begun(mount, order, None)?;
    loop {
        let is_asked = asked.load(Ordering::Relaxed);
        if is_asked {
            // An answer that was given before is read below; a later one fails, which the node sees.
            stream.shutdown(Shutdown::Both).ok();
        }
        let answers = poll(&mut [PollFd::new(&stream, PollFlags::IN)], Some(&LOOK));
        if is_asked || matches!(answers, Ok(1..)) {
            break;
        }
    }
    let answer = answer_of(mount, order, stream);
    if asked.load(Ordering::Relaxed) && answer.is_err() {
        return Ok(None);
    }
    view_of(answer?).map(Some)
}

fn view_of(answer: Answer) -> Result<View> {
    match answer {
        Answer::Done(view) => Ok(*view),
        Answer::Refused(why) => bail!("{why}"),
        Answer::Value(_) => bail!("the node gave another answer than was asked for"),
    }
}

/// Gives an order that is not about members, and is answered otherwise.
///
/// # Errors
/// The node does not answer, or refuses.
pub fn value(mount: &Mount, order: &Order) -> Result<serde_json::Value> {
    value_of(call(mount, order, ANSWER_TIME)?)
}

fn value_of(answer: Answer) -> Result<serde_json::Value> {
    match answer {
        Answer::Value(value) => Ok(value),
        Answer::Refused(why) => bail!("{why}"),
        Answer::Done(_) => bail!("the node gave another answer than was asked for"),
    }
}

/// `time`: for the answer to an order that is quick.
fn call(mount: &Mount, order: &Order, time: Duration) -> Result<Answer> {
    // The kernel takes a call for a process that is stopped, too.
    let time = order.is_quick().then_some(time);
    let stream = begun(mount, order, time)?;
    answer_of(mount, order, stream)
}

/// Calls a node, and says the order. `time`: for the answer.
fn begun(mount: &Mount, order: &Order, time: Option<Duration>) -> Result<UnixStream> {
    let said = connect(&mounts::control_socket(mount)?).and_then(|mut stream| {
        stream.set_read_timeout(time)?;
        writeln!(stream, "{}", serde_json::to_string(order)?)?;
        Ok(stream)
    });
    said.map_err(|e| {
        let kind = e.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if kind.is_some_and(is_end) {
            return NodeEnded::of(mount, order).into();
        }
        e.context(silent(mount))
    })
}

/// Whether that is how the end of the process at the other side shows, or that it had ended before.
fn is_end(kind: ErrorKind) -> bool {
    use ErrorKind as K;
    matches!(kind, K::ConnectionReset | K::ConnectionRefused | K::BrokenPipe | K::NotFound)
}

fn silent(mount: &Mount) -> String {
    format!("the node that serves {} does not answer", mount.mount_point.display())
}

fn answer_of(mount: &Mount, order: &Order, stream: impl Read) -> Result<Answer> {
    let mut line = String::new();
    // Goes on after a signal, and after a part of the line.
    let read = BufReader::new(stream).read_line(&mut line);
    // A node that is killed while it writes has said a part of its answer.
    let cut = read.is_ok() && !line.ends_with('\n');
    if cut || read.as_ref().is_err_and(|e| is_end(e.kind())) {
        return Err(NodeEnded::of(mount, order).into());
    }
    read.with_context(|| silent(mount))?;
    serde_json::from_str(&line).with_context(|| silent(mount))
}

/// Calls the node that listens at `path`. A node that is stopped, and was called often since, takes
/// no more calls: that is an error, not a wait.
pub(super) fn connect(path: &Path) -> Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Of the system's errors, of which the caller knows some.
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?).map_err(std::io::Error::from)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The member that a user names: by its place in the pool, or its device.
///
/// # Errors
/// There is none.
pub fn member(view: &View, name: &str) -> Result<MemberId> {
    let path = std::fs::canonicalize(name).ok();
    let is = |m: &&MemberView| {
        name.parse() == Ok(m.index)
            || m.path == name
            || path
                .as_ref()
                .is_some_and(|p| std::fs::canonicalize(&m.path).ok().as_ref() == Some(p))
    };
    let found = view.members.iter().find(is).with_context(|| {
        let all: Vec<String> =
            view.members.iter().map(|m| format!("{} ({})", m.index, m.path)).collect();
        format!("no member {name}; the members are {}", all.join(", "))
    })?;
    Ok(MemberId { place: found.index, uuid: found.uuid.clone() })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;

    use super::*;

    /// What a socket gives, read by read.
    struct Reads(VecDeque<io::Result<&'static [u8]>>);

    impl Read for Reads {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let bytes = self.0.pop_front().unwrap_or(Ok(b""))?;
            to[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        }
    }

    #[test]
    fn an_answer_comes_in_parts_and_a_node_that_ends_is_told_in_words() {
        let mount: Mount = serde_json::from_value(serde_json::json!({
            "pid": 1, "pool": "p", "mount_point": "/mnt", "device": null, "sources": [],
        }))
        .unwrap();
        let answer = |reads: Vec<io::Result<&'static [u8]>>, order: &Order| {
            answer_of(&mount, order, Reads(reads.into()))
        };
        let interrupted = || Err(ErrorKind::Interrupted.into());
        let parts = vec![interrupted(), Ok(&b"{\"ref"[..]), interrupted(), Ok(b"used\":\"no\"}\n")];
        let said = answer(parts, &Order::Look);
        assert!(matches!(said, Ok(Answer::Refused(why)) if why == "no"));
        let remove =
            Order::Leave { member: MemberId { place: 1, uuid: String::new() }, dry_run: false };
        for reads in [vec![], vec![Ok(&b"{\"do"[..])], vec![Err(ErrorKind::ConnectionReset.into())]]
        {
            let said = answer(reads, &remove).unwrap_err();
            assert!(said.is::<NodeEnded>());
            let said = format!("{said:#}");
            for wanted in ["/mnt has ended", "stays moved", "braid remove", "braid status p"] {
                assert!(said.contains(wanted), "{said}");
            }
            assert!(!said.contains("os error") && !said.contains("EOF"), "{said}");
        }
        let timed_out = answer(vec![Err(ErrorKind::WouldBlock.into())], &remove).unwrap_err();
        assert!(!timed_out.is::<NodeEnded>(), "{timed_out:#}");
    }

    #[test]
    fn a_node_that_takes_no_more_calls_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let calls: Vec<_> = (0..3).map(|_| connect(&path)).collect();
        assert!(calls[0].is_ok() && calls[2].is_err(), "{calls:?}");
    }
}
