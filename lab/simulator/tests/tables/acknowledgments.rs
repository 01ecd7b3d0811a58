//! One bulk flow whose acknowledgments are lost, thinned out or delayed.

use tidewall_simulator::link::{Impairment, Loss, Pause, Queue, Thin};

use crate::scenario::{MS, PACKET, Path, SECOND, bulks, engines, names};
use crate::table::{Table, head};

#[test]
fn acknowledgments() {
    let columns = ["goodput", "resent", "timeouts"];
    let head = head(&["way back", "data loss%"], &names(), &columns);
    let mut table = Table::new(
        "acknowledgments",
        "One bulk flow (50 Mbit/s, round trip 20 ms, a queue of a round trip) whose\n\
         acknowledgments do not all arrive, 10 s. Medians of three seeds.\n\
         \n\
         way back  lost N%: at random; one of N: of those within 5 ms, the others are\n\
         \x20         dropped; held: they arrive together afterwards; N kbit/s: of that rate\n\
         \x20         with a queue of ten acknowledgments\n\
         goodput   percent of the payload that the link carries\n\
         resent    segments sent again, percent of the packets sent\n\
         timeouts  retransmission timeouts",
        head,
    );
    let lost = |probability| Impairment {
        loss: Loss::Random { probability },
        ..Impairment::default()
    };
    let thin = |keep_one_of| Impairment {
        thin: Some(Thin {
            keep_one_of,
            within: 5 * MS,
        }),
        ..Impairment::default()
    };
    let held = |length| Impairment {
        pause: Some(Pause {
            every: 10 * MS,
            length: length * MS,
        }),
        ..Impairment::default()
    };
    let slow = |kilobits: u64| Impairment {
        rate: Some(kilobits * 1000),
        queue: Queue {
            limit: Some(520),
            mark: None,
        },
        ..Impairment::default()
    };
    let ways = [
        ("lost 0%", Impairment::default()),
        ("lost 10%", lost(0.1)),
        ("lost 30%", lost(0.3)),
        ("one of 4", thin(4)),
        ("one of 16", thin(16)),
        ("held 9 of 10 ms", held(9)),
        ("200 kbit/s", slow(200)),
        ("50 kbit/s", slow(50)),
    ];
    for (name, back) in ways {
        for loss in [0.0, 0.01] {
            let mut path = Path::new(50_000_000, 20 * MS);
            path.queue = Some(path.product().max(40 * PACKET) as u32);
            path.back = back.clone();
            path.forward.loss = Loss::Random { probability: loss };
            let mut row = vec![name.to_string(), format!("{:.0}", loss * 100.0)];
            for (_, config) in engines() {
                let summary = bulks(&path, config, 10 * SECOND, 3, |_| {});
                row.extend([summary.goodput, summary.resent, summary.timeouts]);
            }
            table.row(row);
        }
    }
    table.check();
}
