//! A link of this network namespace, asked whether it takes packets.

use core::mem;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::queueing::{self, Reply};

/// More than a queueing discipline is told with.
const REPLY_MAX: usize = 8192;

/// Datagrams looked at for one question; the kernel sends two.
const DATAGRAMS: usize = 8;

/// See the module. The socket is kept: what a question costs is a system call or
/// three.
pub(super) struct Device {
    socket: OwnedFd,
    link: u32,
    sequence: u32,
}

impl Device {
    /// The link of this name; nothing when there is none.
    pub(super) fn open(interface: &str) -> Option<Self> {
        let name = CString::new(interface).ok()?;
        // SAFETY: a C string.
        let link = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if link == 0 {
            return None;
        }
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: three numbers.
        let socket = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if socket < 0 {
            return None;
        }
        Some(Self {
            // SAFETY: just opened, and nobody else's.
            socket: unsafe { OwnedFd::from_raw_fd(socket) },
            link,
            sequence: 0,
        })
    }

    /// False when the root queueing discipline, as it is now, is a FIFO that
    /// takes nothing; true also when the kernel does not say.
    pub(super) fn has_room(&mut self) -> bool {
        self.sequence = self.sequence.wrapping_add(1);
        let request = queueing::request(self.link, self.sequence);
        let socket = self.socket.as_raw_fd();
        // SAFETY: all zeros is an address: the kernel's.
        let mut kernel: libc::sockaddr_nl = unsafe { mem::zeroed() };
        kernel.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        // SAFETY: an open socket, bytes and an address that outlive the call.
        let sent = unsafe {
            libc::sendto(
                socket,
                request.as_ptr().cast(),
                request.len(),
                libc::MSG_DONTWAIT,
                (&raw const kernel).cast(),
                mem::size_of_val(&kernel) as libc::socklen_t,
            )
        };
        if sent < 0 {
            return true;
        }
        let mut room = true;
        let mut buffer = [0u8; REPLY_MAX];
        for _ in 0..DATAGRAMS {
            // SAFETY: an open socket, a buffer of so many bytes. The kernel has
            // answered before `sendto` is back: nothing is waited for.
            let length = unsafe {
                libc::recv(
                    socket,
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            let Ok(length) = usize::try_from(length) else {
                break;
            };
            let datagram = buffer.get(..length).unwrap_or_default();
            for reply in queueing::replies(datagram, self.sequence) {
                match reply {
                    Reply::Refuses(refuses) => room = !refuses,
                    Reply::Done => return room,
                }
            }
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_room() {
        // Built in (`noqueue`): the kernel only acknowledges.
        let mut device = Device::open("lo").unwrap();
        for _ in 0..3 {
            assert!(device.has_room());
        }
        // Each answer was read to its end.
        let mut buffer = [0u8; 16];
        let socket = device.socket.as_raw_fd();
        // SAFETY: an open socket, a buffer of so many bytes.
        let left = unsafe {
            libc::recv(
                socket,
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_DONTWAIT,
            )
        };
        assert_eq!(left, -1);
    }

    #[test]
    fn no_link_is_no_device() {
        assert!(Device::open("none").is_none());
        assert!(Device::open("a\0b").is_none());
    }
}
