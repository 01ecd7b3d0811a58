//! `recvmsg`, `sendmsg`, `recvmmsg` and `sendmmsg` with addresses and the ancillary data
//! of packets, which rustix does not support.

use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use crate::address::{ADDRESS_BYTES, RawAddress};
use crate::ancillary::{Ancillary, CONTROL_BYTES, Control};
use crate::count;

/// A received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes in the buffer; with MSG_TRUNC among the flags, bytes of the packet.
    pub length: usize,
    /// The packet was longer than the buffer.
    pub truncated: bool,
    /// The sender, if it is an internet address.
    pub source: Option<SocketAddr>,
    /// The data that the socket's options request.
    pub ancillary: Ancillary,
}

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The bytes.
    pub payload: &'a [u8],
    /// The destination; `None` on a connected socket.
    pub destination: Option<SocketAddr>,
    /// The local address from which it leaves; if unspecified, the kernel chooses. On an
    /// IPv6 socket, an IPv4 source goes with an IPv4-mapped destination.
    pub source: IpAddr,
    /// The index of the interface by which it leaves; with 0 the route decides.
    pub interface: u32,
}

/// A header and the data to which it points, which must not move during the call.
#[derive(Clone, Copy)]
struct Slot {
    vector: libc::iovec,
    address: RawAddress,
    control: Control,
}

impl Slot {
    const EMPTY: Slot = Slot {
        vector: libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        },
        address: RawAddress::EMPTY,
        control: Control::EMPTY,
    };

    /// Prepares for receiving into `buffer`.
    fn receive_into(&mut self, header: &mut libc::msghdr, buffer: &mut [u8]) {
        self.vector.iov_base = buffer.as_mut_ptr().cast();
        self.vector.iov_len = buffer.len();
        self.address = RawAddress::EMPTY;
        self.point(header, ADDRESS_BYTES as libc::socklen_t, CONTROL_BYTES);
    }

    /// Prepares for sending a message.
    fn send(&mut self, header: &mut libc::msghdr, message: &Message<'_>) {
        // Sending only reads it.
        self.vector.iov_base = message.payload.as_ptr().cast_mut().cast();
        self.vector.iov_len = message.payload.len();
        let mut length = 0;
        if let Some(destination) = message.destination {
            (self.address, length) = RawAddress::new(destination);
        }
        let control = match message.source.is_unspecified() && message.interface == 0 {
            true => 0,
            false => self.control.set_source(message.source, message.interface),
        };
        self.point(header, length, control);
    }

    fn point(&mut self, header: &mut libc::msghdr, address: libc::socklen_t, control: usize) {
        header.msg_iov = &raw mut self.vector;
        header.msg_iovlen = 1;
        header.msg_namelen = address;
        header.msg_name = match address {
            0 => ptr::null_mut(),
            _ => (&raw mut self.address).cast(),
        };
        header.msg_controllen = control;
        header.msg_control = match control {
            0 => ptr::null_mut(),
            _ => (&raw mut self.control).cast(),
        };
    }

    fn received(&self, header: &libc::msghdr, length: usize) -> Received {
        let control = self.control.0.get(..header.msg_controllen);
        Received {
            length,
            truncated: header.msg_flags & libc::MSG_TRUNC != 0,
            source: RawAddress::parse(&self.address.0),
            ancillary: Ancillary::parse(control.unwrap_or_default()),
        }
    }
}

/// A header that points to nothing.
fn empty() -> libc::mmsghdr {
    // SAFETY: numbers and pointers, for which zero is a value.
    unsafe { zeroed() }
}

/// One `recvmsg`.
///
/// # Errors
/// The kernel's errors.
pub fn receive_message(fd: impl AsFd, buffer: &mut [u8], flags: i32) -> io::Result<Received> {
    let mut slot = Slot::EMPTY;
    let mut header = empty().msg_hdr;
    slot.receive_into(&mut header, buffer);
    // SAFETY: every pointer in the header is valid for its stated length.
    let length =
        count(unsafe { libc::recvmsg(fd.as_fd().as_raw_fd(), &raw mut header, flags) as _ })?;
    Ok(slot.received(&header, length))
}

/// One `sendmsg`; returns EPIPE instead of raising SIGPIPE. Returns the bytes sent.
///
/// # Errors
/// EINVAL for a source that is not an address of this host; the kernel's errors.
pub fn send_message(fd: impl AsFd, message: &Message<'_>, flags: i32) -> io::Result<usize> {
    let mut slot = Slot::EMPTY;
    let mut header = empty().msg_hdr;
    slot.send(&mut header, message);
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: every pointer in the header is valid for its stated length, and
    // only read.
    count(unsafe { libc::sendmsg(fd.as_fd().as_raw_fd(), &raw const header, flags) as _ })
}

/// Headers of calls that transfer many packets, created once.
pub struct MessageBatch {
    /// Their pointers are those of the last call: every call sets those that it passes to
    /// the kernel.
    headers: Box<[libc::mmsghdr]>,
    slots: Box<[Slot]>,
}

// SAFETY: the pointers are followed only in a call that has just set them.
unsafe impl Send for MessageBatch {}

impl std::fmt::Debug for MessageBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let capacity = self.capacity();
        f.debug_struct("MessageBatch")
            .field("capacity", &capacity)
            .finish_non_exhaustive()
    }
}

impl MessageBatch {
    /// Creates space for `capacity` packets per call.
    pub fn new(capacity: usize) -> Self {
        MessageBatch {
            headers: vec![empty(); capacity].into(),
            slots: vec![Slot::EMPTY; capacity].into(),
        }
    }

    /// Number of packets for which there is space.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// One `recvmmsg`: receives a packet into each buffer, as far as there is space, and
    /// returns their number. [`MessageBatch::received`] describes each of them.
    ///
    /// # Errors
    /// The kernel's errors.
    pub fn receive<'a>(
        &mut self,
        fd: impl AsFd,
        buffers: impl Iterator<Item = &'a mut [u8]>,
        flags: i32,
    ) -> io::Result<usize> {
        let mut used: libc::c_uint = 0;
        let places = self.headers.iter_mut().zip(&mut self.slots);
        for ((header, slot), buffer) in places.zip(buffers) {
            slot.receive_into(&mut header.msg_hdr, buffer);
            used += 1;
        }
        // SAFETY: that many headers were prepared above. They point to slots, which stay
        // in place, and to distinct buffers that the iterator lent for longer than the
        // call.
        let received = unsafe {
            libc::recvmmsg(
                fd.as_fd().as_raw_fd(),
                self.headers.as_mut_ptr(),
                used,
                flags as _,
                ptr::null_mut(),
            )
        };
        count(received.into())
    }

    /// Describes packet `number` of the last [`MessageBatch::receive`]; meaningless for
    /// one that it did not fill.
    pub fn received(&self, number: usize) -> Option<Received> {
        let (header, slot) = (self.headers.get(number)?, self.slots.get(number)?);
        Some(slot.received(&header.msg_hdr, header.msg_len as usize))
    }

    /// One `sendmmsg` of as many messages as there is space for. Returns how many left.
    ///
    /// # Errors
    /// When none left: the kernel's error for the first.
    pub fn send<'a>(
        &mut self,
        fd: impl AsFd,
        messages: impl Iterator<Item = Message<'a>>,
        flags: i32,
    ) -> io::Result<usize> {
        let mut used: libc::c_uint = 0;
        let places = self.headers.iter_mut().zip(&mut self.slots);
        for ((header, slot), message) in places.zip(messages) {
            slot.send(&mut header.msg_hdr, &message);
            used += 1;
        }
        // SAFETY: that many headers were prepared above. They point to slots, which stay
        // in place, and to payloads lent for longer than the call, which are only read.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_fd().as_raw_fd(),
                self.headers.as_mut_ptr(),
                used,
                flags as _,
            )
        };
        count(sent.into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;
    use crate::set_option;

    fn pair() -> (UdpSocket, UdpSocket) {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        set_option(&receiver, libc::IPPROTO_IP, libc::IP_PKTINFO, 1).unwrap();
        (receiver, sender)
    }

    #[test]
    fn a_datagram_says_where_it_came_from_and_went() {
        let (receiver, sender) = pair();
        let message = Message {
            payload: b"hello",
            destination: Some(receiver.local_addr().unwrap()),
            source: Ipv4Addr::new(127, 0, 0, 5).into(),
            interface: 0,
        };
        assert_eq!(send_message(&sender, &message, 0).unwrap(), 5);
        let mut buffer = [0; 3];
        let received = receive_message(&receiver, &mut buffer, 0).unwrap();
        assert_eq!((received.length, received.truncated), (3, true));
        assert_eq!(received.source.unwrap().ip(), message.source);
        let here = Some(Ipv4Addr::LOCALHOST.into());
        assert_eq!(received.ancillary.destination, here);
        assert_eq!(received.ancillary.local, here);
    }

    #[test]
    fn datagrams_go_and_come_many_a_call() {
        let (receiver, sender) = pair();
        let mut batch = MessageBatch::new(4);
        for payload in [&b""[..], b"fourteen bytes"] {
            let message = Message {
                payload,
                destination: None,
                source: Ipv4Addr::UNSPECIFIED.into(),
                interface: 0,
            };
            let sent = batch.send(&sender, std::iter::repeat(message), 0);
            assert_eq!(sent.unwrap(), 4);
            let mut buffers = [[0; 64]; 9];
            let each = buffers.iter_mut().map(|buffer| &mut buffer[..]);
            let count = batch.receive(&receiver, each, libc::MSG_DONTWAIT);
            assert_eq!(count.unwrap(), 4);
            for (number, buffer) in buffers.iter().take(4).enumerate() {
                let received = batch.received(number).unwrap();
                assert_eq!(&buffer[..received.length], payload);
                assert_eq!(
                    received.source.unwrap().port(),
                    sender.local_addr().unwrap().port()
                );
            }
        }
        assert!(batch.received(4).is_none());
        let none = batch.receive(&receiver, std::iter::empty(), libc::MSG_DONTWAIT);
        assert_eq!(none.unwrap(), 0);
    }
}
