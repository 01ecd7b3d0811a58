//! Path MTU discovery of UDP sockets: which datagrams are too long for their path, and
//! how they are sent.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidewall_protocol::icmp::{FlowError, MTU_MIN_V4, MTU_MIN_V6};
use tidewall_protocol::udp::{HEADERS_V4, HEADERS_V6};
use tidewall_stack::address::{canonical, specified};
use tidewall_stack::core::Core;
use tidewall_stack::ip::routes::Route;
use tidewall_stack::lock::lock;
use tidewall_wire::ethernet::HEADER_LEN;

use super::UdpSocket;
use super::inner::{SocketInner, same};
use crate::udp::reservation::PortReservation;

/// How often a socket that sends long datagrams and receives nothing checks for routers'
/// errors about them.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How a socket treats path MTUs (IP_MTU_DISCOVER and IPV6_MTU_DISCOVER, with Linux's
/// meanings and numbers). Modes that send IPv4 without don't-fragment use the kernel
/// socket, at its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum MtuDiscover {
    /// IP_PMTUDISC_DONT: datagrams too long for the path are sent in fragments; over IPv4
    /// routers may fragment others further.
    Dont = 0,
    /// IP_PMTUDISC_WANT, the default: datagrams too long for the path are sent in
    /// fragments, all others with don't-fragment.
    #[default]
    Want = 1,
    /// IP_PMTUDISC_DO: don't-fragment always; EMSGSIZE for a datagram too long for the
    /// path.
    Do = 2,
    /// IP_PMTUDISC_PROBE: don't-fragment always; EMSGSIZE only for a datagram too long
    /// for the interface. For applications that discover the path MTU themselves, as QUIC
    /// does (RFC 8899).
    Probe = 3,
    /// IP_PMTUDISC_INTERFACE: never don't-fragment, never fragmented locally; path MTU
    /// reports are ignored.
    Interface = 4,
    /// IP_PMTUDISC_OMIT: as `Interface`, but fragmented if the interface needs it.
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

    /// Returns the mode of that number.
    pub(super) fn of(number: u8) -> Self {
        let found = Self::ALL.get(usize::from(number));
        found.copied().unwrap_or_default()
    }

    /// Returns true if a datagram that is too long is neither fragmented nor sent.
    pub(super) fn refuses(self) -> bool {
        matches!(self, Self::Do | Self::Probe)
    }

    /// Returns true if IPv4 datagrams have no don't-fragment: they need an
    /// identification, which the kernel assigns.
    fn is_kernels(self) -> bool {
        matches!(self, Self::Dont | Self::Interface | Self::Omit)
    }

    /// Returns the longest IP datagram, given the route's limit.
    fn limit(self, route: usize) -> usize {
        match self {
            Self::Dont | Self::Want | Self::Do => route,
            Self::Probe | Self::Interface | Self::Omit => usize::MAX,
        }
    }
}

/// Returns the bytes of the IP datagram with that payload.
pub(super) fn datagram_length(destination: SocketAddr, payload: usize) -> usize {
    let headers = match destination {
        SocketAddr::V4(_) => HEADERS_V4,
        SocketAddr::V6(_) => HEADERS_V6,
    };
    payload + headers - HEADER_LEN
}

/// Reports whether the kernel would send a datagram whole over a path that does not
/// accept it. A manager's application cannot set the path's MTU in the kernel. Over IPv4
/// routers fragment what it sends; over IPv6 it fragments only what is too long for the
/// interface (`widest`), too.
pub(super) fn is_lost_in_kernel(
    core: &Core,
    destination: SocketAddr,
    length: usize,
    path: usize,
    widest: usize,
) -> bool {
    core.ip.kernel_icmp.is_none() && destination.is_ipv6() && (path + 1..=widest).contains(&length)
}

/// When a socket last checked for errors about its datagrams.
#[derive(Debug)]
pub(super) struct ErrorLook {
    /// Nanoseconds since the stack started.
    at: AtomicU64,
    /// Number of datagrams received by then.
    received: AtomicU64,
    /// Bytes of the narrowest IPv6 path to which the kernel socket was limited.
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
    /// Returns how it treats path MTUs.
    pub(super) fn mtu_discover(&self) -> MtuDiscover {
        MtuDiscover::of(self.options.mtu_discover.load(Ordering::Relaxed))
    }

    /// Reports whether a datagram of that length may leave in a frame of the stack, by a
    /// route that allows `mtu`.
    pub(super) fn fits(&self, destination: SocketAddr, length: usize, mtu: usize) -> bool {
        let manner = self.mtu_discover();
        let is_kernels = manner.is_kernels() && destination.is_ipv4() && self.reservation.is_some();
        length <= manner.limit(mtu) && !is_kernels
    }

    /// Learns path MTUs on behalf of an application that only sends: errors wait in
    /// channels, which no receiver then empties.
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
            // A receive call reports any error of the poll.
            let _ = core.receiver.round(core, false);
            self.copy_waiting(core);
        }
    }

    /// Limits the kernel socket to a path as far as an unprivileged application can. Over IPv4
    /// routers may fragment; over IPv6 datagrams fragmented locally are cut to the narrowest
    /// path of this socket.
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

    /// Handles an ICMP error about one of this socket's datagrams, quoted in `datagram`.
    /// Returns false if it is forged.
    pub(super) fn icmp_error(&self, core: &Core, error: &FlowError, datagram: &[u8]) -> bool {
        let manner = self.mtu_discover();
        let is_peers = self.peer().is_some_and(|peer| same(peer, error.remote));
        let about_size = error.errno == libc::EMSGSIZE;
        if about_size && !matches!(manner, MtuDiscover::Interface | MtuDiscover::Omit) {
            let (remote, local) = (error.remote.ip(), error.local.ip());
            // A router without MTU support (RFC 1191 §5): the kernel guesses.
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
                // Its manager's application may not write anything to it.
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
    /// Sets how datagrams that are too long for their path are treated.
    ///
    /// # Errors
    /// The kernel socket's errors.
    pub fn set_mtu_discover(&self, manner: MtuDiscover) -> io::Result<()> {
        if let Some(reservation) = &self.inner.reservation {
            reservation.set_mtu_discover(manner as u8)?;
        }
        let place = &self.inner.options.mtu_discover;
        place.store(manner as u8, Ordering::Relaxed);
        Ok(())
    }

    /// Returns how datagrams that are too long for their path are treated.
    pub fn mtu_discover(&self) -> MtuDiscover {
        self.inner.mtu_discover()
    }

    /// Returns the longest IP datagram that reaches the peer whole, in bytes, headers
    /// included, as far as known (IP_MTU, IPV6_MTU).
    ///
    /// # Errors
    /// ENOTCONN; the kernel socket's errors.
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
