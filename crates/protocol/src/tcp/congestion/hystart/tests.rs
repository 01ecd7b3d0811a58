use super::*;

const GROW: Verdict = Verdict::Grow(1);
const SLOWLY: Verdict = Verdict::Grow(CONSERVATIVE_DIVISOR);

/// A round of ten acknowledgments with the same round trip. Returns the verdict of the
/// last one, or of the one that leaves. Sequence numbers wrap on the way.
fn round(hystart: &mut HyStart, number: u32, milliseconds: u32) -> Verdict {
    let start = (u32::MAX - 2).wrapping_add(number * 10);
    let mut verdict = GROW;
    for at in 1..=10 {
        let next = start.wrapping_add(10 + at);
        let sample = Some(milliseconds * 1000);
        let said = hystart.acknowledged(start.wrapping_add(at), next, sample);
        if verdict != Verdict::Leave {
            verdict = said;
        }
    }
    verdict
}

fn after(rounds: &[u32]) -> (HyStart, Verdict) {
    let mut hystart = HyStart::default();
    let mut verdict = GROW;
    for (number, &milliseconds) in rounds.iter().enumerate() {
        verdict = round(&mut hystart, number as u32, milliseconds);
    }
    (hystart, verdict)
}

#[test]
fn a_steady_round_trip_goes_on() {
    assert_eq!(after(&[50; 30]).1, GROW);
}

#[test]
fn the_rise_that_counts_is_an_eighth_between_4_and_16_milliseconds() {
    for (before, after_, leaves) in [
        (10, 13, false),
        (10, 14, true),
        (80, 89, false),
        (80, 90, true),
        (400, 415, false),
        (400, 416, true),
    ] {
        let (hystart, _) = after(&[before, before, before, after_]);
        assert_eq!(hystart.rounds > 0, leaves, "{before} to {after_}");
    }
}

#[test]
fn conservative_slow_start_lasts_five_rounds() {
    let mut hystart = after(&[50, 50, 50]).0;
    let mut verdicts = Vec::new();
    for number in 3..9 {
        verdicts.push(round(&mut hystart, number, 60));
    }
    // The partial one counts; the first acknowledgment after the fifth leaves.
    assert_eq!(verdicts[..5], [SLOWLY; 5]);
    assert_eq!(verdicts[5], Verdict::Leave);
}

#[test]
fn a_thawed_state_of_too_many_rounds_leaves() {
    let mut hystart = after(&[50, 50, 50, 60]).0;
    hystart.rounds = u8::MAX;
    assert_eq!(round(&mut hystart, 4, 60), Verdict::Leave);
}

#[test]
fn a_rise_that_goes_again_was_jitter() {
    let (mut hystart, verdict) = after(&[50, 50, 50, 60, 60]);
    assert_eq!(verdict, SLOWLY);
    assert_eq!(round(&mut hystart, 5, 55), GROW);
    assert_eq!(hystart.rounds, 0);
    // The next rise counts again, against the latest round.
    round(&mut hystart, 6, 62);
    assert_eq!(hystart.rounds, 1);
}

#[test]
fn a_round_of_few_samples_says_nothing() {
    let mut hystart = HyStart::default();
    for number in 0..20 {
        let (start, next) = (number * 10, number * 10 + 20);
        for at in 1..=7 {
            let sample = Some(if number < 10 { 50_000 } else { 90_000 });
            assert_eq!(hystart.acknowledged(start + at, next, sample), GROW);
        }
        assert_eq!(hystart.acknowledged(start + 10, next, None), GROW);
    }
}
