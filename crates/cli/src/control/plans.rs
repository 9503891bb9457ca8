//! What an order would do (`--dry-run`), after the same refusals. Nothing is changed.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use braid_fs::{Cleared, Fs};
use braid_pool::Destination;

use crate::control::lookup::{may_scrub, open, percent, selector_of, spares};
use crate::control::orders::{Order, Target};
use crate::terminal::size;

/// Lines for people.
///
/// # Errors
/// Those of the order.
pub fn planned(fs: &Fs, order: &Order) -> Result<String> {
    Ok(match order {
        Order::Fail { member, force } => {
            fs.plan_fail(selector_of(fs, member)?, *force)?;
            let spare = match spares(fs).len() {
                0 => "the pool has no spare for its place",
                _ => "a spare that is large enough would step in",
            };
            format!("member {member} would be taken out of use; {spare}\n")
        }
        Order::Replace { member, device, force } => {
            fs.plan_replace(selector_of(fs, member)?, &open(device)?, *force)?;
            let place = braid_format::MemberIndex(member.place);
            let bytes = size::show(fs.pool().label().bytes_on(place).get());
            format!(
                "{} would take the place of member {member}, and be filled: {bytes}\n",
                device.display()
            )
        }
        Order::Spare { device, force } => {
            fs.plan_spare(&open(device)?, *force)?;
            format!("{} would be a spare of the pool\n", device.display())
        }
        Order::Evacuate { member, to, force } => {
            let from = selector_of(fs, member)?;
            let to = match to {
                Some(Target::Device(path)) => {
                    let to = Destination::Device { device: open(path)?, force: *force };
                    fs.plan_evacuation(from, &to)?;
                    path.display().to_string()
                }
                Some(Target::Member(to)) => {
                    let to = Destination::Member(selector_of(fs, to)?);
                    format!("member {}", fs.plan_evacuation(from, &to)?)
                }
                None => format!("member {}", any_spare(fs, order)?),
            };
            format!("all that is on member {member} would move to {to}\n")
        }
        Order::Stay { member } => {
            fs.plan_cancel(selector_of(fs, member)?)?;
            format!("the move of member {member} would end; its new device would be a spare\n")
        }
        Order::Remove { member } => {
            fs.plan_remove(selector_of(fs, member)?)?;
            format!(
                "member {member} holds nothing and would be taken out of the pool; its labels would be wiped\n"
            )
        }
        Order::Clear { member } => {
            let member = member.as_ref().map(|member| selector_of(fs, member)).transpose()?;
            cleared(&fs.plan_clear(member)?, true)
        }
        Order::Set { properties } => set(fs, properties)?,
        Order::Fence { node } => {
            fs.plan_vouch(braid_format::NodeId(*node))?;
            format!("node {node} shows no life; it would count as dead and be recovered\n")
        }
        Order::Freeze { seconds, timeout } => {
            fs.plan_freeze()?;
            format!(
                "the pool would be frozen for {seconds} s at most; the nodes would have {timeout} s to write what they have\n"
            )
        }
        work => planned_work(fs, work)?,
    })
}

/// Work that takes long, begun or ended.
fn planned_work(fs: &Fs, order: &Order) -> Result<String> {
    let ends = |is_under_way: bool, what: &str| {
        let would = if is_under_way { "would end" } else { "is not under way on this node" };
        format!("the {what} {would}\n")
    };
    Ok(match order {
        Order::Rebalance { run: true } => {
            let (fills, bytes) = fs.plan_rebalance()?;
            let fills: Vec<String> = fills.iter().filter(|f| f.blocks > 0).map(percent).collect();
            format!(
                "about {} would move; parts of the pool are full by {}\n",
                size::show(bytes),
                fills.join(", ")
            )
        }
        Order::Rebalance { run: false } => ends(fs.is_rebalancing(), "rebalancing"),
        Order::Trim { run: true } => {
            fs.plan_trim()?;
            let space = fs.space();
            let free = size::show(space.free * u64::from(space.block_size));
            format!("free space, {free} at most, would be given back to the devices\n")
        }
        Order::Trim { run: false } => ends(fs.is_trimming(), "trim"),
        Order::Scrub { run: true } => {
            may_scrub(fs)?;
            let (label, members) = (fs.pool().label(), fs.pool().member_states());
            let bytes: u64 = members.iter().map(|(m, _)| label.bytes_on(*m).get()).sum();
            format!("all copies and all parity would be read: {} at most\n", size::show(bytes))
        }
        Order::Scrub { run: false } => ends(fs.maintenance().scrubbing.is_some(), "scrub"),
        Order::LeaveEnd if fs.plan_stop_leaving()? => {
            "what is being emptied would be in use again; what has moved would stay moved\n".into()
        }
        Order::LeaveEnd => "no part of the pool is being emptied\n".into(),
        _ => bail!("nobody can say what that would do"),
    })
}

/// What `braid clear` has forgotten, or `would` forget.
pub(super) fn cleared(c: &Cleared, would: bool) -> String {
    let (not, is) = if would { ("would not be", "would be") } else { ("is not", "is") };
    let mut text = String::new();
    for member in &c.suspects {
        let _ = writeln!(
            text,
            "member {member} {not} suspected any more; what is damaged there is still damaged: `braid scrub` finds and mends it"
        );
    }
    if c.undecided {
        let _ = writeln!(text, "what the last scrub could not decide {is} forgotten");
    }
    if c.damaged > 0 {
        let blocks = if c.damaged == 1 { "block" } else { "blocks" };
        let _ = writeln!(
            text,
            "{} {blocks} of damaged metadata {is} forgotten, until met again",
            c.damaged
        );
    }
    if c.errors {
        let _ = writeln!(text, "what went wrong last {is} forgotten");
    }
    if text.is_empty() { "there is nothing to clear\n".into() } else { text }
}

/// The spare that would get what an order moves that names none.
fn any_spare(fs: &Fs, order: &Order) -> Result<braid_format::MemberIndex> {
    let Order::Evacuate { member, .. } = order else { bail!("nothing is moved by that") };
    let mut why = String::new();
    for spare in spares(fs) {
        match fs.plan_evacuation(selector_of(fs, member)?, &Destination::Member(spare)) {
            Ok(place) => return Ok(place),
            Err(e) => why = format!(" ({e})"),
        }
    }
    bail!("the pool has no spare to move member {member} to{why}")
}

fn set(fs: &Fs, changes: &[(String, Option<String>)]) -> Result<String> {
    fs.plan_properties(changes)?;
    let now = fs.pool().label().properties;
    let line = |(key, value): &(String, Option<String>)| {
        let now = now.get(key).map_or("not set", String::as_str);
        match value {
            Some(value) => format!("{key} would be {value}; it is {now}\n"),
            None => format!("{key} would not be set any more; it is {now}\n"),
        }
    };
    Ok(changes.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use braid_format::MemberIndex;

    use super::*;

    #[test]
    fn what_is_forgotten_is_named() {
        assert_eq!(cleared(&Cleared::default(), false), "there is nothing to clear\n");
        let all =
            Cleared { suspects: vec![MemberIndex(3)], damaged: 2, undecided: true, errors: true };
        let said = cleared(&all, false);
        for wanted in ["member 3 is not suspected", "last scrub", "2 blocks", "went wrong last"] {
            assert!(said.contains(wanted), "{said}");
        }
        assert!(cleared(&all, true).contains("member 3 would not be suspected any more"));
    }
}
