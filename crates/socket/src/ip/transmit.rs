//! Sending frames of our own.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidewall_device::frame::{Frame, FrameMemory};
use tidewall_device::queue::{BURST, Flushed, Offload, Transmit};
use tidewall_protocol::tcp::{self, FourTuple, Link, Outgoing};
use tidewall_protocol::udp::{self, Checksum, HEADERS_V4, HEADERS_V6, Output, OutputError};
use tidewall_wire::ethernet::{HEADER_LEN, MacAddress};
use tidewall_wire::tcp::CHECKSUM_OFFSET as TCP_CHECKSUM_OFFSET;
use tidewall_wire::{ipv4, ipv6};

/// Payloads longer than this have their checksum computed by the device where
/// it can: below, asking costs more than computing.
const OFFLOAD_ABOVE: usize = 256;
/// Offset of the checksum in a UDP header (RFC 768).
const UDP_CHECKSUM_OFFSET: u16 = 6;

/// A datagram's header fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heading {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) neighbour: MacAddress,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// The transmitting half of a queue, with the frames it sends from.
pub(crate) struct Transmitter {
    device: Box<dyn Transmit>,
    memory: FrameMemory,
    free: Vec<Frame>,
    mac: MacAddress,
    mtu: usize,
    /// Frames that the device has not taken yet.
    waiting: u32,
    sent: Arc<AtomicU64>,
    /// Of them, those whose checksum was left to the device.
    offloaded: u64,
    no_frame: u64,
}

/// What a [`Transmitter`] has done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Frames sent.
    pub(crate) sent: u64,
    /// Of them, those whose checksum was left to the device.
    pub(crate) offloaded: u64,
    /// Sends refused for want of a frame.
    pub(crate) no_frame: u64,
}

impl Transmitter {
    pub(crate) fn new(
        device: Box<dyn Transmit>,
        memory: FrameMemory,
        free: Vec<Frame>,
        mac: MacAddress,
        mtu: usize,
    ) -> Self {
        let mut transmitter = Transmitter {
            device,
            memory,
            free,
            mac,
            mtu,
            waiting: 0,
            sent: Arc::default(),
            offloaded: 0,
            no_frame: 0,
        };
        transmitter.set_link(mac, mtu);
        transmitter
    }

    /// Sends as an interface of this link address, and datagrams no longer than
    /// its `mtu`, or a frame, allows.
    pub(crate) fn set_link(&mut self, mac: MacAddress, mtu: usize) {
        let headroom = usize::from(self.device.headroom());
        self.mac = mac;
        self.mtu = mtu.min(
            self.memory
                .frame_size()
                .saturating_sub(HEADER_LEN + headroom),
        );
    }

    /// What was done so far.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            sent: self.sent.load(Ordering::Relaxed),
            offloaded: self.offloaded,
            no_frame: self.no_frame,
        }
    }

    /// Datagrams sent, for those who watch without the lock.
    pub(crate) fn sent(&self) -> Arc<AtomicU64> {
        self.sent.clone()
    }

    /// Queues one datagram.
    ///
    /// # Errors
    /// ENOBUFS when every frame is on its way; EMSGSIZE, EAFNOSUPPORT, EINVAL
    /// for what cannot be written.
    pub(crate) fn queue(&mut self, heading: &Heading, payload: &[u8]) -> io::Result<()> {
        let Some(mut frame) = self.frame()? else {
            self.no_frame += 1;
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        };
        let offloaded = payload.len() > OFFLOAD_ABOVE && self.device.checksum_offload();
        let headroom = self.device.headroom();
        frame.set_extent(headroom, u16::MAX);
        let output = Output {
            source_mac: self.mac,
            destination_mac: heading.neighbour,
            source: heading.source,
            destination: heading.destination,
            traffic_class: heading.traffic_class,
            hop_limit: heading.hop_limit,
            identification: 0,
            checksum: if offloaded {
                Checksum::Offload
            } else {
                Checksum::Software
            },
        };
        let length = match udp::output(self.memory.packet_mut(&mut frame), &output, payload) {
            Ok(length) => length,
            Err(error) => {
                self.free.push(frame);
                return Err(output_error(error));
            }
        };
        frame.set_extent(headroom, length as u16);
        let headers = if heading.destination.is_ipv4() {
            HEADERS_V4
        } else {
            HEADERS_V6
        };
        let offload = offloaded.then_some(Offload {
            checksum_start: (headers - tidewall_wire::udp::HEADER_LEN) as u16,
            checksum_offset: UDP_CHECKSUM_OFFSET,
        });
        self.send(frame, offload)
    }

    /// Queues one segment.
    ///
    /// # Errors
    /// As [`Transmitter::queue`].
    pub(crate) fn queue_segment(
        &mut self,
        neighbour: MacAddress,
        hop_limit: u8,
        flow: &FourTuple,
        outgoing: &Outgoing<'_>,
    ) -> io::Result<()> {
        let Some(mut frame) = self.frame()? else {
            self.no_frame += 1;
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        };
        let offloaded = outgoing.payload_len() > OFFLOAD_ABOVE && self.device.checksum_offload();
        let headroom = self.device.headroom();
        frame.set_extent(headroom, u16::MAX);
        let link = Link {
            source_mac: self.mac,
            destination_mac: neighbour,
            hop_limit,
            checksum: if offloaded {
                Checksum::Offload
            } else {
                Checksum::Software
            },
        };
        let length = match tcp::output(self.memory.packet_mut(&mut frame), &link, flow, outgoing) {
            Ok(length) => length,
            Err(error) => {
                self.free.push(frame);
                let errno = match error {
                    tcp::OutputError::AddressFamily => libc::EAFNOSUPPORT,
                    _ => libc::EMSGSIZE,
                };
                return Err(io::Error::from_raw_os_error(errno));
            }
        };
        frame.set_extent(headroom, length as u16);
        let network = if flow.remote.is_ipv4() {
            ipv4::HEADER_LEN
        } else {
            ipv6::HEADER_LEN
        };
        let offload = Offload {
            checksum_start: (HEADER_LEN + network) as u16,
            checksum_offset: TCP_CHECKSUM_OFFSET,
        };
        if outgoing.payload_len() > usize::from(outgoing.segment_size) {
            let size = outgoing.segment_size;
            self.give(frame, |device, frame| {
                device.transmit_segments(frame, offload, size)
            })?;
            self.offloaded += 1;
            return Ok(());
        }
        self.send(frame, offloaded.then_some(offload))
    }

    /// Bytes of an IP datagram in one frame; a longer one must be fragmented,
    /// which the kernel does.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Longest TCP payload of one frame, where the device cuts it into segments;
    /// else 0.
    pub(crate) fn segmentation(&self) -> u32 {
        self.device.segmentation()
    }

    fn send(&mut self, frame: Frame, offload: Option<Offload>) -> io::Result<()> {
        self.give(frame, |device, frame| device.transmit(frame, offload))?;
        self.offloaded += u64::from(offload.is_some());
        Ok(())
    }

    fn give(
        &mut self,
        frame: Frame,
        transmit: impl Fn(&mut dyn Transmit, Frame) -> Result<(), Frame>,
    ) -> io::Result<()> {
        if let Err(frame) = transmit(&mut *self.device, frame) {
            // A full completion ring stops the device too.
            self.device.reclaim(&mut self.free);
            self.flush()?;
            if let Err(frame) = transmit(&mut *self.device, frame) {
                self.free.push(frame);
                self.no_frame += 1;
                return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
            }
        }
        self.waiting += 1;
        self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Frames that connections may still queue before the next flush.
    pub(crate) fn room(&self) -> u32 {
        BURST.saturating_sub(self.waiting)
    }

    /// Sends of what was queued a burst, and says what is left.
    pub(crate) fn flush(&mut self) -> io::Result<Flushed> {
        let flushed = self.device.flush()?;
        self.waiting = flushed.left;
        Ok(flushed)
    }

    fn frame(&mut self) -> io::Result<Option<Frame>> {
        if let Some(frame) = self.free.pop() {
            return Ok(Some(frame));
        }
        self.device.reclaim(&mut self.free);
        if self.free.is_empty() {
            self.flush()?;
            self.device.reclaim(&mut self.free);
        }
        Ok(self.free.pop())
    }
}

fn output_error(error: OutputError) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}
