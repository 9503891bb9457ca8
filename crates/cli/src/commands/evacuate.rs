//! `braid evacuate`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::control::{
    self, Named, Order, Target, View,
    session::{Missing, Session},
};
use crate::pools::sources;
use crate::terminal::ui;

/// Move everything that stands on a member of a pool to another device.
///
/// The pool stays in use, and keeps all its redundancy: until all is copied every write goes to both
/// devices. Pools without redundancy can do it too. If the node ends in the middle, the next mount begins again. In
/// the end the new device has the old one's place; the old one stays in the pool, with nothing on it: `braid remove`
/// takes it out, `--remove` does so at once.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// The member: its number in `braid status`, or its device
    member: String,
    /// The device to move to, or the number of a spare or unused member; left out: any spare, or where there is none
    /// the rest of the pool, as `braid remove` does
    #[arg(long, value_name = "DEVICE|MEMBER")]
    to: Option<String>,
    /// Use the device although it carries a file system or belonged to a pool
    #[arg(long)]
    force: bool,
    /// Take the old device out of the pool when it holds nothing any more
    #[arg(long, conflicts_with_all = ["background", "cancel"])]
    remove: bool,
    /// Do not wait until it is done (where the pool is mounted, and there is a device to move to)
    #[arg(long)]
    background: bool,
    /// End a move that is under way: the new device becomes a spare
    #[arg(long, conflicts_with_all = ["to", "background"])]
    cancel: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    Session::with(&args.pool, Missing::Refused, |session| carry_out(args, session))
}

fn carry_out(args: &Args, session: &Session) -> Result<ExitCode> {
    let before = session.view()?;
    let member = control::member(&before, &args.member)?;
    if args.cancel {
        let view = session.order(&Order::Stay { member: member.clone() })?;
        println!("member {member} stays:");
        control::show(&view);
        return Ok(ExitCode::SUCCESS);
    }
    // Nobody to move it to: the rest of the pool gets it, if it can.
    if args.to.is_none() && !before.members.iter().any(|m| m.state == "spare") {
        return shrink(args, session, &before, &member);
    }
    let to = args.to.as_ref().map(|to| target(&before, to)).transpose()?;
    let view = session.order(&Order::Evacuate { member: member.clone(), to, force: args.force })?;
    if args.background && session.stays() {
        control::show(&view);
        return Ok(ExitCode::SUCCESS);
    }
    follow(session, &member, args.remove)?;
    Ok(ExitCode::SUCCESS)
}

/// The rest of the pool, which becomes smaller, gets what stands on a member.
fn shrink(args: &Args, session: &Session, before: &View, member: &Named) -> Result<ExitCode> {
    let view = crate::commands::remove::leave(session, member, false)?;
    print!("{}", view.said.as_deref().unwrap_or_default());
    if let Some(successor) = view.successor {
        succeed(session, member, successor, args.remove)?;
        return Ok(ExitCode::SUCCESS);
    }
    let was = path(before, member.place);
    if args.remove {
        session.order(&Order::Remove { member: member.clone() })?;
        println!("{was} is out of the pool");
    } else {
        println!("{was} is a spare now: `braid remove POOL {member}` takes it out of the pool");
    }
    Ok(ExitCode::SUCCESS)
}

/// Moves what stands on a member to a successor, and waits for the end of that; as [`follow`].
///
/// # Errors
/// The move failed.
pub fn succeed(session: &Session, member: &Named, successor: Named, remove: bool) -> Result<()> {
    let to = Some(Target::Member(successor));
    session.order(&Order::Evacuate { member: member.clone(), to, force: false })?;
    follow(session, member, remove)
}

/// Waits for the end of the move of a member as it was named before, says where everything is now,
/// and takes the old device out if that was asked for.
///
/// # Errors
/// The move failed.
pub fn follow(session: &Session, leaving: &Named, remove: bool) -> Result<()> {
    let view = wait(session, leaving.place)?;
    let old = left(&view, leaving)?;
    println!("member {leaving} is on {} now", path(&view, leaving.place));
    let Some(old) = old else { return Ok(()) };
    let was = path(&view, old.place);
    if !remove {
        println!(
            "{was} holds nothing any more: `braid remove POOL {old}` takes it out of the pool"
        );
        return Ok(());
    }
    session.order(&Order::Remove { member: old.clone() })?;
    println!("{was} is out of the pool");
    Ok(())
}

/// Where whoever was to leave is after the move: in the place of its successor, or not in the pool
/// any more.
fn left(view: &View, leaving: &Named) -> Result<Option<Named>> {
    let old = view.members.iter().find(|m| m.uuid == leaving.uuid);
    if old.is_some_and(|m| m.index == leaving.place) {
        let why = view.error.as_deref().unwrap_or("the move was ended");
        bail!("member {leaving} was not moved: {why}");
    }
    Ok(old.map(|m| Named { place: m.index, uuid: m.uuid.clone() }))
}

fn path(view: &View, member: u16) -> &str {
    view.members.iter().find(|m| m.index == member).map_or("", |m| &m.path)
}

/// A device, or a member that is there already.
pub fn target(view: &View, name: &str) -> Result<Target> {
    match control::member(view, name) {
        Ok(member) => Ok(Target::Member(member)),
        Err(_) => Ok(Target::Device(sources::absolute(name.as_ref())?)),
    }
}

/// Waits until a member is not being moved any more.
fn wait(session: &Session, member: u16) -> Result<View> {
    let bar = ui::bar("moving");
    let mut advance = ui::progress(&bar);
    let mut said = false;
    loop {
        let view = session.view()?;
        if session.stays() && view.moving.is_some() && !view.keeper && !said {
            said = true;
            println!(
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
        let leaving = control::member(&view("abcd"), "/dev/a").unwrap();
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
