//! Making and binding an AF_XDP socket: frame memory, rings, the queue.

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

use super::checksums::{self, Checksums};
use super::socket::{TRANSMIT_RING, TX_METADATA_LENGTH, TransmitHalf, WAITING_RING, WaitingHalf};
use super::umem::SharedUmem;
use crate::capabilities;
use crate::demux::layout::METADATA_LENGTH;
use crate::forked::Unshared;
use crate::frame::{FRAME_SIZE, Frame, FrameMemory, Part};
use crate::raw::ring::{Ring, RingOffset};
use crate::raw::umem::register;

/// A queue stays busy for some tens of milliseconds after its last owner is
/// gone, while the kernel tears the old socket down.
const BIND_TRIES: u32 = 100;
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// Where the frames of a queue come from.
pub(super) enum Frames<'a> {
    /// So many, of a memory of its own.
    Own(u32),
    /// A part of a memory that other queues have parts of.
    Shared(&'a mut SharedUmem),
}

/// The parts that receiving and transmit-only sockets share.
pub(super) struct Bound {
    pub(super) fd: Arc<Unshared<OwnedFd>>,
    pub(super) memory: FrameMemory,
    pub(super) fill: Ring<u64>,
    pub(super) receive: Option<Ring<libc::xdp_desc>>,
    pub(super) transmit: TransmitHalf,
    pub(super) zero_copy: bool,
    /// The kernel registered room for transmit metadata.
    tx_metadata: bool,
    /// Those that are with nobody.
    pub(super) frames: Vec<Frame>,
}

/// Frames lie at multiples of 2 to this power: a division by what is only known
/// at run time would be the slowest part of taking a frame.
pub(super) fn frame_shift(memory: &FrameMemory) -> u32 {
    memory.frame_size().trailing_zeros()
}

/// What the kernel refused of a queue, and the remedy.
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
/// Bytes of a frame beside the IP datagram: Ethernet header, a VLAN tag, and our
/// metadata where they are in the frame.
const BESIDE: usize = 14 + 4 + METADATA_LENGTH;
/// Bytes of the larger frames: the most that the kernel takes, a page.
const LARGE_FRAME: usize = 4096;

/// Longest IP datagram, in bytes, that is received in a frame of this size.
pub fn receivable(frame_size: usize) -> usize {
    frame_size.saturating_sub(HEADROOM + BESIDE)
}

pub(super) fn bind(
    interface: &str,
    index: u32,
    queue: u32,
    frames: Frames<'_>,
    receive_ring: Option<u32>,
    flags: u16,
) -> io::Result<Bound> {
    let bind =
        |part, umem, flags| bind_part(interface, index, queue, part, umem, receive_ring, flags);
    let mut bound = match frames {
        Frames::Own(frames) => {
            let own = |frame_size| {
                let memory = FrameMemory::with_frame_size(frames, frame_size)?;
                bind(Part::whole(memory), None, flags)
            };
            let frame_size = frame_size(interface);
            let bound = own(frame_size)?;
            if bound.zero_copy && frame_size < LARGE_FRAME {
                // Buffers of a card are of whole KiB (igb, ixgbe): of 2 KiB less the
                // headroom it would use one, and drop every longer frame.
                drop(bound);
                own(LARGE_FRAME)?
            } else {
                bound
            }
        }
        Frames::Shared(umem) => {
            let part = umem.take_part().ok_or_else(|| {
                let error = io::Error::from_raw_os_error(libc::ENOBUFS);
                refused(interface, queue, "have a part of the frame memory", &error)
            })?;
            let first = umem.first.as_ref();
            let bound = bind(part, first, libc::XDP_COPY)?;
            umem.first
                .get_or_insert((bound.fd.clone(), bound.tx_metadata));
            bound
        }
    };
    bound.transmit.checksums = checksums::find_out(
        (interface, index, queue),
        bound.tx_metadata,
        bound.zero_copy,
        &mut bound.transmit,
        &mut bound.frames,
    );
    Ok(bound)
}

/// Bytes of the frames that an interface's MTU needs.
pub(super) fn frame_size(interface: &str) -> usize {
    match mtu(interface) {
        Some(mtu) if mtu > receivable(FRAME_SIZE) => LARGE_FRAME,
        _ => FRAME_SIZE,
    }
}

fn mtu(interface: &str) -> Option<usize> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/mtu")).ok()?;
    text.trim().parse().ok()
}

/// `umem`: the socket that registered the memory, and whether with transmit metadata;
/// `None`: this one does.
fn bind_part(
    interface: &str,
    index: u32,
    queue: u32,
    part: Part,
    umem: Option<&(Arc<Unshared<OwnedFd>>, bool)>,
    receive_ring: Option<u32>,
    flags: u16,
) -> io::Result<Bound> {
    let refused =
        |what: &'static str| move |error: io::Error| refused(interface, queue, what, &error);
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
            // Older kernels know of no transmit metadata.
            let tx_metadata = register(fd.as_fd(), part.memory(), TX_METADATA_LENGTH).is_ok();
            if !tx_metadata {
                register(fd.as_fd(), part.memory(), 0).map_err(refused("register frame memory"))?;
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
    let offsets = xdp_mmap_offsets(fd.as_fd())?;
    let fill = Ring::map(
        fd.as_fd(),
        raw(offsets.fr),
        frames,
        libc::XDP_UMEM_PGOFF_FILL_RING,
    )?;
    let completions = Ring::map(
        fd.as_fd(),
        raw(offsets.cr),
        TRANSMIT_RING,
        libc::XDP_UMEM_PGOFF_COMPLETION_RING,
    )?;
    let receive = receive_ring
        .map(|entries| {
            Ring::map(
                fd.as_fd(),
                raw(offsets.rx),
                entries,
                libc::XDP_PGOFF_RX_RING as u64,
            )
        })
        .transpose()?;
    let transmit = Ring::map(
        fd.as_fd(),
        raw(offsets.tx),
        TRANSMIT_RING,
        libc::XDP_PGOFF_TX_RING as u64,
    )?;
    let umem = umem.map(|(fd, _)| fd.as_fd());
    bind_retrying(fd.as_fd(), index, queue, umem, flags)
        .map_err(refused("bind an AF_XDP socket"))?;
    let options = xdp_options(fd.as_fd()).unwrap_or(XdpOptionsFlags::empty());
    let zero_copy = options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
    let (memory, frames) = part.into_frames();
    Ok(Bound {
        fill,
        receive,
        transmit: TransmitHalf {
            fd: fd.clone(),
            memory: memory.clone(),
            frame_shift: frame_shift(&memory),
            transmit,
            completions,
            checksums: Checksums::NoMetadata,
        },
        fd,
        memory,
        zero_copy,
        tx_metadata,
        frames,
    })
}

/// A second socket on the queue of `first`, over the same memory, which has a receive
/// ring of its own: nobody sleeps on it.
pub(super) fn bind_waiting(
    first: BorrowedFd<'_>,
    index: u32,
    queue: u32,
) -> io::Result<WaitingHalf> {
    let cloexec = SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::XDP, SocketType::RAW, cloexec, None)?;
    set_xdp_rx_ring_size(&fd, WAITING_RING)?;
    let offsets = xdp_mmap_offsets(&fd)?;
    let page_offset = libc::XDP_PGOFF_RX_RING as u64;
    let ring = Ring::map(fd.as_fd(), raw(offsets.rx), WAITING_RING, page_offset)?;
    bind_retrying(fd.as_fd(), index, queue, Some(first), 0)?;
    Ok(WaitingHalf {
        fd: Arc::new(Unshared::new(fd)?),
        ring,
    })
}

/// Offsets of a ring as the kernel has them.
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
    interface: u32,
    queue: u32,
    umem: Option<BorrowedFd<'_>>,
    flags: u16,
) -> io::Result<()> {
    let address = |flags| {
        SocketAddrXdp::new(
            SocketAddrXdpFlags::from_bits_retain(flags),
            interface,
            queue,
        )
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
            Err(Errno::BUSY) if tries < BIND_TRIES => {
                tries += 1;
                std::thread::sleep(BIND_PAUSE);
            }
            result => return Ok(result?),
        }
    }
}
