//! What a node does, and says, of a pool that becomes smaller.

use anyhow::{Result, bail};
use braid_format::MemberIndex;
use braid_fs::{Error, Fs, Successor};
use braid_pool::MemberSelector;

use crate::control::MemberId;
use crate::terminal::size;

/// Makes the pool smaller by what is on a member. Returns what was done, or would be. If that never
/// leaves: the member that can take its place, which then holds nothing.
///
/// # Errors
/// As [`Fs::leave`], [`Fs::plan_successor`]; it was told to stop.
pub fn leave(fs: &Fs, member: MemberSelector, dry_run: bool) -> Result<(String, Option<MemberId>)> {
    let done = if dry_run { planned(fs, member) } else { left(fs, member) };
    match done {
        Err(Error::Founding { failed: false, .. }) if dry_run => {
            let successor = fs.plan_successor(member)?;
            Ok((would_succeed(fs, &successor), Some(named(&successor))))
        }
        Err(Error::Founding { failed: false, .. }) => {
            let Some((successor, moved)) = fs.make_successor(member)? else { bail!(STOPPED) };
            let text = match &successor.leaving {
                None => String::new(),
                Some(l) => gone(fs, moved, &l.members),
            };
            Ok((text, Some(named(&successor))))
        }
        done => {
            let Some(text) = done? else { bail!(STOPPED) };
            Ok((text, None))
        }
    }
}

const STOPPED: &str = "it was told to stop, and what has moved stays moved; if the node has ended, nothing is put into that part of the pool until `braid remove` goes on with it, or `braid remove POOL --cancel` ends it";

fn named(successor: &Successor) -> MemberId {
    MemberId { place: successor.member.get(), uuid: successor.uuid.to_string() }
}

fn list(members: &[MemberIndex]) -> String {
    let all: Vec<String> = members.iter().map(ToString::to_string).collect();
    all.join(", ")
}

/// Blocks as bytes, for people.
fn bytes(fs: &Fs, blocks: u64) -> String {
    let block = u64::from(fs.space().block_size);
    size::show(blocks * block)
}

fn gone(fs: &Fs, moved: u64, members: &[MemberIndex]) -> String {
    let moved = bytes(fs, moved);
    format!("{moved} moved; nothing is left on member {}\n", list(members))
}

fn planned(fs: &Fs, member: MemberSelector) -> Result<Option<String>, Error> {
    let plan = fs.plan_leaving(member)?;
    if plan.members.is_empty() {
        let nothing = "it holds nothing, so nothing would move; nothing was changed\n";
        return Ok(Some(nothing.to_owned()));
    }
    Ok(Some(format!(
        "{} would move, and the rest of the pool has room for {}; nothing would be left on member {}; nothing was changed\n",
        bytes(fs, plan.blocks),
        bytes(fs, plan.room),
        list(&plan.members)
    )))
}

fn would_succeed(fs: &Fs, successor: &Successor) -> String {
    let Some(plan) = &successor.leaving else {
        return format!(
            "it holds part of what the pool was made with, which never leaves: member {}, which holds nothing, would take its place; nothing was changed\n",
            successor.member
        );
    };
    format!(
        "it holds part of what the pool was made with, which never leaves: what was added with member {} would leave, and member {} take its place; {} would move before, and the rest of the pool has room for {}; nothing was changed\n",
        list(&plan.members),
        successor.member,
        bytes(fs, plan.blocks),
        bytes(fs, plan.room),
    )
}

/// `None`: it was told to stop.
fn left(fs: &Fs, member: MemberSelector) -> Result<Option<String>, Error> {
    let left = fs.leave(member)?;
    if !left.finished {
        return Ok(None);
    }
    if left.members.is_empty() {
        return Ok(Some("it holds nothing any more\n".to_owned()));
    }
    Ok(Some(gone(fs, left.moved, &left.members)))
}
