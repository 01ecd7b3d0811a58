//! Path MTU discovery of UDP sockets: which datagrams are too long for their
//! path, and what becomes of them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidewall_protocol::icmp::{FlowError, MTU_MIN_V4, MTU_MIN_V6};
use tidewall_protocol::udp::{HEADERS_V4, HEADERS_V6};
use tidewall_wire::ethernet::HEADER_LEN;

use super::UdpSocket;
use super::inner::{SocketInner, same};
use crate::udp::reservation::PortReservation;
use tidewall_stack::address::{canonical, specified};
use tidewall_stack::core::Core;
use tidewall_stack::ip::routes::Route;
use tidewall_stack::lock::lock;

/// How often a socket that sends long datagrams and receives nothing looks whether
/// routers have said something about them.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a socket does about the MTUs of paths (IP_MTU_DISCOVER and
/// IPV6_MTU_DISCOVER, with Linux's meanings and numbers). Those that send IPv4
/// without don't-fragment do it through the kernel's socket, at its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum MtuDiscover {
    /// IP_PMTUDISC_DONT: datagrams too long for the path are sent in fragments;
    /// over IPv4 routers may cut others further.
    Dont = 0,
    /// IP_PMTUDISC_WANT, the default: datagrams too long for the path are sent in
    /// fragments, all others with don't-fragment.
    #[default]
    Want = 1,
    /// IP_PMTUDISC_DO: don't-fragment always; EMSGSIZE for what is too long for
    /// the path.
    Do = 2,
    /// IP_PMTUDISC_PROBE: don't-fragment always; EMSGSIZE only for what is too
    /// long for the interface. For those who discover the path MTU themselves, as
    /// QUIC does (RFC 8899).
    Probe = 3,
    /// IP_PMTUDISC_INTERFACE: never don't-fragment, never fragments from here;
    /// nobody's reports are believed.
    Interface = 4,
    /// IP_PMTUDISC_OMIT: as `Interface`, but in fragments where the interface
    /// needs them.
    Omit = 5,
}

impl MtuDiscover {
    const ALL: [MtuDiscover; 6] = [
        Self::Dont,
        Self::Want,
        Self::Do,
        Self::Probe,
        Self::Interface,
        Self::Omit,
    ];

    /// The manner of that number.
    pub(super) fn of(number: u8) -> Self {
        let found = Self::ALL.get(usize::from(number));
        found.copied().unwrap_or_default()
    }

    /// True for what is neither cut nor sent when it is too long, here.
    pub(super) fn refuses(self) -> bool {
        matches!(self, Self::Do | Self::Probe)
    }

    /// Over IPv4 its datagrams have no don't-fragment, so they need an
    /// identification, which the kernel gives.
    fn is_kernels(self) -> bool {
        matches!(self, Self::Dont | Self::Interface | Self::Omit)
    }

    /// Longest IP datagram, where that is the route's.
    fn limit(self, route: usize) -> usize {
        match self {
            Self::Dont | Self::Want | Self::Do => route,
            Self::Probe | Self::Interface | Self::Omit => usize::MAX,
        }
    }
}

/// Bytes of the IP datagram with so many bytes of payload.
pub(super) fn datagram_length(destination: SocketAddr, payload: usize) -> usize {
    let headers = match destination {
        SocketAddr::V4(_) => HEADERS_V4,
        SocketAddr::V6(_) => HEADERS_V6,
    };
    payload + headers - HEADER_LEN
}

/// Whether the kernel would send a datagram whole over a path that does not take it. An
/// application of a manager's cannot have it know of the path; over IPv4 routers cut what
/// it sends, over IPv6 it cuts only what is too long for the interface (`widest`), too.
pub(super) fn is_lost_in_kernel(
    core: &Core,
    destination: SocketAddr,
    length: usize,
    path: usize,
    widest: usize,
) -> bool {
    core.ip.kernel_icmp.is_none() && destination.is_ipv6() && (path + 1..=widest).contains(&length)
}

/// When a socket last looked for errors about what it sent.
#[derive(Debug)]
pub(super) struct ErrorLook {
    /// Nanoseconds since the stack started.
    at: AtomicU64,
    /// Datagrams that it had received.
    received: AtomicU64,
    /// Bytes of the narrowest path over IPv6 that the kernel's socket was held to.
    narrowest: AtomicU32,
}

impl Default for ErrorLook {
    fn default() -> Self {
        ErrorLook {
            at: AtomicU64::new(0),
            received: AtomicU64::new(0),
            narrowest: AtomicU32::new(u32::MAX),
        }
    }
}

impl SocketInner {
    /// What it does about path MTUs.
    pub(super) fn mtu_discover(&self) -> MtuDiscover {
        MtuDiscover::of(self.options.mtu_discover.load(Ordering::Relaxed))
    }

    /// Whether a datagram of so many bytes may go in a frame of our own, by a
    /// route that allows `mtu`.
    pub(super) fn fits(&self, destination: SocketAddr, length: usize, mtu: usize) -> bool {
        let manner = self.mtu_discover();
        let is_kernels = manner.is_kernels() && destination.is_ipv4() && self.reservation.is_some();
        length <= manner.limit(mtu) && !is_kernels
    }

    /// Hears of path MTUs on behalf of an application that only sends: errors wait
    /// in channels, which nobody empties then.
    pub(super) fn look_for_errors(&self, core: &Core, destination: SocketAddr, length: usize) {
        let any = match destination {
            SocketAddr::V4(_) => MTU_MIN_V4,
            SocketAddr::V6(_) => MTU_MIN_V6,
        };
        if length <= any as usize {
            return;
        }
        let now = core.now().as_nanos() as u64;
        let look = &self.error_look;
        if now.saturating_sub(look.at.load(Ordering::Relaxed)) < LOOK_EVERY.as_nanos() as u64 {
            return;
        }
        look.at.store(now, Ordering::Relaxed);
        let received = self.counts.received.load(Ordering::Relaxed);
        if look.received.swap(received, Ordering::Relaxed) == received {
            // What a poll may fail of, receiving reports.
            let _ = core.receiver.round(core, false);
            self.copy_waiting(core);
        }
    }

    /// Has the kernel's socket send what is too long for a path as far as an application
    /// without privileges can: over IPv4 routers may cut it, over IPv6 what is cut here is cut
    /// to what the narrowest path of this socket's allows.
    fn keep_kernel_within(&self, core: &Core, destination: IpAddr, bytes: usize) {
        let Some(reservation) = &self.reservation else {
            return;
        };
        let done = match destination {
            IpAddr::V4(_) if self.mtu_discover() == MtuDiscover::Want => {
                reservation.set_mtu_discover(MtuDiscover::Dont as u8)
            }
            IpAddr::V4(_) => Ok(()),
            IpAddr::V6(_) => {
                let bytes = (bytes as u32).max(MTU_MIN_V6);
                let before = self
                    .error_look
                    .narrowest
                    .fetch_min(bytes, Ordering::Relaxed);
                reservation.set_v6(libc::IPV6_MTU, before.min(bytes) as i32)
            }
        };
        if let Err(error) = done {
            core.netdev.warn(format!(
                "{}: datagrams that are too long for their path are lost: {error}",
                core.netdev.name
            ));
        }
    }

    /// An ICMP error about one of our datagrams, whose message is `datagram`. False
    /// if it is forged.
    pub(super) fn icmp_error(&self, core: &Core, error: &FlowError, datagram: &[u8]) -> bool {
        let manner = self.mtu_discover();
        let is_peers = self.peer().is_some_and(|peer| same(peer, error.remote));
        let about_size = error.errno == libc::EMSGSIZE;
        if about_size && !matches!(manner, MtuDiscover::Interface | MtuDiscover::Omit) {
            let (remote, local) = (error.remote.ip(), error.local.ip());
            // A router that does not know MTUs (RFC 1191 §5): the kernel guesses.
            let bytes = error.mtu.map_or(0, |mtu| mtu as usize);
            let reported = lock(&core.ip.routes).report_mtu(remote, local, bytes, Instant::now());
            match (reported, &core.ip.kernel_icmp) {
                (None, _) => return false,
                (Some(true), Some(kernel)) => {
                    if let Err(error) = kernel.put(datagram, local) {
                        core.netdev.warn(format!(
                            "{}: the kernel does not hear of path MTUs: {error}",
                            core.netdev.name
                        ));
                    }
                    if is_peers && let Some(reservation) = &self.reservation {
                        // Reported below; once is enough.
                        let _ = reservation.take_error();
                    }
                }
                // Its manager's application may not put anything to it.
                (Some(true), None) => self.keep_kernel_within(core, remote, bytes),
                _ => {}
            }
        }
        let hidden = about_size && manner == MtuDiscover::Dont;
        if error.is_reported(is_peers, false) && !hidden {
            self.pending_error.store(error.errno, Ordering::Relaxed);
        }
        true
    }
}

impl UdpSocket {
    /// Says what becomes of datagrams that are too long for their path.
    ///
    /// # Errors
    /// What the kernel socket reports.
    pub fn set_mtu_discover(&self, manner: MtuDiscover) -> io::Result<()> {
        if let Some(reservation) = &self.inner.reservation {
            reservation.set_mtu_discover(manner as u8)?;
        }
        let place = &self.inner.options.mtu_discover;
        place.store(manner as u8, Ordering::Relaxed);
        Ok(())
    }

    /// What becomes of datagrams that are too long for their path.
    pub fn mtu_discover(&self) -> MtuDiscover {
        self.inner.mtu_discover()
    }

    /// Longest IP datagram that reaches the peer whole, in bytes, headers
    /// included, as far as is known (IP_MTU, IPV6_MTU).
    ///
    /// # Errors
    /// ENOTCONN; what the kernel socket reports.
    pub fn mtu(&self) -> io::Result<usize> {
        let peer = canonical(self.peer_addr()?);
        let core = self.stack.here()?;
        let source = specified(self.inner.ends().local);
        let route = core.ip.route(peer, source, false);
        match (route, self.transmit_queue(), &self.inner.reservation) {
            (Route::Link { mtu, .. }, Some((_, queue)), _) => {
                Ok(lock(&queue.transmitter).link_mtu().min(mtu))
            }
            (_, _, Some(reservation)) => reservation.mtu(),
            _ => Err(io::Error::from_raw_os_error(libc::ENETUNREACH)),
        }
    }
}

impl PortReservation {
    fn set_mtu_discover(&self, value: u8) -> io::Result<()> {
        self.set_both(libc::IP_MTU_DISCOVER, libc::IPV6_MTU_DISCOVER, value)
    }

    fn mtu(&self) -> io::Result<usize> {
        let mtu = self.get(libc::IP_MTU, libc::IPV6_MTU)?;
        Ok(usize::try_from(mtu).unwrap_or(0))
    }
}
