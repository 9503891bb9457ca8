//! What a run shows while it is under way: a bar on a terminal, a line now and then elsewhere, or a
//! full screen (`--tui`). Also how it is stopped: the first Ctrl-C (or SIGTERM) ends the measurement and
//! keeps the result so far; the second one ends the program.
//!
//! The measuring thread reports through the functions of this module. They act on the run that this
//! thread has begun, and do nothing if there is none.
//!
//! ```text
//!  measuring thread --- row, round, standings ---> Now (under a lock, a few times a second)
//!  stream threads ----- bytes moved -------------> one counter
//!  this module's thread: reads both, draws; a key or a signal sets `stop`, which streams check
//! ```

mod draw;
mod lines;
mod screen;
mod signals;
mod state;

use std::cell::RefCell;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use state::{State, TICK};

pub(crate) use lines::duration;
pub(crate) use state::{Now, Rates, RunOfRuns, Standing};

/// Seconds between lines where there is no terminal and nothing else was asked for.
const HEARTBEAT: f64 = 10.0;
/// It was stopped by whoever runs it; what was measured before stands.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; what was measured before stands")]
pub(crate) struct Interrupted;

thread_local! {
    static CURRENT: RefCell<Option<Run>> = const { RefCell::new(None) };
}

/// A run that is shown.
struct Run {
    state: Arc<State>,
    ending: Option<Sender<()>>,
    shower: Option<JoinHandle<()>>,
}
impl Run {
    /// The terminal is as it was before.
    fn hide(&mut self) {
        self.ending = None;
        if let Some(shower) = self.shower.take() {
            shower.join().ok();
        }
    }
}

/// Ends what is shown when it is dropped, whatever happened.
#[must_use]
pub(crate) struct Shown;
impl Drop for Shown {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|c| {
            if let Some(mut run) = c.take() {
                run.hide();
            }
        });
    }
}

/// Shows what this thread measures from now on: on a screen of its own (`tui`), or by a line every `heartbeat`
/// seconds (0: none).
pub(crate) fn begin(tui: bool, heartbeat: Option<f64>) -> Shown {
    let state = Arc::new(State::default());
    if let Err(e) = signals::catch(&state.stop) {
        tracing::warn!("Ctrl-C will leave what was set up: {e}");
    }
    let (ending, over) = channel();
    let shown = state.clone();
    // Without a thread for it, nothing is shown.
    let shower =
        std::thread::Builder::new().spawn(move || watch(&shown, (tui, heartbeat), &over)).ok();
    CURRENT.set(Some(Run { state, ending: Some(ending), shower }));
    Shown
}

/// Takes what is shown off the terminal: results are printed now.
pub(crate) fn hide() {
    CURRENT.with_borrow_mut(|c| {
        if let Some(run) = c {
            run.hide();
        }
    });
}

fn tell(what: impl FnOnce(&mut Now)) {
    CURRENT.with_borrow(|c| {
        if let Some(run) = c {
            what(&mut run.state.now());
        }
    });
}

/// One of several runs begins.
pub(crate) fn whole(whole: RunOfRuns) {
    tell(|n| *n = Now { whole: Some(whole), ..Now::default() });
}
/// Rounds begin.
pub(crate) fn rounds(now: Now) {
    tell(|n| *n = Now { began: Some(Instant::now()), whole: n.whole.take(), ..now });
}
/// A round begins; how the rows stand after those before.
pub(crate) fn round(number: usize, standings: impl FnOnce() -> Vec<Standing>) {
    tell(|n| {
        n.round = number;
        n.standings = standings();
    });
}
/// A row begins.
pub(crate) fn row(what: String) {
    tell(|n| n.row = what);
}
/// A row is measured.
pub(crate) fn row_done() {
    tell(|n| n.done += 1);
}
/// Where this thread's run counts what is through, and looks whether it is to stop.
pub(crate) fn hooks() -> (Option<Arc<AtomicU64>>, Option<Arc<AtomicBool>>) {
    CURRENT.with_borrow(|c| {
        let state = c.as_ref().map(|run| &run.state);
        (state.map(|s| s.moved.clone()), state.map(|s| s.stop.clone()))
    })
}
/// Fails if the run is to end.
pub(crate) fn check_interrupted() -> Result<(), Interrupted> {
    check_stop(hooks().1.as_deref())
}
/// The same for a thread of the run, which was given what [`hooks`] says.
pub(crate) fn check_stop(stop: Option<&AtomicBool>) -> Result<(), Interrupted> {
    let stopped = stop.is_some_and(|s| s.load(Ordering::Relaxed));
    if stopped { Err(Interrupted) } else { Ok(()) }
}

/// Until it is over: draws a few times a second.
fn watch(state: &State, (tui, heartbeat): (bool, Option<f64>), over: &Receiver<()>) {
    let terminal = std::io::stderr().is_terminal();
    if tui && terminal && screen::show(state, over) {
        return;
    }
    let every = heartbeat.unwrap_or(if terminal { 0.0 } else { HEARTBEAT });
    let bar = (terminal && heartbeat.is_none()).then(lines::Bar::new);
    let (mut rates, mut due) = (Rates::default(), every);
    let began = Instant::now();
    while let Err(RecvTimeoutError::Timeout) = over.recv_timeout(TICK) {
        rates.look(state.moved.load(Ordering::Relaxed));
        let now = state.now().clone();
        if let Some(bar) = &bar {
            bar.draw(&now, &rates);
        } else if every > 0.0 && began.elapsed().as_secs_f64() >= due {
            due += every;
            eprintln!("{}", lines::heartbeat(&now, &rates));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_a_run_measures_all_the_same() {
        row("x".to_owned());
        assert!(hooks().0.is_none() && check_interrupted().is_ok());
    }
}
