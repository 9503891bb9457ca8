//! Orders to a mounted node: one line of JSON each way, on a socket beside the mount's note.
//!
//! The socket stands in the user's private runtime directory: who may open it may do to the pool
//! whatever the mount's owner may.

use std::fmt::{self, Write as _};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use braid_format::label::MemberState;
use braid_format::{ByteOffset, MemberIndex, NodeId};
use braid_fs::lock::NodeView;
use braid_fs::{Canceller, Fill, Fs, Rebalanced, TrimRange};
use braid_pool::device::{Device, OpenOptions};
use braid_pool::{Destination, Pool, Whom};
use serde::{Deserialize, Serialize};

use crate::leaving::leave;
use crate::runtime::{self, Mount};
use crate::shape::ShapeArgs;
use crate::{issued, locks, nodes, size, topology};

/// Longest line that is read.
const LINE_MAX: u64 = 64 << 10;
/// A caller that says nothing for so long is let go.
const PATIENCE: Duration = Duration::from_secs(10);
/// A node that has not answered a quick order for so long is stopped, or hangs.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// Who only looks waits for so long, then does without what the node knows.
pub const LOOK_TIME: Duration = Duration::from_millis(1500);

/// What may be asked of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// What the pool's members are and what is being done for them.
    Members,
    /// What it has asked of each member.
    Io,
    /// The nodes, as it sees them.
    Nodes,
    /// Its locks.
    Locks {
        /// Those that other nodes took most often.
        hot: bool,
        /// Most that are told.
        lines: usize,
    },
    /// The operator's word that a node's host is off.
    Fence {
        /// Its slot.
        node: u16,
    },
    /// Take a member out.
    Fail {
        /// Which.
        member: Named,
    },
    /// Put a device in a member's place and fill it.
    Replace {
        /// The member.
        member: Named,
        /// The device's absolute path.
        device: PathBuf,
        /// Whatever is on it.
        force: bool,
    },
    /// Add a device that steps in for the next member that fails.
    Spare {
        /// The device's absolute path.
        device: PathBuf,
        /// Whatever is on it.
        force: bool,
    },
    /// Move what stands on a member to another device.
    Evacuate {
        /// The member.
        member: Named,
        /// The device's absolute path, or an unused member; none: any that fits.
        to: Option<Target>,
        /// Whatever is on it.
        force: bool,
    },
    /// End such a move.
    Stay {
        /// The member.
        member: Named,
    },
    /// Add devices, and their space.
    Add {
        /// The devices' absolute paths; none: those that the layout names.
        devices: Vec<PathBuf>,
        /// How the space is made of them.
        shape: Box<ShapeArgs>,
        /// Whatever is on them.
        force: bool,
        /// Only say what would be.
        dry_run: bool,
    },
    /// Use what devices have more than they had.
    Grow {
        /// Only say what would be.
        dry_run: bool,
    },
    /// Move file data until all parts of the pool are equally full, or end that.
    Rebalance {
        /// Begin; it is answered when it is done.
        run: bool,
    },
    /// Take a member on which nothing stands out of the pool.
    Remove {
        /// Which.
        member: Named,
    },
    /// Move what stands on a member to the rest of the pool, which becomes smaller; it is answered when
    /// it is done.
    Leave {
        /// The member.
        member: Named,
        /// Only say what would be.
        dry_run: bool,
    },
    /// End that.
    LeaveEnd,
    /// Give free space back to the devices, or end that.
    Trim {
        /// Begin; it is answered when it is done.
        run: bool,
    },
    /// Begin to read everything and heal what rotted, or end that.
    Scrub {
        /// Begin.
        run: bool,
    },
}

impl Order {
    /// Whether it is answered at once: with what the node knows, or notes down.
    const fn is_quick(&self) -> bool {
        matches!(
            self,
            Self::Members | Self::Io | Self::Nodes | Self::Locks { .. } | Self::Fence { .. }
        )
    }
}

/// Where the contents of a member go.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A new device.
    Device(PathBuf),
    /// A member of the pool on which nothing stands.
    Member(Named),
}

/// A member as it was named: places change when members come and go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Its place in the pool.
    pub place: u16,
    /// Its identity.
    pub uuid: String,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

/// A member, as told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemberView {
    /// Its place.
    pub index: u16,
    /// Its identity.
    #[serde(default)]
    pub uuid: String,
    /// Its device.
    pub path: String,
    /// What it is.
    pub state: String,
    /// Bytes of the pool's topology that stand on it.
    #[serde(default)]
    pub used: u64,
}

/// What a scrub found, as told.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ScrubView {
    /// All was read.
    pub finished: bool,
    /// Bytes read.
    pub checked: u64,
    /// Bytes healed.
    pub healed: u64,
    /// Bytes that disagree, and nothing says which is right.
    pub undecided: u64,
    /// Where: the first places, in the pool's bytes.
    pub places: Vec<u64>,
    /// The devices on which the first of these stand, and where there: the copies, or the row of parity.
    #[serde(default)]
    pub homes: Vec<Vec<(String, u64)>>,
}

/// What a node says of its pool.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct View {
    /// Whether members may be lost at all.
    pub redundant: bool,
    /// The pool's identity.
    #[serde(default)]
    pub uuid: String,
    /// It is this node that fills members.
    #[serde(default)]
    pub keeper: bool,
    /// The pool's epoch.
    pub epoch: u64,
    /// The members.
    pub members: Vec<MemberView>,
    /// The member that is being filled: place, bytes done, bytes in all.
    pub rebuilding: Option<(u16, u64, u64)>,
    /// The member that is being moved, to which, bytes copied (none yet: not known), bytes in all.
    #[serde(default)]
    pub moving: Option<(u16, u16, u64, u64)>,
    /// What is moved so that the pool becomes smaller: bytes done, bytes in all.
    #[serde(default)]
    pub leaving: Option<(u64, u64)>,
    /// The scrub under way: bytes done, bytes in all.
    pub scrubbing: Option<(u64, u64)>,
    /// Scrubs that have ended since the pool was mounted.
    pub scrubs: u64,
    /// What the last scrub found, or the one under way has so far.
    pub scrubbed: Option<ScrubView>,
    /// What went wrong last.
    pub error: Option<String>,
    /// What nobody could decide when a member was filled last.
    #[serde(default)]
    pub differed: Option<String>,
    /// The member that other nodes could not fill or move, and for people, who.
    #[serde(default)]
    pub stuck: Vec<(u16, String)>,
    /// Nodes that have kept programs here waiting for long, each for people.
    #[serde(default)]
    pub waits: Vec<String>,
    /// Members that are suspected to return garbage: number, damaged places.
    #[serde(default)]
    pub suspects: Vec<(u16, usize)>,
    /// Damaged metadata that the node has met: one line each.
    #[serde(default)]
    pub damaged: Vec<String>,
    /// Bytes of the pool.
    #[serde(default)]
    pub size: u64,
    /// How full the file system is.
    #[serde(default)]
    pub space: Option<Space>,
    /// What else there is to say of what was asked for.
    #[serde(default)]
    pub said: Option<String>,
    /// Who can take the place of a member that was to leave, and cannot leave without that.
    #[serde(default)]
    pub heir: Option<Named>,
}

/// How full a file system is, as told.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Space {
    /// Bytes for file data.
    pub size: u64,
    /// Of those, free.
    pub free: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// An answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Done(Box<View>),
    Value(serde_json::Value),
    Refused(String),
}

/// The socket of this process's mount; gone when it is dropped.
#[derive(Debug)]
pub struct Control {
    path: Option<PathBuf>,
}

impl Control {
    /// Begins to serve orders. Where no socket can be made the mount works all the same.
    pub fn serve(fs: &Fs) -> Self {
        let made = runtime::control_socket(std::process::id()).and_then(|path| {
            std::fs::remove_file(&path).ok();
            Ok((UnixListener::bind(&path)?, path))
        });
        match made {
            Ok((listener, path)) => {
                let fs = fs.clone();
                std::thread::spawn(move || listen(&fs, &listener));
                Self { path: Some(path) }
            }
            Err(error) => {
                tracing::warn!(%error, "no control socket");
                Self { path: None }
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            std::fs::remove_file(path).ok();
        }
    }
}

/// Serves callers as long as the process runs.
fn listen(fs: &Fs, listener: &UnixListener) {
    loop {
        // A caller that says nothing keeps nobody else waiting: each has a thread of its own.
        let taken = listener.accept().and_then(|(stream, _)| {
            let fs = fs.clone();
            std::thread::Builder::new().name("control".into()).spawn(move || {
                if let Err(error) = answer(&fs, &stream) {
                    tracing::debug!(%error, "a caller of the control socket");
                }
            })
        });
        match taken {
            Err(e) if e.kind() != std::io::ErrorKind::Interrupted => {
                tracing::warn!(error = %e, "a caller of the control socket is not served");
                // Out of descriptors, as likely as not.
                std::thread::sleep(Duration::from_millis(100));
            }
            _ => {}
        }
    }
}

fn answer(fs: &Fs, stream: &UnixStream) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(std::io::Read::take(stream, LINE_MAX)).read_line(&mut line)?;
    let done = match serde_json::from_str(&line).context("not an order") {
        Ok(Order::Io) => Ok(Answer::Value(issued::answer(fs.pool()))),
        Ok(Order::Nodes) => Ok(Answer::Value(nodes::answer(fs))),
        Ok(Order::Locks { hot, lines }) => Ok(Answer::Value(locks::answer(fs, hot, lines))),
        Ok(Order::Fence { node }) => {
            let done = fs.vouch_dead(NodeId(node)).map_err(Into::into);
            done.map(|()| Answer::Value(serde_json::Value::Null))
        }
        order => order.and_then(|o| obey(fs, o)).map(|view| Answer::Done(Box::new(view))),
    };
    let answer = done.unwrap_or_else(|e| Answer::Refused(format!("{e:#}")));
    let mut stream = stream;
    writeln!(stream, "{}", serde_json::to_string(&answer)?)?;
    Ok(())
}

fn open(path: &Path) -> Result<Arc<dyn Device>> {
    if let Some(use_) = braid_pool::device::in_use(path)? {
        bail!("{}: in use: {use_}", path.display());
    }
    Ok(braid_pool::device::open(path, OpenOptions::default())?)
}

/// Does what a node is asked for, and says how things are then.
///
/// # Errors
/// It cannot be done.
pub fn obey(fs: &Fs, order: Order) -> Result<View> {
    let (mut said, mut heir) = (None, None);
    match order {
        // A place that is named next is one of the newest epoch, not of what this node last heard of.
        Order::Members => fs.follow_pool()?,
        Order::Io | Order::Nodes | Order::Locks { .. } | Order::Fence { .. } => {
            bail!("only a node that has the pool mounted can be asked for that")
        }
        Order::Fail { member } => fs.fail_member(whom(fs, &member)?)?,
        Order::Replace { member, device, force } => {
            fs.replace_member(whom(fs, &member)?, open(&device)?, force)?;
        }
        Order::Spare { device, force } => drop(fs.add_spare(open(&device)?, force)?),
        Order::Evacuate { member, to, force } => evacuate(fs, &member, to, force)?,
        Order::Add { devices, shape, force, dry_run } => {
            said = Some(add(fs, &devices, &shape, force, dry_run)?);
        }
        Order::Grow { dry_run } => said = Some(grow(fs, dry_run)?),
        Order::Rebalance { run: true } => said = Some(rebalanced(fs, &fs.rebalance()?)),
        Order::Rebalance { run: false } => fs.stop_rebalance(),
        Order::Trim { run: true } => said = Some(trimmed(fs)?),
        Order::Trim { run: false } => fs.stop_trim(),
        Order::Stay { member } => fs.cancel_evacuation(whom(fs, &member)?)?,
        Order::Remove { member } => {
            let removed = fs.remove_member(whom(fs, &member)?)?;
            if let Some(error) = removed.unwiped {
                tracing::warn!(%error, path = removed.path, "its labels could not be wiped");
            }
        }
        Order::Leave { member, dry_run } => {
            let (text, taker) = leave(fs, whom(fs, &member)?, dry_run)?;
            (said, heir) = (Some(text), taker);
        }
        Order::LeaveEnd => fs.stop_leaving()?,
        Order::Scrub { run } => {
            if !fs.pool().info().redundant {
                bail!("nothing in this pool is mirrored or protected by parity");
            }
            fs.scrub(run);
        }
    }
    Ok(View { said, heir, ..view(fs) })
}

/// The member that was named, if it is in that place still.
fn whom(fs: &Fs, named: &Named) -> Result<Whom> {
    let label = fs.pool().label();
    let there = label.members.get(usize::from(named.place));
    let Some(there) = there.filter(|m| m.uuid.to_string() == named.uuid) else {
        bail!(
            "member {named} is another device now than when it was named: look at the members (`braid status`) and name it again; nothing was changed"
        );
    };
    // Another node may change places before it is done.
    Ok(there.uuid.into())
}

/// Adds devices; the pool as it then is, or would be, as a drawing.
fn add(
    fs: &Fs,
    devices: &[PathBuf],
    shape: &ShapeArgs,
    force: bool,
    dry_run: bool,
) -> Result<String> {
    let read = shape.read(devices)?;
    let opened = read.devices.iter().map(|p| open(p)).collect::<Result<Vec<_>>>()?;
    let options = shape.add_options(&read, &opened, force)?;
    let added =
        if dry_run { fs.plan_add(&opened, &options)? } else { fs.add_devices(&opened, &options)? };
    let paths: Vec<String> = added.info.members.iter().map(|m| m.path.clone()).collect();
    let mut text = topology::text(&added.label, &paths);
    if added.unused.get() > 0 {
        let _ =
            writeln!(text, "{} of the new devices cannot be used", size::show(added.unused.get()));
    }
    Ok(text)
}

/// How full the parts of the pool were, and are.
fn rebalanced(fs: &Fs, done: &Rebalanced) -> String {
    let block = fs.statfs().map_or(4096, |s| u64::from(s.block_size));
    let percent = |f: &Fill| {
        let mille = u128::from(f.used) * 1000 / u128::from(f.blocks.max(1));
        format!("{}.{} %", mille / 10, mille % 10)
    };
    // Parts that have left hold nothing and have room for nothing.
    let list = |fills: &[Fill]| {
        let there = fills.iter().filter(|f| f.blocks > 0);
        there.map(percent).collect::<Vec<_>>().join(", ")
    };
    format!(
        "{} moved{}; parts of the pool were full by {}, and are now by {}\n",
        size::show(done.moved * block),
        if done.finished { "" } else { ", then it was told to stop" },
        list(&done.before),
        list(&done.after)
    )
}

/// What of the pool's free space went back to the devices.
fn trimmed(fs: &Fs) -> Result<String> {
    let done = fs.trim(TrimRange::ALL, &Canceller::new())?;
    let stopped = if done.finished { "" } else { ", then it was told to stop" };
    if done.given.get() > 0 || !done.finished {
        let given = size::show(done.given.get());
        return Ok(format!("{given} of free space given back to the devices{stopped}\n"));
    }
    Ok("nothing was given back: all that is free was before, or the devices do not take it\n"
        .into())
}

/// As [`add`], over what devices have more.
fn grow(fs: &Fs, dry_run: bool) -> Result<String> {
    let reopen = |path: &str| {
        let device = braid_pool::device::open(Path::new(path), OpenOptions::default());
        device.map_err(braid_pool::PoolError::from)
    };
    // What an earlier call that was broken off has left to do.
    let before = if dry_run { 0 } else { fs.grow()? };
    let added = match if dry_run { fs.plan_grow(&reopen) } else { fs.grow_devices(&reopen) } {
        Err(braid_fs::Error::Pool(e)) if before > 0 => return Ok(format!("{e}\n")),
        added => added?,
    };
    let paths: Vec<String> = added.info.members.iter().map(|m| m.path.clone()).collect();
    Ok(topology::text(&added.label, &paths))
}

fn evacuate(fs: &Fs, named: &Named, to: Option<Target>, force: bool) -> Result<()> {
    let member = whom(fs, named)?;
    let to = match to {
        Some(Target::Device(path)) => Destination::Device { device: open(&path)?, force },
        Some(Target::Member(to)) => Destination::Member(whom(fs, &to)?),
        None => {
            let members = fs.pool().label().members.into_iter();
            let spares = members.filter(|m| m.state == MemberState::Spare).map(|m| m.uuid.into());
            let mut why = String::new();
            for spare in spares {
                match fs.evacuate_member(member, Destination::Member(spare)) {
                    Ok(_) => return Ok(()),
                    Err(e) => why = format!(" ({e})"),
                }
            }
            bail!(
                "the pool has no spare to move member {named} to{why}: name a device with --to, or let the rest of the pool have what stands on it (`braid remove`)"
            );
        }
    };
    fs.evacuate_member(member, to)?;
    Ok(())
}

/// The devices that a byte of the pool stands on, and where there.
fn homes(pool: &Pool, at: ByteOffset) -> Vec<(String, u64)> {
    let devices = pool.devices();
    let name = |member: MemberIndex| devices.get(usize::from(member.0)).map(|d| &d.info().name);
    let homes = pool.homes(at).into_iter();
    homes.filter_map(|(member, at)| Some((name(member)?.clone(), at.get()))).collect()
}

/// What a node says of its pool.
pub fn view(fs: &Fs) -> View {
    let (pool, upkeep) = (fs.pool(), fs.upkeep());
    let label = pool.label();
    let devices = pool.devices();
    let members = (0_u16..).zip(label.members.iter().zip(&devices)).map(|(index, (m, d))| {
        let path = d.info().name.clone();
        let used = label.bytes_on(MemberIndex(index)).get();
        let uuid = m.uuid.to_string();
        MemberView { index, uuid, path, state: state_name(m.state).to_owned(), used }
    });
    let found = upkeep.scrubbing.as_ref().map(|s| &s.1).or(upkeep.scrubbed.as_ref());
    View {
        redundant: pool.info().redundant,
        uuid: pool.info().uuid.to_string(),
        keeper: upkeep.turn,
        epoch: label.epoch.get(),
        members: members.collect(),
        rebuilding: upkeep.rebuilding.map(|(m, p)| (m.0, p.done.get(), p.total.get())),
        moving: pool.moving().map(|m| {
            let how_far = upkeep.moving.filter(|(now, _)| *now == m).map(|(_, p)| p);
            let (done, total) = how_far.map_or((0, 0), |p| (p.done.get(), p.total.get()));
            (m.leaving.0, m.successor.0, done, total)
        }),
        leaving: fs.leaving(),
        scrubbing: upkeep.scrubbing.as_ref().map(|(p, _)| (p.done.get(), p.total.get())),
        scrubs: upkeep.scrubs,
        scrubbed: found.map(|f| ScrubView {
            finished: f.finished,
            checked: f.checked.get(),
            healed: f.healed.get(),
            undecided: f.undecided.get(),
            homes: f.places.iter().take(crate::scrub::SHOWN_MAX).map(|p| homes(pool, *p)).collect(),
            places: f.places.iter().map(|p| p.get()).collect(),
        }),
        error: upkeep.error,
        differed: upkeep.differed,
        stuck: fs.stuck().into_iter().filter_map(stuck).collect(),
        waits: fs.waits().iter().map(ToString::to_string).collect(),
        suspects: pool.suspects().into_iter().map(|(m, n)| (m.0, n)).collect(),
        damaged: crate::status::damaged_lines(fs),
        size: pool.info().size.get() - pool.info().holes.get(),
        space: space(fs),
        said: None,
        heir: None,
    }
}

fn space(fs: &Fs) -> Option<Space> {
    let s = fs.statfs().ok()?;
    let block = u64::from(s.block_size);
    let inodes = s.files.saturating_sub(s.files_free);
    Some(Space { size: s.blocks * block, free: s.free * block, inodes })
}

fn stuck(node: NodeView) -> Option<(u16, String)> {
    let member = node.stuck?.get();
    let (slot, host, at) = (node.life.slot, node.host, node.mount_point);
    let who = format!("node {slot}, on {host} at {at}, could not fill or move member {member}");
    Some((member, format!("{who}: its log says why")))
}

/// The word for a member's state.
pub const fn state_name(state: MemberState) -> &'static str {
    match state {
        MemberState::Active => "active",
        MemberState::Failed => "failed",
        MemberState::Rebuilding => "rebuilding",
        MemberState::Spare => "spare",
        MemberState::Leaving => "leaving",
    }
}

/// The mount that a user names: by its pool, its directory, or one of its devices.
///
/// # Errors
/// There is none on this host, or several.
pub fn find(name: &str) -> Result<Mount> {
    look(name)?.with_context(|| {
        format!(
            "{name} is not mounted on this host: that is done by a node that has the pool mounted"
        )
    })
}

/// As [`find`]; `None`: it is not mounted on this host.
///
/// # Errors
/// There are several.
pub fn look(name: &str) -> Result<Option<Mount>> {
    let path = std::fs::canonicalize(name).ok();
    let named = |m: &Mount| {
        m.pool == name
            || path
                .as_ref()
                .is_some_and(|p| *p == m.mount_point || m.sources.iter().any(|s| Path::new(s) == p))
    };
    let mut found: Vec<Mount> = runtime::mounts().into_iter().filter(named).collect();
    if found.len() > 1
        && let Some(keeper) = keeper(&found)
    {
        return Ok(Some(keeper));
    }
    match (found.pop(), found.len()) {
        (mount, 0) => Ok(mount),
        (None, _) => Ok(None),
        (Some(_), n) => bail!("{name} names {} mounts: give the directory of one", n + 1),
    }
}

/// Of several nodes that have one pool mounted, the one that fills members, or else any: a pool is
/// changed for all of them. `None`: they are of different pools, or one does not say.
fn keeper(mounts: &[Mount]) -> Option<Mount> {
    let views: Vec<View> =
        mounts.iter().map(|m| order(m, &Order::Members).ok()).collect::<Option<_>>()?;
    let first = views.first()?;
    if views.iter().any(|v| v.uuid != first.uuid) {
        return None;
    }
    mounts.get(views.iter().position(|v| v.keeper).unwrap_or(0)).cloned()
}

/// Gives an order to a mounted node.
///
/// # Errors
/// The node does not answer, or refuses.
pub fn order(mount: &Mount, order: &Order) -> Result<View> {
    view_of(call(mount, order, ANSWER_TIME)?)
}

/// As [`order`], one that is answered at once, with `time` for the answer.
///
/// # Errors
/// As [`order`].
pub fn order_within(mount: &Mount, order: &Order, time: Duration) -> Result<View> {
    view_of(call(mount, order, time)?)
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
    match call(mount, order, ANSWER_TIME)? {
        Answer::Value(value) => Ok(value),
        Answer::Refused(why) => bail!("{why}"),
        Answer::Done(_) => bail!("the node gave another answer than was asked for"),
    }
}

/// `time`: for the answer to an order that is quick.
fn call(mount: &Mount, order: &Order, time: Duration) -> Result<Answer> {
    let silent = || format!("the node that serves {} does not answer", mount.mount_point.display());
    let path = runtime::control_socket(mount.pid)?;
    let mut stream = UnixStream::connect(&path).with_context(silent)?;
    if order.is_quick() {
        // The kernel takes a call for a process that is stopped, too.
        stream.set_read_timeout(Some(time))?;
    }
    writeln!(stream, "{}", serde_json::to_string(order)?)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).with_context(silent)?;
    serde_json::from_str(&line).with_context(silent)
}

/// The member that a user names: by its place in the pool, or its device.
///
/// # Errors
/// There is none.
pub fn member(view: &View, name: &str) -> Result<Named> {
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
    Ok(Named { place: found.index, uuid: found.uuid.clone() })
}

/// Says how much larger a pool is than it was `before`, and what to do with it; then as [`show`].
pub fn show_growth(before: &View, now: &View, advice: &str) {
    println!(
        "the pool has {} now, {} more{advice}",
        size::show(now.size),
        size::show(now.size.saturating_sub(before.size)),
    );
    show(now);
}

impl View {
    /// What a member is, and what is done for it.
    pub fn state_of(&self, m: &MemberView) -> String {
        let doing = match self.rebuilding {
            Some((member, done, total)) if member == m.index => {
                format!(", {} % filled", done * 100 / total.max(1))
            }
            _ => match self.moving {
                Some((leaving, to, done, total)) if leaving == m.index => {
                    format!(", {} % moved to member {to}", done * 100 / total.max(1))
                }
                _ if m.used == 0 => ", holds nothing".to_owned(),
                _ => String::new(),
            },
        };
        format!("{}{doing}", m.state)
    }
}

/// Prints the members, and what is done for them.
pub fn show(view: &View) {
    for m in &view.members {
        println!("  member {}  {}  {}", m.index, m.path, view.state_of(m));
    }
    if let Some((done, total)) = view.scrubbing {
        println!("  scrubbing: {} %", done * 100 / total.max(1));
    }
    for (_, who) in &view.stuck {
        println!("  {who}");
    }
    if let Some(error) = &view.error {
        println!("  last error: {error}");
    }
    if let Some(what) = &view.differed {
        println!("  {what}");
    }
}

#[cfg(test)]
mod tests {
    use braid_format::Bytes;
    use braid_fs::make::{MakeOptions, make};
    use braid_fs::{MountOptions, NoKernelCache};
    use braid_pool::CreateOptions;
    use braid_pool::device::MemoryDevice;
    use braid_pool::layout::Redundancy;

    use super::*;

    /// Members have come and gone between a look at them and an order.
    #[test]
    fn an_order_that_names_another_member_than_is_there_is_refused() {
        let disk = |i| MemoryDevice::new(&format!("m{i}"), Bytes(96 << 20), Bytes(512)) as _;
        let devices: Vec<Arc<dyn Device>> = (0..4).map(disk).collect();
        let redundancy = Redundancy::Mirror(2);
        let options = CreateOptions { redundancy, ..CreateOptions::new("p") };
        let pool = Pool::create(devices, &options).unwrap();
        make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let fs = Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap();
        let seen = view(&fs);
        let mut other = member(&seen, "1").unwrap();
        other.uuid = member(&seen, "2").unwrap().uuid;
        let device = PathBuf::from("/nowhere");
        let to = Some(Target::Member(other.clone()));
        let orders = [
            Order::Fail { member: other.clone() },
            Order::Replace { member: other.clone(), device, force: false },
            Order::Evacuate { member: other.clone(), to: None, force: false },
            Order::Evacuate { member: member(&seen, "0").unwrap(), to, force: false },
            Order::Stay { member: other.clone() },
            Order::Remove { member: other.clone() },
            Order::Leave { member: other.clone(), dry_run: false },
        ];
        for order in orders {
            let refused = obey(&fs, order.clone()).unwrap_err().to_string();
            assert!(refused.contains("another device now"), "{order:?}: {refused}");
        }
        for order in [Order::Io, Order::Fence { node: 0 }] {
            assert!(obey(&fs, order.clone()).is_err(), "{order:?} did nothing");
        }
        assert_eq!(view(&fs).epoch, seen.epoch);
        // Nor does it count as use, for which the filling of a member would give way.
        let counted = || {
            let before = fs.pool().requests();
            std::thread::sleep(std::time::Duration::from_millis(600));
            view(&fs);
            fs.pool().requests() - before
        };
        assert!((0..10).any(|_| counted() == 0), "each look counts");
        // On a spare nothing stands, whatever is asked.
        let spare = MemoryDevice::new("spare", Bytes(96 << 20), Bytes(512));
        fs.pool().add_spare(spare, false).unwrap();
        let spare = member(&view(&fs), "spare").unwrap();
        for (dry_run, wanted) in [(true, "stands on it, and"), (false, "stands on it any more")] {
            let order = Order::Leave { member: spare.clone(), dry_run };
            let said = obey(&fs, order).unwrap().said.unwrap();
            assert!(said.contains(wanted), "{said}");
        }
        obey(&fs, Order::Remove { member: spare }).unwrap();
        obey(&fs, Order::Fail { member: member(&seen, "1").unwrap() }).unwrap();
        assert_eq!(view(&fs).members[1].state, "failed");
        fs.unmount().unwrap();
    }
}
