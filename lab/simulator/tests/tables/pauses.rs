//! A path on which nothing arrives for a while, and then everything: every retransmission
//! is in vain.

use tidewall_simulator::link::{Impairment, Pause};

use crate::scenario::{MS, Path, SECOND, bulks, engines, names};
use crate::table::{Table, head};

#[test]
fn pauses() {
    let columns = ["goodput", "resent", "recoveries", "timeouts"];
    let head = head(&["rtt", "pause"], &names(), &columns);
    let mut table = Table::new(
        "pauses",
        "One bulk flow (20 Mbit/s, a queue of four round trips) on a path where nothing\n\
         arrives for a while every two seconds, and then everything in order: nothing is\n\
         lost but what the queue drops. 10 s, medians of three seeds.\n\
         \n\
         rtt         round trip without queueing, milliseconds\n\
         pause       how long nothing arrives, milliseconds\n\
         goodput     percent of the payload that the link carries\n\
         resent      segments sent again, percent of the packets sent: in vain\n\
         recoveries  times that fast recovery was entered\n\
         timeouts    retransmission timeouts; those that turn out to be spurious should\n\
         \x20           cost no window (F-RTO, RFC 5682; Eifel, RFC 3522)",
        head,
    );
    for round_trip in [10, 50] {
        for pause in [0, 50, 200, 500, 1000] {
            let mut path = Path::new(20_000_000, round_trip * MS);
            path.queue = Some(path.product() as u32 * 4);
            path.forward = Impairment {
                pause: Some(Pause {
                    every: 2 * SECOND,
                    length: pause * MS,
                }),
                ..Impairment::default()
            };
            let mut row = vec![round_trip.to_string(), pause.to_string()];
            for (_, config) in engines() {
                let summary = bulks(&path, config, 10 * SECOND, 3, |_| {});
                row.extend([
                    summary.goodput,
                    summary.resent,
                    summary.recoveries,
                    summary.timeouts,
                ]);
            }
            table.row(row);
        }
    }
    table.check();
}
