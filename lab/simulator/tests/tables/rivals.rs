//! Two flows of different engines on one bottleneck.

use std::time::Duration;

use crate::fairness::shares;
use crate::scenario::{MS, Path, SECOND, engines};
use crate::table::{Table, head, median, percent, rate};

#[test]
fn rivals() {
    let places = ["rate", "rtt", "queue", "first", "second"];
    let head = head(&places, &["goodput"], &["first", "second"]);
    let mut table = Table::new(
        "rivals",
        "Two bulk flows of different engines on one bottleneck, measured from 10 s to 30\n\
         s; the second begins 100 ms after the first. Medians of three seeds.\n\
         \n\
         rtt      round trip without queueing, milliseconds\n\
         queue    of the bottleneck, in round trips\n\
         goodput  percent of the payload that the link carries; CUBIC is to take as much\n\
         \x20        as NewReno where that does well (RFC 9438 section 4.3), and more where\n\
         \x20        the path is long and fast",
        head,
    );
    let engines = engines();
    let window = (10 * SECOND, 30 * SECOND);
    for (bits, round_trip) in [(10_000_000, 20), (20_000_000, 50)] {
        for queue in [1, 4] {
            let mut path = Path::new(bits, round_trip * MS);
            path.queue = Some(path.product() as u32 * queue);
            for &(first, first_config) in &engines {
                for &(second, second_config) in &engines {
                    if first == second {
                        continue;
                    }
                    let flows = [
                        (first_config, Duration::ZERO, Duration::ZERO),
                        (second_config, Duration::ZERO, 100 * MS),
                    ];
                    let runs: Vec<Vec<f64>> = (0..3)
                        .map(|seed| shares(&path, &flows, window, seed))
                        .collect();
                    let of = |flow: usize| {
                        let shares: Vec<f64> = runs.iter().map(|run| run[flow]).collect();
                        percent(median(&shares))
                    };
                    table.row(vec![
                        rate(bits),
                        round_trip.to_string(),
                        queue.to_string(),
                        first.to_string(),
                        second.to_string(),
                        of(0),
                        of(1),
                    ]);
                }
            }
        }
    }
    table.check();
}
