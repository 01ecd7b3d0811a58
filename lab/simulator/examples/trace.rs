//! Shows the events of one scenario, to explain the numbers of a table:
//!
//! ```text
//! cargo run --example trace -- MBIT RTT-MS QUEUE-BYTES bulk MS [LOSS [SEED [BACK]]]
//! cargo run --example trace -- MBIT RTT-MS QUEUE-BYTES object BYTES [LOST-PACKET ...]
//! ```
//!
//! A bulk flow prints a line per round trip with the sender's numbers; LOSS and BACK are
//! data packets and acknowledgments lost per thousand. With SEGMENTS set in the
//! environment it prints every segment, as an object on a new connection does.

use std::env;
use std::error::Error;
use std::time::Duration;

use tidewall_protocol::tcp::Config;
use tidewall_simulator::link::{Impairment, Loss, Queue};
use tidewall_simulator::network::{Application, LinkId, Network, Setup};

const USAGE: &str =
    "MBIT RTT-MS QUEUE-BYTES (bulk MS [LOSS [SEED [BACK]]] | object BYTES [LOST-PACKET ...])";

fn setup(forward: LinkId, back: LinkId, application: Application) -> Setup {
    let config = Config {
        receive_buffer: 1 << 20,
        receive_buffer_max: 64 << 20,
        send_buffer_max: 64 << 20,
        offload: 65_536,
        ..Config::default()
    };
    Setup::new(config, forward, back, application)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [rate, round_trip, queue, kind, amount, rest @ ..] = &words[..] else {
        return Err(USAGE.into());
    };
    let rest = rest
        .iter()
        .map(|word| word.parse())
        .collect::<Result<Vec<u64>, _>>()?;
    let round_trip = Duration::from_millis(round_trip.parse()?);
    let mut plain = Impairment {
        rate: Some(rate.parse::<u64>()? * 1_000_000),
        delay: round_trip / 2,
        ..Impairment::default()
    };
    let mut data = Impairment {
        queue: Queue {
            limit: Some(queue.parse()?),
            mark: None,
        },
        ..plain.clone()
    };
    match kind.as_str() {
        "bulk" => {
            let loss = |place| Loss::Random {
                probability: rest.get(place).map_or(0.0, |&lost| lost as f64 / 1000.0),
            };
            (data.loss, plain.loss) = (loss(0), loss(2));
            let seed = rest.get(1).copied().unwrap_or_default();
            let mut network = Network::new(seed);
            let (data, back) = (network.link(data), network.link(plain));
            let flow = network.flow(setup(data, back, Application::Bulk { bytes: None }));
            if env::var_os("SEGMENTS").is_some() {
                network.trace();
            }
            let (end, mut before) = (Duration::from_millis(amount.parse()?), 0);
            while network.now() < end {
                network.run(network.now() + round_trip.max(Duration::from_millis(1)))?;
                let Some(report) = network.report(flow) else {
                    break;
                };
                let Some(info) = report.client else { continue };
                let threshold = match info.slow_start_threshold {
                    u32::MAX => "-".to_string(),
                    bytes => (bytes / info.send_mss).to_string(),
                };
                println!(
                    "{:>8} ms: {:>9} bytes read, window {:>5}, threshold {threshold:>5}, in flight {:>5}, \
                     sent again {:>5}, recoveries {:>3}, timeouts {:>3}, round trip {:?}, dropped {}",
                    network.now().as_millis(),
                    report.uploaded - before,
                    info.congestion_window / info.send_mss,
                    info.unacknowledged / info.send_mss,
                    info.retransmissions,
                    info.fast_recoveries,
                    info.timeouts,
                    info.round_trip,
                    network.counters(data).dropped,
                );
                before = report.uploaded;
            }
            for entry in network.trace_entries() {
                println!("{entry}");
            }
        }
        "object" => {
            data.loss = Loss::Script(rest);
            let mut network = Network::new(0);
            let (data, requests) = (network.link(data), network.link(plain));
            let object = Application::Exchange {
                request: 100,
                response: amount.parse()?,
                count: 1,
                pause: Duration::ZERO,
                keep: false,
            };
            let flow = network.flow(setup(requests, data, object));
            network.trace();
            network.run(Duration::from_secs(600))?;
            for entry in network.trace_entries() {
                println!("{entry}");
            }
            println!("{:#?}", network.report(flow));
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}
