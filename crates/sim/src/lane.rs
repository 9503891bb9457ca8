//! Blocking code in virtual time.
//!
//! A lane is an operating-system thread that runs one job at a time, and only while the world
//! waits for it: when the job asks a device for something, the lane stops, and the world goes on
//! until that request has landed and been answered. So of a whole run one thread is awake at any
//! moment, which one follows from the seed, and the code in the job needs to know nothing of it.
//!
//! What jobs of different lanes of one node share (the metadata cache) must not be locked across a
//! request by one and wanted by another: nobody would wake up. `work` says which jobs go where.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::image::Place;

/// What a job asks of a device.
#[derive(Debug)]
pub(crate) enum Request {
    Read { place: Place, len: usize },
    Write { place: Place, bytes: Vec<u8> },
    Flush { device: u16 },
}

/// The bytes read (empty for others), or a failure.
pub(crate) type Reply = Result<Vec<u8>, ()>;

/// What a lane stops for.
pub(crate) enum Stop<T> {
    Asks(Request),
    Done(T),
    /// The job panicked: a broken promise of the code that it ran.
    Panicked(String),
}

/// A job's way to the devices.
struct Port {
    ask: Box<dyn Fn(Request)>,
    replies: Receiver<Reply>,
}

thread_local! {
    static PORT: RefCell<Option<Port>> = const { RefCell::new(None) };
}

/// Asks the world; `None` when this thread is not a lane. A lane whose node has died gets a
/// failure, always.
pub(crate) fn ask(request: Request) -> Option<Reply> {
    PORT.with_borrow(|port| {
        let port = port.as_ref()?;
        (port.ask)(request);
        Some(port.replies.recv().unwrap_or(Err(())))
    })
}

type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// One thread of a node. Dropped: whatever it does fails from there on, until its job has ended.
pub(crate) struct Lane<T> {
    jobs: Option<Sender<Job<T>>>,
    replies: Option<Sender<Reply>>,
    stops: Receiver<Stop<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Lane<T> {
    pub(crate) fn new() -> Self {
        let (jobs, todo) = channel::<Job<T>>();
        let (replies, answers) = channel();
        let (stop, stops) = channel();
        let thread = std::thread::spawn(move || {
            let asks = stop.clone();
            let ask = Box::new(move |request| drop(asks.send(Stop::Asks(request))));
            PORT.set(Some(Port { ask, replies: answers }));
            while let Ok(job) = todo.recv() {
                let done = match catch_unwind(AssertUnwindSafe(job)) {
                    Ok(done) => Stop::Done(done),
                    Err(panic) => Stop::Panicked(text_of(&*panic)),
                };
                if stop.send(done).is_err() {
                    return;
                }
            }
        });
        Self { jobs: Some(jobs), replies: Some(replies), stops, thread: Some(thread) }
    }
    /// Begins a job; the one before has ended.
    pub(crate) fn start(&self, job: Job<T>) -> Stop<T> {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
        self.wait()
    }
    /// Answers what it asked for.
    pub(crate) fn reply(&self, reply: Reply) -> Stop<T> {
        if let Some(replies) = &self.replies {
            let _ = replies.send(reply);
        }
        self.wait()
    }
    fn wait(&self) -> Stop<T> {
        self.stops.recv().unwrap_or_else(|_| Stop::Panicked("its thread has ended".to_owned()))
    }
}

impl<T> Drop for Lane<T> {
    fn drop(&mut self) {
        self.jobs = None;
        self.replies = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without a text"))
}
