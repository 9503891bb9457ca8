//! All metric families: names by the conventions of OpenMetrics, in base units.

/// The beginning of each name.
pub const PREFIX: &str = "braid";

/// What a family's values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, as long as the node is mounted.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Is in the labels.
    Info,
    /// Counts of values by upper bound, and their sum.
    Histogram,
}

/// One metric family.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Without prefix, unit and what the kind adds.
    pub name: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// The unit, if it has one; empty: none.
    pub unit: &'static str,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

macro_rules! families {
    ($($section:literal: $($id:ident = $kind:ident $name:literal $unit:literal [$($label:literal)*] $help:literal;)*)*) => {
        $($(
            #[doc = $help]
            pub const $id: Family = Family {
                name: $name, kind: Kind::$kind, unit: $unit, labels: &[$($label),*], help: $help,
            };
        )*)*
        /// All of them, by what they are about.
        pub const SECTIONS: &[(&str, &[Family])] = &[$(($section, &[$($id),*])),*];
    };
}

families! {
"Node":
BUILD = Info "build" "" ["version"] "The program";
NODE = Info "node" "" ["pool" "uuid" "node" "host" "mount_point"] "The node that answers, and what it has mounted where";
MOUNTED = Gauge "node_mounted_timestamp" "seconds" [] "When the node was mounted, in Unix time";
HEALTH = Gauge "health" "" ["state"] "1 for the worst that the node knows of the pool, as the first line of braid status says it, 0 for the others";
WITHDRAWN = Gauge "node_withdrawn" "" [] "1 if the node has withdrawn: every call fails until it is unmounted and mounted again";
"Operations of programs":
OPERATION_DURATION = Histogram "operation_duration" "seconds" ["operation"] "How long the file system took for requests of programs. Requests that the kernel answers from its caches are not counted";
OPERATION_BYTES = Counter "operation" "bytes" ["operation"] "Bytes that programs have read, written and copied";
OPERATION_ERRORS = Counter "operation_errors" "" ["operation" "error"] "Requests answered by an error: io is EIO, space is ENOSPC, EDQUOT and EFBIG; other is mostly what programs expect, such as a name that is not there";
OPERATIONS_IN_PROGRESS = Gauge "operations_in_progress" "" ["operation"] "Requests that are being answered";
"Locks":
LOCKS = Gauge "locks" "" [] "Cluster locks in memory";
LOCK_ACQUISITIONS = Counter "lock_acquisitions" "" ["served"] "Acquisitions of cluster locks: cached without I/O and waiting, or slow";
LOCK_WAIT = Histogram "lock_wait" "seconds" [] "How long threads waited for locks that were not here, or were in use";
LOCK_DEMOTIONS = Counter "lock_demotions" "" [] "Locks that were given up, in whole or in part";
LOCK_HAND_OVERS = Counter "lock_hand_overs" "" [] "Of the demotions, those that another node had asked for";
LOCK_POLLS = Counter "lock_polls" "" [] "Looks at a lock's record because a timer ran out: many mean that hints do not arrive";
LOCK_RECORD_READS = Counter "lock_record_reads" "" [] "Lock records read from the devices";
LOCK_COMPARE_AND_WRITES = Counter "lock_compare_and_writes" "" [] "Compare-and-writes of lock records";
"Hints":
HINTS = Counter "hints" "" ["direction"] "Messages between nodes that say which locks are wanted: sent, received";
LOCK_ASKS = Counter "lock_asks" "" ["direction"] "Locks that were asked of their holder by a message: sent. Asks of other nodes that were answered by a message with the record: answered";
PEER_WAY = Gauge "peer_messages" "" ["node" "way"] "1 for the way by which another node is told which locks are wanted, as in braid nodes, 0 for the others";
PEER_ASKS = Counter "peer_asks" "" ["node"] "Locks that the other node was asked for by a message, in its present life";
PEER_GIVEN = Counter "peer_asks_given" "" ["node"] "Of these, answered by a message with the lock. The others came by the record, which is slower";
PEER_HAND_OVER = Gauge "peer_hand_over" "seconds" ["node"] "From an ask to the lock: the mean of about the last eight. Absent until there was one";
"Caches":
INODES_CACHED = Gauge "cached_inodes" "" [] "Inodes in memory";
OPEN_FILES = Gauge "open_files" "" [] "Open files";
METADATA_BLOCKS = Gauge "cached_metadata_blocks" "" ["state"] "Metadata bodies in memory: clean, or dirty and not in their place yet";
METADATA_MISSES = Counter "cached_metadata_misses" "" [] "Metadata bodies that had to be read from the devices";
DIRTY = Gauge "dirty_data" "bytes" [] "File data in memory that is not on the devices yet";
"Journal":
JOURNAL_COMMITS = Counter "journal_commits" "" [] "Records written to the journal";
JOURNAL_BLOCKS = Counter "journal_blocks" "" [] "Images of metadata in these records";
METADATA_WRITES = Counter "metadata_writes" "" [] "Metadata bodies written in place";
JOURNAL_FLUSHES = Counter "journal_flushes" "" [] "Flushes of all devices for durability";
"Members":
MEMBER_STATE = Gauge "member_state" "" ["member" "device" "state"] "1 for the state that the member is in, 0 for the others";
MEMBER_DURATION = Histogram "member_request_duration" "seconds" ["member" "device" "direction"] "How long reads and writes of the member took";
MEMBER_SIZE = Histogram "member_request_size" "bytes" ["member" "device" "direction"] "Sizes of reads and writes as they were issued; the sum is the bytes moved";
MEMBER_IN_PROGRESS = Gauge "member_requests_in_progress" "" ["member" "device" "direction"] "Reads and writes that the member has not answered yet: its queue, as this node fills it";
MEMBER_COMMANDS = Counter "member_commands" "" ["member" "device" "command"] "Other commands to the member";
MEMBER_ERRORS = Counter "member_errors" "" ["member" "device"] "Commands of any kind that the member failed";
MEMBER_SLOW = Gauge "member_slow" "" ["member" "device"] "1 if the member is slow beside its peers";
MEMBER_SILENT = Gauge "member_silent" "seconds" ["member" "device"] "For how long the member has answered nothing; 0 if it answers";
MEMBER_DAMAGED = Gauge "member_damaged_blocks" "" ["member" "device"] "Blocks that this member returned damaged while another copy was good";
MEMBER_USED = Gauge "member_used" "bytes" ["member" "device"] "Bytes of the pool that are on the member";
"Redundancy":
EPOCH = Gauge "pool_epoch" "" [] "Epoch of the pool: it grows with each change of members";
TOLERATES = Gauge "redundancy_tolerated_failures" "" [] "How many more members may be lost, whichever they are";
REBUILD_DONE = Gauge "rebuild_done" "bytes" ["member"] "How far this node has filled the member; absent if it fills none";
REBUILD_SIZE = Gauge "rebuild_size" "bytes" ["member"] "How far that goes";
MOVE_DONE = Gauge "move_done" "bytes" ["member"] "How far this node has moved the member's contents to another device; absent if it moves none";
MOVE_SIZE = Gauge "move_size" "bytes" ["member"] "How far that goes";
"Scrub":
SCRUBS = Counter "scrubs" "" [] "Scrubs by this node that have ended";
SCRUB_DONE = Gauge "scrub_done" "bytes" [] "How far the scrub under way is; absent if there is none";
SCRUB_SIZE = Gauge "scrub_size" "bytes" [] "How far that goes";
SCRUB_HEALED = Gauge "scrub_healed" "bytes" [] "Bytes that the last scrub, or the one under way, has healed";
SCRUB_UNDECIDED = Gauge "scrub_undecided" "bytes" [] "Bytes where copies differ and nothing says which is right";
DAMAGED = Gauge "damaged_metadata_blocks" "" [] "Damaged metadata that the node has met: what needs it gives EIO";
"Nodes and recovery":
NODES = Gauge "nodes" "" ["state"] "Nodes of the pool as this one sees them";
NODE_LAST_BEAT = Gauge "node_last_beat" "seconds" ["node" "host"] "How long ago a heartbeat of another node was seen";
RECOVERIES = Counter "recoveries" "" [] "Dead nodes that this node has recovered";
NODE_WAITS = Gauge "node_waits" "" [] "Other nodes for which programs here have waited longer than 5 s";
"Service":
SERVICE_CLIENTS = Gauge "service_clients" "" [] "Clients of the server: sessions, with or without a connection. All of this section is served by braid serve only";
SERVICE_CONNECTIONS = Gauge "service_connections" "" [] "Connections of these";
SERVICE_DURATION = Histogram "service_request_duration" "seconds" ["operation"] "How long the server took for requests of clients, with waits for cluster locks and for recalls of leases, and without the network";
SERVICE_BYTES = Counter "service" "bytes" ["operation"] "Bytes that clients have read and written";
SERVICE_ERRORS = Counter "service_errors" "" ["operation"] "Requests of clients answered by EIO";
SERVICE_IN_PROGRESS = Gauge "service_requests_in_progress" "" ["operation"] "Requests of clients that are being answered";
SERVICE_REPEATED = Counter "service_repeated_requests" "" [] "Requests that came once more, since their replies were lost";
SERVICE_LEASES = Gauge "service_leases" "" [] "Leases that clients have";
SERVICE_LEASES_GRANTED = Counter "service_leases_granted" "" [] "Leases that were given";
SERVICE_LEASES_RECALLED = Counter "service_leases_recalled" "" [] "Leases that were recalled, since something changed";
SERVICE_LEASES_LATE = Counter "service_leases_late" "" [] "How often a client was late to carry out a recall";
CLIENT_BYTES = Counter "service_client" "bytes" ["client" "operation"] "Bytes that the sessions of a client have read and written; its name is that of its certificate and, in brackets, what it calls itself. Gone with its last session";
CLIENT_REQUESTS = Counter "service_client_requests" "" ["client"] "Requests of these sessions";
CLIENT_OPEN_FILES = Gauge "service_client_open_files" "" ["client"] "Files that they have open";
"Space":
POOL_SIZE = Gauge "pool_size" "bytes" [] "Size of the pool, without redundancy";
SPACE_SIZE = Gauge "filesystem_size" "bytes" [] "Space for file data";
SPACE_FREE = Gauge "filesystem_free" "bytes" [] "Of it, free";
SPACE_AVAILABLE = Gauge "filesystem_available" "bytes" [] "The part of the free space that files can take";
INODES = Gauge "filesystem_inodes" "" [] "Inodes in use";
INODES_FREE = Gauge "filesystem_inodes_free" "" [] "Inodes that there is room for";
}

impl Family {
    /// The name as a sample has it, but for what a histogram adds.
    #[cfg(test)]
    pub fn full_name(&self) -> String {
        let end = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        let unit = if self.unit.is_empty() { String::new() } else { format!("_{}", self.unit) };
        format!("{PREFIX}_{}{unit}{end}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const BEGIN: &str =
        "<!-- The tables are made from the program's own list: a test says what to put here. -->\n";

    /// The tables of docs/metrics.md.
    fn tables() -> String {
        let mut text = String::new();
        for (section, families) in SECTIONS {
            let _ = write!(
                text,
                "\n### {section}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n"
            );
            for f in *families {
                let kind = format!("{:?}", f.kind).to_lowercase();
                let labels: Vec<_> = f.labels.iter().map(|l| format!("`{l}`")).collect();
                let (name, labels) = (f.full_name(), labels.join(", "));
                let _ = writeln!(text, "| `{name}` | {kind} | {labels} | {} |", f.help);
            }
        }
        text
    }

    #[test]
    fn the_document_has_every_family_as_it_is() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let document = std::fs::read_to_string(path).unwrap();
        let written = document.split_once(BEGIN).map_or("", |(_, tables)| tables);
        let tables = tables();
        assert!(written == tables, "docs/metrics.md should end with:\n{BEGIN}{tables}");
    }

    #[test]
    fn names_are_unique_and_say_their_unit() {
        let all: Vec<_> = SECTIONS.iter().flat_map(|(_, families)| *families).collect();
        let mut names: Vec<_> = all.iter().map(|f| f.full_name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
        for f in all {
            assert!(["", "bytes", "seconds"].contains(&f.unit), "{}", f.name);
            assert!(f.name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{}", f.name);
            for end in ["_total", "_info", "_count", "_sum", "_bucket", "_created"] {
                assert!(!f.name.ends_with(end), "{}: {end} is of the format", f.name);
            }
            assert!(!f.help.ends_with('.') && !f.help.contains('|'), "{}", f.help);
        }
    }

    /// What the dashboard and its alerts ask for is there.
    #[test]
    fn the_dashboard_asks_for_what_there_is() {
        let names: Vec<_> =
            SECTIONS.iter().flat_map(|(_, families)| *families).map(Family::full_name).collect();
        for file in ["braid-dashboard.json", "braid-alerts.yml"] {
            let path = format!("{}/../../packaging/grafana/{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let mut seen = 0;
            for word in words.filter(|word| word.starts_with("braid_")) {
                let ends = ["_bucket", "_sum", "_count"];
                let base = ends.iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
                assert!(names.iter().any(|n| n == word || n == base), "{file}: {word}");
                seen += 1;
            }
            assert!(seen > 3, "{file}");
        }
    }
}
