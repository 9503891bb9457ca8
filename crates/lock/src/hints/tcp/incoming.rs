//! A connection that somebody made to this node, to send it hints.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::super::message::{Received, decode};
use super::super::seal::{GREETING, SEALED, Seal, Secret};
use crate::Life;

/// In which who connects must have proven who it is.
const PROOF_MAX: Duration = Duration::from_secs(5);
/// Longest message.
const MESSAGE_MAX: usize = if SEALED > GREETING { SEALED } else { GREETING };
/// Messages taken before the others have their turn.
const TURN: usize = 64;

#[derive(Debug)]
enum Stage {
    /// An opening is to come.
    Fresh,
    /// It was answered; what comes next shows whether it was new.
    Answered(Life, Seal),
    /// It was.
    Proven(Life, Seal),
}

#[derive(Debug)]
pub(super) struct Incoming {
    stream: TcpStream,
    stage: Stage,
    since: Instant,
    /// It has proven itself just now.
    news: bool,
    /// What has come of the next message.
    got: [u8; MESSAGE_MAX],
    len: usize,
}

impl Incoming {
    pub fn new(stream: TcpStream, now: Instant) -> Self {
        Self { stream, stage: Stage::Fresh, since: now, news: false, got: [0; MESSAGE_MAX], len: 0 }
    }
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
    pub fn proven(&self) -> Option<Life> {
        match self.stage {
            Stage::Proven(who, _) => Some(who),
            _ => None,
        }
    }
    /// Whether it has proven itself since [`Self::age`].
    pub fn is_news(&self) -> bool {
        self.news
    }
    pub fn age(&mut self) {
        self.news = false;
    }
    /// When it is at an end, if it does not prove itself.
    pub fn deadline(&self) -> Option<Instant> {
        self.proven().is_none().then(|| self.since + PROOF_MAX)
    }

    /// Reads what there is; false if the connection is at an end.
    pub fn hear(&mut self, me: Life, secret: &Secret, on_hint: &dyn Fn(Received)) -> bool {
        for _ in 0..TURN {
            let whole = if matches!(self.stage, Stage::Fresh) { GREETING } else { SEALED };
            let Some(room) = self.got.get_mut(self.len..whole) else { return false };
            match (&self.stream).read(room) {
                Ok(0) => return false,
                Ok(n) => self.len += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
            if self.len == whole {
                self.len = 0;
                if !self.take(me, secret, on_hint) {
                    return false;
                }
            }
        }
        true
    }

    /// A whole message has come.
    fn take(&mut self, me: Life, secret: &Secret, on_hint: &dyn Fn(Received)) -> bool {
        let was_proven = self.proven().is_some();
        let next = match std::mem::replace(&mut self.stage, Stage::Fresh) {
            Stage::Fresh => self.got.first_chunk().and_then(|got| secret.answer(me, got)).and_then(
                |(from, answer, seal)| {
                    // A new connection has room for it.
                    (&self.stream).write_all(&answer).ok()?;
                    Some(Stage::Answered(from, seal))
                },
            ),
            Stage::Answered(from, mut seal) | Stage::Proven(from, mut seal) => {
                self.news |= !was_proven;
                let sealed = self.got.first_chunk::<SEALED>();
                let hint = sealed.and_then(|s| seal.open(s)).and_then(|h| decode(h, me));
                hint.filter(|hint| hint.from == from).map(|hint| {
                    on_hint(hint);
                    Stage::Proven(from, seal)
                })
            }
        };
        next.is_some_and(|next| {
            self.stage = next;
            true
        })
    }
}
