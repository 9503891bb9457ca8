//! Progress bars and tables.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar that shows itself only on a terminal, and only when the work takes a moment.
pub fn bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) =
        ProgressStyle::with_template("{msg:>12} [{bar:40}] {pos}/{len} {elapsed} ETA {eta}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    bar
}

/// The same for bytes, with their rate.
pub fn byte_bar(len: u64) -> ProgressBar {
    let bar = ProgressBar::new(len);
    let shown = "[{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} ETA {eta}";
    if let Ok(style) = ProgressStyle::with_template(shown) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// A callback for library code: (done, total).
pub fn progress(bar: &ProgressBar) -> impl FnMut(u64, u64) + '_ {
    |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    }
}

/// A plain table.
pub fn table(header: &[&str]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(header);
    table
}
