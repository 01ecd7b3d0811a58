//! The other end, in its own namespace and with system calls that the library does not
//! see.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketType, acceptfrom, bind, connect, listen, recv, send,
    sendto, socket,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Longest time for anything that is sure to arrive.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// The peer's namespace.
pub struct Peer(RawFd);

/// A socket of the peer.
pub struct PeerSocket(OwnedFd);

impl Peer {
    pub fn new(namespace: RawFd) -> Self {
        Peer(namespace)
    }

    fn socket(&self, kind: SocketType) -> PeerSocket {
        let namespace = self.0;
        let made = std::thread::spawn(move || {
            // The descriptor belongs to this program from its start to its end.
            let namespace = crate::raw_calls::borrow(namespace);
            move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network)).unwrap();
            socket(AddressFamily::INET, kind, None).unwrap()
        });
        PeerSocket(made.join().unwrap())
    }

    /// A connection to an address.
    pub fn connect(&self, to: SocketAddr) -> PeerSocket {
        let socket = self.socket(SocketType::STREAM);
        connect(&socket.0, &to).unwrap();
        socket
    }

    /// A listener at an address.
    pub fn listen(&self, at: SocketAddr) -> PeerSocket {
        let socket = self.socket(SocketType::STREAM);
        bind(&socket.0, &at).unwrap();
        listen(&socket.0, 8).unwrap();
        socket
    }

    /// A datagram socket at an address.
    pub fn datagrams(&self, at: SocketAddr) -> PeerSocket {
        let socket = self.socket(SocketType::DGRAM);
        bind(&socket.0, &at).unwrap();
        socket
    }
}

fn wait(fd: BorrowedFd<'_>) -> bool {
    let time = Timespec::try_from(DEADLINE).unwrap();
    let mut list = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    // A program's signals arrive here, too.
    retry_on_intr(|| poll(&mut list, Some(&time))).unwrap() > 0
}

impl PeerSocket {
    fn fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.0)
    }

    pub fn accept(&self) -> PeerSocket {
        assert!(wait(self.fd()), "nobody connects");
        PeerSocket(acceptfrom(&self.0).unwrap().0)
    }

    pub fn send(&self, bytes: &[u8]) {
        let sent = send(&self.0, bytes, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// Sends to an end that may be gone.
    pub fn try_send(&self, bytes: &[u8]) {
        let _ = send(&self.0, bytes, SendFlags::NOSIGNAL);
    }

    pub fn send_to(&self, bytes: &[u8], to: SocketAddr) {
        sendto(&self.0, bytes, SendFlags::empty(), &to).unwrap();
    }

    /// Returns this many bytes, or as many as arrive before the end.
    pub fn receive(&self, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buffer = vec![0; count.max(1)];
        while all.len() < count {
            assert!(wait(self.fd()), "nothing comes, of {count}: {}", all.len());
            match recv(
                &self.0,
                &mut buffer[..count - all.len()],
                RecvFlags::empty(),
            ) {
                Ok((0, _)) | Err(_) => break,
                Ok((length, _)) => all.extend(&buffer[..length]),
            }
        }
        all
    }

    /// Returns how the connection has ended.
    pub fn end(&self) -> &'static str {
        assert!(wait(self.fd()), "the connection does not end");
        match recv(&self.0, &mut [0; 1][..], RecvFlags::empty()) {
            Ok((0, _)) => "end",
            Ok(_) => "data",
            Err(Errno::CONNRESET) => "reset",
            Err(_) => "error",
        }
    }

    pub fn shut(&self) {
        rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write).unwrap();
    }
}
