//! Plots and tables for a terminal: plain text, with letters for systems, so that it is
//! readable without colour.

use super::{Panel, look, panels, precise, short};
use crate::result::{Point, ResultFile, Series};

/// Columns and rows of a plot, without the axes.
const WIDTH: usize = 64;
const HEIGHT: usize = 18;
const LABEL: usize = 8;

/// Draws the first setting's curves. With `colour`, letters are coloured as in the SVG.
pub fn terminal(result: &ResultFile, colour: bool) -> String {
    match panels(result).first() {
        Some(panel) if !panel.is_bars() => curves(result, panel, colour),
        _ => String::new(),
    }
}

/// A cell: the system drawn there, and whether it is a measured point.
type Cell = Option<(usize, bool)>;

fn curves(result: &ResultFile, panel: &Panel<'_>, colour: bool) -> String {
    let (right, top) = panel.extent();
    let mut grid: Vec<Vec<Cell>> = vec![vec![None; WIDTH]; HEIGHT];
    let column = |x: f64| ((x / right) * (WIDTH - 1) as f64).round() as usize;
    let row = |y: f64| HEIGHT - 1 - ((y / top) * (HEIGHT - 1) as f64).round() as usize;
    let mut put = |column: usize, row: usize, cell: (usize, bool)| {
        if let Some(place) = grid.get_mut(row).and_then(|row| row.get_mut(column)) {
            // A line never hides a point, nor a later system the first one.
            match place {
                Some((_, true)) => {}
                _ if cell.1 => *place = Some(cell),
                None => *place = Some(cell),
                Some(_) => {}
            }
        }
    };
    for (number, series) in panel.series.iter().enumerate() {
        for point in &series.points {
            put(column(point.x), row(point.y), (number, true));
        }
        for pair in series.points.windows(2) {
            let [a, b] = pair else { continue };
            let (from, to) = (column(a.x), column(b.x));
            for at in from..to {
                let share = (at - from) as f64 / (to - from) as f64;
                put(at, row(a.y + (b.y - a.y) * share), (number, false));
            }
        }
    }
    let mut text = format!("{}\n", panel.y);
    for (number, cells) in grid.iter().enumerate() {
        let value = top * (HEIGHT - 1 - number) as f64 / (HEIGHT - 1) as f64;
        let label = if number % 4 == 0 || number == HEIGHT - 1 {
            short(value)
        } else {
            String::new()
        };
        text += &format!("{label:>LABEL$} │");
        for cell in cells {
            match cell {
                Some((system, is_point)) => {
                    let look = panel.series.get(*system).map(|series| look(&series.system));
                    let letter = match look {
                        Some(look) if *is_point => look.letter,
                        _ => '·',
                    };
                    match look {
                        Some(look) if colour => {
                            let (red, green, blue) = look.colour;
                            // Black is drawn in the terminal's own colour.
                            if look.colour == (0, 0, 0) {
                                text.push(letter);
                            } else {
                                text += &format!("\x1b[38;2;{red};{green};{blue}m{letter}\x1b[0m");
                            }
                        }
                        _ => text.push(letter),
                    }
                }
                None => text.push(' '),
            }
        }
        text.push('\n');
    }
    text += &format!("{:>LABEL$} └{}\n", "", "─".repeat(WIDTH));
    let (half, end) = (short(right / 2.0), short(right));
    let middle = WIDTH / 2 - half.chars().count();
    let last = WIDTH - middle - half.chars().count() - end.chars().count();
    text += &format!(
        "{:>LABEL$}  0{:>middle$}{half}{:>last$}{end} {}\n",
        "", "", "", result.axes.x
    );
    let names: Vec<String> = panel
        .series
        .iter()
        .map(|series| format!("{} {}", look(&series.system).letter, series.system))
        .collect();
    text += &format!("{:>LABEL$}  {}\n", "", names.join("   "));
    text
}

/// Lists all points: one table per setting, one row per load, one column per system.
pub fn table(result: &ResultFile) -> String {
    let mut text = result.bare.map_or_else(String::new, |bare| {
        let (low, high) = (short(bare.low), short(bare.high));
        let median = short(bare.packets);
        format!("bare takes {median} packets/s here ({low}–{high}); second numbers are shares of bare's\n\n")
    });
    let shares = result.capacity_on_axis().is_some();
    for panel in panels(result) {
        if !text.is_empty() && !text.ends_with("\n\n") {
            text.push('\n');
        }
        if let Some(setting) = panel.setting {
            text += &format!("{setting}:\n");
        }
        text += &format!(
            "{} by {} (max: the highest of each)\n",
            panel.y, result.axes.x
        );
        let rows = panel
            .series
            .iter()
            .map(|series| series.points.len())
            .max()
            .unwrap_or(0);
        let longest = panel
            .series
            .iter()
            .map(|series| series.system.len())
            .max()
            .unwrap_or(0);
        let width = longest.max(11) + 2;
        text += &format!("{:>12}", "");
        for series in &panel.series {
            text += &format!("{:>width$}", series.system);
        }
        text.push('\n');
        for number in 0..rows {
            text += &format!("{:>12}", heading(&panel, number, rows, shares));
            for series in &panel.series {
                let value = at(series, number, rows, &panel).map_or("–".to_owned(), result_of);
                text += &format!("{value:>width$}");
            }
            text.push('\n');
        }
    }
    text
}

/// Returns the heading of a row: the load of the fullest curve, `max` for the last of
/// several.
fn heading(panel: &Panel<'_>, number: usize, rows: usize, shares: bool) -> String {
    let point = fullest(panel, rows).and_then(|series| series.points.get(number));
    if number + 1 == rows && rows > 2 && point.is_none_or(|point| !shares || point.share.is_none())
    {
        return "max".to_owned();
    }
    point.map_or_else(String::new, |point| load(point, shares))
}

/// Formats the offered load, with `shares` also as a share of `bare`'s capacity.
fn load(point: &Point, shares: bool) -> String {
    match point.share.filter(|_| shares) {
        Some(share) => format!("{} {share:.2}", short(point.x)),
        None => short(point.x),
    }
}

/// Formats a result, also as a share of `bare`'s.
fn result_of(point: &Point) -> String {
    match point.of_bare {
        Some(of_bare) => format!("{} {of_bare:.2}", short(point.y)),
        None => short(point.y),
    }
}

fn fullest<'a>(panel: &Panel<'a>, rows: usize) -> Option<&'a Series> {
    panel
        .series
        .iter()
        .copied()
        .find(|series| series.points.len() == rows)
}

/// Finds the result of a row: by position if all points are there, by load if some are
/// missing.
fn at<'a>(series: &'a Series, number: usize, rows: usize, panel: &Panel<'_>) -> Option<&'a Point> {
    if series.points.len() == rows {
        return series.points.get(number);
    }
    let wanted = fullest(panel, rows)?.points.get(number)?;
    let shared = |series: &Series| series.points.iter().any(|point| point.share.is_some());
    if shared(series) {
        return series
            .points
            .iter()
            .find(|point| point.share == wanted.share);
    }
    series.at(wanted.x)
}

/// Lists the claims, one per line.
pub fn claims_table(result: &ResultFile) -> String {
    let mut text = String::new();
    for claim in &result.claims {
        let measured = claim.measured.map_or("not measured".to_owned(), precise);
        let bound = claim
            .bound
            .map_or_else(String::new, |bound| bound.to_string());
        text += &format!(
            "{:<9} {:<17} {measured:>12} {:>15} {bound:<8} {}\n",
            claim.verdict.name(),
            claim.id,
            claim.interval(),
            claim.text
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn curves_are_drawn_where_they_belong() {
        let text = terminal(&sample(), false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + HEIGHT + 3);
        let last_column: String = lines[1..=HEIGHT]
            .iter()
            .filter_map(|line| line.chars().nth(LABEL + 2 + WIDTH - 1))
            .collect();
        // 1.2 M of 1.32 M is a tenth below the top; 5 k is the bottom.
        assert_eq!(
            last_column,
            format!("  T{}r", " ".repeat(HEIGHT - 4)),
            "{text}"
        );
        assert!(text.contains("T tidewall   r linux-rps"), "{text}");
        assert!(!text.contains('\x1b'));
        assert!(terminal(&sample(), true).contains("\x1b[38;2;0;114;178mT\x1b[0m"));
    }

    #[test]
    fn tables_have_a_row_a_load() {
        let mut result = sample();
        let text = table(&result);
        assert!(text.contains("max"), "{text}");
        let row = text
            .lines()
            .find(|line| line.trim_start().starts_with("max"))
            .unwrap();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["max", "1.2M", "5k"]
        );
        // A missing point leaves a gap, and does not move the others.
        result.series[1].points.remove(0);
        let text = table(&result);
        let row = text
            .lines()
            .find(|line| line.trim_start().starts_with("100k"))
            .unwrap();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["100k", "100k", "–"]
        );
    }

    #[test]
    fn claims_say_whether_they_hold() {
        let text = claims_table(&sample());
        assert!(text.contains("holds     flat"), "{text}");
        assert!(text.contains("FAILED    order"), "{text}");
        assert!(text.contains("not measured"), "{text}");
        // Neither: nothing could have made it fail.
        assert!(text.contains("measured  share "), "{text}");
    }
}
