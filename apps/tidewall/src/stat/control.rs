//! Receive control for people: the current behaviour of each queue's policy, and the
//! rates of rounds, interrupts and overflows.

use serde::Serialize;
use tidewall::snapshot::{ControlSnapshot, QueueSnapshot};

use super::Pair;
use crate::table::Table;
use crate::units::{count, per_second, trimmed};

/// Characters of the bar that shows a buffer's use.
const BAR: usize = 10;

/// One queue's rates per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Rounds of receiving.
    pub rounds: f64,
    /// Rounds that used up their budget.
    pub exhausted_rounds: f64,
    /// Times the device woke the poller.
    pub interrupts: f64,
    /// Frames appended to channels.
    pub frames: f64,
    /// Frames that found their channel full.
    pub overflowed: f64,
}

impl Rates {
    /// Returns the rates of a queue between the two looks of a pair.
    pub fn of(pair: &Pair, queue: usize) -> Self {
        let rate = |find: fn(&QueueSnapshot) -> u64| pair.queue_rate(queue, find);
        Rates {
            rounds: rate(|queue| queue.rounds),
            exhausted_rounds: rate(|queue| queue.control.exhausted_rounds),
            interrupts: rate(|queue| queue.control.interrupts),
            frames: rate(|queue| queue.delivered),
            overflowed: rate(|queue| queue.control.overflowed),
        }
    }

    /// Returns the rates of every queue.
    pub fn all(pair: &Pair) -> Vec<Self> {
        (0..pair.now.queues.len())
            .map(|queue| Rates::of(pair, queue))
            .collect()
    }
}

/// Formats T: `0` if every frame may interrupt.
pub fn interval(control: &ControlSnapshot) -> String {
    trimmed(control.interrupt_interval)
}

/// Formats one line: `adaptive, Bp 300, T 50 µs, polling, fullest buffer 37 %`.
pub fn line(control: &ControlSnapshot) -> String {
    if control.policy.is_empty() {
        return "none".to_owned();
    }
    format!(
        "{}, Bp {}, T {}, {}, fullest buffer {}",
        control.policy,
        count(control.budget.into()),
        interval(control),
        control.mode,
        percent(control.buffer_use),
    )
}

/// `Bp 300, T 50 µs` for `serve`; with `/` between queues that differ.
pub fn short<'a>(queues: impl Iterator<Item = &'a ControlSnapshot> + Clone) -> String {
    let joined = |of: fn(&ControlSnapshot) -> String| {
        let mut all: Vec<String> = queues.clone().map(of).collect();
        if all.windows(2).all(|two| two.first() == two.last()) {
            all.truncate(1);
        }
        all.join("/")
    };
    format!(
        "Bp {}, T {}",
        joined(|control| count(control.budget.into())),
        joined(interval)
    )
}

fn used(share: f64) -> f64 {
    if share.is_finite() {
        share.clamp(0.0, 1.0)
    } else {
        0.0
    }
}

/// Formats a share: 100 % only if full, 0 % only if empty.
fn percent(share: f64) -> String {
    match used(share) {
        share if share > 0.0 && share < 0.01 => "<1 %".to_owned(),
        share if share > 0.99 && share < 1.0 => ">99 %".to_owned(),
        share => format!("{:.0} %", 100.0 * share),
    }
}

/// Draws `####......`; the last mark only for a full buffer.
fn bar(share: f64) -> String {
    let marks = (used(share) * BAR as f64) as usize;
    format!("{}{}", "#".repeat(marks), ".".repeat(BAR - marks))
}

/// Returns a table with one line per queue, and its rates.
pub fn table(pair: &Pair) -> String {
    let mut table = Table::of(
        2,
        ">queue|policy|>Bp|>T|mode|buffer use|>|>rounds/s|>exhausted/s|>interrupts/s|>frames/s|>overflow/s",
    );
    for (number, queue) in pair.now.queues.iter().enumerate() {
        let control = &queue.control;
        let rates = Rates::of(pair, number);
        let known = |text: String| {
            if control.policy.is_empty() {
                "-".to_owned()
            } else {
                text
            }
        };
        table.row([
            number.to_string(),
            known(control.policy.clone()),
            known(count(control.budget.into())),
            known(interval(control)),
            known(control.mode.clone()),
            known(bar(control.buffer_use)),
            known(percent(control.buffer_use)),
            per_second(rates.rounds),
            per_second(rates.exhausted_rounds),
            per_second(rates.interrupts),
            per_second(rates.frames),
            per_second(rates.overflowed),
        ]);
    }
    table.text()
}

#[cfg(test)]
pub mod tests {
    use super::super::view::tests::stack;
    use super::*;

    /// Receive control of a queue under load.
    pub fn control() -> ControlSnapshot {
        let mut control = ControlSnapshot::default();
        control.policy = "adaptive".to_owned();
        control.budget = 1200;
        control.interrupt_interval = 50_000;
        control.mode = "mixed".to_owned();
        control.buffer_use = 0.375;
        control.exhausted_rounds = 100;
        control.interrupts = 1_000;
        control.overflowed = 30;
        control
    }

    fn pair() -> Pair {
        let mut before = stack(10, 1_000, 0);
        before.queues[0].control = control();
        let mut now = stack(12, 3_000, 0);
        now.queues[0].rounds += 400;
        now.queues[0].control = {
            let mut control = control();
            control.exhausted_rounds = 300;
            control.interrupts = 1_011;
            control
        };
        Pair::new(now, Some(before))
    }

    #[test]
    fn rates_are_those_between_two_looks() {
        assert_eq!(
            Rates::all(&pair()),
            [Rates {
                rounds: 200.0,
                exhausted_rounds: 100.0,
                interrupts: 5.5,
                frames: 1_000.0,
                overflowed: 0.0,
            }]
        );
    }

    #[test]
    fn a_queue_is_one_line_of_the_table() {
        let text = table(&pair());
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(
            lines[1],
            [
                "0",
                "adaptive",
                "1,200",
                "50",
                "µs",
                "mixed",
                "###.......",
                "38",
                "%",
                "200",
                "100",
                "5.5",
                "1,000",
                "-"
            ]
        );
        // A stack that does not report receive control still has its rates.
        let mut pair = pair();
        pair.now.queues[0].control = ControlSnapshot::default();
        let text = table(&pair);
        let cells: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            cells,
            [
                "0", "-", "-", "-", "-", "-", "-", "200", "-", "-", "1,000", "-"
            ]
        );
        assert_eq!(line(&ControlSnapshot::default()), "none");
    }

    #[test]
    fn control_is_said_in_a_line() {
        assert_eq!(
            line(&control()),
            "adaptive, Bp 1,200, T 50 µs, mixed, fullest buffer 38 %"
        );
        let mut other = control();
        other.interrupt_interval = 0;
        assert_eq!(short([&control()].into_iter()), "Bp 1,200, T 50 µs");
        assert_eq!(
            short([&control(), &other].into_iter()),
            "Bp 1,200, T 50 µs/0"
        );
    }

    #[test]
    fn only_a_full_buffer_is_shown_full() {
        assert_eq!(
            (bar(0.0), percent(0.0)),
            (".".repeat(BAR), "0 %".to_owned())
        );
        assert_eq!(percent(0.001), "<1 %");
        assert_eq!(
            (bar(0.999).as_str(), percent(0.999).as_str()),
            ("#########.", ">99 %")
        );
        assert_eq!(
            (bar(1.0), percent(1.0)),
            ("#".repeat(BAR), "100 %".to_owned())
        );
        assert_eq!(
            (bar(f64::NAN), percent(7.0)),
            (".".repeat(BAR), "100 %".to_owned())
        );
    }
}
