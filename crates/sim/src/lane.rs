//! Blocking code in virtual time.
//!
//! A lane runs one job at a time, on a stack of its own, and only while the world waits for it: when
//! the job asks a device for something, the lane stops, and the world goes on until that request has
//! landed and been answered. All of a run is one thread of the operating system; which lane goes on
//! follows from the seed, and the code in the job needs to know nothing of it. What that code keeps
//! per thread is put aside while its lane stands still (`braid_fs::simulation::outside_transaction`).
//!
//! What jobs of different lanes of one node share (the metadata cache) must not be locked across a
//! request by one and wanted by another: nobody would wake up. `work` says which jobs go where.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use braid_fs::simulation::outside_transaction;
use braid_lock::simulation::Hooks;
use generator::{Generator, Gn};

use crate::disk::{Address, Op};
use crate::image::Place;

/// Words of a stack: half a mebibyte, of which what is used takes memory.
const STACK: usize = 64 << 10;
/// Stacks without a job that a thread keeps.
const IDLE_MAX: usize = 64;

/// What a job asks of a device.
#[derive(Debug)]
pub(crate) enum Request {
    Read {
        place: Place,
        len: usize,
    },
    Write {
        place: Place,
        bytes: Vec<u8>,
    },
    CompareAndWrite {
        place: Place,
        expected: Vec<u8>,
        new: Vec<u8>,
    },
    Flush {
        device: u16,
    },
    /// All slots, then all heartbeats.
    Slots,
    /// One slot.
    Slot(u16),
    /// Whether another process is seen to hold this slot's liveness lock: one byte.
    IsLifeLocked(u16),
    /// Others go on for a while; where it holds nothing of the node's pool (`free`), the other lanes of its node, too.
    Pause {
        free: bool,
    },
}

impl Request {
    /// What it asks of which place.
    pub(crate) fn into_command(self) -> Result<(Address, Op), Other> {
        Ok(match self {
            Self::Read { place, len } => (Address::Data(place, len), Op::Read),
            Self::Write { place, bytes } => (Address::Data(place, bytes.len()), Op::Write(bytes)),
            Self::CompareAndWrite { place, expected, new } => {
                (Address::Data(place, new.len()), Op::CompareAndWrite { expected, new })
            }
            Self::Flush { device } => (Address::Device(device), Op::Flush),
            Self::Slots => (Address::Slots, Op::Read),
            Self::Slot(slot) => (Address::Slot(slot), Op::Read),
            Self::IsLifeLocked(slot) => return Err(Other::IsLifeLocked(slot)),
            Self::Pause { free } => return Err(Other::Pause { free }),
        })
    }
}

/// What no device is asked for: see [`Request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Other {
    Pause { free: bool },
    IsLifeLocked(u16),
}

/// What threads of nodes do in place of sleeping, and whether they are over.
pub(crate) const HOOKS: Hooks = Hooks {
    pause: || {
        ask(Request::Pause { free: true });
    },
    has_ended: || ENDED.get(),
};

/// The bytes read, or that stood in the way of a compare-and-write (empty otherwise), or a failure.
pub(crate) type Reply = Result<Vec<u8>, ()>;

/// What a lane stops for.
pub(crate) enum Stop<T> {
    Asks(Request),
    Done(T),
    /// The job panicked: a broken promise of the code that it ran.
    Panicked(String),
}

/// What a stack stops for.
enum Said {
    Asks(Request),
    Ended,
}

/// Asks the world; `None` outside lanes. A lane whose node has died gets a failure, always.
pub(crate) fn ask(request: Request) -> Option<Reply> {
    if !generator::is_generator() {
        return None;
    }
    #[expect(deprecated, reason = "what replaces it would have to be handed down to the devices")]
    let reply = outside_transaction(|| generator::yield_::<Reply, Said>(Said::Asks(request)));
    Some(reply.unwrap_or(Err(())))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
fn taken<T>(from: &Mutex<Option<T>>) -> Option<T> {
    locked(from).take()
}

/// Runs one job after another; ends when it is woken without one.
struct Stack {
    run: Generator<'static, Reply, Said>,
    job: Arc<Mutex<Option<Job<()>>>>,
}

thread_local! {
    /// The lane that runs is one of a node that has died.
    static ENDED: Cell<bool> = const { Cell::new(false) };
    /// Stacks without a job.
    static IDLE: RefCell<Vec<Stack>> = const { RefCell::new(Vec::new()) };
}

impl Stack {
    fn new() -> Self {
        let job: Arc<Mutex<Option<Job<()>>>> = Arc::default();
        let todo = job.clone();
        let run = Gn::new_opt(STACK, move || {
            while let Some(job) = taken(&todo) {
                job();
                #[expect(deprecated, reason = "as in `ask`")]
                generator::yield_with(Said::Ended);
            }
            Said::Ended
        });
        Self { run, job }
    }
    fn idle() -> Self {
        IDLE.with_borrow_mut(Vec::pop).unwrap_or_else(Self::new)
    }
    /// Its job has ended.
    fn rest(self) {
        let keep = |idle: &mut Vec<Self>| {
            if idle.len() < IDLE_MAX {
                idle.push(self);
            }
        };
        IDLE.with_borrow_mut(keep);
    }
}
impl Drop for Stack {
    fn drop(&mut self) {
        self.run.resume();
    }
}

type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// One thread of a node. Dropped: whatever it does fails from there on, until its job has ended.
pub(crate) struct Lane<T> {
    /// While it has a job.
    stack: Option<Stack>,
    done: Arc<Mutex<Option<Result<T, String>>>>,
}

impl<T: Send + 'static> Lane<T> {
    pub(crate) fn new() -> Self {
        Self { stack: None, done: Arc::default() }
    }
    /// Begins a job; the one before has ended.
    pub(crate) fn start(&mut self, job: Job<T>) -> Stop<T> {
        assert!(self.stack.is_none(), "a lane has one job at a time");
        let done = self.done.clone();
        let mut stack = Stack::idle();
        *locked(&stack.job) = Some(Box::new(move || {
            let ended = catch_unwind(AssertUnwindSafe(job)).map_err(|panic| text_of(&*panic));
            *locked(&done) = Some(ended);
        }));
        let said = stack.run.resume();
        self.stack = Some(stack);
        self.stopped(said)
    }
    /// Answers what it asked for.
    pub(crate) fn reply(&mut self, reply: Reply) -> Stop<T> {
        let said = self.stack.as_mut().and_then(|stack| stack.run.raw_send(Some(reply)));
        self.stopped(said)
    }
    fn stopped(&mut self, said: Option<Said>) -> Stop<T> {
        if let Some(Said::Asks(request)) = said {
            return Stop::Asks(request);
        }
        if let Some(stack) = self.stack.take() {
            stack.rest();
        }
        match taken(&self.done) {
            Some(Ok(done)) => Stop::Done(done),
            Some(Err(panic)) => Stop::Panicked(panic),
            None => Stop::Panicked("its job is lost".to_owned()),
        }
    }
}

impl<T> Drop for Lane<T> {
    fn drop(&mut self) {
        let Some(mut stack) = self.stack.take() else { return };
        let before = ENDED.replace(true);
        while let Some(Said::Asks(_)) = stack.run.raw_send(Some(Err(()))) {}
        ENDED.set(before);
        stack.rest();
    }
}

pub(crate) fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without a text"))
}
