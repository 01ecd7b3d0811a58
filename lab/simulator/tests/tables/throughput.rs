//! One bulk flow: loss, delay, rate.

use tidewall_simulator::link::{Impairment, Loss};

use crate::scenario::{MS, Path, SECOND, bulks, engines, mathis, names};
use crate::table::{Table, head, percent, rate};

#[test]
fn throughput() {
    let columns = ["goodput", "resent", "timeouts"];
    let head = head(&["rate", "rtt", "loss%", "law"], &names(), &columns);
    let mut table = Table::new(
        "throughput",
        "One bulk flow over a link that loses packets at random. Medians of three seeds;\n\
         10 s at 10 Mbit/s, 5 s at 100 Mbit/s and at a round trip of 100 ms, 1 s at the\n\
         rest of 1 Gbit/s. The queue holds a round trip's worth, 20 packets at\n\
         least.\n\
         \n\
         rtt       round trip without queueing, milliseconds\n\
         law       1.22 * MSS / (rtt * sqrt(loss)) (Mathis et al. 1997), at most the link;\n\
         \x20         NewReno comes close where timeouts are rare, CUBIC may do better\n\
         goodput   percent of the payload that the link carries\n\
         resent    segments sent again, percent of the packets sent\n\
         timeouts  retransmission timeouts",
        head,
    );
    for bits in [10_000_000, 100_000_000, 1_000_000_000] {
        for round_trip in [1, 10, 100] {
            let time = match (bits, round_trip) {
                (10_000_000, _) => 10 * SECOND,
                (100_000_000, _) | (_, 100) => 5 * SECOND,
                _ => SECOND,
            };
            for loss in [0.0, 0.001, 0.01, 0.03] {
                let path = Path {
                    forward: Impairment {
                        loss: Loss::Random { probability: loss },
                        ..Impairment::default()
                    },
                    ..Path::new(bits, round_trip * MS)
                };
                let law = mathis(loss, path.round_trip) * time.as_secs_f64();
                let mut row = vec![
                    rate(bits),
                    round_trip.to_string(),
                    format!("{:.1}", loss * 100.0),
                    percent((law / path.capacity(time)).min(1.0)),
                ];
                for (_, config) in engines() {
                    // Without losses there are no random draws.
                    let seeds = if loss == 0.0 { 1 } else { 3 };
                    let summary = bulks(&path, config, time, seeds, |_| {});
                    row.extend([summary.goodput, summary.resent, summary.timeouts]);
                }
                table.row(row);
            }
        }
    }
    table.check();
}
