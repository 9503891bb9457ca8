//! What the block devices under the streams were asked for by the kernel.

use super::stream::Stream;

/// What a block device has been asked for since the machine started: reads, writes, their sectors.
type Counts = [u64; 4];

/// Of the devices under all streams.
pub(super) fn issued_of(streams: &[Stream]) -> Vec<(u64, Counts)> {
    let mut all: Vec<(u64, Counts)> = Vec::new();
    for stream in streams {
        let number = stream.target.number;
        if all.iter().any(|(n, _)| *n == number) {
            continue;
        }
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"));
        let Ok(stat) = stat else { continue };
        let fields: Vec<u64> = stat.split_whitespace().filter_map(|f| f.parse().ok()).collect();
        let counts = [0, 4, 2, 6].map(|i| fields.get(i).copied().unwrap_or(0));
        all.push((number, counts));
    }
    all
}

/// The difference, in words.
pub(super) fn issued_since(before: &[(u64, Counts)], after: &[(u64, Counts)]) -> Option<String> {
    let mut sum = [0; 4];
    for ((_, a), (_, b)) in after.iter().zip(before) {
        for (s, (a, b)) in sum.iter_mut().zip(a.iter().zip(b)) {
            *s += a.saturating_sub(*b);
        }
    }
    let said = |what: &str, n: u64, sectors: u64| {
        (n > 0).then(|| format!("{n} {what} of {} KiB on average", sectors / 2 / n))
    };
    let [reads, writes, sectors_read, sectors_written] = sum;
    let parts = [said("reads", reads, sectors_read), said("writes", writes, sectors_written)];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}
