//! A packet socket (packet(7)) on one interface: whole Ethernet frames in and
//! out, many a call, each with the time at which it came.

use std::ffi::CString;
use std::io;
use std::mem::{self, size_of, size_of_val};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Most frames of one receive or send call.
pub(super) const BATCH: usize = 64;
/// Bytes that may wait in a socket, in each direction: a second of a gigabit.
/// What finds it full is counted in [`Port::dropped`].
const BUFFER: libc::c_int = 128 << 20;
/// Bytes of an Ethernet header with one VLAN tag.
const HEADER: usize = 18;
/// Room for the control messages of a frame: its time and `tpacket_auxdata`.
const CONTROL: usize = 128;

/// Options of packet sockets that libc has no name for (`linux/if_packet.h`).
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// Status bits of `struct tpacket_auxdata`.
const TP_STATUS_CSUMNOTREADY: u32 = 1 << 3;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;

/// What came with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// Bytes of the frame, as many as the buffer holds.
    pub(super) length: usize,
    /// How long ago it came.
    pub(super) age: Duration,
    /// It cannot be forwarded as it was sent: longer than the interface's MTU
    /// (segmentation offload), without a checksum (checksum offload), or with a
    /// VLAN tag, which the kernel has taken off.
    pub(super) offloaded: bool,
}

/// A packet socket on one interface, in promiscuous mode.
#[derive(Debug)]
pub(super) struct Port {
    fd: OwnedFd,
    frame_max: usize,
    dropped: u64,
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

impl Port {
    /// Opens `interface`, of the caller's network namespace.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW and CAP_NET_ADMIN; ENODEV.
    pub(super) fn open(interface: &str) -> io::Result<Self> {
        let name = CString::new(interface)?;
        // SAFETY: a string that ends with a zero.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        // No protocol yet: nothing comes before the options are set.
        // SAFETY: no pointers.
        let fd = checked(unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        })?;
        // SAFETY: a descriptor that the kernel just returned to us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut port = Port {
            fd,
            frame_max: 0,
            dropped: 0,
        };
        port.frame_max = port.mtu(&name)? + HEADER;
        for (level, option, value) in [
            (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER),
            (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, BUFFER),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1),
            (libc::SOL_PACKET, libc::PACKET_AUXDATA, 1),
            (libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1),
            (libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1),
        ] {
            port.set(level, option, &value)?;
        }
        let member = libc::packet_mreq {
            mr_ifindex: index.cast_signed(),
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        port.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member)?;
        // SAFETY: all-zero is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index.cast_signed();
        // SAFETY: an initialised address of the length given.
        checked(unsafe {
            libc::bind(
                port.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        })?;
        Ok(port)
    }

    /// Bytes of the longest frame that the interface carries.
    pub(super) fn frame_max(&self) -> usize {
        self.frame_max
    }

    fn mtu(&self, name: &CString) -> io::Result<usize> {
        // SAFETY: all-zero is a valid ifreq.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        for (place, &byte) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
            *place = byte.cast_signed();
        }
        // SAFETY: the kernel reads the name, which ends with a zero, as names
        // of interfaces are shorter than the field, and writes the number.
        checked(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) })?;
        // SAFETY: the call has filled in this member.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(usize::try_from(mtu).unwrap_or(0))
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        // SAFETY: `value` is valid for reads of the length given.
        checked(unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                ptr::from_ref(value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        })
        .map(drop)
    }

    /// Takes frames that are there into `buffers`, the first of which is filled
    /// first, and what came with each into `arrivals`.
    ///
    /// # Errors
    /// ENETDOWN and the like; that there is none is no error.
    pub(super) fn receive(
        &self,
        buffers: &mut [Vec<u8>],
        arrivals: &mut Vec<Arrival>,
    ) -> io::Result<()> {
        arrivals.clear();
        let count = buffers.len().min(BATCH);
        let mut controls = [[0u64; CONTROL / 8]; BATCH];
        let mut parts: [libc::iovec; BATCH] = [libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        }; BATCH];
        // SAFETY: all-zero is a valid mmsghdr.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        let places = messages.iter_mut().zip(&mut parts).zip(&mut controls);
        for (((message, part), control), buffer) in places.zip(buffers.iter_mut()) {
            part.iov_base = buffer.as_mut_ptr().cast();
            part.iov_len = buffer.len();
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = control.as_mut_ptr().cast();
            message.msg_hdr.msg_controllen = CONTROL;
        }
        // SAFETY: `count` headers are initialised; each points at a part that
        // describes a whole buffer and at room for control messages, all of
        // which outlive the call, and no two of which overlap.
        let received = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        if received < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error),
            };
        }
        let now = SystemTime::now();
        let received = usize::try_from(received).unwrap_or(0);
        for message in messages.iter().take(received) {
            let length = message.msg_len as usize;
            let mut arrival = Arrival {
                length,
                age: Duration::ZERO,
                offloaded: message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            };
            read_control(&message.msg_hdr, now, &mut arrival);
            arrivals.push(arrival);
        }
        Ok(())
    }

    /// Sends frames in their order; returns how many were sent before one could
    /// not be.
    ///
    /// # Errors
    /// When that is the first: ENOBUFS when the other side has no room.
    pub(super) fn send<'a>(&self, frames: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
        let mut parts: [libc::iovec; BATCH] = [libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        }; BATCH];
        // SAFETY: all-zero is a valid mmsghdr.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        let mut count = 0;
        for ((message, part), frame) in messages.iter_mut().zip(&mut parts).zip(frames) {
            part.iov_base = frame.as_ptr().cast_mut().cast();
            part.iov_len = frame.len();
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        // SAFETY: `count` headers are initialised; each points at a part that
        // describes a frame borrowed for the call. Sending only reads them.
        let sent = unsafe {
            libc::sendmmsg(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Frames so far that came and found the socket full.
    pub(super) fn dropped(&mut self) -> u64 {
        let mut counts = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut length = size_of_val(&counts) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into `counts`. It
        // begins to count anew with each call.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut counts).cast(),
                &raw mut length,
            )
        };
        if result == 0 {
            self.dropped += u64::from(counts.tp_drops);
        }
        self.dropped
    }
}

/// Reads the time and the state of a frame out of its control messages.
fn read_control(header: &libc::msghdr, now: SystemTime, arrival: &mut Arrival) {
    // SAFETY: the kernel has filled in the header and the messages that it
    // points at, which are aligned for their type and outlive this call.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !message.is_null() {
        // SAFETY: not null, so it points at a whole message within the room.
        let (level, kind, data) = unsafe {
            (
                (*message).cmsg_level,
                (*message).cmsg_type,
                libc::CMSG_DATA(message),
            )
        };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            // SAFETY: a message of this type holds a timespec.
            let stamp = unsafe { data.cast::<libc::timespec>().read_unaligned() };
            let since = Duration::new(stamp.tv_sec.cast_unsigned(), stamp.tv_nsec as u32);
            // Zero for a clock that was set back meanwhile.
            arrival.age = now.duration_since(UNIX_EPOCH + since).unwrap_or_default();
        }
        if (level, kind) == (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
            // SAFETY: a message of this type holds a tpacket_auxdata.
            let data = unsafe { data.cast::<libc::tpacket_auxdata>().read_unaligned() };
            arrival.offloaded |=
                data.tp_status & (TP_STATUS_CSUMNOTREADY | TP_STATUS_VLAN_VALID) != 0;
        }
        // SAFETY: `message` lies within the room that `header` describes.
        message = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
}

/// Sleeps until a frame has come at one of the ports, or `timeout` is over. A
/// signal ends the sleep too.
///
/// # Errors
/// What `ppoll` reports.
pub(super) fn wait(ports: &[Port], timeout: Duration) -> io::Result<()> {
    let descriptors: Vec<_> = ports.iter().map(|port| port.fd.as_fd()).collect();
    tidewall_load::wait_readable(&descriptors, timeout)
}

/// Makes the calling thread's sleeps end as exactly as the kernel can: ordinary
/// threads may sleep 50 µs longer.
pub(super) fn sleep_exactly() {
    // SAFETY: PR_SET_TIMERSLACK takes a number and no pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

/// Processor time that the calling thread has used.
pub(super) fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for writes.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}
