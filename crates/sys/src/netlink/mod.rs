//! A netlink client (netlink(7)): one request at a time, with messages built and parsed
//! as bytes.
//!
//! The well-maintained netlink crates need an async runtime or forty seconds of
//! compilation. A handful of request types needs neither.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use crate::address::chunk;

mod neighbour;
mod netdev;
mod route;
mod routing;
mod sockets;
mod veth;

pub use neighbour::Neighbour;
pub use netdev::{
    Napi, Netdev, Queue, XDP_BASIC, XDP_NDO_XMIT, XDP_REDIRECT, XDP_RX_SG, XDP_ZERO_COPY,
    XSK_TX_CHECKSUM,
};
pub use route::{Change, Link, LinkCounters, Monitor, Route, Rtnetlink};
pub use routing::{Found, Routing};
pub use sockets::{InetSocket, SocketDiag};
pub use veth::{GroupLink, VethPair};

/// linux/netlink.h.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_ECHO: u16 = 8;
/// For a request that creates something.
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// The kernel sends no longer datagram.
const DATAGRAM: usize = 65_536;

/// A message from the kernel: its type and the bytes after the header.
type Answer = (u16, Vec<u8>);

/// A netlink socket for one request at a time.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

fn open(protocol: Option<Protocol>, flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | flags;
    Ok(socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags,
        protocol,
    )?)
}

impl Client {
    /// `timeout`: how long to wait for the kernel's answer before failing.
    fn open(protocol: Option<Protocol>, timeout: Duration) -> io::Result<Self> {
        let socket = open(protocol, SocketFlags::empty())?;
        set_socket_timeout(&socket, Timeout::Recv, Some(timeout))?;
        Ok(Client {
            socket,
            sequence: 0,
            buffer: vec![0; DATAGRAM],
        })
    }

    /// Sends one request, and collects the answers to it. If `flags` requests them, reads
    /// up to the end or the acknowledgment, else only the first.
    fn exchange(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<Answer>> {
        let mut answers = Vec::new();
        self.each(kind, flags, body, &mut |kind, body| {
            answers.push((kind, body.to_vec()));
            Ok(())
        })?;
        Ok(answers)
    }

    /// As [`Client::exchange`], but passes each answer to `on`, whose error ends it.
    fn each(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        on: &mut dyn FnMut(u16, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = message(kind, NLM_F_REQUEST | flags, self.sequence, body);
        // Without a destination a message goes to the kernel.
        send(&self.socket, &request, SendFlags::empty())?;
        loop {
            let (length, _) = recv(&self.socket, &mut self.buffer[..], RecvFlags::empty())?;
            for (header, body) in messages(self.buffer.get(..length).unwrap_or_default()) {
                if header.sequence != self.sequence {
                    // The answer to a request that timed out earlier.
                    continue;
                }
                match header.kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => match chunk(body, 0).map_or(0, i32::from_ne_bytes) {
                        0 => return Ok(()),
                        code => return Err(io::Error::from_raw_os_error(-code)),
                    },
                    kind => on(kind, body)?,
                }
                if flags & (NLM_F_DUMP | NLM_F_ACK) == 0 {
                    return Ok(());
                }
            }
        }
    }

    /// As [`Client::exchange`]: returns the body of the first answer, empty if there is
    /// none.
    fn first(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        let answers = self.exchange(kind, flags, body)?;
        let first = answers.into_iter().next();
        Ok(first.map(|(_, body)| body).unwrap_or_default())
    }
}

/// The fields of a `struct nlmsghdr` that are read.
#[derive(Clone, Copy, Debug)]
struct Header {
    kind: u16,
    sequence: u32,
}

/// One message.
fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = HEADER + body.len();
    let mut message = Vec::with_capacity(length);
    message.extend((length as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    // The receiver's port: the kernel.
    message.extend(0u32.to_ne_bytes());
    message.extend(body);
    message
}

/// The messages of a datagram; a truncated one ends them.
fn messages(mut datagram: &[u8]) -> impl Iterator<Item = (Header, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(chunk(datagram, 0)?) as usize;
        let header = Header {
            kind: u16::from_ne_bytes(chunk(datagram, 4)?),
            sequence: u32::from_ne_bytes(chunk(datagram, 8)?),
        };
        let body = datagram.get(HEADER..length)?;
        let next = length.next_multiple_of(4);
        datagram = datagram.get(next..).unwrap_or_default();
        Some((header, body))
    })
}

/// Appends an attribute, padded to four bytes.
fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend(((4 + value.len()) as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Types and values of attributes; a truncated one ends them.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(chunk(bytes, 0)?));
        // The two high bits are flags (nested, byte order).
        let kind = u16::from_ne_bytes(chunk(bytes, 2)?) & 0x3fff;
        let value = bytes.get(4..length)?;
        let next = length.next_multiple_of(4);
        bytes = bytes.get(next..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of a type.
fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut found = attributes(bytes).filter(|(kind, _)| *kind == wanted);
    found.next().map(|(_, value)| value)
}

/// The 32 bits at the start of a value; 0 for a shorter one.
fn word(bytes: &[u8]) -> u32 {
    chunk(bytes, 0).map_or(0, u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_a_cut_anywhere() {
        let mut bytes = Vec::new();
        attribute(&mut bytes, 1, &[10, 0, 0, 1]);
        attribute(&mut bytes, 4, &3u32.to_ne_bytes());
        for length in 0..=bytes.len() {
            assert_eq!(attributes(&bytes[..length]).count(), length / 8);
        }
        assert_eq!(find(&bytes, 4), Some(&3u32.to_ne_bytes()[..]));
        assert_eq!(find(&bytes, 5), None);
        assert_eq!(find(&[0; 64], 1), None);
    }

    #[test]
    fn attributes_are_found_behind_padding() {
        let mut bytes = Vec::new();
        attribute(&mut bytes, 2, b"netdev\0");
        assert_eq!(bytes.len(), 12);
        attribute(&mut bytes, 7, &[]);
        attribute(&mut bytes, 3, &99u64.to_ne_bytes());
        assert_eq!(find(&bytes, 3), Some(&99u64.to_ne_bytes()[..]));
        assert_eq!(find(&bytes, 2), Some(&b"netdev\0"[..]));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let mut body = vec![0; 20];
        attribute(&mut body, 1, b"pfifo\0");
        let datagram = [message(36, 0, 3, &body), message(2, 0, 3, &[0; 20])].concat();
        assert_eq!(messages(&datagram).count(), 2);
        for length in 0..datagram.len() {
            assert!(messages(&datagram[..length]).count() <= 1);
        }
        for at in 0..datagram.len() {
            for value in 0..=u8::MAX {
                let mut changed = datagram.clone();
                changed[at] = value;
                // Each message takes at least a header, so the loop ends.
                assert!(messages(&changed).count() <= datagram.len() / HEADER);
                assert!(attributes(&changed).count() <= datagram.len() / 4);
            }
        }
    }
}
