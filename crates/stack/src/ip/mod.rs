//! IP: routes, path MTUs, fragments, and the frames that are sent.
//!
//! Lives here: the choice between a frame of the stack and the kernel socket (`routes`),
//! path MTUs (`path_mtu`), reassembly (`fragments`), and transmission (`transmit`).
//!
//! Does not live here: packet formats (tidewall-wire), the protocols above IP.
//!
//! Read first: `routes`.

pub mod fragments;
pub mod path_mtu;
pub mod recent;
pub mod routes;
pub mod transmit;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use tidewall_device::demux::layout::{Kind, Metadata};
use tidewall_device::frame::Frame;
use tidewall_protocol::{InputOptions, tcp, udp};
use tidewall_receive::poller::{Channel, Shared};

use crate::channel_frame::ChannelFrame;
use crate::core::Core;
use crate::lock::{Mutex, lock, rank};
use fragments::Fragments;
use path_mtu::KernelIcmp;
use routes::{Route, Routes};

/// Largest number of waiting frames with fragments.
pub const FRAGMENT_LIMIT: u32 = 256;

/// IP of one stack.
pub struct Ip {
    /// Routes and neighbours.
    pub routes: Mutex<Routes, rank::Leaf>,
    /// Reports path MTUs to the kernel. `None` if the kernel has no routes for this
    /// device or the privilege is missing.
    pub kernel_icmp: Option<KernelIcmp>,
    /// Fragments of datagrams that are not complete.
    pub fragments: Mutex<Fragments, rank::Leaf>,
    /// The options for parsing received packets.
    pub input_options: InputOptions,
}

impl Ip {
    /// Creates the state of IP. `fragment_channels`: each queue's channel for fragments
    /// without a transport header. `reports_mtu`: the kernel is notified of path MTUs.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW.
    pub fn new(
        routes: Routes,
        fragment_channels: Vec<Channel>,
        input_options: InputOptions,
        reports_mtu: bool,
    ) -> io::Result<Self> {
        Ok(Ip {
            routes: Mutex::new(routes),
            kernel_icmp: reports_mtu.then(KernelIcmp::open).transpose()?,
            fragments: Mutex::new(Fragments::new(fragment_channels)),
            input_options,
        })
    }

    /// Returns the way to send to `destination`, as [`Routes::find`] does.
    pub fn route(&self, destination: SocketAddr, source: Option<IpAddr>, named: bool) -> Route {
        lock(&self.routes).find(destination.ip(), source, named, Instant::now())
    }

    /// Returns an address as sockets show it: a link-local one names its link.
    pub fn scoped(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V6(mut v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
                v6.set_scope_id(lock(&self.routes).interface());
                v6.into()
            }
            _ => address,
        }
    }

    /// The protocol's checks alone, for the softirq of host architectures.
    pub fn verify(&self, core: &Core, shared: &Shared, frame: &Frame, metadata: &Metadata) -> bool {
        if metadata.kind() != Some(Kind::Datagram) {
            return true;
        }
        let mut joined = Vec::new();
        let described = ChannelFrame::whole(shared, frame, &mut joined);
        let (bytes, transport) = (
            described.packet().unwrap_or_default(),
            described.transport(),
        );
        let checked = if metadata.protocol == libc::IPPROTO_TCP as u8 {
            tcp::input(bytes, transport, &self.input_options).map(drop)
        } else {
            udp::input(bytes, transport, &self.input_options).map(drop)
        };
        match checked {
            Ok(()) => true,
            Err(cause) => {
                core.causes.protocol(cause);
                false
            }
        }
    }
}
