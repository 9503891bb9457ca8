//! A target: its name, its units, its sessions, and the threads that serve them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::buffers::Buffers;
use crate::chap::Chap;
use crate::faults::Faults;
use crate::login::{Login, Phase};
use crate::lun::{Lun, LunOptions, Nexus};
use crate::pdu::{Reader, Writer};
use crate::session::{Conn, Feature};
use crate::strangers::Strangers;
use crate::tasks::{Abort, Tasks};
use crate::workers::Workers;
use crate::{Broken, Refused, TargetError};

/// Most sessions at a time.
const SESSIONS_MAX: usize = 1024;
/// Who connects sends a login request within this time.
const FIRST_TIME: Duration = Duration::from_secs(5);
/// An initiator that takes nothing of what it is sent for so long has no session any more: its
/// answers keep workers waiting.
const SEND_TIME: Duration = Duration::from_secs(30);

/// What to serve.
#[derive(Debug)]
pub struct TargetOptions {
    /// The target's name, `iqn.YYYY-MM.DOMAIN:WORD`.
    pub name: String,
    /// Unit 0, 1, ...
    pub luns: Vec<LunOptions>,
    /// Who may log in.
    pub chap: Chap,
}

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

/// What the threads of a target have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub name: String,
    pub luns: Vec<Arc<Lun>>,
    pub chap: Chap,
    pub faults: Faults,
    pub tasks: Tasks,
    pub workers: Workers,
    pub buffers: Buffers,
    sessions: Mutex<Sessions>,
    /// A session has gone.
    ended: Condvar,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct Sessions {
    next: u16,
    all: HashMap<u16, (Arc<Conn>, Option<SocketAddr>)>,
    /// Ports that have a handle and no session yet.
    arriving: HashSet<Nexus>,
    strangers: Strangers<TcpStream>,
}

/// A target that listens. Stops when it is dropped.
#[derive(Debug)]
pub struct Target {
    shared: Arc<Shared>,
    at: SocketAddr,
    listener: Option<JoinHandle<()>>,
}

/// Lower case, as names are compared (RFC 7143, section 4.2.7).
fn valid(name: &str) -> bool {
    let known = ["iqn.", "eui.", "naa."].iter().any(|p| name.starts_with(p));
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.:".contains(c);
    known && name.len() <= 223 && name.chars().all(fits)
}

impl Target {
    /// Serves `options` on `listener`.
    ///
    /// # Errors
    /// A name, a number of units or a file of reservations that cannot be; the system's.
    pub fn start(listener: TcpListener, options: TargetOptions) -> Result<Self, TargetError> {
        if !valid(&options.name) {
            return Err(TargetError::BadName { name: options.name });
        }
        let count = options.luns.len();
        if count == 0 || count > 256 {
            return Err(TargetError::LunCount { count });
        }
        let luns =
            (0..).zip(options.luns).map(|(n, l)| Lun::new(&options.name, n, l).map(Arc::new));
        let shared = Arc::new(Shared {
            luns: luns.collect::<Result<_, _>>()?,
            name: options.name,
            chap: options.chap,
            faults: Faults::default(),
            tasks: Tasks::default(),
            workers: Workers::default(),
            buffers: Buffers::default(),
            sessions: Mutex::default(),
            ended: Condvar::new(),
            stopped: AtomicBool::new(false),
        });
        let at = listener.local_addr().map_err(|e| TargetError::io("the portal's address", e))?;
        let of_thread = shared.clone();
        let listener = std::thread::Builder::new()
            .name("target".into())
            .spawn(move || of_thread.listen(&listener))
            .map_err(|e| TargetError::io("a thread", e))?;
        Ok(Self { shared, at, listener: Some(listener) })
    }
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.at
    }
    /// Its faults.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }
    /// Who is logged in.
    pub fn sessions(&self) -> Vec<SessionView> {
        self.shared.views()
    }
    /// Cuts the sessions of initiators in whose name `part` occurs; says how many there were.
    pub fn cut(&self, part: &str) -> usize {
        self.shared.cut(part)
    }
    /// Commands that have come and are not over: an answer may have gone out a moment before.
    pub fn commands(&self) -> usize {
        self.shared.tasks.count()
    }
    /// Those of them that have begun, and whose work (or the delay of a fault) has not ended.
    pub fn running(&self) -> usize {
        self.shared.tasks.running()
    }
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        // Wakes the listener.
        let _ = TcpStream::connect(self.at);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        self.shared.cut("");
        let mut sessions = self.shared.sessions.lock();
        while !sessions.all.is_empty() {
            self.shared.ended.wait(&mut sessions);
        }
        drop(sessions);
        // What was to land late does not: its device may be closed next.
        self.shared.tasks.abort(Abort::Other, None, |_| true);
        self.shared.workers.stop();
    }
}

impl Shared {
    fn listen(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.stopped.load(Ordering::Acquire) {
                return;
            }
            match accepted {
                Ok((stream, from)) => self.admit(stream, from),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "no connection taken");
                    // Out of descriptors, as likely as not.
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }
    fn admit(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let link = match stream.try_clone() {
            Ok(link) => link,
            Err(error) => return tracing::warn!(%from, %error, "no connection taken"),
        };
        let number = {
            let mut sessions = self.sessions.lock();
            let Some((number, victim)) = sessions.strangers.arrive(from.ip(), link) else {
                return tracing::warn!(%from, "too many connections that have not logged in");
            };
            if let Some(victim) = victim {
                tracing::debug!("a connection that has not logged in makes room");
                let _ = victim.shutdown(Shutdown::Both);
            }
            number
        };
        let shared = self.clone();
        let spawned = std::thread::Builder::new().name("target-session".into()).spawn(move || {
            if let Err(why) = shared.connection(&stream, from, number) {
                tracing::debug!(%from, %why, "connection ended");
            }
        });
        if let Err(error) = spawned {
            self.sessions.lock().strangers.leave(number, None);
            tracing::error!(%error, "no thread for a connection");
        }
    }
    /// Serves a connection from its login to its end.
    fn connection(
        self: &Arc<Self>,
        stream: &TcpStream,
        from: SocketAddr,
        number: u64,
    ) -> Result<(), Broken> {
        let logged_in = self.login(stream, from, number);
        let initiator = logged_in.as_ref().ok().map(|(conn, _)| conn.nexus().name());
        self.sessions.lock().strangers.leave(number, initiator);
        let (conn, mut reader) = logged_in?;
        reader.read_until(None)?;
        tracing::info!(%from, initiator = conn.nexus().name(), "logged in");
        let why = Feature::new(conn.clone(), reader).serve();
        tracing::info!(%from, initiator = conn.nexus().name(), %why, "session ended");
        self.end(&conn);
        Ok(())
    }
    fn login(
        self: &Arc<Self>,
        stream: &TcpStream,
        from: SocketAddr,
        number: u64,
    ) -> Result<(Arc<Conn>, Reader), Broken> {
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_keepalive(stream, true).map_err(io::Error::from)?;
        stream.set_write_timeout(Some(SEND_TIME))?;
        let mut reader = Reader::new(stream.try_clone()?);
        reader.read_until(Some(Instant::now() + FIRST_TIME))?;
        let mut writer = Writer::new(stream.try_clone()?);
        let cutter = stream.try_clone()?;
        let mut handle = 0;
        let phase = Phase {
            target: &self.name,
            chap: &self.chap,
            reader: &mut reader,
            writer: &mut writer,
            heard: &|initiator| self.sessions.lock().strangers.heard(number, initiator),
        };
        let mut arriving = None;
        let login = phase.run(|login| {
            handle = self.take_handle(login)?;
            arriving = Some(Nexus::new(&login.initiator, login.isid));
            Ok(handle)
        });
        let login = match login {
            Ok(login) => login,
            Err(why) => {
                if let Some(nexus) = arriving {
                    self.sessions.lock().arriving.remove(&nexus);
                    self.ended.notify_all();
                }
                return Err(why);
            }
        };
        let conn = Conn::new(self, &login, handle, cutter, writer);
        for lun in self.luns.iter().filter(|_| !login.discovery) {
            lun.power_on(conn.nexus());
        }
        {
            let mut sessions = self.sessions.lock();
            sessions.arriving.remove(conn.nexus());
            sessions.all.insert(handle, (conn.clone(), Some(from)));
        }
        self.ended.notify_all();
        // One that came while the target was being stopped, or before the insert.
        if self.stopped.load(Ordering::Acquire) {
            conn.cut();
        }
        Ok((conn, reader))
    }
    /// A handle for a new session. An older one of the same initiator and identifier ends first,
    /// with all its commands: what the new one does comes after whatever the old one did.
    fn take_handle(&self, login: &Login) -> Result<u16, Refused> {
        let nexus = Nexus::new(&login.initiator, login.isid);
        let mut sessions = self.sessions.lock();
        loop {
            let same = sessions.all.values().find(|(c, _)| *c.nexus() == nexus);
            if let Some((old, _)) = same {
                old.cut();
            } else if sessions.arriving.insert(nexus.clone()) {
                break;
            }
            self.ended.wait(&mut sessions);
        }
        if sessions.all.len() >= SESSIONS_MAX {
            sessions.arriving.remove(&nexus);
            return Err(Refused::Full);
        }
        loop {
            sessions.next = sessions.next.wrapping_add(1).max(1);
            if !sessions.all.contains_key(&sessions.next) {
                break;
            }
        }
        let handle = sessions.next;
        drop(sessions);
        // What an older life of this port left to land late must not land from here on.
        self.tasks.abort(Abort::Own, None, |t| *t.conn.nexus() == nexus);
        Ok(handle)
    }
    fn end(&self, conn: &Arc<Conn>) {
        conn.cut();
        conn.abort(Abort::Lost, None, |t| t.conn.tsih == conn.tsih);
        // Before another session of the port may begin.
        self.luns.iter().for_each(|l| l.gone(conn.nexus()));
        self.sessions.lock().all.remove(&conn.tsih);
        self.ended.notify_all();
    }
    /// Ports that have a session.
    pub fn nexuses(&self) -> Vec<Nexus> {
        self.sessions.lock().all.values().map(|(c, _)| c.nexus().clone()).collect()
    }
    pub fn views(&self) -> Vec<SessionView> {
        let sessions = self.sessions.lock();
        let view = |(c, from): &(Arc<Conn>, Option<SocketAddr>)| SessionView {
            initiator: c.nexus().name().to_owned(),
            isid: c.nexus().isid(),
            from: *from,
        };
        sessions.all.values().map(view).collect()
    }
    /// Cuts sessions by a part of their initiators' names.
    pub fn cut(&self, part: &str) -> usize {
        let sessions = self.sessions.lock();
        let chosen = sessions.all.values().filter(|(c, _)| c.nexus().name().contains(part));
        chosen.map(|(c, _)| c.cut()).count()
    }
    pub fn cut_all(&self) {
        self.cut("");
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use braid_device::MemoryDevice;
    use braid_format::Bytes;

    use super::*;
    use crate::lun::Attention;
    use crate::pdu::{HEADER, op};

    const NAME: &str = "iqn.2026-11.org.braid:ports";

    fn log_in(target: &Target, port: u8) -> TcpStream {
        let mut stream = TcpStream::connect(target.address()).unwrap();
        let text = format!("InitiatorName=iqn.x:a\0TargetName={NAME}\0");
        let mut h = [0; HEADER];
        (h[0], h[1], h[7], h[13]) =
            (0x40 | op::LOGIN, 0x87, u8::try_from(text.len()).unwrap(), port);
        stream.write_all(&h).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream.write_all(&[0; 3][..text.len().next_multiple_of(4) - text.len()]).unwrap();
        stream.read_exact(&mut h).unwrap();
        assert_eq!((h[0], h[36]), (op::LOGIN_RESPONSE, 0));
        stream
    }

    /// Far more of them than there may be, and one that goes on making more.
    #[test]
    fn connections_that_say_nothing_keep_nobody_out() {
        let device = MemoryDevice::new("unit", Bytes(1 << 20), Bytes(512));
        let luns = vec![LunOptions { device, identity: None, reservations: None }];
        let options = TargetOptions { name: NAME.into(), luns, chap: Chap::default() };
        let target = Target::start(TcpListener::bind("127.0.0.1:0").unwrap(), options).unwrap();
        let silent: Vec<TcpStream> =
            (0..150).filter_map(|_| TcpStream::connect(target.address()).ok()).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    drop(TcpStream::connect(target.address()));
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
            let streams: Vec<_> = (0..10).map(|port| log_in(&target, port)).collect();
            stop.store(true, Ordering::Release);
            drop(streams);
        });
        drop(silent);
    }

    #[test]
    fn a_unit_remembers_the_ports_that_have_a_session() {
        let unit = |_| LunOptions {
            device: MemoryDevice::new("unit", Bytes(1 << 20), Bytes(512)),
            identity: None,
            reservations: None,
        };
        let options = TargetOptions {
            name: NAME.into(),
            luns: (0..3).map(unit).collect(),
            chap: Chap::default(),
        };
        let target = Target::start(TcpListener::bind("127.0.0.1:0").unwrap(), options).unwrap();
        let wait = |what: &dyn Fn() -> bool| {
            let patience = (0..1000).take_while(|_| !what());
            patience.for_each(|_| std::thread::sleep(Duration::from_millis(10)));
            assert!(what());
        };
        let ports = || target.shared.luns.iter().map(|l| l.ports()).collect::<Vec<_>>();
        let streams: Vec<_> = (0..5).map(|port| log_in(&target, port)).collect();
        wait(&|| target.sessions().len() == 5);
        assert_eq!(ports(), [5; 3]);
        // What is told to somebody who is not there is not kept.
        target.shared.luns[0].attend(&Nexus::new("iqn.x:b", [0; 6]), Attention::CLEARED);
        assert_eq!(ports(), [5; 3]);
        drop(streams);
        wait(&|| target.sessions().is_empty());
        assert_eq!(ports(), [0; 3]);
    }
}
