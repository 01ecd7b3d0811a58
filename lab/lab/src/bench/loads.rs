//! Parts that most loads share.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tidewall_load::{BlastSpec, LoadSpec, Prefix, SenderKind};

use crate::testbed::{CLIENT_INTERFACE, Config, NOWHERE, SERVER, SERVER_MAC_ADDRESS};

/// Load before measuring begins.
const WARM_UP: Duration = Duration::from_millis(150);
/// Time measured. Counters are sampled every 200 ms.
const WINDOW: Duration = Duration::from_millis(500);
/// The server's address with this port.
pub(crate) fn server(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(SERVER.0), port)
}

/// Returns a blast of LRP's 14-byte packets at `port`.
pub(crate) fn blast(kind: SenderKind, port: u16, rate: Option<u64>) -> BlastSpec {
    BlastSpec {
        interface: Some(CLIENT_INTERFACE.to_owned()),
        destination_mac: Some(SERVER_MAC_ADDRESS),
        rate,
        ..BlastSpec::new(kind, server(port))
    }
}

/// Returns a flood of SYN segments at `port`, from unreachable addresses.
pub(crate) fn flood(kind: SenderKind, port: u16, rate: Option<u64>) -> BlastSpec {
    BlastSpec {
        interface: Some(CLIENT_INTERFACE.to_owned()),
        destination_mac: Some(SERVER_MAC_ADDRESS),
        spoof: Prefix::new(IpAddr::V4(NOWHERE.0), NOWHERE.1).ok(),
        // A repeated source address then uses another port.
        flows: 256,
        rate,
        ..BlastSpec::syn(kind, server(port))
    }
}

/// A load of the usual length.
pub(crate) fn load(config: Config) -> LoadSpec {
    LoadSpec {
        warm_up: WARM_UP,
        cpu: Some(config.client_cpu),
        ..LoadSpec::new(WINDOW)
    }
}

/// Shortens a load of the usual length for a quick run.
pub(crate) fn shorten(load: &mut LoadSpec) {
    if (load.warm_up, load.duration) == (WARM_UP, WINDOW) {
        (load.warm_up, load.duration) = (WARM_UP / 3, WINDOW * 2 / 5);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_comes_from_nowhere() {
        let flood = flood(SenderKind::Frame, 81, Some(400_000));
        flood.check().unwrap();
        assert_eq!(flood.spoof.unwrap().to_string(), "10.78.0.0/16");
    }
}
