//! A wire between two programs of this host: a TCP relay, with as many bytes per second in each direction as are
//! asked for, which all its connections share.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use parking_lot::Mutex;

/// Bytes that go over the wire at a time.
const PIECE: usize = 64 << 10;

/// A thread that wakes up late makes up for so much: otherwise the wire would be slower than it is to be.
const CREDIT: Duration = Duration::from_millis(25);

/// One direction: bytes go one after the other.
#[derive(Debug)]
struct Lane {
    /// Bytes per second.
    rate: u64,
    /// When the last of those that were let through so far has arrived.
    busy_until: Mutex<Instant>,
}

impl Lane {
    fn new(rate: u64) -> Self {
        Self { rate, busy_until: Mutex::new(Instant::now()) }
    }
    /// Waits until so many bytes have arrived.
    fn pass(&self, bytes: usize) {
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(self.rate);
        let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let arrived = {
            let mut busy_until = self.busy_until.lock();
            let now = Instant::now();
            *busy_until = (*busy_until).max(now.checked_sub(CREDIT).unwrap_or(now)) + time;
            *busy_until
        };
        thread::sleep(arrived.saturating_duration_since(Instant::now()));
    }
}

/// A relay to a server. It takes connections until this process ends.
#[derive(Debug)]
pub(crate) struct Wire {
    /// Where it listens.
    pub address: SocketAddr,
}

impl Wire {
    /// To `server`, `rate` bytes per second in each direction.
    ///
    /// # Errors
    /// No port, or no thread.
    pub fn new(server: SocketAddr, rate: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let lanes = [Arc::new(Lane::new(rate)), Arc::new(Lane::new(rate))];
        thread::Builder::new().name("wire".into()).spawn(move || {
            for client in listener.incoming().flatten() {
                // What cannot be connected is closed: its client says so.
                if let Ok(server) = TcpStream::connect(server) {
                    connect(client, server, &lanes);
                }
            }
        })?;
        Ok(Self { address })
    }
}

fn connect(client: TcpStream, server: TcpStream, [there, back]: &[Arc<Lane>; 2]) {
    let ends = client.try_clone().and_then(|c| Ok((c, server.try_clone()?)));
    let Ok((client_too, server_too)) = ends else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).ok();
    }
    for (from, to, lane) in [(client, server, there), (server_too, client_too, back)] {
        let lane = Arc::clone(lane);
        let forwards = move || forward(from, to, &lane);
        if let Err(e) = thread::Builder::new().name("wire".into()).spawn(forwards) {
            eprintln!("braid bench: a connection is not relayed: {e}");
        }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, lane: &Lane) {
    let mut piece = vec![0; PIECE];
    while let Ok(n) = from.read(&mut piece) {
        if n == 0 {
            break;
        }
        lane.pass(n);
        if piece.get(..n).is_none_or(|bytes| to.write_all(bytes).is_err()) {
            break;
        }
    }
    // The other direction may go on; who has closed both is gone.
    from.shutdown(Shutdown::Read).ok();
    to.shutdown(Shutdown::Write).ok();
}

/// Bytes per second of one plain stream between two threads: to `server`'s end of a wire or back.
///
/// # Errors
/// No connection, or it broke.
pub(crate) fn plain_stream(rate: Option<u64>, bytes: u64, back: bool) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let end = listener.local_addr()?;
    let address = match rate {
        None => end,
        Some(rate) => Wire::new(end, rate)?.address,
    };
    let client = TcpStream::connect(address)?;
    let (server, _) = listener.accept()?;
    let (from, to) = if back { (server, client) } else { (client, server) };
    let begun = Instant::now();
    let sends = thread::spawn(move || send(from, bytes));
    let received = receive(to)?;
    let seconds = begun.elapsed().as_secs_f64();
    sends.join().map_err(|_| anyhow::anyhow!("a thread died"))??;
    anyhow::ensure!(received == bytes, "of {bytes} bytes {received} arrived");
    Ok(crate::statistics::float(bytes) / seconds)
}

fn send(mut to: TcpStream, bytes: u64) -> std::io::Result<()> {
    let piece = vec![0x5a; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        to.write_all(piece.get(..n).unwrap_or_default())?;
        left -= n as u64;
    }
    to.shutdown(Shutdown::Write)
}

fn receive(mut from: TcpStream) -> std::io::Result<u64> {
    let (mut piece, mut all) = (vec![0; 1 << 20], 0);
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(all),
            n => all += n as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_pass_and_not_faster_than_the_wire_is() {
        let (rate, bytes) = (40_000_000, 20_000_000);
        for back in [false, true] {
            let measured = plain_stream(Some(rate), bytes, back).unwrap();
            // Less than it was let through at once.
            let seconds = 20.0 / 40.0 - CREDIT.as_secs_f64();
            assert!(measured <= 20_000_000.0 / seconds * 1.01, "{measured}");
        }
        plain_stream(None, bytes, false).unwrap();
    }
}
