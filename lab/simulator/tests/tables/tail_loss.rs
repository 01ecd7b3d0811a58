//! Short objects whose last packets are lost: no later packet reveals it.

use tidewall_simulator::link::{Impairment, Loss};

use crate::scenario::{MS, PAYLOAD, Path, completions, engines, names};
use crate::table::{Table, head, milliseconds};

#[test]
fn tail_loss() {
    let columns = ["ms", "timeouts"];
    let head = head(&["rtt", "segments", "lost"], &names(), &columns);
    let mut table = Table::new(
        "tail_loss",
        "One object on a new connection (100 Mbit/s) whose last packets are lost once: how\n\
         long it takes from the SYN to the last byte. Without a loss that is two round\n\
         trips, and one more beyond the initial window of ten segments.\n\
         \n\
         rtt       round trip, milliseconds\n\
         segments  of the object\n\
         lost      of its last segments\n\
         ms        milliseconds to completion; a tail loss probe (RFC 8985 section 7) comes\n\
         \x20         two round trips after the last segment, a timeout 200 ms and more\n\
         timeouts  retransmission timeouts",
        head,
    );
    for round_trip in [10, 100] {
        for segments in [1u64, 3, 10] {
            for lost in [0, 1, 2, 3, 10] {
                if lost > segments {
                    continue;
                }
                // The server's SYN-ACK is packet 0; the answer begins with 1.
                let last = (segments + 1 - lost..segments + 1).collect();
                let path = Path {
                    forward: Impairment {
                        loss: Loss::Script(last),
                        ..Impairment::default()
                    },
                    ..Path::new(100_000_000, round_trip * MS)
                };
                let mut row = vec![
                    round_trip.to_string(),
                    segments.to_string(),
                    lost.to_string(),
                ];
                for (_, config) in engines() {
                    let (took, timeouts) = completions(&path, config, segments * PAYLOAD, 1, 1);
                    row.extend([milliseconds(took[0]), timeouts.to_string()]);
                }
                table.row(row);
            }
        }
    }
    table.check();
}
