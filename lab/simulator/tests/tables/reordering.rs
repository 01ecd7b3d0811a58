//! One bulk flow whose packets overtake each other or arrive twice.

use tidewall_simulator::link::{Impairment, Reorder};

use crate::scenario::{MS, Path, SECOND, bulks, engines, names};
use crate::table::{Table, head, percent};

#[test]
fn reordering() {
    let columns = ["goodput", "resent", "recoveries", "timeouts"];
    let head = head(&["reordered%", "by-ms", "twice%"], &names(), &columns);
    let mut table = Table::new(
        "reordering",
        "One bulk flow over a link that reorders and duplicates but loses nothing: 50\n\
         Mbit/s, round trip 20 ms, a queue of a round trip's worth, 5 s. Medians of three\n\
         seeds.\n\
         \n\
         reordered%  packets that are held back, by up to by-ms milliseconds\n\
         twice%      packets that arrive twice\n\
         goodput     percent of the payload that the link carries\n\
         resent      segments sent again, percent of the packets sent; what the queue did\n\
         \x20           not drop was sent again in vain\n\
         recoveries  times that fast recovery was entered\n\
         timeouts    retransmission timeouts",
        head,
    );
    let points = [
        (0.0, 0, 0.0),
        (0.001, 1, 0.0),
        (0.001, 5, 0.0),
        (0.001, 20, 0.0),
        (0.01, 1, 0.0),
        (0.01, 5, 0.0),
        (0.01, 20, 0.0),
        (0.1, 1, 0.0),
        (0.1, 5, 0.0),
        (0.1, 20, 0.0),
        (0.0, 0, 0.01),
        (0.0, 0, 0.1),
        (0.01, 5, 0.01),
    ];
    for (probability, by, twice) in points {
        let path = Path {
            forward: Impairment {
                reorder: Reorder {
                    probability,
                    delay: by * MS,
                },
                duplicate: twice,
                ..Impairment::default()
            },
            ..Path::new(50_000_000, 20 * MS)
        };
        let mut row = vec![percent(probability), by.to_string(), percent(twice)];
        for (_, config) in engines() {
            let summary = bulks(&path, config, 5 * SECOND, 3, |_| {});
            row.extend([
                summary.goodput,
                summary.resent,
                summary.recoveries,
                summary.timeouts,
            ]);
        }
        table.row(row);
    }
    table.check();
}
