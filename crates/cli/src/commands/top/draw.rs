//! Draws a screen.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::look::{Part, Shown};
use crate::terminal::answer::printable;

/// Lines of a part that always has some: its title, its header and one more; nobody's part takes more than its
/// share before all others have what they need.
const LEAST: u16 = 3;

/// Draws what there is room for.
pub fn draw(frame: &mut Frame<'_>, shown: &Shown) {
    let top = u16::try_from(shown.health.len()).unwrap_or(u16::MAX).saturating_add(1);
    let heights = heights(frame.area().height.saturating_sub(top + 1), &shown.parts);
    let rows =
        [top].into_iter().chain(heights).map(Constraint::Length).chain([Constraint::Fill(1)]);
    let areas = Layout::vertical(rows).split(frame.area());
    let mut areas = areas.iter();
    if let Some(area) = areas.next() {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut lines = vec![Line::styled(printable(&shown.title), bold)];
        lines.extend(shown.health.iter().map(|text| Line::raw(printable(text))));
        frame.render_widget(Paragraph::new(lines), *area);
    }
    for (part, area) in shown.parts.iter().zip(&mut areas) {
        let [title, table] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(*area);
        let bold = Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED);
        frame.render_widget(Paragraph::new(printable(&part.title)).style(bold), title);
        frame.render_widget(table_of(part), table);
    }
    if let Some(area) = areas.next() {
        let last = ratatui::layout::Rect {
            y: area.bottom().saturating_sub(1),
            height: area.height.min(1),
            ..*area
        };
        frame.render_widget(Paragraph::new("s sort  r turn around  q end"), last);
    }
}

/// Lines for each part. The last one, of the programs, gets what the others leave.
fn heights(room: u16, parts: &[Part]) -> Vec<u16> {
    let wanted = |part: &Part| u16::try_from(part.rows.len()).unwrap_or(u16::MAX).saturating_add(2);
    let share = room / u16::try_from(parts.len().max(1)).unwrap_or(1);
    let mut left = room;
    let mut all = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        let last = n + 1 == parts.len();
        let most = if last { left } else { share.max(LEAST) };
        let height = wanted(part).min(most).min(left);
        left -= height;
        all.push(height);
    }
    all
}

fn table_of(part: &Part) -> Table<'_> {
    let align = |n| if part.is_number(n) { Alignment::Right } else { Alignment::Left };
    let cell =
        |(n, text): (usize, String)| Cell::from(Line::raw(printable(&text)).alignment(align(n)));
    let row = |texts: Vec<String>| Row::new(texts.into_iter().enumerate().map(cell));
    let header = row(part.header.iter().map(|&h| h.to_owned()).collect());
    let rows = part.rows.iter().cloned().map(row);
    let widest = |n: usize| {
        let texts = part.rows.iter().filter_map(|row| row.get(n)).map(|t| t.chars().count());
        let head = part.header.get(n).map_or(0, |h| h.len());
        Constraint::Length(u16::try_from(texts.max().unwrap_or(0).max(head)).unwrap_or(u16::MAX))
    };
    let widths = (0..part.header.len()).map(widest);
    Table::new(rows, widths)
        .header(header.style(Style::new().add_modifier(Modifier::DIM)))
        .column_spacing(2)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn part(title: &str, rows: usize) -> Part {
        let row = |n: usize| vec![format!("{title}-{n}"), n.to_string()];
        Part::new(title.to_owned(), vec!["name", "number"], (0..rows).map(row).collect(), 1)
    }

    /// What is drawn on a terminal of this many lines.
    fn drawn(lines: u16, rows: [usize; 4]) -> String {
        let names = ["NODES", "MEMBERS", "LOCKS", "PROGRAMS"];
        let parts = names.iter().zip(rows).map(|(name, rows)| part(name, rows)).collect();
        let (title, health) = ("p on /mnt".to_owned(), vec!["health: OK: well".to_owned()]);
        let shown = Shown { title, health, parts };
        let mut terminal = Terminal::new(TestBackend::new(60, lines)).unwrap();
        terminal.draw(|frame| draw(frame, &shown)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn everything_is_drawn_if_there_is_room() {
        let text = drawn(30, [2, 2, 1, 5]);
        for wanted in [
            "p on /mnt",
            "health: OK: well",
            "NODES-1",
            "MEMBERS-1",
            "LOCKS-0",
            "PROGRAMS-4",
            "q end",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }

    #[test]
    fn many_rows_of_one_part_leave_room_for_the_others() {
        let text = drawn(24, [100, 100, 100, 100]);
        for wanted in ["NODES-0", "MEMBERS-0", "LOCKS-0", "PROGRAMS-0", "q end"] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        // Whatever the size.
        for lines in 0..12 {
            drawn(lines, [3, 3, 3, 3]);
        }
    }
}
