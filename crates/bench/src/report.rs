//! Figures and tables.

use braid_pool::device::Issued;
use serde::Serialize;

use crate::stats::Samples;

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    /// 10^6 bytes per second.
    pub mb_per_s: f64,
    /// CPU seconds of the whole machine per GiB.
    pub cpu_per_gib: f64,
}

impl Figure {
    /// From bytes moved in `seconds` with `cpu` seconds of CPU.
    #[expect(clippy::cast_precision_loss, reason = "byte counts far below 2^52")]
    pub fn new(bytes: u64, seconds: f64, cpu: f64) -> Self {
        let bytes = bytes as f64;
        Self { mb_per_s: bytes / 1e6 / seconds, cpu_per_gib: cpu / (bytes / f64::from(1 << 30)) }
    }
}

/// A row of a table: one layer, one direction, all repeats.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    /// Layer or system.
    pub name: String,
    /// What was done.
    pub phase: String,
    /// MB/s (or operations per second) per repeat.
    pub rate: Samples,
    /// CPU seconds per GiB per repeat (empty for operation rates).
    pub cpu: Samples,
}

/// Collects figures by (layer, phase), in order of first appearance.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// What was measured on what.
    pub setup: Vec<(String, String)>,
    /// The rows.
    pub rows: Vec<Row>,
    /// What the members were really asked for, by layer and phase.
    pub issued: Vec<(String, String)>,
}

impl Report {
    /// Adds one repeat of a bandwidth.
    pub fn add(&mut self, name: &str, phase: &str, figure: Figure) {
        let row = self.row(name, phase);
        row.rate.0.push(figure.mb_per_s);
        row.cpu.0.push(figure.cpu_per_gib);
    }
    /// Adds one repeat of an operation rate.
    pub fn add_rate(&mut self, name: &str, phase: &str, per_second: f64) {
        self.row(name, phase).rate.0.push(per_second);
    }
    /// What a layer issued to the members, in one repeat of a phase (the last one is kept).
    pub fn add_issued(&mut self, name: &str, phase: &str, before: &[Issued], after: &[Issued]) {
        let none = Issued::default();
        let since = after.iter().zip(before).map(|(a, b)| a.since(b));
        let all = since.fold(none, |sum, one| sum.plus(&one));
        let said = format!("reads: {}; writes: {}; {} flushes", all.reads, all.writes, all.flushes);
        let key = format!("{name} {phase}");
        self.issued.retain(|(k, _)| *k != key);
        self.issued.push((key, said));
    }
    fn row(&mut self, name: &str, phase: &str) -> &mut Row {
        let found = self.rows.iter().position(|r| r.name == name && r.phase == phase);
        let index = found.unwrap_or_else(|| {
            self.rows.push(Row {
                name: name.to_owned(),
                phase: phase.to_owned(),
                rate: Samples::default(),
                cpu: Samples::default(),
            });
            self.rows.len() - 1
        });
        &mut self.rows[index]
    }
    /// Prints the table: ratios are to the row `base` of the same phase.
    pub fn print(&self, unit: &str, base: &str) {
        for (key, value) in &self.setup {
            println!("{key:>10}: {value}");
        }
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "",
            "phase",
            unit,
            "min..max",
            &format!("ratio to {base}"),
            "spread",
            "CPU s/GiB",
        ]);
        for row in &self.rows {
            let base_row = self.rows.iter().find(|r| r.name == base && r.phase == row.phase);
            let (low, high) = row.rate.spread();
            let (ratio, ratio_spread) = base_row.map_or((String::new(), String::new()), |b| {
                let ratio = row.rate.ratio_to(&b.rate);
                let (low, high) = ratio.spread();
                (format!("{:.2}", ratio.median()), format!("{low:.2}..{high:.2}"))
            });
            let cpu = if row.cpu.0.is_empty() {
                String::new()
            } else {
                format!("{:.2}", row.cpu.median())
            };
            table.add_row([
                row.name.clone(),
                row.phase.clone(),
                format!("{:.0}", row.rate.median()),
                format!("{low:.0}..{high:.0}"),
                ratio,
                ratio_spread,
                cpu,
            ]);
        }
        println!("{table}");
        if !self.issued.is_empty() {
            println!("requests issued to the members:");
        }
        for (key, said) in &self.issued {
            println!("  {key}: {said}");
        }
    }
}

impl Report {
    /// Fails when the median ratio of any row to `base` is below `least`.
    pub fn accept(&self, base: &str, least: f64) -> anyhow::Result<()> {
        let mut short = Vec::new();
        for row in self.rows.iter().filter(|r| r.name != base) {
            let Some(b) = self.rows.iter().find(|b| b.name == base && b.phase == row.phase) else {
                continue;
            };
            let ratio = row.rate.ratio_to(&b.rate).median();
            if ratio < least {
                short.push(format!("{} {}: {ratio:.2}", row.name, row.phase));
            }
        }
        if short.is_empty() {
            return Ok(());
        }
        anyhow::bail!("below {least}: {}", short.join("; "))
    }
}
