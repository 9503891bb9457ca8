//! The `-o` options of `braid mount`, by purpose: `braid mount --help` and the manual page show them.
//!
//! The parsers are `mount.rs` and `FuseOptions::apply`; the tests here compare them with the table.

use std::fmt::Write as _;

use clap_mangen::roff::{Roff, bold, roman};
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width};

/// An option: how it is written, its unit or form, its default, its meaning.
type Entry = (&'static str, &'static str, &'static str, &'static str);

/// Options by purpose. A word that ends in `=` takes a value.
const GROUPS: [(&str, &[Entry]); 9] = [
    (
        "Pool and access",
        &[
            ("ro rw", "", "rw", "Read-only, or read and write."),
            ("devices=", "A:B:...", "found by name", "The devices of the pool."),
            (
                "degraded",
                "",
                "off",
                "Mount without missing members, if the others hold everything. The missing members \
                 count as failed from then on.",
            ),
            (
                "device_timeout=",
                "seconds, 0.1 to 3600",
                "30",
                "How long a device may take to answer before the mount goes on without it and names \
                 it.",
            ),
            (
                "slot=",
                "0 to the pool's node slots less one",
                "a free slot",
                "The node slot to take.",
            ),
            ("suid nosuid", "", "suid", "Set-user-ID and set-group-ID bits count, or not."),
            ("dev nodev", "", "dev", "Device files are devices, or not."),
            ("exec noexec", "", "exec", "Programs can be run, or not."),
            (
                "allow_other noallow_other",
                "",
                "yes for root",
                "Other users may use the mount, or only the user who mounted it.",
            ),
        ],
    ),
    (
        "Memory of this node",
        &[
            ("memory=", "size", "512M", "Bound of all of it; sets the three below."),
            ("cache=", "size, 8M at least", "93M", "Metadata that is kept."),
            ("dirty=", "size, 8M at least", "93M", "Unwritten data that is kept."),
            ("locks=", "inodes, 1000 at least", "101580", "Idle inodes that are kept."),
        ],
    ),
    (
        "Durability and space",
        &[
            ("commit=", "seconds, 1 to 300", "5", "Longest time between two commits."),
            ("sync async dirsync", "", "async", "Every change is durable before the call returns."),
            (
                "discard nodiscard",
                "",
                "nodiscard",
                "Freed space goes back to the devices by itself, some seconds later.",
            ),
        ],
    ),
    (
        "Kernel caches",
        &[
            (
                "cachenames nocachenames",
                "",
                "one-node pools",
                "The kernel finds paths without asking: faster. But if another node changes a \
                 directory, whatever is mounted inside it is unmounted. A pool made for one node \
                 loses nothing.",
            ),
            (
                "nocachedata",
                "",
                "off",
                "Reads bypass the kernel's page cache: always exact, but repeated reads are slower.",
            ),
            ("nocacheattr", "", "off", "The kernel keeps no attributes (for tests and diagnosis)."),
        ],
    ),
    (
        "Requests",
        &[
            ("max_write=", "size, 4K to 4M", "1M", "Largest request."),
            ("raise_page_limit", "", "off", "Allows max_write above 1M on this machine (root)."),
            ("read_ahead=", "size, at most 1G", "8M", "How far the kernel reads ahead (root)."),
            ("workers_max=", "threads, 2 to 65536", "512", "Most threads that answer requests."),
            (
                "background_max=",
                "requests, 1 to 65535",
                "65535",
                "Most requests of the kernel at a time that no program waits for; with uring 64.",
            ),
            (
                "noalert",
                "",
                "off",
                "Idle processors may sleep deeply while requests come fast: less power, longer waits.",
            ),
            (
                "uring",
                "",
                "off",
                "Requests come by io_uring (Linux 6.14). On busy processors small calls are faster; \
                 on an idle one they are slower, and so is readahead. Root's mount sets \
                 /sys/module/fuse/parameters/enable_uring for the whole host. If it cannot be used, \
                 the mount says why and goes on without it.",
            ),
        ],
    ),
    (
        "Cluster",
        &[
            (
                "io_timeout=",
                "seconds",
                "10",
                "A node that shows no life for 5/4 of it is fenced. A node that cannot show its own \
                 life stops after it. If the option is given, a disk or file that does not answer \
                 for so long (10 s at least; twice as long without mirrors and parity) is given up: \
                 the pool goes on without that member, or the node withdraws. If not, the node waits \
                 for it. Units of iSCSI targets are given up in either case.",
            ),
            (
                "fence_command=",
                "absolute path",
                "none",
                "A program that turns a host off. It is called with the host's name, the node's slot \
                 and life; exit status 0 means that the host is dead.",
            ),
            ("fence_reset", "", "off", "Members are reset after a fence by reservation."),
            (
                "hints=",
                "tcp:ADDRESS[:PORT], unix or none",
                "see meaning",
                "How other nodes say which locks they want: over TCP at this address of this host; \
                 unix: only nodes of this host; none. The default is the address by which this host \
                 reaches the units of a target. Without a port, the first free one of 24741 to 24772: \
                 let these through a firewall between the hosts.",
            ),
        ],
    ),
    (
        "Mounts from a server (braid://...)",
        &[
            ("identity=", "file", "by the pool", "As --identity."),
            ("insecure", "", "off", "As --insecure."),
            ("connections=", "2 to 31", "16", "Requests under way at a time, and one."),
            (
                "retry=",
                "seconds, 0.1 to 3600",
                "60",
                "How long a server that does not answer is tried when it is mounted. Later it is waited for \
                 without end.",
            ),
        ],
    ),
    (
        "Messages and metrics",
        &[
            (
                "log=",
                "file",
                "kernel log",
                "Where messages go. The kernel log is for root; without it other users' messages are \
                 dropped. With -f messages go to standard error. SIGHUP opens the file anew.",
            ),
            (
                "log_format=",
                "text or json",
                "text",
                "Form of a message; json is one object on a line. BRAID_LOG_FORMAT in the environment sets \
                 the default, and BRAID_LOG the least level: error, warn, info, debug, trace.",
            ),
            (
                "metrics=",
                "ADDRESS:PORT or unix:/PATH",
                "none",
                "Serves metrics of this node for Prometheus, as http://ADDRESS:PORT/metrics or at a \
                 socket that only its owner can open. Whoever reaches the address can read them. Each \
                 node needs an address of its own.",
            ),
        ],
    ),
    (
        "Accepted, without effect",
        &[
            (
                "defaults auto noauto nofail fail _netdev silent loud",
                "",
                "",
                "For mount(8), fstab.",
            ),
            ("user nouser users nousers owner noowner group nogroup", "", "", "Who may mount."),
            ("user= uhelper= comment= x-* X-*", "", "", "For mount(8), systemd and others."),
            ("default_permissions nomand", "", "", "Always so."),
            (
                "atime noatime relatime diratime nodiratime lazytime nolazytime",
                "",
                "",
                "Reading changes no access time.",
            ),
        ],
    ),
];

/// Columns of text without a terminal, and the most with one.
const WIDTH: u16 = 98;
/// Columns of option, unit and default; the meaning has the rest.
const COLUMNS: [u16; 3] = [22, 20, 16];

/// The text below the other help.
pub fn help() -> String {
    let mut text = "Mount options (-o), comma separated; sizes as 512K, 8M, 1G:\n".to_owned();
    for (purpose, entries) in GROUPS {
        let _ = writeln!(text, "\n{purpose}:");
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(table.width().unwrap_or(WIDTH).min(WIDTH));
        table.set_header(["option", "unit", "default", "meaning"]);
        table.set_constraints(COLUMNS.map(|width| ColumnConstraint::Absolute(Width::Fixed(width))));
        for (words, unit, default, meaning) in entries {
            table.add_row([*words, unit, default, meaning]);
        }
        for line in table.lines() {
            let _ = writeln!(text, " {}", line.trim_end());
        }
    }
    text
}

/// The part of the manual page that tells of them.
pub fn write_page(page: &mut Roff) {
    page.control("SH", ["MOUNT OPTIONS"]);
    page.text([
        roman("Comma separated, after "),
        bold("-o"),
        roman(". Sizes are given as 512K, 8M, 1G."),
    ]);
    for (purpose, entries) in GROUPS {
        page.control("SS", [purpose]);
        for (words, unit, default, meaning) in entries {
            page.control("TP", []);
            page.text([bold(words.replace(' ', ", "))]);
            let unit = if unit.is_empty() { String::new() } else { format!(" Unit: {unit}.") };
            let default =
                if default.is_empty() { String::new() } else { format!(" Default: {default}.") };
            page.text([roman(format!("{meaning}{unit}{default}"))]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use braid_fs::MountOptions;
    use braid_fuse::FuseOptions;

    use super::*;
    use crate::commands::mount::is_known;

    fn words() -> impl Iterator<Item = (&'static str, &'static Entry)> {
        let entries = GROUPS.iter().flat_map(|(_, entries)| *entries);
        entries.flat_map(|entry| entry.0.split(' ').map(move |word| (word, entry)))
    }

    /// String patterns of `match` arms, and of lists, between two lines of a source.
    fn patterns(source: &str, from: &str, to: &str) -> Vec<String> {
        let begin = source.find(from).unwrap();
        let end = begin + source[begin..].find(to).unwrap();
        let arm = |line: &str| {
            let line = line.trim();
            let list = line.trim_end_matches(',');
            let listed = list.starts_with('"') && list.ends_with('"') && !list.contains(' ');
            let head = if listed { list } else { line.split_once(" => ")?.0 };
            let strings = head.split(" | ").map(|p| p.trim().strip_prefix('"')?.strip_suffix('"'));
            strings.map(|p| p.map(str::to_owned)).collect::<Option<Vec<_>>>()
        };
        source[begin..end].lines().filter_map(arm).flatten().collect()
    }

    #[test]
    fn the_table_has_every_option_that_a_parser_knows() {
        let here = include_str!("mount.rs");
        let fuse = include_str!("../../../fuse/src/options.rs");
        let own = patterns(here, "fn apply(", "/// A size of something in memory");
        let transport = patterns(fuse, "pub fn apply(", "/// The same, with something behind it.");
        assert!(own.len() >= 15 && transport.len() >= 45, "{own:?} {transport:?}");
        let known: Vec<_> = words().map(|(word, _)| word.trim_end_matches('=')).collect();
        // Refused with a message of their own.
        let refused = ["remount", "strictatime"];
        for word in own.iter().chain(&transport).filter(|w| !refused.contains(&w.as_str())) {
            assert!(known.contains(&word.as_str()), "{word} is not in the table of mount options");
        }
    }

    #[test]
    fn a_parser_knows_every_option_of_the_table() {
        for (word, (_, unit, ..)) in words() {
            let option = match word.strip_suffix('=') {
                None => word.replace('*', "systemd"),
                Some(key) => {
                    let value = match key {
                        "devices" => "/dev/a:/dev/b",
                        "fence_command" => "/bin/sh",
                        "hints" => "none",
                        "metrics" => "127.0.0.1:9750",
                        "log_format" => "json",
                        "locks" => "1000",
                        "log" | "user" | "uhelper" | "comment" => "text",
                        "memory" => "64M",
                        _ if unit.starts_with("size") => "8M",
                        _ => "10",
                    };
                    let value = if key == "max_write" { "1M" } else { value };
                    format!("{key}={value}")
                }
            };
            assert!(is_known(&option), "{option}");
        }
        assert!(!is_known("rubbish"));
    }

    #[test]
    fn the_defaults_are_those_of_the_program() {
        let (fs, fuse) = (MountOptions::default(), FuseOptions::new(PathBuf::from("/mnt")));
        let size = |bytes: braid_format::Bytes| braid_pool::layout::size::exact(bytes.get());
        for (word, default) in [
            ("cache=", size(fs.metadata_cache)),
            ("dirty=", size(fs.dirty_max)),
            ("locks=", fs.locks_max.to_string()),
            ("commit=", fs.commit_interval.as_secs().to_string()),
            ("max_write=", size(fuse.max_write)),
            ("read_ahead=", size(fuse.read_ahead)),
            ("workers_max=", fuse.workers_max.to_string()),
            ("background_max=", fuse.background().to_string()),
        ] {
            let entry = words().find(|(w, _)| *w == word).unwrap().1;
            assert_eq!(entry.2, default, "{word}");
        }
    }

    #[test]
    fn the_help_fits_a_line() {
        let help = help();
        assert!(help.lines().all(|line| line.chars().count() <= usize::from(WIDTH) + 1), "{help}");
        for (word, _) in words() {
            assert!(help.contains(word), "{word}");
        }
    }
}
