//! Orders that are answered when their work has begun: it goes on in a thread of the node, `braid status` shows how far
//! it is, and how it ended is in the pool's history, and if it failed in the node's log.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use braid_format::history::EventKind;
use braid_fs::Fs;
use braid_pool::MemberSelector;

use crate::control::history::told;
use crate::control::lookup::selector_of;
use crate::control::member::MemberId;
use crate::control::orders::{Order, Target};
use crate::control::plans::planned;
use crate::control::views::{View, view};

/// What fails so soon, or is done, is told to whoever has asked for it.
const AT_ONCE: Duration = Duration::from_millis(500);
/// Between two looks at a move.
const LOOK: Duration = Duration::from_millis(300);

/// How a node carries an order out.
type Obey = fn(&Fs, Order) -> Result<View>;

/// Begins `of`, which `obey` carries out. With `remove`: what it empties leaves the pool then.
///
/// # Errors
/// It would be refused; it has failed at once.
pub(super) fn begin((fs, obey): (&Fs, Obey), of: Order, remove: bool, user: u32) -> Result<View> {
    refuse((fs, obey), &of)?;
    let text = format!("{} --background", told(&of).context("that has no background")?);
    fs.pool().record(EventKind::Command, Some(user), text.clone());
    let (tell, ended) = sync_channel(1);
    let node = fs.clone();
    let work = move || {
        let done = carry_out((&node, obey), &of, remove);
        let how = match &done {
            Ok(said) => format!("has ended: {}", said.as_deref().unwrap_or("done").trim_end()),
            Err(why) => format!("has failed: {why:#}"),
        };
        let pool = node.pool();
        if done.is_err() {
            tracing::error!(pool = pool.info().name, "{text} {how}");
        }
        pool.record(EventKind::Command, Some(user), format!("{text} {how}"));
        tell.send(done).ok();
    };
    let thread = std::thread::Builder::new().name("background".into());
    thread.spawn(work).context("no thread for that work; nothing was begun")?;
    let said = ended.recv_timeout(AT_ONCE).ok().transpose()?.flatten();
    Ok(View { said, ..view(fs) })
}

/// # Errors
/// Those that the order would give before it begins.
fn refuse((fs, obey): (&Fs, Obey), of: &Order) -> Result<()> {
    match of {
        Order::Leave { member, .. } if is_moving(fs, member) => Ok(()),
        Order::Leave { member, .. } => {
            obey(fs, Order::Leave { member: member.clone(), dry_run: true }).map(drop)
        }
        Order::Evacuate { .. } | Order::Rebalance { run: true } | Order::Trim { run: true } => {
            planned(fs, of).map(drop)
        }
        _ => bail!("that order is answered at once, and has no background"),
    }
}

/// Does it; what there is to say then.
fn carry_out((fs, obey): (&Fs, Obey), of: &Order, remove: bool) -> Result<Option<String>> {
    let (Order::Leave { member, .. } | Order::Evacuate { member, .. }) = of else {
        return Ok(obey(fs, of.clone())?.said);
    };
    let selector = selector_of(fs, member)?;
    let mut said = None;
    let mut moves = is_moving(fs, member);
    if !moves {
        let done = obey(fs, of.clone())?;
        moves = matches!(of, Order::Evacuate { .. });
        if let Some(successor) = done.successor {
            let (member, to) = (member.clone(), Some(Target::Member(successor)));
            obey(fs, Order::Evacuate { member, to, force: false })?;
            moves = true;
        }
        said = done.said.filter(|said| !said.is_empty());
    }
    if moves && remove {
        await_move(fs, member)?;
    }
    if remove {
        take_out(fs, selector)?;
    }
    Ok(said)
}

fn is_moving(fs: &Fs, member: &MemberId) -> bool {
    fs.pool().moving().is_some_and(|moving| moving.leaving.0 == member.place)
}

/// Waits until a member is not being moved any more.
fn await_move(fs: &Fs, member: &MemberId) -> Result<()> {
    while is_moving(fs, member) {
        if let Some(why) = fs.withdrawn() {
            bail!("this node has withdrawn: {why}; another one goes on with the move");
        }
        std::thread::sleep(LOOK);
    }
    let label = fs.pool().label();
    let there = label.members.get(usize::from(member.place));
    if there.is_some_and(|m| m.uuid.to_string() == member.uuid) {
        bail!("member {member} was not moved: the move was ended");
    }
    Ok(())
}

/// Takes a member that holds nothing out of the pool.
pub(super) fn take_out(fs: &Fs, member: MemberSelector) -> Result<()> {
    let removed = fs.remove_member(member)?;
    if let Some(error) = removed.unwiped {
        tracing::warn!(%error, path = removed.path, "its labels could not be wiped");
    }
    Ok(())
}
