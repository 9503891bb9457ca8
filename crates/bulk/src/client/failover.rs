//! Looks for another server of the pool while the one in use does not answer.
//!
//! Another server begins a session only when nothing of the former one is under way any more, since the former server's
//! node has left or is dead and fenced (docs/BULK.md, section 11). Until then the former server is tried, too, by
//! whoever has a request, and used if it answers.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::connection::{Failure, Greeting, Patience, leave};
use super::place::{Found, Place};
use super::session::Session;
use crate::error::LinkError;
use crate::link::Link;
use crate::wire::{NEWEST_VERSION, ServerLife, Welcome};

/// Between two looks at whether the server answers.
const LOOK: Duration = Duration::from_millis(50);
/// Between two questions to a server that says that the former one lives: at first, and later.
const ASK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// So long is at first.
const SOON: Duration = Duration::from_secs(5);
/// A server that does not answer is tried again after so long, twice as long the next time, and so on.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// For each step of a connection.
const PATIENCE: Patience =
    Patience { connect: Duration::from_secs(1), greeting: Duration::from_secs(2) };
/// The slot that says HELLO. Its connection is not kept.
const SLOT: u16 = 0;

/// Begins to look, as long as somebody has the session.
pub fn start(session: &Arc<Session>) {
    if !session.has_several() {
        return;
    }
    let servers = session.servers().len();
    let session = Arc::downgrade(session);
    let work = move || Failover::new(servers).run(&session);
    if let Err(error) = std::thread::Builder::new().name("bulk".into()).spawn(work) {
        tracing::warn!(%error, "no other server is used if this one dies");
    }
}

/// What is known of a server.
#[derive(Debug, Clone)]
struct Known {
    /// It is asked again then.
    next: Instant,
    /// And so much later the next time.
    pause: Duration,
    /// It was said that it is of no use.
    is_said: bool,
    /// Which node it was when it answered last.
    life: Option<ServerLife>,
}

#[derive(Debug)]
struct Failover {
    known: Vec<Known>,
    /// Since when there is no answer, and whether it was said why no other server is used.
    silent: Option<(Instant, bool)>,
}

impl Failover {
    fn new(servers: usize) -> Self {
        let known = Known { next: Instant::now(), pause: RETRY.0, is_said: false, life: None };
        Self { known: vec![known; servers], silent: None }
    }

    fn run(&mut self, session: &Weak<Session>) {
        loop {
            std::thread::sleep(LOOK);
            let Some(session) = session.upgrade() else { return };
            if session.is_closed() {
                return;
            }
            if !session.is_suspect() {
                self.silent = None;
                session.forget_refusals();
                continue;
            }
            session.note_silence();
            self.silent.get_or_insert((Instant::now(), false));
            self.look_around(&session);
        }
    }

    /// Asks the other servers, each if it is time.
    fn look_around(&mut self, session: &Session) {
        let (place, servers) = (session.place(), session.servers());
        if place.former().is_none() {
            self.say_once(|| {
                let server = session.server();
                tracing::warn!(
                    "{server} speaks an older version of the protocol: no other server is used in its place"
                );
            });
            return;
        }
        let life = place.welcome.and_then(|welcome| welcome.life);
        if let Some(known) = self.known.get_mut(place.server) {
            known.life = life;
        }
        for n in 1..servers.len() {
            let server = (place.server + n) % servers.len();
            let Some(known) = self.known.get(server) else { continue };
            // By another address, a server that is only slow is no faster.
            let is_same = known.life == life && !session.is_lost();
            if is_same || known.next > Instant::now() {
                continue;
            }
            let asked = ask(session, &place, server);
            if self.heard(session, (&place, server), asked) {
                return;
            }
        }
    }

    fn say_once(&mut self, say: impl FnOnce()) {
        if let Some((_, is_said)) = &mut self.silent
            && !std::mem::replace(is_said, true)
        {
            say();
        }
    }

    /// What came of a question. Whether the client is somewhere else now.
    fn heard(
        &mut self,
        session: &Session,
        (place, server): (&Place, usize),
        asked: Result<(Found, Link), Failure>,
    ) -> bool {
        let name = session.server_name(server);
        session.note_refusal(server, refuses(&asked));
        if let (Some(known), Ok((found, _))) = (self.known.get_mut(server), &asked) {
            known.life = found.welcome.life;
        }
        let began = self.silent.map_or_else(Instant::now, |(since, _)| since);
        let wait = if began.elapsed() < SOON { ASK.0 } else { ASK.1 };
        let why = match asked {
            Ok((found, link)) if !fits(session, place, &found.welcome) => {
                leave(place, &found, link);
                "it takes smaller messages, or fewer connections, or has another root".to_owned()
            }
            Ok((found, link)) => {
                if !session.fail_over(place, &found) {
                    leave(place, &found, link);
                }
                return true;
            }
            Err(Failure::Link(LinkError::FormerLives)) => {
                self.later(server, Some(wait));
                if began.elapsed() > SOON {
                    self.say_once(|| {
                        let former = session.server();
                        tracing::warn!(
                            "{name} serves, but the node of {former} lives, or is not known to be dead: waiting for {former}"
                        );
                    });
                }
                return false;
            }
            Err(Failure::Old) => "it speaks an older version of the protocol".to_owned(),
            Err(failure) => match failure.judged(name) {
                Ok(error) => {
                    tracing::debug!("{name}: {error}");
                    self.later(server, None);
                    return false;
                }
                Err(error) => error.to_string(),
            },
        };
        self.later(server, None);
        if let Some(known) = self.known.get_mut(server)
            && !std::mem::replace(&mut known.is_said, true)
        {
            tracing::warn!("{name} is not used in the place of {}: {why}", session.server());
        }
        false
    }

    /// A server is asked again after `wait`; `None`: less and less often.
    fn later(&mut self, server: usize, wait: Option<Duration>) {
        let Some(known) = self.known.get_mut(server) else { return };
        known.next = Instant::now() + wait.unwrap_or(known.pause);
        known.pause = if wait.is_some() { RETRY.0 } else { (known.pause * 2).min(RETRY.1) };
    }
}

fn refuses<T>(asked: &Result<T, Failure>) -> bool {
    match asked {
        Err(Failure::Final(_)) => true,
        Err(Failure::Link(why)) => why.is_final(),
        Ok(_) | Err(Failure::Old) => false,
    }
}

/// Whether what a client does in its session can be done in another one.
fn fits(session: &Session, place: &Place, other: &Welcome) -> bool {
    let Some(welcome) = place.welcome else { return false };
    let slots = session.data_slots().saturating_add(1);
    other.data_max >= welcome.data_max && other.slots >= slots && other.root == welcome.root
}

/// Asks a server to begin a session after the one of `place`.
fn ask(session: &Session, place: &Place, server: usize) -> Result<(Found, Link), Failure> {
    let Some(begin) = place.former() else { return Err(Failure::Old) };
    let connector = session.connector();
    let name = session.server_name(server);
    let (mut link, address) = connector.dial(name, PATIENCE, |_| Ok(()))?;
    let version = NEWEST_VERSION;
    let greeting = Greeting { version, begin, slot: SLOT };
    let welcome = connector.greet(&mut link, greeting, PATIENCE)?;
    Ok((Found { server, address, welcome, version }, link))
}
