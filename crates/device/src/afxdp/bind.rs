//! Creates and binds an AF_XDP socket: frame memory, rings, the queue.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, xdp_mmap_offsets, xdp_options,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpOptionsFlags, XdpRingOffset,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tidewall_sys::netlink::{Netdev, XDP_ZERO_COPY};

use super::checksums::{self, Checksums};
use super::sent_pieces::SentPieces;
use super::socket::{TRANSMIT_RING, TX_METADATA_LENGTH, TransmitHalf, WAITING_RING, WaitingHalf};
use super::umem::SharedUmem;
use crate::capabilities;
use crate::demux::layout::METADATA_LENGTH;
use crate::forked::Unshared;
use crate::frame::{FRAME_SIZE, Frame, FrameMemory, Part};
use crate::raw::ring::{Ring, RingOffset};
use crate::raw::umem::register;

/// A queue stays busy for some tens of milliseconds after its last owner exits, while the
/// kernel tears the old socket down.
const BIND_TRIES: u32 = 100;
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// The origin of a queue's frames.
pub(super) enum Frames<'a> {
    /// This many frames, in memory of the queue's own.
    Own(u32),
    /// A part of a memory that several queues share.
    Shared(&'a mut SharedUmem),
}

/// A socket bound to its queue, with its mappings. Receiving and transmit-only sockets
/// both start as this.
pub(super) struct Bound {
    pub(super) fd: Arc<Unshared<OwnedFd>>,
    pub(super) part: Part,
    /// File through which another process maps the memory; `None` for shared memory.
    pub(super) file: Option<OwnedFd>,
    pub(super) rings: Rings,
    pub(super) zero_copy: bool,
    /// The kernel registered room for transmit metadata.
    pub(super) tx_metadata: bool,
}

/// A socket with everything that does not need its queue.
pub(super) struct Unbound {
    fd: Arc<Unshared<OwnedFd>>,
    part: Part,
    file: Option<OwnedFd>,
    rings: Rings,
    tx_metadata: bool,
}

/// The rings of a socket.
pub(super) struct Rings {
    fill: Ring<u64>,
    completions: Ring<u64>,
    receive: Option<Ring<libc::xdp_desc>>,
    transmit: Ring<libc::xdp_desc>,
}

/// The halves that a [`Bound`] is split into.
pub(super) struct Halves {
    pub(super) memory: FrameMemory,
    pub(super) fill: Ring<u64>,
    pub(super) receive: Option<Ring<libc::xdp_desc>>,
    pub(super) transmit: TransmitHalf,
    /// The free frames.
    pub(super) frames: Vec<Frame>,
}

impl Rings {
    /// Maps a socket's rings, with `fill` entries in one and `receive` in another. Before
    /// Linux 6.4 this works only while the socket is not bound.
    pub(super) fn map(fd: BorrowedFd<'_>, fill: u32, receive: Option<u32>) -> io::Result<Self> {
        let offsets = xdp_mmap_offsets(fd)?;
        let receive_ring = |entries| {
            let page_offset = libc::XDP_PGOFF_RX_RING as u64;
            Ring::map(fd, raw(offsets.rx), entries, page_offset)
        };
        Ok(Rings {
            fill: Ring::map(fd, raw(offsets.fr), fill, libc::XDP_UMEM_PGOFF_FILL_RING)?,
            completions: Ring::map(
                fd,
                raw(offsets.cr),
                TRANSMIT_RING,
                libc::XDP_UMEM_PGOFF_COMPLETION_RING,
            )?,
            receive: receive.map(receive_ring).transpose()?,
            transmit: Ring::map(
                fd,
                raw(offsets.tx),
                TRANSMIT_RING,
                libc::XDP_PGOFF_TX_RING as u64,
            )?,
        })
    }
}

impl Bound {
    /// A card's buffers are whole KiB (igb, ixgbe). With frames of 2 KiB less the
    /// headroom it would use a buffer of one KiB and drop every longer frame.
    pub(super) fn wants_larger_frames(&self) -> bool {
        self.zero_copy && self.part.memory().frame_size() < LARGE_FRAME
    }

    /// Returns both halves once it is known who computes checksums: nothing may have been
    /// sent before. `place`: interface, its index, queue.
    pub(super) fn into_halves(self, place: (&str, u32, u32)) -> Halves {
        let (memory, mut frames) = self.part.into_frames();
        let mut transmit = TransmitHalf {
            fd: self.fd,
            memory: memory.clone(),
            frame_shift: frame_shift(&memory),
            transmit: self.rings.transmit,
            completions: self.rings.completions,
            checksums: Checksums::NoMetadata,
            segments: None,
            pieces: SentPieces::default(),
        };
        transmit.checksums = checksums::find_out(
            place,
            self.tx_metadata,
            self.zero_copy,
            &mut transmit,
            &mut frames,
        );
        Halves {
            memory,
            fill: self.rings.fill,
            receive: self.rings.receive,
            transmit,
            frames,
        }
    }
}

/// Frames lie at multiples of 2 to this power. A division by a run-time value would be
/// the slowest part of taking a frame.
pub(super) fn frame_shift(memory: &FrameMemory) -> u32 {
    memory.frame_size().trailing_zeros()
}

/// Describes what the kernel refused for a queue, and the remedy.
pub(super) fn refused(interface: &str, queue: u32, what: &str, error: &io::Error) -> io::Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM) => {
            let (cause, remedy) =
                capabilities::refusal(&[capabilities::NET_RAW, capabilities::NET_ADMIN]);
            format!("; {cause}: {remedy}")
        }
        Some(libc::ENOBUFS | libc::ENOMEM) => {
            "; too little memory may be locked: ulimit -l unlimited, or see: tidewall doctor"
                .to_owned()
        }
        Some(libc::EBUSY) => {
            "; another AF_XDP socket holds the queue (see: ss --xdp --processes)".to_owned()
        }
        Some(libc::ENETDOWN) => format!("; ip link set dev {interface} up"),
        Some(libc::EAFNOSUPPORT) => {
            "; this kernel is built without AF_XDP (CONFIG_XDP_SOCKETS)".to_owned()
        }
        _ => String::new(),
    };
    io::Error::new(
        error.kind(),
        format!("queue {queue} of {interface}: cannot {what}: {error}{remedy}"),
    )
}

/// Bytes that the kernel leaves free before a received packet
/// (XDP_PACKET_HEADROOM).
const HEADROOM: usize = 256;
/// Bytes of a frame beside the IP datagram: Ethernet header, a VLAN tag, and our metadata
/// where it is in the frame.
const BESIDE: usize = 14 + 4 + METADATA_LENGTH;
/// Bytes of the larger frames: one page, the most that the kernel accepts.
pub(super) const LARGE_FRAME: usize = 4096;

/// In `sxdp_flags`: packets may come in several frames (linux/if_xdp.h, Linux 6.6).
const XDP_USE_SG: u16 = 1 << 4;

/// Longest IP datagram, in bytes, that fits into one frame of this size.
pub fn receivable(frame_size: usize) -> usize {
    frame_size.saturating_sub(HEADROOM + BESIDE)
}

/// The queue to bind.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) interface: &'a str,
    pub(super) index: u32,
    pub(super) queue: u32,
    /// Wait for the queue if another socket holds it.
    pub(super) wait: bool,
    /// See [`super::Settings`].
    pub(super) trusted: bool,
}

impl Place<'_> {
    /// Describes what the kernel refused, and the remedy.
    pub(super) fn refused(&self, what: &str, error: &io::Error) -> io::Error {
        refused(self.interface, self.queue, what, error)
    }
}

pub(super) fn bind(
    place: Place<'_>,
    frames: Frames<'_>,
    receive_ring: Option<u32>,
    flags: u16,
) -> io::Result<Bound> {
    let bind = |part, umem: Option<&(Arc<Unshared<OwnedFd>>, bool)>, flags| {
        let unbound = Unbound::new(place, part, umem, receive_ring)?;
        unbound.bind(place, umem.map(|(fd, _)| fd.as_fd()), flags)?;
        io::Result::Ok(unbound.into_bound())
    };
    match frames {
        Frames::Own(frames) => {
            let own = |frame_size| {
                let unbound = Unbound::with_memory(place, frames, frame_size, receive_ring)?;
                unbound.bind(place, None, flags)?;
                io::Result::Ok(unbound.into_bound())
            };
            let bound = own(frame_size(place.interface))?;
            if bound.wants_larger_frames() {
                drop(bound);
                own(LARGE_FRAME)
            } else {
                Ok(bound)
            }
        }
        Frames::Shared(umem) => {
            let part = umem.take_part().ok_or_else(|| {
                let error = io::Error::from_raw_os_error(libc::ENOBUFS);
                place.refused("have a part of the frame memory", &error)
            })?;
            let first = umem.first.as_ref();
            let bound = bind(part, first, libc::XDP_COPY)?;
            umem.first
                .get_or_insert((bound.fd.clone(), bound.tx_metadata));
            Ok(bound)
        }
    }
}

/// Returns the frame size in bytes that an interface's MTU needs.
pub(super) fn frame_size(interface: &str) -> usize {
    mtu(interface).map_or(FRAME_SIZE, frame_size_of)
}

/// Returns the frame size in bytes that an MTU needs.
pub fn frame_size_of(mtu: usize) -> usize {
    match mtu > receivable(FRAME_SIZE) {
        true => LARGE_FRAME,
        false => FRAME_SIZE,
    }
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINVAL)
}

/// Number of frames that an IP datagram of this MTU may need.
pub(super) fn pieces_of(mtu: usize, frame_size: usize) -> u32 {
    let room = frame_size.saturating_sub(HEADROOM).max(1);
    (mtu + BESIDE).div_ceil(room) as u32
}

/// Whether this kernel gives an AF_XDP socket packets in several frames (Linux 6.6).
pub(super) fn can_join() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|it: char| !it.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    matches!((next(), next()), (Some(major), Some(minor)) if (major, minor) >= (6_u32, 6_u32))
}

/// Whether a bound socket receives packets longer than a frame in several frames: the
/// kernel can, and it was requested ([`Unbound::bind`]).
pub(super) fn joins(interface: &str, zero_copy: bool) -> bool {
    let mtu = mtu(interface).unwrap_or(0);
    can_join() && (!zero_copy || mtu > receivable(LARGE_FRAME))
}

/// Whether a driver moves an interface's frames without copying; true if in doubt.
fn moves_frames(index: u32) -> bool {
    let features = Netdev::open().and_then(|mut netdev| netdev.xdp_features(index));
    features.map_or(true, |features| features & XDP_ZERO_COPY != 0)
}

/// Returns an interface's MTU in bytes.
pub(super) fn mtu(interface: &str) -> Option<usize> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/mtu")).ok()?;
    text.trim().parse().ok()
}

impl Unbound {
    /// Creates a socket with memory of its own, which another process can map.
    pub(super) fn with_memory(
        place: Place<'_>,
        frames: u32,
        frame_size: usize,
        receive_ring: Option<u32>,
    ) -> io::Result<Self> {
        let (memory, file) = FrameMemory::with_file(frames, frame_size)?;
        let unbound = Self::new(place, Part::whole(memory), None, receive_ring)?;
        let file = Some(file);
        Ok(Unbound { file, ..unbound })
    }

    /// `umem`: the socket that registered the memory, and whether with transmit metadata.
    /// With `None` this socket registers it.
    fn new(
        place: Place<'_>,
        part: Part,
        umem: Option<&(Arc<Unshared<OwnedFd>>, bool)>,
        receive_ring: Option<u32>,
    ) -> io::Result<Self> {
        let refused = |what: &'static str| move |error: io::Error| place.refused(what, &error);
        let frames = part.frames();
        let cloexec = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, cloexec, None);
        let fd =
            Arc::new(Unshared::new(socket.map_err(|error| {
                refused("open an AF_XDP socket")(error.into())
            })?)?);
        let tx_metadata = match umem {
            Some(&(_, tx_metadata)) => tx_metadata,
            None => {
                // Older kernels do not know transmit metadata.
                let tx_metadata = place.trusted
                    && register(fd.as_fd(), part.memory(), TX_METADATA_LENGTH).is_ok();
                if !tx_metadata {
                    register(fd.as_fd(), part.memory(), 0)
                        .map_err(refused("register frame memory"))?;
                }
                tx_metadata
            }
        };
        set_xdp_umem_fill_ring_size(fd.as_fd(), frames)?;
        set_xdp_umem_completion_ring_size(fd.as_fd(), TRANSMIT_RING)?;
        if let Some(entries) = receive_ring {
            set_xdp_rx_ring_size(fd.as_fd(), entries)?;
        }
        set_xdp_tx_ring_size(fd.as_fd(), TRANSMIT_RING)?;
        let rings = Rings::map(fd.as_fd(), frames, receive_ring)?;
        Ok(Unbound {
            fd,
            part,
            file: None,
            rings,
            tx_metadata,
        })
    }

    /// Bytes of its frames.
    pub(super) fn frame_size(&self) -> usize {
        self.part.memory().frame_size()
    }

    /// Binds the socket, or leaves it as it was. `umem`: the socket whose memory it
    /// shares.
    pub(super) fn bind(
        &self,
        place: Place<'_>,
        umem: Option<BorrowedFd<'_>>,
        flags: u16,
    ) -> io::Result<()> {
        let mtu = mtu(place.interface).unwrap_or(0);
        let is_long = mtu > receivable(LARGE_FRAME);
        // Some drivers' zero-copy modes do not support packets in several frames; the
        // kernel would then copy. All sockets of a memory have the flag from the first.
        let joins = umem.is_none()
            && (is_long || flags & libc::XDP_COPY != 0 || !moves_frames(place.index));
        let bind = |flags| bind_retrying(self.fd.as_fd(), place, umem, flags);
        let mut bound = bind(if joins { flags | XDP_USE_SG } else { flags });
        if joins && bound.as_ref().is_err_and(is_invalid) {
            bound = match is_long {
                false => bind(flags),
                true => {
                    let most = receivable(LARGE_FRAME);
                    let error = io::Error::new(
                        io::ErrorKind::Unsupported,
                        format!(
                            "the MTU is {mtu}, and this kernel gives an AF_XDP socket no packet \
                             in several frames (Linux 6.6 does); here: ip link set dev {} mtu \
                             {most}",
                            place.interface
                        ),
                    );
                    Err(error)
                }
            };
        }
        bound.map_err(|error| place.refused("bind an AF_XDP socket", &error))
    }

    /// Returns the bound socket.
    pub(super) fn into_bound(self) -> Bound {
        let options = xdp_options(self.fd.as_fd()).unwrap_or(XdpOptionsFlags::empty());
        Bound {
            zero_copy: options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY),
            fd: self.fd,
            part: self.part,
            file: self.file,
            rings: self.rings,
            tx_metadata: self.tx_metadata,
        }
    }
}

/// A second socket for a queue, with a receive ring of its own on which no thread sleeps.
pub(super) fn waiting_half() -> io::Result<WaitingHalf> {
    let cloexec = SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::XDP, SocketType::RAW, cloexec, None)?;
    set_xdp_rx_ring_size(&fd, WAITING_RING)?;
    map_waiting(fd)
}

/// Binds the socket to the queue of `first`, over the same memory.
pub(super) fn bind_waiting(
    waiting: &WaitingHalf,
    first: &Bound,
    place: Place<'_>,
) -> io::Result<()> {
    bind_retrying(waiting.fd.as_fd(), place, Some(first.fd.as_fd()), 0)
}

/// Maps the ring of such a socket. Before Linux 6.4 this works only while it is not
/// bound.
pub(super) fn map_waiting(fd: OwnedFd) -> io::Result<WaitingHalf> {
    let offsets = xdp_mmap_offsets(&fd)?;
    let page_offset = libc::XDP_PGOFF_RX_RING as u64;
    let ring = Ring::map(fd.as_fd(), raw(offsets.rx), WAITING_RING, page_offset)?;
    Ok(WaitingHalf {
        fd: Arc::new(Unshared::new(fd)?),
        ring,
    })
}

/// Offsets of a ring as the kernel reports them.
fn raw(offsets: XdpRingOffset) -> RingOffset {
    RingOffset {
        producer: offsets.producer,
        consumer: offsets.consumer,
        desc: offsets.desc,
        flags: offsets.flags.unwrap_or(0),
    }
}

fn bind_retrying(
    fd: BorrowedFd<'_>,
    place: Place<'_>,
    umem: Option<BorrowedFd<'_>>,
    flags: u16,
) -> io::Result<()> {
    let address = |flags| {
        let flags = SocketAddrXdpFlags::from_bits_retain(flags);
        SocketAddrXdp::new(flags, place.index, place.queue)
    };
    let mut tries = 0;
    loop {
        let bound = match umem {
            // The kernel takes every other flag from the socket that it shares with.
            Some(shared_umem_fd) => {
                let addr = address(libc::XDP_SHARED_UMEM);
                let address = SocketAddrXdpWithSharedUmem {
                    addr,
                    shared_umem_fd,
                };
                rustix::net::bind(fd, &address)
            }
            None => rustix::net::bind(fd, &address(libc::XDP_USE_NEED_WAKEUP | flags)),
        };
        match bound {
            Err(Errno::BUSY) if place.wait && tries < BIND_TRIES => {
                tries += 1;
                std::thread::sleep(BIND_PAUSE);
            }
            result => return Ok(result?),
        }
    }
}
