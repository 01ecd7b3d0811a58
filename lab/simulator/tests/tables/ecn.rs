//! A bottleneck that marks packets before it must drop them.

use tidewall_protocol::tcp::{Config, Ecn};
use tidewall_simulator::link::{Impairment, Queue};

use crate::scenario::{MS, Path, SECOND, bulks, engines};
use crate::table::{Table, head};

#[test]
fn ecn() {
    let columns = ["goodput", "marked%", "resent", "mean", "p99"];
    let engines: Vec<(String, Config)> = engines()
        .into_iter()
        .map(|(name, config)| {
            let asks = Config {
                ecn: Ecn::Active,
                ..config
            };
            (format!("{name}+ecn"), asks)
        })
        .collect();
    let names: Vec<&str> = engines.iter().map(|(name, _)| &name[..]).collect();
    let head = head(&["rtt", "mark"], &names, &columns);
    let mut table = Table::new(
        "ecn",
        "One bulk flow on a bottleneck of 20 Mbit/s with a queue of two round trips, 20 s,\n\
         that marks packets of senders capable of ECN (RFC 3168) when they find so much\n\
         waiting; the sender asks for it. Medians of three seeds.\n\
         \n\
         rtt        round trip without queueing, milliseconds\n\
         mark       what must wait, in round trips at the link's rate; -: marks nothing\n\
         goodput    percent of the payload that the link carries\n\
         marked%    packets marked\n\
         resent     segments sent again, percent of the packets sent\n\
         mean, p99  milliseconds that a packet waited",
        head,
    );
    for round_trip in [10, 50] {
        for (name, quarters) in [
            ("-", None),
            ("1", Some(4)),
            ("0.5", Some(2)),
            ("0.25", Some(1)),
        ] {
            let mut path = Path::new(20_000_000, round_trip * MS);
            let product = path.product() as u32;
            path.queue = Some(product * 2);
            path.forward = Impairment {
                queue: Queue {
                    limit: None,
                    mark: quarters.map(|quarters| product * quarters / 4),
                },
                ..Impairment::default()
            };
            let mut row = vec![round_trip.to_string(), name.to_string()];
            for (_, config) in &engines {
                let summary = bulks(&path, *config, 20 * SECOND, 3, |_| {});
                row.extend([
                    summary.goodput,
                    summary.marked,
                    summary.resent,
                    summary.wait,
                    summary.wait_most,
                ]);
            }
            table.row(row);
        }
    }
    table.check();
}
