//! `tidewall blast`: paced UDP or TCP SYN segments to a port, and closed-loop pings
//! beside them.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::time::Duration;

use tidewall_load::{BlastSpec, LoadReport, LoadSpec, PingSpec, Progress, Wait, run_until};

use crate::end::{Failure, Outcome, say, say_json, stop_flag};
use crate::load::packets::Packets;
use crate::load::text::table;
use crate::units::{self, count, nanoseconds, per_second};

/// Send paced UDP, or a flood of TCP SYN segments, to an address, from 10 packets/s to
/// all the link carries.
///
/// The generator sleeps between bursts, so it uses only the CPU time it needs. It sends
/// through `lo` and through veths inside a network namespace. Any other interface
/// requires --allow-any-interface, because a blast on a real network is an attack unless
/// its owner wants it.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tidewall blast --interface tw-a --to 10.77.0.2:9 --rate 300k --for 10s\n  \
    tidewall blast --interface tw-a --to 10.77.0.2:9 --rate max --sender frame\n  \
    tidewall blast --interface tw-a --to 10.77.0.2:9 --rate 1M --ping 7    echoes beside the blast\n  \
    tidewall blast --interface tw-a --to 10.77.0.2:81 --syn --spoof 10.78.0.0/16 --rate 400k   a SYN flood\n  \
    tidewall blast --to 127.0.0.1:9 --sender socket --rate 10k --json\n\n\
    Senders: skb sends through AF_XDP (the kernel builds an skb on the sender's processor, which \
    flatters a receiving kernel; about 1.5 million/s); frame injects XDP frames as from a NIC (about \
    2.7 million/s; veth only); socket is sendmmsg on a kernel socket (no privilege; about 1.1 million/s).\n\
    Say which one a figure used. Exit codes: 0 sent; 1 sending failed; 2 it could not begin."
)]
pub struct Arguments {
    #[command(flatten)]
    packets: Packets,
    /// Bytes of UDP payload, 0 to 1472 (1452 under IPv6) [default: 14]
    #[arg(long, value_name = "BYTES", conflicts_with = "syn")]
    size: Option<u16>,
    /// Send TCP segments that ask for a connection (SYN) instead of UDP; in bursts of 250
    /// µs, sleeping in between
    #[arg(long)]
    syn: bool,
    /// How long to send and measure, at most 1h
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    time: Duration,
    /// Send for this long before measuring begins
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    warm_up: Duration,
    /// Also ping the echo service at this port of the same address, 8 bytes at a time
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    ping: Option<u16>,
    /// Requests that the ping keeps in flight
    #[arg(long, value_name = "N", default_value_t = 1, requires = "ping")]
    outstanding: u16,
    /// Let the ping sleep for its replies instead of spinning: the measured time then
    /// includes the wake-up
    #[arg(long, requires = "ping")]
    block: bool,
    /// Transmit queue of the interface, skb sender only
    #[arg(long, value_name = "N", default_value_t = 0)]
    queue: u32,
    /// Run on this processor
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Default bytes of UDP payload, as in LRP.
const DEFAULT_SIZE: u16 = 14;

impl Arguments {
    fn spec(&self) -> LoadSpec {
        let payload = (!self.syn).then(|| self.size.unwrap_or(DEFAULT_SIZE));
        let blast = BlastSpec {
            queue: self.queue,
            ..self.packets.blast(payload)
        };
        let ping = self.ping.map(|port| PingSpec {
            outstanding: self.outstanding,
            wait: if self.block { Wait::Block } else { Wait::Spin },
            ..PingSpec::new(SocketAddr::new(self.packets.to.ip(), port))
        });
        LoadSpec {
            blast: Some(blast),
            ping,
            warm_up: self.warm_up,
            cpu: self.cpu,
            ..LoadSpec::new(self.time)
        }
    }
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    arguments.packets.check()?;
    let stop = stop_flag()?;
    let live = std::io::stderr().is_terminal() && !arguments.json;
    let spec = arguments.spec();
    let report = run_until(&spec, &stop, |progress| {
        if live {
            eprint!("\r\x1b[K{}", line(&progress));
            let _ = std::io::stderr().flush();
        }
    });
    if live {
        eprint!("\r\x1b[K");
    }
    let report = report
        .map_err(|error| failure(&format!("blasting {}", arguments.packets.to), &error, &spec))?;
    if arguments.json {
        say_json(&report)
    } else {
        say(&text(&report))
    }
}

/// Describes the failure, with the option that allows what the generator refuses by
/// default.
pub fn failure(what: &str, error: &std::io::Error, spec: &LoadSpec) -> Failure {
    let failure = Failure::io(what, error);
    let spoofs = spec
        .blast
        .as_ref()
        .is_some_and(|blast| blast.spoof.is_some());
    // The generator's own refusal; the kernel's errors have an errno.
    let refused = error.kind() == std::io::ErrorKind::PermissionDenied
        && error.raw_os_error().is_none()
        && spec.blast.is_some()
        && !spoofs;
    match refused {
        true => Failure::usage(format!("{failure}: --allow-any-interface")),
        false => failure,
    }
}

/// Returns one line of progress.
pub fn line(progress: &Progress) -> String {
    let seconds = progress.interval.as_secs_f64();
    let rate = |packets: u64| per_second(packets as f64 / seconds);
    let mut line = format!("{:5.1} s", progress.elapsed.as_secs_f64());
    if let Some(blast) = &progress.blast {
        line.push_str(&format!(
            "  sent {}/s, ring full {}/s, skipped {}/s",
            rate(blast.sent),
            rate(blast.ring_full),
            rate(blast.skipped)
        ));
    }
    if let Some(ping) = &progress.ping {
        let p50 = progress
            .latency
            .map_or_else(|| "-".to_owned(), |latency| nanoseconds(latency.p50 as f64));
        line.push_str(&format!(
            "  echoes {}/s, p50 {p50}, lost {}",
            rate(ping.echoed),
            ping.lost
        ));
    }
    line
}

/// Returns the report as tables.
pub fn text(report: &LoadReport) -> String {
    let mut text = String::new();
    if let Some(blast) = &report.blast {
        let seconds = blast.duration.as_secs_f64();
        text.push_str(&format!(
            "blast through {} by the {} sender, bursts of up to {}, {seconds:.2} s measured{}\n",
            blast.interface,
            blast.kind,
            blast.burst,
            if report.stopped {
                ", stopped early"
            } else {
                ""
            }
        ));
        let counts = &blast.measured;
        let rows = [
            ("offered", counts.offered, ""),
            ("sent", counts.sent, ""),
            (
                "ring full",
                counts.ring_full,
                "not sent: the transmit ring or buffer had no room",
            ),
            (
                "skipped",
                counts.skipped,
                "not sent: the generator could not keep the rate",
            ),
        ];
        let mut table = table("packets", seconds, 2, &rows);
        if let Some(counters) = blast.counters.filter(|counters| counters.dropped > 0) {
            table.row([
                "dropped by interface".to_owned(),
                count(counters.dropped),
                String::new(),
                "the receiver's ring was full (whole run, all traffic)".to_owned(),
            ]);
        }
        text.push_str(&table.text());
    }
    if let Some(ping) = &report.ping {
        let counts = &ping.measured;
        text.push_str(&format!(
            "ping: {} echoes/s ({} sent, {} echoed, {} lost, {} unexpected, {} errors)\n",
            per_second(ping.rate),
            count(counts.sent),
            count(counts.echoed),
            count(counts.lost),
            count(counts.unexpected),
            count(counts.errors),
        ));
        if let Some(latency) = &ping.latency {
            let [min, p50, p90, p99, p999, max] = [
                latency.min,
                latency.p50,
                latency.p90,
                latency.p99,
                latency.p999,
                latency.max,
            ]
            .map(|time| nanoseconds(time as f64));
            text.push_str(&format!(
                "  round trip: min {min}, p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p999}, max {max}, mean {}\n",
                nanoseconds(latency.mean)
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tidewall_load::{
        BlastCounts, BlastReport, Content, InterfaceCounters, PingCounts, PingReport, SenderKind,
        SourceOrder,
    };

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn arguments_become_a_spec_that_the_generator_takes() {
        let words = "x --to [fd00::2]:9 --rate 1.2M --size 64 --for 2s --flows 8 --sender frame --ping 7 --block";
        let spec = Line::try_parse_from(words.split(' '))
            .unwrap()
            .arguments
            .spec();
        spec.check().unwrap();
        let blast = spec.blast.unwrap();
        assert_eq!(
            (blast.kind, blast.rate, blast.payload, blast.flows),
            (SenderKind::Frame, Some(1_200_000), 64, 8)
        );
        let ping = spec.ping.unwrap();
        assert_eq!(ping.destination, "[fd00::2]:7".parse().unwrap());
        assert_eq!(
            (ping.wait, spec.duration),
            (Wait::Block, Duration::from_secs(2))
        );
        let max = Line::try_parse_from("x --to 10.0.0.2:9 --rate max".split(' ')).unwrap();
        let max = max.arguments.spec().blast.unwrap();
        assert_eq!((max.rate, max.payload), (None, 14));
    }

    #[test]
    fn a_flood_is_asked_for_by_syn() {
        let words = "x --to 10.77.0.2:81 --syn --spoof 10.78.0.0/16 --in-order --rate 600k";
        let line = Line::try_parse_from(words.split(' ')).unwrap();
        let spec = line.arguments.spec();
        spec.check().unwrap();
        let blast = spec.blast.unwrap();
        assert_eq!(
            (blast.content, blast.order, blast.payload),
            (Content::Syn, SourceOrder::Ascending, 0)
        );
        for words in [
            "x --to 10.0.0.2:9 --syn --size 14",
            "x --to 10.0.0.2:9 --in-order",
        ] {
            assert!(Line::try_parse_from(words.split(' ')).is_err(), "{words}");
        }
        let socket = "x --to 10.0.0.2:9 --syn --sender socket".split(' ');
        let spec = Line::try_parse_from(socket).unwrap().arguments.spec();
        assert!(spec.check().is_err(), "a UDP socket sends no SYN");
    }

    #[test]
    fn a_report_names_every_loss() {
        let counts = BlastCounts {
            offered: 2_000,
            sent: 1_900,
            ring_full: 60,
            skipped: 40,
        };
        let report = LoadReport {
            blast: Some(BlastReport {
                kind: SenderKind::Skb,
                interface: "tw-a".to_owned(),
                burst: 32,
                measured: counts,
                whole: counts,
                duration: Duration::from_secs(2),
                rate: 950.0,
                counters: Some(InterfaceCounters {
                    packets: 1_900,
                    dropped: 5,
                }),
            }),
            ping: Some(PingReport {
                measured: PingCounts {
                    sent: 10,
                    echoed: 9,
                    lost: 1,
                    unexpected: 0,
                    errors: 0,
                    skipped: 0,
                },
                whole: PingCounts::default(),
                duration: Duration::from_secs(2),
                rate: 4.5,
                latency: None,
                response: Default::default(),
            }),
            beside: Vec::new(),
            http: None,
            s_clients: None,
            probe: None,
            idle: None,
            stream: None,
            stopped: true,
        };
        let text = text(&report);
        for part in [
            "by the skb sender",
            "stopped early",
            "ring full                  60",
            "skipped                    40",
            "dropped by interface        5",
            "ping: 4.5 echoes/s (10 sent, 9 echoed, 1 lost",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }
}
