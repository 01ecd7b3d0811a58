//! A path that silently drops long packets.

use tidewall_protocol::tcp::{Config, MtuProbing};
use tidewall_simulator::link::Impairment;

use crate::scenario::{MS, Path, SECOND, bulk, default_engine};
use crate::table::{Table, head, percent};

#[test]
fn black_hole() {
    let columns = ["goodput", "segment", "swallowed", "timeouts"];
    let ways = [
        ("off", MtuProbing::Off),
        ("black hole", MtuProbing::BlackHole),
        ("always", MtuProbing::Always),
    ];
    let names = ways.map(|(name, _)| name);
    let head = head(&["rtt", "mtu"], &names, &columns);
    let mut table = Table::new(
        "black_hole",
        "One bulk flow (20 Mbit/s) from a host whose own MTU is 1500, over a path where\n\
         longer packets vanish without an ICMP error, 30 s: without looking for the path's\n\
         MTU, when segments seem to vanish for their size, and from the beginning (RFC\n\
         4821).\n\
         \n\
         rtt        round trip without queueing, milliseconds\n\
         mtu        of the path\n\
         goodput    percent of the payload that packets of 1500 bytes would carry\n\
         segment    payload of a full segment at the end\n\
         swallowed  packets that vanished\n\
         timeouts   retransmission timeouts",
        head,
    );
    for round_trip in [10, 100] {
        for mtu in [1500, 1492, 1400, 1280, 576] {
            let path = Path {
                forward: Impairment {
                    mtu: Some(mtu),
                    ..Impairment::default()
                },
                ..Path::new(20_000_000, round_trip * MS)
            };
            let mut row = vec![round_trip.to_string(), mtu.to_string()];
            for (_, mtu_probing) in ways {
                let config = Config {
                    mtu_probing,
                    ..default_engine()
                };
                let outcome = bulk(&path, config, 30 * SECOND, 0, |_| {});
                let client = outcome.report.client.expect("it never closes");
                row.extend([
                    percent(outcome.share),
                    client.send_mss.to_string(),
                    outcome.forward.oversized.to_string(),
                    outcome.report.timeouts.to_string(),
                ]);
            }
            table.row(row);
        }
    }
    table.check();
}
