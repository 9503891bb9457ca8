//! The supervisor: starts the server, starts it again when it ends, ends with the mount, takes orders.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use braid_pool::device::MountTable;
use braid_pool::device::user_dir;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::export::{Export, Server};
use super::ganesha::{Ganesha, Running};
use super::list::{self, Noted};
use super::orders::{self, Order, State, View};
use super::ports;
use super::recovery::Recovery;
use super::restarts::Restarts;
use crate::process::notes::{Note, Writer};
use crate::process::{background, service};

/// Between two looks at the mount and at the log.
const LOOK: Duration = Duration::from_secs(1);

/// What happens to a supervisor.
enum Event {
    /// Somebody asks for something, and waits.
    Order(Order, Sender<Result<View>>),
    /// This process is to end.
    Signal,
    /// The process that serves the mount has ended.
    NodeEnded,
    /// The server may have ended.
    ServerEnded,
}

/// Why a supervisor ends.
enum End {
    /// It was asked to.
    Asked,
    /// The mount has gone.
    Unmounted,
}

/// When a supervisor begins.
#[derive(Debug, Clone, Copy)]
pub struct Begin {
    /// It lets go of the terminal as soon as the server answers.
    pub background: bool,
    /// It waits first until no other node serves under the server's name.
    pub takeover: bool,
}

/// Serves `export`, and what else it is asked for, until it is told to end or the mount goes away.
///
/// # Errors
/// The server does not start. Not in the background: it ends again and again.
pub fn run(server: Server, export: Export, begin: Begin, node: &Writer) -> Result<ExitCode> {
    let dir = user_dir()?;
    let note = list::begin(&dir)?;
    let done = supervise(&dir, &note, server, export, begin, node);
    list::remove_rest(&dir, note.id());
    done
}

fn supervise(
    dir: &Path,
    note: &Note,
    server: Server,
    export: Export,
    begin: Begin,
    node: &Writer,
) -> Result<ExitCode> {
    let background = begin.background;
    let (sender, events) = channel();
    let tell = sender.clone();
    node.when_ended(move || {
        tell.send(Event::NodeEnded).ok();
    })?;
    let noted = Noted {
        node: node.id().to_owned(),
        mount_point: server.mount_point.clone(),
        supervisor: Writer::default(),
    };
    let room = list::room(dir, note.id());
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&room)
        .with_context(|| room.display().to_string())?;
    let mut supervisor = Supervisor::new(server, export, &room, sender.clone())?;
    if begin.takeover {
        supervisor.await_turn()?;
    }
    // Until here a signal ends this process at once.
    watch_signals(sender.clone(), background)?;
    supervisor.start()?;
    let asked = move |order| {
        let (answer, answered) = channel();
        sender.send(Event::Order(order, answer)).context("it is ending")?;
        answered.recv().context("it is ending")?
    };
    orders::serve(&orders::socket(dir, note.id()), asked)?;
    note.write(&noted)?;
    if background {
        background::detach(None)?;
    } else {
        service::exports(&supervisor.server.pool);
    }
    let ended = supervisor.serve(&events, background);
    supervisor.end(matches!(ended, Ok(End::Unmounted)));
    match ended? {
        End::Asked => Ok(ExitCode::SUCCESS),
        End::Unmounted => {
            bail!(
                "{}: not mounted any more: its NFS exports have ended",
                noted.mount_point.display()
            )
        }
    }
}

fn watch_signals(events: Sender<Event>, background: bool) -> Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot catch signals")?;
    let work = move || {
        // In the background SIGHUP is of a terminal that it has left.
        for _ in signals.forever().filter(|s| !(background && *s == SIGHUP)) {
            events.send(Event::Signal).ok();
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(work)?;
    Ok(())
}

/// Sends `event` when a process has ended.
fn watch_process(
    pid: u32,
    events: Sender<Event>,
    event: impl FnOnce() -> Event + Send + 'static,
) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("not a process")?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let work = move || {
        while let Err(rustix::io::Errno::INTR) =
            poll(&mut [PollFd::new(&process, PollFlags::IN)], None)
        {}
        events.send(event()).ok();
    };
    std::thread::Builder::new().name("watch".into()).spawn(work)?;
    Ok(())
}

struct Supervisor {
    server: Server,
    exports: Vec<Export>,
    ganesha: Ganesha,
    room: PathBuf,
    /// Held while a server runs or is to run.
    recovery: Option<Recovery>,
    running: Option<Running>,
    state: State,
    restarts: Restarts,
    /// When the server is started again.
    next: Option<Instant>,
    /// The number of the mounted file system's device.
    device: (u32, u32),
    events: Sender<Event>,
}

impl Supervisor {
    fn new(server: Server, export: Export, room: &Path, events: Sender<Event>) -> Result<Self> {
        let device = device(&server.mount_point).with_context(|| {
            format!("{}: no pool is mounted there", server.mount_point.display())
        })?;
        Ok(Self {
            ganesha: Ganesha::new(room)?,
            server,
            exports: vec![export],
            room: room.to_owned(),
            recovery: None,
            running: None,
            state: State::Serving,
            restarts: Restarts::default(),
            next: None,
            device,
            events,
        })
    }

    fn check_ports(&self) -> Result<()> {
        let mut ports = [self.server.port, self.server.mount_port].into_iter();
        ports.try_for_each(|port| ports::check_free(self.server.listen, port))
    }

    fn open_recovery(&self) -> Result<Option<Recovery>> {
        Recovery::open(&self.server.mount_point, &self.server.name, &self.room)
    }

    /// Waits until no other node serves under this name, and this host has address and ports.
    ///
    /// # Errors
    /// The mount has gone.
    fn await_turn(&mut self) -> Result<()> {
        let mut said = String::new();
        loop {
            let why = match self.open_recovery()? {
                None => format!("another node serves NFS under the name {}", self.server.name),
                Some(recovery) => match self.check_ports() {
                    Ok(()) => {
                        self.recovery = Some(recovery);
                        return Ok(());
                    }
                    Err(why) => format!("{why:#}"),
                },
            };
            if why != said {
                tracing::warn!("waiting: {why}");
                said = why;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Starts the server.
    fn start(&mut self) -> Result<()> {
        self.check_ports()?;
        if self.recovery.is_none() {
            self.recovery = self.open_recovery()?;
        }
        let name = &self.server.name;
        let recovery = self.recovery.as_mut().with_context(|| {
            format!(
                "another node of this pool serves NFS under the name {name}. --takeover waits for its end; or give \
                 this server a name of its own: --server NAME"
            )
        })?;
        let number = recovery.next_start()?;
        self.ganesha.configure(&self.server, &self.exports, &recovery.dir)?;
        let running = self.ganesha.start(&self.server, number)?;
        watch_process(running.pid(), self.events.clone(), || Event::ServerEnded)?;
        self.running = Some(running);
        (self.state, self.next) = (State::Serving, None);
        Ok(())
    }

    /// Until it is to end.
    fn serve(&mut self, events: &Receiver<Event>, background: bool) -> Result<End> {
        loop {
            let soon = self.next.map(|next| next.saturating_duration_since(Instant::now()));
            match events.recv_timeout(soon.unwrap_or(LOOK).min(LOOK)) {
                Ok(Event::Order(order, answer)) => {
                    let ends = matches!(order, Order::End) || self.is_last(&order);
                    answer.send(self.obey(order)).ok();
                    if ends {
                        return Ok(End::Asked);
                    }
                }
                Ok(Event::Signal) => return Ok(End::Asked),
                Ok(Event::NodeEnded) => return Ok(End::Unmounted),
                Ok(Event::ServerEnded) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("nobody watches over it any more"),
            }
            if device(&self.server.mount_point) != Some(self.device) {
                return Ok(End::Unmounted);
            }
            self.look();
            if let (State::Failed(why), false) = (&self.state, background) {
                bail!("{why}");
            }
        }
    }

    /// Sees whether the server has ended, and starts it again when it is time.
    fn look(&mut self) {
        self.ganesha.trim_log();
        if let Some(running) = &mut self.running
            && let Ok(Some(how)) = running.ended()
        {
            let (served, pid) = (running.since.elapsed(), running.pid());
            self.running = None;
            self.failed(format!("the NFS server (process {pid}) has ended: {how}"), served);
        }
        if self.next.is_some_and(|next| next <= Instant::now()) {
            self.next = None;
            if let Err(why) = self.start() {
                self.failed(format!("{why:#}"), Duration::ZERO);
            }
        }
    }

    /// The server is not there: it is started again after a while, or given up.
    fn failed(&mut self, why: String, served: Duration) {
        if let Some(wait) = self.restarts.ended(served) {
            tracing::warn!("{why}; it is started again in {} s", wait.as_secs());
            self.next = Some(Instant::now() + wait);
            self.state = State::Restarting(why);
            return;
        }
        let (name, dir) = (&self.server.pool, self.server.mount_point.display());
        let why = format!(
            "the NFS exports of {dir} are given up, because their server ends again and again: {why}. When that is \
             mended: `braid export {name} --stop`, then export it again"
        );
        tracing::error!("{why}");
        self.state = State::Failed(why);
        // Otherwise the mount would be in use.
        self.recovery = None;
    }

    fn is_last(&self, order: &Order) -> bool {
        let Order::Remove(subtree) = order else { return false };
        self.exports.iter().all(|e| e.subtree == *subtree)
    }

    fn obey(&mut self, order: Order) -> Result<View> {
        match order {
            Order::Look => {}
            Order::Put(export) => {
                let mut exports = self.exports.clone();
                exports.retain(|e| e.subtree != export.subtree);
                exports.push(export);
                self.change(exports)?;
            }
            Order::Remove(subtree) => {
                let mut exports = self.exports.clone();
                exports.retain(|e| e.subtree != subtree);
                if exports.len() == self.exports.len() {
                    bail!("/{}{subtree} is not exported", self.server.pool);
                }
                if exports.is_empty() {
                    self.end(false);
                } else {
                    self.change(exports)?;
                }
            }
            Order::End => self.end(false),
        }
        Ok(self.view())
    }

    /// Exports these, or what was exported before.
    fn change(&mut self, exports: Vec<Export>) -> Result<()> {
        let before = std::mem::replace(&mut self.exports, exports);
        let changed = if self.running.is_some() {
            self.reload()
        } else {
            self.restarts.forget();
            self.start()
        };
        if changed.is_err() {
            self.exports = before;
            self.reload().ok();
        }
        changed
    }

    fn reload(&mut self) -> Result<()> {
        let (Some(running), Some(recovery)) = (&mut self.running, &self.recovery) else {
            return Ok(());
        };
        self.ganesha.configure(&self.server, &self.exports, &recovery.dir)?;
        self.ganesha.reload(running)
    }

    fn view(&self) -> View {
        View {
            server: self.server.clone(),
            pid: std::process::id(),
            ganesha_pid: self.running.as_ref().map(Running::pid),
            state: self.state.clone(),
            restarts: self.restarts.total,
            exports: self.exports.clone(),
        }
    }

    /// Ends the server. `at_once`: the mount has gone.
    fn end(&mut self, at_once: bool) {
        if let Some(mut running) = self.running.take() {
            running.end(at_once);
        }
        self.recovery = None;
        self.next = None;
        self.exports.clear();
    }
}

/// The device's number of the pool that is mounted on `dir`.
fn device(dir: &Path) -> Option<(u32, u32)> {
    let table = MountTable::own().ok()?;
    table.on(dir).filter(|m| m.kind == "fuse.braid").map(|m| m.device)
}
