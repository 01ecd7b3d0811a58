//! Several flows on one bottleneck.

use std::time::Duration;

use tidewall_protocol::tcp::Config;
use tidewall_simulator::link::Impairment;
use tidewall_simulator::network::{Network, Setup};

use crate::scenario::{BULK, MS, Path, SECOND, US, engines, names, report, run};
use crate::table::{Table, head, median};

/// Jain's index (RFC 5166 §2.3): one if all shares are equal, 1/n if one flow has
/// everything.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (squares * shares.len() as f64)
}

/// Each flow's share of the bottleneck between two times. Each flow has an engine, an
/// additional round trip, and a start.
pub fn shares(
    path: &Path,
    flows: &[(Config, Duration, Duration)],
    (from, to): (Duration, Duration),
    seed: u64,
) -> Vec<f64> {
    let mut network = Network::new(seed);
    let (forward, back) = path.build(&mut network);
    let flows: Vec<_> = flows
        .iter()
        .map(|&(config, round_trip, start)| {
            // Hosts do not answer with nanosecond precision. If they did, the phase alone
            // would decide which flow loses packets (Floyd and Jacobson 1991).
            let access = network.link(Impairment {
                rate: Some(10 * path.rate),
                delay: round_trip,
                jitter: 100 * US,
                ..Impairment::default()
            });
            network.flow(Setup {
                forward: vec![access, forward],
                start,
                ..Setup::new(config, forward, back, BULK)
            })
        })
        .collect();
    let what = format!("{path:?}, seed {seed}");
    let mut read = |until: Duration| -> Vec<u64> {
        run(&mut network, until, &what);
        let flows = flows.iter();
        flows.map(|&flow| report(&network, flow).uploaded).collect()
    };
    let before = read(from);
    let after = read(to);
    let gained = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before);
    gained
        .map(|bytes| bytes as f64 / path.capacity(to - from))
        .collect()
}

/// Medians over seeds of the smallest and the largest share, and of Jain's index.
fn cells(
    path: &Path,
    flows: &[(Config, Duration, Duration)],
    window: (Duration, Duration),
) -> [String; 3] {
    let runs: Vec<Vec<f64>> = (0..3)
        .map(|seed| shares(path, flows, window, seed))
        .collect();
    let index = median(&runs.iter().map(|run| jain(run)).collect::<Vec<_>>());
    let of = |flow: usize| median(&runs.iter().map(|run| run[flow]).collect::<Vec<_>>());
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    [
        percent(of(0)),
        percent(of(flows.len() - 1)),
        format!("{index:.3}"),
    ]
}

#[test]
fn fairness() {
    let columns = ["first", "last", "jain"];
    let head = head(&["case", "flows", "queue"], &names(), &columns);
    let mut table = Table::new(
        "fairness",
        "Bulk flows of one engine on one bottleneck of 20 Mbit/s, measured from 10 s to 30\n\
         s. Medians of three seeds.\n\
         \n\
         case   same: round trips of 20 ms, starts 100 ms apart\n\
         \x20      rtt-N: the last flow's round trip is N ms instead\n\
         \x20      late: the last flow starts at 10 s\n\
         queue  of the bottleneck, in round trips of 20 ms\n\
         first  the first flow's goodput, percent of the payload that the link carries\n\
         last   the last flow's; a fair share is 100 / flows\n\
         jain   Jain's index: 1 is fair, 1/flows is one flow having all",
        head,
    );
    let window = (10 * SECOND, 30 * SECOND);
    let cases = [
        ("same", 2, 0, 0),
        ("same", 4, 0, 0),
        ("same", 8, 0, 0),
        ("rtt-40", 2, 20, 0),
        ("rtt-100", 2, 80, 0),
        ("late", 2, 0, 10),
        ("late", 4, 0, 10),
    ];
    for (case, count, more, late) in cases {
        for queue in [1, 4] {
            let mut path = Path::new(20_000_000, 20 * MS);
            path.queue = Some(path.product() as u32 * queue);
            let mut row = vec![case.to_string(), count.to_string(), queue.to_string()];
            for (_, config) in engines() {
                let flows: Vec<_> = (0..count)
                    .map(|flow| {
                        let last = flow + 1 == count;
                        let more = if last { more * MS } else { Duration::ZERO };
                        let late = if last { late * SECOND } else { Duration::ZERO };
                        (config, more, late.max(flow * 100 * MS))
                    })
                    .collect();
                row.extend(cells(&path, &flows, window));
            }
            table.row(row);
        }
    }
    table.check();
}

#[test]
fn jains_index_is_between_one_and_its_worst() {
    assert_eq!(jain(&[1.0, 1.0]), 1.0);
    assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
}
