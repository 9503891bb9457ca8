//! `braid mount`.
//!
//! The daemon is this program started once more: the parent waits until the child says on a pipe
//! that the mount serves, or why not. So nothing is forked after threads exist.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use braid_format::label::MemberState;
use braid_format::superblock::RawSuperblock;
use braid_format::{Bytes, Incarnation, NodeId};
use braid_fs::lock::{HintsBy, Life, NodeView, Timing};
use braid_fs::{ClusterView, Fs, Holds, MountOptions};
use braid_fuse::{FuseOptions, Session};
use braid_pool::Pool;
use braid_pool::device::{Device, MountTable, answers, bounded};
use braid_pool::labels::Found;

pub use super::mount_start::Args;
use super::mount_start::{
    ONLY_REMOUNT, begin_in_background, begin_log, changes_by, each, noted, started_again,
};
use super::{copies, mount_remote, remount};
use crate::control::{Control, Node, history, session::NOTHING_CHANGED};
use crate::metrics::{self, Address};
use crate::pools::{
    properties::{MOUNT_OPTIONS, timing, timing_of},
    sources,
};
use crate::process::limits::{self, Need};
use crate::process::{
    asker, guard::Guard, left_behind, log, log::LineFormat, mounts, mounts::MountEnd, service,
    unmount_on_signal::UnmountOnSignal,
};
use crate::terminal::answer::{say, warning};
use crate::terminal::size;

/// Everything the options say.
#[derive(Debug)]
struct Plan {
    devices: Vec<String>,
    fs: MountOptions,
    fuse: FuseOptions,
    log: Option<PathBuf>,
    log_format: LineFormat,
    /// Where metrics are served, if anywhere.
    metrics: Option<Address>,
    /// Members that are missing are lost, says the user.
    degraded: bool,
    /// How long a device may take to answer before the mount goes on without it.
    device_timeout: Duration,
    /// Disks and files that do not answer for so long are given up.
    give_up: Option<Duration>,
}

impl Plan {
    /// What it needs of the limits of this process.
    fn need<'a>(&self, devices: &'a [PathBuf]) -> Need<'a> {
        Need { memory: self.fs.memory.get(), workers: self.fuse.workers_max, devices }
    }
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (dir, devices) = args.words.split_last().context("name a directory")?;
    if remount::is_asked(&args.options) {
        let dir = mounts::resolved(dir.as_ref()).with_context(|| dir.clone())?;
        return remount::run(args, devices, &dir, changes);
    }
    if devices.is_empty() {
        bail!(
            "{dir}: name the pool, or its devices, and then the directory (`braid mount NAME DIR`)"
        );
    }
    if let Some(life) = &args.free_slot {
        // Nothing is mounted for that: the directory may be gone.
        return free_slot(parse(devices, std::path::absolute(dir)?, &args.options)?.0, life);
    }
    let dir = mounts::resolved(dir.as_ref()).with_context(|| dir.clone())?;
    let cleared = clear_dead(&dir, args.dry_run)?;
    if !cleared && !dir.is_dir() {
        bail!("{}: not a directory to mount on", dir.display());
    }
    if let Some(place) = mount_remote::place(devices)? {
        if !cleared {
            refuse_mounted(&dir)?;
        }
        return mount_remote::run(args, &place, dir);
    }
    if args.identity.is_some() || args.insecure {
        bail!("--identity and --insecure are for a mount from a server: braid://HOST/POOL");
    }
    let (plan, unknown) = parse(devices, dir.clone(), &args.options)?;
    if let Some(log) = &plan.log
        && mounts::resolved(log).is_ok_and(|log| log.starts_with(&dir))
    {
        bail!(
            "option log: {} is inside of the mount, which the node would keep in use itself",
            log.display()
        );
    }
    if !cleared {
        refuse_mounted(&dir)?;
    }
    if let (Some(option), false) = (unknown.first(), args.sloppy) {
        bail!("unknown mount option '{option}'; see `braid mount --help`");
    }
    if args.fake {
        return Ok(ExitCode::SUCCESS);
    }
    if args.dry_run {
        return planned(plan, &dir, args);
    }
    if args.foreground { serve(plan, args) } else { start_daemon(args, &unknown) }
}

/// What would be mounted.
fn planned(plan: Plan, dir: &Path, args: &Args) -> Result<ExitCode> {
    answers::wait_for(plan.device_timeout);
    let paths = sources::members(&plan.devices)?;
    let paths: Vec<_> = paths.iter().map(|p| sources::absolute(p)).collect::<Result<_>>()?;
    limits::suffice(plan.need(&paths))?;
    // What cannot be written is refused, and nothing is written.
    let (devices, protected) = sources::open_as_can_be(&paths)?;
    if protected && !plan.fs.read_only {
        sources::open_devices(&paths, false)?;
    }
    let assemble = if plan.degraded { Pool::assemble_degraded } else { Pool::assemble };
    let pool = assemble(devices)?;
    copies::refuse(&pool)?;
    let plan = with_pool_options(plan, (&pool, &paths), &args.options)?;
    let (name, cluster) = (pool.info().name.clone(), braid_fs::inspect(pool)?);
    refuse_without_slot(&cluster, plan.fs.slot)?;
    let access = if plan.fs.read_only { " for reading" } else { "" };
    say!(
        "{name} would be mounted on {}{access}; {} of its {} node slots are taken",
        dir.display(),
        cluster.nodes.len(),
        cluster.node_slots
    );
    say!("{NOTHING_CHANGED}");
    Ok(ExitCode::SUCCESS)
}

/// # Errors
/// The slot, or all of them if none is named, are taken by nodes that live. That of a dead node would be freed first.
fn refuse_without_slot(cluster: &ClusterView, slot: Option<NodeId>) -> Result<()> {
    let lives = |node: &&NodeView| node.beating;
    if let Some(slot) = slot {
        if slot.get() >= cluster.node_slots {
            bail!(
                "option slot={slot}: the pool has the node slots 0 to {}",
                cluster.node_slots - 1
            );
        }
        if let Some(node) = cluster.nodes.iter().filter(lives).find(|n| n.life.slot == slot) {
            bail!("option slot={slot}: node {slot} on {} at {} lives", node.host, node.mount_point);
        }
    } else if cluster.nodes.iter().filter(lives).count() >= usize::from(cluster.node_slots) {
        bail!(
            "all {} node slots are taken by nodes that live: unmount one of them (`braid nodes`)",
            cluster.node_slots
        );
    }
    Ok(())
}

/// Takes away a mount whose process has died: nothing else answers there until somebody does. What the kernel
/// has cached it answers all the same, so it is asked for what it never caches; not where a process is known to
/// live, which may be stopped. In a dry run that is only said. Whether it is gone, or would be.
fn clear_dead(dir: &Path, dry_run: bool) -> Result<bool> {
    let table = MountTable::own().unwrap_or_default();
    if !table.iter().any(|m| m.dir == dir && m.kind == "fuse.braid")
        || mounts::mounts().iter().chain(&mounts::remotes()).any(|m| m.mount_point == dir)
        || rustix::fs::statfs(dir).err() != Some(rustix::io::Errno::NOTCONN)
    {
        return Ok(false);
    }
    let shown = dir.display();
    if dry_run {
        say!("{shown}: the process of the mount there has died: it would be unmounted first");
        return Ok(true);
    }
    warning!("{shown}: the process of the mount there has died: unmounting it");
    braid_fuse::unmount(dir, true)
        .with_context(|| format!("{shown}: a dead mount cannot be cleared"))?;
    // Another may be beneath it.
    Ok(false)
}

/// Nobody wants a second node on top of the first, in the same directory.
fn refuse_mounted(dir: &Path) -> Result<()> {
    let table = MountTable::own().unwrap_or_default();
    if table.iter().any(|m| m.dir == dir && m.kind == "fuse.braid") {
        bail!(
            "{}: a pool is mounted there already; unmount it first, or take another directory",
            dir.display()
        );
    }
    Ok(())
}

/// What the options ask for, and the options that nobody knows.
fn parse(devices: &[String], dir: PathBuf, options: &[String]) -> Result<(Plan, Vec<String>)> {
    let mut plan = Plan {
        devices: devices.to_vec(),
        fs: MountOptions { mount_point: dir.clone(), ..MountOptions::default() },
        fuse: FuseOptions::new(dir),
        log: None,
        log_format: LineFormat::of_environment(),
        metrics: None,
        degraded: false,
        device_timeout: DEVICE_TIMEOUT,
        give_up: None,
    };
    // First, wherever it stands: it sets what the others may set apart.
    if let Some(total) = each(options).filter_map(|o| o.strip_prefix("memory=")).last() {
        plan.fs.bound_memory(memory("memory", total, MountOptions::MEMORY_MIN)?);
    }
    let mut unknown = Vec::new();
    for option in each(options) {
        let (key, value) = option.split_once('=').map_or((option, None), |(k, v)| (k, Some(v)));
        if !apply(&mut plan, option, key, value)? {
            unknown.push(option.to_owned());
        }
    }
    Ok((plan, unknown))
}

/// Whether an option would change what a node has that was mounted with the options `noted`; `None`: nobody knows it.
fn changes(noted: &[String], option: &str) -> Result<Option<bool>> {
    changes_by(|options| parse(&[], PathBuf::from("/"), options), noted, option)
}

/// Options that a pool may have for all of its mounts. The others belong to one host or one mount, or are needed before
/// the pool is read.
const POOL_OPTIONS: [&str; 23] = [
    "async",
    "background_max",
    "cache",
    "cachenames",
    "commit",
    "dirsync",
    "dirty",
    "discard",
    "fence_reset",
    "locks",
    "max_write",
    "memory",
    "noalert",
    "nocacheattr",
    "nocachedata",
    "nocachenames",
    "nodev",
    "nodiscard",
    "noexec",
    "nosuid",
    "read_ahead",
    "sync",
    "workers_max",
];

/// Whether `text`, mount options, may be a pool's.
///
/// # Errors
/// Names the option that may not be, or that makes no sense.
pub fn check_pool_options(text: &str) -> Result<()> {
    let text = [text.to_owned()];
    let (_, unknown) = parse(&[], PathBuf::from("/"), &text)?;
    if let Some(option) = unknown.first() {
        bail!("unknown mount option '{option}'; see `braid mount --help`");
    }
    for option in each(&text) {
        if !POOL_OPTIONS.contains(&key_of(option)) {
            bail!(
                "option '{option}' cannot be a pool's: it belongs to one host or one mount, or is needed before the pool is read; a pool may have {}",
                POOL_OPTIONS.join(", ")
            );
        }
    }
    Ok(())
}

fn key_of(option: &str) -> &str {
    option.split_once('=').map_or(option, |(key, _)| key)
}

/// The plan with the pool's own options beside those that were given; the limits suffice for it.
fn with_pool_options(
    plan: Plan,
    (pool, devices): (&Pool, &[PathBuf]),
    given: &[String],
) -> Result<Plan> {
    let label = pool.label();
    let Some(text) = label.properties.get(MOUNT_OPTIONS) else { return Ok(plan) };
    // What is given here counts alone: the pool's value may make no sense on this host.
    let is_given = |option: &str| each(given).any(|given| key_of(given) == key_of(option));
    let own = [text.clone()];
    let own = each(&own).filter(|option| !is_given(option)).collect::<Vec<_>>().join(",");
    let of_pool = || {
        check_pool_options(&own)?;
        let all: Vec<String> = [&own].into_iter().chain(given).cloned().collect();
        parse(&plan.devices, plan.fs.mount_point.clone(), &all)
    };
    let of_pool = of_pool().with_context(|| {
        format!(
            "the pool's own {MOUNT_OPTIONS}, {text} (`braid set {} {MOUNT_OPTIONS}=...`)",
            label.name
        )
    })?;
    tracing::info!(options = own, "mounted with the pool's own options");
    limits::suffice(of_pool.0.need(devices))?;
    Ok(of_pool.0)
}

/// Least metadata and unwritten data in memory with which a node works: some requests of the largest
/// size.
const PART_MIN: u64 = 8 << 20;
/// Fewest idle inodes in memory: the path to a file, for each thread.
const LOCKS_MIN: u64 = 1000;
/// Longest time between commits, seconds.
const COMMIT_MAX: u64 = 300;

/// How long a device may take to answer: a boot may begin while disks begin to turn, one after another.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(30);

/// The same of a member that the node has got no answer from for a while.
const MEMBER_TIME: Duration = Duration::from_secs(5);

/// Takes one option in; false if nobody knows it.
// A test in `mount_options.rs` reads the words in the arms out of this source text, from the next line
// to the line "A size of something in memory".
fn apply(plan: &mut Plan, option: &str, key: &str, value: Option<&str>) -> Result<bool> {
    if value.is_none() && apply_switch(plan, key)? {
        return Ok(true);
    }
    let need = || value.with_context(|| format!("option {key} needs a value: {key}=..."));
    let number = |min: u64, max: u64| -> Result<u64> {
        let n = need()?.parse().ok().filter(|n| (min..=max).contains(n));
        n.with_context(|| format!("option {option}: not a number from {min} to {max}"))
    };
    match key {
        "slot" => {
            let n = number(0, u64::from(RawSuperblock::NODE_SLOTS_MAX) - 1)?;
            plan.fs.slot = Some(NodeId(n.try_into()?));
        }
        "memory" => drop(need()?),
        "cache" => plan.fs.metadata_cache = memory(key, need()?, Bytes(PART_MIN))?,
        "dirty" => plan.fs.dirty_max = memory(key, need()?, Bytes(PART_MIN))?,
        "locks" => {
            let most = memory_here().get() / MountOptions::INODE_BYTES;
            plan.fs.locks_max = usize::try_from(number(LOCKS_MIN, most.max(LOCKS_MIN))?)?;
        }
        "commit" => plan.fs.commit_interval = Duration::from_secs(number(1, COMMIT_MAX)?),
        "io_timeout" => {
            plan.fs.timing = io_timeout(need()?)?;
            plan.give_up = Some(plan.fs.timing.io_timeout());
        }
        "fence_command" => plan.fs.fence.command = Some(fence_command(need()?)?),
        "hints" => plan.fs.hints = Some(hints(need()?)?),
        // The node works in another directory.
        "log" => plan.log = Some(std::path::absolute(need()?)?),
        "log_format" => {
            let format = LineFormat::parse(need()?);
            plan.log_format =
                format.with_context(|| format!("option {option}: not text or json"))?;
        }
        "metrics" => plan.metrics = Some(Address::parse(need()?)?),
        "device_timeout" => {
            let time = asker::seconds(need()?);
            plan.device_timeout = time.with_context(|| format!("option {option}"))?;
        }
        "devices" => plan.devices = sources::split(need()?),
        _ => return Ok(plan.fuse.apply(option)?),
    }
    Ok(true)
}

/// Takes in an option that has no value; false if it is none of these. With a value it is not
/// known: `degraded=no` must not mean `degraded`.
fn apply_switch(plan: &mut Plan, key: &str) -> Result<bool> {
    match key {
        "ro" | "rw" => {
            plan.fs.read_only = key == "ro";
            plan.fuse.read_only = key == "ro";
        }
        "strictatime" => {
            bail!(
                "option strictatime: access times change when a program sets them, not by reading"
            )
        }
        "remount" => bail!("{ONLY_REMOUNT}"),
        "discard" => plan.fs.discard = true,
        "nodiscard" => plan.fs.discard = false,
        "degraded" => plan.degraded = true,
        "fence_reset" => plan.fs.fence.reset = true,
        _ => return Ok(false),
    }
    Ok(true)
}

/// A size of something in memory: at least `least`, and no more than this machine has.
fn memory(key: &str, text: &str, least: Bytes) -> Result<Bytes> {
    let size = Bytes(size::parse(text).map_err(|e| anyhow::anyhow!("option {key}: {e}"))?);
    let most = memory_here();
    if size < least || size > most {
        let (least, most) = (size::show(least.get()), size::show(most.get()));
        bail!("option {key}={text}: not between {least} and the {most} that this machine has");
    }
    Ok(size)
}

/// Memory of this machine.
fn memory_here() -> Bytes {
    let info = rustix::system::sysinfo();
    Bytes(info.totalram.saturating_mul(u64::from(info.mem_unit.max(1))))
}

/// Seconds; from them come all timers of membership.
pub(super) fn io_timeout(text: &str) -> Result<Timing> {
    timing_of(text).with_context(|| {
        let (min, max) = (Timing::MIN.as_secs(), Timing::MAX.as_secs());
        format!("option io_timeout: {min} to {max} seconds")
    })
}

/// The plan with the pool's own `io_timeout`, if none was given.
fn with_pool_timing(mut plan: Plan, pool: &Pool) -> Plan {
    if plan.give_up.is_none()
        && let Some(timing) = timing(&pool.label().properties)
    {
        plan.fs.timing = timing;
        plan.give_up = Some(timing.io_timeout());
    }
    plan
}

/// The pool's own `io_timeout`, by the first device that has a label of it.
fn labelled_timing(devices: &[Arc<dyn Device>]) -> Option<Timing> {
    let properties =
        |device: &Arc<dyn Device>| Some(Found::read(device.clone()).newest()?.properties.clone());
    timing(&devices.iter().find_map(properties)?)
}

/// By which ways other nodes are heard.
fn hints(text: &str) -> Result<HintsBy> {
    let Some(at) = text.strip_prefix("tcp:") else {
        return match text {
            "unix" => Ok(HintsBy::Unix),
            "none" => Ok(HintsBy::None),
            _ => bail!("option hints: {text}: not tcp:ADDRESS[:PORT], unix or none"),
        };
    };
    let bare = at.trim_start_matches('[').trim_end_matches(']').parse().ok();
    let whole = || bare.map(|ip: IpAddr| SocketAddr::new(ip, 0));
    let at: SocketAddr = at.parse().ok().or_else(whole).with_context(|| {
        format!("option hints: {at}: not ADDRESS[:PORT] (an IPv6 address with a port in [])")
    })?;
    if at.ip().is_unspecified() || at.ip().is_multicast() {
        bail!("option hints: {}: give the address by which other hosts reach this one", at.ip());
    }
    Ok(HintsBy::Tcp(at))
}

/// It will be needed when there is no time to find out that it is not there.
fn fence_command(text: &str) -> Result<PathBuf> {
    let path = PathBuf::from(text);
    let found =
        std::fs::metadata(&path).with_context(|| format!("option fence_command: {text}"))?;
    let may_run = found.is_file() && found.permissions().mode() & 0o111 != 0;
    if !path.is_absolute() || !may_run {
        bail!("option fence_command: {text}: not the absolute path of a program");
    }
    Ok(path)
}

/// The file of the option `log`.
fn log_file(path: &Path) -> Result<File> {
    let opened = File::options().create(true).append(true).open(path);
    opened.with_context(|| format!("option log: {}", path.display()))
}

/// Mounts and serves until unmounted.
fn serve(plan: Plan, args: &Args) -> Result<ExitCode> {
    let log = plan.log.as_deref().map(log_file).transpose()?;
    let metrics = plan.metrics.as_ref().map(metrics::Server::bind).transpose()?;
    // Locks and the heartbeat are on the devices: a node that changes no file writes all the same.
    // Devices that grow, or come back, are opened again by their names, from another directory.
    answers::wait_for(plan.device_timeout);
    if let Some(time) = plan.give_up {
        bounded::give_up_silent(time);
    }
    let (pool, paths, protected) = assembled(&plan)?;
    log::of_pool(&pool.info().name);
    let plan = with_pool_options(plan, (&pool, &paths), &args.options)?;
    let own = pool.label().properties.get(MOUNT_OPTIONS).cloned();
    let options: Vec<_> = own.into_iter().chain(noted(&args.options)).collect();
    let plan = with_pool_timing(plan, &pool);
    let name = pool.info().name.clone();
    let (plan_dir, patience) = (plan.fs.mount_point.clone(), plan.fs.timing.fence_after());
    let on_signal = UnmountOnSignal::watch(&plan_dir, args.ready, plan.log.clone())?;
    let session = Session::mount(args.shown_as.as_ref().unwrap_or(&name), plan.fuse)?;
    on_signal.mounted();
    let mount = if protected { Fs::mount_protected } else { Fs::mount };
    let fs = match mount(pool, plan.fs, session.kernel_cache()) {
        Ok(fs) => fs,
        Err(e) => {
            session.abort();
            return Err(e.into());
        }
    };
    log::of_node(fs.life().slot);
    let holds = Holds::of(&fs);
    let guard = Guard::start(&plan_dir);
    let begun = Instant::now();
    let node = Node { fs: fs.clone(), requests: session.counters(), begun, service: None };
    let neighbours = fs.clone();
    let neighbours = left_behind::LeftBehindWatch::start(move || neighbours.has_silent_neighbour());
    let note = mounts::Note::begin();
    let control = Control::serve(&node, &note);
    note.write(&plan_dir, &name, (&plan.devices, &options));
    begin_log(log, plan.log_format, args.ready)?;
    on_signal.serves();
    let metrics = metrics.and_then(|server| served_metrics(server, &node));
    drop(node);
    say_mounted(&fs, &plan_dir, args);
    let served = session.serve(fs.clone());
    on_signal.over();
    if !args.ready {
        service::leaving();
    }
    drop(control);
    drop(metrics);
    drop(neighbours);
    let withdrawn = fs.withdrawn();
    let last_word = note.last_word();
    let life = fs.life();
    let left = fs.unmount_telling(&|awaited| last_word.say_wait(awaited));
    let for_later = fs.left_for_later();
    drop(note);
    drop(holds);
    drop(guard);
    drop(fs);
    let given_back =
        left.is_err() && !protected && give_slot_back(args, (&paths, &plan_dir), (life, patience));
    let problem = left.as_ref().err().map(|error| {
        let why = withdrawn.map(|why| format!("this node has withdrawn: {why}"));
        problem(&why.unwrap_or_else(|| error.to_string()), life.slot, given_back)
    });
    last_word.say(&MountEnd { problem, left: for_later });
    served?;
    left?;
    tracing::info!(pool = name, dir = %plan_dir.display(), "unmounted");
    Ok(ExitCode::SUCCESS)
}

/// What it means that a node did not leave in order, for whoever has unmounted it.
fn problem(why: &str, slot: NodeId, given_back: bool) -> String {
    let slot = if given_back {
        "What it had in its journal is in place, and its slot is free".to_owned()
    } else {
        format!("Node slot {slot} stays taken until another node, or the next mount, recovers it")
    };
    format!("{why}. {slot}; what no program had made durable (fsync) may be lost")
}

/// The pool, the paths of its devices, and whether some of them can only be read.
fn assembled(plan: &Plan) -> Result<(Pool, Vec<PathBuf>, bool)> {
    let paths = sources::members(&plan.devices)?;
    let paths: Vec<_> = paths.iter().map(|p| sources::absolute(p)).collect::<Result<_>>()?;
    limits::suffice(plan.need(&paths))?;
    let open = || {
        if plan.fs.read_only {
            return sources::open_as_can_be(&paths);
        }
        Ok((sources::open_devices(&paths, false)?, false))
    };
    let (mut devices, mut protected) = open()?;
    if plan.give_up.is_none()
        && let Some(timing) = labelled_timing(&devices)
    {
        // A device has its bound from when it is opened.
        bounded::give_up_silent(timing.io_timeout());
        drop(devices);
        (devices, protected) = open()?;
    }
    let assemble = if plan.degraded { Pool::assemble_degraded } else { Pool::assemble };
    let pool = assemble(devices).inspect(history::keep)?;
    answers::wait_for(MEMBER_TIME);
    copies::refuse(&pool)?;
    Ok((pool, paths, protected))
}

/// Begins to serve metrics. The mount works without them.
fn served_metrics(server: metrics::Server, node: &Node) -> Option<metrics::Socket> {
    let served = server.serve(node);
    served.inspect_err(|error| tracing::warn!("no metrics: {error:#}")).ok().flatten()
}

/// Tells the log, and systemd where it waits for that, that the mount serves.
fn say_mounted(fs: &Fs, dir: &Path, args: &Args) {
    let pool = fs.pool().info().name.clone();
    let members = fs.pool().label().members;
    let failed = members.iter().filter(|m| m.state == MemberState::Failed).count();
    let (node, place) = (fs.life().slot.get(), dir.display());
    tracing::info!(pool, dir = %place, node, members = members.len(), "mounted");
    if failed > 0 {
        tracing::warn!(pool, failed, "mounted without members that have failed: `braid replace`");
    }
    if !args.ready {
        service::ready(&pool, dir);
    }
}

/// Has the slot of this node freed, which has withdrawn: whatever made it do so may be over. By a process of
/// its own, which can end what this one may still have under way at a target. Not for longer than others
/// take to recover the node. Whether it is free.
fn give_slot_back(
    args: &Args,
    (devices, dir): (&[PathBuf], &Path),
    (life, patience): (Life, Duration),
) -> bool {
    // By names that hold in any directory.
    let named = each(&args.options).filter(|o| o.starts_with("devices=")).map(str::to_owned);
    let freed = started_again(args, &named.collect::<Vec<_>>()).and_then(|mut command| {
        command.args(["--free-slot", &format!("{}:{}", life.slot, life.incarnation.get())]);
        let words = devices.iter().map(PathBuf::as_path).chain([dir]);
        let words: Vec<String> = words.map(|word| word.display().to_string()).collect();
        let (words, secrets) = braid_pool::device::without_secrets(&words);
        command.envs(secrets).arg("--").args(words);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let ended = ends_within(&child, patience);
        if !matches!(ended, Ok(true)) {
            child.kill().ok();
        }
        Ok(child.wait()?.success() && ended?)
    });
    let freed = freed.unwrap_or_else(|error| {
        tracing::warn!("{error:#}");
        false
    });
    if !freed {
        tracing::warn!(
            "node slot {} stays taken until another node, or the next mount, recovers it",
            life.slot
        );
    }
    freed
}

fn ends_within(child: &Child, time: Duration) -> Result<bool> {
    let pid = rustix::process::Pid::from_child(child);
    let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    Ok(rustix::event::poll(&mut fds, Some(&time.try_into()?))? != 0)
}

/// What [`give_slot_back`] starts.
fn free_slot(plan: Plan, life: &str) -> Result<ExitCode> {
    let (slot, incarnation) = life.split_once(':').context("SLOT:LIFE")?;
    let life = Life { slot: NodeId(slot.parse()?), incarnation: Incarnation(incarnation.parse()?) };
    let devices = sources::open_devices(&sources::resolve(&plan.devices)?, false)?;
    if braid_fs::give_slot_back(Pool::assemble(devices)?, life, plan.fs)? {
        tracing::info!("what it had in its journal is in place, and its slot is free again");
    }
    Ok(ExitCode::SUCCESS)
}

/// Of the C library's allocator.
const ARENAS_MAX: &str = "MALLOC_ARENA_MAX";

/// Starts this program again in the background and waits for its word.
fn start_daemon(args: &Args, leave_out: &[String]) -> Result<ExitCode> {
    let mut command = started_again(args, leave_out)?;
    // The allocator keeps what it once had for each of its arenas, and makes eight per processor:
    // most of a node's memory would be nobody's.
    if std::env::var_os(ARENAS_MAX).is_none() {
        command.env(ARENAS_MAX, "2");
    }
    command.args(["--foreground", "--ready"]);
    if let Some(text) = &args.shown_as {
        command.arg("--shown-as").arg(text);
    }
    // What a command line says everybody can read, as long as the node runs.
    let (words, secrets) = braid_pool::device::without_secrets(&args.words);
    command.envs(secrets).arg("--").args(words);
    begin_in_background(args, command)
}

/// Whether an option is one of `braid mount`.
#[cfg(test)]
pub(super) fn is_known(option: &str) -> bool {
    let parsed = parse(&["pool".to_owned()], PathBuf::from("/mnt"), &[option.to_owned()]);
    parsed.is_ok_and(|(_, unknown)| unknown.is_empty()) || mount_remote::is_known(option)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(option: &str) -> Result<(Plan, Vec<String>)> {
        parse(&["pool".to_owned()], PathBuf::from("/mnt"), &[option.to_owned()])
    }

    #[test]
    fn times_of_access_by_reading_are_refused_and_named() {
        let refused = parsed("strictatime").unwrap_err().to_string();
        assert!(refused.contains("strictatime") && refused.contains("not by reading"), "{refused}");
        for option in ["atime", "relatime", "noatime"] {
            parsed(option).unwrap();
        }
    }

    #[test]
    fn values_that_make_no_sense_are_refused_and_named() {
        for option in [
            "cache=1",
            "cache=0",
            "cache=4095K",
            "cache=900T",
            "cache",
            "cache=",
            "cache=-1",
            "dirty=1",
            "dirty=4K",
            "dirty=900T",
            "locks=0",
            "locks=1",
            "locks=18446744073709551615",
            "locks=many",
            "memory=1",
            "memory=900T",
            "memory=",
            "commit=0",
            "commit=301",
            "commit=4294967296",
            "commit=1s",
            "slot=1024",
            "slot=-1",
            "slot=65536",
            "io_timeout=0",
            "io_timeout=inf",
            "max_write=1",
            "read_ahead=9G",
            "workers_max=0",
            "background_max=0",
        ] {
            let said = parsed(option).map(|(_, unknown)| unknown).unwrap_err().to_string();
            let key = option.split('=').next().unwrap();
            assert!(said.contains(key), "{option}: {said}");
        }
    }

    #[test]
    fn a_switch_with_a_value_is_no_switch() {
        for option in ["degraded=no", "ro=0", "rw=1", "discard=no", "fence_reset=0", "remount=1"] {
            assert_eq!(parsed(option).unwrap().1, [option]);
        }
        assert!(parsed("degraded").unwrap().0.degraded);
        assert!(parsed("ro").unwrap().0.fs.read_only);
    }

    #[test]
    fn values_that_make_sense_are_taken() {
        let fs = |option| parsed(option).unwrap().0.fs;
        assert_eq!(fs("cache=8M").metadata_cache, Bytes(8 << 20));
        assert_eq!(fs("dirty=64M").dirty_max, Bytes(64 << 20));
        assert_eq!(fs("locks=1000").locks_max, 1000);
        assert_eq!(fs("commit=300").commit_interval, Duration::from_mins(5));
        assert_eq!(fs("slot=1023").slot, Some(NodeId(1023)));
        // In any order: the whole first, then its parts.
        assert_eq!(fs("cache=16M,memory=64M").metadata_cache, Bytes(16 << 20));
    }

    #[test]
    fn what_a_node_has_may_be_said_again_and_nothing_else() {
        let noted = ["commit=7,nodiscard".to_owned(), "slot=3".to_owned()];
        for option in ["commit=7", "slot=3", "defaults", "_netdev", "x-y=z", "nodiscard", "user=7"]
        {
            assert_eq!(changes(&noted, option).unwrap(), Some(false), "{option}");
        }
        for option in ["commit=8", "slot=4", "discard", "cache=8M", "io_timeout=5"] {
            assert_eq!(changes(&noted, option).unwrap(), Some(true), "{option}");
        }
        assert_eq!(changes(&noted, "rubbish").unwrap(), None);
        assert!(changes(&noted, "commit=0").is_err());
        let noted = ["retry=7".to_owned()];
        assert_eq!(mount_remote::changes(&noted, "retry=7").unwrap(), Some(false));
        assert_eq!(mount_remote::changes(&noted, "retry=8").unwrap(), Some(true));
    }
}
