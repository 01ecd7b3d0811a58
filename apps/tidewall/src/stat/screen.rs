//! Text that stands still on a terminal while its numbers change.
//!
//! The terminal's modes stay as they are (no other screen, no hidden cursor), so nothing
//! needs restoring however the command ends.

use rustix::termios::tcgetwinsize;

/// Clears the screen, for the first block.
pub const CLEAR: &str = "\x1b[2J";

/// Returns text that overwrites the last block, cut to the terminal's size.
pub fn over(text: &str) -> String {
    let size = tcgetwinsize(std::io::stdout()).ok();
    let size = size.filter(|size| size.ws_row > 0 && size.ws_col > 0);
    draw(
        text,
        size.map(|size| (size.ws_col.into(), size.ws_row.into())),
    )
}

/// Cuts text to `size`, columns and rows; the whole text if that is unknown.
fn draw(text: &str, size: Option<(usize, usize)>) -> String {
    let (columns, rows) = size.unwrap_or((usize::MAX, usize::MAX));
    let lines: Vec<&str> = text.lines().collect();
    // The cursor stands on the line below the last.
    let room = rows.saturating_sub(1).max(1);
    let (shown, left) = if lines.len() <= room {
        (lines.as_slice(), 0)
    } else {
        let (shown, rest) = lines.split_at(room - 1);
        (shown, rest.len())
    };
    let mut block = String::from("\x1b[H");
    let mut add = |line: &str| {
        block.extend(line.chars().take(columns));
        // Clears the rest of a longer line of the last block.
        block.push_str("\x1b[K\n");
    };
    shown.iter().for_each(|line| add(line));
    if left > 0 {
        add(&format!(
            "({left} more lines: a taller window or `tidewall stat` shows them)"
        ));
    }
    block.push_str("\x1b[J");
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_fits_the_window() {
        let text = "first\nsecond\nthird\n";
        let whole = "\x1b[Hfirst\x1b[K\nsecond\x1b[K\nthird\x1b[K\n\x1b[J";
        assert_eq!(draw(text, None), whole);
        assert_eq!(draw(text, Some((80, 4))), whole);
        assert_eq!(
            draw(text, Some((5, 3))),
            "\x1b[Hfirst\x1b[K\n(2 mo\x1b[K\n\x1b[J"
        );
        // A terminal that reports a tiny size still gets a line.
        assert_eq!(draw(text, Some((5, 0))), "\x1b[H(3 mo\x1b[K\n\x1b[J");
    }
}
