//! One bulk flow from a host whose device takes bursts, or has a queue that
//! refuses.

use tidewall_protocol::tcp::Config;
use tidewall_simulator::link::{Impairment, Loss};

use crate::scenario::{MS, Path, SECOND, bulk, engines, names};
use crate::table::{Table, head, median, percent};

#[test]
fn device() {
    let columns = ["goodput", "resent", "refused"];
    let head = head(&["offload", "queue", "loss%"], &names(), &columns);
    let mut table = Table::new(
        "device",
        "One bulk flow that leaves by a device of 200 Mbit/s toward a bottleneck of 50\n\
         Mbit/s (round trip 20 ms, a queue of a round trip), 5 s. Medians of three seeds.\n\
         \n\
         offload  bytes that the device cuts into segments; 0: none\n\
         queue    bytes that the device takes before it refuses; -: any\n\
         goodput  percent of the payload that the bottleneck carries\n\
         resent   segments sent again, percent of the packets sent\n\
         refused  times that the device had no room",
        head,
    );
    for offload in [0, 16_384, 65_536] {
        for queue in [None, Some(3000), Some(30_000)] {
            for loss in [0.0, 0.01] {
                let mut path = Path::new(50_000_000, 20 * MS);
                path.access = Some(Impairment {
                    rate: Some(200_000_000),
                    ..Impairment::default()
                });
                path.forward.loss = Loss::Random { probability: loss };
                let queue_name = queue.map_or("-".to_string(), |queue: u32| queue.to_string());
                let mut row = vec![
                    offload.to_string(),
                    queue_name,
                    format!("{:.0}", loss * 100.0),
                ];
                for (_, config) in engines() {
                    let config = Config { offload, ..config };
                    let runs: Vec<[f64; 3]> = (0..3)
                        .map(|seed| {
                            let time = 5 * SECOND;
                            let outcome = bulk(&path, config, time, seed, |setup| {
                                setup.device_queue = queue;
                            });
                            let report = outcome.report;
                            [
                                outcome.share,
                                report.retransmissions as f64 / outcome.forward.sent as f64,
                                report.refusals as f64,
                            ]
                        })
                        .collect();
                    let [share, resent, refused] = [0, 1, 2].map(|index| {
                        median(&runs.iter().map(|run| run[index]).collect::<Vec<_>>())
                    });
                    row.extend([percent(share), percent(resent), refused.to_string()]);
                }
                table.row(row);
            }
        }
    }
    table.check();
}
