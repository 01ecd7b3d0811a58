//! The effect of pacing in front of shallow queues.

use tidewall_protocol::tcp::Config;

use crate::scenario::{MS, Path, SECOND, bulks, completions, engines};
use crate::table::{Table, head, milliseconds, percentile};

#[test]
fn pacing() {
    let engines: Vec<(String, Config)> = engines()
        .into_iter()
        .flat_map(|(name, config)| {
            let paces = Config {
                pacing: true,
                ..config
            };
            [
                (name.to_string(), config),
                (format!("{name}+pacing"), paces),
            ]
        })
        .collect();
    let names: Vec<&str> = engines.iter().map(|(name, _)| &name[..]).collect();
    let columns = ["goodput", "dropped%", "mean", "p50", "p99"];
    let head = head(&["rtt", "packets"], &names, &columns);
    let mut table = Table::new(
        "pacing",
        "A bottleneck of 100 Mbit/s whose queue is short, and senders that leave a window\n\
         in bursts or evenly over the round trip: one bulk flow for 3 s, and 100 objects\n\
         of 100 KB one after the other. Medians of three seeds, percentiles of all.\n\
         \n\
         rtt       round trip without queueing, milliseconds\n\
         packets   what the queue holds\n\
         goodput   of the bulk, percent of the payload that the link carries\n\
         dropped%  packets of it that the queue dropped\n\
         mean      milliseconds that a packet of it waited\n\
         p50, p99  of an object, milliseconds from the SYN to the last byte",
        head,
    );
    for round_trip in [5, 20] {
        for packets in [10, 30, 100] {
            let mut path = Path::new(100_000_000, round_trip * MS);
            path.queue = Some(packets * 1500);
            let mut row = vec![round_trip.to_string(), packets.to_string()];
            for (_, config) in &engines {
                let summary = bulks(&path, *config, 3 * SECOND, 3, |_| {});
                let (took, _) = completions(&path, *config, 100_000, 100, 1);
                row.extend([
                    summary.goodput,
                    summary.dropped,
                    summary.wait,
                    milliseconds(percentile(&took, 50)),
                    milliseconds(percentile(&took, 99)),
                ]);
            }
            table.row(row);
        }
    }
    table.check();
}
