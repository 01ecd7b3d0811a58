//! The file of counts: the compiler in its first line, then `NAME: COUNT`.

use std::fmt;

/// The contents of a file of counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The output of `rustc --version`; empty if there is no file.
    pub compiler: String,
    /// Names and counts, in the file's order.
    pub counts: Vec<(String, u64)>,
}

impl Kept {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// A description, for a line that is not a name and a count above 0.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let compiler = lines.next().unwrap_or_default().to_owned();
        let counts = lines
            .map(|line| {
                let (name, count) = line.rsplit_once(": ")?;
                let count: u64 = count.parse().ok()?;
                (count > 0).then(|| (name.to_owned(), count))
            })
            .zip(2..)
            .map(|(count, line)| count.ok_or_else(|| format!("line {line} is not `NAME: COUNT`")))
            .collect::<Result<_, _>>()?;
        Ok(Self { compiler, counts })
    }

    /// Returns the count of this name.
    pub fn count(&self, name: &str) -> Option<u64> {
        let found = self.counts.iter().find(|(own, _)| own == name);
        found.map(|&(_, count)| count)
    }

    /// Returns the complaints about these counts compared with the kept ones, each in a
    /// sentence; up to `tolerance` hundredths more are accepted.
    pub fn complaints(&self, kept: &Kept, tolerance: u64) -> Vec<String> {
        let mut complaints = Vec::new();
        for (name, count) in &self.counts {
            match kept.count(name) {
                None => complaints.push(format!("{name}: no count of it is kept")),
                Some(before) if is_above(*count, before, tolerance) => complaints.push(format!(
                    "{name}: {count} instructions are {:.1} % above the {before} that are kept, \
                     {tolerance} % are allowed",
                    (*count as f64 / before as f64 - 1.0) * 100.0
                )),
                Some(_) => {}
            }
        }
        for (name, _) in &kept.counts {
            if self.count(name).is_none() {
                complaints.push(format!("{name}: kept, but nothing counts it"));
            }
        }
        complaints
    }
}

/// Returns whether a count exceeds the kept one by more than `tolerance` hundredths.
fn is_above(count: u64, before: u64, tolerance: u64) -> bool {
    u128::from(count) * 100 > u128::from(before) * u128::from(100 + tolerance)
}

impl fmt::Display for Kept {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", self.compiler)?;
        self.counts
            .iter()
            .try_for_each(|(name, count)| writeln!(out, "{name}: {count}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(counts: &[(&str, u64)]) -> Kept {
        Kept {
            compiler: "rustc 1.95.0".to_owned(),
            counts: counts
                .iter()
                .map(|&(name, count)| (name.to_owned(), count))
                .collect(),
        }
    }

    #[test]
    fn a_file_says_what_was_written() {
        let kept = counts(&[("linear: open, 2,000 open", 10_378), ("get", 86)]);
        let text = "rustc 1.95.0\nlinear: open, 2,000 open: 10378\nget: 86\n";
        assert_eq!(kept.to_string(), text);
        assert_eq!(Kept::parse(text), Ok(kept));
        assert_eq!(Kept::parse(""), Ok(Kept::default()));
    }

    #[test]
    fn a_file_with_another_line_is_refused() {
        for line in ["get", "get: many", "get: 0", "get: -1", ""] {
            let text = format!("rustc 1.95.0\nopen: 1\n{line}\n");
            let error = Kept::parse(&text).unwrap_err();
            assert_eq!(error, "line 3 is not `NAME: COUNT`", "{line:?}");
        }
    }

    #[test]
    fn a_twentieth_more_is_allowed() {
        let kept = counts(&[("get", 1000)]);
        for count in [0, 500, 1000, 1050] {
            assert!(counts(&[("get", count)]).complaints(&kept, 5).is_empty());
        }
        let complaints = counts(&[("get", 1051)]).complaints(&kept, 5);
        let words = "get: 1051 instructions are 5.1 % above the 1000 that are kept, \
                     5 % are allowed";
        assert_eq!(complaints, [words]);
        assert!(is_above(u64::MAX, u64::MAX / 2, 5));
        assert!(!is_above(u64::MAX, u64::MAX, 5));
    }

    #[test]
    fn names_must_be_the_same() {
        let (now, kept) = (counts(&[("get", 1)]), counts(&[("find", 1)]));
        assert_eq!(
            now.complaints(&kept, 5),
            [
                "get: no count of it is kept",
                "find: kept, but nothing counts it"
            ]
        );
        assert_eq!(now.complaints(&now, 5), [""; 0]);
    }
}
