//! A screen of its own. The terminal is restored at the end, on an error and on a panic.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers, poll, read};

use super::draw::draw;
use super::look::{Look, Shown};
use super::order::Order;
use crate::process::mounts::Mount;

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
    let mut terminal = ratatui::try_init().context("no screen of its own: use --plain")?;
    let (mut before, mut now) = (first.clone(), first);
    let mut reports = 0;
    let mut ended = || -> Result<()> {
        loop {
            terminal.draw(|frame| draw(frame, &Shown::of(&now, &before, order)))?;
            let next = Instant::now() + interval;
            loop {
                let rest = next.saturating_duration_since(Instant::now());
                if rest.is_zero() || !poll(rest)? {
                    break;
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
