//! Tables as text, and their comparison with the stored ones.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

/// A table: notes, a head and rows. The first columns name the path.
pub struct Table {
    name: &'static str,
    notes: &'static str,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

const UPDATE: &str = "TIDEWALL_UPDATE_TABLES";

impl Table {
    /// The table of the file `tables/NAME.txt`; notes are lines that describe what is
    /// measured.
    pub fn new(name: &'static str, notes: &'static str, head: Vec<String>) -> Self {
        Self {
            name,
            notes,
            head,
            rows: Vec::new(),
        }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.head.len(), "{}: {cells:?}", self.name);
        self.rows.push(cells);
    }

    /// Columns in groups (`group:column`), each group after a bar and under its name.
    fn text(&self) -> String {
        let parts: Vec<(&str, &str)> = self
            .head
            .iter()
            .map(|name| name.split_once(':').unwrap_or(("", name)))
            .collect();
        let columns: Vec<String> = parts.iter().map(|part| part.1.to_string()).collect();
        let lines = || std::iter::once(&columns).chain(&self.rows);
        let widths: Vec<usize> = (0..columns.len())
            .map(|column| lines().map(|row| row[column].chars().count()).max())
            .map(Option::unwrap_or_default)
            .collect();
        let mut text = String::new();
        for line in self.notes.lines() {
            writeln!(text, "{}", format!("# {line}").trim_end()).unwrap();
        }
        text.push('\n');
        let begins = |column: usize| column > 0 && parts[column].0 != parts[column - 1].0;
        if parts.iter().any(|part| !part.0.is_empty()) {
            let mut names = String::new();
            let mut width = 0;
            for column in 0..columns.len() {
                if begins(column) {
                    names = format!("{names:<width$} | {}", parts[column].0);
                    width += 3;
                } else if column > 0 {
                    width += 2;
                }
                width += widths[column];
            }
            writeln!(text, "{names}").unwrap();
        }
        for row in lines() {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = match column {
                    0 => "",
                    column if begins(column) => " | ",
                    _ => "  ",
                };
                write!(line, "{gap}{cell:>width$}").unwrap();
            }
            writeln!(text, "{}", line.trim_end()).unwrap();
        }
        text
    }

    /// Compares the table with the file, or writes it.
    pub fn check(&self) {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tables");
        let path = directory.join(self.name).with_extension("txt");
        let text = self.text();
        if env::var_os(UPDATE).is_some() {
            fs::create_dir_all(&directory).unwrap();
            fs::write(&path, text).unwrap();
            return;
        }
        let kept = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            kept == text,
            "{} is not what comes out now:\n{}\nIf the change is meant, write the tables anew and look at the difference:\n\
             {UPDATE}=1 cargo test -p tidewall-simulator",
            path.display(),
            difference(&kept, &text),
        );
    }
}

/// The lines that differ, the stored ones with a minus. The head keeps only the line that
/// names the columns.
fn difference(kept: &str, text: &str) -> String {
    let (kept, text): (Vec<&str>, Vec<&str>) = (kept.lines().collect(), text.lines().collect());
    // Longest common subsequence; tables are short.
    let mut common = vec![vec![0u32; text.len() + 1]; kept.len() + 1];
    for (i, old) in kept.iter().enumerate().rev() {
        for (j, new) in text.iter().enumerate().rev() {
            common[i][j] = if old == new {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, String::new());
    while i < kept.len() || j < text.len() {
        if i < kept.len() && j < text.len() && kept[i] == text[j] {
            i += 1;
            j += 1;
        } else if j == text.len() || i < kept.len() && common[i + 1][j] >= common[i][j + 1] {
            writeln!(lines, "- {}", kept[i]).unwrap();
            i += 1;
        } else {
            writeln!(lines, "+ {}", text[j]).unwrap();
            j += 1;
        }
    }
    lines
}

/// The head: columns that name the path, then some for each algorithm.
pub fn head(places: &[&str], algorithms: &[&str], columns: &[&str]) -> Vec<String> {
    let mut head: Vec<String> = places.iter().map(ToString::to_string).collect();
    for algorithm in algorithms {
        for column in columns {
            head.push(format!("{algorithm}:{column}"));
        }
    }
    head
}

/// The median; of an even number, the lower of the two in the middle.
pub fn median<T: PartialOrd + Copy>(values: &[T]) -> T {
    percentile(values, 50)
}

/// The smallest value that `percent` percent of the values do not exceed (nearest rank).
pub fn percentile<T: PartialOrd + Copy>(values: &[T], percent: usize) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
}

/// Formats thousandths as percent with one decimal.
pub fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

/// Formats milliseconds with one decimal.
pub fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_micros() as f64 / 1000.0)
}

/// Formats bits per second in short form.
pub fn rate(bits: u64) -> String {
    match bits {
        bits if bits.is_multiple_of(1_000_000_000) => format!("{}G", bits / 1_000_000_000),
        bits if bits.is_multiple_of(1_000_000) => format!("{}M", bits / 1_000_000),
        bits => format!("{}k", bits / 1000),
    }
}

#[test]
fn a_difference_shows_the_lines_that_differ() {
    let shown = difference("a\nb\nc\nd", "a\nx\nc\nd\ne");
    assert_eq!(shown, "- b\n+ x\n+ e\n");
}

#[test]
fn columns_stand_in_groups() {
    let mut table = Table::new(
        "none",
        "Notes.",
        head(&["rtt"], &["a", "bcdefghij"], &["x", "y"]),
    );
    table.row(["10", "1.5", "2", "3", "4"].map(str::to_string).to_vec());
    let expected =
        "# Notes.\n\n    | a      | bcdefghij\nrtt |   x  y | x  y\n 10 | 1.5  2 | 3  4\n";
    assert_eq!(table.text(), expected);
}

#[test]
fn percentiles_are_nearest_ranks() {
    let values = [5, 1, 4, 2, 3];
    assert_eq!(median(&values), 3);
    assert_eq!(percentile(&values, 99), 5);
    assert_eq!(percentile(&values, 1), 1);
    assert_eq!(median(&[1.0, 2.0]), 1.0);
}
