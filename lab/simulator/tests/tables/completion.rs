//! How long objects of 100 KB take.

use tidewall_simulator::link::{Impairment, Loss};

use crate::scenario::{MS, Path, completions, engines, names};
use crate::table::{Table, head, median, milliseconds, percent, percentile};

#[test]
fn completion() {
    let columns = ["p50", "p95", "p99", "timeouts%"];
    let head = head(&["rtt", "loss%"], &names(), &columns);
    let mut table = Table::new(
        "completion",
        "Objects of 100 KB one after the other, each on a new connection, over 100 Mbit/s\n\
         that lose data packets at random: 300 a point, of three seeds.\n\
         \n\
         rtt        round trip without queueing, milliseconds\n\
         p50, p95,\n\
         p99        milliseconds from the SYN to the last byte; a lost SYN-ACK costs a second,\n\
         \x20          and happens to one of a hundred at 1% loss\n\
         timeouts%  retransmission timeouts an object, in percent",
        head,
    );
    for round_trip in [1, 10, 100] {
        for loss in [0.0, 0.001, 0.01, 0.03] {
            let path = Path {
                forward: Impairment {
                    loss: Loss::Random { probability: loss },
                    ..Impairment::default()
                },
                ..Path::new(100_000_000, round_trip * MS)
            };
            let mut row = vec![round_trip.to_string(), format!("{:.1}", loss * 100.0)];
            for (_, config) in engines() {
                let (took, timeouts) = completions(&path, config, 100_000, 100, 3);
                row.extend([
                    milliseconds(median(&took)),
                    milliseconds(percentile(&took, 95)),
                    milliseconds(percentile(&took, 99)),
                    percent(timeouts as f64 / took.len() as f64),
                ]);
            }
            table.row(row);
        }
    }
    table.check();
}
