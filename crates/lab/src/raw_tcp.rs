//! What a client and a server of one kernel TCP connection need beyond the
//! standard library: a port of one's own, congestion control by name, TCP_INFO.

use std::collections::BTreeMap;
use std::io;
use std::mem::{size_of, size_of_val};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn raw_address(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(address.ip().octets()),
        },
        sin_zero: [0; 8],
    }
}

/// Connects from local `port` within `patience`, with congestion control
/// `congestion`; small writes leave at once.
///
/// # Errors
/// EADDRINUSE for a port that is taken; ENOENT for a congestion control that
/// the kernel has not; WouldBlock when the patience is over.
pub(crate) fn connect(
    port: u16,
    server: SocketAddrV4,
    congestion: &str,
    patience: Duration,
) -> io::Result<TcpStream> {
    // SAFETY: no pointers.
    let fd =
        checked(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: a descriptor that the kernel just returned to us.
    let stream = TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // A port whose last connection was to another server may be used again.
    set(&stream, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1)?;
    set_congestion(stream.as_fd(), congestion)?;
    stream.set_nodelay(true)?;
    // Bounds connecting too (socket(7)).
    stream.set_write_timeout(Some(patience))?;
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let local = raw_address(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port));
    // SAFETY: an initialised address of the length given.
    checked(unsafe { libc::bind(stream.as_raw_fd(), (&raw const local).cast(), length) })?;
    let server = raw_address(server);
    // SAFETY: an initialised address of the length given.
    checked(unsafe { libc::connect(stream.as_raw_fd(), (&raw const server).cast(), length) })?;
    Ok(stream)
}

fn set<T>(stream: &TcpStream, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: `value` is valid for reads of the length given.
    checked(unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of_val(value) as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Chooses the congestion control of a socket; of a listener, for what it
/// accepts (TCP_CONGESTION).
///
/// # Errors
/// ENOENT when the kernel has none of this name.
pub(crate) fn set_congestion(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    // SAFETY: the name is valid for reads of the length given; the kernel
    // needs no zero at its end.
    checked(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Lets closing the socket end its connection at once, by a reset.
///
/// # Errors
/// None that is known.
pub(crate) fn abort_on_close(stream: &TcpStream) -> io::Result<()> {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    set(stream, libc::SOL_SOCKET, libc::SO_LINGER, &linger)
}

/// `struct tcp_info` (linux/tcp.h) as far as `tcpi_total_rto`, in bytes.
const INFO: usize = 248;

/// Figures of a kernel connection, by name: those of TCP_INFO that tell why a
/// connection was fast or slow.
///
/// # Errors
/// None that is known.
pub(crate) fn info(socket: BorrowedFd<'_>) -> io::Result<BTreeMap<String, f64>> {
    let mut bytes = [0u8; INFO];
    let mut length = bytes.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the array.
    checked(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    Ok(read_info(&bytes))
}

/// Picks the figures out of a `struct tcp_info`. What an older kernel leaves out
/// is zero.
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
        ("duplicates told", word(216)),
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

/// The name of a socket's congestion control.
///
/// # Errors
/// None that is known.
pub(crate) fn congestion(socket: BorrowedFd<'_>) -> io::Result<String> {
    // TCP_CA_NAME_MAX.
    let mut name = [0u8; 16];
    let mut length = name.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the array.
    checked(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};

    #[test]
    fn a_connection_has_the_port_the_control_and_the_figures_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_congestion(listener.as_fd(), "reno").unwrap();
        let SocketAddr::V4(server) = listener.local_addr().unwrap() else {
            panic!("not IPv4");
        };
        // A port that is free: somebody just had it.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut client = connect(port, server, "reno", Duration::from_secs(5)).unwrap();
        assert_eq!(client.local_addr().unwrap().port(), port);
        let (mut accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer.port(), port);
        for socket in [client.as_fd(), accepted.as_fd()] {
            assert_eq!(congestion(socket).unwrap(), "reno");
        }
        client.write_all(&[1; 1000]).unwrap();
        accepted.read_exact(&mut [0; 1000]).unwrap();
        let figures = info(client.as_fd()).unwrap();
        assert_eq!(figures["segments sent"], 1.0);
        assert_eq!(figures["retransmitted"], 0.0);
        assert!(figures["window, segments"] >= 10.0, "{figures:?}");
        assert!(figures["peer's window, segments"] > 0.5, "{figures:?}");
        abort_on_close(&client).unwrap();
        drop(client);
        assert!(accepted.read(&mut [0; 1]).is_err(), "a reset");
        assert!(set_congestion(listener.as_fd(), "none-such").is_err());
    }
}
