//! The sockets of a network namespace (sock_diag(7); linux/inet_diag.h).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rustix::net::netlink::SOCK_DIAG;

use super::{Client, NLM_F_DUMP, find, word};
use crate::address::chunk;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// linux/tcp_states.h.
const TCP_LISTEN: u32 = 10;
const INET_DIAG_SKV6ONLY: u16 = 11;
/// Bytes of `struct inet_diag_req_v2` and of `struct inet_diag_msg`.
const REQUEST: usize = 56;
const ANSWER: usize = 72;
/// A dump walks all sockets of the namespace.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A TCP or UDP socket of any process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InetSocket {
    /// Local address; unspecified if bound to all of its family.
    pub local: IpAddr,
    /// True for an IPv6 socket that does not receive IPv4.
    pub only_v6: bool,
    /// TCP_* of linux/tcp_states.h.
    pub state: u8,
    /// Index of the interface to which it is bound; 0: none.
    pub interface: u32,
    /// SO_COOKIE.
    pub cookie: u64,
    /// Owner of its file (uid).
    pub uid: u32,
    /// Inode of its file; 0 if no process has it any more.
    pub inode: u32,
}

/// A socket for looking up others.
#[derive(Debug)]
pub struct SocketDiag(Client);

impl SocketDiag {
    /// Opens it in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel's errors.
    pub fn open() -> io::Result<Self> {
        Client::open(Some(SOCK_DIAG), TIMEOUT).map(SocketDiag)
    }

    /// All sockets of a protocol (IPPROTO_TCP, IPPROTO_UDP) with a given local port.
    /// Before Linux 6.8, TCP sockets that are only bound are missing.
    ///
    /// # Errors
    /// ENOENT if the kernel lacks the interface; TimedOut.
    pub fn at_port(&mut self, protocol: u8, port: u16) -> io::Result<Vec<InetSocket>> {
        self.in_states(u32::MAX, protocol, port)
    }

    /// The listening TCP sockets with a given local port; no connection is walked.
    ///
    /// # Errors
    /// As [`SocketDiag::at_port`].
    pub fn listening(&mut self, port: u16) -> io::Result<Vec<InetSocket>> {
        self.in_states(1 << TCP_LISTEN, libc::IPPROTO_TCP as u8, port)
    }

    fn in_states(&mut self, states: u32, protocol: u8, port: u16) -> io::Result<Vec<InetSocket>> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut request = vec![family as u8, protocol, 0, 0];
            request.extend(states.to_ne_bytes());
            request.extend(port.to_be_bytes());
            request.resize(REQUEST, 0);
            let answers = self.0.exchange(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &request)?;
            let sockets = answers.iter().filter_map(|(_, body)| read(body));
            found.extend(sockets.filter(|(of, _)| *of == port).map(|(_, it)| it));
        }
        Ok(found)
    }
}

fn read(body: &[u8]) -> Option<(u16, InetSocket)> {
    let attributes = body.get(ANSWER..)?;
    let [family, state] = chunk(body, 0)?;
    let local = match i32::from(family) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(chunk::<4>(body, 8)?)),
        _ => IpAddr::V6(Ipv6Addr::from(chunk::<16>(body, 8)?)),
    };
    let socket = InetSocket {
        local,
        only_v6: find(attributes, INET_DIAG_SKV6ONLY).is_some_and(|it| it != [0]),
        state,
        interface: word(body.get(40..)?),
        cookie: u64::from(word(body.get(44..)?)) | u64::from(word(body.get(48..)?)) << 32,
        uid: word(body.get(64..)?),
        inode: word(body.get(68..)?),
    };
    Some((u16::from_be_bytes(chunk(body, 4)?), socket))
}
