//! `braid iostat`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::commands::status_io;
use crate::control::requests::{Flow, IoView, MemberIo};
use crate::control::{self, Order};
use crate::process::mounts::{self, Mount};
use crate::process::others;
use crate::terminal::{
    answer::{self, say},
    size, ui,
};

/// Show what mounted nodes of this host do, by layer: what programs ask, what goes to the members.
///
/// The first report is of the time since the node was mounted, each further one of the time since the one before.
/// What the kernel answers from its caches is not seen.
#[derive(Debug, clap::Args)]
#[command(override_usage = "braid iostat [OPTIONS] [NAME|DIR]... [INTERVAL [COUNT]]")]
pub struct Args {
    /// Pools or directories (default: all that is mounted on this host); then seconds between reports, and
    /// how many reports (default: one, or with an interval until it is stopped)
    #[arg(value_name = "NAME|DIR|INTERVAL|COUNT")]
    words: Vec<String>,
    /// Each member
    #[arg(short, long)]
    verbose: bool,
    /// How many requests took how long
    #[arg(short, long)]
    latency: bool,
    /// Requests under way, and their sizes
    #[arg(short, long)]
    queue: bool,
}

/// What to look at, how often.
#[derive(Debug, PartialEq)]
struct Plan {
    names: Vec<String>,
    interval: Option<Duration>,
    count: Option<u64>,
}

/// Shortest time between two reports, seconds.
const INTERVAL_MIN: f64 = 0.1;

impl Plan {
    /// Numbers at the end are no names.
    fn of(words: &[String]) -> Result<Self> {
        let is_number = |word: &&String| word.parse::<f64>().is_ok();
        let numbers = words.iter().rev().take_while(is_number).count().min(2);
        let (names, numbers) = words.split_at(words.len() - numbers);
        let (interval, count) = (numbers.first(), numbers.get(1));
        let interval = interval.map(|text| {
            let seconds = text.parse().ok().filter(|s| *s >= INTERVAL_MIN);
            match seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()) {
                Some(interval) => Ok(interval),
                None => bail!("interval {text}: not a number of seconds from {INTERVAL_MIN}"),
            }
        });
        let count = count.map(|text| match text.parse() {
            Ok(n) if n > 0 => Ok(n),
            _ => bail!("count {text}: not a number from 1"),
        });
        let names = names.to_vec();
        Ok(Self { names, interval: interval.transpose()?, count: count.transpose()? })
    }
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let plan = Plan::of(&args.words)?;
    let mut before: Vec<(Mount, IoView)> = Vec::new();
    let mut reports = 0;
    loop {
        let now = look(&plan.names)?;
        for (mount, view) in &now {
            let same = |b: &&(Mount, IoView)| {
                b.0.mount_point == mount.mount_point && b.1.at_ns <= view.at_ns
            };
            let earlier = before.iter().find(same).map(|b| &b.1);
            let report = Report::of(view, earlier);
            if answer::is_json() {
                answer::line(report.as_json(mount));
            } else {
                print(args, mount, &report);
            }
        }
        reports += 1;
        let Some(interval) = plan.interval else { break };
        if plan.count.is_some_and(|count| reports >= count) {
            break;
        }
        before = now;
        std::thread::sleep(interval);
    }
    Ok(ExitCode::SUCCESS)
}

/// What the nodes say now.
fn look(names: &[String]) -> Result<Vec<(Mount, IoView)>> {
    let named = |m: &Mount| {
        names.is_empty() || names.iter().any(|n| *n == m.pool || status_io::is_on(m, n))
    };
    let mounts: Vec<Mount> = mounts::mounts().into_iter().filter(named).collect();
    if mounts.is_empty() {
        others::refuse(names)?;
        bail!(
            "nothing of that name is mounted on this host{}: `braid status` lists what is",
            others::besides()
        );
    }
    let said = control::values(&mounts, &Order::Io).into_iter();
    said.map(|(mount, value)| Ok((mount, serde_json::from_value(value)?))).collect()
}

/// Requests of one layer in a stretch of time.
struct Layer {
    name: String,
    reads: Flow,
    writes: Flow,
    /// More about it, if there is something.
    note: String,
}

/// What a node did in a stretch of time.
pub struct Report {
    pool: String,
    seconds: f64,
    since_mount: bool,
    programs: Layer,
    others: Flow,
    all_members: Layer,
    members: Vec<Layer>,
}

impl Report {
    /// From two looks, or the time since the mount.
    pub fn of(now: &IoView, before: Option<&IoView>) -> Self {
        let none = IoView::default();
        let earlier = before.unwrap_or(&none);
        let nanos = now.at_ns.saturating_sub(earlier.at_ns).max(1);
        let programs = Layer {
            name: "programs".into(),
            reads: now.programs.reads.since(&earlier.programs.reads),
            writes: now.programs.writes.since(&earlier.programs.writes),
            note: String::new(),
        };
        let members: Vec<Layer> = now.members.iter().map(|m| member(m, earlier)).collect();
        let mut all = Layer {
            name: "members".into(),
            reads: Flow::default(),
            writes: Flow::default(),
            note: String::new(),
        };
        for m in &members {
            (all.reads, all.writes) = (all.reads.plus(&m.reads), all.writes.plus(&m.writes));
        }
        Self {
            pool: now.pool.clone(),
            seconds: Duration::from_nanos(nanos).as_secs_f64(),
            since_mount: before.is_none(),
            programs,
            others: now.programs.others.since(&earlier.programs.others),
            all_members: all,
            members,
        }
    }
    fn as_json(&self, mount: &Mount) -> Value {
        let flow = |f: &Flow| {
            json!({
                "requests": f.requests, "bytes": f.bytes, "ended": f.ended, "in_progress": f.in_progress,
                "mean_ms": mean(f).map(|m| m.as_secs_f64() * 1000.0),
                "in_progress_mean": self.under_way(f), "times": f.times,
            })
        };
        let layer =
            |l: &Layer| json!({"name": l.name, "reads": flow(&l.reads), "writes": flow(&l.writes)});
        json!({
            "pool": self.pool, "mount_point": mount.mount_point, "pid": mount.pid, "seconds": self.seconds,
            "since_mount": self.since_mount, "programs": layer(&self.programs), "others": flow(&self.others),
            "members": self.members.iter().map(layer).collect::<Vec<_>>(),
        })
    }
    /// How many were under way on average.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn under_way(&self, flow: &Flow) -> f64 {
        flow.nanos as f64 / 1e9 / self.seconds
    }
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }
    /// Bytes in a second, for people.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative; for people"
    )]
    fn speed(&self, bytes: u64) -> String {
        format!("{}/s", size::show(self.rate(bytes) as u64))
    }
}

fn member(m: &MemberIo, earlier: &IoView) -> Layer {
    let same = |e: &&MemberIo| e.index == m.index && e.path == m.path;
    let none = MemberIo::default();
    let before = earlier.members.iter().find(same).unwrap_or(&none);
    let errors = m.errors.saturating_sub(before.errors);
    let mut notes = Vec::new();
    notes.extend(m.slow.then(|| "slow".to_owned()));
    notes.extend((errors > 0).then(|| format!("{errors} errors")));
    Layer {
        name: format!("{} {}", m.index, m.path),
        reads: m.reads.since(&before.reads),
        writes: m.writes.since(&before.writes),
        note: notes.join(", "),
    }
}

fn mean(flow: &Flow) -> Option<Duration> {
    flow.nanos.checked_div(flow.ended).map(Duration::from_nanos)
}

/// A time, for people, in few characters.
pub fn show_time(time: Duration) -> String {
    let micros = time.as_micros();
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..10_000 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        10_000..1_000_000 => format!("{:.0} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

fn print(args: &Args, mount: &Mount, report: &Report) {
    let dir = mount.mount_point.display();
    if report.since_mount {
        say!("{} on {dir}, in {:.0} s since it was mounted:", report.pool, report.seconds);
    } else {
        say!("{} on {dir}, in {:.1} s:", report.pool, report.seconds);
    }
    let mut layers = vec![&report.programs, &report.all_members];
    if args.verbose {
        layers.extend(&report.members);
    }
    say!("{}", rates(args, report, &layers));
    if report.others.requests > 0 {
        let time =
            mean(&report.others).map_or_else(String::new, |t| format!(", {} each", show_time(t)));
        say!(" other requests of programs: {:.1}/s{time}", report.rate(report.others.requests));
    }
    if args.latency {
        say!("{}", latencies(&layers));
    }
}

fn rates(args: &Args, report: &Report, layers: &[&Layer]) -> comfy_table::Table {
    let mut header =
        vec!["layer", "reads/s", "writes/s", "read", "written", "read time", "write time"];
    if args.queue {
        header.extend(["read size", "write size", "reading", "writing", "now"]);
    }
    header.push("");
    let mut table = ui::table(&header);
    for layer in layers {
        let (r, w) = (&layer.reads, &layer.writes);
        let time = |f: &Flow| mean(f).map_or_else(|| "-".to_owned(), show_time);
        let mut row = vec![
            layer.name.clone(),
            format!("{:.1}", report.rate(r.requests)),
            format!("{:.1}", report.rate(w.requests)),
            report.speed(r.bytes),
            report.speed(w.bytes),
            time(r),
            time(w),
        ];
        if args.queue {
            let each = |f: &Flow| {
                f.bytes.checked_div(f.requests).map_or_else(|| "-".to_owned(), size::show)
            };
            row.extend([each(r), each(w)]);
            row.extend([r, w].map(|f| format!("{:.1}", report.under_way(f))));
            row.push((r.in_progress + w.in_progress).to_string());
        }
        row.push(layer.note.clone());
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    table
}

/// Requests by the time that they took: a line for each class between the shortest and the longest.
fn latencies(layers: &[&Layer]) -> comfy_table::Table {
    let flows: Vec<(String, &Flow)> = layers
        .iter()
        .flat_map(|l| {
            [(format!("{} read", l.name), &l.reads), (format!("{} write", l.name), &l.writes)]
        })
        .collect();
    let mut header = vec!["up to".to_owned()];
    header.extend(flows.iter().map(|(name, _)| name.clone()));
    let mut table = ui::table(&header.iter().map(String::as_str).collect::<Vec<_>>());
    let at = |flow: &Flow, class: usize| flow.times.get(class).copied().unwrap_or(0);
    let any = |class: &usize| flows.iter().any(|(_, flow)| at(flow, *class) > 0);
    let classes: Vec<usize> = (0..32).filter(any).collect();
    let (Some(first), Some(last)) = (classes.first(), classes.last()) else { return table };
    for class in *first..=*last {
        let bound = Duration::from_micros(1 << class);
        let mut row = vec![show_time(bound)];
        row.extend(flows.iter().map(|(_, flow)| match at(flow, class) {
            0 => String::new(),
            n => n.to_string(),
        }));
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn numbers_at_the_end_are_interval_and_count() {
        let plan = |text| Plan::of(&words(text)).unwrap();
        let is = |text, names: &str, interval: Option<f64>, count| {
            let interval = interval.map(Duration::from_secs_f64);
            assert_eq!(plan(text), Plan { names: words(names), interval, count }, "{text}");
        };
        is("", "", None, None);
        is("scratch", "scratch", None, None);
        is("5", "", Some(5.0), None);
        is("scratch /mnt 0.5 3", "scratch /mnt", Some(0.5), Some(3));
        // A pool may be called so.
        is("7 scratch 1", "7 scratch", Some(1.0), None);
        for wrong in ["0", "-1", "1 0", "1 1.5", "inf", "nan"] {
            assert!(Plan::of(&words(wrong)).is_err(), "{wrong}");
        }
    }

    fn view(at_s: u64, requests: u64) -> IoView {
        let flow = |each: u64| Flow {
            requests,
            bytes: requests * each,
            ended: requests,
            nanos: requests * 2_000_000,
            times: vec![0, requests],
            ..Flow::default()
        };
        let member = |index| MemberIo {
            index,
            path: format!("d{index}"),
            reads: flow(4096),
            errors: u64::from(index) * requests,
            ..MemberIo::default()
        };
        let mut view = IoView { at_ns: at_s * 1_000_000_000, ..IoView::default() };
        view.programs.reads = flow(8192);
        view.members = vec![member(0), member(1)];
        view
    }

    #[test]
    fn a_report_is_of_the_time_between_two_looks() {
        let (first, second) = (view(10, 100), view(12, 140));
        let report = Report::of(&second, Some(&first));
        let reads = &report.programs.reads;
        assert_eq!((report.seconds, reads.requests, reads.bytes), (2.0, 40, 40 * 8192));
        assert_eq!(report.speed(reads.bytes), "160 KiB/s");
        assert_eq!((report.rate(reads.requests), report.under_way(reads)), (20.0, 0.04));
        assert_eq!(mean(reads), Some(Duration::from_millis(2)));
        assert_eq!(report.all_members.reads.requests, 80);
        assert_eq!(report.members[1].note, "40 errors");
        let text = latencies(&[&report.programs]).to_string();
        assert!(text.contains("2 us") && text.contains("40"), "{text}");
        let report = Report::of(&second, None);
        assert_eq!((report.seconds, report.programs.reads.requests), (12.0, 140));
        // Another device came in the member's place.
        let mut other = second.clone();
        other.members[1].path = "new".into();
        assert_eq!(Report::of(&other, Some(&first)).members[1].reads.requests, 140);
    }
}
