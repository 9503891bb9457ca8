//! What requests of programs wait for: the answer to [`Order::Why`](crate::control::Order::Why).

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use braid_bulk::remote::RemoteFs;
use braid_format::LockNo;
use braid_fs::{Fs, NamedLock};
use braid_fuse::{RequestCounters, RequestUnderWay};
use braid_pool::device::tasks::{Awaited, KINDS};
use serde::{Deserialize, Serialize};

use crate::control::nodes;
use crate::control::programs::{self, ProgramView, name_of};
use crate::control::{Node, locks};

/// Most requests in each part of an answer.
const REQUESTS_MAX: usize = 1000;
/// The root directory, to the kernel.
const ROOT_ID: u64 = 1;

/// What a node's requests wait for.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct WhyView {
    /// The node's slot.
    pub node: u16,
    /// Requests that threads answer just now, the oldest first.
    pub requests: Vec<RequestView>,
    /// Those that wait for a lock of another program, the oldest first.
    pub for_locks: Vec<LockWait>,
    /// Threads of programs whose requests wait until a thread of the node is free.
    pub for_threads: Vec<u32>,
    /// What programs asked for since somebody looks.
    pub programs: Vec<ProgramView>,
    /// Members that answer nothing, each with its device, and for how many seconds.
    pub silent: Vec<(u16, String, u64)>,
    /// Changes of the pool that wait for nodes, in words.
    pub changes: Vec<String>,
    /// Why it serves nothing any more.
    pub withdrawn: Option<String>,
    /// Of a mount from a server, which is no node: that.
    #[serde(default)]
    pub server: Option<ServerView>,
}

/// The server of a mount, as far as its client knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerView {
    /// The one in use.
    pub name: String,
    /// Since when, Unix seconds.
    pub since: u64,
    /// How many may be used.
    pub servers: usize,
    /// It answered when it was last asked.
    pub connected: bool,
    /// It does not want this client any more.
    pub refuses: bool,
    /// For how long nothing came from it. It is asked every two seconds at least.
    pub silent_s: f64,
}

impl ServerView {
    /// Nothing came for longer than that: it does not answer, though nothing has failed yet.
    const QUIET_S: f64 = 5.0;

    /// Whether it answers, by all that is known.
    pub fn answers(&self) -> bool {
        self.connected && self.silent_s < Self::QUIET_S
    }
}

/// A request under way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RequestView {
    /// What a program asked for.
    pub operation: String,
    /// The program's thread; 0: the kernel's own.
    pub thread: u32,
    /// Its name, as far as it lives.
    pub program: String,
    /// The file.
    pub inode: u64,
    /// For how long it has been under way.
    pub for_s: f64,
    /// What it waits for.
    pub awaits: Option<AwaitedView>,
    /// How long it waited for each kind of thing, in seconds: by [`Awaited::NAMES`].
    #[serde(deserialize_with = "programs::by_kind")]
    pub waited_s: [f64; KINDS],
}

/// What is waited for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AwaitedView {
    /// One of [`Awaited::NAMES`].
    pub kind: String,
    /// Already for so long.
    pub for_s: f64,
    /// The lock.
    pub lock: Option<LockWaitedFor>,
    /// The member, if it is one: its place and its device.
    pub member: Option<(u16, String)>,
}

/// A cluster lock.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LockWaitedFor {
    /// Its number.
    pub lock: u64,
    /// What it is of.
    pub of: String,
    /// How this node holds it.
    pub held: String,
    /// Threads of this node that use it.
    pub users: u32,
    /// Threads of this node that wait for it.
    pub waiting: u32,
    /// This node is giving it up.
    pub giving_up: bool,
    /// Other nodes that hold it, as far as is known here.
    pub holders: Vec<Holder>,
}

/// A node that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its slot.
    pub node: u16,
    /// Its host.
    pub host: String,
    /// What it is ([`nodes::STATES`]).
    pub state: String,
}

/// A request that waits for a lock of another program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LockWait {
    /// The thread that waits.
    pub thread: u32,
    /// Its name.
    pub program: String,
    /// The file.
    pub inode: u64,
    /// For how long.
    pub for_s: f64,
}

/// The answer.
pub fn answer(node: &Node) -> WhyView {
    let fs = &node.fs;
    let nodes = nodes::seen(fs);
    let host = |slot| {
        let of = nodes.iter().find(|(n, _)| n.life.slot.get() == slot);
        let (host, state) = of.map_or_else(Default::default, |(n, word)| (n.host.clone(), *word));
        Holder { node: slot, host, state: state.to_owned() }
    };
    let members = &fs.pool().info().members;
    let path =
        |member: u16| members.get(usize::from(member)).map(|m| m.path.clone()).unwrap_or_default();
    let silent = fs.pool().silent().into_iter();
    let awaits = |request: &RequestUnderWay| awaited(fs, request, &host);
    WhyView {
        node: fs.life().slot.get(),
        silent: silent.map(|s| (s.member.0, path(s.member.0), s.time.as_secs())).collect(),
        changes: fs.waits().iter().map(ToString::to_string).collect(),
        withdrawn: fs.withdrawn(),
        ..of_requests(&node.requests, fs.root().get(), &awaits)
    }
}

/// The answer of a mount from a server.
pub fn answer_remote(fs: &RemoteFs, requests: &RequestCounters) -> WhyView {
    let status = fs.status();
    let since = status.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let awaits = |request: &RequestUnderWay| {
        let (awaited, time) = request.awaited?;
        let kind = Awaited::NAMES[awaited.kind()].to_owned();
        Some(AwaitedView { kind, for_s: time.as_secs_f64(), lock: None, member: None })
    };
    let server = ServerView {
        name: status.server,
        since: since.as_secs(),
        servers: status.servers,
        connected: status.is_connected,
        refuses: status.is_refused,
        silent_s: status.silent_for.as_secs_f64(),
    };
    WhyView { server: Some(server), ..of_requests(requests, fs.root_ino().get(), &awaits) }
}

/// What is known of requests, whoever answers them. `root`: the number of the root directory.
fn of_requests(
    counters: &RequestCounters,
    root: u64,
    awaits: &dyn Fn(&RequestUnderWay) -> Option<AwaitedView>,
) -> WhyView {
    let inode = |number| if number == ROOT_ID { root } else { number };
    let mut names = Names::default();
    let mut under_way = counters.under_way();
    under_way.truncate(REQUESTS_MAX);
    let requests = under_way.iter().map(|request| RequestView {
        operation: request.operation.to_owned(),
        thread: request.thread,
        program: names.of(request.thread),
        inode: inode(request.node),
        for_s: request.time.as_secs_f64(),
        awaits: awaits(request),
        waited_s: request.waited.map(|time: Duration| time.as_secs_f64()),
    });
    let requests = requests.collect();
    let waiting = counters.waiting();
    let mut for_locks: Vec<LockWait> = waiting
        .for_locks
        .into_iter()
        .map(|(thread, number, time)| LockWait {
            thread,
            program: String::new(),
            inode: inode(number),
            for_s: time.as_secs_f64(),
        })
        .collect();
    for_locks.sort_by(|a, b| b.for_s.total_cmp(&a.for_s));
    for_locks.truncate(REQUESTS_MAX);
    for_locks.iter_mut().for_each(|wait| wait.program = names.of(wait.thread));
    WhyView {
        requests,
        for_locks,
        for_threads: waiting.for_threads.into_iter().take(REQUESTS_MAX).collect(),
        programs: programs::answer(counters),
        ..WhyView::default()
    }
}

/// The names of threads, each asked once.
#[derive(Default)]
struct Names(HashMap<u32, String>);

impl Names {
    fn of(&mut self, thread: u32) -> String {
        self.0.entry(thread).or_insert_with(|| name_of(thread)).clone()
    }
}

fn awaited(
    fs: &Fs,
    request: &RequestUnderWay,
    host: &dyn Fn(u16) -> Holder,
) -> Option<AwaitedView> {
    let (awaited, time) = request.awaited?;
    let (mut lock, mut member) = (None, None);
    match awaited {
        Awaited::Lock(number) => {
            lock = fs.lock_view(LockNo(number)).map(|named| waited_for(fs, &named, host));
        }
        Awaited::Device(key) => {
            member = fs.pool().member_with(key).map(|m| (m.index.0, m.path));
        }
        _ => {}
    }
    let kind = Awaited::NAMES[awaited.kind()].to_owned();
    Some(AwaitedView { kind, for_s: time.as_secs_f64(), lock, member })
}

fn waited_for(fs: &Fs, named: &NamedLock, host: &dyn Fn(u16) -> Holder) -> LockWaitedFor {
    let view = &named.view;
    let own = fs.life().slot;
    let others = view.holders.iter().filter(|life| life.slot != own);
    LockWaitedFor {
        lock: view.lock.get(),
        of: named.of.clone(),
        held: locks::mode(view.held).to_owned(),
        users: view.users,
        waiting: view.waiting,
        giving_up: view.demoting.is_some(),
        holders: others.map(|life| host(life.slot.get())).collect(),
    }
}
