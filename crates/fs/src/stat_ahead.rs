//! Which locks a program will probably need next that looks at one file after the other.
//!
//! Programs look at files by their names, and other nodes made these files in some order: mostly the same. So after a
//! few lookups in a row of files whose locks are not here, and whose numbers are near one another, the locks of the
//! files that follow by number in the same directory are asked for, too: as many more each time as that goes on. A
//! node answers for many at once hardly later than for one.
//!
//! A program that lists a directory with attributes will need all of its files. It gets them in the order of the
//! directory's tree, which is not the order of their numbers. So after a few pages of which most locks are not here, each
//! file is asked for with those beside it by number: one read then brings the dinodes of many.
//!
//! A directory's files by number are listed once. What is made or removed afterwards makes a wrong guess, nothing worse.

use braid_format::InodeNo;
use parking_lot::Mutex;

/// So many lookups in a row are needed.
const RUN: u32 = 3;
/// Directories that are followed at a time.
const DIRS_MAX: usize = 4;
/// Locks asked for together, at first and at most.
const WINDOW: (usize, usize) = (4, 63);
/// Numbers that are nearer than so many slots are near.
const NEAR: u64 = 128;
/// Lookups, after a listing, before another one is made.
const LIST_EVERY: u32 = 64;
/// Pages of a directory with fewer files whose locks are not here say nothing.
const MISSING: usize = 8;
/// Files that are asked for with a page, at most.
const PAGE_MAX: usize = 512;
/// Directories with more files are not listed.
pub(crate) const FILES_MAX: u64 = 1 << 16;

/// What to do before the lock of a file is taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Nothing.
    Nothing,
    /// List the directory, say [`StatAhead::listed`], and ask again.
    List,
    /// Ask for these: the file that is looked up, or files of the page, and others.
    Fetch(Vec<InodeNo>),
}

/// The directories that were looked into last, the latest first.
#[derive(Debug, Default)]
pub(crate) struct StatAhead(Mutex<Vec<Run>>);

#[derive(Debug)]
struct Run {
    dir: InodeNo,
    /// The file looked up last, or the last that was asked for with it.
    last: InodeNo,
    /// Lookups in a row.
    count: u32,
    window: usize,
    /// The directory's files, by number, as they were when the run was so long.
    files: Vec<InodeNo>,
    listed_at: Option<u32>,
}

impl Run {
    fn new(dir: InodeNo, last: InodeNo) -> Self {
        Self { dir, last, count: 0, window: 0, files: Vec::new(), listed_at: None }
    }
    fn may_list(&self) -> bool {
        self.listed_at.is_none_or(|at| self.count >= at.saturating_add(LIST_EVERY))
    }
}

impl StatAhead {
    /// `file` in `dir` is looked up, and its lock is not here. Slots are `stride` blocks apart.
    pub fn lookup(&self, dir: InodeNo, file: InodeNo, stride: u64) -> Advice {
        self.follow(dir, file, |run| run.lookup(file, stride))
    }
    /// A page of `dir` is listed with attributes, and the locks of these files in it are not here.
    pub fn page(&self, dir: InodeNo, missing: &[InodeNo]) -> Advice {
        match missing {
            [first, ..] if missing.len() >= MISSING => {
                self.follow(dir, *first, |run| run.page(missing))
            }
            _ => Advice::Nothing,
        }
    }
    fn follow(&self, dir: InodeNo, file: InodeNo, f: impl FnOnce(&mut Run) -> Advice) -> Advice {
        let mut runs = self.0.lock();
        let at = runs.iter().position(|run| run.dir == dir);
        let mut run = at.map_or_else(|| Run::new(dir, file), |at| runs.remove(at));
        let advice = f(&mut run);
        runs.insert(0, run);
        runs.truncate(DIRS_MAX);
        advice
    }
    /// The files of `dir`, as far as they were listed.
    pub fn listed(&self, dir: InodeNo, mut files: Vec<InodeNo>) {
        files.sort_unstable();
        if let Some(run) = self.0.lock().iter_mut().find(|run| run.dir == dir) {
            run.files = files;
            run.listed_at = Some(run.count);
        }
    }
}

impl Run {
    fn lookup(&mut self, file: InodeNo, stride: u64) -> Advice {
        let (before, forward) = (self.last, file >= self.last);
        if before.get().abs_diff(file.get()) <= NEAR.saturating_mul(stride) {
            self.count = self.count.saturating_add(1);
        } else {
            (self.count, self.window) = (1, 0);
            // Whoever jumps to and fro does not have the directory listed again and again.
            self.listed_at = self.listed_at.map(|_| 0);
        }
        self.last = file;
        if self.count < RUN {
            return Advice::Nothing;
        }
        let Ok(at) = self.files.binary_search(&file) else {
            return if self.may_list() { Advice::List } else { Advice::Nothing };
        };
        self.window = (self.window * 2).clamp(WINDOW.0, WINDOW.1);
        let range = if forward {
            at..(at + 1 + self.window).min(self.files.len())
        } else {
            at.saturating_sub(self.window)..at + 1
        };
        let files = self.files.get(range).unwrap_or_default().to_vec();
        let end = if forward { files.last() } else { files.first() };
        self.last = end.copied().unwrap_or(file);
        Advice::Fetch(files)
    }

    fn page(&mut self, missing: &[InodeNo]) -> Advice {
        self.count = self.count.saturating_add(1);
        if self.count < RUN {
            return Advice::Nothing;
        }
        let places = missing.iter().filter_map(|ino| self.files.binary_search(ino).ok());
        let places: Vec<usize> = places.collect();
        if places.is_empty() {
            return if self.may_list() { Advice::List } else { Advice::Nothing };
        }
        let window = (self.window * 2).clamp(WINDOW.0, WINDOW.1 + 1);
        self.window = window;
        let mut firsts: Vec<usize> = places.iter().map(|at| at - at % window).collect();
        firsts.sort_unstable();
        firsts.dedup();
        firsts.truncate(PAGE_MAX / window);
        let range = |first: usize| first..(first + window).min(self.files.len());
        let files = firsts.into_iter().filter_map(|first| self.files.get(range(first)));
        Advice::Fetch(files.flatten().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: InodeNo = InodeNo(1);
    const STRIDE: u64 = 2;

    fn file(n: u64) -> InodeNo {
        InodeNo(1000 + n * STRIDE)
    }
    /// Looks files up; returns how often others were asked for, and the most at a time.
    fn look_up(ahead: &StatAhead, order: impl Iterator<Item = u64>, of: u64) -> (usize, usize) {
        let mut here = std::collections::BTreeSet::new();
        let (mut asked, mut most) = (0, 0);
        for n in order.map(file) {
            if here.contains(&n) {
                continue;
            }
            let mut advice = ahead.lookup(DIR, n, STRIDE);
            if advice == Advice::List {
                ahead.listed(DIR, (0..of).rev().map(file).collect());
                advice = ahead.lookup(DIR, n, STRIDE);
            }
            if let Advice::Fetch(files) = advice {
                assert!(files.contains(&n));
                most = most.max(files.len());
                here.extend(files);
            }
            asked += 1;
            here.insert(n);
        }
        (asked, most)
    }

    #[test]
    fn files_that_follow_one_another_are_asked_for_more_and_more_at_a_time() {
        let (asked, most) = look_up(&StatAhead::default(), 0..6400, 6400);
        assert!((100..=110).contains(&asked), "{asked}");
        assert_eq!(most, 64);
        let (backwards, _) = look_up(&StatAhead::default(), (0..6400).rev(), 6400);
        assert!((100..=110).contains(&backwards), "{backwards}");
    }

    #[test]
    fn who_jumps_to_and_fro_gets_nothing_more() {
        let ahead = StatAhead::default();
        let (asked, most) = look_up(&ahead, (0..6400).map(|n| n * 1009 % 6400), 6400);
        assert_eq!((asked, most), (6400, 0));
    }

    #[test]
    fn a_directory_is_listed_again_for_new_files_but_seldom() {
        let ahead = StatAhead::default();
        look_up(&ahead, 0..100, 100);
        let listings = (0..200)
            .filter(|n| {
                let lists = ahead.lookup(DIR, file(100 + n), STRIDE) == Advice::List;
                if lists {
                    ahead.listed(DIR, (0..100).map(file).collect());
                }
                lists
            })
            .count();
        assert!((2..=4).contains(&listings), "{listings}");
    }

    #[test]
    fn pages_of_a_directory_bring_the_files_beside_theirs() {
        const FILES: u64 = 6400;
        let ahead = StatAhead::default();
        let mut here = std::collections::BTreeSet::new();
        let mut asked = Vec::new();
        // In no order that is the numbers'.
        let order: Vec<u64> = (0..FILES).map(|n| n * 1009 % FILES).collect();
        for page in order.chunks(32) {
            let missing: Vec<InodeNo> =
                page.iter().map(|n| file(*n)).filter(|ino| !here.contains(ino)).collect();
            let mut advice = ahead.page(DIR, &missing);
            if advice == Advice::List {
                ahead.listed(DIR, (0..FILES).rev().map(file).collect());
                advice = ahead.page(DIR, &missing);
            }
            if let Advice::Fetch(files) = advice {
                assert!(files.len() <= PAGE_MAX && files.is_sorted(), "{}", files.len());
                asked.push(files.len());
                here.extend(files);
            }
            here.extend(missing);
        }
        assert!(asked.len() < 40 && asked.contains(&PAGE_MAX), "{asked:?}");
        assert_eq!(ahead.page(DIR, &[file(0); MISSING - 1]), Advice::Nothing);
    }

    #[test]
    fn few_directories_are_followed() {
        let ahead = StatAhead::default();
        for dir in 0..100 {
            ahead.lookup(InodeNo(dir), file(0), STRIDE);
        }
        assert_eq!(ahead.0.lock().len(), DIRS_MAX);
    }
}
