//! Closed-loop clients on modelled disks: streams without threads.

use std::time::Duration;

use braid_format::{ByteOffset, Bytes};

use super::ModelDevice;
use crate::DeviceError;
use crate::model::{ModelClock, Rate, Ticket, Time};

/// A part of a client's request, on one disk. No bytes move, only time.
#[derive(Debug, Clone, Copy)]
pub struct Touch<'a> {
    /// The disk.
    pub device: &'a ModelDevice,
    /// Written rather than read.
    pub write: bool,
    /// First byte on it.
    pub at: ByteOffset,
    /// Bytes.
    pub len: Bytes,
}

/// How long a client waits after a request, by its submission and completion.
pub type Pause<'a> = Box<dyn FnMut(Time, Time) -> Duration + 'a>;

/// A client: it keeps `depth` requests under way until there are no more, and submits the next
/// `think` after one is complete. A request is complete when all its parts are, which are submitted
/// at the same instant.
pub struct Client<'a> {
    /// Requests under way.
    pub depth: usize,
    /// Time between a completion and the next submission.
    pub think: Duration,
    /// If given, in place of `think`: asked at each completion, with when that request was submitted
    /// and when it was complete.
    pub pause: Option<Pause<'a>>,
    /// What to request, in order.
    pub requests: Box<dyn Iterator<Item = Vec<Touch<'a>>> + 'a>,
}
impl std::fmt::Debug for Client<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("depth", &self.depth)
            .field("think", &self.think)
            .finish_non_exhaustive()
    }
}
impl<'a> Client<'a> {
    /// A client that does not think.
    pub fn new(depth: usize, requests: impl Iterator<Item = Vec<Touch<'a>>> + 'a) -> Self {
        Self { depth, think: Duration::ZERO, pause: None, requests: Box::new(requests) }
    }
}

/// How a client fared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes of all its requests.
    pub moved: Bytes,
    /// First submission.
    pub began: Time,
    /// Last completion.
    pub ended: Time,
    /// From submission to completion, request by request, in order of completion.
    pub latencies: Vec<Duration>,
}
impl Outcome {
    /// Bytes per second from its first submission to its last completion.
    pub fn rate(&self) -> Rate {
        Rate::of(self.moved, self.ended - self.began)
    }
}

/// A request under way.
struct Running {
    client: usize,
    submitted: Time,
    /// Parts not complete.
    left: usize,
}

struct Drive<'a> {
    clients: Vec<Client<'a>>,
    outcomes: Vec<Outcome>,
    running: Vec<Running>,
    /// Parts under way, and their places in `running`.
    tickets: Vec<(Ticket, usize)>,
}
impl Drive<'_> {
    /// Submits a client's next request, if there is one.
    fn next(&mut self, client: usize, when: Time) -> Result<(), DeviceError> {
        let Some(c) = self.clients.get_mut(client) else { return Ok(()) };
        let Some(parts) = c.requests.next() else { return Ok(()) };
        let place = self.running.len();
        self.running.push(Running { client, submitted: when, left: parts.len() });
        for p in &parts {
            self.tickets.push((p.device.touch(when, p.write, p.at, p.len)?, place));
            if let Some(outcome) = self.outcomes.get_mut(client) {
                outcome.moved = Bytes(outcome.moved.0 + p.len.0);
            }
        }
        Ok(())
    }
    /// Waits for the first part to be complete.
    fn complete(&mut self, clock: &ModelClock) -> Result<(), DeviceError> {
        let (first, time) = clock.first_of(&self.tickets.iter().map(|(t, _)| t));
        // In order: of parts complete at the same instant the first submitted comes first.
        let (_, place) = self.tickets.remove(first);
        let Some(running) = self.running.get_mut(place) else { return Ok(()) };
        running.left -= 1;
        if running.left > 0 {
            return Ok(());
        }
        let (client, submitted) = (running.client, running.submitted);
        if let Some(outcome) = self.outcomes.get_mut(client) {
            outcome.ended = time;
            outcome.latencies.push(time - submitted);
        }
        let think = self.clients.get_mut(client).map_or(Duration::ZERO, |c| match &mut c.pause {
            Some(pause) => pause(submitted, time),
            None => c.think,
        });
        self.next(client, time + think)
    }
}

/// Runs clients side by side until none has anything left; all begin at the same instant. The
/// disks belong to `clock`. Every request has at least one part.
///
/// # Errors
/// As [`ModelDevice::touch`].
pub fn drive(clock: &ModelClock, clients: Vec<Client<'_>>) -> Result<Vec<Outcome>, DeviceError> {
    let began = clock.now();
    let nothing = Outcome { moved: Bytes(0), began, ended: began, latencies: Vec::new() };
    let outcomes = vec![nothing; clients.len()];
    let depths: Vec<usize> = clients.iter().map(|c| c.depth).collect();
    let mut drive = Drive { clients, outcomes, running: Vec::new(), tickets: Vec::new() };
    for (client, depth) in depths.into_iter().enumerate() {
        for _ in 0..depth {
            drive.next(client, began)?;
        }
    }
    while !drive.tickets.is_empty() {
        drive.complete(clock)?;
    }
    Ok(drive.outcomes)
}
