//! Moves of a member's contents, which `evacuate` and `remove` order and wait for.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::control::session::Session;
use crate::control::{MemberId, Order, Target, View, resync};
use crate::terminal::{answer::say, ui};

/// Moves what is on a member to the rest of the pool, and shows the progress.
///
/// # Errors
/// It cannot be, or was ended.
pub fn leave(session: &Session, member: &MemberId, dry_run: bool) -> Result<View> {
    let order = Order::Leave { member: member.clone(), dry_run };
    let who = || format!("member {member} cannot leave");
    if dry_run {
        return session.order(&order).with_context(who);
    }
    let bar = ui::byte_bar("moving", 0);
    let mut advance = ui::progress(&bar);
    let done = session.long_order(&order, &Order::LeaveEnd, || {
        if let Some((done, total)) = session.view().ok().and_then(|v| v.leaving) {
            advance(done, total);
        }
    });
    bar.finish_and_clear();
    done.with_context(who)
}

/// Moves what is on a member to a successor, and waits for the end of that, as [`follow`] does.
///
/// # Errors
/// The move failed.
pub fn succeed(
    session: &Session,
    member: &MemberId,
    successor: MemberId,
    remove: bool,
) -> Result<()> {
    let to = Some(Target::Member(successor));
    session.order(&Order::Evacuate { member: member.clone(), to, force: false })?;
    follow(session, member, remove)
}

/// Waits for the end of the move of a member as it was named before, says where everything is now,
/// and takes the old device out if that was asked for.
///
/// # Errors
/// The move failed.
pub fn follow(session: &Session, leaving: &MemberId, remove: bool) -> Result<()> {
    let view = wait(session, leaving.place)?;
    let old = left(&view, leaving)?;
    resync::settle(session);
    say!("member {leaving} is on {} now", path(&view, leaving.place));
    let Some(old) = old else { return Ok(()) };
    let was = path(&view, old.place);
    if !remove {
        say!("{was} holds nothing any more: `braid remove POOL {old}` takes it out of the pool");
        return Ok(());
    }
    session.order(&Order::Remove { member: old.clone() })?;
    say!("{was} is out of the pool");
    Ok(())
}

/// Where the leaving member is after the move: in the place of its successor, or not in the pool
/// any more.
fn left(view: &View, leaving: &MemberId) -> Result<Option<MemberId>> {
    let old = view.members.iter().find(|m| m.uuid == leaving.uuid);
    if old.is_some_and(|m| m.index == leaving.place) {
        let why = view.error.as_deref().unwrap_or("the move was ended");
        bail!("member {leaving} was not moved: {why}");
    }
    Ok(old.map(|m| MemberId { place: m.index, uuid: m.uuid.clone() }))
}

/// Where a member was last seen.
pub fn path(view: &View, member: u16) -> &str {
    view.members.iter().find(|m| m.index == member).map_or("", |m| &m.path)
}

/// Waits until a member is not being moved any more.
fn wait(session: &Session, member: u16) -> Result<View> {
    let bar = ui::byte_bar("moving", 0);
    let mut advance = ui::progress(&bar);
    let mut said = false;
    loop {
        let view = session.view()?;
        if session.stays() && view.moving.is_some() && !view.keeper && !said {
            said = true;
            say!(
                "another node copies; how far, and what goes wrong, is in its log (`--background` does not wait, `--cancel` ends it)"
            );
        }
        match view.moving {
            Some((leaving, _, done, total)) if leaving == member => advance(done, total),
            _ => {
                bar.finish_and_clear();
                return Ok(view);
            }
        }
        if let Some((_, who)) = view.stuck.iter().find(|s| s.0 == member) {
            bail!("member {member} is not moved yet: {who}; it tries again now and then");
        }
        if let Some(why) = view.error {
            bail!("member {member} is not moved yet: {why}; the node tries again now and then");
        }
        if session.interrupted() {
            bail!(
                "member {member} is not moved yet: the next mount, or command that joins the pool, begins again"
            );
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::MemberView;

    /// Members by their devices' letters, in their places.
    fn view(members: &str) -> View {
        let member = |(index, letter): (u16, char)| MemberView {
            index,
            uuid: letter.to_string(),
            path: format!("/dev/{letter}"),
            state: "active".to_owned(),
            used: 0,
        };
        View { members: (0..).zip(members.chars()).map(member).collect(), ..View::default() }
    }

    #[test]
    fn whoever_left_is_found_however_soon_the_move_is_over() {
        let leaving = crate::control::member(&view("abcd"), "/dev/a").unwrap();
        // To a member that was there: they change places.
        let old = left(&view("bacd"), &leaving).unwrap().unwrap();
        assert_eq!((old.place, old.uuid.as_str()), (1, "a"));
        // To a new device.
        assert_eq!(left(&view("ebcda"), &leaving).unwrap().unwrap().place, 4);
        assert!(left(&view("ebcd"), &leaving).unwrap().is_none(), "taken out by somebody else");
        let said = left(&view("abcde"), &leaving).unwrap_err().to_string();
        assert!(said.contains("member 0 was not moved"), "{said}");
    }
}
