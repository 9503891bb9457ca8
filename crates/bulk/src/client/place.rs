//! Where a client is: which server it uses, and in which session. No I/O.
//!
//! ```text
//!  begun ── a server knows the session no more ──> forgotten ── HELLO ──> begun, with the same server or another
//!    │ ^                                                │                   ^
//!    │ └────────── its server knows it all the same ────┘                   │
//!    └── another server says that nothing of it is under way any more ──────┘
//! ```

use std::net::SocketAddr;
use std::time::SystemTime;

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

use crate::wire::{Begin, SessionId, Welcome};

/// No session has this number.
const NO_SESSION: SessionId = [0; 16];

/// Where a client is.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Counts sessions, those that are over too.
    pub number: u64,
    /// Counts ways: another session, or another address.
    pub route: u64,
    /// Which of the servers is in use.
    pub server: usize,
    /// Whether the session may be joined.
    pub is_usable: bool,
    /// It may be known to its server all the same.
    is_given_up: bool,
    /// What the server said when the last session began.
    pub welcome: Option<Welcome>,
    /// Version that is spoken in it.
    pub version: u32,
    /// Where it began.
    address: Option<SocketAddr>,
    /// How often a session began with another server than the one before.
    pub moves: u64,
    /// Since when this server is used.
    pub since: SystemTime,
}

/// A session that has begun, or an address at which it can be joined.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// With which server.
    pub server: usize,
    /// Where that is.
    pub address: SocketAddr,
    /// What it said.
    pub welcome: Welcome,
    /// Version that is spoken.
    pub version: u32,
}

impl Place {
    /// How a connection there begins.
    pub fn begin(&self) -> Begin {
        match (self.welcome, self.former()) {
            (Some(welcome), _) if self.is_usable => Begin::Join(welcome.session),
            (_, Some(former)) => former,
            _ => Begin::Session,
        }
    }
    /// How another session begins after this one, wherever. `None`: there was none, or its server did not say who it
    /// is.
    pub fn former(&self) -> Option<Begin> {
        let welcome = self.welcome?;
        // One that was given up is not joined where it stands.
        let session = if self.is_given_up { NO_SESSION } else { welcome.session };
        Some(Begin::After(session, welcome.life?))
    }
    /// The last session.
    pub fn session(&self) -> Option<SessionId> {
        self.welcome.map(|welcome| welcome.session)
    }
}

/// The place of a client, for all of its threads.
#[derive(Debug)]
pub struct Current {
    place: Mutex<Place>,
    changed: Condvar,
}

impl Current {
    /// Nowhere yet; the first server is tried first.
    pub fn new(version: u32) -> Self {
        let place = Place {
            number: 0,
            route: 0,
            server: 0,
            is_usable: false,
            is_given_up: false,
            welcome: None,
            version,
            address: None,
            moves: 0,
            since: SystemTime::UNIX_EPOCH,
        };
        Self { place: Mutex::new(place), changed: Condvar::new() }
    }
    /// As it is now.
    pub fn get(&self) -> Place {
        *self.place.lock()
    }
    /// Another server is tried, before the first session has begun.
    pub fn try_server(&self, server: usize) {
        let mut place = self.place.lock();
        if place.welcome.is_none() {
            place.server = server;
        }
    }
    /// Whoever serves at this place does not know the session. It may stand elsewhere: then it goes on under its
    /// number.
    pub fn forget(&self, before: &Place) {
        let mut place = self.place.lock();
        if (place.number, place.route) == (before.number, before.route) {
            place.is_usable = false;
            place.route += 1;
        }
    }
    /// The session of that number is of no use any more, though its server may know it: another one begins.
    pub fn give_up(&self, number: u64) {
        let mut place = self.place.lock();
        if place.number == number {
            (place.is_usable, place.is_given_up) = (false, true);
            place.number += 1;
            place.route += 1;
        }
    }
    /// Another session has begun, or can be joined elsewhere, for a client that was at `before`: how it is now. `None`:
    /// it is somewhere else by now, and what was found is of no use.
    pub fn adopt(&self, before: &Place, found: &Found) -> Option<Place> {
        let mut place = self.place.lock();
        if (place.number, place.route) != (before.number, before.route) {
            return None;
        }
        let is_other = place.server != found.server || place.address != Some(found.address);
        let is_same_session = place.session() == Some(found.welcome.session);
        if !is_same_session {
            place.number += 1;
            let life = place.welcome.and_then(|welcome| welcome.life);
            // The same node, by another address, has what was written.
            let is_same_life = life.is_some() && life == found.welcome.life;
            place.moves += u64::from(is_other && place.welcome.is_some() && !is_same_life);
        }
        if is_other {
            place.since = SystemTime::now();
        }
        place.route += 1;
        (place.is_usable, place.is_given_up) = (true, false);
        place.welcome = Some(found.welcome);
        (place.server, place.version) = (found.server, found.version);
        place.address = Some(found.address);
        self.changed.notify_all();
        Some(*place)
    }
    /// Waits for so long, or until there is another way than `route`.
    pub fn rest(&self, time: Duration, route: u64) {
        let mut place = self.place.lock();
        if place.route == route {
            self.changed.wait_for(&mut place, time);
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_format::lock_record::Life;
    use braid_format::{Incarnation, InodeNo, NodeId};

    use super::*;
    use crate::wire::ServerLife;

    fn found(server: usize, session: u8) -> Found {
        let welcome = Welcome {
            version: 4,
            session: [session; 16],
            slots: 8,
            data_max: 4096,
            session_ms: 1000,
            verifier: session.into(),
            root: InodeNo(2),
            life: None,
        };
        let address = SocketAddr::from(([127, 0, 0, u8::try_from(server).unwrap()], 1000));
        Found { server, address, welcome, version: 4 }
    }

    #[test]
    fn only_a_session_with_another_server_is_a_move() {
        let current = Current::new(4);
        let first = current.adopt(&current.get(), &found(1, 1)).unwrap();
        assert_eq!((first.number, first.moves, first.server), (1, 0, 1), "the first is none");
        current.forget(&first);
        assert!(current.adopt(&first, &found(1, 2)).is_none(), "of before");
        let again = current.adopt(&current.get(), &found(1, 2)).unwrap();
        assert_eq!((again.number, again.moves), (2, 0), "the same server, begun anew");
        let way = current.adopt(&again, &found(0, 2)).unwrap();
        assert_eq!((way.number, way.moves, way.server), (2, 0, 0), "another address of it");
        assert!(way.route > again.route && current.adopt(&again, &found(2, 3)).is_none());
        let moved = current.adopt(&way, &found(2, 3)).unwrap();
        assert_eq!((moved.number, moved.moves), (3, 1));
        // A name that leads elsewhere by now.
        let elsewhere = Found { address: found(7, 0).address, ..found(2, 4) };
        assert_eq!(current.adopt(&moved, &elsewhere).unwrap().moves, 2);
    }

    #[test]
    fn a_session_that_is_found_again_goes_on_under_its_number() {
        let life = Life { slot: NodeId(1), incarnation: Incarnation(1) };
        let life = ServerLife { pool: [1; 16], life };
        let mut first = found(0, 1);
        first.welcome.life = Some(life);
        let current = Current::new(4);
        let begun = current.adopt(&current.get(), &first).unwrap();
        current.forget(&begun);
        current.forget(&begun);
        let forgotten = current.get();
        assert_eq!((forgotten.number, forgotten.route), (begun.number, begun.route + 1));
        assert_eq!(forgotten.begin(), Begin::After([1; 16], life));
        let again = current.adopt(&forgotten, &first).unwrap();
        assert_eq!((again.number, again.begin()), (begun.number, Begin::Join([1; 16])));
        // By another address, the same node has begun another session.
        let mut elsewhere = found(1, 2);
        elsewhere.welcome.life = Some(life);
        let again = current.adopt(&again, &elsewhere).unwrap();
        assert_eq!((again.number, again.moves), (begun.number + 1, 0));
        // One that was given up is not found again, and nothing begins beside it elsewhere.
        current.give_up(again.number);
        let given_up = current.get();
        assert_eq!(given_up.begin(), Begin::After([0; 16], life));
        assert_eq!(given_up.number, again.number + 1);
    }
}
