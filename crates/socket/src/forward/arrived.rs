//! A segment that has come, and where it lies.

use tidewall_device::demux::layout::{Kind, METADATA_LENGTH, Metadata};
use tidewall_device::frame::Frame;
use tidewall_device::queue::KernelDelivered;
use tidewall_protocol::tcp::{self, Segment};
use tidewall_protocol::{DropReason, InputOptions};
use tidewall_receive::poller::Shared;
use tidewall_wire::udp::Addresses;

use crate::stack::Core;

/// Where in its packet a segment lies; `None` for what is none, which is counted.
pub(super) fn place(core: &Core, shared: &Shared, frame: &Frame) -> Option<Place> {
    let metadata = Metadata::from_bytes(shared.memory().below(frame, METADATA_LENGTH));
    let range = usize::from(metadata.network)..usize::from(metadata.end);
    let kind = metadata.kind();
    let cause = match kind {
        Some(Kind::Datagram | Kind::Circuit)
            if shared.memory().packet(frame).get(range.clone()).is_some() =>
        {
            return Some(Place {
                network: metadata.network.into(),
                transport: metadata.transport.into(),
                end: metadata.end.into(),
                trace: metadata.trace,
                labelled: kind == Some(Kind::Circuit),
            });
        }
        Some(Kind::Datagram | Kind::Circuit) => DropReason::Truncated,
        Some(Kind::IcmpError) => {
            core.trace
                .line(metadata.trace, "icmp-error", || "not translated".to_owned());
            core.causes.icmp_error();
            return None;
        }
        // Whole frames are in whole segments, and segments not in fragments.
        _ => DropReason::Fragment,
    };
    core.trace
        .line(metadata.trace, "dropped", || cause.name().to_owned());
    core.causes.protocol(cause);
    None
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) network: usize,
    pub(super) transport: usize,
    pub(super) end: usize,
    /// The number of a frame that is followed, else 0.
    pub(super) trace: u32,
    /// Not a segment: a frame of a circuit, whose label is at `network`.
    pub(super) labelled: bool,
}

/// A segment that has come.
pub struct Arrived<'a> {
    pub(super) interface: usize,
    pub(super) core: &'a Core,
    /// As [`Place::trace`]; stays when the frame has gone.
    pub(super) trace: u32,
    pub(super) content: Content<'a>,
}

pub(super) enum Content<'a> {
    InFrame {
        /// `None`: it has been forwarded.
        frame: Option<Frame>,
        shared: &'a Shared,
        place: Place,
    },
    /// It came through the kernel.
    Bytes {
        from: KernelDelivered,
        bytes: &'a [u8],
    },
}

impl Content<'_> {
    pub(super) fn trace(&self) -> u32 {
        match self {
            Content::InFrame { place, .. } => place.trace,
            Content::Bytes { .. } => 0,
        }
    }
}

impl Arrived<'_> {
    /// Place of the interface that it came by in the list of those that were opened.
    pub fn interface(&self) -> usize {
        self.interface
    }

    /// The number of the queue that it came by, on its interface.
    pub fn queue(&self) -> usize {
        match &self.content {
            Content::InFrame { shared, .. } => shared.queue() as usize,
            Content::Bytes { .. } => 0,
        }
    }

    /// True while `tidewall trace` follows its frame.
    pub fn is_followed(&self) -> bool {
        self.trace != 0
    }

    /// Adds a stage to what `tidewall trace` shows of its frame, if that is followed;
    /// also once the segment was forwarded.
    pub fn trace(&self, stage: &str, what: impl FnOnce() -> String) {
        self.core.trace.line(self.trace, stage, what);
    }

    /// The segment; `None`, and counted by cause, if its lengths or its checksum are
    /// wrong; `None`, too, once it was forwarded.
    pub fn segment(&self) -> Option<Segment<'_>> {
        let options = &self.core.ip.input_options;
        self.parse(options).map_or_else(
            |cause| {
                if let Some(cause) = cause {
                    self.trace("dropped", || cause.name().to_owned());
                    self.core.causes.protocol(cause);
                }
                None
            },
            Some,
        )
    }

    /// Payload of the segment, its checks taken as made; nothing once it was forwarded.
    pub fn payload(&self) -> &[u8] {
        let checked = InputOptions {
            verified: true,
            ..self.core.ip.input_options
        };
        let segment = self.parse(&checked);
        segment.map_or(&[], |segment| segment.payload)
    }

    fn parse(&self, options: &InputOptions) -> Result<Segment<'_>, Option<DropReason>> {
        match &self.content {
            Content::InFrame {
                frame,
                shared,
                place,
            } => {
                if place.labelled {
                    return Err(None);
                }
                let packet = shared.memory().packet(frame.as_ref().ok_or(None)?);
                let bytes = packet.get(place.network..place.end).unwrap_or_default();
                tcp::input(bytes, place.transport - place.network, options).map_err(Some)
            }
            Content::Bytes { from, bytes } => {
                let addresses = Addresses::new(from.source.ip(), from.destination.ip());
                let addresses = addresses.ok_or(Some(DropReason::MartianSource))?;
                tcp::input_bare(bytes, addresses, options).map_err(Some)
            }
        }
    }
}
