//! Additions to the standard library for client and server of one kernel TCP connection:
//! a chosen local port, congestion control by name, TCP_INFO.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_reuseaddr, set_tcp_congestion};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use tidewall_sys::option_bytes;

/// Connects from local `port` within `timeout`, with congestion control
/// `congestion`; small writes leave at once.
///
/// # Errors
/// EADDRINUSE for a port in use; ENOENT for a congestion control that the kernel lacks;
/// WouldBlock at the timeout.
pub(crate) fn connect(
    port: u16,
    server: SocketAddrV4,
    congestion: &str,
    timeout: Duration,
) -> io::Result<TcpStream> {
    let kind = SocketType::STREAM;
    let socket = socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None)?;
    let stream = TcpStream::from(socket);
    // A port whose last connection was to another server may be reused.
    set_socket_reuseaddr(&stream, true)?;
    set_tcp_congestion(&stream, congestion)?;
    stream.set_nodelay(true)?;
    // Bounds connecting, too (socket(7)).
    stream.set_write_timeout(Some(timeout))?;
    bind(&stream, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
    rustix::net::connect(&stream, &server)?;
    Ok(stream)
}

/// `struct tcp_info` (linux/tcp.h) as far as `tcpi_total_rto`, in bytes.
const INFO: usize = 248;

/// Returns figures of a kernel connection, by name: those of TCP_INFO that show why a
/// connection was fast or slow.
///
/// # Errors
/// None is known.
pub(crate) fn info(socket: impl AsFd) -> io::Result<BTreeMap<String, f64>> {
    let mut bytes = [0u8; INFO];
    option_bytes(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes)?;
    Ok(read_info(&bytes))
}

/// Extracts the figures from a `struct tcp_info`. Fields that an older kernel leaves out
/// are zero.
fn read_info(bytes: &[u8; INFO]) -> BTreeMap<String, f64> {
    let word = |at: usize| {
        let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
        f64::from(bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes)))
    };
    let half = |at: usize| {
        let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
        f64::from(bytes.map_or(0, |bytes| u16::from_ne_bytes(*bytes)))
    };
    let long = |at: usize| {
        let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes)) as f64
    };
    let mss = word(16).max(1.0);
    [
        ("segments sent", word(156)),
        ("retransmitted", word(100)),
        ("timeouts", half(240)),
        ("timeout episodes", half(242)),
        ("duplicates reported", word(216)),
        ("reordering seen", word(220)),
        ("out of order", word(224)),
        ("window, segments", word(80)),
        ("threshold, segments", word(76)),
        ("peer's window, segments", word(228) / mss),
        ("pacing, Mbit/s", long(104) * 8.0 / 1e6),
        ("round trip, ms", word(68) / 1e3),
        ("least round trip, ms", word(148) / 1e3),
        ("timeout, ms", word(8) / 1e3),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::{set_socket_linger, tcp_congestion};
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};

    #[test]
    fn a_connection_has_the_port_the_control_and_the_figures_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_tcp_congestion(&listener, "reno").unwrap();
        let SocketAddr::V4(server) = listener.local_addr().unwrap() else {
            panic!("not IPv4");
        };
        // A free port: it was just released.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut client = connect(port, server, "reno", Duration::from_secs(5)).unwrap();
        assert_eq!(client.local_addr().unwrap().port(), port);
        let (mut accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer.port(), port);
        for socket in [client.as_fd(), accepted.as_fd()] {
            assert_eq!(tcp_congestion(socket).unwrap(), "reno");
        }
        client.write_all(&[1; 1000]).unwrap();
        accepted.read_exact(&mut [0; 1000]).unwrap();
        let figures = info(&client).unwrap();
        assert_eq!(figures["segments sent"], 1.0);
        assert_eq!(figures["retransmitted"], 0.0);
        assert!(figures["window, segments"] >= 10.0, "{figures:?}");
        assert!(figures["peer's window, segments"] > 0.5, "{figures:?}");
        set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        assert!(accepted.read(&mut [0; 1]).is_err(), "a reset");
        assert!(set_tcp_congestion(&listener, "none-such").is_err());
    }
}
