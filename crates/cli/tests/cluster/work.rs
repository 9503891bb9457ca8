//! What a node's programs do, and write down of it, while the cluster around them breaks.
//!
//! Each is a process of its own: one that waits for a node that does not answer cannot be ended
//! before the node is. It writes each line to a log beside the cluster: times are of the clock that
//! all share.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const REGISTERS: u64 = 3;
pub const COUNTERS: u64 = 2;
/// Length of a line in the journal that all append to.
pub const RECORD: usize = 32;

/// Makes what all work on.
pub fn prepare(dir: &Path) {
    fs::create_dir(dir.join("d")).unwrap();
    for n in 0..REGISTERS {
        fs::write(dir.join(format!("register{n}")), [0; 16]).unwrap();
    }
    for n in 0..COUNTERS {
        fs::write(dir.join(format!("counter{n}")), [0; 8]).unwrap();
    }
    File::create(dir.join("journal")).unwrap();
    for name in ["register0", "counter0", "journal", "d", "."] {
        File::open(dir.join(name)).unwrap().sync_all().unwrap();
    }
}

fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

struct Worker {
    dir: PathBuf,
    /// Unlike any other's.
    id: u64,
    log: File,
    random: u64,
    sequence: u64,
    /// Its files in `d` that stand.
    files: Vec<u64>,
}

/// Works until `stop` exists.
pub fn run(dir: &Path, id: u64, log: &Path, stop: &Path) {
    let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
    let random = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut worker =
        Worker { dir: dir.to_owned(), id, log, random, sequence: 0, files: Vec::new() };
    while !stop.exists() {
        if let Err(e) = worker.step() {
            worker.say(&format!("error {e}"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Worker {
    fn say(&mut self, line: &str) {
        self.log.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
    fn next(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }
    fn open(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.dir.join(name))
    }
    fn step(&mut self) -> io::Result<()> {
        match self.next(6) {
            0 => self.write_register(),
            1 | 2 => self.read_register(),
            3 => self.count(),
            4 => self.append(),
            _ => self.name(),
        }
    }

    /// A value that nobody else writes, durable before it is acknowledged.
    fn write_register(&mut self) -> io::Result<()> {
        let n = self.next(REGISTERS);
        self.sequence += 1;
        let value = self.id << 32 | self.sequence;
        let file = self.open(&format!("register{n}"))?;
        let began = now();
        self.say(&format!("writes {n} {value} {began}"));
        file.write_all_at(&value.to_le_bytes().repeat(2), 0)?;
        file.sync_all()?;
        self.say(&format!("wrote {n} {value} {began} {}", now()));
        Ok(())
    }
    fn read_register(&mut self) -> io::Result<()> {
        let n = self.next(REGISTERS);
        let file = self.open(&format!("register{n}"))?;
        let (began, mut bytes) = (now(), [0; 16]);
        file.read_exact_at(&mut bytes, 0)?;
        let value = |half: &[u8]| u64::from_le_bytes(half.try_into().unwrap());
        let (first, second) = (value(&bytes[..8]), value(&bytes[8..]));
        self.say(&format!("read {n} {first} {second} {began} {}", now()));
        Ok(())
    }
    /// Under a lock that excludes the programs of all nodes.
    fn count(&mut self) -> io::Result<()> {
        let n = self.next(COUNTERS);
        let file = self.open(&format!("counter{n}"))?;
        file.lock()?;
        let began = now();
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0)?;
        let value = u64::from_le_bytes(bytes) + 1;
        file.write_all_at(&value.to_le_bytes(), 0)?;
        file.sync_all()?;
        self.say(&format!("counted {n} {value} {began} {}", now()));
        file.unlock()
    }
    /// Where the file ends is the business of the lock alone.
    fn append(&mut self) -> io::Result<()> {
        self.sequence += 1;
        let line = format!("{:<1$}\n", format!("{} {}", self.id, self.sequence), RECORD - 1);
        let mut file = OpenOptions::new().append(true).open(self.dir.join("journal"))?;
        file.write_all(line.as_bytes())?;
        file.sync_all()?;
        self.say(&format!("appended {} {}", self.id, self.sequence));
        Ok(())
    }
    /// Makes a file, or removes one.
    fn name(&mut self) -> io::Result<()> {
        let dir = self.dir.join("d");
        if self.files.len() > 5 {
            let gone = self.files.remove(0);
            self.say(&format!("removes {} {gone}", self.id));
            fs::remove_file(dir.join(format!("{}-{gone}", self.id)))?;
            File::open(&dir)?.sync_all()?;
            self.say(&format!("removed {} {gone}", self.id));
            return Ok(());
        }
        self.sequence += 1;
        let name = format!("{}-{}", self.id, self.sequence);
        let mut file = File::create(dir.join(&name))?;
        file.write_all(name.as_bytes())?;
        file.sync_all()?;
        File::open(&dir)?.sync_all()?;
        self.files.push(self.sequence);
        self.say(&format!("made {} {}", self.id, self.sequence));
        let mut back = String::new();
        File::open(dir.join(&name))?.read_to_string(&mut back)?;
        assert_eq!(back, name);
        Ok(())
    }
}
