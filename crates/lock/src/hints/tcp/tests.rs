//! Two nodes, and strangers, over loopback.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, channel};

use braid_format::Incarnation;

use super::*;
use crate::Mode;

const FS: uuid::Uuid = uuid::Uuid::from_u128(77);
const LONG: Duration = Duration::from_mins(1);

fn me(slot: u16) -> Life {
    Life { slot: NodeId(slot), incarnation: Incarnation(3) }
}

/// A node that runs, and what it hears.
struct Node {
    tcp: Arc<TcpHints>,
    record: SlotRecord,
    heard: Receiver<Received>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Node {
    fn new(slot: u16) -> Self {
        Self::at(slot, "127.0.0.1:0".parse().unwrap())
    }
    fn at(slot: u16, at: SocketAddr) -> Self {
        let identity = uuid::Uuid::new_v4().into_bytes();
        let tcp = Arc::new(TcpHints::bind(FS, me(slot), identity, at).unwrap());
        let mut record = SlotRecord::free(NodeId(slot));
        (record.life, record.node_uuid) = (me(slot), identity);
        let (said, heard) = channel();
        let run = tcp.clone();
        let thread = std::thread::spawn(move || {
            run.run(&|hints, _| hints.iter().for_each(|h| said.send(h.clone()).unwrap_or(())));
        });
        Self { tcp, record, heard, thread: Some(thread) }
    }
    fn tell(&self, to: &Self, lock: u64) -> bool {
        let at = to.tcp.address().to_string();
        self.tcp.send(&to.record, &at, LockNo(lock), &Hint::Wanted(Mode::Exclusive))
    }
    /// Says it until it is on its way.
    fn insist(&self, to: &Self, lock: u64) {
        let began = Instant::now();
        while !self.tell(to, lock) {
            assert!(began.elapsed() < LONG, "never connected");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    fn hears(&self, from: u16, lock: u64) {
        let expected =
            Received { from: me(from), lock: LockNo(lock), hint: Hint::Wanted(Mode::Exclusive) };
        while self.heard.recv_timeout(LONG).expect("a hint comes") != expected {}
    }
    /// Nothing that a stranger does keeps friends from being heard.
    fn still_works(&self) {
        let friend = Self::new(9);
        friend.insist(self, 1234);
        self.hears(9, 1234);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tcp.close();
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn hints_pass_both_ways_and_connections_are_kept() {
    let (a, b) = (Node::new(1), Node::new(2));
    // The first one waits for the connection, and follows.
    assert!(!a.tell(&b, 5));
    b.hears(1, 5);
    let began = Instant::now();
    while !b.tcp.hears(me(1)) {
        assert!(began.elapsed() < LONG, "it has proven itself");
        std::thread::yield_now();
    }
    assert!(!a.tcp.hears(me(2)));
    for lock in 6..200 {
        assert!(a.tell(&b, lock), "it stands");
        b.hears(1, lock);
    }
    b.insist(&a, 7);
    a.hears(2, 7);
}

#[test]
fn the_end_of_a_node_is_noticed_and_its_next_life_is_another() {
    let a = Node::new(1);
    let b = Node::new(2);
    a.insist(&b, 5);
    b.hears(1, 5);
    let (at, record) = (b.tcp.address(), b.record.clone());
    drop(b);
    let tell = |record: &SlotRecord, lock| {
        a.tcp.send(record, &at.to_string(), LockNo(lock), &Hint::Wanted(Mode::Exclusive))
    };
    let began = Instant::now();
    while tell(&record, 6) {
        assert!(began.elapsed() < LONG, "its end is not noticed");
        std::thread::sleep(Duration::from_millis(5));
    }
    let next = Node::new(2);
    let mut later = next.record.clone();
    later.life.incarnation.0 += 1;
    assert_ne!(later.life, record.life);
    // A life that this address is not of: found out, not believed.
    assert!(!a.tcp.send(&later, &next.tcp.address().to_string(), LockNo(7), &Hint::Granted));
    assert!(next.heard.recv_timeout(Duration::from_millis(300)).is_err());
}

#[test]
fn whoever_does_not_know_the_slot_is_not_heard() {
    let (a, b) = (Node::new(1), Node::new(2));
    let mut guessed = b.record.clone();
    guessed.node_uuid = [1; 16];
    let at = b.tcp.address().to_string();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(500) {
        assert!(!a.tcp.send(&guessed, &at, LockNo(5), &Hint::Granted));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(b.heard.try_recv().is_err() && !b.tcp.hears(me(1)));
    b.still_works();
}

#[test]
fn bytes_of_strangers_end_their_connection() {
    let b = Node::new(2);
    let mut seed = 1_u64;
    for len in [1, 32, 95, 96, 97, 1000, 100_000] {
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed.to_be_bytes()[0]
        })
        .take(len)
        .collect();
        let mut stranger = TcpStream::connect(b.tcp.address()).unwrap();
        let _ = stranger.write_all(&noise);
        if len >= 96 {
            stranger.set_read_timeout(Some(LONG)).unwrap();
            let answer = stranger.read(&mut [0; 8]);
            assert!(
                matches!(&answer, Ok(0))
                    || answer.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset),
                "closed without a word"
            );
        }
    }
    assert!(b.heard.try_recv().is_err());
    b.still_works();
}

#[test]
fn an_opening_said_again_leads_nowhere() {
    let b = Node::new(2);
    let secret = Secret::of(FS, me(2), b.record.node_uuid);
    let opening = secret.opening(me(1), me(2));
    let connect = || {
        let mut stream = TcpStream::connect(b.tcp.address()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&opening).unwrap();
        let mut answer = [0; super::super::seal::GREETING];
        stream.read_exact(&mut answer).unwrap();
        (stream, answer)
    };
    let (mut first, answer) = connect();
    let mut seal = secret.accept(&opening, &answer).unwrap();
    let hint = encode(me(1), me(2), LockNo(5), &Hint::Wanted(Mode::Exclusive));
    let mut bytes = [0; HINT];
    bytes.copy_from_slice(zerocopy::IntoBytes::as_bytes(&hint));
    let sealed = seal.close(&bytes);
    first.write_all(&sealed).unwrap();
    b.hears(1, 5);
    // What was heard on the wire, once more, in a connection of its own and in the same.
    let (mut again, _) = connect();
    again.write_all(&sealed).unwrap();
    assert!(matches!(again.read(&mut [0; 1]), Ok(0) | Err(_)));
    first.write_all(&sealed).unwrap();
    assert!(matches!(first.read(&mut [0; 1]), Ok(0) | Err(_)));
    assert!(b.heard.try_recv().is_err());
    b.still_works();
}

#[test]
fn many_strangers_are_not_kept() {
    let b = Node::new(2);
    let friend = Node::new(1);
    friend.insist(&b, 1);
    b.hears(1, 1);
    let strangers: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(b.tcp.address()).unwrap()).collect();
    // All but the last few were let go without waiting for their time.
    let ended = |s: &TcpStream| {
        s.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut s = s;
        !matches!(s.read(&mut [0; 1]), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    };
    let began = Instant::now();
    while strangers.iter().filter(|s| ended(s)).count() < 200 - UNPROVEN_MAX {
        assert!(began.elapsed() < LONG, "they are kept");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Who was known before is heard all the time.
    assert!(friend.tell(&b, 2));
    b.hears(1, 2);
    b.still_works();
}

#[test]
fn a_peer_that_reads_nothing_blocks_nobody() {
    let a = Node::new(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let secret = Secret::of(FS, me(2), [0; 16]);
    let mut record = SlotRecord::free(NodeId(2));
    record.life = me(2);
    let at = listener.local_addr().unwrap().to_string();
    let say = |lock| a.tcp.send(&record, &at, LockNo(lock), &Hint::Granted);
    say(1);
    let (mut stream, _) = listener.accept().unwrap();
    let mut opening = [0; super::super::seal::GREETING];
    stream.read_exact(&mut opening).unwrap();
    let (_, answer, mut seal) = secret.answer(me(2), &opening).unwrap();
    stream.write_all(&answer).unwrap();
    for lock in 2..200_000 {
        say(lock);
    }
    // What was taken comes in order, whole, and is the beginning of what was said, or the end.
    let (mut sealed, mut heard) = ([0; super::super::seal::SEALED], Vec::new());
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    while stream.read_exact(&mut sealed).is_ok() {
        let hint = seal.open(&sealed).and_then(|h| super::super::message::decode(h, me(2)));
        heard.push(hint.expect("sealed in order").lock.0);
    }
    assert!(heard.is_sorted() && heard.len() > 100, "{}", heard.len());
}

/// Firewalls of sites let these through.
#[test]
fn who_is_told_no_port_listens_at_one_of_the_documented_ones() {
    assert_eq!(TcpHints::PORTS, 24741..=24772);
    let any = "127.0.0.1:0".parse().unwrap();
    let listeners: Vec<_> = (0..3).map(|_| listen(any).unwrap()).collect();
    let ports: Vec<u16> = listeners.iter().map(|l| l.local_addr().unwrap().port()).collect();
    // Others of this machine may have some of them.
    assert!(ports.iter().all(|port| TcpHints::PORTS.contains(port)), "{ports:?}");
    let guide = include_str!("../../../../../docs/GUIDE.md");
    assert!(guide.contains("24741 to 24772"));
}
