//! A full-screen view (`--tui`). The terminal is restored at the end, on an error, on a panic and on a
//! second Ctrl-C.

use std::io::{Stderr, stderr};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{Event, KeyCode, KeyModifiers, poll, read};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use super::draw::draw;
use super::state::{Rates, State, TICK};

/// Whether the terminal is ours at the moment.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Gives the terminal back. Can be called at any time, by anyone, more than once.
pub(super) fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // Nothing better can be done if it fails.
        let _ = execute!(stderr(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// The terminal, taken.
struct Screen(Terminal<CrosstermBackend<Stderr>>);
impl Screen {
    fn take() -> std::io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            // What a panic says must be read on the terminal as it was.
            let usual = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                usual(info);
            }));
        });
        enable_raw_mode()?;
        TAKEN.store(true, Ordering::SeqCst);
        let taken = execute!(stderr(), EnterAlternateScreen);
        match taken.and_then(|()| Terminal::new(CrosstermBackend::new(stderr()))) {
            Ok(terminal) => Ok(Self(terminal)),
            Err(e) => {
                restore();
                Err(e)
            }
        }
    }
}
impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Draws until it is over; `false` if the terminal cannot do it.
pub(super) fn show(state: &State, over: &Receiver<()>) -> bool {
    let mut screen = match Screen::take() {
        Ok(screen) => screen,
        Err(e) => {
            tracing::warn!("no screen of its own ({e}): lines instead");
            return false;
        }
    };
    let mut rates = Rates::default();
    while over.try_recv() == Err(TryRecvError::Empty) {
        rates.look(state.moved.load(Ordering::Relaxed));
        let now = state.now().clone();
        if screen.0.draw(|frame| draw(frame, &now, &rates)).is_err() {
            return false;
        }
        // Waits for a key as long as a look takes; Ctrl-C is a key on such a terminal.
        if let Ok(true) = poll(TICK)
            && let Ok(Event::Key(key)) = read()
        {
            let control = key.modifiers.contains(KeyModifiers::CONTROL);
            let end = key.code == KeyCode::Char('q') || control && key.code == KeyCode::Char('c');
            if end && state.stop.swap(true, Ordering::Relaxed) {
                restore();
                std::process::exit(130);
            }
        }
    }
    true
}
