//! Plain text tables: columns as wide as their widest cell.

use std::fmt::Write;

/// Alignment of a column's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// A table under construction.
#[derive(Clone, Debug)]
pub struct Table {
    indent: usize,
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table whose lines begin with `indent` spaces.
    pub fn new(indent: usize, columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().copied();
        Table {
            indent,
            columns: columns
                .map(|(name, align)| (name.to_owned(), align))
                .collect(),
            rows: Vec::new(),
        }
    }

    /// Acts as [`Table::new`], with names between bars; a name with `>` in front is a
    /// column of numbers.
    pub fn of(indent: usize, columns: &str) -> Self {
        let aligned = columns.split('|').map(|name| match name.strip_prefix('>') {
            Some(name) => (name, Align::Right),
            None => (name, Align::Left),
        });
        Table::new(indent, &aligned.collect::<Vec<_>>())
    }

    /// Adds a row; missing cells are empty, and surplus cells are left out.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Returns the text; every line is ended.
    pub fn text(&self) -> String {
        let empty = String::new();
        let header: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&header).chain(&self.rows).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|place| {
                lines
                    .iter()
                    .filter_map(|line| line.get(place))
                    .map(|cell| cell.chars().count())
                    .max()
            })
            .map(Option::unwrap_or_default)
            .collect();
        let mut text = String::new();
        for line in lines {
            let mut row = " ".repeat(self.indent);
            for (place, ((_, align), width)) in self.columns.iter().zip(&widths).enumerate() {
                let cell = line.get(place).unwrap_or(&empty);
                let gap = if place == 0 { "" } else { "  " };
                // Writing to a String cannot fail.
                let _ = match align {
                    Align::Left => write!(row, "{gap}{cell:<width$}"),
                    Align::Right => write!(row, "{gap}{cell:>width$}"),
                };
            }
            text.push_str(row.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Breaks text at spaces into lines of at most `width` characters (longer words
/// stand alone), each after `indent` spaces.
pub fn wrap(text: &str, indent: usize, width: usize) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent + line.chars().count() + 1 + word.chars().count() > width {
            let _ = writeln!(lines, "{:indent$}{line}", "");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        let _ = writeln!(lines, "{:indent$}{line}", "");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::of(2, "cause|>frames");
        table.row(["µs".to_owned(), "1".to_owned()]);
        table.row(["channel-full".to_owned(), "1,234,567".to_owned()]);
        assert_eq!(
            table.text(),
            "  cause            frames\n  µs                    1\n  channel-full  1,234,567\n"
        );
    }

    #[test]
    fn text_is_wrapped_at_spaces() {
        assert_eq!(wrap("one two three", 2, 9), "  one two\n  three\n");
        assert_eq!(wrap("", 2, 9), "");
    }
}
