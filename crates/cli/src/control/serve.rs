//! Serves orders to this process's node, on a socket beside the mount's note.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use braid_format::NodeId;
use braid_format::label::{Label, Member, MemberState};
use braid_fs::{Canceller, Fill, Fs, Rebalanced, TrimRange};
use braid_pool::Destination;
use braid_pool::device::OpenOptions;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::leaving::leave;
use crate::control::lookup::{may_scrub, open, percent, selector_of, spares};
use crate::control::member::MemberId;
use crate::control::node::Node;
use crate::control::orders::{Answer, Order, Target};
use crate::control::views::{View, view};
use crate::control::{background, clients, history, locks, nodes, plans, programs, requests, why};
use crate::pools::shape::ShapeArgs;
use crate::pools::topology;
use crate::process::mounts;
use crate::terminal::size;

/// Longest line that is read.
const LINE_MAX: u64 = 64 << 10;
/// A caller that says nothing for so long is let go.
const PATIENCE: Duration = Duration::from_secs(10);

/// The socket of this process's mount; gone when it is dropped.
#[derive(Debug)]
pub struct Control {
    path: Option<PathBuf>,
}

impl Control {
    /// Begins to serve orders. Where no socket can be made the mount works all the same.
    pub fn serve(node: &Node, note: &mounts::Note) -> Self {
        let made = note.control_socket().and_then(|path| {
            std::fs::remove_file(&path).ok();
            let (node, listener) = (node.clone(), UnixListener::bind(&path)?);
            let thread = std::thread::Builder::new().name("control".into());
            thread.spawn(move || listen(&node, &listener))?;
            Ok(path)
        });
        match made {
            Ok(path) => Self { path: Some(path) },
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
fn listen(node: &Node, listener: &UnixListener) {
    loop {
        // A caller that says nothing keeps nobody else waiting: each has a thread of its own.
        let taken = listener.accept().and_then(|(stream, _)| {
            let node = node.clone();
            std::thread::Builder::new().name("control".into()).spawn(move || {
                if let Err(error) = answer(&node, &stream) {
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

fn answer(node: &Node, stream: &UnixStream) -> Result<()> {
    let fs = &node.fs;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(std::io::Read::take(stream, LINE_MAX)).read_line(&mut line)?;
    let order = serde_json::from_str(&line).context("not an order");
    let freezes = matches!(order, Ok(Order::Freeze { .. }));
    let done = match order {
        // Labels are not read for that, which may wait for a device: a change of the pool is over when all living
        // nodes use what it has made.
        Ok(Order::Look) => Ok(Answer::Done(Box::new(view(fs)))),
        Ok(Order::Programs) => {
            Ok(Answer::Value(serde_json::to_value(programs::answer(&node.requests))?))
        }
        Ok(Order::Clients) => {
            clients::answer(node).and_then(|view| Ok(Answer::Value(serde_json::to_value(view)?)))
        }
        Ok(Order::Io) => Ok(Answer::Value(serde_json::to_value(requests::answer(node))?)),
        Ok(Order::Nodes) => Ok(Answer::Value(nodes::answer(fs))),
        Ok(Order::Locks { hot, lines }) => Ok(Answer::Value(locks::answer(fs, hot, lines))),
        Ok(Order::Why) => Ok(Answer::Value(serde_json::to_value(why::answer(node))?)),
        Ok(Order::History) => Ok(Answer::Value(history::answered(fs.pool()).into())),
        Ok(Order::Fence { node }) => {
            let order = Order::Fence { node };
            let done = fs.vouch_dead(NodeId(node)).map_err(Into::into);
            done.map(|()| {
                history::order(fs.pool(), &order, user_of(stream));
                Answer::Value(serde_json::Value::Null)
            })
        }
        Ok(Order::Background { of, remove }) => {
            let begun = background::begin((fs, obey), *of, remove, user_of(stream));
            begun.map(|view| Answer::Done(Box::new(view)))
        }
        Ok(order @ Order::Freeze { .. }) => {
            freeze(fs, &order, stream).map(|view| Answer::Done(Box::new(view)))
        }
        order => {
            let done = order.and_then(|order| obey_of(fs, order, user_of(stream)));
            done.map(|view| Answer::Done(Box::new(view)))
        }
    };
    let answer = done.unwrap_or_else(|e| Answer::Refused(format!("{e:#}")));
    let mut stream = stream;
    let told = writeln!(stream, "{}", serde_json::to_string(&answer)?);
    if told.is_err() && freezes && matches!(answer, Answer::Done(_)) {
        tracing::warn!("whoever asked for the freeze has ended: the pool is thawed");
        fs.thaw()?;
    }
    Ok(told?)
}

/// Freezes the pool, unless the caller ends before that is done.
fn freeze(fs: &Fs, order: &Order, stream: &UnixStream) -> Result<View> {
    let Order::Freeze { seconds, timeout } = *order else { bail!("no freeze") };
    let [time, patience] = [seconds, timeout].map(|s| Duration::from_secs(s.into()));
    fs.freeze_unless(time, patience, &|| has_ended(stream))?;
    history::order(fs.pool(), order, user_of(stream));
    Ok(view(fs))
}

/// Whether the caller has ended, or wants no answer any more.
fn has_ended(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
}

/// Whose process is at the other end.
fn user_of(stream: &UnixStream) -> u32 {
    rustix::net::sockopt::socket_peercred(stream).map_or(u32::MAX, |peer| peer.uid.as_raw())
}

/// As [`obey`]; what was done is told to the pool's history, by `user`.
///
/// # Errors
/// As there.
pub fn obey_of(fs: &Fs, order: Order, user: u32) -> Result<View> {
    let asked = order.clone();
    let view = obey(fs, order)?;
    history::order(fs.pool(), &asked, user);
    Ok(view)
}

/// Does what a node is asked for, and says how things are then.
///
/// # Errors
/// It cannot be done.
pub fn obey(fs: &Fs, order: Order) -> Result<View> {
    let (mut said, mut successor) = (None, None);
    match order {
        // A place that is named next is one of the newest epoch, not of what this node last heard of.
        Order::Members => fs.follow_pool()?,
        Order::Settle => said = settled(fs)?,
        Order::Look
        | Order::Programs
        | Order::Clients
        | Order::Io
        | Order::Nodes
        | Order::History
        | Order::Locks { .. }
        | Order::Why
        | Order::Freeze { .. }
        | Order::Background { .. }
        | Order::Fence { .. } => {
            bail!("only a node that has the pool mounted can be asked for that")
        }
        Order::Fail { member, force } => fs.fail_member(selector_of(fs, &member)?, force)?,
        Order::Offline { member, dry_run } => said = Some(offline(fs, &member, dry_run)?),
        Order::Online { member, device, dry_run } => {
            said = Some(online(fs, &member, &device, dry_run)?);
        }
        Order::Replace { member, device, force } => {
            fs.replace_member(selector_of(fs, &member)?, open(&device)?, force)?;
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
        Order::Stay { member } => fs.cancel_evacuation(selector_of(fs, &member)?)?,
        Order::Remove { member } => {
            background::take_out(fs, selector_of(fs, &member)?)?;
        }
        Order::Leave { member, dry_run } => {
            let (text, taker) = leave(fs, selector_of(fs, &member)?, dry_run)?;
            (said, successor) = (Some(text), taker);
        }
        Order::LeaveEnd => fs.stop_leaving()?,
        Order::Thaw => fs.thaw()?,
        Order::Set { properties } => fs.set_properties(&properties)?,
        Order::Clear { member } => {
            let member = member.map(|member| selector_of(fs, &member)).transpose()?;
            said = Some(plans::cleared(&fs.clear(member)?, false));
        }
        Order::Plan { of } => said = Some(plans::planned(fs, &of)?),
        Order::Scrub { run } => {
            may_scrub(fs)?;
            fs.scrub(run);
        }
    }
    Ok(View { said, successor, ..view(fs) })
}

/// Waits until all nodes that live have taken note of the last change; which have not.
fn settled(fs: &Fs) -> Result<Option<String>> {
    fs.follow_pool()?;
    let Some((limit, late)) = fs.await_all_nodes()? else { return Ok(None) };
    let seconds = limit.as_secs_f64();
    let lines = late.iter().map(|n| {
        let (slot, host, at) = (n.life.slot, &n.host, &n.mount_point);
        format!("node {slot}, on {host} at {at}, has not taken note of the change within {seconds} s: it does so when it answers again\n")
    });
    let lines: String = lines.collect();
    Ok(Some(if lines.is_empty() {
        format!("whether all nodes have taken note of the change was not seen within {seconds} s\n")
    } else {
        lines
    }))
}

/// Takes a member offline; what that means.
fn offline(fs: &Fs, named: &MemberId, dry_run: bool) -> Result<String> {
    let member = selector_of(fs, named)?;
    if dry_run {
        fs.pool().plan_offline(member)?;
        return Ok(format!("member {named} can go offline: the others hold everything\n"));
    }
    let back = if fs.take_offline(member)? {
        "it catches up by what it has missed"
    } else {
        "all of it may have to be filled: it has no label that says that it went in good order"
    };
    Ok(format!("member {named} is offline; when it is back, {back} (`braid online`)\n"))
}

/// Brings a member back; how much of it is filled.
fn online(fs: &Fs, named: &MemberId, device: &Path, dry_run: bool) -> Result<String> {
    let (member, device) = (selector_of(fs, named)?, open(device)?);
    let (caught, would) = if dry_run {
        (fs.pool().plan_online(member, &device)?, " would be")
    } else {
        (fs.bring_online(member, &device)?, " is")
    };
    let (fill, whole) = (size::show(caught.fill.get()), size::show(caught.whole.get()));
    Ok(if caught.fill < caught.whole {
        format!("member {named}{would} brought up to date: {fill} of {whole} may have changed\n")
    } else {
        format!("member {named}{would} filled whole: {whole}\n")
    })
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
    let block = u64::from(fs.space().block_size);
    // Parts that have left hold nothing and have room for nothing.
    let list = |fills: &[Fill]| {
        let there = fills.iter().filter(|f| f.blocks > 0);
        there.map(percent).collect::<Vec<_>>().join(", ")
    };
    format!(
        "{} moved{}; parts of the pool were full by {}, and are now by {}\n",
        size::show(done.moved * block),
        if done.finished { "" } else { ", then it was stopped" },
        list(&done.before),
        list(&done.after)
    )
}

/// What of the pool's free space went back to the devices.
fn trimmed(fs: &Fs) -> Result<String> {
    let done = fs.trim(TrimRange::ALL, &Canceller::new())?;
    let stopped = if done.finished { "" } else { ", then it was stopped" };
    if done.given.get() > 0 || !done.finished {
        let given = size::show(done.given.get());
        return Ok(format!("{given} of free space given back to the devices{stopped}\n"));
    }
    Ok("nothing was given back: all free space was given back before, or the devices have no discard\n"
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
    Ok(topology::text(&added.label, &paths) + &small_spares(&added.label, &paths))
}

/// Spares that can take the place of some member in use no more, one line each.
fn small_spares(label: &Label, paths: &[String]) -> String {
    let members = || (0_u16..).zip(&label.members).zip(paths);
    let spares = members().filter(|((_, m), _)| m.state == MemberState::Spare);
    let mut text = String::new();
    for ((spare, own), path) in spares {
        let larger = |m: &Member| m.state == MemberState::Active && m.data_len > own.data_len;
        let larger = members().filter(|((_, m), _)| larger(m)).map(|((i, _), _)| i.to_string());
        let larger: Vec<String> = larger.collect();
        if !larger.is_empty() {
            let _ = writeln!(
                text,
                "member {spare} ({path}), a spare, is smaller than member {} and cannot take that place: add a larger one with `braid spare`",
                larger.join(", ")
            );
        }
    }
    text
}

fn evacuate(fs: &Fs, named: &MemberId, to: Option<Target>, force: bool) -> Result<()> {
    let member = selector_of(fs, named)?;
    let to = match to {
        Some(Target::Device(path)) => Destination::Device { device: open(&path)?, force },
        Some(Target::Member(to)) => Destination::Member(selector_of(fs, &to)?),
        None => {
            let mut why = String::new();
            for spare in spares(fs) {
                match fs.evacuate_member(member, Destination::Member(spare)) {
                    Ok(_) => return Ok(()),
                    Err(e) => why = format!(" ({e})"),
                }
            }
            bail!(
                "the pool has no spare to move member {named} to{why}: name a device with --to, or move what it holds to the rest of the pool (`braid remove`)"
            );
        }
    };
    fs.evacuate_member(member, to)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use braid_format::Bytes;
    use braid_fs::make::{MakeOptions, make};
    use braid_fs::{MountOptions, NoKernelCache};
    use braid_pool::device::{Device, MemoryDevice};
    use braid_pool::layout::Redundancy;
    use braid_pool::{CreateOptions, Pool};

    use super::*;
    use crate::control::member;

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
            Order::Fail { member: other.clone(), force: false },
            Order::Offline { member: other.clone(), dry_run: false },
            Order::Online { member: other.clone(), device: device.clone(), dry_run: false },
            Order::Replace { member: other.clone(), device, force: false },
            Order::Evacuate { member: other.clone(), to: None, force: false },
            Order::Evacuate { member: member(&seen, "0").unwrap(), to, force: false },
            Order::Stay { member: other.clone() },
            Order::Remove { member: other.clone() },
            Order::Leave { member: other.clone(), dry_run: false },
        ];
        let plan = |of: Order| obey(&fs, Order::Plan { of: Box::new(of) });
        for order in orders {
            let refused = obey(&fs, order.clone()).unwrap_err().to_string();
            assert!(refused.contains("another device now"), "{order:?}: {refused}");
            if !matches!(&order, Order::Offline { .. } | Order::Online { .. } | Order::Leave { .. })
            {
                assert_eq!(plan(order).unwrap_err().to_string(), refused);
            }
        }
        for order in [Order::Io, Order::Fence { node: 0 }] {
            assert!(obey(&fs, order.clone()).is_err(), "{order:?} did nothing");
        }
        assert_eq!(view(&fs).epoch, seen.epoch);
        // It does not count as use either, to which the filling of a member would give way.
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
        for (dry_run, wanted) in [(true, "holds nothing, so"), (false, "holds nothing any more")] {
            let order = Order::Leave { member: spare.clone(), dry_run };
            let said = obey(&fs, order).unwrap().said.unwrap();
            assert!(said.contains(wanted), "{said}");
        }
        let member = member(&seen, "1").unwrap();
        what_would_be_done_is_said(&fs, &member, &spare);
        obey(&fs, Order::Remove { member: spare }).unwrap();
        obey(&fs, Order::Fail { member, force: false }).unwrap();
        assert_eq!(view(&fs).members[1].state, "failed");
        fs.unmount().unwrap();
    }

    /// After the same refusals; nothing is done.
    fn what_would_be_done_is_said(fs: &Fs, member: &MemberId, spare: &MemberId) {
        let plan = |of: Order| obey(fs, Order::Plan { of: Box::new(of) });
        let before = fs.pool().label();
        let to = || Some(Target::Member(spare.clone()));
        let properties = vec![("comment".to_owned(), Some("x".to_owned()))];
        for (order, wanted) in [
            (Order::Fail { member: member.clone(), force: false }, "a spare that is large enough"),
            (Order::Evacuate { member: member.clone(), to: to(), force: false }, "to member 4"),
            (Order::Evacuate { member: member.clone(), to: None, force: false }, "to member 4"),
            (Order::Remove { member: spare.clone() }, "its labels would be wiped"),
            (Order::Clear { member: None }, "there is nothing to clear"),
            (Order::Set { properties }, "comment would be x; it is not set"),
            (Order::Scrub { run: true }, "would be read"),
            (Order::Scrub { run: false }, "not under way"),
            (Order::Trim { run: true }, "would be given back"),
            (Order::Rebalance { run: true }, "0 B would move"),
            (Order::LeaveEnd, "no part"),
            (Order::Freeze { seconds: 5, timeout: 2 }, "for 5 s at most"),
        ] {
            let said = plan(order.clone()).unwrap().said.unwrap();
            assert!(said.contains(wanted), "{order:?}: {said}");
        }
        for (order, wanted) in [
            (Order::Remove { member: member.clone() }, "braid remove"),
            (Order::Stay { member: member.clone() }, "is not being moved"),
            (Order::Fence { node: 7 }, "nobody has it"),
        ] {
            let refused = plan(order.clone()).unwrap_err().to_string();
            assert!(refused.contains(wanted), "{order:?}: {refused}");
        }
        assert_eq!(fs.pool().label(), before);
    }
}
