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

use std::cell::RefCell;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::statistics::Interval;

pub(crate) use lines::duration;

/// Between two looks at what is done.
const TICK: Duration = Duration::from_millis(200);
/// Seconds between lines where there is no terminal and nothing else was asked for.
const HEARTBEAT: f64 = 10.0;
/// Looks that the screen draws.
const LOOKS: usize = 240;

/// It was stopped by whoever runs it; what was measured before stands.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; what was measured before stands")]
pub(crate) struct Interrupted;

/// What the user sees of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Show {
    /// A screen of its own.
    pub tui: bool,
    /// Seconds between lines; 0: none.
    pub heartbeat: Option<f64>,
}

/// How a row stands against the base.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Standing {
    pub what: String,
    pub ratio: f64,
    pub interval: Option<Interval>,
}

/// Several runs, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct RunOfRuns {
    /// Which one, from 1, and how many.
    pub number: usize,
    pub count: usize,
    /// What it is called.
    pub name: String,
    /// When all of them will be over, about.
    pub ends: Instant,
}
impl RunOfRuns {
    /// How long all of them will take.
    pub fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }
}

/// What is under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Now {
    /// What this is a part of.
    pub whole: Option<RunOfRuns>,
    /// The mode.
    pub mode: String,
    /// What is counted, if not bytes.
    pub counted: &'static str,
    /// What is measured at the moment: system, phase, parameters.
    pub row: String,
    /// Rounds: which one, at most, and rows of one round (0: not known).
    pub round: usize,
    pub rounds: usize,
    pub rows: usize,
    /// Rows measured so far, in all rounds.
    pub done: usize,
    /// When the rounds began.
    pub began: Option<Instant>,
    /// No round is begun after so much time.
    pub budget: Duration,
    /// Enough when all intervals are this narrow.
    pub width: f64,
    pub base: String,
    pub standings: Vec<Standing>,
}

impl Now {
    /// Rows of all rounds.
    fn all(&self) -> usize {
        self.rows * self.rounds
    }
    /// 0 to 1.
    pub fn part(&self) -> f64 {
        let float = |n: usize| crate::statistics::float(n as u64);
        if self.all() == 0 { 0.0 } else { (float(self.done) / float(self.all())).min(1.0) }
    }
    /// How long it will take at most, if rows take as long as those before. Narrow intervals may
    /// end it earlier.
    pub fn left(&self) -> Option<Duration> {
        let elapsed = self.began?.elapsed();
        if self.done == 0 || self.rows == 0 {
            return None;
        }
        let row = elapsed / u32::try_from(self.done).unwrap_or(u32::MAX);
        let rows = |n: usize| row.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX));
        let by_rounds = rows(self.all().saturating_sub(self.done));
        // The round that is under way when the budget ends is finished.
        let in_round = self.done % self.rows;
        let rest = if in_round == 0 { 0 } else { self.rows - in_round };
        let by_budget = self.budget.saturating_sub(elapsed).saturating_add(rows(self.rows / 2));
        Some(by_rounds.min(by_budget.max(rows(rest))))
    }
    /// The widest of all intervals, as a part of its ratio; `None`: one is not known yet.
    pub fn widest(&self) -> Option<f64> {
        let width = |s: &Standing| s.interval.map(|i| i.width());
        let all: Option<Vec<f64>> = self.standings.iter().map(width).collect();
        all.filter(|a| !a.is_empty()).map(|a| a.into_iter().fold(0.0, f64::max))
    }
}

/// What the threads have in common.
#[derive(Debug, Default)]
struct State {
    now: Mutex<Now>,
    moved: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}
impl State {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rates at the last looks, per second.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    last: Option<(Instant, u64)>,
    pub looks: Vec<f64>,
}
impl Rates {
    fn look(&mut self, moved: u64) {
        let now = Instant::now();
        if let Some((when, before)) = self.last {
            let seconds = now.saturating_duration_since(when).as_secs_f64().max(1e-6);
            let rate = crate::statistics::float(moved.saturating_sub(before)) / seconds;
            self.looks.push(rate);
            if self.looks.len() > LOOKS {
                self.looks.remove(0);
            }
        }
        self.last = Some((now, moved));
    }
    /// Over the last second.
    pub fn latest(&self) -> f64 {
        let last = self.looks.iter().rev().take(5);
        let count = crate::statistics::float(last.clone().count().max(1) as u64);
        last.sum::<f64>() / count
    }
}

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

/// Shows what this thread measures from now on.
pub(crate) fn begin(show: Show) -> Shown {
    let state = Arc::new(State::default());
    if let Err(e) = signals::catch(&state.stop) {
        tracing::warn!("Ctrl-C will leave what was set up: {e}");
    }
    let (ending, over) = channel();
    let shown = state.clone();
    // Without a thread for it, nothing is shown.
    let shower = std::thread::Builder::new().spawn(move || watch(&shown, show, &over)).ok();
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
///
/// # Errors
/// [`Interrupted`].
pub(crate) fn check_interrupted() -> Result<(), Interrupted> {
    check_stop(hooks().1.as_deref())
}
/// The same for a thread of the run, which was given what [`hooks`] says.
///
/// # Errors
/// [`Interrupted`].
pub(crate) fn check_stop(stop: Option<&AtomicBool>) -> Result<(), Interrupted> {
    let stopped = stop.is_some_and(|s| s.load(Ordering::Relaxed));
    if stopped { Err(Interrupted) } else { Ok(()) }
}

/// Until it is over: draws a few times a second.
fn watch(state: &State, show: Show, over: &std::sync::mpsc::Receiver<()>) {
    let terminal = std::io::stderr().is_terminal();
    if show.tui && terminal && screen::show(state, over) {
        return;
    }
    let every = show.heartbeat.unwrap_or(if terminal { 0.0 } else { HEARTBEAT });
    let bar = (terminal && show.heartbeat.is_none()).then(lines::Bar::new);
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
    fn what_is_left_follows_from_the_rows_before_and_from_the_budget() {
        let began = Instant::now().checked_sub(Duration::from_secs(10));
        let budget = Duration::from_secs(1000);
        let mut now = Now { rounds: 4, rows: 5, done: 10, began, budget, ..Now::default() };
        // Ten rows in ten seconds; ten more.
        let left = now.left().unwrap().as_secs_f64();
        assert!((9.9..15.0).contains(&left), "{left}");
        assert!((now.part() - 0.5).abs() < 1e-9);
        // The budget ends before them.
        now.budget = Duration::from_secs(11);
        let left = now.left().unwrap().as_secs_f64();
        assert!(left < 5.0, "{left}");
        now.done = 0;
        assert_eq!(now.left(), None);
    }
    #[test]
    fn a_thread_without_a_run_measures_all_the_same() {
        row("x".to_owned());
        assert!(hooks().0.is_none() && check_interrupted().is_ok());
    }
}
