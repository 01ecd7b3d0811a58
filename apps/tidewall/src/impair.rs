//! `tidewall impair`: a bad path between two interfaces.

use std::time::Duration;

use tidewall_lab::bridge::{Bridge, DirectionReport, Impair, Report, Sharing, Spec};

use crate::end::{Failure, Outcome, check_interface, say, say_json, stop_flag};
use crate::table::Table;
use crate::units::{self, count, nanoseconds};

/// Forward between two interfaces as a bad path would: delay, loss, reordering, a bottleneck.
///
/// Whole frames pass through packet sockets, so this also works if the kernel has no
/// netem. Both directions are treated alike; ARP and neighbour discovery pass at once.
/// The interfaces should have no addresses. Segmentation and checksum offload must be off
/// at their other ends (ethtool -K IF tx off tso off gso off): frames that a wire could
/// not carry are rejected and counted. The command ends after --time, on Ctrl-C, or when
/// an interface disappears, and leaves nothing behind.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tidewall impair veth-m1 veth-m2 --loss 1% --delay 10ms --rate 100mbit\n  \
    tidewall impair veth-m1 veth-m2 --reorder 5% --reorder-by 2ms --delay 20ms --for 5m --json\n\n\
    A round trip takes twice --delay. The report says how late packets were and what the bridge lost \
    itself; with much of either, what was measured through it is worthless.\n\
    Exit codes: 0 it ran and lost nothing itself; 1 it lost frames itself or an interface went away; \
    2 it could not begin."
)]
pub struct Arguments {
    /// One interface
    #[arg(value_name = "A")]
    left: String,
    /// The other interface
    #[arg(value_name = "B")]
    right: String,
    /// Propagation delay, each way
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    delay: Duration,
    /// Variation of the propagation delay, without reordering
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    jitter: Duration,
    /// Packets lost: 1%, or 0.01
    #[arg(long, value_name = "P", default_value = "0", value_parser = probability)]
    loss: f64,
    /// Bits per second, each way: 100mbit, 1.5gbit, 64kbit [default: no limit]
    #[arg(long, value_name = "RATE", value_parser = bits)]
    rate: Option<u64>,
    /// Bytes that may queue for the rate, 1500 at least [default: 100 ms at the rate]
    #[arg(long, value_name = "BYTES", requires = "rate", value_parser = clap::value_parser!(u32).range(1500..))]
    queue: Option<u32>,
    /// Queued bytes above which ECN-capable packets are marked [default: never]
    #[arg(long, value_name = "BYTES", requires = "rate")]
    mark: Option<u32>,
    /// Packets held back, so that later ones overtake: 1%, or 0.01
    #[arg(long, value_name = "P", default_value = "0", value_parser = probability, requires = "reorder_by")]
    reorder: f64,
    /// Longest time that they are held back
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "reorder")]
    reorder_by: Option<Duration>,
    /// Packets that arrive twice: 1%, or 0.01
    #[arg(long, value_name = "P", default_value = "0", value_parser = probability)]
    duplicate: f64,
    /// Give each flow (addresses and ports) its own path instead of one shared path
    #[arg(long)]
    per_flow: bool,
    /// Seed of the random numbers: the same seed treats packets alike
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Run for this long, at most a day
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    time: Duration,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// The longest run.
const TIME_MAX: Duration = Duration::from_secs(86_400);
/// The longest delay: packets in flight are kept in memory.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Default queue, as time at the rate.
const QUEUE_TIME: f64 = 0.1;
const QUEUE_MIN: f64 = 15_000.0;

fn probability(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.trim().strip_suffix('%') {
        Some(number) => (number.trim_end(), 0.01),
        None => (text.trim(), 1.0),
    };
    let value = number.parse::<f64>().ok().map(|number| number * scale);
    value
        .filter(|value| (0.0..=1.0).contains(value))
        .ok_or_else(|| "not a probability such as 1% or 0.01".to_owned())
}

fn bits(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "bit" => 1.0,
        "kbit" | "k" => 1e3,
        "mbit" | "m" => 1e6,
        "gbit" | "g" => 1e9,
        _ => {
            return Err(format!(
                "no unit of rate is called {unit:?}: kbit, mbit or gbit"
            ));
        }
    };
    let rate = number.parse::<f64>().ok().map(|number| number * factor);
    rate.filter(|rate| (1e3..=1e11).contains(rate))
        .map(|rate| rate as u64)
        .ok_or_else(|| "not a rate of 1 kbit to 100 gbit such as 100mbit".to_owned())
}

impl Arguments {
    fn spec(&self) -> Result<Spec, Failure> {
        if self.time > TIME_MAX {
            return Err(Failure::usage("--for is at most a day"));
        }
        let longest = self
            .delay
            .max(self.jitter)
            .max(self.reorder_by.unwrap_or_default());
        if longest > DELAY_MAX {
            return Err(Failure::usage(
                "--delay, --jitter and --reorder-by are at most 60 s",
            ));
        }
        let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let queue = |rate: u64| (rate as f64 / 8.0 * QUEUE_TIME).max(QUEUE_MIN) as u32;
        let impair = Impair {
            rate: self.rate,
            delay_us: microseconds(self.delay),
            jitter_us: microseconds(self.jitter),
            loss: self.loss,
            reorder: self.reorder,
            reorder_us: microseconds(self.reorder_by.unwrap_or_default()),
            duplicate: self.duplicate,
            queue: self.queue.or(self.rate.map(queue)),
            mark: self.mark,
        };
        Ok(Spec {
            left: self.left.clone(),
            right: vec![self.right.clone()],
            from_left: impair,
            from_right: impair,
            sharing: if self.per_flow {
                Sharing::Flow
            } else {
                Sharing::All
            },
            seed: self.seed,
        })
    }
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    let spec = arguments.spec()?;
    check_interface(&arguments.left)?;
    check_interface(&arguments.right)?;
    let stop = stop_flag()?;
    let between = format!(
        "forwarding between {} and {}",
        arguments.left, arguments.right
    );
    let bridge = Bridge::open(spec).map_err(|error| Failure::io(&between, &error))?;
    // To standard error: standard output has only the report.
    eprintln!(
        "{between} for {} s; Ctrl-C ends it",
        arguments.time.as_secs_f64()
    );
    let report = bridge
        .run(Some(arguments.time), &stop)
        .map_err(|error| Failure::answer(format!("{between}: {error}")))?;
    if arguments.json {
        say_json(&report)?;
    } else {
        say(&text(arguments, &report))?;
    }
    match report.lost_itself() {
        0 => Ok(()),
        lost => Err(Failure::answer(format!(
            "the bridge lost {lost} frames itself"
        ))),
    }
}

/// Returns the report as a table.
fn text(arguments: &Arguments, report: &Report) -> String {
    let mut table = Table::of(
        2,
        "from|>packets|>delivered|>lost|>queue full|>held back|>twice|>marked",
    );
    let mut row = |name: &str, way: &DirectionReport| {
        table.row([
            name.to_owned(),
            count(way.packets),
            count(way.delivered),
            count(way.lost),
            count(way.dropped),
            count(way.reordered),
            count(way.duplicated),
            count(way.marked),
        ]);
    };
    row(&arguments.left, &report.from_left);
    row(&arguments.right, &report.from_right);
    let [p50, p99, max] = [report.lag_p50_ns, report.lag_p99_ns, report.lag_max_ns]
        .map(|lag| nanoseconds(lag as f64));
    let mut text = format!(
        "{:.1} s, {} frames passed at once\n{}  late by: p50 {p50}, p99 {p99}, max {max}; {:.0} % of a processor\n",
        report.seconds,
        count(report.passed),
        table.text(),
        report.processor * 100.0,
    );
    for (frames, why) in [
        (
            report.refused,
            "no packets of a wire: turn tx, tso and gso off at the other ends",
        ),
        (report.not_taken, "the bridge's socket was full"),
        (report.not_sent, "the other side had no room"),
    ] {
        if frames > 0 {
            text.push_str(&format!("  {} frames lost: {why}\n", count(frames)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn spec(words: &str) -> Spec {
        let line = Line::try_parse_from(words.split(' ')).unwrap_or_else(|error| panic!("{error}"));
        line.arguments
            .spec()
            .unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn arguments_become_a_bridge() {
        let spec = spec(
            "x a b --loss 1% --delay 10ms --jitter 1ms --rate 100mbit --reorder 0.05 --reorder-by 2ms --seed 9 --per-flow",
        );
        let impair = Impair {
            rate: Some(100_000_000),
            delay_us: 10_000,
            jitter_us: 1_000,
            loss: 0.01,
            reorder: 0.05,
            reorder_us: 2_000,
            duplicate: 0.0,
            queue: Some(1_250_000),
            mark: None,
        };
        assert_eq!((spec.from_left, spec.from_right), (impair, impair));
        assert_eq!(
            (spec.left.as_str(), spec.right),
            ("a", vec!["b".to_owned()])
        );
        assert_eq!((spec.sharing, spec.seed), (Sharing::Flow, 9));
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            "x a",
            "x a b --loss 101%",
            "x a b --loss -1%",
            "x a b --rate 1",
            "x a b --rate 1pint",
            "x a b --queue 3000",
            "x a b --reorder 1%",
            "x a b --rate 1mbit --queue 10",
        ] {
            assert!(Line::try_parse_from(words.split(' ')).is_err(), "{words}");
        }
        for words in ["x a b --for 25h", "x a b --delay 61s"] {
            let line = Line::try_parse_from(words.split(' ')).unwrap_or_else(|e| panic!("{e}"));
            assert!(line.arguments.spec().is_err(), "{words}");
        }
    }

    #[test]
    fn the_report_tells_what_the_bridge_lost_itself() {
        let line = Line::try_parse_from(["x", "left", "right"]).unwrap_or_else(|e| panic!("{e}"));
        let report = Report {
            seconds: 2.0,
            refused: 1234,
            lag_max_ns: 1_500_000,
            ..Report::default()
        };
        let text = text(&line.arguments, &report);
        for part in ["left", "1,234 frames lost", "tso", "max 1.50 ms"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains("had no room"), "{text}");
    }
}
