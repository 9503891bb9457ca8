//! `braid why`

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Result, bail};
use braid_bulk::error::moment;
use braid_pool::device::tasks::Awaited;
use serde_json::{Value, json};

use crate::control::programs::ProgramView;
use crate::control::why::{LockWaitedFor, RequestView, ServerView, WhyView};
use crate::control::{self, Order, remote};
use crate::process::mounts::{self, Mount};
use crate::process::others;
use crate::terminal::answer::{self, say};

/// Requests are watched for so long.
const WATCH: Duration = Duration::from_secs(1);
/// Of a pool, what has been under way for less is not shown.
const SLOW_S: f64 = 0.05;
/// Looking a path up takes longer only if it has to wait itself.
const LOOK_UP: Duration = Duration::from_secs(1);
/// Requests that are shown of a pool, or of a program.
const SHOWN: usize = 20;

/// Say what a program, a file, or everybody who uses a pool, waits for now: which lock and who has it, which
/// member, memory, which server, and what a program's time went to in the last second.
///
/// Asks the nodes of this host, and its mounts from servers. Where a node of another host has the lock, or a server
/// does not answer soon, ask there what it does.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A process, by its number; a file or directory in a mounted pool; or a pool, or its directory
    #[arg(value_name = "PID|PATH|POOL")]
    what: String,
}

/// What is asked about.
#[derive(Debug, Clone)]
enum About {
    /// The threads of a process.
    Process { pid: u32, threads: HashSet<u32> },
    /// A file.
    File { path: PathBuf, inode: u64 },
    /// A file whose path cannot be looked up at once, and the thread that tries to.
    LookedUp { path: PathBuf, thread: u32 },
    /// Everything of a pool.
    Pool,
}

impl About {
    fn wants(&self, thread: u32, inode: u64, for_s: f64) -> bool {
        match self {
            Self::Process { threads, .. } => threads.contains(&thread),
            Self::File { inode: wanted, .. } => *wanted == inode,
            Self::LookedUp { thread: wanted, .. } => *wanted == thread,
            Self::Pool => for_s >= SLOW_S,
        }
    }
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (about, mounts) = asked_about(&args.what)?;
    let (remotes, nodes): (Vec<Mount>, Vec<Mount>) = mounts.into_iter().partition(|m| m.is_remote);
    let look = || -> Vec<(Mount, WhyView)> {
        let answers = control::values(&nodes, &Order::Why).into_iter();
        let answers = answers.filter_map(|(m, v)| Some((m, serde_json::from_value(v).ok()?)));
        let of_servers = remotes.iter().filter_map(|m| Some((m.clone(), remote::look_why(m)?)));
        answers.chain(of_servers).collect()
    };
    let before = look();
    if before.is_empty() {
        bail!("no node of this host answers, and no mount from a server");
    }
    std::thread::sleep(WATCH);
    let now = look();
    // A node that has ended meanwhile has said once what there is.
    let now = if now.is_empty() { before.clone() } else { now };
    let mut found = false;
    for (mount, view) in &now {
        let was = before.iter().find(|(m, _)| m.mount_point == mount.mount_point);
        let wanted = of_interest(&about, view, was.map(|(_, view)| view));
        found |= wanted.any;
        if answer::is_json() {
            answer::line(as_json(mount, &wanted));
        } else if wanted.any || now.len() == 1 {
            show(mount, &about, &wanted, &now);
        }
    }
    if !found && !answer::is_json() {
        nothing(&about);
    }
    Ok(ExitCode::SUCCESS)
}

/// What is asked about, and the nodes to be asked.
fn asked_about(what: &str) -> Result<(About, Vec<Mount>)> {
    let all: Vec<Mount> = mounts::mounts().into_iter().chain(mounts::remotes()).collect();
    if let Ok(pid) = what.parse::<u32>() {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        let Ok(threads) = threads else { bail!("there is no process {pid}") };
        let number = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.ok()?.file_name().to_str()?.parse().ok()
        };
        let threads = threads.filter_map(number).collect();
        if all.is_empty() {
            bail!("no pool is mounted on this host{}", others::besides());
        }
        return Ok((About::Process { pid, threads }, all));
    }
    // Nothing is asked of a path before it is known in which mount it is: that may be one that hangs.
    let written = std::path::absolute(what)?;
    let mut place = place_of(&all, &written).map(|mount| (mount, written));
    if place.is_none() {
        let mut named = control::named(what);
        named.extend(all.iter().filter(|m| m.is_remote && m.pool == what).cloned());
        if !named.is_empty() {
            return Ok((About::Pool, named));
        }
        others::refuse(&[what.to_owned()])?;
        // By way of symbolic links.
        let linked = PathBuf::from(what);
        let found = within(LOOK_UP, move || linked.canonicalize())?;
        place =
            found.ok().and_then(Result::ok).and_then(|path| Some((place_of(&all, &path)?, path)));
    }
    let Some((mount, path)) = place else {
        bail!(
            "{what}: no process, no path in a pool that is mounted on this host{}, and no such pool",
            others::besides()
        );
    };
    if path == mount.mount_point {
        return Ok((About::Pool, vec![mount.clone()]));
    }
    // The other nodes of this host may be what the file waits for.
    let pool = mount.pool.clone();
    let is_remote = mount.is_remote;
    let place = mount.mount_point.clone();
    let other =
        |m: &Mount| m.pool == pool && (!is_remote && !m.is_remote || m.mount_point == place);
    let others = all.into_iter().filter(other).collect();
    Ok((looked_up(path)?, others))
}

/// The mount in which a path is.
fn place_of<'m>(all: &'m [Mount], path: &Path) -> Option<&'m Mount> {
    let holds = |m: &&Mount| path.starts_with(&m.mount_point);
    all.iter().filter(holds).max_by_key(|m| m.mount_point.as_os_str().len())
}

/// What `f` says within a time; or the thread that is still at it.
fn within<T: Send + 'static>(
    time: Duration,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<std::result::Result<T, u32>> {
    let (tell, told) = mpsc::channel();
    let (tell_thread, thread) = mpsc::channel();
    std::thread::Builder::new().spawn(move || {
        tell_thread.send(rustix::thread::gettid().as_raw_nonzero().get()).ok();
        tell.send(f()).ok();
    })?;
    let thread = thread.recv()?.unsigned_abs();
    Ok(told.recv_timeout(time).map_err(|_| thread))
}

/// Looks a path up. That may wait for what this is all about.
fn looked_up(path: PathBuf) -> Result<About> {
    let looked = path.clone();
    match within(LOOK_UP, move || std::fs::symlink_metadata(looked).map(|found| found.ino()))? {
        Ok(Ok(inode)) => Ok(About::File { path, inode }),
        Ok(Err(error)) => bail!("{}: {error}", path.display()),
        Err(thread) => Ok(About::LookedUp { path, thread }),
    }
}

/// What a node says that is of interest.
struct Wanted<'v> {
    view: &'v WhyView,
    requests: Vec<&'v RequestView>,
    for_locks: Vec<&'v crate::control::why::LockWait>,
    for_threads: usize,
    /// What the program asked for in the time between two looks.
    program: Option<ProgramView>,
    any: bool,
}

fn of_interest<'v>(about: &About, view: &'v WhyView, was: Option<&WhyView>) -> Wanted<'v> {
    let requests: Vec<_> =
        view.requests.iter().filter(|r| about.wants(r.thread, r.inode, r.for_s)).collect();
    let for_locks: Vec<_> =
        view.for_locks.iter().filter(|w| about.wants(w.thread, w.inode, w.for_s)).collect();
    let for_threads = match about {
        About::Pool => view.for_threads.len(),
        _ => view.for_threads.iter().filter(|t| about.wants(**t, 0, 0.0)).count(),
    };
    let program = match about {
        About::Process { threads, .. } => spent(view, was, threads),
        _ => None,
    };
    let any = !requests.is_empty()
        || !for_locks.is_empty()
        || for_threads > 0
        || program.as_ref().is_some_and(|p| p.requests > 0)
        || matches!(about, About::Pool) && (!view.silent.is_empty() || !view.changes.is_empty());
    Wanted { view, requests, for_locks, for_threads, program, any }
}

/// What threads asked for between two looks.
fn spent(view: &WhyView, was: Option<&WhyView>, threads: &HashSet<u32>) -> Option<ProgramView> {
    let before: HashMap<u32, &ProgramView> =
        was.into_iter().flat_map(|was| &was.programs).map(|p| (p.pid, p)).collect();
    let mut all: Option<ProgramView> = None;
    for now in view.programs.iter().filter(|p| threads.contains(&p.pid)) {
        let since = before.get(&now.pid).map_or_else(|| now.clone(), |was| now.since(was));
        match &mut all {
            None => all = Some(since),
            Some(all) => all.add(&since),
        }
    }
    all
}

fn as_json(mount: &Mount, wanted: &Wanted<'_>) -> Value {
    json!({
        "pool": mount.pool,
        "mount_point": mount.mount_point,
        "node": wanted.view.server.is_none().then_some(wanted.view.node),
        "server": wanted.view.server,
        "requests": wanted.requests,
        "for_locks": wanted.for_locks,
        "for_threads": wanted.for_threads,
        "program": wanted.program,
        "silent": wanted.view.silent,
        "changes": wanted.view.changes,
        "withdrawn": wanted.view.withdrawn,
    })
}

fn show(mount: &Mount, about: &About, wanted: &Wanted<'_>, all: &[(Mount, WhyView)]) {
    let view = wanted.view;
    let dir = answer::shown(&mount.mount_point);
    match &view.server {
        None => say!("pool {}, node {}, {dir}:", mount.pool, view.node),
        Some(server) => {
            say!("pool {}, from a server, {dir}:", mount.pool);
            say!("  {}", said_of(server));
        }
    }
    if let Some(why) = &view.withdrawn {
        say!("  the node has withdrawn and serves nothing: {why}");
    }
    if let About::LookedUp { path, .. } = about {
        say!("  looking {} up waits, too", answer::shown(path));
    }
    for request in wanted.requests.iter().take(SHOWN) {
        show_request(request, view.server.as_ref(), all);
    }
    if wanted.requests.len() > SHOWN {
        say!("  and {} more requests", wanted.requests.len() - SHOWN);
    }
    for wait in wanted.for_locks.iter().take(SHOWN) {
        say!(
            "  {}: waits for a lock (fcntl or flock) that another program has on inode {}, for {}",
            program(wait.thread, &wait.program),
            wait.inode,
            time(wait.for_s)
        );
    }
    if wanted.for_locks.len() > SHOWN {
        say!("  and {} more wait for locks of programs", wanted.for_locks.len() - SHOWN);
    }
    if wanted.for_threads > 0 {
        say!(
            "  {} requests wait until a thread of the node is free: all are busy with what is under way",
            wanted.for_threads
        );
    }
    if let Some(program) = wanted.program.as_ref().filter(|p| p.requests > 0) {
        show_program(program);
    }
    for (member, path, seconds) in &view.silent {
        say!("  member {member} ({path}) answers nothing, for {seconds} s");
    }
    for change in &view.changes {
        say!("  {change}");
    }
}

fn program(thread: u32, name: &str) -> String {
    if thread == 0 { "the kernel".to_owned() } else { format!("{name} ({thread})") }
}

/// A time, for people.
fn time(seconds: f64) -> String {
    if seconds < 0.001 {
        format!("{:.0} us", seconds * 1e6)
    } else if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else {
        format!("{seconds:.1} s")
    }
}

/// How the server of a mount is, as far as is known here.
fn said_of(server: &ServerView) -> String {
    let ServerView { name, since, silent_s, .. } = server;
    let of =
        if server.servers > 1 { format!(", one of {}", server.servers) } else { String::new() };
    let used = format!("server {name}{of}, used since {}", moment(*since));
    if server.refuses {
        return format!("{used}: it REFUSES this client; `braid status` and the log say why");
    }
    if server.answers() {
        return format!("{used}: it answers, the last time {} ago", time(*silent_s));
    }
    format!("{used}: NO ANSWER for {}; programs wait until it answers again", time(*silent_s))
}

fn show_request(request: &RequestView, server: Option<&ServerView>, all: &[(Mount, WhyView)]) {
    say!(
        "  {}: {} of inode {}, for {}",
        program(request.thread, &request.program),
        request.operation,
        request.inode,
        time(request.for_s)
    );
    let Some(awaited) = &request.awaits else {
        say!("    is being answered, and waits for nothing");
        return;
    };
    // A wait may be one of many for the same thing: what counts is all of them.
    let kind = Awaited::NAMES.iter().position(|name| *name == awaited.kind);
    let since = time(kind.map_or(awaited.for_s, |kind| request.waited_s[kind]));
    match (awaited.kind.as_str(), &awaited.lock, &awaited.member) {
        (_, Some(lock), _) => show_lock(lock, &since, all),
        ("lock", None, _) => say!("    has just got the lock that it waited for"),
        (_, _, Some((member, path))) => {
            say!("    waits for member {member} ({path}), for {since}");
        }
        ("device", ..) => say!("    waits for members of the pool, for {since}"),
        ("commit", ..) => {
            say!("    waits for another thread to make its changes durable too, for {since}");
        }
        ("memory", ..) => {
            say!(
                "    waits for memory: too much is not yet written, or is being read, for {since}"
            );
        }
        ("server", ..) => match server {
            Some(server) if server.answers() => say!(
                "    waits for the answer of {}, which answers others, for {since}: ask there (`braid why`)",
                server.name
            ),
            Some(server) => {
                say!("    waits for {}, which does not answer, for {since}", server.name);
            }
            None => say!("    waits for the server, for {since}"),
        },
        ("request", ..) if server.is_some() => {
            say!(
                "    waits until another request to the server is over: all connections are in use, for {since}"
            );
        }
        ("request", ..) => {
            say!(
                "    waits for another request to the same part of the file or the pool, for {since}"
            );
        }
        ("lease", ..) => {
            say!("    waits until this node may write again: its lease is over, for {since}");
        }
        ("space", ..) => say!("    waits for space that is being freed, for {since}"),
        ("thaw", ..) => {
            say!("    waits for the thaw: the pool is frozen (`braid thaw`), for {since}");
        }
        (other, ..) => say!("    waits ({other}), for {since}"),
    }
    let before: Vec<String> = Awaited::NAMES
        .iter()
        .zip(request.waited_s)
        .filter(|(_, seconds)| *seconds >= SLOW_S)
        .map(|(name, seconds)| format!("{name} {}", time(seconds)))
        .collect();
    if before.len() > 1 {
        say!("    waited so far: {}", before.join(", "));
    }
}

fn show_lock(lock: &LockWaitedFor, since: &str, all: &[(Mount, WhyView)]) {
    say!("    waits for the lock of {}, for {since}", lock.of);
    for holder in &lock.holders {
        let host =
            if holder.host.is_empty() { String::new() } else { format!(" on {}", holder.host) };
        say!("    node {}{host}, {}, has it", holder.node, holder.state);
        let Some((_, there)) = all.iter().find(|(_, view)| view.node == holder.node) else {
            continue;
        };
        let busy = there.requests.iter().filter(|r| r.inode == lock.lock);
        for request in busy.take(3) {
            say!(
                "      where {} is at {} of it, for {}",
                program(request.thread, &request.program),
                request.operation,
                time(request.for_s)
            );
        }
    }
    if lock.giving_up {
        say!("    this node is giving it up; then it comes back in its turn");
    } else if lock.held != "-" {
        say!(
            "    this node has it ({}), {} threads use it, {} wait",
            lock.held,
            lock.users,
            lock.waiting
        );
    }
}

fn show_program(program: &ProgramView) {
    let share = |nanos: u64| {
        #[expect(clippy::cast_precision_loss, reason = "a share, shown in percent")]
        let share = nanos as f64 / program.nanos.max(1) as f64;
        share * 100.0
    };
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let seconds = program.nanos as f64 / 1e9;
    say!(
        "  in the last second: {} requests ended, after {} of all its threads together",
        program.requests,
        time(seconds)
    );
    let mut parts: Vec<(&str, u64)> = Awaited::NAMES
        .iter()
        .copied()
        .zip(program.waited.iter().copied())
        .filter(|(_, nanos)| *nanos > 0)
        .collect();
    let waited: u64 = parts.iter().map(|(_, nanos)| nanos).sum();
    parts.push(("work", program.nanos.saturating_sub(waited)));
    parts.sort_by_key(|(_, nanos)| std::cmp::Reverse(*nanos));
    let parts: Vec<String> =
        parts.iter().map(|(name, nanos)| format!("{name} {:.0} %", share(*nanos))).collect();
    say!("    of that: {}", parts.join(", "));
}

/// Nothing was found.
fn nothing(about: &About) {
    match about {
        About::Process { pid, .. } => {
            let state = state_of(*pid).unwrap_or_else(|| "it has ended".to_owned());
            say!(
                "process {pid} has asked no mounted pool for anything in the last second: {state}"
            );
        }
        About::File { path, .. } => {
            say!("{}: no request is under way, and nobody waits", answer::shown(path));
        }
        About::LookedUp { path, .. } => {
            say!("{}: looking it up took long, and is over", answer::shown(path));
        }
        About::Pool => say!("no request has been under way for {}", time(SLOW_S)),
    }
}

/// What the kernel says that a process does.
fn state_of(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    let at = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("wchan"));
    let at = at.ok().filter(|at| !at.is_empty() && at != "0");
    let at = at.map_or_else(String::new, |at| format!(", in the kernel at {at}"));
    let word = match state {
        'R' => "runs",
        'S' => "sleeps",
        'D' => "waits and cannot be interrupted",
        'T' | 't' => "is stopped",
        'Z' | 'X' => "has ended",
        _ => return Some(format!("its state is {state}{at}")),
    };
    Some(format!("it {word}{at}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(thread: u32, inode: u64, for_s: f64) -> RequestView {
        let (operation, program) = ("write".to_owned(), "dd".to_owned());
        let waited_s = Default::default();
        RequestView { operation, thread, program, inode, for_s, awaits: None, waited_s }
    }

    #[test]
    fn what_is_shown_is_what_was_asked_about() {
        let requests = vec![request(7, 100, 3.0), request(8, 101, 0.001)];
        let view = WhyView { requests, for_threads: vec![8, 9], ..WhyView::default() };
        let shown = |about: &About| {
            let wanted = of_interest(about, &view, None);
            let inodes: Vec<u64> = wanted.requests.iter().map(|r| r.inode).collect();
            (inodes, wanted.for_threads, wanted.any)
        };
        let process =
            |threads: &[u32]| About::Process { pid: 1, threads: threads.iter().copied().collect() };
        assert_eq!(shown(&process(&[8])), (vec![101], 1, true));
        assert_eq!(shown(&process(&[5])), (vec![], 0, false));
        assert_eq!(shown(&About::Pool), (vec![100], 2, true));
        let path = PathBuf::from("/f");
        assert_eq!(shown(&About::File { path: path.clone(), inode: 101 }), (vec![101], 0, true));
        assert_eq!(shown(&About::LookedUp { path, thread: 7 }), (vec![100], 0, true));
    }

    #[test]
    fn what_a_program_spent_is_of_the_time_between() {
        let one = |pid, requests, nanos, lock| {
            let mut waited = [0; braid_pool::device::tasks::KINDS];
            waited[0] = lock;
            ProgramView { pid, requests, nanos, waited, ..ProgramView::default() }
        };
        let view = |programs| WhyView { programs, ..WhyView::default() };
        let was = view(vec![one(7, 10, 100, 50)]);
        let now = view(vec![one(7, 15, 400, 300), one(8, 2, 20, 0), one(9, 99, 99, 99)]);
        let threads = HashSet::from([7, 8]);
        let spent = spent(&now, Some(&was), &threads).unwrap();
        assert_eq!((spent.requests, spent.nanos, spent.waited[0]), (7, 320, 250));
    }

    #[test]
    fn times_are_for_people() {
        assert_eq!([0.000_5, 0.25, 12.34].map(time), ["500 us", "250 ms", "12.3 s"]);
    }
}
