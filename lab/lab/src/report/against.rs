//! Compares two runs.

use std::path::Path;

use super::{of_the_same, read};
use crate::result::{Claim, ResultFile, Verdict};

/// The verdicts of two runs on the claims that both of them judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Number of claims that both judged.
    pub both: usize,
    /// Number of those that one run decided and the other did not.
    pub undecided: usize,
    /// Those that hold in one and fail in the other, one line each.
    pub contradictions: Vec<String>,
}

impl Comparison {
    /// Formats it for a reader: the contradictions, then the numbers.
    pub fn text(&self) -> String {
        let lines = self.contradictions.iter().map(|line| format!("{line}\n"));
        lines.collect::<String>()
            + &format!(
                "{} claims in both runs: {} hold in one and fail in the other, {} are undecided \
                 in one alone\n",
                self.both,
                self.contradictions.len(),
                self.undecided
            )
    }
}

/// Compares the results in `directory` with those of the same experiments, with the same
/// options, in `other`.
///
/// # Errors
/// No result in one of them, or an unreadable one.
pub fn against(directory: &Path, other: &Path) -> anyhow::Result<Comparison> {
    Ok(compare(&read(directory)?, &read(other)?))
}

fn compare(results: &[ResultFile], others: &[ResultFile]) -> Comparison {
    let mut comparison = Comparison::default();
    for result in results {
        let Some(other) = of_the_same(result, others).first().copied() else {
            continue;
        };
        for claim in &result.claims {
            let same = other.claims.iter().find(|it| it.id == claim.id);
            let Some(same) = same.filter(|_| claim.bound.is_some()) else {
                continue;
            };
            comparison.both += 1;
            let undecided = [claim, same].map(Claim::is_undecided);
            comparison.undecided += usize::from(undecided[0] != undecided[1]);
            if let (Verdict::Holds, Verdict::Failed) | (Verdict::Failed, Verdict::Holds) =
                (claim.verdict, same.verdict)
            {
                let [one, two] = [claim, same].map(figure);
                let (name, id) = (&result.experiment, &claim.id);
                let line = format!("{name} {id}: {one}, in the other run {two}");
                comparison.contradictions.push(line);
            }
        }
    }
    comparison
}

/// Formats a claim's verdict, figure and interval.
fn figure(claim: &Claim) -> String {
    let measured = claim
        .measured
        .map_or_else(|| "–".to_owned(), super::precise);
    let interval = match claim.interval() {
        none if none.is_empty() => none,
        interval => format!(" ({interval})"),
    };
    format!("{} {measured}{interval}", claim.verdict.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    fn run(claims: &[(&str, [f64; 3])]) -> ResultFile {
        let claim = |(id, rounds): &(&str, [f64; 3])| {
            Claim::at_least(*id, "", None, 0.95).with_rounds(rounds)
        };
        ResultFile {
            claims: claims.iter().map(claim).collect(),
            ..sample()
        }
    }

    #[test]
    fn what_holds_in_one_run_and_fails_in_the_other_is_named() {
        let (good, bad, open) = ([0.97, 0.971, 0.972], [0.9, 0.901, 0.902], [0.9, 0.95, 1.0]);
        let one = run(&[
            ("a", good),
            ("b", good),
            ("c", bad),
            ("d", open),
            ("e", open),
            ("f", good),
        ]);
        let two = run(&[
            ("a", good),
            ("b", bad),
            ("c", open),
            ("d", good),
            ("e", open),
        ]);
        let found = compare(std::slice::from_ref(&one), std::slice::from_ref(&two));
        assert_eq!((found.both, found.undecided), (5, 2));
        let line = "lrp-overload b: holds 0.971 (0.969–0.973), in the other run FAILED 0.901 \
                    (0.899–0.903)";
        assert_eq!(found.contradictions, [line]);
        let text = found.text();
        assert!(
            text.starts_with(line) && text.contains("1 hold in one and fail"),
            "{text}"
        );
        // A run of another kind is not comparable.
        let full = ResultFile {
            quick: false,
            ..two
        };
        assert_eq!(compare(&[one], &[full]), Comparison::default());
    }

    #[test]
    fn a_claim_without_a_bound_is_none_to_contradict() {
        let mut result = sample();
        result.claims = vec![Claim::new("share", "", Some(1.0))];
        let results = std::slice::from_ref(&result);
        assert_eq!(compare(results, results).both, 0);
    }

    #[test]
    fn directories_are_read() {
        let directory = std::env::temp_dir().join(format!("tw-against-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        assert!(against(&directory, &directory).is_err());
        sample().write(&directory.join("one.json")).unwrap();
        let found = against(&directory, &directory).unwrap();
        assert_eq!((found.both, found.contradictions.len()), (2, 0));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
