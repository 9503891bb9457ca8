//! SVG plots: lines over an axis, bars in groups, and heat maps. Every mark carries its value, which the page shows
//! under the pointer.

use itertools::Itertools as _;
use maud::{Markup, html};

use super::axis::Axis;
use super::colours::Colours;
use super::table::number;
use super::units::{human, parameter, quantity};
use crate::statistics::float;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 84.0;
const BOTTOM: f64 = 66.0;
const TOP: f64 = 14.0;
const RIGHT: f64 = 16.0;
/// Between the names of two places.
const NAME: f64 = 22.0;
/// Lines of one system are told apart by these.
const SIGNS: [&str; 4] = ["\u{25cf}", "\u{25a0}", "\u{25b2}", "\u{25c6}"];
const DASHES: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];

/// A measured value, with the least and the highest repeat.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Value {
    pub middle: f64,
    pub low: f64,
    pub high: f64,
    /// It was measured several times: whoever looks sees how much that differed, also if it did not.
    pub repeated: bool,
}

impl Value {
    /// One that is known alone.
    pub fn exact(middle: f64) -> Self {
        Self { middle, low: middle, high: middle, repeated: false }
    }
    fn said(&self, unit: &str) -> String {
        let middle = human(self.middle, unit);
        if self.low < self.high {
            return format!("{middle} ({} to {})", human(self.low, unit), human(self.high, unit));
        }
        middle
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    /// What was measured: gives the colour.
    pub system: String,
    /// What the legend says.
    pub name: String,
    pub points: Vec<(f64, Value)>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Plot {
    pub title: String,
    /// Name of the quantity to the right; sizes are written by their unit.
    pub x: String,
    /// Unit of the values.
    pub y: String,
    /// The values are parts of something: never spread by logarithms.
    pub ratios: bool,
    pub lines: Vec<Line>,
    /// Of the founding documents: dashed.
    pub published: Vec<Line>,
}

/// The place of a coordinate.
fn at(v: f64) -> String {
    format!("{v:.1}")
}

/// A drawing of this width. Its title stands above it, so that a long one is not cut off.
fn figure(title: &str, width: f64, inside: &Markup, legend: &Markup) -> Markup {
    html! {
        figure {
            p.title { (title) }
            div.scroll {
                svg.plot viewBox={ "0 0 " (width) " " (HEIGHT) } width=(width) height=(HEIGHT) role="img" {
                    title { (title) }
                    (inside)
                }
            }
            figcaption.legend { (legend) }
        }
    }
}

/// The axis of values, its grid, and its title.
fn value_axis(axis: &Axis, width: f64, unit: &str) -> Markup {
    let log = if axis.log { ", logarithmic" } else { "" };
    html! {
        @for tick in axis.ticks() {
            @let y = at(height_of(axis, tick));
            line.grid x1=(LEFT) x2=(at(width - RIGHT)) y1=(y) y2=(y) {}
            text x=(at(LEFT - 6.0)) y=(y) dy="4" text-anchor="end" { (human(tick, unit)) }
        }
        (side_title(&format!("{}{log}", quantity(unit))))
    }
}

fn height_of(axis: &Axis, value: f64) -> f64 {
    HEIGHT - BOTTOM - axis.part(value) * (HEIGHT - BOTTOM - TOP)
}

/// The title of the axis to the left.
fn side_title(text: &str) -> Markup {
    let y = at((TOP + HEIGHT - BOTTOM) / 2.0);
    html! { text.axis x="14" y=(y) text-anchor="middle" transform={ "rotate(-90 14 " (y) ")" } { (text) } }
}

/// The title of the lower axis.
fn place_title(width: f64, text: &str) -> Markup {
    let x = at((LEFT + width - RIGHT) / 2.0);
    html! { text.axis x=(x) y=(at(HEIGHT - 8.0)) text-anchor="middle" { (text) } }
}

/// The name of a place on the lower axis.
fn slanted(x: f64, text: &str) -> Markup {
    let (x, y) = (at(x + 4.0), at(HEIGHT - BOTTOM + 16.0));
    html! { text x=(x) y=(y) text-anchor="end" transform={ "rotate(-30 " (x) " " (y) ")" } { (text) } }
}

/// From the least to the highest repeat; a line across, if all are alike.
fn whisker(x: f64, axis: &Axis, value: &Value) -> Markup {
    let [low, high] = [value.low, value.high].map(|v| at(height_of(axis, v)));
    let (left, right) = (at(x - 4.0), at(x + 4.0));
    let x = at(x);
    html! {
        @if value.repeated {
            path.whisker d={ "M" (x) " " (low) "V" (high) "M" (left) " " (low) "H" (right) "M" (left) " " (high) "H" (right) } {}
        }
    }
}

impl Plot {
    /// As an element, with its legend.
    pub fn drawn(&self, colours: &Colours) -> Markup {
        let points = || self.lines.iter().chain(&self.published).flat_map(|line| &line.points);
        let places = points().map(|(x, _)| *x).sorted_by(f64::total_cmp);
        let places: Vec<f64> = places.dedup().collect();
        let x_axis = Axis::of_places(&places);
        let values: Vec<f64> = points().flat_map(|(_, v)| [v.low, v.high]).collect();
        let y_axis = Axis::of_values(&values, self.ratios);
        let px = |v: f64| LEFT + 8.0 + x_axis.part(v) * (WIDTH - LEFT - RIGHT - 16.0);
        let mut ticks = if places.len() > 30 { x_axis.ticks() } else { places };
        // Names of places that lie close together would be drawn over each other.
        let mut free = f64::NEG_INFINITY;
        ticks.retain(|tick| {
            let has_room = px(*tick) >= free;
            free = if has_room { px(*tick) + NAME } else { free };
            has_room
        });
        let inside = html! {
            (value_axis(&y_axis, WIDTH, &self.y))
            @for tick in &ticks { (slanted(px(*tick), &number(&self.x, *tick))) }
            (place_title(WIDTH, parameter(&self.x)))
            @for (line, style) in self.styled(colours) { (self.line(line, &style, &y_axis, &px)) }
        };
        let legend = html! {
            @for (line, style) in self.styled(colours) {
                span.original[style.original] {
                    b style={ "color:" (style.colour) } { (style.sign()) } " " (line.name)
                }
                " "
            }
        };
        figure(&self.title, WIDTH, &inside, &legend)
    }
    fn line(&self, line: &Line, style: &Style, axis: &Axis, px: &dyn Fn(f64) -> f64) -> Markup {
        let place =
            |(x, v): &(f64, Value)| format!("{},{}", at(px(*x)), at(height_of(axis, v.middle)));
        let path = line.points.iter().map(place).join(" ");
        html! {
            g.original[style.original] {
                polyline fill="none" stroke=(style.colour) stroke-width="1.8"
                    stroke-dasharray=[style.dashes()] points=(path) {}
                @for (x, value) in &line.points {
                    @let place = number(&self.x, *x);
                    @let text = format!("{}: {} at {place}", line.name, value.said(&self.y));
                    (whisker(px(*x), axis, value))
                    (style.mark(px(*x), height_of(axis, value.middle), &text))
                }
            }
        }
    }
    /// Every line with how it is drawn: a colour for each system, and a sign for each line of it.
    fn styled<'a>(&'a self, colours: &'a Colours) -> impl Iterator<Item = (&'a Line, Style)> {
        let measured = self.lines.iter().enumerate().map(|(n, line)| {
            let before = self.lines.iter().take(n).filter(|l| l.system == line.system).count();
            (line, Style { colour: colours.get(&line.system), variant: before, original: false })
        });
        let published = self.published.iter().enumerate().map(|(n, line)| {
            (line, Style { colour: colours.get(&line.system), variant: n, original: true })
        });
        measured.chain(published)
    }
}

struct Style {
    colour: &'static str,
    variant: usize,
    original: bool,
}

impl Style {
    fn sign(&self) -> String {
        let sign = SIGNS.get(self.variant % SIGNS.len()).copied().unwrap_or_default();
        if self.original { format!("- {sign} - original:") } else { sign.to_owned() }
    }
    fn dashes(&self) -> Option<&'static str> {
        if self.original {
            return Some("5 4");
        }
        let dashes = DASHES.get(self.variant % DASHES.len()).copied();
        dashes.filter(|d| *d != "none")
    }
    /// A mark in the middle of a place.
    fn mark(&self, x: f64, y: f64, text: &str) -> Markup {
        let r = 4.0;
        let corners = |all: [(f64, f64); 4]| {
            all.map(|(dx, dy)| format!("{},{}", at(x + dx * r), at(y + dy * r))).join(" ")
        };
        let shape = match self.variant % SIGNS.len() {
            0 => None,
            1 => Some(corners([(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)])),
            2 => Some(corners([(0.0, -1.2), (1.1, 0.9), (-1.1, 0.9), (0.0, -1.2)])),
            _ => Some(corners([(0.0, -1.3), (1.1, 0.0), (0.0, 1.3), (-1.1, 0.0)])),
        };
        html! {
            @if let Some(points) = shape {
                polygon.mark points=(points) fill=(self.colour) data-value=(text) { title { (text) } }
            } @else {
                circle.mark cx=(at(x)) cy=(at(y)) r="3.5" fill=(self.colour) data-value=(text) { title { (text) } }
            }
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Bar {
    pub system: String,
    pub value: Value,
}

/// Bars side by side, in groups.
#[derive(Debug, Clone, Default)]
pub(super) struct Bars {
    pub title: String,
    /// Unit of the values.
    pub y: String,
    pub groups: Vec<(String, Vec<Bar>)>,
}

impl Bars {
    const BAR: f64 = 22.0;
    const GAP: f64 = 18.0;

    /// As an element, with its legend.
    pub fn drawn(&self, colours: &Colours) -> Markup {
        let bars = || self.groups.iter().flat_map(|(_, bars)| bars);
        let values: Vec<f64> = bars().flat_map(|bar| [bar.value.low, bar.value.high]).collect();
        let axis = Axis::of_values(&values, false);
        let needed = LEFT + RIGHT + Self::GAP + self.groups.iter().map(Self::room).sum::<f64>();
        let width = needed.max(WIDTH);
        let mut left = LEFT + Self::GAP + (width - needed) / 2.0;
        let mut groups = Vec::new();
        for group in &self.groups {
            groups.push(self.group(group, left, (&axis, colours)));
            left += Self::room(group);
        }
        let inside = html! {
            (value_axis(&axis, width, &self.y))
            @for group in groups { (group) }
        };
        let legend = html! {
            @for system in bars().map(|bar| bar.system.as_str()).unique() {
                span { b style={ "color:" (colours.get(system)) } { "\u{25a0}" } " " (system) } " "
            }
        };
        figure(&self.title, width, &inside, &legend)
    }
    fn room((_, bars): &(String, Vec<Bar>)) -> f64 {
        float(bars.len() as u64) * Self::BAR + Self::GAP
    }
    fn group(
        &self,
        (name, bars): &(String, Vec<Bar>),
        left: f64,
        (axis, colours): (&Axis, &Colours),
    ) -> Markup {
        let ground = HEIGHT - BOTTOM;
        let middle = left + float(bars.len() as u64) * Self::BAR / 2.0;
        html! {
            @for (n, bar) in (0..).zip(bars) {
                @let x = left + float(n) * Self::BAR;
                @let top = height_of(axis, bar.value.middle);
                @let text = format!("{}: {} at {name}", bar.system, bar.value.said(&self.y));
                rect.mark x=(at(x + 1.0)) y=(at(top)) width=(at(Self::BAR - 2.0)) height=(at((ground - top).max(1.0)))
                    fill=(colours.get(&bar.system)) data-value=(text) { title { (text) } }
                (whisker(x + Self::BAR / 2.0, axis, &bar.value))
            }
            (slanted(middle, name))
        }
    }
}

/// A map of cells: names of columns and rows, and a value where there is one (1 is in the middle).
#[derive(Debug, Clone, Default)]
pub(super) struct Heat {
    pub title: String,
    /// What the columns and the rows are.
    pub axes: (String, String),
    pub columns: Vec<String>,
    pub rows: Vec<String>,
    pub cells: Vec<Vec<Option<f64>>>,
}

impl Heat {
    /// Least width of a cell: its number is legible.
    const CELL: f64 = 34.0;

    /// As an element.
    pub fn drawn(&self) -> Markup {
        let count = |n: usize| float(n.max(1) as u64);
        let (columns, rows) = (count(self.columns.len()), count(self.rows.len()));
        let width = WIDTH.max(LEFT + RIGHT + columns * Self::CELL);
        let (w, h) = ((width - LEFT - RIGHT) / columns, (HEIGHT - TOP - BOTTOM) / rows);
        let inside = html! {
            @for (r, (name, cells)) in (0..).zip(self.rows.iter().zip(&self.cells)) {
                @let y = TOP + float(r) * h;
                text x=(at(LEFT - 4.0)) y=(at(y + h / 2.0 + 4.0)) text-anchor="end" { (name) }
                @for ((c, cell), column) in (0..).zip(cells).zip(&self.columns) {
                    @if let Some(part) = cell { (Self::cell(*part, (LEFT + float(c) * w, y), (w, h), (name, column))) }
                }
            }
            @for (c, name) in (0..).zip(&self.columns) { (slanted(LEFT + (float(c) + 0.5) * w, name)) }
            (place_title(width, &self.axes.0))
            (side_title(&self.axes.1))
        };
        figure(&self.title, width, &inside, &html! {})
    }
    fn cell(
        part: f64,
        (x, y): (f64, f64),
        (w, h): (f64, f64),
        (row, column): (&str, &str),
    ) -> Markup {
        let text = format!("{part:.3} at {row} by {column}");
        html! {
            rect.mark x=(at(x)) y=(at(y)) width=(at(w - 1.0)) height=(at(h - 1.0)) fill=(shade(part)) data-value=(text) {
                title { (text) }
            }
            text.cell x=(at(x + w / 2.0)) y=(at(y + h / 2.0 + 4.0)) text-anchor="middle" { (format!("{part:.2}")) }
        }
    }
}

/// Red below 1, white at 1, blue above.
fn shade(value: f64) -> String {
    let fade = |part: f64| 255.0 - 155.0 * part.clamp(0.0, 1.0);
    if value < 1.0 {
        let f = fade(1.0 - value);
        format!("rgb(255,{f:.0},{f:.0})")
    } else {
        let f = fade(value - 1.0);
        format!("rgb({f:.0},{f:.0},255)")
    }
}
