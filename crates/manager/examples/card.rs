//! Narrows a card's RSS table in a guest of `scripts/kernels`, and waits to be killed. No
//! emulated card takes n-tuple rules, so the steering of a whole port must be refused.

use std::time::Duration;

use tidewall_device::demux::layout::Protocol;
use tidewall_manager::adaptor::{Adaptor, Card};
use tidewall_manager::ethtool::{Narrowed, NtupleRule};
use tidewall_manager::restore::Restorer;

fn main() -> std::io::Result<()> {
    let interface = std::env::args().nth(1).unwrap_or_default();
    let restorer = Restorer::start()?;
    let flow = NtupleRule {
        protocol: Protocol::Udp,
        address: None,
        port: 9,
    };
    match Card::new(&interface, &restorer).steer(flow, 1) {
        Ok(()) => println!("steered"),
        Err(error) => println!("refused: {error}"),
    }
    let _narrowed = Narrowed::without_last(&restorer, &interface)?;
    println!("narrowed");
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}
