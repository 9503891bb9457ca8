//! xdd's options: `-op read -targets 2 A B -reqsize 128 -op target 1 write ...`.
//!
//! `target N` before the value of most options limits it to that target. Targets are numbered from 0 in
//! the order of their names.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use itertools::Itertools as _;

use crate::engine::Content;

/// What one target is to do.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent options")]
pub(super) struct Job {
    pub path: PathBuf,
    /// Shares of reads, percent.
    pub reads: u8,
    /// Bytes of a block, and blocks of a request.
    pub block: u64,
    pub request_blocks: u64,
    /// Bytes of a pass, if told; requests, if told.
    pub bytes: Option<u64>,
    pub requests: Option<u64>,
    pub depth: usize,
    pub direct: bool,
    pub seek: Seek,
    /// Blocks that seeks are spread over.
    pub range: Option<u64>,
    pub seed: u64,
    pub start: u64,
    pub pass_offset: u64,
    pub throttle: Option<Throttle>,
    pub sync: bool,
    pub delete: bool,
    pub content: Content,
    pub verify: bool,
    pub start_delay: f64,
}

/// Bytes of a request.
pub(super) fn request(job: &Job) -> u64 {
    job.block * job.request_blocks
}

impl Job {
    /// What is done where nothing else is said.
    pub fn usual() -> Self {
        let (reads, block, request_blocks, seed) = (100, 1024, 128, 72_058_729);
        let content = Content::Byte(0);
        Self { reads, block, request_blocks, depth: 1, seed, content, ..Self::default() }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Seek {
    #[default]
    Sequential,
    Random,
    /// Forward in even steps over the range, or in steps of so many blocks.
    Stagger(Option<u64>),
    None,
}

/// How fast at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Throttle {
    /// 10^6 bytes per second.
    Rate(f64),
    /// Requests per second.
    Ops(f64),
    /// Seconds between two requests.
    Delay(f64),
}

/// Each place has content of its own: what `-verify` looks for.
pub(super) const SEQUENCED: Content = Content::Verified { run: 0, generation: 0 };

#[derive(Debug, Clone, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent options")]
pub(super) struct Options {
    pub jobs: Vec<Job>,
    pub passes: u64,
    pub pass_delay: f64,
    pub runtime: Option<f64>,
    pub heartbeat: Option<f64>,
    pub deskew: bool,
    pub csv: Option<PathBuf>,
    pub combined: Option<PathBuf>,
    pub output: Option<PathBuf>,
    pub id: String,
    /// Where the time stamps go, and whether all of them.
    pub stamps: Option<Stamps>,
    pub stop_on_error: bool,
    pub force: bool,
    pub dry: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Stamps {
    pub file: Option<PathBuf>,
    pub detailed: bool,
}

/// What is set for one target or for all, once all are known.
type Setting = (Option<usize>, Change);
/// What an option changes of a target's job.
type Change = Box<dyn Fn(&mut Job)>;

struct Parser<'a> {
    words: std::iter::Peekable<std::slice::Iter<'a, String>>,
    options: Options,
    settings: Vec<Setting>,
    targets: Vec<PathBuf>,
    dir: PathBuf,
    target_offset: u64,
}

impl Options {
    pub fn parse(words: &[String]) -> Result<Self> {
        let options = Self { passes: 1, id: "No ID".to_owned(), ..Self::default() };
        let mut parser = Parser {
            words: words.iter().peekable(),
            options,
            settings: Vec::new(),
            targets: Vec::new(),
            dir: PathBuf::new(),
            target_offset: 0,
        };
        while let Some(word) = parser.words.next() {
            let name = word.strip_prefix('-').map(|n| n.trim_start_matches('-'));
            let Some(name) = name.filter(|n| !n.is_empty()) else {
                bail!("'{word}' is no option; see xdd -help");
            };
            parser.option(name).with_context(|| format!("-{name}"))?;
        }
        parser.finish()
    }
}

impl Parser<'_> {
    fn word(&mut self) -> Result<String> {
        self.words.next().cloned().context("a value is missing")
    }
    fn number<T: std::str::FromStr>(&mut self) -> Result<T> {
        let word = self.word()?;
        word.parse().map_err(|_| anyhow::anyhow!("'{word}' is not a number that fits"))
    }
    fn seconds(&mut self) -> Result<f64> {
        let s: f64 = self.number()?;
        ensure!(s.is_finite() && (0.0..1e9).contains(&s), "{s} is not a number of seconds");
        Ok(s)
    }
    /// `target N`, if it stands there.
    fn whose(&mut self) -> Result<Option<usize>> {
        if self.words.peek().is_some_and(|w| *w == "target") {
            self.words.next();
            return Ok(Some(self.number()?));
        }
        Ok(None)
    }
    /// An option of one target or of all: its value, and what it changes.
    fn each<T: 'static>(
        &mut self,
        value: impl FnOnce(&mut Self) -> Result<T>,
        change: impl Fn(&mut Job, &T) + 'static,
    ) -> Result<()> {
        let whose = self.whose()?;
        let value = value(self)?;
        self.settings.push((whose, Box::new(move |job| change(job, &value))));
        Ok(())
    }
    fn count(&mut self, change: impl Fn(&mut Job, u64) + 'static) -> Result<()> {
        self.each(Self::number, move |job, n| change(job, *n))
    }
    fn flag(&mut self, change: impl Fn(&mut Job) + 'static) -> Result<()> {
        self.each(|_| Ok(()), move |job, ()| change(job))
    }
    fn option(&mut self, name: &str) -> Result<()> {
        match name {
            "operation" | "op" => self.each(Self::direction, |j, reads| j.reads = *reads),
            "rwratio" | "rw" => self.each(Self::percent, |j, reads| j.reads = *reads),
            "blocksize" | "bs" => self.count(|j, n| j.block = n),
            "reqsize" | "rs" => self.count(|j, n| j.request_blocks = n),
            "mbytes" | "mb" => self.count(|j, n| j.bytes = Some(n.saturating_mul(1 << 20))),
            "kbytes" | "kb" => self.count(|j, n| j.bytes = Some(n.saturating_mul(1 << 10))),
            "bytes" | "b" => self.count(|j, n| j.bytes = Some(n)),
            "numreqs" | "nr" => self.count(|j, n| j.requests = Some(n)),
            "queuedepth" | "qd" => {
                self.count(|j, n| j.depth = usize::try_from(n).unwrap_or(usize::MAX))
            }
            "startoffset" | "sto" => self.count(|j, n| j.start = n),
            "passoffset" | "po" => self.count(|j, n| j.pass_offset = n),
            "directio" | "dio" => self.flag(|j| j.direct = true),
            "syncwrite" | "sw" => self.flag(|j| j.sync = true),
            "deletefile" | "del" => self.flag(|j| j.delete = true),
            "startdelay" | "sd" => self.each(Self::seconds, |j, s| j.start_delay = *s),
            "seek" | "s" => self.each(Self::seek, |j, change| change(j)),
            "throttle" | "thr" => self.each(Self::throttle, |j, t| j.throttle = Some(*t)),
            "datapattern" | "dp" => self.each(Self::content, |j, content| j.content = *content),
            "verify" | "v" => self.each(Self::verified, |j, ()| {
                (j.verify, j.content) = (true, SEQUENCED);
            }),
            _ => self.global(name),
        }
    }
    fn global(&mut self, name: &str) -> Result<()> {
        match name {
            "targets" => self.targets()?,
            "target" => {
                let path = self.word()?.into();
                self.targets.push(path);
            }
            "targetdir" | "td" => self.dir = self.word()?.into(),
            "targetoffset" | "to" => self.target_offset = self.number()?,
            "passes" | "p" => self.options.passes = self.number()?,
            "passdelay" | "pdelay" => self.options.pass_delay = self.seconds()?,
            "runtime" | "rt" | "timelimit" | "tl" => self.options.runtime = Some(self.seconds()?),
            "heartbeat" | "hb" => self.heartbeat()?,
            "deskew" => self.options.deskew = true,
            "csvout" | "csvo" => self.options.csv = Some(self.word()?.into()),
            "combinedout" | "combo" => self.options.combined = Some(self.word()?.into()),
            "output" | "o" => self.options.output = Some(self.word()?.into()),
            "identifier" | "id" => {
                self.options.id = match self.word()? {
                    id if id == "commandline" => std::env::args().join(" "),
                    id => id,
                };
            }
            "timestamp" | "ts" => self.stamps()?,
            "stoponerror" | "soe" => self.options.stop_on_error = true,
            "dryrun" | "dry" => self.options.dry = true,
            "force-destroy" => self.options.force = true,
            // Known, and of no use here: priorities, locking of memory, processors, order of queues.
            "minall" | "maxall" | "maxpri" | "maximumpriority" | "nomemlock" | "nomlock"
            | "noproclock" | "noplock" | "processlock" | "plock" | "memorylock" | "mlock"
            | "looseordering" | "lo" | "serialordering" | "so" | "noordering" | "no" | "reopen"
            | "reop" | "verbose" | "randomize" | "rand" | "nobarrier" | "nb" => {
                self.whose()?;
            }
            "maxerrors" | "maxerrorstoprint" | "mep" | "memalign" | "mal" | "singleproc" | "sp"
            | "roundrobin" | "rr" | "timerinfo" | "errout" | "eo" => {
                self.whose()?;
                self.word()?;
            }
            "help" | "h" | "fullhelp" => bail!("{HELP}"),
            _ => bail!("not an option that is known here; see xdd -help"),
        }
        Ok(())
    }
    /// `N NAME...`, or `-N NAME`: the same one N times.
    fn targets(&mut self) -> Result<()> {
        let n: i64 = self.number()?;
        let many = usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX);
        ensure!((1..=1024).contains(&many), "1 to 1024 targets");
        if n < 0 {
            let path: PathBuf = self.word()?.into();
            self.targets.extend(std::iter::repeat_n(path, many));
        } else {
            for _ in 0..many {
                let path = self.word().context("fewer names than targets")?;
                self.targets.push(path.into());
            }
        }
        Ok(())
    }
    fn direction(&mut self) -> Result<u8> {
        match self.word()?.as_str() {
            "read" => Ok(100),
            "write" => Ok(0),
            other => bail!("'{other}': read or write"),
        }
    }
    fn percent(&mut self) -> Result<u8> {
        let part: f64 = self.number()?;
        ensure!((0.0..=100.0).contains(&part), "{part}: 0 to 100 percent");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0..100")]
        Ok(part.round() as u8)
    }
    fn verified(&mut self) -> Result<()> {
        let what = self.word()?;
        ensure!(matches!(what.as_str(), "contents" | "location"), "contents or location");
        Ok(())
    }
    fn seek(&mut self) -> Result<Change> {
        Ok(match self.word()?.as_str() {
            "sequential" => Box::new(|j| j.seek = Seek::Sequential),
            "random" => Box::new(|j| j.seek = Seek::Random),
            "none" => Box::new(|j| j.seek = Seek::None),
            "stagger" => {
                let step = self.words.peek().and_then(|w| w.parse().ok());
                if step.is_some() {
                    self.words.next();
                }
                Box::new(move |j| j.seek = Seek::Stagger(step))
            }
            "interleave" => {
                let step: u64 = self.number()?;
                Box::new(move |j| j.seek = Seek::Stagger(Some(j.request_blocks.max(step))))
            }
            "range" => {
                let n = self.number()?;
                Box::new(move |j| j.range = Some(n))
            }
            "seed" => {
                let n = self.number()?;
                Box::new(move |j| j.seed = n)
            }
            other => bail!("'{other}': sequential, random, stagger, interleave, range, seed, none"),
        })
    }
    fn throttle(&mut self) -> Result<Throttle> {
        let word = self.word()?;
        let (kind, value) = match word.as_str() {
            "bw" | "bandwidth" | "ops" | "delay" => (word.clone(), self.word()?),
            _ => ("bw".to_owned(), word),
        };
        let value: f64 = value.parse().with_context(|| format!("'{value}'"))?;
        ensure!(value.is_finite() && value > 0.0, "{value}: above 0");
        Ok(match kind.as_str() {
            "ops" => Throttle::Ops(value),
            "delay" => Throttle::Delay(value),
            _ => Throttle::Rate(value),
        })
    }
    fn content(&mut self) -> Result<Content> {
        let word = self.word()?;
        Ok(match (word.as_str(), word.as_bytes()) {
            ("random", _) => Content::Random,
            ("sequenced", _) => SEQUENCED,
            ("hex", _) => {
                let digits = self.word()?;
                let byte = digits.get(..2).unwrap_or(&digits);
                Content::Byte(u8::from_str_radix(byte, 16).with_context(|| digits.clone())?)
            }
            (_, [byte]) => Content::Byte(*byte),
            _ => bail!("'{word}': one character, hex, random or sequenced"),
        })
    }
    /// Seconds; words that say what is shown are taken, all is shown.
    fn heartbeat(&mut self) -> Result<()> {
        let word = self.word()?;
        match word.parse::<f64>() {
            Ok(s) => {
                ensure!(s.is_finite() && s > 0.0 && s < 1e9, "{s} is not a number of seconds");
                self.options.heartbeat = Some(s);
            }
            Err(_) if matches!(word.as_str(), "output" | "out") => {
                self.word()?;
            }
            Err(_) => {
                self.options.heartbeat.get_or_insert(1.0);
            }
        }
        Ok(())
    }
    fn stamps(&mut self) -> Result<()> {
        self.whose()?;
        let mut stamps = self.options.stamps.take().unwrap_or_default();
        match self.word()?.as_str() {
            "summary" | "sum" => {}
            "detailed" | "det" | "normalize" | "norm" | "oneshot" | "wrap" => {
                stamps.detailed = true;
            }
            "output" | "out" | "dump" => stamps.file = Some(self.word()?.into()),
            "size" | "triggertime" | "triggerop" => {
                self.word()?;
            }
            other => bail!("'{other}': summary, detailed, output FILE"),
        }
        self.options.stamps = Some(stamps);
        Ok(())
    }
    fn finish(mut self) -> Result<Options> {
        ensure!(!self.targets.is_empty(), "no targets: -targets N NAME... or -target NAME");
        for (n, path) in (0..).zip(&self.targets) {
            let start = self.target_offset.saturating_mul(n);
            self.options.jobs.push(Job { path: self.dir.join(path), start, ..Job::usual() });
        }
        let many = self.options.jobs.len();
        for (whose, how) in &self.settings {
            if let Some(n) = whose {
                let job = self.options.jobs.get_mut(*n);
                how(job.with_context(|| format!("target {n}: there are {many}, from 0 on"))?);
            } else {
                let offsets: Vec<u64> = self.options.jobs.iter().map(|j| j.start).collect();
                for (n, job) in (0_u64..).zip(&mut self.options.jobs) {
                    how(job);
                    // An offset for all is added to the one by the target's number.
                    let own = offsets.get(usize::try_from(n)?).copied().unwrap_or(0);
                    let by_number = self.target_offset.saturating_mul(n);
                    if job.start != own {
                        job.start = job.start.saturating_add(by_number);
                    }
                }
            }
        }
        ensure!(self.options.passes > 0, "-passes: at least 1");
        for job in &self.options.jobs {
            let request = job.block.saturating_mul(job.request_blocks);
            ensure!(request > 0, "a request of 0 bytes");
            ensure!(request <= 1 << 30, "a request of {request} bytes; 1 GiB is the most");
            ensure!((1..=4096).contains(&job.depth), "-queuedepth: 1 to 4096");
            match (job.requests, job.bytes) {
                (None, None) => ensure!(
                    self.options.runtime.is_some(),
                    "-mbytes, -numreqs or -runtime: how much?"
                ),
                (Some(n), _) => ensure!(n > 0, "-numreqs: at least 1"),
                (None, Some(bytes)) => {
                    ensure!(bytes >= request, "-mbytes: less than a request of {request} bytes");
                }
            }
        }
        Ok(self.options)
    }
}

pub(super) const HELP: &str = "\
xdd: moves data and times it
  -targets N NAME...  -targets -N NAME  -target NAME  -targetdir DIR
  -op [target N] read|write      -rwratio [target N] PERCENT-READ
  -blocksize BYTES (1024)        -reqsize BLOCKS (128)
  -mbytes N  -kbytes N  -bytes N  -numreqs N  -passes N  -passdelay S  -runtime S
  -queuedepth N  -dio  -syncwrite  -startdelay S
  -seek sequential|random|stagger [BLOCKS]|interleave BLOCKS|range BLOCKS|seed N|none
  -startoffset BLOCKS  -passoffset BLOCKS  -targetoffset BLOCKS
  -throttle [bw] MB/S | ops N | delay S
  -datapattern C|hex XX|random|sequenced   -verify contents|location
  -heartbeat S  -ts summary|detailed|output FILE  -deskew
  -csvout FILE  -combinedout FILE  -output FILE  -id TEXT
  -deletefile  -stoponerror  -verbose  -dryrun  -force-destroy";
