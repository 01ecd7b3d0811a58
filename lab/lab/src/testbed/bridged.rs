//! The test bed with a namespace in the middle, for a bridge that impairs what
//! it forwards.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::Context;
use tidewall_wire::ethernet::MacAddress;

use super::{
    CLIENT, CLIENT_INTERFACE, CLIENT_MAC_ADDRESS, SERVER, SERVER_INTERFACE, SERVER_MAC_ADDRESS,
    Testbed, set_up,
};
use crate::command::run_line;

/// Interface of the second server.
pub const RIVAL_INTERFACE: &str = "tw-r";
/// Its addresses.
pub const RIVAL: (Ipv4Addr, Ipv6Addr) = (
    Ipv4Addr::new(10, 77, 0, 3),
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 3),
);
/// Its Ethernet address.
pub const RIVAL_MAC_ADDRESS: MacAddress = MacAddress([0x02, 0x77, 0, 0, 0, 3]);
/// In the middle: the other end of the client's interface.
pub const MIDDLE_CLIENT: &str = "tw-ma";
/// In the middle: the other end of the server's interface.
pub const MIDDLE_SERVER: &str = "tw-mb";
/// In the middle: the other end of the second server's interface.
pub const MIDDLE_RIVAL: &str = "tw-mr";

/// The further namespaces of such a test bed.
#[derive(Clone, Debug)]
pub(super) struct Bridged {
    pub(super) middle: String,
    pub(super) rival: String,
}

impl Bridged {
    pub(super) fn namespaces(&self) -> [&String; 2] {
        [&self.middle, &self.rival]
    }
}

/// An expert's settings for one flow over a long path: buffers that may grow beyond any
/// bandwidth-delay product here. And no memory of earlier connections, which would give
/// the second of two runs what the first had to learn. The sockets choose the congestion
/// control themselves.
const SYSCTLS: [(&str, &str); 4] = [
    ("tcp_rmem", "4096 131072 33554432"),
    ("tcp_wmem", "4096 87040 33554432"),
    ("tcp_no_metrics_save", "1"),
    ("tcp_tw_reuse", "1"),
];

impl Testbed {
    /// Returns the namespace in the middle.
    ///
    /// # Errors
    /// An error if the test bed was built without it.
    pub fn middle(&self) -> anyhow::Result<&str> {
        let bridged = self.bridged.as_ref();
        Ok(&bridged.context("this test bed has no bridge")?.middle)
    }

    /// Returns the second server's namespace.
    ///
    /// # Errors
    /// An error if the test bed was built without it.
    pub fn rival(&self) -> anyhow::Result<&str> {
        let bridged = self.bridged.as_ref();
        Ok(&bridged.context("this test bed has no second server")?.rival)
    }

    pub(super) fn build_bridged(&self, ip: &str, bridged: &Bridged) -> anyhow::Result<()> {
        let client = (CLIENT, CLIENT_MAC_ADDRESS);
        let server = (SERVER, SERVER_MAC_ADDRESS);
        let rival = (RIVAL, RIVAL_MAC_ADDRESS);
        let hosts = [
            (
                &self.client,
                CLIENT_INTERFACE,
                MIDDLE_CLIENT,
                client,
                vec![server, rival],
            ),
            (
                &self.server,
                SERVER_INTERFACE,
                MIDDLE_SERVER,
                server,
                vec![client],
            ),
            (
                &bridged.rival,
                RIVAL_INTERFACE,
                MIDDLE_RIVAL,
                rival,
                vec![client],
            ),
        ];
        for (namespace, interface, other, (addresses, mac), peers) in hosts {
            let (inside, queues) = (&bridged.middle, self.queues());
            run_line(&format!(
                "{ip} -n {namespace} link add {interface} address {mac} {queues} \
                 type veth peer name {other} netns {inside} {queues}"
            ))?;
            set_up(ip, namespace, interface, addresses, &peers)?;
            run_line(&format!(
                "{ip} -n {inside} link set {other} addrgenmode none"
            ))?;
            run_line(&format!("{ip} -n {inside} link set {other} up"))?;
            // Frames across the bridge are those of a wire: segments of the MTU with
            // their checksums.
            for (namespace, interface) in [(namespace, interface), (&bridged.middle, other)] {
                let off = "tx off tso off gso off gro off";
                let script = format!("ethtool -K {interface} {off}");
                self.inside(namespace, &["sh", "-ec", &script])?;
            }
            for (name, value) in SYSCTLS {
                let script = format!("echo {value} > /proc/sys/net/ipv4/{name}");
                self.inside(namespace, &["sh", "-ec", &script])
                    .with_context(|| format!("net.ipv4.{name} = {value}"))?;
            }
        }
        Ok(())
    }
}
