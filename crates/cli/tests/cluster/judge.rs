//! Whether what the programs saw can have been: no acknowledged write is lost, no read is stale, no
//! lock is held twice.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::work::{COUNTERS, RECORD, REGISTERS};

/// A write of a register, from when it began to when it was durable; `None`: perhaps never, perhaps
/// later.
#[derive(Debug, Clone, Copy)]
struct Write {
    value: u64,
    began: u64,
    ended: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Read {
    value: u64,
    began: u64,
    ended: u64,
}

/// All logs, sorted by what they speak of.
#[derive(Debug, Default)]
pub struct Judge {
    writes: HashMap<u64, HashMap<u64, Write>>,
    reads: HashMap<u64, Vec<Read>>,
    /// Counter, value: when.
    counts: HashMap<u64, Vec<Read>>,
    appended: Vec<(u64, u64)>,
    made: HashSet<(u64, u64)>,
    /// Begun, and acknowledged.
    removes: HashSet<(u64, u64)>,
    removed: HashSet<(u64, u64)>,
    errors: HashMap<String, usize>,
    /// What cannot have been.
    pub wrong: Vec<String>,
}

impl Judge {
    pub fn hear(&mut self, log: &str) {
        for line in log.lines() {
            if let Some(error) = line.strip_prefix("error ") {
                *self.errors.entry(error.to_owned()).or_default() += 1;
                continue;
            }
            let mut words = line.split(' ');
            let what = words.next().unwrap_or_default();
            let n: Vec<u64> = words.map_while(|w| w.parse().ok()).collect();
            match (what, &n[..]) {
                ("writes", &[of, value, began]) => {
                    let write = Write { value, began, ended: None };
                    self.writes.entry(of).or_default().insert(value, write);
                }
                ("wrote", &[of, value, _, ended]) => {
                    let writes = self.writes.entry(of).or_default();
                    writes.get_mut(&value).expect("begun").ended = Some(ended);
                }
                ("read", &[of, value, second, began, ended]) => {
                    if value != second {
                        self.wrong.push(format!("register {of} torn: {value} {second}"));
                    }
                    self.reads.entry(of).or_default().push(Read { value, began, ended });
                }
                ("counted", &[of, value, began, ended]) => {
                    self.counts.entry(of).or_default().push(Read { value, began, ended });
                }
                ("appended", &[id, sequence]) => self.appended.push((id, sequence)),
                ("made", &[id, sequence]) => drop(self.made.insert((id, sequence))),
                ("removes", &[id, sequence]) => drop(self.removes.insert((id, sequence))),
                ("removed", &[id, sequence]) => drop(self.removed.insert((id, sequence))),
                // The last line of a process that was killed.
                _ => {}
            }
        }
    }

    /// With what stands at the end, as a node sees it.
    pub fn decide(&mut self, dir: &Path) {
        for of in 0..REGISTERS {
            let bytes = std::fs::read(dir.join(format!("register{of}"))).unwrap();
            let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            self.reads.entry(of).or_default().push(Read {
                value,
                began: u64::MAX,
                ended: u64::MAX,
            });
            self.register(of);
        }
        for of in 0..COUNTERS {
            let bytes = std::fs::read(dir.join(format!("counter{of}"))).unwrap();
            self.counter(of, u64::from_le_bytes(bytes[..8].try_into().unwrap()));
        }
        self.journal(&std::fs::read_to_string(dir.join("journal")).unwrap());
        self.names(&dir.join("d"));
    }

    /// A read gives the last value that was durable when it began, or one written since, or one
    /// whose writer never heard of its end.
    fn register(&mut self, of: u64) {
        let writes = self.writes.entry(of).or_default();
        for read in self.reads.entry(of).or_default() {
            let first = Write { value: 0, began: 0, ended: Some(0) };
            let Some(seen) = writes.get(&read.value).or((read.value == 0).then_some(&first)) else {
                self.wrong.push(format!("register {of}: {} was never written", read.value));
                continue;
            };
            if seen.began > read.ended {
                self.wrong
                    .push(format!("register {of}: {} read before it was written", seen.value));
            }
            // Over before the later one began, which was over before the read began.
            let Some(over) = seen.ended else { continue };
            let later = |w: &&Write| w.began > over && w.ended.is_some_and(|e| e < read.began);
            if let Some(newer) = writes.values().find(later) {
                self.wrong.push(format!("register {of}: stale {read:?}: {seen:?}, then {newer:?}"));
            }
        }
    }

    /// Nobody counts to where another has been, and nobody goes back.
    fn counter(&mut self, of: u64, last: u64) {
        let counts = self.counts.entry(of).or_default();
        counts.sort_by_key(|c| c.value);
        for pair in counts.windows(2) {
            let [a, b] = pair else { continue };
            if a.value == b.value || b.began < a.began {
                self.wrong.push(format!("counter {of}: {a:?} and {b:?}"));
            }
        }
        if let Some(most) = counts.last()
            && most.value > last
        {
            self.wrong.push(format!("counter {of}: {most:?} was acknowledged, {last} stands"));
        }
    }

    fn journal(&mut self, text: &str) {
        if !text.len().is_multiple_of(RECORD)
            || text.as_bytes().chunks(RECORD).any(|r| r.last() != Some(&b'\n'))
        {
            self.wrong.push(format!("the journal's lines are not whole: {} bytes", text.len()));
        }
        let mut there: HashMap<&str, usize> = HashMap::new();
        for line in text.lines() {
            *there.entry(line.trim_end()).or_default() += 1;
        }
        for (id, sequence) in &self.appended {
            let times = there.get(format!("{id} {sequence}").as_str()).copied().unwrap_or(0);
            if times != 1 {
                self.wrong.push(format!("appended once: {id} {sequence}; stands {times} times"));
            }
        }
    }

    fn names(&mut self, dir: &Path) {
        let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
        let there: HashSet<String> = entries.map(|n| n.into_string().unwrap()).collect();
        let name = |n: &(u64, u64)| format!("{}-{}", n.0, n.1);
        for gone in self.removed.iter().map(name).filter(|n| there.contains(n)) {
            self.wrong.push(format!("{gone} was removed and is there"));
        }
        for kept in self.made.difference(&self.removes).map(name) {
            let found = std::fs::read_to_string(dir.join(&kept)).ok();
            if !there.contains(&kept) || found.as_ref() != Some(&kept) {
                self.wrong.push(format!("{kept} was made and is {found:?}"));
            }
        }
    }

    pub fn summary(&self) -> String {
        let writes: usize = self.writes.values().map(HashMap::len).sum();
        let reads: usize = self.reads.values().map(Vec::len).sum();
        let counts: usize = self.counts.values().map(Vec::len).sum();
        let (appended, made) = (self.appended.len(), self.made.len());
        format!(
            "{writes} writes, {reads} reads, {counts} counts, {appended} lines, {made} files; errors: {:?}",
            self.errors
        )
    }
}

#[test]
fn what_cannot_have_been_is_found() {
    let judge = |log: &str| {
        let mut judge = Judge::default();
        judge.hear(log);
        judge.register(0);
        judge.counter(0, 7);
        judge.wrong.len()
    };
    let writes = "writes 0 5 10\nwrote 0 5 10 20\nwrites 0 6 30\nwrote 0 6 30 40\n";
    assert_eq!(judge(&format!("{writes}read 0 6 6 50 60\nread 0 5 5 35 60\n")), 0);
    assert_eq!(judge(&format!("{writes}read 0 5 5 50 60\n")), 1, "stale");
    assert_eq!(judge(&format!("{writes}read 0 6 5 50 60\n")), 1, "torn");
    assert_eq!(judge(&format!("{writes}read 0 6 6 1 2\n")), 1, "from the future");
    assert_eq!(judge(&format!("{writes}read 0 9 9 50 60\n")), 1, "from nowhere");
    let unknown = format!("{writes}writes 0 7 15\nread 0 7 7 50 60\n");
    assert_eq!(judge(&unknown), 0, "it may have landed late");
    assert_eq!(judge("counted 0 7 1 2\ncounted 0 6 0 1\n"), 0);
    assert_eq!(judge("counted 0 7 1 2\ncounted 0 7 3 4\n"), 1, "two holders");
    assert_eq!(judge("counted 0 8 1 2\n"), 1, "lost");
    assert_eq!(judge("counted 0 7 1 2\ncounted 0 6 3 4\n"), 1, "backwards");
}
