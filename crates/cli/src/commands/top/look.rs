//! What is shown: from two looks at a node to titles and rows.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use super::order::{Order, Sort};
use crate::commands::iostat::show_time;
use crate::control::clients::{ClientView, ServiceView};
use crate::control::health::Health;
use crate::control::programs::ProgramView;
use crate::control::requests::{Flow, IoView};
use crate::control::{self, Order as Ask};
use crate::process::mounts::{self, Mount};
use crate::terminal::size;

/// Locks that are shown.
const LOCKS: usize = 8;

/// A node at a moment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Look {
    dir: String,
    health: Option<Health>,
    io: IoView,
    nodes: Value,
    locks: Value,
    programs: Vec<ProgramView>,
    /// Servers of the pool on this host.
    services: Vec<Service>,
}

/// A server, and where its clients find it.
#[derive(Debug, Clone, Default, Serialize)]
struct Service {
    url: String,
    #[serde(flatten)]
    view: ServiceView,
}

impl Service {
    fn at(mount: &Mount) -> Result<Self> {
        let view = serde_json::from_value(control::value(mount, &Ask::Clients)?)?;
        Ok(Self { url: mount.mount_point.display().to_string(), view })
    }
}

impl Look {
    /// Asks the node of a mount.
    ///
    /// # Errors
    /// It does not answer.
    pub fn at(mount: &Mount) -> Result<Self> {
        let ask = |order| control::value(mount, &order);
        let services = mounts::services().into_iter().filter(|s| s.pool == mount.pool);
        Ok(Self {
            services: services.map(|service| Service::at(&service)).collect::<Result<_>>()?,
            dir: mount.mount_point.display().to_string(),
            health: control::order(mount, &Ask::Look)?.health,
            io: serde_json::from_value(ask(Ask::Io)?)?,
            nodes: ask(Ask::Nodes)?,
            locks: ask(Ask::Locks { hot: false, lines: LOCKS })?,
            programs: serde_json::from_value(ask(Ask::Programs)?)?,
        })
    }
}

/// A table.
#[derive(Debug, Clone)]
pub struct Part {
    /// What is in it.
    pub title: String,
    /// Names of its columns.
    pub header: Vec<&'static str>,
    /// Its lines.
    pub rows: Vec<Vec<String>>,
    /// Columns from this one on are numbers.
    numbers_from: usize,
}

impl Part {
    /// A table whose columns from `numbers_from` on are numbers.
    #[cfg(test)]
    pub fn new(
        title: String,
        header: Vec<&'static str>,
        rows: Vec<Vec<String>>,
        numbers_from: usize,
    ) -> Self {
        Self { title, header, rows, numbers_from }
    }
    /// Whether a column holds numbers.
    pub fn is_number(&self, column: usize) -> bool {
        column >= self.numbers_from
    }
}

/// What is shown.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The first line.
    pub title: String,
    /// How the pool is.
    pub health: Vec<String>,
    /// Tables, from top to bottom.
    pub parts: Vec<Part>,
}

/// The stretch of time between two looks.
struct Stretch(f64);

impl Stretch {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn rate(&self, count: u64) -> f64 {
        count as f64 / self.0
    }
    fn each_second(&self, count: u64) -> String {
        format!("{:.1}", self.rate(count))
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
    fn speed(&self, bytes: u64) -> String {
        format!("{}/s", size::show(self.rate(bytes) as u64))
    }
    /// How many were under way on average.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn under_way(&self, nanos: u64) -> String {
        format!("{:.2}", nanos as f64 / 1e9 / self.0)
    }
}

impl Shown {
    /// From two looks.
    pub fn of(now: &Look, before: &Look, order: Order) -> Self {
        let nanos = now.io.at_ns.saturating_sub(before.io.at_ns).max(1);
        let stretch = Stretch(Duration::from_nanos(nanos).as_secs_f64());
        let (asked, was) = (&now.io.programs, &before.io.programs);
        let [reads, writes, others] = [
            asked.reads.since(&was.reads),
            asked.writes.since(&was.writes),
            asked.others.since(&was.others),
        ];
        let title = format!(
            "{} on {}: {} reads/s, {}; {} writes/s, {}; {} other requests/s",
            now.io.pool,
            now.dir,
            stretch.each_second(reads.requests),
            stretch.speed(reads.bytes),
            stretch.each_second(writes.requests),
            stretch.speed(writes.bytes),
            stretch.each_second(others.requests),
        );
        let mut parts = vec![
            nodes(&now.nodes),
            members(now, before, &stretch),
            locks(now, before, &stretch),
            programs(now, before, &stretch, order),
        ];
        parts.extend(now.services.iter().map(|service| clients(service, &before.services)));
        let health = now.health.as_ref().map(Health::lines).unwrap_or_default();
        Self { title, health, parts }
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

fn nodes(all: &Value) -> Part {
    let row = |n: &Value| {
        let own = if n["slot"] == all["self"] { " (this)" } else { "" };
        let beat =
            n["last_beat_s"].as_f64().map_or_else(|| "-".to_owned(), |s| format!("{s:.1} s"));
        vec![
            format!("{}{own}", n["slot"]),
            text(&n["state"]),
            text(&n["host"]),
            text(&n["mount_point"]),
            beat,
        ]
    };
    let rows: Vec<_> = all["nodes"].as_array().into_iter().flatten().map(row).collect();
    Part {
        title: format!("NODES: {}", rows.len()),
        header: vec!["node", "state", "host", "mounted on", "last beat"],
        rows,
        numbers_from: 4,
    }
}

fn members(now: &Look, before: &Look, stretch: &Stretch) -> Part {
    let none = crate::control::requests::MemberIo::default();
    let row = |m: &crate::control::requests::MemberIo| {
        let same = |b: &&crate::control::requests::MemberIo| b.index == m.index && b.path == m.path;
        let was = before.io.members.iter().find(same).unwrap_or(&none);
        let (r, w) = (m.reads.since(&was.reads), m.writes.since(&was.writes));
        let time = |f: &Flow| {
            f.nanos
                .checked_div(f.ended)
                .map_or_else(|| "-".to_owned(), |t| show_time(Duration::from_nanos(t)))
        };
        let note = if m.slow { " slow" } else { "" };
        vec![
            m.index.to_string(),
            format!("{}{note}", m.path),
            stretch.each_second(r.requests),
            stretch.each_second(w.requests),
            stretch.speed(r.bytes),
            stretch.speed(w.bytes),
            time(&r),
            time(&w),
            stretch.under_way(r.nanos.saturating_add(w.nanos)),
            (m.reads.in_progress + m.writes.in_progress).to_string(),
            m.errors.to_string(),
        ]
    };
    Part {
        title: format!("MEMBERS: {}", now.io.members.len()),
        header: vec![
            "member",
            "device",
            "reads/s",
            "writes/s",
            "read",
            "written",
            "read time",
            "write time",
            "under way",
            "now",
            "errors",
        ],
        rows: now.io.members.iter().map(row).collect(),
        numbers_from: 2,
    }
}

fn locks(now: &Look, before: &Look, stretch: &Stretch) -> Part {
    let counts = (&now.locks["counts"], &before.locks["counts"]);
    let grew = |name: &str| {
        let of = |v: &Value| v[name].as_u64().unwrap_or(0);
        stretch.each_second(of(counts.0).saturating_sub(of(counts.1)))
    };
    let slots = |v: &Value| {
        let each = v.as_array().into_iter().flatten();
        let each: Vec<String> = each.map(|n| text(n.get("node").unwrap_or(n))).collect();
        if each.is_empty() { "-".to_owned() } else { each.join(", ") }
    };
    let all = now.locks["locks"].as_array().into_iter().flatten();
    // Those that nobody contends say nothing.
    let busy =
        |l: &&Value| l["waiting"] != 0 || l["hand_overs"] != 0 || !l["giving_up_to"].is_null();
    let row = |l: &Value| {
        vec![
            text(&l["of"]),
            text(&l["held"]),
            slots(&l["holders"]),
            slots(&l["waiters"]),
            text(&l["users"]),
            text(&l["waiting"]),
            text(&l["hand_overs"]),
        ]
    };
    Part {
        title: format!(
            "LOCKS: {} in memory; {} acquired/s, {} given up/s, {} polls/s",
            now.locks["in_memory"],
            grew("acquired"),
            grew("given_up"),
            grew("polls"),
        ),
        header: vec![
            "lock of",
            "held",
            "nodes that hold",
            "nodes that wait",
            "users",
            "waiting",
            "handed over",
        ],
        rows: all.filter(busy).map(row).collect(),
        numbers_from: 4,
    }
}

fn programs(now: &Look, before: &Look, stretch: &Stretch, order: Order) -> Part {
    let was: HashMap<u32, &ProgramView> = before.programs.iter().map(|p| (p.pid, p)).collect();
    let none = ProgramView::default();
    let mut all: Vec<ProgramView> = now
        .programs
        .iter()
        .map(|p| p.since(was.get(&p.pid).copied().unwrap_or(&none)))
        .filter(|p| p.requests > 0)
        .collect();
    all.sort_by(|a, b| {
        let most = |of: fn(&ProgramView) -> u64| of(b).cmp(&of(a));
        let by = match order.by {
            Sort::Time => most(|p| p.nanos),
            Sort::Requests => most(|p| p.requests),
            Sort::Read => most(|p| p.read),
            Sort::Written => most(|p| p.written),
            Sort::Name => a.name.cmp(&b.name),
        };
        let by = if order.reversed { by.reverse() } else { by };
        by.then(a.pid.cmp(&b.pid))
    });
    let row = |p: &ProgramView| {
        let each = p.nanos.checked_div(p.requests).unwrap_or(0);
        vec![
            p.pid.to_string(),
            p.name.clone(),
            stretch.each_second(p.requests),
            stretch.speed(p.read),
            stretch.speed(p.written),
            show_time(Duration::from_nanos(each)),
            stretch.under_way(p.nanos),
        ]
    };
    let by = format!("{:?}", order.by).to_lowercase();
    Part {
        title: format!("PROGRAMS by {by}{}", if order.reversed { ", least first" } else { "" }),
        header: vec![
            "process",
            "program",
            "requests/s",
            "read",
            "written",
            "time of one",
            "under way",
        ],
        rows: all.iter().map(row).collect(),
        numbers_from: 2,
    }
}

/// The clients of a server, with what they asked for since `before`.
fn clients(service: &Service, before: &[Service]) -> Part {
    let was = before.iter().find(|was| was.url == service.url);
    let nanos = was.map_or(0, |was| service.view.at_ns.saturating_sub(was.view.at_ns));
    let stretch = Stretch(Duration::from_nanos(nanos.max(1)).as_secs_f64());
    let known: HashMap<u64, &ClientView> = was
        .iter()
        .flat_map(|was| &was.view.clients)
        .map(|client| (client.number, client))
        .collect();
    let none = ClientView::default();
    let row = |client: &ClientView| {
        let was = known.get(&client.number).copied().unwrap_or(&none);
        let (reads, writes, others) = (
            client.requests.reads.since(&was.requests.reads),
            client.requests.writes.since(&was.requests.writes),
            client.requests.others.since(&was.requests.others),
        );
        let all = reads.plus(&writes).plus(&others);
        let mean = all.nanos.checked_div(all.ended).map(Duration::from_nanos);
        vec![
            client.said(),
            client.address.clone().unwrap_or_else(|| "-".to_owned()),
            stretch.each_second(all.requests),
            stretch.speed(reads.bytes),
            stretch.speed(writes.bytes),
            mean.map_or_else(|| "-".to_owned(), show_time),
            all.in_progress.to_string(),
            client.connections.to_string(),
            client.open_files.to_string(),
            client.leases.to_string(),
            client.repeated.to_string(),
        ]
    };
    Part {
        title: format!("CLIENTS of {}: {}", service.url, service.view.clients.len()),
        header: vec![
            "client",
            "address",
            "requests/s",
            "read",
            "written",
            "time of one",
            "now",
            "connections",
            "open files",
            "leases",
            "repeated",
        ],
        rows: service.view.clients.iter().map(row).collect(),
        numbers_from: 2,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn look(at_s: u64, scale: u64) -> Look {
        let program = |pid: u32, name: &str, requests: u64, read: u64, written: u64| ProgramView {
            pid,
            name: name.into(),
            requests: requests * scale,
            read: read * scale,
            written: written * scale,
            nanos: u64::from(pid) * scale * 1_000_000,
            ..ProgramView::default()
        };
        let lock = json!({"of": "inode 7", "held": "shared", "holders": [0, 1], "users": 0, "waiting": 2,
            "waiters": [{"node": 1, "mode": "exclusive"}], "hand_overs": 3, "giving_up_to": null});
        let idle = json!({"of": "inode 8", "waiting": 0, "hand_overs": 0, "giving_up_to": null});
        Look {
            dir: "/mnt".into(),
            io: IoView { pool: "p".into(), at_ns: at_s * 1_000_000_000, ..IoView::default() },
            nodes: json!({"self": 1, "nodes": [{"slot": 0, "state": "alive", "host": "a",
                "mount_point": "/a", "last_beat_s": 0.25}, {"slot": 1, "state": "alive", "host": "b",
                "mount_point": "/mnt", "last_beat_s": null}]}),
            locks: json!({"in_memory": 9, "counts": {"acquired": 100 * scale, "given_up": 0, "polls": 0},
                "locks": [lock, idle]}),
            programs: vec![
                program(1, "dd", 10, 0, 40960),
                program(2, "cat", 30, 4096, 0),
                program(3, "idle", 0, 0, 0),
            ],
            ..Look::default()
        }
    }

    fn column(part: &Part, n: usize) -> Vec<&str> {
        part.rows.iter().map(|row| row[n].as_str()).collect()
    }

    #[test]
    fn rates_are_of_the_time_between_and_programs_are_sorted() {
        let (before, now) = (look(10, 1), look(12, 3));
        let shown = |by, reversed| Shown::of(&now, &before, Order { by, reversed });
        let all = shown(Sort::Time, false);
        let [nodes, _, locks, programs] = &all.parts[..] else { panic!() };
        assert_eq!(column(nodes, 0), ["0", "1 (this)"]);
        assert_eq!(column(nodes, 4), ["0.2 s", "-"]);
        assert!(locks.title.contains("100.0 acquired/s"), "{}", locks.title);
        assert_eq!(column(locks, 3), ["1"]);
        assert_eq!(column(programs, 1), ["cat", "dd"]);
        assert_eq!(programs.rows[1], ["1", "dd", "10.0", "0 B/s", "40 KiB/s", "100 us", "0.00"]);
        let names = |by, reversed| {
            let part = shown(by, reversed).parts.pop().unwrap();
            column(&part, 1).join(" ")
        };
        assert_eq!(names(Sort::Written, false), "dd cat");
        assert_eq!(names(Sort::Written, true), "cat dd");
        assert_eq!(names(Sort::Requests, false), "cat dd");
        assert_eq!(names(Sort::Read, false), "cat dd");
        assert_eq!(names(Sort::Name, false), "cat dd");
    }
}
