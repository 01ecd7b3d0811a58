//! Short flows beside bulk flows of the same engine.

use tidewall_simulator::network::Network;

use crate::scenario::{BULK, MS, Path, SECOND, US, engines, names, objects, report, run};
use crate::table::{Table, head, median, milliseconds, percent, percentile};
use tidewall_simulator::link::Impairment;
use tidewall_simulator::network::Setup;

#[test]
fn mixed() {
    let columns = ["p50", "p99", "goodput"];
    let head = head(&["queue", "bulks", "object"], &names(), &columns);
    let mut table = Table::new(
        "mixed",
        "Objects one after the other, each on a new connection, beside bulk flows of the\n\
         same direction: 20 Mbit/s, round trip 20 ms, from 3 s to 23 s. Of three seeds.\n\
         \n\
         queue     of the bottleneck, in round trips\n\
         bulks     bulk flows\n\
         object    bytes\n\
         p50, p99  milliseconds from the SYN to the last byte\n\
         goodput   of the bulk flows, percent of the payload that the link carries",
        head,
    );
    for queue in [1, 4] {
        for bulks in [0, 1, 4] {
            for bytes in [10_000, 100_000] {
                let mut path = Path::new(20_000_000, 20 * MS);
                path.queue = Some(path.product() as u32 * queue);
                let mut row = vec![queue.to_string(), bulks.to_string(), bytes.to_string()];
                for (_, config) in engines() {
                    let (mut took, mut shares) = (Vec::new(), Vec::new());
                    for seed in 0..3 {
                        let mut network = Network::new(seed);
                        let (forward, back) = path.build(&mut network);
                        let mut access = || {
                            network.link(Impairment {
                                jitter: 100 * US,
                                ..Impairment::default()
                            })
                        };
                        let ways: Vec<_> = (0..=bulks).map(|_| access()).collect();
                        let what = format!("{path:?}, {bulks} bulks, seed {seed}");
                        let mut flows = Vec::new();
                        for &way in &ways[1..] {
                            flows.push(network.flow(Setup {
                                forward: vec![way, forward],
                                ..Setup::new(config, forward, back, BULK)
                            }));
                        }
                        // The server's data takes the path of the bulk.
                        let short = network.flow(Setup {
                            forward: vec![back],
                            back: vec![ways[0], forward],
                            start: 3 * SECOND,
                            ..Setup::new(config, back, forward, objects(bytes, u32::MAX))
                        });
                        let read = |network: &Network| -> u64 {
                            let flows = flows.iter();
                            flows.map(|&flow| report(network, flow).uploaded).sum()
                        };
                        run(&mut network, 3 * SECOND, &what);
                        let before = read(&network);
                        run(&mut network, 23 * SECOND, &what);
                        let gained = (read(&network) - before) as f64;
                        shares.push(gained / path.capacity(20 * SECOND));
                        took.extend(report(&network, short).completions);
                    }
                    row.extend([
                        milliseconds(median(&took)),
                        milliseconds(percentile(&took, 99)),
                        percent(median(&shares)),
                    ]);
                }
                table.row(row);
            }
        }
    }
    table.check();
}
