//! A target: its name, its units, its sessions, and the threads that serve them.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::chap::Chap;
use crate::connection::Connection;
use crate::error::{Broken, Refused, TargetError};
use crate::faults::Faults;
use crate::login::Phase;
use crate::lun::{Lun, LunOptions};
use crate::nexus::{Nexus, is_target_name};
use crate::pdu::{Reader, Writer};
use crate::pending_logins::PendingLogins;
use crate::session::{FullFeature, Session};
use crate::session_table::SessionView;
use crate::state::TargetState;
use crate::tasks::Abort;

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

/// What the threads that take connections in have in common.
#[derive(Debug)]
struct Server {
    target: Arc<TargetState>,
    pending: Mutex<PendingLogins<TcpStream>>,
    stopped: AtomicBool,
}

/// A target that listens. Stops when it is dropped.
#[derive(Debug)]
pub struct Target {
    server: Arc<Server>,
    at: SocketAddr,
    listener: Option<JoinHandle<()>>,
}

impl Target {
    /// Serves `options` on `listener`.
    ///
    /// # Errors
    /// A name, a number of units or a file of reservations that cannot be; the system's.
    pub fn start(listener: TcpListener, options: TargetOptions) -> Result<Self, TargetError> {
        if !is_target_name(&options.name) {
            return Err(TargetError::BadName { name: options.name });
        }
        let count = options.luns.len();
        if count == 0 || count > 256 {
            return Err(TargetError::LunCount { count });
        }
        let luns =
            (0..).zip(options.luns).map(|(n, l)| Lun::new(&options.name, n, l).map(Arc::new));
        let luns = luns.collect::<Result<_, _>>()?;
        let server = Arc::new(Server {
            target: Arc::new(TargetState::new(options.name, luns, options.chap)),
            pending: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let at = listener.local_addr().map_err(|e| TargetError::io("the portal's address", e))?;
        let of_thread = server.clone();
        let listener = std::thread::Builder::new()
            .name("target".into())
            .spawn(move || of_thread.listen(&listener))
            .map_err(|e| TargetError::io("a thread", e))?;
        Ok(Self { server, at, listener: Some(listener) })
    }
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.at
    }
    /// Its faults.
    pub fn faults(&self) -> &Faults {
        &self.server.target.faults
    }
    /// Who is logged in.
    pub fn sessions(&self) -> Vec<SessionView> {
        self.state().sessions.views()
    }
    /// Cuts the sessions of initiators in whose name `part` occurs; says how many there were.
    pub fn cut(&self, part: &str) -> usize {
        self.state().sessions.cut(part)
    }
    /// Its units say that they were switched off and on, in sessions that stay: what was written and not
    /// flushed may be lost.
    pub fn lose_power(&self) {
        self.state().luns.iter().for_each(|unit| unit.lose_power());
    }
    /// Commands that have come and are not over: an answer may have gone out a moment before.
    pub fn commands(&self) -> usize {
        self.state().tasks.count()
    }
    /// Those of them that have begun, and whose work (or the delay of a fault) has not ended.
    pub fn running(&self) -> usize {
        self.state().tasks.running()
    }
    pub(crate) fn state(&self) -> &Arc<TargetState> {
        &self.server.target
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.server.stopped.store(true, Ordering::Release);
        // Wakes the listener.
        let _ = TcpStream::connect(self.at);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        let target = self.state();
        target.sessions.cut_all();
        target.sessions.wait_until_empty();
        // What was to land late does not: its device may be closed next.
        target.tasks.abort(Abort::Other, None, |_| true);
        target.workers.stop();
    }
}

impl Server {
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
            let mut pending = self.pending.lock();
            let Some((number, victim)) = pending.arrive(from.ip(), link) else {
                return tracing::warn!(%from, "too many connections that have not logged in");
            };
            if let Some(victim) = victim {
                tracing::debug!("a connection that has not logged in makes room");
                let _ = victim.shutdown(Shutdown::Both);
            }
            number
        };
        let server = self.clone();
        let spawned = std::thread::Builder::new().name("target-session".into()).spawn(move || {
            if let Err(why) = server.connection(&stream, from, number) {
                tracing::debug!(%from, %why, "connection ended");
            }
        });
        if let Err(error) = spawned {
            self.pending.lock().remove(number, None);
            tracing::error!(%error, "no thread for a connection");
        }
    }
    /// Serves a connection from its login to its end.
    fn connection(&self, stream: &TcpStream, from: SocketAddr, number: u64) -> Result<(), Broken> {
        let logged_in = self.login(stream, from, number);
        let initiator = logged_in.as_ref().ok().map(|(conn, _)| conn.nexus().name());
        self.pending.lock().remove(number, initiator);
        let (conn, mut reader) = logged_in?;
        reader.read_until(None)?;
        tracing::info!(%from, initiator = conn.nexus().name(), "logged in");
        let session = Session { target: self.target.clone(), conn };
        let why = FullFeature::new(session.clone(), reader).serve();
        let conn = &session.conn;
        tracing::info!(%from, initiator = conn.nexus().name(), %why, "session ended");
        self.end(conn);
        Ok(())
    }
    fn login(
        &self,
        stream: &TcpStream,
        from: SocketAddr,
        number: u64,
    ) -> Result<(Arc<Connection>, Reader), Broken> {
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_keepalive(stream, true).map_err(io::Error::from)?;
        stream.set_write_timeout(Some(SEND_TIME))?;
        let mut reader = Reader::new(stream.try_clone()?);
        reader.read_until(Some(Instant::now() + FIRST_TIME))?;
        let mut writer = Writer::new(stream.try_clone()?);
        let cutter = stream.try_clone()?;
        let mut handle = 0;
        let phase = Phase {
            target: &self.target.name,
            chap: &self.target.chap,
            reader: &mut reader,
            writer: &mut writer,
            on_request: &|initiator| self.pending.lock().request_received(number, initiator),
        };
        let mut arriving = None;
        let login = phase.run(|login| {
            let nexus = Nexus::new(&login.initiator, login.isid);
            handle = self.take_handle(&nexus)?;
            arriving = Some(nexus);
            Ok(handle)
        });
        let login = match login {
            Ok(login) => login,
            Err(why) => {
                if let Some(nexus) = arriving {
                    self.target.sessions.login_failed(&nexus);
                }
                return Err(why);
            }
        };
        let conn = Connection::new(&login, handle, cutter, writer);
        for lun in self.target.luns.iter().filter(|_| !login.discovery) {
            lun.session_begins(conn.nexus());
        }
        self.target.sessions.add(&conn, from);
        // One that came while the target was being stopped, or before the insert.
        if self.stopped.load(Ordering::Acquire) {
            conn.cut();
        }
        Ok((conn, reader))
    }
    /// A handle for a new session. An older one of the same initiator and identifier ends first,
    /// with all its commands: what the new one does comes after whatever the old one did.
    fn take_handle(&self, nexus: &Nexus) -> Result<u16, Refused> {
        let handle = self.target.sessions.take_handle(nexus)?;
        // What an older life of this port left to land late must not land from here on.
        self.target.tasks.abort(Abort::Own, None, |t| t.conn.nexus() == nexus);
        Ok(handle)
    }
    fn end(&self, conn: &Arc<Connection>) {
        conn.cut();
        self.target.abort(Abort::Lost, None, |t| t.conn.tsih == conn.tsih);
        // Before another session of the port may begin.
        self.target.luns.iter().for_each(|l| l.session_ended(conn.nexus()));
        self.target.sessions.remove(conn);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use braid_device::MemoryDevice;
    use braid_format::Bytes;

    use super::*;
    use crate::nexus::UnitAttention;
    use crate::pdu::{HEADER, op};

    const NAME: &str = "iqn.2026-11.org.braid:ports";

    fn log_in(target: &Target, port: u8) -> TcpStream {
        try_log_in(target, port).unwrap()
    }

    fn try_log_in(target: &Target, port: u8) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(target.address())?;
        let text = format!("InitiatorName=iqn.x:a\0TargetName={NAME}\0");
        let mut h = [0; HEADER];
        (h[0], h[1], h[7], h[13]) =
            (0x40 | op::LOGIN, 0x87, u8::try_from(text.len()).unwrap(), port);
        stream.write_all(&h)?;
        stream.write_all(text.as_bytes())?;
        stream.write_all(&[0; 3][..text.len().next_multiple_of(4) - text.len()])?;
        stream.read_exact(&mut h)?;
        assert_eq!((h[0], h[36]), (op::LOGIN_RESPONSE, 0));
        Ok(stream)
    }

    /// Set when the test ends, also by a panic.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// Far more of them than there may be, and one that goes on making more. On a busy machine a request may
    /// come too late for its place; an initiator then tries again.
    #[test]
    fn connections_that_say_nothing_keep_nobody_out() {
        let device = MemoryDevice::new("unit", Bytes(1 << 20), Bytes(512));
        let luns = vec![LunOptions { device, identity: None, reservations: None }];
        let options = TargetOptions { name: NAME.into(), luns, chap: Chap::default() };
        let target = Target::start(TcpListener::bind("127.0.0.1:0").unwrap(), options).unwrap();
        let silent: Vec<TcpStream> =
            (0..150).filter_map(|_| TcpStream::connect(target.address()).ok()).collect();
        let stopped = AtomicBool::new(false);
        std::thread::scope(|s| {
            let _stop = Stop(&stopped);
            s.spawn(|| {
                while !stopped.load(Ordering::Acquire) {
                    drop(TcpStream::connect(target.address()));
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
            let tries = |port| (0..20).find_map(|_| try_log_in(&target, port).ok());
            let streams: Vec<_> = (0..10).map(|port| tries(port).expect("a session")).collect();
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
        let ports = || target.state().luns.iter().map(|l| l.ports()).collect::<Vec<_>>();
        let streams: Vec<_> = (0..5).map(|port| log_in(&target, port)).collect();
        wait(&|| target.sessions().len() == 5);
        assert_eq!(ports(), [5; 3]);
        // What is told to somebody who is not there is not kept.
        target.state().luns[0]
            .establish_attention(&Nexus::new("iqn.x:b", [0; 6]), UnitAttention::CLEARED);
        assert_eq!(ports(), [5; 3]);
        drop(streams);
        wait(&|| target.sessions().is_empty());
        assert_eq!(ports(), [0; 3]);
    }
}
