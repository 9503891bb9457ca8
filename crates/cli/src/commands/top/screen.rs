//! A screen of its own. The terminal is restored at the end, on an error, on a panic, and when a signal ends the
//! program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers, poll, read};
use ratatui::crossterm::terminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::draw::draw;
use super::look::{Look, Shown};
use super::order::Order;
use crate::process::mounts::Mount;

/// Largest screen that is drawn, in characters: memory is taken for all of it.
const SCREEN_MAX: u32 = 1 << 20;
/// How often it is looked whether a signal came.
const SIGNALS: Duration = Duration::from_millis(250);

/// Whether the terminal says that it is of a size that can be drawn.
fn check_size() -> Result<()> {
    let (columns, rows) = terminal::size().context("the size of the terminal")?;
    let enough = u32::from(columns) * u32::from(rows) <= SCREEN_MAX;
    ensure!(enough, "the terminal says that it has {columns} columns and {rows} rows: use --plain");
    Ok(())
}

/// Shows a node until somebody ends it, or so many reports were shown.
///
/// # Errors
/// The node does not answer any more, or the terminal cannot do it.
pub fn run(
    mount: &Mount,
    first: Look,
    (interval, count): (Duration, Option<u64>),
    mut order: Order,
) -> Result<()> {
    check_size()?;
    let ended_by_signal = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, ended_by_signal.clone())?;
    }
    let mut terminal = ratatui::try_init().context("no screen of its own: use --plain")?;
    let (mut before, mut now) = (first.clone(), first);
    let mut reports = 0;
    let mut ended = || -> Result<()> {
        loop {
            check_size()?;
            terminal.draw(|frame| draw(frame, &Shown::of(&now, &before, order)))?;
            let next = Instant::now() + interval;
            loop {
                let rest = next.saturating_duration_since(Instant::now());
                if ended_by_signal.load(Ordering::Relaxed) {
                    return Ok(());
                }
                if rest.is_zero() {
                    break;
                }
                if !poll(rest.min(SIGNALS))? {
                    continue;
                }
                let Event::Key(key) = read()? else { continue };
                if ends(key) {
                    return Ok(());
                }
                match key.code {
                    KeyCode::Char('s') => order.by = order.by.next(),
                    KeyCode::Char('r') => order.reversed = !order.reversed,
                    _ => {}
                }
                check_size()?;
                terminal.draw(|frame| draw(frame, &Shown::of(&now, &before, order)))?;
            }
            if count.is_some_and(|count| reports >= count) {
                return Ok(());
            }
            reports += 1;
            before = std::mem::replace(&mut now, Look::at(mount)?);
        }
    };
    let ended = ended();
    ratatui::restore();
    ended
}

fn ends(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
        || control && key.code == KeyCode::Char('c')
}
