//! ioctls that take a `struct ifreq` (netdevice(7)), and those of a TUN/TAP
//! interface (Documentation/networking/tuntap.rst, linux/if_tun.h).

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::address::chunk;
use crate::done;

/// Longest interface name (IFNAMSIZ less its terminating zero).
const NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// Offloads that we accept: unsegmented long segments, and unfinished checksums.
const TAKEN: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;

/// Opens a socket for requests about interfaces to the kernel. Any family will do; a host
/// without IPv4 has IPv6.
///
/// # Errors
/// EMFILE, ENFILE; EAFNOSUPPORT for a kernel without IP.
pub fn any_socket() -> io::Result<OwnedFd> {
    let open = |family| socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    Ok(open(AddressFamily::INET).or_else(|_| open(AddressFamily::INET6))?)
}

/// The index of the interface of this name in the caller's network namespace.
///
/// # Errors
/// ENODEV when there is none; InvalidInput for a name that contains a zero byte.
pub fn index(name: &str) -> io::Result<u32> {
    if name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(rustix::net::netdevice::name_to_index(any_socket()?, name)?)
}

/// The name of an interface in the caller's network namespace.
///
/// # Errors
/// ENXIO or ENODEV when there is none.
pub fn name(index: u32) -> io::Result<String> {
    Ok(rustix::net::netdevice::index_to_name(any_socket()?, index)?)
}

/// `struct ifreq`: a zero-terminated interface name, and the value that the kernel reads
/// or writes.
#[repr(C, align(8))]
pub(crate) struct Request {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

impl Request {
    /// Creates a request for an interface of this name and a value of at most 24 bytes.
    pub(crate) fn new(name: [u8; libc::IFNAMSIZ], value: &[u8]) -> Self {
        let mut request = Request {
            name,
            value: [0; 24],
        };
        for (to, from) in request.value.iter_mut().zip(value) {
            *to = *from;
        }
        request
    }

    /// InvalidInput for an invalid interface name.
    fn named(name: &str, value: &[u8]) -> io::Result<Self> {
        let bytes = name.as_bytes();
        let odd = |byte: &u8| *byte == b'/' || *byte == b':' || !byte.is_ascii_graphic();
        let mut closed = [0; libc::IFNAMSIZ];
        match closed.get_mut(..bytes.len()) {
            Some(place) if (1..=NAME_MAX).contains(&bytes.len()) && !bytes.iter().any(odd) => {
                place.copy_from_slice(bytes);
                Ok(Self::new(closed, value))
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name:?} is no interface name: 1 to {NAME_MAX} letters, no / and no :"),
            )),
        }
    }

    /// Executes an ioctl that reads and writes only a `struct ifreq` and memory for which
    /// a pointer in it is valid.
    pub(crate) fn call(&mut self, fd: impl AsFd, number: libc::c_ulong) -> io::Result<()> {
        // SAFETY: all callers in this crate guarantee this by calling it; it is laid out
        // as a `struct ifreq`.
        let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number as _, &raw mut *self) };
        done(result)
    }

    /// The first bytes of the value.
    fn value<const N: usize>(&self) -> [u8; N] {
        chunk(&self.value, 0).unwrap_or([0; N])
    }
}

/// Bytes of the longest IP packet that an interface carries (SIOCGIFMTU).
///
/// # Errors
/// ENODEV; InvalidInput for an invalid name.
pub fn mtu(name: &str) -> io::Result<usize> {
    let mut interface = Request::named(name, &[])?;
    interface.call(any_socket()?, libc::SIOCGIFMTU)?;
    Ok(usize::try_from(i32::from_ne_bytes(interface.value())).unwrap_or(0))
}

/// Creates a tap interface of this name, which is removed when the descriptor is closed.
/// Reads and writes transfer whole frames after a virtio-net header and never block.
///
/// # Errors
/// InvalidInput for an invalid name; EBUSY when there is such an interface; EPERM without
/// CAP_NET_ADMIN; ENOENT without /dev/net/tun.
pub fn open_tap(name: &str) -> io::Result<File> {
    open_tun_device(name, libc::IFF_TAP | libc::IFF_VNET_HDR)
}

/// Creates a tun interface of this name, as [`open_tap`]; reads and writes transfer whole
/// IP packets after a virtio-net header.
///
/// # Errors
/// As [`open_tap`].
pub fn open_tun(name: &str) -> io::Result<File> {
    open_tun_device(name, libc::IFF_TUN | libc::IFF_VNET_HDR)
}

fn open_tun_device(name: &str, kind: libc::c_int) -> io::Result<File> {
    let flags = kind | libc::IFF_NO_PI | libc::IFF_TUN_EXCL;
    // The kernel reads sixteen bits.
    let mut request = Request::named(name, &(flags as u16).to_ne_bytes())?;
    let how = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open("/dev/net/tun", how, Mode::empty())?);
    request.call(&file, libc::TUNSETIFF as _)?;
    Ok(file)
}

/// Makes the kernel pass us long segments unsegmented and checksums unfinished. In the
/// other direction it accepts both without a request.
///
/// # Errors
/// EINVAL for a kernel that does not support one of them.
pub fn take_offloads(tap: &File) -> io::Result<()> {
    let taken = libc::c_ulong::from(TAKEN);
    // SAFETY: this ioctl takes a number, not a pointer.
    done(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD, taken) })
}

/// The link address of the kernel end of a tap interface.
///
/// # Errors
/// EBADFD for an interface that was removed.
pub fn link_address(tap: &File) -> io::Result<[u8; 6]> {
    let mut request = Request::new([0; libc::IFNAMSIZ], &[]);
    request.call(tap, libc::SIOCGIFHWADDR)?;
    // After the family of a sockaddr.
    let [_, _, address @ ..] = request.value::<8>();
    Ok(address)
}

/// Sets an interface's IPv4 address and the length of its prefix, 0 to 32.
///
/// # Errors
/// ENODEV, EPERM without CAP_NET_ADMIN, EINVAL for an address that is invalid for an
/// interface.
pub fn set_address(name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let socket = any_socket()?;
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32)));
    let mask = Ipv4Addr::from_bits(mask.unwrap_or(0));
    for (number, address) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, mask)] {
        // The beginning of a sockaddr_in: family, port, address.
        let mut value = [0; 8];
        let (family, rest) = value.split_at_mut(2);
        family.copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        rest.split_at_mut(2).1.copy_from_slice(&address.octets());
        Request::named(name, &value)?.call(&socket, number)?;
    }
    Ok(())
}

/// Sets an interface's MTU, marks its link as needing no neighbour resolution, and sets
/// it up.
///
/// # Errors
/// ENODEV; EINVAL for an unsupported MTU; EPERM without CAP_NET_ADMIN.
pub fn set_up(name: &str, mtu: u16) -> io::Result<()> {
    let socket = any_socket()?;
    let mtu = i32::from(mtu).to_ne_bytes();
    Request::named(name, &mtu)?.call(&socket, libc::SIOCSIFMTU)?;
    let mut interface = Request::named(name, &[])?;
    interface.call(&socket, libc::SIOCGIFFLAGS)?;
    let up = (libc::IFF_UP | libc::IFF_NOARP) as u16;
    let flags = u16::from_ne_bytes(interface.value()) | up;
    Request::named(name, &flags.to_ne_bytes())?.call(&socket, libc::SIOCSIFFLAGS)
}

/// Binds a packet socket to the interface of this index and a protocol (ETH_P_*); with 0
/// it receives nothing.
///
/// # Errors
/// ENODEV, ENETDOWN.
pub fn bind_packet(socket: impl AsFd, interface: u32, protocol: u16) -> io::Result<()> {
    let address = packet_address(interface, protocol);
    let (fd, length) = (socket.as_fd().as_raw_fd(), size_of_val(&address));
    // SAFETY: an address and its length.
    done(unsafe { libc::bind(fd, (&raw const address).cast(), length as libc::socklen_t) })
}

/// `struct sockaddr_ll` of packet(7).
fn packet_address(interface: u32, protocol: u16) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: interface.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// From linux/if_packet.h.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Stops a packet socket from receiving packets that are sent on the interface
/// (PACKET_IGNORE_OUTGOING).
///
/// # Errors
/// ENOPROTOOPT before Linux 4.20.
pub fn ignore_outgoing(socket: impl AsFd) -> io::Result<()> {
    let (fd, on): (_, libc::c_int) = (socket.as_fd().as_raw_fd(), 1);
    let length = size_of_val(&on) as libc::socklen_t;
    let (level, option) = (libc::SOL_PACKET, PACKET_IGNORE_OUTGOING);
    // SAFETY: a number and its length.
    done(unsafe { libc::setsockopt(fd, level, option, (&raw const on).cast(), length) })
}

/// Sends a packet to a link address through a packet socket for which the kernel writes
/// the link header (SOCK_DGRAM).
///
/// # Errors
/// ENETDOWN, ENOBUFS and other errors of the device; WouldBlock.
pub fn send_packet(
    socket: impl AsFd,
    interface: u32,
    protocol: u16,
    to: [u8; 6],
    packet: &[u8],
) -> io::Result<()> {
    let mut address = packet_address(interface, protocol);
    address.sll_halen = 6;
    for (place, byte) in address.sll_addr.iter_mut().zip(to) {
        *place = byte;
    }
    let (fd, length) = (socket.as_fd().as_raw_fd(), size_of_val(&address));
    let (bytes, count) = (packet.as_ptr().cast(), packet.len());
    let (name, flags) = ((&raw const address).cast(), libc::MSG_NOSIGNAL);
    // SAFETY: bytes and an address, with their lengths.
    match unsafe { libc::sendto(fd, bytes, count, flags, name, length as libc::socklen_t) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
