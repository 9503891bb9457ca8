//! Waits until members that were replaced or came back have all their data again.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::control::{MemberView, Order, View, session::Session};
use crate::terminal::{
    answer::{self, say, warning},
    ui,
};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(300);
/// By then a spare that fits has stepped in.
const STEPS_IN: Duration = Duration::from_secs(3);

/// Follows the filling of a member to its end.
///
/// # Errors
/// It cannot be filled, or another device comes in its place; this process is asked to end, and it is the
/// one that fills.
pub fn wait(session: &Session, member: u16) -> Result<()> {
    let mut device: Option<MemberView> = None;
    let bar = ui::byte_bar("filling", 0);
    let mut advance = ui::progress(&bar);
    loop {
        let view = session.view()?;
        let now = view.members.iter().find(|m| m.index == member);
        if let (Some(before), Some(now)) = (&device, now)
            && before.uuid != now.uuid
        {
            let (before, now) = (&before.path, &now.path);
            bail!(
                "another command has put {now} in the place of member {member}: {before} was not filled"
            );
        }
        device = device.or_else(|| now.cloned());
        if let Some((_, done, total)) = view.rebuilding.filter(|r| r.0 == member) {
            advance(done, total);
        }
        match state(&view, member) {
            "active" => {
                bar.finish_and_clear();
                settle(session);
                say_filled(member);
                if let Some(what) = view.differed {
                    answer::note_line(format_args!("{what}"));
                }
                return Ok(());
            }
            "rebuilding" => {
                if let Some((_, who)) = view.stuck.iter().find(|s| s.0 == member) {
                    bail!("member {member} is not filled yet: {who}; it tries again now and then");
                }
                if let Some(why) = view.error {
                    bail!(
                        "member {member} is not filled yet: {why}; the node tries again now and then"
                    );
                }
            }
            other => {
                let why = view.error.as_deref().unwrap_or_default();
                bail!("member {member} is {other} and was not filled: {why}");
            }
        }
        if session.interrupted() {
            bail!(
                "member {member} is not filled yet: the next mount, or command that joins the pool, begins again"
            );
        }
        std::thread::sleep(LOOK);
    }
}

/// If the node leaves with this command: waits until everything is filled that spares can replace.
/// `before`: when nothing had stepped in yet.
///
/// # Errors
/// As [`wait`].
pub fn wait_for_spares(session: &Session, before: &View) -> Result<()> {
    let start = Instant::now();
    let failed = before.members.iter().filter(|m| m.state == "failed" && m.used > 0);
    let mut failed: Vec<u16> = failed.map(|m| m.index).collect();
    while !session.stays() && !session.interrupted() {
        let view = session.view()?;
        if let Some(filled) = view.members.iter().find(|m| m.state == "rebuilding") {
            failed.retain(|m| *m != filled.index);
            wait(session, filled.index)?;
            continue;
        }
        // A small one is filled between two looks.
        let active = |m: &u16| state(&view, *m) == "active";
        failed.iter().filter(|m| active(m)).for_each(|m| say_filled(*m));
        failed.retain(|m| !active(m));
        let spares = view.members.iter().any(|m| m.state == "spare");
        if failed.is_empty() || !spares || start.elapsed() > STEPS_IN {
            break;
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn say_filled(member: u16) {
    say!("member {member} is filled and in use");
}

/// Waits until all nodes have taken note of the pool's last change: they do without what failed before, and another
/// member may fail. Says which have not after a while.
pub fn settle(session: &Session) {
    match session.order(&Order::Settle) {
        Ok(view) => answer::say_lines(&view.said.unwrap_or_default()),
        Err(why) => warning!("whether all nodes have taken note is not known: {why:#}"),
    }
}

/// The word for a member's state.
pub fn state(view: &View, member: u16) -> &str {
    view.members.iter().find(|m| m.index == member).map_or("gone", |m| &m.state)
}
