//! ioctls that take a `struct ifreq` (netdevice(7)), and those of a TUN/TAP
//! interface (Documentation/networking/tuntap.rst, linux/if_tun.h).

use std::fs::File;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Longest interface name (IFNAMSIZ less its closing zero).
const NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// Segments that we take uncut, and checksums that we take unfinished.
const TAKEN: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;

/// A socket for requests to the kernel about interfaces: any will do, and a host
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
/// ENODEV when there is none; InvalidInput for a name with a zero in it.
pub fn index(name: &str) -> io::Result<u32> {
    if name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(rustix::net::netdevice::name_to_index(any_socket()?, name)?)
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    let bytes = name.as_bytes();
    let odd = |byte: &u8| *byte == b'/' || *byte == b':' || !byte.is_ascii_graphic();
    if bytes.is_empty() || bytes.len() > NAME_MAX || bytes.iter().any(odd) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is no interface name: 1 to {NAME_MAX} letters, no / and no :"),
        ));
    }
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(request)
}

/// An ioctl that reads and writes a `struct ifreq`.
fn call(fd: impl AsFd, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: every caller below passes a number whose argument is a pointer to
    // `struct ifreq`, which is valid for the call's duration.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number, &raw mut *request) };
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes of the longest IP packet that an interface carries (SIOCGIFMTU).
///
/// # Errors
/// ENODEV; InvalidInput for a name that is none.
pub fn mtu(name: &str) -> io::Result<usize> {
    let mut interface = request(name)?;
    call(
        any_socket()?,
        libc::SIOCGIFMTU as libc::Ioctl,
        &mut interface,
    )?;
    // SAFETY: the kernel wrote the number, and any bits are a valid one.
    let mtu = unsafe { interface.ifr_ifru.ifru_mtu };
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// Makes a tap interface of this name, which goes when the descriptor is
/// closed. Reads and writes are of whole frames behind a virtio-net header and
/// never wait.
///
/// # Errors
/// InvalidInput for a name that is none; EBUSY when there is such an interface;
/// EPERM without CAP_NET_ADMIN; ENOENT without /dev/net/tun.
pub fn open_tap(name: &str) -> io::Result<File> {
    let mut request = request(name)?;
    let how = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open("/dev/net/tun", how, Mode::empty())?);
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL;
    // The kernel reads the sixteen bits as unsigned.
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    call(&file, libc::TUNSETIFF, &mut request)?;
    Ok(file)
}

/// Has the kernel give us long segments uncut and checksums unfinished. The
/// other way it takes both without being asked.
///
/// # Errors
/// EINVAL for a kernel that does not know one of them.
pub fn take_offloads(tap: &File) -> io::Result<()> {
    let taken = libc::c_ulong::from(TAKEN);
    // SAFETY: this ioctl takes a number, not a pointer.
    match unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD, taken) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The link address of the kernel's end of a tap interface.
///
/// # Errors
/// EBADFD for one that was removed.
pub fn link_address(tap: &File) -> io::Result<[u8; 6]> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut request: libc::ifreq = unsafe { zeroed() };
    call(tap, libc::SIOCGIFHWADDR as libc::Ioctl, &mut request)?;
    // SAFETY: the kernel filled the address; any bytes are a valid sockaddr.
    let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    let mut address = [0; 6];
    for (to, from) in address.iter_mut().zip(data) {
        *to = from as u8;
    }
    Ok(address)
}

/// Sets an interface's MTU, says that its link needs no neighbour resolution,
/// and brings it up.
///
/// # Errors
/// ENODEV; EINVAL for an MTU that it cannot have; EPERM without CAP_NET_ADMIN.
pub fn set_up(name: &str, mtu: u16) -> io::Result<()> {
    let socket = any_socket()?;
    let mut interface = request(name)?;
    interface.ifr_ifru.ifru_mtu = libc::c_int::from(mtu);
    call(&socket, libc::SIOCSIFMTU as libc::Ioctl, &mut interface)?;
    let mut interface = request(name)?;
    call(&socket, libc::SIOCGIFFLAGS as libc::Ioctl, &mut interface)?;
    // SAFETY: the kernel wrote the flags, and any bits are a valid number.
    let flags = unsafe { interface.ifr_ifru.ifru_flags };
    let up = (libc::IFF_UP | libc::IFF_NOARP) as libc::c_short;
    interface.ifr_ifru.ifru_flags = flags | up;
    call(&socket, libc::SIOCSIFFLAGS as libc::Ioctl, &mut interface)
}

/// A `struct sockaddr_ll` (packet(7)): a protocol on one interface.
struct LinkAddress(libc::sockaddr_ll);

// SAFETY: the structure is a complete address of family AF_PACKET.
unsafe impl SocketAddrArg for LinkAddress {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        let length = size_of::<libc::sockaddr_ll>() as SocketAddrLen;
        f((&raw const self.0).cast(), length)
    }
}

/// Binds a packet socket to the interface of this index and a protocol (ETH_P_*);
/// 0 receives nothing.
///
/// # Errors
/// ENODEV, ENETDOWN.
pub fn bind_packet(socket: impl AsFd, interface: u32, protocol: u16) -> io::Result<()> {
    let address = LinkAddress(libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: interface.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    });
    Ok(rustix::net::bind(socket, &address)?)
}
