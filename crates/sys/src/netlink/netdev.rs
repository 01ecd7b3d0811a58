//! Properties that drivers report through the kernel's netdev family of generic netlink
//! (Documentation/netlink/specs/netdev.yaml):
//!
//! - whether they run XDP programs;
//! - the transmit features of their zero-copy mode;
//! - the NAPI of each receive queue.

use std::io;
use std::time::Duration;

use rustix::net::netlink::GENERIC;

use super::{Client, NLM_F_ACK, NLM_F_DUMP, attribute, find};
use crate::address::chunk;

/// `enum netdev_xdp_act`: the driver runs XDP programs.
pub const XDP_BASIC: u64 = 1;
/// The driver can redirect frames to AF_XDP sockets and other devices.
pub const XDP_REDIRECT: u64 = 2;
/// Frames can be redirected to the interface; for a veth, only while its peer has XDP or
/// GRO.
pub const XDP_NDO_XMIT: u64 = 4;
/// AF_XDP without a copy.
pub const XDP_ZERO_COPY: u64 = 8;
/// XDP programs receive frames that are longer than one buffer.
pub const XDP_RX_SG: u64 = 32;
/// `enum netdev_xsk_flags`: the driver's zero-copy mode computes the checksums that
/// transmit metadata requests.
pub const XSK_TX_CHECKSUM: u64 = 2;

/// linux/genetlink.h.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// linux/netdev.h.
const DEVICE_GET: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_XDP_FEATURES: u16 = 3;
const DEVICE_XSK_FEATURES: u16 = 6;
const QUEUE_GET: u8 = 10;
const QUEUE_ID: u16 = 1;
const QUEUE_INDEX: u16 = 2;
const QUEUE_TYPE: u16 = 3;
const QUEUE_NAPI: u16 = 4;

const NAPI_GET: u8 = 11;
const NAPI_SET: u8 = 14;
const NAPI_INDEX: u16 = 1;
const NAPI_ID: u16 = 2;
const NAPI_PID: u16 = 4;
const NAPI_SUSPEND_TIMEOUT: u16 = 7;
const NAPI_THREADED: u16 = 8;

/// Some drivers query their hardware first.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of `struct genlmsghdr`.
const GENERIC_HEADER: usize = 4;

/// A receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its number.
    pub number: u32,
    /// The id of its NAPI, if the driver registers it.
    pub napi: Option<u32>,
}

/// A NAPI instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Napi {
    /// Its id.
    pub id: u32,
    /// Process id of the kernel thread that polls it, if there is one.
    pub thread: Option<u32>,
    /// Whether a thread must poll it; `None` before Linux 6.17.
    pub threaded: Option<bool>,
    /// See [`Netdev::set_suspend_timeout`]; `None` before Linux 6.13.
    pub suspend_timeout: Option<Duration>,
}

/// The generic netlink family, opened.
#[derive(Debug)]
pub struct Netdev {
    client: Client,
    family: u16,
}

impl Netdev {
    /// Looks up the family; kernels before 6.3 do not have it.
    ///
    /// # Errors
    /// NotFound, and the socket's errors.
    pub fn open() -> io::Result<Self> {
        let mut netdev = Netdev {
            client: Client::open(Some(GENERIC), TIMEOUT)?,
            family: CONTROL,
        };
        let mut name = Vec::new();
        attribute(&mut name, FAMILY_NAME, b"netdev\0");
        let answers = netdev.exchange(GET_FAMILY, 0, &name)?;
        netdev.family = answers
            .first()
            .and_then(|answer| chunk(find(answer, FAMILY_ID)?, 0))
            .map(u16::from_ne_bytes)
            .ok_or(io::ErrorKind::NotFound)?;
        Ok(netdev)
    }

    /// XDP features of an interface: the `XDP_…` constants of this module.
    ///
    /// # Errors
    /// NotFound for a kernel without the command, and the kernel's errors.
    pub fn xdp_features(&mut self, interface: u32) -> io::Result<u64> {
        self.features(interface, DEVICE_XDP_FEATURES)
    }

    /// The transmit features of an interface's zero-copy mode: [`XSK_TX_CHECKSUM`] and
    /// others.
    ///
    /// # Errors
    /// NotFound before Linux 6.8, and the kernel's errors.
    pub fn xsk_features(&mut self, interface: u32) -> io::Result<u64> {
        self.features(interface, DEVICE_XSK_FEATURES)
    }

    fn features(&mut self, interface: u32, kind: u16) -> io::Result<u64> {
        let answers = self.of_interface(DEVICE_GET, 0, DEVICE_INDEX, interface)?;
        answers
            .first()
            .and_then(|answer| chunk(find(answer, kind)?, 0))
            .map(u64::from_ne_bytes)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Ids of the NAPIs that an interface has now; none while it is down. Unlike their
    /// queues, the kernel knows these for every driver.
    ///
    /// # Errors
    /// The kernel's errors; EOPNOTSUPP before 6.8.
    pub fn napis(&mut self, interface: u32) -> io::Result<Vec<u32>> {
        let napis = self.napi_states(interface)?;
        Ok(napis.into_iter().map(|napi| napi.id).collect())
    }

    /// The NAPIs of an interface, and the threads that poll them.
    ///
    /// # Errors
    /// As [`Netdev::napis`].
    pub fn napi_states(&mut self, interface: u32) -> io::Result<Vec<Napi>> {
        let answers = self.of_interface(NAPI_GET, NLM_F_DUMP, NAPI_INDEX, interface)?;
        Ok(answers.iter().filter_map(|answer| napi(answer)).collect())
    }

    /// Makes a kernel thread poll a NAPI, or returns it to interrupts. Each call creates
    /// a new thread.
    ///
    /// # Errors
    /// EOPNOTSUPP or EINVAL before Linux 6.17, ENOENT for an unknown NAPI, EPERM without
    /// CAP_NET_ADMIN; the kernel's errors.
    pub fn set_threaded(&mut self, napi: u32, threaded: bool) -> io::Result<()> {
        let mut body = Vec::new();
        attribute(&mut body, NAPI_ID, &napi.to_ne_bytes());
        attribute(&mut body, NAPI_THREADED, &u32::from(threaded).to_ne_bytes());
        self.exchange(NAPI_SET, NLM_F_ACK, &body).map(drop)
    }

    /// Sets how long an event loop that prefers busy polling may keep a NAPI's interrupts
    /// suspended between two of its waits; zero disables it.
    ///
    /// # Errors
    /// EOPNOTSUPP or EINVAL before Linux 6.13, ENOENT for an unknown NAPI, EPERM without
    /// CAP_NET_ADMIN; the kernel's errors.
    pub fn set_suspend_timeout(&mut self, napi: u32, timeout: Duration) -> io::Result<()> {
        let nanoseconds = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let mut body = Vec::new();
        attribute(&mut body, NAPI_ID, &napi.to_ne_bytes());
        attribute(&mut body, NAPI_SUSPEND_TIMEOUT, &nanoseconds.to_ne_bytes());
        self.exchange(NAPI_SET, NLM_F_ACK, &body).map(drop)
    }

    /// Receive queues of an interface, as far as its driver reports them.
    ///
    /// # Errors
    /// The kernel's errors; EOPNOTSUPP before 6.8.
    pub fn queues(&mut self, interface: u32) -> io::Result<Vec<Queue>> {
        let answers = self.of_interface(QUEUE_GET, NLM_F_DUMP, QUEUE_INDEX, interface)?;
        Ok(answers.iter().filter_map(|answer| queue(answer)).collect())
    }

    /// One request about an interface, whose index is attribute `kind`.
    fn of_interface(
        &mut self,
        command: u8,
        flags: u16,
        kind: u16,
        interface: u32,
    ) -> io::Result<Vec<Vec<u8>>> {
        let mut index = Vec::new();
        attribute(&mut index, kind, &interface.to_ne_bytes());
        self.exchange(command, flags, &index)
    }

    /// Sends a request and collects the attributes of every answer to it.
    fn exchange(&mut self, command: u8, flags: u16, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        // struct genlmsghdr: command, version, reserved.
        let body = [&[command, 1, 0, 0], attributes].concat();
        let answers = self.client.exchange(self.family, flags, &body)?;
        let behind = |(_, body): (u16, Vec<u8>)| body.get(GENERIC_HEADER..).map(<[u8]>::to_vec);
        Ok(answers.into_iter().filter_map(behind).collect())
    }
}

/// A receive queue from its attributes; `None` for a transmit queue.
fn queue(answer: &[u8]) -> Option<Queue> {
    if word(answer, QUEUE_TYPE) != Some(0) {
        return None;
    }
    Some(Queue {
        number: word(answer, QUEUE_ID)?,
        napi: word(answer, QUEUE_NAPI),
    })
}

fn napi(answer: &[u8]) -> Option<Napi> {
    Some(Napi {
        id: word(answer, NAPI_ID)?,
        thread: word(answer, NAPI_PID),
        threaded: word(answer, NAPI_THREADED).map(|threaded| threaded != 0),
        // Encoded in four bytes unless it needs eight.
        suspend_timeout: find(answer, NAPI_SUSPEND_TIMEOUT).and_then(|value| {
            let wide = chunk(value, 0).map(u64::from_ne_bytes);
            let short = || chunk(value, 0).map(u32::from_ne_bytes).map(u64::from);
            wide.or_else(short).map(Duration::from_nanos)
        }),
    })
}

fn word(answer: &[u8], kind: u16) -> Option<u32> {
    chunk(find(answer, kind)?, 0).map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_others_and_short_ones_end_the_search() {
        let mut bytes = Vec::new();
        attribute(&mut bytes, QUEUE_ID, &3u32.to_ne_bytes());
        attribute(&mut bytes, 9, b"xyz");
        attribute(&mut bytes, QUEUE_TYPE, &0u32.to_ne_bytes());
        assert_eq!(
            queue(&bytes),
            Some(Queue {
                number: 3,
                napi: None
            })
        );
        attribute(&mut bytes, QUEUE_NAPI, &8193u32.to_ne_bytes());
        assert_eq!(
            queue(&bytes),
            Some(Queue {
                number: 3,
                napi: Some(8193)
            })
        );
        assert_eq!(find(&bytes, 77), None);
        for end in 0..bytes.len() {
            let _ = queue(&bytes[..end]);
        }
        assert_eq!(find(&[0, 0, 0, 0, 0, 0, 0, 0], 1), None);
    }

    #[test]
    fn the_kernel_tells_of_the_loopback_device() {
        let mut netdev = match Netdev::open() {
            Ok(netdev) => netdev,
            Err(error) => {
                tidewall_skip::inapplicable(
                    "the_kernel_tells_of_the_loopback_device",
                    format!("no netdev family: {error}"),
                );
                return;
            }
        };
        // The loopback device is number 1 in every namespace and runs no XDP natively.
        assert_eq!(
            netdev
                .xdp_features(1)
                .map(|features| features & XDP_ZERO_COPY)
                .ok(),
            Some(0)
        );
        match netdev.xsk_features(1) {
            Ok(features) => assert_eq!(features & XSK_TX_CHECKSUM, 0),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        }
        assert!(netdev.xdp_features(u32::MAX >> 1).is_err());
    }
}
