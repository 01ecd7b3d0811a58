//! CUBIC against the formulas of RFC 9438 in floating point, and its figures.

use proptest::prelude::*;

use super::*;

/// RFC 9438 as written, one acknowledgment at a time.
#[derive(Clone, Debug, Default)]
struct Model {
    window: f64,
    maximum: f64,
    prior: f64,
    estimate: f64,
    k: f64,
    began: Option<f64>,
    blind: bool,
}

const C: f64 = 0.4;
const BETA: f64 = 0.7;

impl Model {
    fn acknowledged(&mut self, bytes: f64, mss: f64, srtt: f64, now: f64) {
        let segments = |bytes: f64| bytes / mss;
        let began = *self.began.get_or_insert_with(|| {
            if self.maximum <= self.window {
                self.maximum = self.window;
            }
            self.k = (segments(self.maximum - self.window) / C).cbrt();
            self.estimate = self.window;
            now
        });
        let curve = |t: f64| C * mss * (t - self.k).powi(3) + self.maximum;
        let t = now - began;
        let alpha = if self.estimate < self.prior {
            3.0 * (1.0 - BETA) / (1.0 + BETA)
        } else {
            1.0
        };
        self.estimate += alpha * bytes * mss / self.window;
        let friendly = curve(t) < self.estimate;
        let mut target = curve(t + srtt).clamp(self.window, 1.5 * self.window);
        if self.blind {
            target = target.max(1.05 * self.window);
        }
        target = target.min(WINDOW_MAX.into());
        if !friendly || self.blind {
            self.window += (target - self.window) * bytes / self.window;
        }
        if friendly {
            self.window = self.window.max(self.estimate);
        }
        self.window = self.window.min(WINDOW_MAX.into());
    }

    fn reduced(&mut self) {
        self.prior = self.window;
        self.maximum = if self.window < self.maximum && !self.blind {
            self.window * (1.0 + BETA) / 2.0
        } else {
            self.window
        };
        self.blind = false;
        self.began = None;
        self.window *= BETA;
    }
}

/// The model and the code, side by side, on a path that is always full.
struct Pair {
    cubic: Cubic,
    window: u32,
    /// The window before the last reduction.
    prior: u32,
    model: Model,
    /// In microseconds.
    now: u64,
    mss: u32,
}

impl Pair {
    fn new(window: u32, mss: u32, now: u64) -> Self {
        Self {
            cubic: Cubic::default(),
            window,
            prior: 0,
            model: Model {
                window: window.into(),
                blind: true,
                ..Model::default()
            },
            now,
            mss,
        }
    }

    /// A round trip of evenly spaced acknowledgments of `each` bytes.
    fn round(&mut self, each: u32, srtt: u32) {
        let count = (self.window / each).max(1);
        for _ in 0..count {
            self.now += u64::from(srtt / count);
            let milliseconds = (self.now / 1000) as u32;
            let bytes = each.min(self.window);
            let full = Full {
                bytes,
                mss: self.mss,
                srtt,
                now: milliseconds,
            };
            self.window = self.cubic.avoid(self.window, self.prior, &full);
            let seconds = |microseconds: u64| microseconds as f64 * 1e-6;
            self.model.acknowledged(
                bytes.into(),
                self.mss.into(),
                seconds(srtt.into()),
                seconds(self.now),
            );
        }
    }

    fn lose(&mut self) {
        let near = self.window.abs_diff(self.cubic.maximum) <= self.window / 50 + self.mss;
        self.prior = self.window;
        self.window = self.cubic.reduced(self.window);
        self.model.reduced();
        if near {
            // Whether it is less than before can depend on a tiny difference.
            self.model.maximum = self.cubic.maximum.into();
        }
    }

    /// Whether they agree within a segment or a hundredth.
    fn agree(&self) -> bool {
        let apart = (f64::from(self.window) - self.model.window).abs();
        apart <= f64::from(self.mss).max(self.model.window / 100.0)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn integers_follow_the_formulas(
        mss in prop::sample::select(vec![76u32, 536, 1448, 8948]),
        segments in 4u32..200_000, round_trip in 50u32..2_000_000, now in 0u64..1 << 50,
        losses in prop::collection::vec(1u32..60, 1..6),
    ) {
        let mut pair = Pair::new((segments * mss).min(WINDOW_MAX / 4), mss, now);
        for rounds in losses {
            for _ in 0..rounds {
                let each = (2 * mss).max(pair.window / 64);
                pair.round(each, round_trip);
                prop_assert!(
                    pair.agree(), "{} and {:?}, {:?}", pair.window, pair.model, pair.cubic
                );
            }
            pair.lose();
        }
    }

    /// No input makes it overflow, shrink or jump.
    #[test]
    fn nothing_overflows(
        window in 0u32..=WINDOW_MAX, bytes: u32, mss in 76u32..65_536, srtt: u32,
        times in prop::collection::vec(any::<u32>(), 1..20), lose: u32, prior: u32, running: bool,
    ) {
        let mut cubic = Cubic { running, ..Cubic::default() };
        let mut window = window;
        for (at, now) in times.into_iter().enumerate() {
            let full = Full { bytes, mss, srtt, now };
            let grown = cubic.avoid(window, prior, &full);
            prop_assert!(grown >= window && grown <= WINDOW_MAX);
            prop_assert!(grown <= window + (window / 2).max(mss));
            prop_assert!(cubic.is_sound());
            window = grown;
            if lose >> at & 1 == 1 {
                let reduced = cubic.reduced(window);
                prop_assert!(reduced <= window);
                window = reduced;
            }
        }
    }
}

#[test]
fn cube_roots_are_exact() {
    for root in [1, 2, 999, 1 << 20, (1 << 28) + 12345, (1 << 29) - 1] {
        let cube = u128::from(root) * u128::from(root) * u128::from(root);
        assert_eq!(u64::from(cube_root(cube)), root);
        assert_eq!(u64::from(cube_root(cube + 1)), root);
        assert_eq!(u64::from(cube_root(cube - 1)), root - 1);
    }
}

/// The average window, in segments, when one in `one_of` segments is lost.
fn average(one_of: u64, round_trip: u32, cycles: u64) -> f64 {
    const MSS: u32 = 1500;
    let mut pair = Pair::new(10 * MSS, MSS, 0);
    let (mut sent, mut until, mut rounds, mut counted) = (0, one_of, 0u64, 0u64);
    while until < one_of * cycles {
        let window = u64::from(pair.window / MSS);
        pair.round((pair.window / 32).max(MSS), round_trip);
        sent += window;
        if sent >= until {
            pair.lose();
            until += one_of;
        }
        if until > one_of * (cycles / 2) {
            rounds += 1;
            counted += window;
        }
    }
    counted as f64 / rounds as f64
}

/// RFC 9438 §5.1, tables 1 and 2, the columns of C = 0.4. In the cubic region the average
/// is `(C · 3.7 / 1.2)^¼ · (RTT / p)^¾`; elsewhere it is NewReno's.
#[test]
fn the_average_window_is_that_of_the_rfcs_tables() {
    for (round_trip, one_of, expected) in [
        (100_000, 1_000, 38.0),
        (100_000, 10_000, 187.0),
        (100_000, 100_000, 1_054.0),
        (100_000, 1_000_000, 5_926.0),
        (10_000, 1_000, 38.0),
        (10_000, 10_000, 120.0),
        (10_000, 1_000_000, 1_200.0),
    ] {
        let average = average(one_of, round_trip, 40);
        let ratio = average / expected;
        assert!(
            (0.85..1.15).contains(&ratio),
            "1/{one_of} at {round_trip} µs: {average:.0}, not {expected}"
        );
    }
}

/// Figure 1 of §4.2: concave up to `W_max` at `K`, flat there, convex beyond.
#[test]
fn the_curve_is_flat_where_the_window_was_reduced() {
    const MSS: u32 = 1000;
    // K = (1000 · 0.3 / 0.4)^⅓ = 9.0856 seconds.
    let mut pair = Pair::new(1000 * MSS, MSS, 0);
    pair.lose();
    assert_eq!(pair.window, 700 * MSS);
    let mut at = Vec::new();
    for second in 0..=20 {
        while pair.now < second * 1_000_000 {
            pair.round(10 * MSS, 100_000);
        }
        at.push(pair.window / MSS);
    }
    assert_eq!(pair.cubic.until_flat, 9_085_602);
    for (second, window) in [
        (0, 700),
        (3, 910),
        (6, 988),
        (9, 1000),
        (12, 1010),
        (15, 1083),
    ] {
        let apart = at[second].abs_diff(window);
        assert!(apart <= 5, "{window} after {second} s: {at:?}");
    }
    let steps: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(steps[1..9].is_sorted_by(|a, b| a >= b), "concave: {at:?}");
    assert!(steps[10..].is_sorted(), "convex: {at:?}");
}

#[test]
fn a_flow_that_did_not_come_back_makes_room() {
    let mut cubic = Cubic::default();
    assert_eq!(cubic.reduced(100_000), 70_000);
    assert_eq!(cubic.maximum, 100_000);
    // Lost again at 90,000: the curve must be flat at 85 % of it.
    assert_eq!(cubic.reduced(90_000), 63_000);
    assert_eq!(cubic.maximum, 76_500);
    // Lost above that: no room needs to be made.
    assert_eq!(cubic.reduced(80_000), 56_000);
    assert_eq!(cubic.maximum, 80_000);
}

#[test]
fn a_pause_does_not_count() {
    const MSS: u32 = 1000;
    let mut paused = Pair::new(1000 * MSS, MSS, 0);
    let mut steady = Pair::new(1000 * MSS, MSS, 0);
    for pair in [&mut paused, &mut steady] {
        pair.lose();
        for _ in 0..20 {
            pair.round(10 * MSS, 100_000);
        }
    }
    // Idle for a minute; then unable to fill the window for another.
    paused.now += 60_000_000;
    paused.round(10 * MSS, 100_000);
    steady.round(10 * MSS, 100_000);
    for _ in 0..600 {
        paused.now += 100_000;
        paused.cubic.pause((paused.now / 1000) as u32);
    }
    for _ in 0..20 {
        paused.round(10 * MSS, 100_000);
        steady.round(10 * MSS, 100_000);
    }
    let apart = paused.window.abs_diff(steady.window);
    assert!(apart < 10 * MSS, "{} {}", paused.window, steady.window);
}

#[test]
fn an_undone_reduction_leaves_the_curve_where_it_was() {
    const MSS: u32 = 1000;
    let mut pair = Pair::new(1000 * MSS, MSS, 0);
    pair.lose();
    for _ in 0..150 {
        pair.round(10 * MSS, 100_000);
    }
    let (before, window) = (pair.cubic, pair.window);
    // Before another epoch has begun, and after.
    for rounds in [0, 5] {
        (pair.cubic, pair.window) = (before, window);
        pair.window = pair.cubic.reduced(pair.window);
        for _ in 0..rounds {
            pair.round(10 * MSS, 100_000);
        }
        pair.cubic.undo();
        assert_eq!(pair.cubic.maximum, before.maximum);
        assert_eq!(pair.cubic.running, rounds == 0);
        if rounds == 0 {
            assert_eq!(
                (pair.cubic.until_flat, pair.cubic.elapsed),
                (before.until_flat, before.elapsed)
            );
        }
        pair.window = window;
        pair.round(10 * MSS, 100_000);
        assert!(pair.window >= window && pair.window < window + 30 * MSS);
    }
}

#[test]
fn after_a_timeout_nothing_is_known() {
    const MSS: u32 = 1000;
    let mut pair = Pair::new(1000 * MSS, MSS, 0);
    pair.lose();
    pair.round(10 * MSS, 100_000);
    let threshold = pair.cubic.reduced(pair.window);
    pair.cubic.forget();
    pair.window = threshold;
    pair.round(10 * MSS, 100_000);
    assert_eq!((pair.cubic.until_flat, pair.cubic.maximum), (0, threshold));
    // A twentieth per round trip.
    let growth = pair.window - threshold;
    assert!(growth.abs_diff(threshold / 20) < 2 * MSS, "{growth}");
}
