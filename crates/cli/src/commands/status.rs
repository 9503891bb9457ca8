//! `braid status`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use braid_format::label::{Label, Member, MemberState};
use braid_format::node::SlotDamage;
use braid_format::{Bytes, MemberIndex, NodeId};
use braid_fs::ClusterView;
use braid_fs::lock::NodeView;
use braid_pool::device::answers;
use braid_pool::layout::Facts;
use braid_pool::{MemberInfo, PoolInfo, device};
use serde_json::json;

use crate::commands::{status_io, status_remote, status_services};
use crate::control::health::{Health, Lost, MemberFacts, PoolFacts, REPAIR as ADVICE};
use crate::control::history::utc;
use crate::control::nodes::{WITHDRAWN, state};
use crate::control::{self, MemberView, View};
use crate::pools::properties::COMMENT;
use crate::pools::{sources, topology};
use crate::process::asker::Patience;
use crate::process::mounts::{self, Mount};
use crate::process::others;
use crate::terminal::{
    answer::{self, say},
    size, ui,
};

/// Show mounts of this host, or a pool: how it is, in one line, then space, members, nodes.
///
/// The first line says OK, FULL SOON, SLOW, DEGRADED, DAMAGED, FULL, FROZEN, NODE SILENT, MEMBER SILENT or
/// WITHDRAWN, what that means, and what to do. If several are so, the worst comes first and a line for each other follows.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool's name, the directory where it is mounted, or all of its devices (default: what is
    /// mounted on this host)
    #[arg(value_name = "NAME|DEVICE|DIR")]
    sources: Vec<String>,
    /// Show the pool's topology: how its members are put together
    #[arg(long)]
    topology: bool,
    /// Show what the nodes mounted on this host (of a pool, on a directory, or all) have issued to
    /// each member: counts, bytes and sizes of requests
    #[arg(long, conflicts_with = "topology")]
    io: bool,
    #[command(flatten)]
    patience: Patience,
}

/// Behind the name of a member that was not found.
pub(super) const MISSING: &str = " (missing)";

/// What there is to say of a pool.
struct Seen {
    info: Arc<PoolInfo>,
    label: Label,
    cluster: ClusterView,
    /// What a node on this host says, if the user named one. It is newer than what is on the
    /// members.
    node: Option<View>,
    /// The nodes on this host, if none of them answers.
    unanswering: Vec<Mount>,
    /// Devices that do not answer, for how many seconds, and whether the user, or who mounted it, named them.
    silent: Vec<(PathBuf, u64, bool)>,
    /// Members that are offline, and since when, as far as the pool's history says.
    offline: Vec<(MemberIndex, String)>,
}

/// Runs it. Looking changes nothing, and needs no mount.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.io {
        status_io::show(&args.sources)?;
        return Ok(ExitCode::SUCCESS);
    }
    args.patience.begin();
    let mounts = mounts::mounts();
    let (remotes, services) = (mounts::remotes(), mounts::services());
    if status_remote::is_shown(&args.sources, &remotes) {
        return Ok(ExitCode::SUCCESS);
    }
    let nodes: Vec<Mount> = mounts.iter().chain(&services).cloned().collect();
    if !nodes.iter().any(|node| args.sources.contains(&node.pool)) {
        others::refuse(&args.sources)?;
    }
    let Meant { sources, node, unanswering } = meant(args, &nodes)?;
    let seen = if sources.is_empty() {
        None
    } else {
        // Without a member that answers nothing it may be too little.
        let pool = sources::open_degraded(&sources, true).inspect_err(|_| {
            node.iter().filter(|_| !answer::is_json()).for_each(show_node_health);
        });
        let pool = pool.map_err(|why| explained(args, why))?;
        let silent = silent_of(&sources);
        let (info, label) = (pool.info().clone(), pool.label());
        if args.topology && !answer::is_json() {
            topology::print(&label, &paths(&info));
            status_io::print_slow(&info.name, &nodes);
            return Ok(ExitCode::SUCCESS);
        }
        let offline = pool.offline_since().into_iter();
        let offline = offline.map(|(member, time)| (member, utc(time))).collect();
        let mut cluster = braid_fs::inspect(pool)?;
        if let Some(space) = node.as_ref().and_then(|n| n.space) {
            (cluster.size, cluster.free) = (Bytes(space.size), Bytes(space.free));
            cluster.inodes = space.inodes;
        }
        Some(Seen { info, label, cluster, node, unanswering, silent, offline })
    };
    if answer::is_json() {
        let state = |health: Option<Health>| health.map(|h| h.state());
        let of_pool = |m: &Mount| seen.as_ref().is_none_or(|seen| seen.info.name == m.pool);
        let mounts: Vec<Mount> = mounts.into_iter().filter(of_pool).collect();
        let services = services.iter().filter(|s| of_pool(s)).map(status_services::json);
        answer::add("services", services.collect::<Vec<_>>());
        let mounts: Vec<_> = mounts
            .iter()
            .zip(healths(&mounts))
            .map(|(m, health)| {
                let health = state(health);
                json!({"pid": m.pid, "pool": m.pool, "mount_point": m.mount_point, "health": health})
            })
            .collect();
        let pool = seen.as_ref().map(as_json);
        answer::add("mounts", mounts);
        answer::add("remote_mounts", remotes.iter().map(status_remote::json).collect::<Vec<_>>());
        answer::add("pool", pool);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(seen) = &seen {
        show(seen);
        let services = services.iter().filter(|service| service.pool == seen.info.name);
        services.for_each(status_services::show);
    } else if nodes.is_empty() && remotes.is_empty() {
        let others = others::besides();
        say!("nothing is mounted on this host{others}; name a pool to see it");
    } else {
        list(&nodes, &remotes);
    }
    Ok(ExitCode::SUCCESS)
}

/// A line for each node and each mount from a server.
fn list(nodes: &[Mount], remotes: &[Mount]) {
    let mut table = ui::table(&["pool", "health", "mounted on", "process"]);
    for (node, health) in nodes.iter().zip(healths(nodes)) {
        let health = health.map_or("does not answer", |health| health.state().name());
        if node.is_service {
            table.add_row(status_services::row(node, health));
        } else {
            let dir = node.mount_point.display().to_string();
            table.add_row([node.pool.clone(), health.to_owned(), dir, node.pid.to_string()]);
        }
    }
    table.add_rows(remotes.iter().map(status_remote::row));
    say!("{table}");
}

/// How the pools of mounts are, as their nodes say.
fn healths(mounts: &[Mount]) -> Vec<Option<Health>> {
    control::views(mounts).into_iter().map(|view| view?.health).collect()
}

/// Why a pool cannot be looked at, if another user has it mounted.
fn explained(args: &Args, why: anyhow::Error) -> anyhow::Error {
    match args.sources.as_slice() {
        [one] => others::explained(one, why),
        _ => why,
    }
}

/// Devices that were asked something and have not answered.
fn silent_of(sources: &[String]) -> Vec<(PathBuf, u64, bool)> {
    let named = |path: &Path| sources.iter().any(|source| Path::new(source) == path);
    let silent = answers::found_silent().into_iter();
    silent.map(|(path, time)| (path.clone(), time.0.as_secs(), named(&path))).collect()
}

/// What is looked at.
#[derive(Default)]
struct Meant {
    /// The devices that are opened.
    sources: Vec<String>,
    /// What a node of this host says.
    node: Option<View>,
    /// The nodes of this host, if none of them answers.
    unanswering: Vec<Mount>,
}

/// What to open. A directory means what is mounted there. No name, with `--topology`, means the one
/// pool that is mounted. With what its node says of it.
fn meant(args: &Args, mounts: &[Mount]) -> Result<Meant> {
    let named = || Meant { sources: args.sources.clone(), ..Meant::default() };
    match (args.sources.as_slice(), mounts) {
        ([], [first, rest @ ..]) if args.topology => {
            if let Some(other) = rest.iter().find(|m| m.pool != first.pool) {
                bail!("pools {} and {} are mounted on this host: name one", first.pool, other.pool);
            }
            Ok(devices_of(mounts)?.unwrap_or_default())
        }
        ([one], _) => {
            let nodes = |meant: &dyn Fn(&&Mount) -> bool| -> Vec<Mount> {
                mounts.iter().filter(meant).cloned().collect()
            };
            let mut meant = nodes(&|m| status_io::is_on(m, one));
            if meant.is_empty() && !Path::new(one).exists() {
                meant = nodes(&|m| m.pool == *one);
            }
            Ok(devices_of(&meant)?.unwrap_or_else(named))
        }
        _ => Ok(named()),
    }
}

/// The devices of a pool as one of these nodes that has it has them now: members come and go. If none
/// answers: as it was mounted.
fn devices_of(mounts: &[Mount]) -> Result<Option<Meant>> {
    let Some((_, view)) = control::answering(mounts, control::LOOK_TIME)? else {
        let unanswering = mounts.to_vec();
        let as_mounted = |first: &Mount| first.sources.clone();
        let sources = mounts.first().map(as_mounted);
        return Ok(sources.map(|sources| Meant { sources, node: None, unanswering }));
    };
    // A failed member may not answer, and its labels do not count.
    let failed = topology::state_name(MemberState::Failed);
    let silent = |m: &MemberView| view.silent.iter().any(|(member, ..)| *member == m.index);
    let out = |m: &MemberView| m.state == failed || m.state == topology::OFFLINE;
    let answers = view.members.iter().filter(|m| !out(m) && !silent(m));
    let paths = answers.map(|m| m.path.clone());
    let paths = paths.filter(|path| device::exists(path.as_ref())).collect();
    Ok(Some(Meant { sources: paths, node: Some(view), unanswering: Vec::new() }))
}

fn paths(info: &PoolInfo) -> Vec<String> {
    info.members.iter().map(|m| m.path.clone()).collect()
}

fn show(seen: &Seen) {
    let Seen { info, label, cluster, .. } = seen;
    seen.health().lines().iter().for_each(|line| say!("{line}"));
    say!(
        "pool {} ({}), epoch {}: {}, stripe unit {}, block size {}",
        info.name,
        info.uuid,
        info.epoch,
        size::show(info.size.get() - info.holes.get()),
        size::show(info.stripe_unit.get()),
        size::show(cluster.block_size.get()),
    );
    say!(
        "space: {} free of {}; {} inodes",
        size::show(cluster.free.get()),
        size::show(cluster.size.get()),
        cluster.inodes
    );
    if info.redundant {
        say!("redundancy: {}", topology::survives(Facts::of(label).tolerates));
    }
    if let Some(locks) = &cluster.locks {
        say!("locks: {locks}");
    }
    if let Some(comment) = label.properties.get(COMMENT) {
        say!("comment: {comment}");
    }
    show_members(seen);
    show_nodes(seen);
    if let Some(node) = &seen.node {
        node.work().iter().for_each(|line| say!("{line}"));
        node.waits.iter().for_each(|wait| say!("{wait}"));
        show_damaged(node);
    }
}

impl Seen {
    /// A member as the node that was meant tells of it.
    fn told(&self, m: &MemberInfo) -> Option<(&View, &MemberView)> {
        let node = self.node.as_ref()?;
        let member = node.members.iter().find(|v| v.uuid == m.uuid.to_string())?;
        Some((node, member))
    }
    /// Where a member is, as far as is known.
    fn path<'a>(&'a self, m: &'a MemberInfo) -> &'a str {
        let path = self.told(m).map_or(&m.path, |(_, told)| &told.path);
        path.strip_suffix(MISSING).unwrap_or(path)
    }
    /// What a member is.
    fn state(&self, m: &MemberInfo) -> String {
        if self.is_silent(m) {
            return "does not answer".into();
        }
        match self.told(m) {
            Some((_, told)) => told.state.clone(),
            None if self.is_missing(m) => "missing".into(),
            None => {
                let member = self.label.members.get(usize::from(m.index.get()));
                member.map_or_else(String::new, |m| topology::member_state(m).to_owned())
            }
        }
    }
    /// The same, and what is done for it.
    fn doing(&self, m: &MemberInfo) -> String {
        let doing = match self.told(m) {
            Some((node, told)) if !self.is_silent(m) => node.state_of(told),
            _ => self.state(m),
        };
        match self.offline_since(m) {
            Some(time) => format!("{doing} since {time}"),
            None => doing,
        }
    }
    /// Since when it is offline, if that is what it is, and known.
    fn offline_since(&self, m: &MemberInfo) -> Option<&str> {
        let known = self.offline.iter().find(|(member, _)| *member == m.index);
        known.filter(|_| self.state(m) == topology::OFFLINE).map(|(_, time)| time.as_str())
    }
    /// Whether it answers nothing, and is waited for.
    fn is_silent(&self, m: &MemberInfo) -> bool {
        self.silence(m).is_some_and(|(_, given_up)| !given_up)
    }
    /// Whether it was not found, and no label says that it failed.
    fn is_missing(&self, m: &MemberInfo) -> bool {
        let member = self.label.members.get(usize::from(m.index.get()));
        member.is_some_and(|m| m.state == MemberState::Failed && m.state_epoch > self.label.epoch)
    }
    /// Whether a member answers nothing: for how many seconds, and whether the node has given it up.
    fn silence(&self, m: &MemberInfo) -> Option<(u64, bool)> {
        if let Some((node, told)) = self.told(m)
            && let Some(silent) = node.silent.iter().find(|(member, ..)| *member == told.index)
        {
            return Some((silent.1, silent.2));
        }
        // The label has the name by which it was opened last.
        let named: Vec<_> = self.silent.iter().filter(|(.., named)| *named).collect();
        let by_path = self.silent.iter().find(|(path, ..)| path.as_os_str() == self.path(m));
        let alone = named.first().copied().filter(|_| named.len() == 1 && self.is_missing(m));
        by_path.or(alone).map(|(_, time, _)| (*time, false))
    }
    /// How the pool is: as the node says, if one does, and what was found out just now.
    fn health(&self) -> Health {
        let said = self.node.as_ref().and_then(|node| node.health.clone());
        said.map_or_else(|| Health::of(&self.facts()), |said| said.and(&self.silent_now()))
    }
    /// Of members that the node does not find silent yet, or not at all.
    fn silent_now(&self) -> PoolFacts {
        let known = |m: &MemberInfo| {
            let silent = self.node.as_ref().map(|node| &node.silent).into_iter().flatten();
            silent.into_iter().any(|(member, ..)| *member == m.index.get())
        };
        let members = self.info.members.iter().filter(|m| !known(m)).filter_map(|m| {
            let silent = Some(self.silence(m)?);
            let (index, path) = (m.index.get(), self.path(m).to_owned());
            Some(MemberFacts { index, path, silent, ..MemberFacts::default() })
        });
        PoolFacts {
            name: self.info.name.clone(),
            members: members.collect(),
            ..PoolFacts::default()
        }
    }
    fn is_offline(&self, index: MemberIndex) -> bool {
        self.label.members.get(usize::from(index.get())).is_some_and(Member::is_offline)
    }
    /// What the devices say.
    fn facts(&self) -> PoolFacts {
        let suspected = |index: MemberIndex| {
            let in_use = |m: &Member| m.suspected && m.state != MemberState::Failed;
            self.label.members.get(usize::from(index.get())).is_some_and(in_use)
        };
        let any_but =
            |index| self.info.members.iter().any(|m| m.index != index && suspected(m.index));
        let members = self.info.members.iter().map(|m| {
            let state = self.label.members.get(usize::from(m.index.get())).map(|m| m.state);
            let lost = match state {
                _ if self.is_missing(m) => Lost::Missing,
                _ if self.is_offline(m.index) => Lost::Offline,
                Some(MemberState::Failed) => Lost::Failed,
                _ => Lost::No,
            };
            MemberFacts {
                index: m.index.get(),
                path: self.path(m).to_owned(),
                lost,
                used: self.label.bytes_on(m.index).get() > 0,
                filling: state == Some(MemberState::Rebuilding),
                suspected: suspected(m.index),
                others_suspected: any_but(m.index),
                silent: self.silence(m),
                ..MemberFacts::default()
            }
        });
        let survives = || topology::survives(Facts::of(&self.label).tolerates);
        PoolFacts {
            name: self.info.name.clone(),
            survives: self.info.redundant.then(survives),
            members: members.collect(),
            nodes: self.cluster.nodes.clone(),
            space: Some((self.cluster.size.get(), self.cluster.free.get())),
            unanswering: (self.unanswering.iter())
                .map(|mount| (mount.mount_point.display().to_string(), mount.pid))
                .collect(),
            ..PoolFacts::default()
        }
    }
}

fn show_members(seen: &Seen) {
    let Seen { info, label, .. } = seen;
    let mut members = ui::table(&["member", "device", "state", "size", "data area"]);
    for m in &info.members {
        members.add_row([
            m.index.to_string(),
            seen.path(m).to_owned(),
            seen.doing(m),
            size::show(m.size.get()),
            size::show(m.data_len.get()),
        ]);
    }
    say!("{members}");
    for m in &info.members {
        let (i, pool, path) = (m.index, &info.name, seen.path(m));
        let state = label.members.get(usize::from(i.get())).map(|m| m.state);
        let used = label.bytes_on(i).get() > 0;
        match state {
            Some(MemberState::Failed) if !used => say!(
                "member {i} ({path}) has failed and holds no data: remove it with `braid remove {pool} {i}`"
            ),
            _ => {}
        }
        if m.size.get() >= m.known.get() + Label::ALIGN.get() {
            say!(
                "member {i} ({path}) has {} more than when it joined: `braid grow` lets the pool use it",
                size::show(m.size.get() - m.known.get())
            );
        }
    }
}

fn show_nodes(seen: &Seen) {
    let Seen { cluster, node, .. } = seen;
    if cluster.nodes.is_empty() {
        say!("no node has it mounted ({} may at once)", cluster.node_slots);
        return;
    }
    let mut nodes = ui::table(&["node", "state", "host", "process", "mounted on"]);
    for n in &cluster.nodes {
        nodes.add_row([
            n.life.slot.to_string(),
            word(node.as_ref(), n).to_owned(),
            n.host.clone(),
            n.pid.to_string(),
            n.mount_point.clone(),
        ]);
    }
    say!("{nodes}");
    for n in &cluster.nodes {
        if let Some(why) = &n.unreadable {
            say!(
                "the slot of node {} cannot be read ({why}): no node can join with this slot, and locks held by its last node stay held; {ADVICE}",
                n.life.slot
            );
        }
        if let Some(damage) = n.damage {
            say!("{}", damaged(n.life.slot, damage));
        }
    }
}

/// The word for what a node is; of the one that was asked, also that it has withdrawn.
fn word(asked: Option<&View>, n: &NodeView) -> &'static str {
    let own = asked.is_some_and(|v| v.withdrawn.is_some() && v.node == Some(n.life.slot.get()));
    if own { WITHDRAWN } else { state(n) }
}

fn show_node_health(view: &View) {
    view.health.iter().flat_map(Health::lines).for_each(|line| say!("{line}"));
}

fn show_damaged(view: &View) {
    if view.damaged.is_empty() {
        return;
    }
    say!("damaged metadata was found; what needs it gives EIO; {ADVICE}:");
    view.damaged.iter().for_each(|line| say!("  {line}"));
}

/// What keeps a dead node from being recovered, and what to do about it.
fn damaged(slot: NodeId, damage: SlotDamage) -> String {
    let lost = if damage.replayed {
        "space that it was using is not given out"
    } else {
        "what it held locked gives EIO"
    };
    format!(
        "node {slot} is dead and cannot be recovered: its {} is damaged (block {}); {lost}; {ADVICE}",
        damage.part.name(),
        damage.block
    )
}

fn silent_as_json(view: &View) -> Vec<serde_json::Value> {
    let silent = view.silent.iter();
    silent.map(|(m, s, g)| json!({"member": m, "seconds": s, "given_up": g})).collect()
}

fn as_json(seen: &Seen) -> serde_json::Value {
    let Seen { info, label, cluster, .. } = seen;
    json!({
        "name": info.name,
        "health": seen.health(),
        "uuid": info.uuid.to_string(),
        "epoch": info.epoch.get(),
        "size": info.size.get() - info.holes.get(),
        "stripe_unit": info.stripe_unit.get(),
        "stripe_width": info.stripe_width.get(),
        "block_size": cluster.block_size.get(),
        "fs_size": cluster.size.get(),
        "fs_free": cluster.free.get(),
        "inodes": cluster.inodes,
        "node_slots": cluster.node_slots,
        "locks": cluster.locks,
        "properties": label.properties,
        "members": info.members.iter().map(|m| json!({
            "index": m.index.get(), "path": m.path, "size": m.size.get(), "data": m.data_len.get(),
            "state": seen.state(m), "offline_since": seen.offline_since(m),
        })).collect::<Vec<_>>(),
        "nodes": cluster.nodes.iter().map(|n| json!({
            "slot": n.life.slot.get(), "incarnation": n.life.incarnation.get(),
            "state": word(seen.node.as_ref(), n),
            "host": n.host, "pid": n.pid, "mount_point": n.mount_point, "since": n.since,
            "unreadable": n.unreadable.as_ref().map(ToString::to_string),
            "damage": n.damage.map(|d| json!({
                "structure": d.part.name(), "block": d.block.get(), "replayed": d.replayed,
                "advice": ADVICE,
            })),
        })).collect::<Vec<_>>(),
        "withdrawn": seen.node.as_ref().and_then(|n| n.withdrawn.as_deref()),
        "waits": seen.node.as_ref().map_or(&[][..], |n| &n.waits),
        "silent": seen.node.as_ref().map_or_else(Vec::new, silent_as_json),
        "damaged": seen.node.as_ref().map_or(&[][..], |node| &node.damaged),
        "topology": topology::as_json(label, &paths(info)),
    })
}
