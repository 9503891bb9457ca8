//! The sessions of a target, by handle.
//!
//! A port has one session: whoever logs in again from it waits until the older session has ended.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::connection::Connection;
use crate::error::Refused;
use crate::nexus::Nexus;

/// Most sessions at a time.
const SESSIONS_MAX: usize = 1024;

/// A session, as it is shown.
#[derive(Debug, Clone)]
pub struct SessionView {
    /// The initiator's name.
    pub initiator: String,
    /// Its session identifier.
    pub isid: [u8; 6],
    /// Where it comes from.
    pub from: Option<SocketAddr>,
}

/// The sessions of a target.
#[derive(Debug, Default)]
pub struct SessionTable {
    sessions: Mutex<Sessions>,
    /// A session has gone, or a login has ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Sessions {
    /// The handle that was given out last.
    last: u16,
    all: HashMap<u16, (Arc<Connection>, Option<SocketAddr>)>,
    /// Ports that have a handle and no session yet.
    arriving: HashSet<Nexus>,
}

impl SessionTable {
    /// A handle for a new session of a port. An older session of the port is cut, and has ended on return.
    pub fn take_handle(&self, nexus: &Nexus) -> Result<u16, Refused> {
        let mut sessions = self.sessions.lock();
        loop {
            let same = sessions.all.values().find(|(c, _)| c.nexus() == nexus);
            if let Some((old, _)) = same {
                old.cut();
            } else if sessions.arriving.insert(nexus.clone()) {
                break;
            }
            self.changed.wait(&mut sessions);
        }
        if sessions.all.len() >= SESSIONS_MAX {
            sessions.arriving.remove(nexus);
            return Err(Refused::Full);
        }
        loop {
            sessions.last = sessions.last.wrapping_add(1).max(1);
            if !sessions.all.contains_key(&sessions.last) {
                return Ok(sessions.last);
            }
        }
    }
    /// The login of a port that has a handle has failed.
    pub fn login_failed(&self, nexus: &Nexus) {
        self.sessions.lock().arriving.remove(nexus);
        self.changed.notify_all();
    }
    /// A session begins.
    pub fn add(&self, conn: &Arc<Connection>, from: SocketAddr) {
        let mut sessions = self.sessions.lock();
        sessions.arriving.remove(conn.nexus());
        sessions.all.insert(conn.tsih, (conn.clone(), Some(from)));
        drop(sessions);
        self.changed.notify_all();
    }
    /// A session has ended.
    pub fn remove(&self, conn: &Connection) {
        self.sessions.lock().all.remove(&conn.tsih);
        self.changed.notify_all();
    }
    /// Waits until there is none.
    pub fn wait_until_empty(&self) {
        let mut sessions = self.sessions.lock();
        while !sessions.all.is_empty() {
            self.changed.wait(&mut sessions);
        }
    }
    /// Ports that have a session.
    pub fn nexuses(&self) -> Vec<Nexus> {
        self.sessions.lock().all.values().map(|(c, _)| c.nexus().clone()).collect()
    }
    /// The sessions, for people.
    pub fn views(&self) -> Vec<SessionView> {
        let sessions = self.sessions.lock();
        let view = |(c, from): &(Arc<Connection>, Option<SocketAddr>)| SessionView {
            initiator: c.nexus().name().to_owned(),
            isid: c.nexus().isid(),
            from: *from,
        };
        sessions.all.values().map(view).collect()
    }
    /// Cuts the sessions of initiators in whose name `part` occurs; says how many there were.
    pub fn cut(&self, part: &str) -> usize {
        let sessions = self.sessions.lock();
        let chosen = sessions.all.values().filter(|(c, _)| c.nexus().name().contains(part));
        chosen.map(|(c, _)| c.cut()).count()
    }
    /// Cuts all sessions.
    pub fn cut_all(&self) {
        self.cut("");
    }
}
