//! Hands a queue's socket over from the process privileged to create it to the process
//! that uses it.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tidewall_sys::interface;

use super::bind::{
    Bound, Frames, Place, Rings, Unbound, bind, bind_waiting, frame_size, frame_size_of,
    map_waiting, waiting_half,
};
use super::napi::{helpers, no_helpers};
use super::socket::{Settings, WaitingHalf};
use super::umem::SharedUmem;
use crate::forked::Unshared;
use crate::frame::{FrameMemory, Part};

/// The facts about a queue that another process needs to use its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The device's queue.
    pub queue: u32,
    /// Frames of memory, and entries of the fill ring.
    pub frames: u32,
    /// Bytes of a frame.
    pub frame_size: u32,
    /// Entries of the receive ring.
    pub receive_ring: u32,
    /// The driver moves frames without copying.
    pub zero_copy: bool,
    /// Frames may have transmit metadata.
    pub transmit_metadata: bool,
    /// There is a second socket, for frames that may wait.
    pub waiting: bool,
}

/// A queue's bound sockets, with memory and rings. Nothing has been received or sent.
pub struct Made {
    pub(super) queue: u32,
    receive_ring: u32,
    pub(super) bound: Bound,
    /// The socket for frames that may wait; `None` where the kernel refuses it.
    pub(super) waiting: Option<WaitingHalf>,
    pub(super) helpers: [UdpSocket; 2],
}

/// Creates what [`adopt`](super::adopt) receives and sends with, on a part of `umem` or
/// on memory of its own.
///
/// # Errors
/// - ENODEV
/// - with an explanation: EPERM without CAP_NET_RAW and CAP_NET_ADMIN
/// - with an explanation: EBUSY when another socket holds the queue
/// - with an explanation: ENOBUFS when memory may not be locked or no part of `umem` is
///   left
/// - what the kernel reports otherwise
pub fn make(
    settings: &Settings<'_>,
    queue: u32,
    umem: Option<&mut SharedUmem>,
) -> io::Result<Made> {
    let place = place(settings, queue)?;
    let frames = match umem {
        Some(umem) => Frames::Shared(umem),
        None => Frames::Own(settings.frames),
    };
    let bound = bind(place, frames, Some(settings.receive_ring), flags(settings))?;
    Ok(Beside::new(place)?.with(place, settings.receive_ring, bound))
}

fn place<'a>(settings: &Settings<'a>, queue: u32) -> io::Result<Place<'a>> {
    Ok(Place {
        interface: settings.interface,
        index: interface::index(settings.interface)?,
        queue,
        wait: settings.wait,
        trusted: settings.trusted,
    })
}

fn flags(settings: &Settings<'_>) -> u16 {
    if settings.copy { libc::XDP_COPY } else { 0 }
}

/// The parts of a queue beside its first socket.
struct Beside {
    /// Not bound.
    waiting: Option<WaitingHalf>,
    helpers: [UdpSocket; 2],
}

impl Beside {
    fn new(place: Place<'_>) -> io::Result<Self> {
        let helpers = match place.trusted {
            true => helpers(),
            false => no_helpers(),
        };
        Ok(Beside {
            // Without it every frame wakes.
            waiting: waiting_half().ok(),
            helpers: helpers.map_err(|error| place.refused("prefer busy polling", &error))?,
        })
    }

    fn with(self, place: Place<'_>, receive_ring: u32, bound: Bound) -> Made {
        let is_bound = |waiting: &WaitingHalf| bind_waiting(waiting, &bound, place).is_ok();
        Made {
            queue: place.queue,
            receive_ring,
            waiting: self.waiting.filter(is_bound),
            bound,
            helpers: self.helpers,
        }
    }
}

/// The parts of a queue that can be prepared while another socket holds it: pinned
/// memory, rings, and the additional sockets. Only binding is left.
pub struct Prepared {
    unbound: Box<Unbound>,
    beside: Beside,
    /// Index of the interface.
    index: u32,
}

impl Prepared {
    /// Prepares a queue of an interface; its number is chosen later.
    ///
    /// # Errors
    /// As [`make`], except EBUSY.
    pub fn new(settings: &Settings<'_>) -> io::Result<Self> {
        let place = place(settings, 0)?;
        let frame_size = frame_size(settings.interface);
        let ring = Some(settings.receive_ring);
        let unbound = Unbound::with_memory(place, settings.frames, frame_size, ring)?;
        Ok(Prepared {
            unbound: Box::new(unbound),
            beside: Beside::new(place)?,
            index: place.index,
        })
    }

    /// Makes a queue of it, with the settings it was prepared for. `mtu`: the interface's
    /// current MTU, in bytes.
    ///
    /// # Errors
    /// As [`make`]. The prepared parts remain where the kernel refuses to bind.
    pub fn make(
        self,
        settings: &Settings<'_>,
        queue: u32,
        mtu: u32,
    ) -> Result<Made, (io::Error, Option<Self>)> {
        if self.unbound.frame_size() != frame_size_of(mtu as usize) {
            return make(settings, queue, None).map_err(|error| (error, None));
        }
        let place = Place {
            interface: settings.interface,
            index: self.index,
            queue,
            wait: settings.wait,
            trusted: settings.trusted,
        };
        if let Err(error) = self.unbound.bind(place, None, flags(settings)) {
            return Err((error, Some(self)));
        }
        let bound = self.unbound.into_bound();
        if bound.wants_larger_frames() {
            drop(bound);
            return make(settings, queue, None).map_err(|error| (error, None));
        }
        Ok(self.beside.with(place, settings.receive_ring, bound))
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Prepared").finish_non_exhaustive()
    }
}

impl Made {
    /// Numbers the queue as the device's queue whose frames arrive here, where that is
    /// another device's.
    pub fn numbered(mut self, queue: u32) -> Self {
        self.queue = queue;
        self
    }

    /// The socket, for the owner's map of sockets.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.bound.fd.as_fd()
    }

    /// The socket for frames that may wait, for the same map; `None`: nothing waits.
    pub fn waiting_socket(&self) -> Option<BorrowedFd<'_>> {
        self.waiting.as_ref().map(|waiting| waiting.fd.as_fd())
    }

    /// The file of its frame memory; `None` where the memory is shared.
    pub fn memory(&self) -> Option<BorrowedFd<'_>> {
        self.bound.file.as_ref().map(AsFd::as_fd)
    }

    /// The shape that [`Made::of_descriptors`] needs.
    pub fn shape(&self) -> Shape {
        let Bound { part, .. } = &self.bound;
        Shape {
            queue: self.queue,
            frames: part.frames(),
            frame_size: part.memory().frame_size() as u32,
            receive_ring: self.receive_ring,
            zero_copy: self.bound.zero_copy,
            transmit_metadata: self.bound.tx_metadata,
            waiting: self.waiting.is_some(),
        }
    }

    /// The sockets that make the kernel poll the device ([`helpers`]).
    pub fn helpers(&self) -> &[UdpSocket] {
        &self.helpers
    }

    /// The descriptors to pass to another process, which needs nothing else; empty where
    /// the memory is shared.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let Some(file) = &self.bound.file else {
            return Vec::new();
        };
        [self.socket(), file.as_fd()]
            .into_iter()
            .chain(self.waiting_socket())
            .chain(self.helpers.iter().map(AsFd::as_fd))
            .collect()
    }

    /// Takes over what another process has made and passed; needs no privilege. The other
    /// copies of the descriptors must be closed: the queue has one user.
    ///
    /// # Errors
    /// EINVAL for descriptors of the wrong number or shape, and before Linux 6.4, which
    /// maps no ring of a bound socket. Otherwise what mapping reports.
    pub fn of_descriptors(shape: &Shape, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let missing = || io::Error::from(io::ErrorKind::InvalidInput);
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or_else(missing);
        let (fd, file) = (next()?, next()?);
        let waiting = shape.waiting.then(&mut next).transpose()?;
        let helpers = [next()?.into(), next()?.into()];
        let rings = [shape.frames, shape.receive_ring];
        if !rings.iter().all(|entries| entries.is_power_of_two())
            || !shape.frame_size.is_power_of_two()
        {
            return Err(missing());
        }
        let memory = FrameMemory::of_file(file.as_fd(), shape.frames, shape.frame_size as usize)?;
        let rings = Rings::map(fd.as_fd(), shape.frames, Some(shape.receive_ring))?;
        Ok(Made {
            queue: shape.queue,
            receive_ring: shape.receive_ring,
            bound: Bound {
                fd: Arc::new(Unshared::new(fd)?),
                part: Part::whole(memory),
                file: Some(file),
                rings,
                zero_copy: shape.zero_copy,
                tx_metadata: shape.transmit_metadata,
            },
            waiting: waiting.map(map_waiting).transpose()?,
            helpers,
        })
    }
}

impl std::fmt::Debug for Made {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Made").field(&self.shape()).finish()
    }
}
