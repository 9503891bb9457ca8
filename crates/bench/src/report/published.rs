//! Results that were published from 1992 to 2000, as far as they survive. They are drawn into the plot of
//! the same quantity, or in a plot of their own. Lost figures are named.
//!
//! # Source
//! * 1992: T. L. Lam, Improving File System Performance by Striping, NASA Ames, tables 2 and 3
//!   (figures 1 and 2 are lost; the tables have their points).
//! * BDSpro: Getting Started With BDSpro, chapter 2, tables 2-1 and 2-2.
//! * 2000: LLNL and University of Minnesota, SAN and CXFS report; NCAR, CXFS tests.
//! * 1998: Erickson and others, GFS for IRIX, table of relative efficiencies.

use super::svg::{Line, Plot, Value};

/// Bytes of a megabyte of 1992.
const MB: f64 = 1_048_576.0;

/// Megabytes of the files of 1992, in table 2 and in table 3.
const FILES_2: [f64; 12] = [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0];
/// The same sixteen are run on modelled disks.
pub(crate) const FILES_3: [f64; 16] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 150.0, 200.0, 250.0,
    300.0,
];
const ONE_DISK: [f64; 12] = [7.5, 7.3, 7.2, 4.93, 4.25, 1.35, 2.0, 1.46, 1.62, 1.48, 1.45, 1.43];
const FOUR_WAY: [f64; 12] = [7.88, 7.5, 7.4, 7.3, 7.5, 7.06, 7.14, 7.4, 7.2, 6.87, 6.22, 6.0];
const IPI: [f64; 12] = [8.19, 8.05, 7.94, 7.8, 7.7, 7.6, 7.4, 7.54, 7.35, 7.2, 6.98, 6.62];
const WAYS: [(&str, [f64; 16]); 3] = [
    (
        "2-way",
        [1.0, 1.35, 1.3, 1.31, 1.43, 1.34, 1.34, 1.5, 1.3, 1.3, 1.01, 0.94, 1.04, 0.97, 1.09, 1.08],
    ),
    (
        "3-way",
        [
            1.0, 1.28, 1.09, 1.23, 1.22, 1.08, 1.28, 1.18, 1.08, 1.21, 1.43, 1.21, 1.11, 1.28,
            1.12, 1.35,
        ],
    ),
    (
        "4-way",
        [1.0, 1.35, 1.57, 1.88, 1.8, 1.7, 1.6, 1.45, 1.44, 1.52, 1.5, 1.48, 1.52, 1.57, 1.5, 1.51],
    ),
];
/// Disks and unit; XFS reads and writes, BDS reads, writes and buffered writes, MB/s.
pub(crate) const BDS: [((u32, u32), [f64; 5]); 7] = [
    ((7, 256), [52.0, 40.0, 52.0, 15.0, 31.0]),
    ((14, 128), [79.0, 43.0, 69.0, 28.0, 42.0]),
    ((14, 256), [83.0, 50.0, 73.0, 31.0, 48.0]),
    ((14, 512), [84.0, 53.0, 74.0, 33.0, 53.0]),
    ((36, 256), [196.0, 120.0, 89.0, 51.0, 94.0]),
    ((68, 60), [189.0, 121.0, 81.0, 51.0, 92.0]),
    ((68, 120), [221.0, 163.0, 79.0, 58.0, 92.0]),
];

/// A row of the efficiencies of 1998: layer, mode, mean, deviation, least, most, percent of the driver.
pub(super) type Efficiency = (&'static str, &'static str, [f64; 4]);
pub(super) const EFFICIENCIES: [Efficiency; 13] = [
    ("pool", "buffered writes", [95.6, 3.0, 90.4, 100.5]),
    ("pool", "buffered reads", [97.2, 2.0, 92.3, 103.6]),
    ("pool", "all", [96.4, 3.0, 90.4, 103.6]),
    ("GFS", "buffered writes", [24.9, 8.0, 9.7, 38.8]),
    ("GFS", "buffered reads", [25.7, 12.0, 14.7, 68.8]),
    ("GFS", "direct writes", [29.6, 19.0, 16.4, 79.1]),
    ("GFS", "direct reads", [31.4, 17.0, 16.9, 74.5]),
    ("GFS", "all", [27.6, 15.0, 9.7, 79.1]),
    ("XFS", "buffered writes", [87.8, 90.0, 43.7, 475.0]),
    ("XFS", "buffered reads", [64.5, 58.0, 31.8, 319.0]),
    ("XFS", "direct writes", [112.3, 53.0, 94.6, 375.8]),
    ("XFS", "direct reads", [115.4, 29.0, 99.4, 215.9]),
    ("XFS", "all", [90.0, 63.0, 31.8, 475.0]),
];

/// A line of these points; its colour is nobody's.
fn named(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Line {
    let points = points.into_iter().map(|(x, y)| (x, Value::exact(y))).collect();
    Line { system: String::new(), name: name.to_owned(), points }
}

fn line(name: &str, x: &[f64], y: &[f64]) -> Line {
    named(name, x.iter().map(|x| x * MB).zip(y.iter().copied()))
}

/// Curves to be drawn into the plot of a phase: same axes, same quantity.
pub(super) fn curves(phase: &str) -> Vec<Line> {
    if phase.starts_with("S0.5") {
        return WAYS.iter().map(|(name, y)| line(&format!("{name}, 1992"), &FILES_3, y)).collect();
    }
    if phase.starts_with("S0.4 4-way over 1-way") {
        let ratio: Vec<f64> = FOUR_WAY.iter().zip(ONE_DISK).map(|(a, b)| a / b).collect();
        return vec![line("through the cache, 1992", &FILES_2, &ratio)];
    }
    Vec::new()
}

/// Figures that stand beside the results of a mode.
pub(super) fn figures(kind: &str) -> Vec<Plot> {
    match kind {
        "seeds" => vec![figure_1(), bds(), arrays(), efficiencies()],
        "stripe" => vec![ways()],
        "surface" => vec![efficiencies()],
        "ladder" => vec![arrays()],
        _ => Vec::new(),
    }
}

fn plot(title: &str, x: &str, y: &str) -> Plot {
    Plot { title: title.to_owned(), x: x.to_owned(), y: y.to_owned(), ..Plot::default() }
}

fn figure_1() -> Plot {
    let all = [("1 SCSI disk", ONE_DISK), ("4-way", FOUR_WAY), ("IPI disk", IPI)];
    let published = all.iter().map(|(name, y)| line(name, &FILES_2, y)).collect();
    Plot { published, ..plot("S0.4 original figure 1 (1992), through the cache", "file", "MB/s") }
}

/// The file of 1 MB is all cache: every stripe has 1.00.
fn mean_beyond_1_mb(y: &[f64; 16]) -> f64 {
    y.iter().skip(1).sum::<f64>() / 15.0
}

fn ways() -> Plot {
    let mut points = vec![(1.0, 1.0)];
    points.extend((2_u32..).map(f64::from).zip(WAYS.iter().map(|(_, y)| mean_beyond_1_mb(y))));
    let arrays = vec![(1.0, 1.0), (2.0, 191.0 / 96.0)];
    let published = vec![
        named("S0.5 disks of 1992, mean of files from 5 MB", points),
        named("S3.2 arrays of 2000", arrays),
    ];
    Plot { published, ..plot("originals: speed-up over one", "ways", "of one") }
}

/// Its rows, told apart by their place; the marks say what they are.
fn bds() -> Plot {
    let of = |name: &str, ratio: fn(&[f64; 5]) -> f64| {
        let points = (1_u32..).map(f64::from).zip(BDS.iter().map(|(_, r)| ratio(r)));
        named(name, points)
    };
    let rows: Vec<_> =
        BDS.iter().map(|((disks, unit), _)| format!("{disks} x {unit} KB")).collect();
    let published = vec![
        of("reads", |r| r[2] / r[0]),
        of("writes", |r| r[3] / r[1]),
        of("buffered writes", |r| r[4] / r[1]),
    ];
    let title = format!("S1.6 original: BDS over XFS; {}", rows.join(", "));
    Plot { published, ..plot(&title, "row", "of XFS") }
}

fn arrays() -> Plot {
    let points = |y: [f64; 2]| (1_u32..).map(f64::from).zip(y);
    let published = vec![
        named("raw: 1 array, 2 arrays", points([96.0, 191.0])),
        named("striped volume: write, read", points([162.0, 166.0])),
    ];
    Plot { published, ..plot("S3.1 to S3.4 original (2000)", "bar", "MB/s") }
}

fn efficiencies() -> Plot {
    let modes = ["buffered writes", "buffered reads", "direct writes", "direct reads"];
    let of = |layer: &str| {
        let at = |(x, mode): (f64, &&str)| {
            let row = EFFICIENCIES.iter().find(|(l, m, _)| *l == layer && m == mode)?;
            Some((x, row.2[0] / 100.0))
        };
        let points = (1_u32..).map(f64::from).zip(&modes).filter_map(at);
        named(layer, points)
    };
    let title = format!("S4.2 original (1998), means: {}", modes.join(", "));
    let published = ["pool", "GFS", "XFS"].map(of).into();
    Plot { published, ..plot(&title, "mode", "of the driver") }
}

/// Notes on the published results of a mode.
pub(super) fn said(kind: &str) -> &'static [&'static str] {
    match kind {
        "sweep" => &[
            "S2, forty plots over 32 curves (2000): all are lost, and no number survives; what is measured \
             here has their factors",
        ],
        "first-write" => &[
            "S3.6 to S3.9 (2000): the graphs are lost; CXFS over XFS was well above 0.85 at the first write, \
             and about 1 at rewrites and reads",
        ],
        "scale" => &[
            "S4.3 and S4.4 (1998): the curves are lost; with a directory device of its own it was better",
        ],
        "surface" => &["S4.1 (1998): the surfaces are lost; the table of efficiencies survives"],
        "seeds" => &[
            "lost: the graphs of S2, S3, S4.1, S4.3 and S4.4; figures 1 and 2 of S0 are drawn from their tables",
        ],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headlines_follow_from_the_tables() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 0.006, "{a} {b}");
        for ((_, y), headline) in WAYS.iter().zip([1.22, 1.21, 1.56]) {
            close(mean_beyond_1_mb(y), headline);
        }
        let four = curves("S0.4 4-way over 1-way").remove(0).points;
        close(four[5].1.middle, 5.23);
        close(four[11].1.middle, 4.20);
        // The ratios that are known of table 2-2.
        for (row, read, write, buffered) in
            [(0, 1.00, 0.38, 0.78), (3, 0.88, 0.62, 1.00), (6, 0.36, 0.36, 0.56)]
        {
            let r = BDS[row].1;
            close(r[2] / r[0], read);
            close(r[3] / r[1], write);
            close(r[4] / r[1], buffered);
        }
    }
}
