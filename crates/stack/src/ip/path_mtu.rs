//! Path MTUs that routers have reported (RFC 1191, RFC 8201).
//!
//! The kernel keeps path MTUs too, as exceptions to its routes. Its socket fragments a
//! datagram that is longer than its path allows. The kernel does not see the errors by
//! itself, since the driver gives those about our flows to us. So each error is handed to
//! the kernel by a raw socket, over the loopback device. The kernel judges it as if it
//! had come from the network. The path MTUs kept here hold from the moment that the error
//! is read. They also hold when the kernel's own firewall rejects the error.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::net::{SocketFlags, SocketType};

use crate::kernel_calls;

/// Lifetime of a path MTU: Linux's `mtu_expires`, which RFC 8201 §4 recommends.
const LIFETIME: Duration = Duration::from_secs(600);
/// Destinations remembered; the kernel alone knows of others.
const ENTRIES: usize = 4096;
/// Least interval between errors about one destination that are handed to the kernel.
const REPEAT: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct PathMtu {
    bytes: usize,
    expires: Instant,
    reported: Instant,
}

/// Remembered path MTUs, by destination.
#[derive(Debug, Default)]
pub struct PathMtus(HashMap<IpAddr, PathMtu>);

impl PathMtus {
    /// Returns the longest IP datagram for `destination`, in bytes, as far as is known.
    pub fn find(&self, destination: IpAddr, now: Instant) -> usize {
        if self.0.is_empty() {
            return usize::MAX;
        }
        let known = self.0.get(&destination).filter(|known| known.expires > now);
        known.map_or(usize::MAX, |known| known.bytes)
    }

    /// Notes a router's report of `bytes`. A report never raises a known MTU. Returns
    /// true unless the same was reported just now.
    pub fn report(&mut self, destination: IpAddr, bytes: usize, now: Instant) -> bool {
        let before = self.find(destination, now);
        if bytes > before {
            return false;
        }
        if let Some(known) = self.0.get(&destination)
            && bytes == before
            && now.duration_since(known.reported) < REPEAT
        {
            return false;
        }
        if self.0.len() >= ENTRIES && !self.0.contains_key(&destination) {
            self.0.retain(|_, known| known.expires > now);
        }
        if self.0.len() < ENTRIES || self.0.contains_key(&destination) {
            let known = PathMtu {
                bytes,
                expires: now + LIFETIME,
                reported: now,
            };
            self.0.insert(destination, known);
        }
        true
    }
}

/// The way by which ICMP errors about our flows reach the kernel.
#[derive(Debug)]
pub struct KernelIcmp {
    /// None of a family that the kernel does not have.
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
}

impl KernelIcmp {
    /// # Errors
    /// EPERM without CAP_NET_RAW.
    pub fn open() -> io::Result<Self> {
        // It sends whole IP datagrams, and receives none.
        let protocol = Some(rustix::net::ipproto::RAW);
        let flags = SocketFlags::NONBLOCK;
        let open = |v6| match kernel_calls::socket(v6, SocketType::RAW, flags, protocol) {
            Ok(socket) => Ok(Some(UdpSocket::from(socket))),
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(None),
            Err(error) => Err(error),
        };
        Ok(KernelIcmp {
            v4: open(false)?,
            v6: open(true)?,
        })
    }

    /// Hands an error to the kernel. `datagram` is all of it, from its IP header on. It
    /// was sent to `local`, an address of this host.
    ///
    /// # Errors
    /// The errors of `sendto`, such as EPERM from a firewall.
    pub fn put(&self, datagram: &[u8], local: IpAddr) -> io::Result<()> {
        let socket = if local.is_ipv4() { &self.v4 } else { &self.v6 };
        let Some(socket) = socket else {
            return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
        };
        socket
            .send_to(datagram, SocketAddr::new(local, 0))
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_mtu_shrinks_and_expires() {
        let (mut known, start) = (PathMtus::default(), Instant::now());
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        assert_eq!(known.find(one, start), usize::MAX);
        assert!(known.report(one, 1400, start));
        assert!(!known.report(one, 1500, start), "never raised");
        assert!(!known.report(one, 1400, start), "just now");
        assert!(known.report(one, 1300, start));
        assert_eq!(
            (known.find(one, start), known.find(other, start)),
            (1300, usize::MAX)
        );
        assert!(known.report(one, 1300, start + REPEAT));
        let end = start + REPEAT + LIFETIME;
        assert_eq!(known.find(one, end - REPEAT), 1300);
        assert_eq!(known.find(one, end), usize::MAX);
    }

    #[test]
    fn many_destinations_are_bounded_and_old_ones_make_room() {
        let (mut known, start) = (PathMtus::default(), Instant::now());
        let address = |n: u32| IpAddr::from(n.to_be_bytes());
        for n in 0..2 * ENTRIES as u32 {
            assert!(known.report(address(n), 1280, start));
        }
        assert_eq!(known.0.len(), ENTRIES);
        assert!(known.report(address(1), 1000, start));
        assert_eq!(known.find(address(1), start), 1000);
        assert!(known.report(address(u32::MAX), 1280, start + LIFETIME));
        assert_eq!(known.find(address(u32::MAX), start + LIFETIME), 1280);
        assert_eq!(known.0.len(), 1);
    }
}
