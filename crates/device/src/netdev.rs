//! What drivers tell of themselves through the kernel's netdev family of
//! generic netlink (Documentation/netlink/specs/netdev.yaml): whether they run
//! XDP programs, what their zero-copy mode does on transmission, and the NAPI
//! of each receive queue.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use crate::raw::syscall;

/// `enum netdev_xdp_act`: the driver runs XDP programs.
pub const XDP_BASIC: u64 = 1;
/// The driver can redirect frames to AF_XDP sockets and other devices.
pub const XDP_REDIRECT: u64 = 2;
/// AF_XDP without a copy.
pub const XDP_ZERO_COPY: u64 = 8;
/// `enum netdev_xsk_flags`: the driver's zero-copy mode computes the checksums
/// that transmit metadata asks for.
pub const XSK_TX_CHECKSUM: u64 = 2;

/// linux/netlink.h.
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;
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
const NAPI_INDEX: u16 = 1;
const NAPI_ID: u16 = 2;

const NETLINK_HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;

/// A kernel that does not answer within this time has no answer.
const ANSWER_WITHIN: libc::timeval = libc::timeval {
    tv_sec: 1,
    tv_usec: 0,
};

/// A receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its number.
    pub number: u32,
    /// Its NAPI's id, where the driver registers it.
    pub napi: Option<u32>,
}

/// The open family.
#[derive(Debug)]
pub struct Netdev {
    socket: File,
    family: u16,
}

impl Netdev {
    /// Looks the family up; kernels before 6.3 have none.
    ///
    /// # Errors
    /// NotFound, and what the socket reports.
    pub fn open() -> io::Result<Self> {
        let socket = syscall::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_GENERIC)?;
        syscall::set_option(
            socket.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            &ANSWER_WITHIN,
        )?;
        // Without a destination a message goes to the kernel.
        let mut socket = File::from(socket);
        let name = attribute(FAMILY_NAME, b"netdev\0");
        let answers = exchange(&mut socket, CONTROL, GET_FAMILY, 0, &name)?;
        let family = answers
            .first()
            .and_then(|answer| find(answer, FAMILY_ID))
            .and_then(|value| value.first_chunk().copied())
            .map(u16::from_ne_bytes)
            .ok_or(io::ErrorKind::NotFound)?;
        Ok(Netdev { socket, family })
    }

    /// XDP features of an interface: `XDP_…` of this module.
    ///
    /// # Errors
    /// NotFound for a kernel that does not tell, and what it reports.
    pub fn xdp_features(&mut self, interface: u32) -> io::Result<u64> {
        self.features(interface, DEVICE_XDP_FEATURES)
    }

    /// What the zero-copy mode of an interface does on transmission:
    /// [`XSK_TX_CHECKSUM`] and others.
    ///
    /// # Errors
    /// NotFound before Linux 6.8, and what the kernel reports.
    pub fn xsk_features(&mut self, interface: u32) -> io::Result<u64> {
        self.features(interface, DEVICE_XSK_FEATURES)
    }

    fn features(&mut self, interface: u32, kind: u16) -> io::Result<u64> {
        let index = attribute(DEVICE_INDEX, &interface.to_ne_bytes());
        let answers = exchange(&mut self.socket, self.family, DEVICE_GET, 0, &index)?;
        answers
            .first()
            .and_then(|answer| find(answer, kind))
            .and_then(|value| value.first_chunk().copied())
            .map(u64::from_ne_bytes)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Ids of the NAPIs that an interface has now; none while it is down. Unlike
    /// their queues, the kernel knows these of every driver.
    ///
    /// # Errors
    /// What the kernel reports; EOPNOTSUPP before 6.8.
    pub fn napis(&mut self, interface: u32) -> io::Result<Vec<u32>> {
        let index = attribute(NAPI_INDEX, &interface.to_ne_bytes());
        let answers = exchange(&mut self.socket, self.family, NAPI_GET, DUMP, &index)?;
        let ids = answers.iter().filter_map(|answer| word(answer, NAPI_ID));
        Ok(ids.collect())
    }

    /// Receive queues of an interface, as far as its driver tells of them.
    ///
    /// # Errors
    /// What the kernel reports; EOPNOTSUPP before 6.8.
    pub fn queues(&mut self, interface: u32) -> io::Result<Vec<Queue>> {
        let index = attribute(QUEUE_INDEX, &interface.to_ne_bytes());
        let answers = exchange(&mut self.socket, self.family, QUEUE_GET, DUMP, &index)?;
        Ok(answers.iter().filter_map(|answer| queue(answer)).collect())
    }
}

/// A receive queue from its attributes; none for a transmit queue.
fn queue(answer: &[u8]) -> Option<Queue> {
    if word(answer, QUEUE_TYPE) != Some(0) {
        return None;
    }
    Some(Queue {
        number: word(answer, QUEUE_ID)?,
        napi: word(answer, QUEUE_NAPI),
    })
}

fn word(answer: &[u8], kind: u16) -> Option<u32> {
    find(answer, kind)?
        .first_chunk()
        .copied()
        .map(u32::from_ne_bytes)
}

/// Sends a request and collects the attributes of every answer to it.
fn exchange(
    socket: &mut File,
    family: u16,
    command: u8,
    flags: u16,
    attributes: &[u8],
) -> io::Result<Vec<Vec<u8>>> {
    let length = NETLINK_HEADER + GENERIC_HEADER + attributes.len();
    let mut request = Vec::with_capacity(length);
    request.extend((length as u32).to_ne_bytes());
    request.extend(family.to_ne_bytes());
    request.extend((REQUEST | flags).to_ne_bytes());
    request.extend(1u32.to_ne_bytes());
    request.extend(0u32.to_ne_bytes());
    request.extend([command, 1, 0, 0]);
    request.extend(attributes);
    socket.write_all(&request)?;
    let mut answers = Vec::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let length = socket.read(&mut buffer)?;
        let mut messages = buffer.get(..length).unwrap_or_default();
        if messages.is_empty() {
            return Ok(answers);
        }
        while let Some((kind, payload, rest)) = message(messages) {
            messages = rest;
            match kind {
                DONE => return Ok(answers),
                ERROR => {
                    let code = payload.first_chunk().copied().map_or(0, i32::from_ne_bytes);
                    if code != 0 {
                        return Err(io::Error::from_raw_os_error(-code));
                    }
                    return Ok(answers);
                }
                _ => answers.push(payload.get(GENERIC_HEADER..).unwrap_or_default().to_vec()),
            }
        }
        if flags & DUMP == 0 {
            return Ok(answers);
        }
    }
}

/// The first netlink message: type, payload, and what follows.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let payload = bytes.get(NETLINK_HEADER..length)?;
    let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, payload, rest))
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(((4 + value.len()) as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The value of the first attribute of a kind.
fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let found = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        let value = attributes.get(4..length)?;
        // The two high bits are flags (nested, byte order).
        if found & 0x3fff == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_others_and_short_ones_end_the_search() {
        let mut bytes = attribute(QUEUE_ID, &3u32.to_ne_bytes());
        bytes.extend(attribute(9, b"xyz"));
        bytes.extend(attribute(QUEUE_TYPE, &0u32.to_ne_bytes()));
        assert_eq!(
            queue(&bytes),
            Some(Queue {
                number: 3,
                napi: None
            })
        );
        bytes.extend(attribute(QUEUE_NAPI, &8193u32.to_ne_bytes()));
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
