//! One bulk flow and the queue that it maintains.

use crate::scenario::{MS, Path, SECOND, bulks, engines, names};
use crate::table::{Table, head};

#[test]
fn queue() {
    let columns = ["goodput", "dropped%", "mean", "p99"];
    let head = head(&["rtt", "queue"], &names(), &columns);
    let mut table = Table::new(
        "queue",
        "One bulk flow on a bottleneck of 20 Mbit/s whose queue is shallow or deep, 20 s:\n\
         what it gets, and how long packets wait. Medians of three seeds.\n\
         \n\
         rtt        round trip without queueing, milliseconds\n\
         queue      how much may wait, in round trips at the link's rate\n\
         goodput    percent of the payload that the link carries\n\
         dropped%   packets that the queue dropped\n\
         mean, p99  milliseconds that a packet waited",
        head,
    );
    for round_trip in [10, 50] {
        for (name, quarters) in [("0.25", 1), ("0.5", 2), ("1", 4), ("2", 8), ("10", 40)] {
            let mut path = Path::new(20_000_000, round_trip * MS);
            path.queue = Some((path.product() * quarters / 4) as u32);
            let mut row = vec![round_trip.to_string(), name.to_string()];
            for (_, config) in engines() {
                let summary = bulks(&path, config, 20 * SECOND, 3, |_| {});
                row.extend([
                    summary.goodput,
                    summary.dropped,
                    summary.wait,
                    summary.wait_most,
                ]);
            }
            table.row(row);
        }
    }
    table.check();
}
