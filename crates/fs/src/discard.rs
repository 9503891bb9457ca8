//! The thread of a mount with `-o discard`: what was freed goes back to the devices every commit interval
//! ([`crate::alloc`], `discard`), beside the housekeeper, which must not wait for devices that take long.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use braid_lock::interrupt::Interrupt;
use braid_pool::BackgroundIo;
use parking_lot::Mutex;

use crate::core::Core;
use crate::stop_flag::StopFlag;

/// The thread.
pub(crate) struct Discarder {
    stop: Arc<StopFlag>,
    interrupt: Interrupt,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Discarder {
    /// Begins, if the mount asks for it.
    pub fn start(core: &Arc<Core>) -> Self {
        let stop = Arc::<StopFlag>::default();
        let interrupt = Interrupt::of_steps();
        let wanted = core.options.discard && !core.options.read_only;
        let thread = wanted.then(|| {
            core.alloc.remember_freed();
            let (of_thread, core) = (stop.clone(), Arc::downgrade(core));
            let interrupt = interrupt.clone();
            std::thread::Builder::new()
                .name("braid-discard".into())
                .spawn(move || {
                    let _scope = interrupt.scope();
                    run(&core, &of_thread);
                })
                .expect("a thread at mount time")
        });
        Self { stop, interrupt, thread: Mutex::new(thread) }
    }
    /// Ends it, soon.
    pub fn stop(&self) {
        self.stop.request();
        self.interrupt.trip_current();
        if let Some(thread) = self.thread.lock().take() {
            thread.join().ok();
        }
    }
}

fn run(core: &Weak<Core>, stop: &StopFlag) {
    let mut next = Instant::now();
    while !stop.sleep_until(next) {
        let Some(core) = core.upgrade() else { return };
        if core.withdrawn.get().is_some() {
            return;
        }
        let over = || stop.is_requested() || core.withdrawn.get().is_some();
        // Nobody waits for it.
        let _own = BackgroundIo::begin();
        if let Some(_change) = core.freeze.try_enter()
            && let Err(e) = core.watch(core.alloc.discard_freed(&over))
            && !e.is_interrupted()
        {
            tracing::error!("giving space back: {e}");
        }
        next = Instant::now() + core.options.commit_interval;
    }
}
