//! One bulk flow over a link that loses packets in bursts.

use tidewall_simulator::link::{Impairment, Loss};

use crate::scenario::{MS, Path, SECOND, US, bulks, engines, names};
use crate::table::{Table, head, percent};

#[test]
fn bursts() {
    let columns = ["goodput", "resent", "recoveries", "timeouts"];
    let head = head(&["loss%", "burst"], &names(), &columns);
    let mut table = Table::new(
        "bursts",
        "One bulk flow over a link that loses all packets of a burst (Gilbert-Elliott): 50\n\
         Mbit/s, round trip 20 ms, a queue of a round trip's worth, 10 s. Medians of three\n\
         seeds.\n\
         \n\
         loss%       packets lost on average\n\
         burst       how long all is lost on average, in packets at the link's rate\n\
         goodput     percent of the payload that the link carries\n\
         resent      segments sent again, percent of the packets sent\n\
         recoveries  times that fast recovery was entered\n\
         timeouts    retransmission timeouts",
        head,
    );
    for loss in [0.001, 0.01, 0.03] {
        for burst in [1u32, 3, 10, 30] {
            let to_good = 1.0 / f64::from(burst);
            let path = Path {
                forward: Impairment {
                    loss: Loss::GilbertElliott {
                        // From the stationary distribution.
                        to_bad: loss * to_good / (1.0 - loss),
                        to_good,
                        loss_good: 0.0,
                        loss_bad: 1.0,
                        // Transmission time of a packet at the link's rate.
                        slot: 240 * US,
                    },
                    ..Impairment::default()
                },
                ..Path::new(50_000_000, 20 * MS)
            };
            let mut row = vec![percent(loss), burst.to_string()];
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
