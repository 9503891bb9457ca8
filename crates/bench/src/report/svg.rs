//! SVG plots: lines over a numeric axis, and heat maps. Every mark carries its value, which the page
//! shows under the pointer.

use std::fmt::Write as _;

use super::table::number;
use crate::statistics::{float, rate};

/// A line of a plot: name, points.
pub(super) type Line = (String, Vec<(f64, f64)>);

/// A plot of lines.
#[derive(Debug, Clone, Default)]
pub(super) struct Plot {
    pub title: String,
    /// Name of the quantity to the right; sizes are written by their unit.
    pub x: String,
    pub y: String,
    /// Powers of ten upwards.
    pub log_y: bool,
    pub lines: Vec<Line>,
    /// Of the founding documents: dashed.
    pub published: Vec<Line>,
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 46.0;
const TOP: f64 = 30.0;
const RIGHT: f64 = 16.0;
/// Told apart by people who see colours differently (Okabe and Ito).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444"];

/// Text that cannot end an element or an attribute.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Where values lie along an axis.
struct Axis {
    low: f64,
    high: f64,
    log: bool,
}
impl Axis {
    fn of(values: impl Iterator<Item = f64>, log: bool, from_zero: bool) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values.filter(|v| v.is_finite() && (!log || *v > 0.0)) {
            (low, high) = (low.min(v), high.max(v));
        }
        if low > high {
            (low, high) = (if log { 1.0 } else { 0.0 }, 1.0);
        }
        if from_zero && !log {
            low = low.min(0.0);
            high *= 1.05;
        }
        if high <= low {
            high = if log { low * 10.0 } else { low + 1.0 };
        }
        Self { low, high, log }
    }
    /// 0 to 1.
    fn part(&self, v: f64) -> f64 {
        let p = if self.log {
            (v.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (v - self.low) / (self.high - self.low)
        };
        p.clamp(0.0, 1.0)
    }
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let (mut ticks, mut t) = (Vec::new(), 10_f64.powf(self.low.log10().ceil()));
            while t <= self.high * 1.0001 && ticks.len() < 20 {
                ticks.push(t);
                t *= 10.0;
            }
            return ticks;
        }
        let rough = (self.high - self.low) / 5.0;
        let unit = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * unit).find(|s| *s >= rough);
        let step = step.unwrap_or(unit * 10.0).max(f64::MIN_POSITIVE);
        let (mut ticks, mut t) = (Vec::new(), (self.low / step).ceil() * step);
        while t <= self.high && ticks.len() < 20 {
            ticks.push(t);
            t += step;
        }
        ticks
    }
}

impl Plot {
    /// As an SVG element.
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().chain(&self.published).flat_map(|(_, p)| p);
        let mut places: Vec<f64> = points().map(|p| p.0).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        // Powers of two and the like are spread evenly.
        let spread = places.first().zip(places.last());
        let wide = spread.is_some_and(|(a, b)| *a > 0.0 && b / a >= 16.0);
        let x_axis = Axis::of(places.iter().copied(), wide, false);
        let y_axis = Axis::of(points().map(|p| p.1), self.log_y, true);
        let px = |v: f64| LEFT + x_axis.part(v) * (WIDTH - LEFT - RIGHT);
        let py = |v: f64| HEIGHT - BOTTOM - y_axis.part(v) * (HEIGHT - BOTTOM - TOP);
        let mut out = head(&self.title);
        for t in y_axis.ticks() {
            let y = py(t);
            let _ = write!(
                out,
                "<line x1='{LEFT}' x2='{:.1}' y1='{y:.1}' y2='{y:.1}' class='grid'/>{}",
                WIDTH - RIGHT,
                label(LEFT - 6.0, y + 4.0, END, &rate(t))
            );
        }
        let shown = places.len().div_ceil(10).max(1);
        let ticks = if places.len() > 30 { x_axis.ticks() } else { places };
        for t in ticks.iter().step_by(if ticks.len() > 20 { shown } else { 1 }) {
            out += &slanted(px(*t) + 4.0, &number(&self.x, *t));
        }
        for (colour, original, (name, points)) in self.coloured() {
            let dashes = if original { " stroke-dasharray='5 4'" } else { "" };
            let path: Vec<_> =
                points.iter().map(|(x, y)| format!("{:.1},{:.1}", px(*x), py(*y))).collect();
            let _ = write!(
                out,
                "<polyline fill='none' stroke='{colour}' stroke-width='1.6'{dashes} points='{}'/>",
                path.join(" ")
            );
            for (x, y) in points {
                let said = format!("{name}: {} {} at {}", rate(*y), self.y, number(&self.x, *x));
                let _ = write!(
                    out,
                    "<circle class='mark' cx='{:.1}' cy='{:.1}' r='3' fill='{colour}'{}</circle>",
                    px(*x),
                    py(*y),
                    value(&said)
                );
            }
        }
        let _ = write!(out, "<text x='4' y='{:.1}'>{}</text></svg>", TOP - 8.0, escape(&self.y));
        out + &self.legend()
    }
    /// Measured and published lines, each with its colour: the first of the one has that of the first of
    /// the other.
    fn coloured(&self) -> impl Iterator<Item = (&'static str, bool, &Line)> {
        let colour = |n: usize| COLOURS.get(n % COLOURS.len()).copied().unwrap_or("#000");
        let lines = self.lines.iter().enumerate().map(move |(n, l)| (colour(n), false, l));
        lines.chain(self.published.iter().enumerate().map(move |(n, l)| (colour(n), true, l)))
    }
    fn legend(&self) -> String {
        let one = |(colour, original, (name, _)): (&str, bool, &Line)| {
            let sign = if original { "- - original:" } else { "&#9679;" };
            format!("<span style='color:{colour}'>{sign} {}</span> ", escape(name))
        };
        let all: String = self.coloured().map(one).collect();
        format!("<div class='legend'>{all}</div>")
    }
}

/// Text that ends at its place.
const END: &str = "text-anchor='end'";

fn label(x: f64, y: f64, attributes: &str, text: &str) -> String {
    format!("<text x='{x:.1}' y='{y:.1}' {attributes}>{}</text>", escape(text))
}

/// The name of a place on the lower axis.
fn slanted(x: f64, text: &str) -> String {
    let y = HEIGHT - BOTTOM + 14.0;
    label(x, y, &format!("{END} transform='rotate(-30 {x:.1} {y:.1})'"), text)
}

/// The end of a mark's tag: what the page shows under the pointer.
fn value(text: &str) -> String {
    let text = escape(text);
    format!(" data-value='{text}'><title>{text}</title>")
}

fn head(title: &str) -> String {
    format!(
        "<svg class='plot' xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' \
         width='{WIDTH}' height='{HEIGHT}' role='img'><title>{0}</title>\
         <text x='{1}' y='16' class='title' text-anchor='middle'>{0}</text>",
        escape(title),
        WIDTH / 2.0
    )
}

/// A map of cells: names of columns and rows, and a value where there is one (1 is in the middle).
#[derive(Debug, Clone, Default)]
pub(super) struct Heat {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<String>,
    pub cells: Vec<Vec<Option<f64>>>,
}

impl Heat {
    /// As an SVG element.
    pub fn svg(&self) -> String {
        let mut out = head(&self.title);
        let columns = float(self.columns.len().max(1) as u64);
        let rows = float(self.rows.len().max(1) as u64);
        let middle = "text-anchor='middle' class='cell'";
        let (w, h) = ((WIDTH - LEFT - RIGHT) / columns, (HEIGHT - TOP - BOTTOM) / rows);
        for (r, (name, cells)) in self.rows.iter().zip(&self.cells).enumerate() {
            let y = TOP + float(r as u64) * h;
            out += &label(LEFT - 4.0, y + h / 2.0 + 4.0, END, name);
            for (c, cell) in cells.iter().enumerate() {
                let Some(part) = cell else { continue };
                let x = LEFT + float(c as u64) * w;
                let column = self.columns.get(c).map_or("", String::as_str);
                let said = format!("{part:.3} at {name} by {column}");
                let _ = write!(
                    out,
                    "<rect class='mark' x='{x:.1}' y='{y:.1}' width='{:.1}' height='{:.1}' fill='{}'{}</rect>{}",
                    w - 1.0,
                    h - 1.0,
                    colour(*part),
                    value(&said),
                    label(x + w / 2.0, y + h / 2.0 + 3.0, middle, &format!("{part:.2}"))
                );
            }
        }
        for (c, name) in self.columns.iter().enumerate() {
            out += &slanted(LEFT + (float(c as u64) + 0.5) * w, name);
        }
        out + "</svg>"
    }
}

/// Red below 1, white at 1, blue above.
fn colour(value: f64) -> String {
    let fade = |part: f64| 255.0 - 155.0 * part.clamp(0.0, 1.0);
    if value < 1.0 {
        let f = fade(1.0 - value);
        format!("rgb(255,{f:.0},{f:.0})")
    } else {
        let f = fade(value - 1.0);
        format!("rgb({f:.0},{f:.0},255)")
    }
}
