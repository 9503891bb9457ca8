//! A client of NFSv3 (RFC 1813), one call at a time: tests see what a kernel's client hides, such as file
//! handles, verifiers, and what is stable.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Program and version.
const MOUNT: (u32, u32) = (100_005, 3);
const NFS: (u32, u32) = (100_003, 3);
/// A server that restarts is waited for.
const PATIENCE: Duration = Duration::from_mins(2);
/// Answers of the server (nfsstat3).
pub const NOENT: u32 = 2;
pub const ACCES: u32 = 13;
pub const ROFS: u32 = 30;
pub const STALE: u32 = 70;
const JUKEBOX: u32 = 10_008;

/// A file handle.
pub type Handle = Vec<u8>;
/// What a server calls itself from one start to the next.
pub type Verifier = [u8; 8];
/// An answer, or the server's number of an error.
pub type Answer<T> = Result<T, u32>;

/// When what is written is safe.
#[derive(Clone, Copy)]
pub enum Stable {
    /// After a COMMIT with the same verifier.
    No,
    /// When the answer has come.
    Yes,
}

/// What is known of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Attributes {
    pub links: u32,
    pub owner: u32,
    pub size: u64,
    pub number: u64,
}

/// Words, big-endian, and byte strings padded to words.
#[derive(Default)]
struct Xdr(Vec<u8>);
impl Xdr {
    fn word(mut self, word: u32) -> Self {
        self.0.extend(word.to_be_bytes());
        self
    }
    fn long(mut self, long: u64) -> Self {
        self.0.extend(long.to_be_bytes());
        self
    }
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self = self.word(u32::try_from(bytes.len()).unwrap());
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
    /// A new file's mode, and nothing else.
    fn mode(self, mode: u32) -> Self {
        [1, mode, 0, 0, 0, 0, 0].into_iter().fold(self, Self::word)
    }
}

struct Words(std::vec::IntoIter<u8>);
impl Words {
    fn word(&mut self) -> u32 {
        u32::from_be_bytes(self.fixed())
    }
    fn long(&mut self) -> u64 {
        u64::from_be_bytes(self.fixed())
    }
    fn fixed<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.0.next().expect("the answer is too short"))
    }
    fn bytes(&mut self) -> Vec<u8> {
        let len = self.word() as usize;
        let bytes: Vec<u8> = self.0.by_ref().take(len).collect();
        self.0.by_ref().take(len.next_multiple_of(4) - len).for_each(drop);
        bytes
    }
    fn attributes(&mut self) -> Attributes {
        let [_kind, _mode, links, owner, _group] = std::array::from_fn(|_| self.word());
        let size = self.long();
        let _used_device_fsid: [u8; 24] = self.fixed();
        let number = self.long();
        let _times: [u8; 24] = self.fixed();
        Attributes { links, owner, size, number }
    }
    /// What may or may not follow.
    fn maybe<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.word() != 0).then(|| read(self))
    }
    /// Attributes before and after.
    fn changes(&mut self) {
        self.maybe(Self::fixed::<24>);
        self.maybe(Self::attributes);
    }
    fn status(mut self) -> Answer<Self> {
        match self.word() {
            0 => Ok(self),
            error => Err(error),
        }
    }
}

/// A client; root, if it is not told otherwise.
pub struct Client {
    port: u16,
    mount_port: u16,
    stream: Option<TcpStream>,
    calls: u32,
    pub user: u32,
}

impl Client {
    pub fn new(port: u16, mount_port: u16) -> Self {
        Self { port, mount_port, stream: None, calls: 0, user: 0 }
    }

    /// One call. The connection is made anew, and the call repeated, until there is an answer.
    fn call(&mut self, procedure: u32, arguments: &Xdr) -> Answer<Words> {
        let begun = Instant::now();
        loop {
            let stream = match self.stream.take() {
                Some(stream) => Ok(stream),
                None => TcpStream::connect(("127.0.0.1", self.port)),
            };
            let answer = stream.and_then(|mut stream| {
                let answer = self.exchange(&mut stream, NFS, procedure, arguments)?;
                self.stream = Some(stream);
                Ok(answer)
            });
            match answer.map(Words::status) {
                Ok(answer) if answer.as_ref().err() != Some(&JUKEBOX) => return answer,
                last => assert!(begun.elapsed() < PATIENCE, "no answer: {:?}", last.err()),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn exchange(
        &mut self,
        stream: &mut TcpStream,
        (program, version): (u32, u32),
        procedure: u32,
        arguments: &Xdr,
    ) -> std::io::Result<Words> {
        self.calls += 1;
        let credentials =
            Xdr::default().word(0).bytes(b"test").word(self.user).word(self.user).word(0);
        let head = [self.calls, 0, 2, program, version, procedure, 1];
        let mut call = head
            .into_iter()
            .fold(Xdr::default(), Xdr::word)
            .bytes(&credentials.0)
            .word(0)
            .word(0)
            .0;
        call.extend(&arguments.0);
        let last = 1 << 31 | u32::try_from(call.len()).unwrap();
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&[&last.to_be_bytes()[..], &call].concat())?;
        let mut whole = Vec::new();
        loop {
            let mut mark = [0; 4];
            stream.read_exact(&mut mark)?;
            let mark = u32::from_be_bytes(mark);
            let begin = whole.len();
            whole.resize(begin + (mark & !(1 << 31)) as usize, 0);
            stream.read_exact(&mut whole[begin..])?;
            if mark >> 31 == 1 {
                break;
            }
        }
        let mut words = Words(whole.into_iter());
        let head: [u32; 6] = std::array::from_fn(|_| words.word());
        assert_eq!(head, [self.calls, 1, 0, 0, 0, 0], "not accepted");
        Ok(words)
    }

    /// The handle of an exported directory.
    pub fn mount(&mut self, path: &str) -> Answer<Handle> {
        let mut stream =
            TcpStream::connect(("127.0.0.1", self.mount_port)).expect("the mount service");
        let path = Xdr::default().bytes(path.as_bytes());
        let answer = self.exchange(&mut stream, MOUNT, 1, &path).expect("an answer");
        Ok(answer.status()?.bytes())
    }
    pub fn attributes(&mut self, file: &Handle) -> Answer<Attributes> {
        Ok(self.call(1, &Xdr::default().bytes(file))?.attributes())
    }
    pub fn lookup(&mut self, dir: &Handle, name: &str) -> Answer<Handle> {
        let name = Xdr::default().bytes(dir).bytes(name.as_bytes());
        Ok(self.call(3, &name)?.bytes())
    }
    /// Up to `len` bytes.
    pub fn read(&mut self, file: &Handle, at: u64, len: u32) -> Answer<Vec<u8>> {
        let mut words = self.call(6, &Xdr::default().bytes(file).long(at).word(len))?;
        words.maybe(Words::attributes);
        let _len_and_end: [u32; 2] = std::array::from_fn(|_| words.word());
        Ok(words.bytes())
    }
    /// Writes all of it; the server's verifier.
    pub fn write(
        &mut self,
        file: &Handle,
        at: u64,
        data: &[u8],
        stable: Stable,
    ) -> Answer<Verifier> {
        let len = u32::try_from(data.len()).unwrap();
        let stable = match stable {
            Stable::No => 0,
            Stable::Yes => 2,
        };
        let call = Xdr::default().bytes(file).long(at).word(len).word(stable).bytes(data);
        let mut words = self.call(7, &call)?;
        words.changes();
        assert_eq!(words.word(), len, "a short write");
        assert!(words.word() >= stable, "less stable than asked for");
        Ok(words.fixed())
    }
    pub fn commit(&mut self, file: &Handle) -> Answer<Verifier> {
        let mut words = self.call(21, &Xdr::default().bytes(file).long(0).word(0))?;
        words.changes();
        Ok(words.fixed())
    }
    /// Makes a file, if there is none.
    pub fn create(&mut self, dir: &Handle, name: &str) -> Answer<Handle> {
        let call = Xdr::default().bytes(dir).bytes(name.as_bytes()).word(0).mode(0o644);
        let handle = self.call(8, &call)?.maybe(Words::bytes);
        handle.map_or_else(|| self.lookup(dir, name), Ok)
    }
    pub fn remove(&mut self, dir: &Handle, name: &str) -> Answer<()> {
        self.call(12, &Xdr::default().bytes(dir).bytes(name.as_bytes())).map(drop)
    }
    pub fn rename(&mut self, dir: &Handle, from: &str, to: &str) -> Answer<()> {
        let from = Xdr::default().bytes(dir).bytes(from.as_bytes());
        self.call(14, &from.bytes(dir).bytes(to.as_bytes())).map(drop)
    }
    pub fn link(&mut self, file: &Handle, dir: &Handle, name: &str) -> Answer<()> {
        self.call(15, &Xdr::default().bytes(file).bytes(dir).bytes(name.as_bytes())).map(drop)
    }
    /// Names in a directory; few.
    pub fn list(&mut self, dir: &Handle) -> Answer<Vec<String>> {
        let call = Xdr::default().bytes(dir).long(0).long(0).word(32 << 10);
        let mut words = self.call(16, &call)?;
        words.maybe(Words::attributes);
        let _verifier: Verifier = words.fixed();
        let mut names = Vec::new();
        while words.word() != 0 {
            let _number = words.long();
            names.push(String::from_utf8(words.bytes()).unwrap());
            let _cookie = words.long();
        }
        names.retain(|name| name != "." && name != "..");
        names.sort();
        Ok(names)
    }
}
