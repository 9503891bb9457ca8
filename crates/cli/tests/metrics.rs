//! Metrics: what a node serves, what Prometheus' own tools say of it, and what a Prometheus makes of it.

#![allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests")]

mod common;

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use common::{Cluster, Disks, can_mount, fails, ok, sh, wait_until};

/// An address of this host at which nobody listens.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The body of an answer of 200.
fn body(mut caller: impl Read + Write, request: &str) -> String {
    caller.write_all(request.as_bytes()).unwrap();
    let mut got = String::new();
    caller.read_to_string(&mut got).unwrap();
    let (head, body) = got.split_once("\r\n\r\n").unwrap_or((&got, ""));
    assert!(head.starts_with("HTTP/1.1 200 ") || head.starts_with("HTTP/1.0 200 "), "{head}");
    body.to_owned()
}

fn metrics(at: SocketAddr) -> String {
    body(TcpStream::connect(at).unwrap(), "GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")
}

/// The value of a sample, by its name and labels as they are written.
fn value(text: &str, sample: &str) -> Option<f64> {
    let line = text.lines().find(|l| l.strip_prefix(sample).is_some_and(|r| r.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Two nodes of a mirror that serve metrics: the first at an address, the second at a socket.
fn served() -> Option<(Cluster, SocketAddr, String)> {
    if !can_mount() {
        return None;
    }
    let mut cluster = Cluster::of(Disks::new(2, 256), 0, &["--mirror", "2"]);
    let (at, socket) = (free_address(), cluster.disks.path("metrics.sock"));
    cluster.mount(&[&format!("metrics={at}")]);
    cluster.mount(&[&format!("metrics=unix:{socket}")]);
    Some((cluster, at, socket))
}

#[test]
fn what_a_node_does_is_counted() {
    let Some((cluster, at, socket)) = served() else { return };
    let (a, b) = (cluster.node(0).display(), cluster.node(1).display());
    let before = metrics(at);
    sh(&format!(
        "dd if=/dev/zero of={a}/f bs=4k count=100 oflag=direct 2>/dev/null; \
         dd if={a}/f of=/dev/null bs=4k count=50 iflag=direct 2>/dev/null; \
         ! cat {a}/missing 2>/dev/null; cat {b}/f >/dev/null; echo x >>{b}/f"
    ));
    let grown = |after: &str, sample: &str| {
        let of = |text| value(text, sample).unwrap_or(0.0);
        of(after) - of(&before)
    };
    // A request is counted when its answer has gone.
    let writes = "braid_operation_duration_seconds_count{operation=\"write\"}";
    let reads = "braid_operation_bytes_total{operation=\"read\"}";
    wait_until("all is counted", || {
        let now = metrics(at);
        grown(&now, writes) >= 100.0 && grown(&now, reads) >= 204_800.0
    });
    let after = metrics(at);
    let grew = |sample: &str| grown(&after, sample);
    assert_eq!(grew("braid_operation_duration_seconds_count{operation=\"write\"}"), 100.0);
    assert_eq!(grew("braid_operation_bytes_total{operation=\"write\"}"), 409_600.0);
    assert_eq!(grew("braid_operation_bytes_total{operation=\"read\"}"), 204_800.0);
    assert!(grew("braid_operation_errors_total{operation=\"lookup\",error=\"other\"}") >= 1.0);
    assert_eq!(grew("braid_operation_errors_total{operation=\"write\",error=\"io\"}"), 0.0);
    assert!(grew("braid_lock_hand_overs_total") >= 1.0, "{after}");
    assert!(grew("braid_hints_total{direction=\"received\"}") >= 1.0, "{after}");
    let peer = |what: &str| value(&after, &format!("braid_peer_{what}"));
    assert_eq!(peer("messages{node=\"1\",way=\"unix\"}"), Some(1.0), "{after}");
    assert_eq!(peer("messages{node=\"1\",way=\"devices\"}"), Some(0.0));
    assert_eq!(peer("messages{node=\"0\",way=\"unix\"}"), None, "the node itself");
    for (n, disk) in cluster.disks.names().iter().enumerate() {
        let of = |what: &str| format!("{{member=\"{n}\",device=\"{disk}\",{what}}}");
        let writes = of("direction=\"write\"");
        assert!(grew(&format!("braid_member_request_duration_seconds_count{writes}")) >= 1.0);
        assert!(grew(&format!("braid_member_request_size_bytes_sum{writes}")) >= 409_600.0);
        let state = format!("braid_member_state{}", of("state=\"active\""));
        assert_eq!(value(&after, &state), Some(1.0), "{after}");
    }
    assert_eq!(value(&after, "braid_nodes{state=\"alive\"}"), Some(2.0), "{after}");
    assert_eq!(value(&after, "braid_redundancy_tolerated_failures"), Some(1.0));
    let size = value(&after, "braid_filesystem_size_bytes").unwrap();
    assert!(size > 100e6 && size < 256e6, "{size}");
    // The other node's, at its socket, in the other format.
    let request = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
    let other = body(UnixStream::connect(&socket).unwrap(), request);
    assert!(other.ends_with("# EOF\n") && other.contains("node=\"1\""), "{other}");
    assert!(value(&other, "braid_operation_bytes_total{operation=\"write\"}").unwrap() < 100.0);
    // It asked the first one for the file's lock.
    assert!(value(&other, "braid_peer_asks_total{node=\"0\"}").unwrap() >= 1.0, "{other}");
    assert!(value(&other, "braid_peer_asks_given_total{node=\"0\"}").unwrap() >= 1.0);
    assert!(value(&other, "braid_peer_hand_over_seconds{node=\"0\"}").unwrap() > 0.0);
    // A member fails.
    ok(&["fail", cluster.node(0).to_str().unwrap(), "1"]);
    let disk = cluster.disks.names()[1];
    let failed = format!("braid_member_state{{member=\"1\",device=\"{disk}\",state=\"failed\"}}");
    wait_until("it is told", || value(&metrics(at), &failed) == Some(1.0));
    assert_eq!(value(&metrics(at), "braid_redundancy_tolerated_failures"), Some(0.0));
    drop(cluster);
    assert!(TcpStream::connect(at).is_err() && !std::path::Path::new(&socket).exists());
}

#[test]
fn an_address_that_is_taken_is_refused_and_nothing_stays_mounted() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new(1, 256, 0);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let option = format!("metrics={}", taken.local_addr().unwrap());
    let dir = cluster.disks.path("node");
    std::fs::create_dir(&dir).unwrap();
    let said = fails(&cluster.disks.with(&["mount"], &[&dir, "-o", &option]));
    assert!(said.contains("option metrics") && said.contains("in use"), "{said}");
    assert!(!common::is_mounted(dir.as_ref()));
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        braid_testkit::skip("Prometheus is not installed (Debian: prometheus)");
    }
    found
}

#[test]
fn prometheus_own_tool_finds_nothing_wrong() {
    if !has("promtool") {
        return;
    }
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/grafana/braid-alerts.yml");
    let said = sh(&format!("promtool check rules {rules}"));
    assert!(said.contains("SUCCESS"), "{said}");
    let Some((cluster, at, _)) = served() else { return };
    let node = cluster.node(0).display();
    sh(&format!("echo x > {node}/f; sync {node}/f; cat {node}/f"));
    let text = cluster.disks.path("text");
    std::fs::write(&text, metrics(at)).unwrap();
    let said = sh(&format!("promtool check metrics < {text} 2>&1 || true"));
    assert_eq!(said, "", "{}", metrics(at));
}

/// A server that scrapes one address each second.
struct Prometheus {
    child: Child,
    at: SocketAddr,
}

impl Prometheus {
    fn start(dir: &str, target: SocketAddr) -> Self {
        let at = free_address();
        let mut config = String::new();
        let _ = writeln!(config, "global: {{scrape_interval: 1s}}");
        let _ = writeln!(
            config,
            "scrape_configs: [{{job_name: braid, static_configs: [{{targets: ['{target}']}}]}}]"
        );
        let (file, log) = (format!("{dir}/prometheus.yml"), format!("{dir}/prometheus.log"));
        std::fs::write(&file, config).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={file}"))
            .arg(format!("--storage.tsdb.path={dir}/data"))
            .arg(format!("--web.listen-address={at}"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(log).unwrap())
            .spawn();
        Self { child: child.unwrap(), at }
    }
    /// The values that an expression has, each with its labels.
    fn ask(&self, expression: &str) -> Vec<(serde_json::Value, f64)> {
        let Ok(caller) = TcpStream::connect(self.at) else { return Vec::new() };
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let escaped = expression
            .bytes()
            .map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") });
        let path = format!("/api/v1/query?query={}", escaped.collect::<String>());
        let mut got = String::new();
        let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n");
        let mut caller = caller;
        caller.write_all(request.as_bytes()).unwrap();
        caller.read_to_string(&mut got).unwrap();
        let body = got.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let Ok(answer) = serde_json::from_str::<serde_json::Value>(body) else { return Vec::new() };
        assert_ne!(answer["status"], "error", "{expression}: {answer}");
        let all = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        let of = |one: &serde_json::Value| one["value"][1].as_str().unwrap().parse().unwrap();
        all.iter().map(|one| (one["metric"].clone(), of(one))).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn a_prometheus_reads_them_and_the_dashboard_has_answers() {
    if !has("prometheus") {
        return;
    }
    let Some((cluster, at, _)) = served() else { return };
    let node = cluster.node(0).display();
    let prometheus = Prometheus::start(&cluster.disks.path(""), at);
    let write = || sh(&format!("dd if=/dev/zero of={node}/f bs=4k count=10 oflag=direct 2>&1"));
    let rate = "rate(braid_operation_bytes_total{operation=\"write\"}[10s])";
    wait_until("it has a rate", || {
        write();
        prometheus.ask(rate).first().is_some_and(|(_, rate)| *rate > 0.0)
    });
    let up = prometheus.ask("up");
    assert!(up.len() == 1 && up[0].1 == 1.0, "{up:?}");
    // By the format that it asks for, which has types and units.
    let info = prometheus.ask("braid_node_info");
    assert!(info[0].0["pool"] == "test" && info[0].0["node"] == "0", "{info:?}");
    let dashboard = include_str!("../../../packaging/grafana/braid-dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    // What is not always there: a rebuild, a move, a scrub; errors that nobody made.
    let absent = ["rebuild", "move", "scrub", "> 0"];
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let expression =
                expression.replace("$instance", ".*").replace("$__rate_interval", "10s");
            let got = prometheus.ask(&expression);
            let may_be_absent = absent.iter().any(|word| expression.contains(word));
            assert!(!got.is_empty() || may_be_absent, "nothing for {expression}");
            asked += 1;
        }
    }
    assert!(asked > 25, "{asked}");
}
