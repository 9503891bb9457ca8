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
        let texts: Vec<_> = (0..self.head.len()).map(|column| self.is_text(column)).collect();
        html! {
            div.scroll {
                table class=(class) {
                    tr { @for (name, text) in self.head.iter().zip(&texts) { th.l[*text] { (name) } } }
                    @for (cells, mark) in &self.rows {
                        tr.original[*mark == Mark::Original] {
                            @for (n, (cell, text)) in (1..).zip(cells.iter().zip(&texts)) {
                                @let last = n == cells.len();
                                td.l[*text].met[last && *mark == Mark::Met].short[last && *mark == Mark::Short] {
                                    (cell)
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    /// Columns in which words stand begin at the left, numbers end at the right.
    fn is_text(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|(cells, _)| cells.get(column));
        cells.any(|cell| cell.starts_with(char::is_alphabetic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_words_stand_to_the_left_and_empty_ones_are_left_out() {
        let mut grid = Grid::new(["what", "note", "goal", "verdict"]);
        let row = |cells: [&str; 4]| cells.map(str::to_owned);
        grid.add(row(["S1", "", ">= 2", "met"]), Mark::Met);
        grid.add(row(["2 nodes", "", "0.5", "SHORT"]), Mark::Short);
        let grid = grid.without_empty(1);
        assert_eq!(grid.head, ["what", "goal", "verdict"]);
        let html = grid.html("verdicts").into_string();
        for part in [
            "<th class=\"l\">what</th>",
            "<th class=\"\">goal</th>",
            "<td class=\"l\">2 nodes</td><td class=\"\">0.5</td><td class=\"l short\">SHORT</td>",
            "<td class=\"l met\">met</td>",
        ] {
            assert!(html.contains(part), "{part} in {html}");
        }
    }
}
