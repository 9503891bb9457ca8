//! `braid scrub`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use braid_format::history::EventKind;
use braid_fs::{SCRUB_BEGUN, SCRUB_ENDED};
use serde_json::Value;

use super::properties;
use crate::control::{
    self, Order, SHOWN_MAX, ScrubView, View, history,
    session::{Missing, Session},
};
use crate::pools::properties::scrub_interval;
use crate::terminal::{
    answer::{self, say},
    size, ui,
};

/// Offsets of a file that are shown.
const OFFSETS_SHOWN: usize = 4;

/// Read every copy and all parity of a pool, and heal what rotted.
///
/// The pool stays in use meanwhile. If nobody has it mounted, this command joins it until all is
/// read (Ctrl-C ends that). What cannot be read is rewritten from the other members. Where copies
/// disagree, what is right is known for metadata (by its checksum), for three copies or more (by
/// majority) and for two parities; the rest is reported, with the files that have it, and left alone.
/// The exit status is 1 if any was.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// Do not wait for its end (if the pool is mounted)
    #[arg(long)]
    background: bool,
    /// End the scrub that is under way
    #[arg(long, visible_alias = "cancel", conflicts_with = "background")]
    stop: bool,
    /// Only if the last one ended as many days ago as the pool's property `scrub.every` says (`braid set`; 30), by the
    /// pool's history
    #[arg(long, conflicts_with = "stop")]
    due: bool,
    /// If the pool is not mounted: do without members that are missing, if the others hold
    /// everything. They count as failed from then on
    #[arg(long, conflicts_with = "dry_run")]
    degraded: bool,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.stop {
        let mount = control::find(&args.pool)?;
        if args.dry_run {
            return Session::of(mount).plan(Order::Scrub { run: false });
        }
        let view = control::order(&mount, &Order::Scrub { run: false })?;
        control::show(&view);
        answer::add("pool", &view);
        return Ok(ExitCode::SUCCESS);
    }
    if args.due
        && let Some(why) = not_due(&args.pool)?
    {
        say!("{why}");
        return Ok(ExitCode::SUCCESS);
    }
    Session::with(&args.pool, Missing::by(args.degraded), |session| carry_out(args, session))
}

/// A timer that looks every day does not come at the same hour.
const EARLY: Duration = Duration::from_hours(12);
/// A scrub of which no end is known is taken to be under way for so long at most (a node may have died over it), ...
const UNDER_WAY: Duration = Duration::from_hours(7 * 24);
/// ... and what happens later than so long from now did not happen then: a clock was wrong.
const AHEAD: Duration = Duration::from_hours(24);

/// Why no scrub is due, if none is.
fn not_due(pool: &str) -> Result<Option<String>> {
    let Some(interval) = scrub_interval(&properties::of_pool(pool)?) else {
        return Ok(Some(format!("{pool}: scrub.every=never: not scrubbed")));
    };
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
    Ok(why_not_due(&history::events(pool)?, now, interval).map(|why| format!("{pool}: {why}")))
}

/// The same, by the events of the pool's history; `now` in milliseconds.
fn why_not_due(events: &[Value], now: u64, interval: Duration) -> Option<String> {
    let scrubs = events.iter().filter(|event| event["kind"] == EventKind::Scrub.word());
    let scrubs = scrubs.filter_map(|e| Some((e["time_ms"].as_u64()?, e["text"].as_str()?)));
    let is_possible =
        |(time, _): &(u64, &str)| Duration::from_millis(time.saturating_sub(now)) <= AHEAD;
    let scrubs: Vec<(u64, &str)> = scrubs.filter(is_possible).collect();
    let since = |time: u64| Duration::from_millis(now.saturating_sub(time));
    if let Some((time, text)) = scrubs.last()
        && *text == SCRUB_BEGUN
        && since(*time) < UNDER_WAY.min(interval)
    {
        return Some(format!("a scrub is under way since {}", history::utc(*time)));
    }
    let ended = scrubs.iter().rev().find(|(_, text)| text.starts_with(SCRUB_ENDED));
    let (time, _) = ended.filter(|(time, _)| since(*time) + EARLY < interval)?;
    let days = interval.as_secs() / Duration::from_hours(24).as_secs();
    Some(format!("scrubbed on {}, and due every {days} days: not yet", history::utc(*time)))
}

fn carry_out(args: &Args, session: &Session) -> Result<ExitCode> {
    if args.dry_run {
        return session.plan(Order::Scrub { run: true });
    }
    let before = session.order(&Order::Scrub { run: true })?;
    if args.background && session.stays() {
        control::show(&before);
        return Ok(ExitCode::SUCCESS);
    }
    let bar = ui::byte_bar("scrubbing", 0);
    let mut advance = ui::progress(&bar);
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let interrupted = session.interrupted();
        if interrupted {
            session.order(&Order::Scrub { run: false })?;
        }
        let view = session.view()?;
        if let Some((done, total)) = view.scrubbing {
            advance(done, total);
        }
        // A scrub that was ended before it began is not counted.
        let begins = interrupted && view.scrubbing.is_none();
        if view.scrubs == before.scrubs && !begins {
            continue;
        }
        bar.finish_and_clear();
        let (scrubs, error) = (view.scrubs, view.error.clone());
        return match (ended(view), error) {
            (Some(found), _) if scrubs != before.scrubs => {
                let told = report(&found);
                Ok(if interrupted { ExitCode::FAILURE } else { told })
            }
            (_, Some(error)) => bail!("the scrub ended early: {error}"),
            (_, None) => bail!("the scrub ended before it began"),
        };
    }
}

/// What the last scrub found that has ended. A node begins another one by itself for a member that returns garbage. One
/// of an older version tells only of the one under way.
fn ended(view: View) -> Option<ScrubView> {
    let other = view.scrubbing.is_some();
    view.last_scrub.or(view.scrubbed.filter(|_| !other))
}

/// A place of the pool, and where it stands on devices.
fn place_line(place: u64, placements: &[(String, u64)]) -> String {
    let placements: Vec<String> =
        placements.iter().map(|(path, at)| format!("{path} byte {at}")).collect();
    if placements.is_empty() {
        return format!("pool byte {place}");
    }
    format!("pool byte {place}: {}", placements.join(", "))
}

fn report(found: &ScrubView) -> ExitCode {
    say!(
        "{} read, {} healed{}",
        size::show(found.checked),
        size::show(found.healed),
        if found.finished { "" } else { "; ended before everything was read" }
    );
    if found.undecided == 0 {
        return ExitCode::SUCCESS;
    }
    say!(
        "{} disagree with their copies or parity, and nothing says which is right:",
        size::show(found.undecided)
    );
    let mut placements = found.placements.iter();
    for place in found.places.iter().take(SHOWN_MAX) {
        say!("  {}", place_line(*place, placements.next().map_or(&[], Vec::as_slice)));
    }
    if found.places.len() > SHOWN_MAX {
        say!("  ... and {} more places", found.places.len() - SHOWN_MAX);
    }
    report_files(found);
    ExitCode::FAILURE
}

/// The files that have what disagrees.
fn report_files(found: &ScrubView) {
    if found.files.is_empty() && found.files_complete {
        say!(
            "No file has any of that: it is free space, what no longer counts of a journal, or of a removed file that is still open"
        );
        return;
    }
    if !found.files.is_empty() {
        say!("Compare these files with a backup, and restore them:");
    }
    for file in found.files.iter().take(SHOWN_MAX) {
        let offsets = file.offsets.iter().take(OFFSETS_SHOWN).map(u64::to_string);
        let offsets: Vec<String> = offsets.collect();
        let more = file.offsets.len().saturating_sub(OFFSETS_SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        say!("  {:?} (inode {}): at byte {}{more}", file.path, file.inode, offsets.join(", "));
    }
    if found.files.len() > SHOWN_MAX {
        say!("  ... and {} more files", found.files.len() - SHOWN_MAX);
    }
    if !found.files_complete {
        say!(
            "  ... and perhaps others: the search for them was broken off, or some files cannot be read"
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_scrub_found_is_told_though_another_is_under_way() {
        let scrub = |healed| Some(ScrubView { healed, ..ScrubView::default() });
        let healed = |scrubbing, scrubbed, last_scrub| {
            let view = View { scrubbing, scrubbed, last_scrub, ..View::default() };
            ended(view).map(|found| found.healed)
        };
        assert_eq!(healed(Some((1, 9)), scrub(0), scrub(7)), Some(7));
        assert_eq!(healed(None, scrub(7), scrub(7)), Some(7));
        assert_eq!(healed(Some((1, 9)), scrub(0), None), None, "it ended in an error");
        assert_eq!(healed(None, scrub(7), None), Some(7), "of an older node");
    }

    #[test]
    fn a_scrub_is_due_when_the_last_one_is_long_ago_and_none_is_under_way() {
        const DAY_MS: u64 = 86_400_000;
        let event = |day: u64, kind: &str, text: &str| json!({"time_ms": day * DAY_MS, "kind": kind, "text": text});
        let ended = format!("{SCRUB_ENDED}: 5 bytes read");
        let week = Duration::from_hours(7 * 24);
        let why = |events: &[Value], day| why_not_due(events, day * DAY_MS, week);
        assert_eq!(why(&[], 100), None);
        let mut events = vec![event(100, "scrub", SCRUB_BEGUN), event(101, "scrub", &ended)];
        events.push(event(102, "member", SCRUB_BEGUN));
        assert!(why(&events, 107).unwrap().contains("every 7 days"));
        assert_eq!(why(&events, 108), None);
        // One that was stopped, or never ended, counts for nothing.
        events.push(event(108, "scrub", SCRUB_BEGUN));
        assert!(why_not_due(&events, 108 * DAY_MS + 5, week).unwrap().contains("under way"));
        assert!(why(&events, 114).unwrap().contains("under way"), "it may take days");
        assert_eq!(why(&events, 115), None);
        // A clock was years ahead.
        events.push(event(9000, "scrub", &ended));
        assert_eq!(why(&events, 115), None);
        events.push(event(108, "scrub", "the scrub was stopped: 0 bytes read"));
        assert_eq!(why_not_due(&events, 108 * DAY_MS + 5, week), None);
    }
}
