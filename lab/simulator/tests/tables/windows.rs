//! One bulk flow to a receiver whose window is small or that reads slowly.

use tidewall_protocol::tcp::Config;
use tidewall_simulator::link::Loss;
use tidewall_simulator::network::Reading;

use crate::scenario::{MS, PAYLOAD, Path, SECOND, bulk, engines, names};
use crate::table::{Table, head, median, percent};

#[test]
fn windows() {
    let columns = ["of limit", "resent", "timeouts"];
    let head = head(&["window", "reads", "loss%"], &names(), &columns);
    let mut table = Table::new(
        "windows",
        "One bulk flow (1 Gbit/s, round trip 20 ms) to a receiver that decides how fast\n\
         it may be, 5 s. Medians of three seeds.\n\
         \n\
         window    bytes of the receive buffer, which does not grow\n\
         reads     at once, or bytes read at a time / milliseconds between\n\
         of limit  goodput, percent of the smaller of a window a round trip and what is\n\
         \x20         read; windows are announced in steps of a segment, so that a window of\n\
         \x20         a few segments cannot reach all of it\n\
         resent    segments sent again, percent of the packets sent\n\
         timeouts  retransmission timeouts",
        head,
    );
    let slow = |at_once, pause| Reading {
        at_once,
        pause: pause * MS,
    };
    let readers = [
        (2048, None),
        (4096, None),
        (8192, None),
        (16_384, None),
        (65_536, None),
        (262_144, None),
        (65_536, Some((1000, 1))),
        (65_536, Some((16_384, 50))),
        (16_384, Some((500, 5))),
        (4096, Some((100, 1))),
    ];
    for (window, reads) in readers {
        for loss in [0.0, 0.01] {
            let mut path = Path::new(1_000_000_000, 20 * MS);
            path.forward.loss = Loss::Random { probability: loss };
            let time = 5 * SECOND;
            let mut most = f64::from(window) * 50.0;
            let mut name = "at once".to_string();
            if let Some((bytes, pause)) = reads {
                most = most.min(bytes as f64 * 1000.0 / f64::from(pause));
                name = format!("{bytes}/{pause}");
            }
            let most = most * time.as_secs_f64();
            let mut row = vec![window.to_string(), name, format!("{:.0}", loss * 100.0)];
            for (_, config) in engines() {
                let config = Config {
                    receive_buffer: window,
                    receive_buffer_max: window,
                    ..config
                };
                let runs: Vec<[f64; 3]> = (0..3)
                    .map(|seed| {
                        let outcome = bulk(&path, config, time, seed, |setup| {
                            if let Some((bytes, pause)) = reads {
                                setup.reading = slow(bytes, pause);
                            }
                        });
                        let report = outcome.report;
                        let data = (report.uploaded / PAYLOAD + report.retransmissions).max(1);
                        [
                            report.uploaded as f64 / most,
                            report.retransmissions as f64 / data as f64,
                            report.timeouts as f64,
                        ]
                    })
                    .collect();
                let [share, resent, timeouts] = [0, 1, 2]
                    .map(|index| median(&runs.iter().map(|run| run[index]).collect::<Vec<_>>()));
                row.extend([percent(share), percent(resent), timeouts.to_string()]);
            }
            table.row(row);
        }
    }
    table.check();
}
