//! The machine on which a result was measured.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

pub(crate) type Facts = BTreeMap<String, String>;

/// Of this machine, now.
pub(crate) fn facts() -> Facts {
    let mut facts = Facts::new();
    let mut add = |key: &str, value: Option<String>| {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            facts.insert(key.to_owned(), value);
        }
    };
    let read = |path: &str| std::fs::read_to_string(path).ok().map(|t| t.trim().to_owned());
    add("kernel", read("/proc/sys/kernel/osrelease"));
    add("host", read("/proc/sys/kernel/hostname"));
    add("processor", field("/proc/cpuinfo", "model name"));
    add("processors", std::thread::available_parallelism().ok().map(|n| n.to_string()));
    add("memory", field("/proc/meminfo", "MemTotal"));
    add("free memory", field("/proc/meminfo", "MemAvailable"));
    add("load", read("/proc/loadavg"));
    add("cpu pressure", read("/proc/pressure/cpu").map(|t| first_line(&t)));
    add("io pressure", read("/proc/pressure/io").map(|t| first_line(&t)));
    add("frequency governor", read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    add("engine", Some(braid_pool::device::default_engine().to_owned()));
    add("program", Some(format!("braid {}", env!("CARGO_PKG_VERSION"))));
    add("build", Some(if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned()));
    add("command", Some(command_line()));
    add("time", Some(utc(SystemTime::now())));
    facts
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn command_line() -> String {
    let words: Vec<_> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    words.join(" ")
}

/// `name : value` of a file of the kernel's.
fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|l| l.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Memory of the machine, bytes; 0 if it is not known.
pub(crate) fn memory() -> u64 {
    memory_field("MemTotal").unwrap_or(0)
}

/// Memory that can be had without anybody being stopped for it, bytes, if it is known.
pub(crate) fn available() -> Option<u64> {
    memory_field("MemAvailable")
}

fn memory_field(name: &str) -> Option<u64> {
    let value = field("/proc/meminfo", name)?;
    value.trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// The mount that a path lies in: type, source and options.
pub(crate) fn file_system_of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let table = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = |line: &str| {
        let fields: Vec<_> = line.split(' ').map(str::to_owned).collect();
        let [source, at, kind, options, ..] = fields.as_slice() else { return None };
        path.starts_with(at).then(|| (at.len(), format!("{kind} on {source} ({options})")))
    };
    table.lines().filter_map(mount).max_by_key(|(len, _)| *len).map(|(_, said)| said)
}

/// A moment as `2026-01-31T12:00:00Z`.
pub(crate) fn utc(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn dates() {
        let at = |s| utc(UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
    }
    #[test]
    fn facts_name_the_machine() {
        let facts = facts();
        for key in ["kernel", "processors", "memory", "engine", "command", "time"] {
            assert!(facts.contains_key(key), "{key} in {facts:?}");
        }
        assert!(memory() > 0);
        assert!(file_system_of(Path::new("/proc/stat")).unwrap().starts_with("proc on "));
    }
}
