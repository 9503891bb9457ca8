//! A table as text: the same on a terminal and on the page.

use maud::{Markup, html};

/// Columns where there is no terminal that has its own.
const WIDTH: u16 = 160;

/// What a row is to a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Plain,
    /// A goal that is met, one that is not.
    Met,
    Short,
    /// Of the founding documents.
    Original,
}

#[derive(Debug)]
pub(super) struct Grid {
    pub head: Vec<String>,
    pub rows: Vec<(Vec<String>, Mark)>,
}

impl Grid {
    pub fn new<T: Into<String>>(head: impl IntoIterator<Item = T>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }
    pub fn add(&mut self, cells: impl IntoIterator<Item = String>, mark: Mark) {
        self.rows.push((cells.into_iter().collect(), mark));
    }
    /// Leaves out a column in which nothing stands.
    pub fn without_empty(mut self, column: usize) -> Self {
        if self.rows.iter().all(|(cells, _)| cells.get(column).is_none_or(String::is_empty)) {
            self.head.remove(column);
            self.rows.iter_mut().for_each(|(cells, _)| drop(cells.remove(column)));
        }
        self
    }
    /// For a terminal; `wrapped` to its width, where cells are long.
    pub fn text(&self, wrapped: bool) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(&self.head);
        table.add_rows(self.rows.iter().map(|(cells, _)| cells));
        if wrapped {
            table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
            if !table.is_tty() {
                table.set_width(WIDTH);
            }
        }
        table
    }
    /// For the page. A verdict stands in the last column.
    pub fn html(&self, class: &str) -> Markup {
        let first = self.rows.first().map_or([].as_slice(), |(cells, _)| cells);
        html! {
            div.scroll {
                table class=(class) {
                    tr { @for (n, name) in self.head.iter().enumerate() {
                        th.l[first.get(n).is_some_and(|cell| is_text(cell))] { (name) }
                    } }
                    @for (cells, mark) in &self.rows {
                        tr.original[*mark == Mark::Original] {
                            @for (n, cell) in (1..).zip(cells) {
                                @let last = n == cells.len();
                                td.l[is_text(cell)].met[last && *mark == Mark::Met].short[last && *mark == Mark::Short] {
                                    (cell)
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Numbers stand to the right.
fn is_text(cell: &str) -> bool {
    !cell.starts_with(|c: char| c.is_ascii_digit() || "-<>".contains(c))
}
