//! Descriptor numbers through the C interface.

mod processes;

use std::net::SocketAddr;

use libc::{AF_INET, EBADF, EINPROGRESS, EMFILE, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM};
use processes::{SERVER, processes};
use tidewall_posix::{Errno, Posix};

const PORT: u16 = 85;

/// Returns a socket with the last descriptor that the process may have.
fn last_number(posix: &Posix, kind: i32) -> i32 {
    let fd = posix.socket(AF_INET, kind, 0).unwrap();
    posix.descriptors().set_limit(fd as u32 + 1);
    assert_eq!(posix.socket(AF_INET, kind, 0), Err(Errno(EMFILE)));
    fd
}

#[test]
fn a_socket_with_the_last_number_listens_and_connects() {
    let (client, server) = processes();
    let address = SocketAddr::from((SERVER, PORT));
    let listener = last_number(&server, SOCK_STREAM);
    server.bind(listener, address).unwrap();
    server.listen(listener, 1).unwrap();
    assert_eq!(server.getsockname(listener), Ok(address));
    let fd = last_number(&client, SOCK_STREAM | SOCK_NONBLOCK);
    assert_eq!(client.connect(fd, address), Err(Errno(EINPROGRESS)));
    client.close(fd).unwrap();
    assert!(!client.owns(fd));
    assert_eq!(client.getsockname(fd), Err(Errno(EBADF)));
}

#[test]
fn a_datagram_socket_with_the_last_number_is_bound() {
    let (_, server) = processes();
    let fd = last_number(&server, SOCK_DGRAM);
    let address = SocketAddr::from((SERVER, PORT));
    server.bind(fd, address).unwrap();
    assert_eq!(server.getsockname(fd), Ok(address));
}
