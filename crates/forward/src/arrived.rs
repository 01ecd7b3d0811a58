//! A segment that has arrived, and its position in its frame.

use tidewall_device::demux::layout::{Kind, METADATA_LENGTH, Metadata};
use tidewall_device::frame::Frame;
use tidewall_device::queue::KernelDelivered;
use tidewall_protocol::tcp::{self, SegmentInPieces};
use tidewall_protocol::{DropReason, InputOptions};
use tidewall_receive::poller::Shared;
use tidewall_stack::core::Core;
use tidewall_wire::pieces::{Behind, Pieces};
use tidewall_wire::udp::Addresses;

/// Returns the position of a segment in its packet; `None` for any other packet, which is
/// counted.
pub(super) fn place(core: &Core, shared: &Shared, frame: &Frame) -> Option<Place> {
    let metadata = Metadata::from_bytes(shared.memory().below(frame, METADATA_LENGTH));
    let kind = metadata.kind();
    let end = end_of(shared, frame, metadata.end.into());
    let cause = match kind {
        Some(Kind::Datagram | Kind::Circuit)
            if end.is_some_and(|end| end >= metadata.network.into()) =>
        {
            return Some(Place {
                network: metadata.network.into(),
                transport: metadata.transport.into(),
                end: end.unwrap_or(0),
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

/// The end of the packet in a frame, and in those that hang on it; `None` where the bytes up to
/// there have not come.
fn end_of(shared: &Shared, frame: &Frame, end: usize) -> Option<usize> {
    let here = shared.memory().packet(frame).len();
    if end <= here {
        return Some(end);
    }
    let all = shared.memory().whole_len(frame);
    // More than 16 bits count: IP's own length has the end.
    let end = if end == usize::from(u16::MAX) {
        all
    } else {
        end
    };
    (end <= all).then_some(end)
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

/// A segment that has arrived.
pub struct Arrived<'a> {
    pub(super) interface: usize,
    pub(super) core: &'a Core,
    /// As [`Place::trace`]; stays when the frame has gone.
    pub(super) trace: u32,
    pub(super) content: Content<'a>,
}

impl std::fmt::Debug for Arrived<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrived")
            .field("interface", &self.interface)
            .field("trace", &self.trace)
            .finish_non_exhaustive()
    }
}

pub(super) enum Content<'a> {
    InFrame {
        /// `None` once it has been forwarded.
        frame: Option<Frame>,
        shared: &'a Shared,
        place: Place,
    },
    /// It arrived through the kernel.
    Bytes {
        from: KernelDelivered,
        bytes: &'a [u8],
    },
}

impl Behind for Content<'_> {
    fn piece(&self, number: usize) -> Option<&[u8]> {
        match self {
            Content::InFrame { frame, shared, .. } => {
                shared.memory().piece_behind(frame.as_ref()?, number)
            }
            Content::Bytes { .. } => None,
        }
    }
}

impl Content<'_> {
    /// The packet in its frame from `start` on; `None` once it was forwarded.
    pub(super) fn packet(&self, start: usize) -> Option<Pieces<'_>> {
        let Content::InFrame {
            frame,
            shared,
            place,
        } = self
        else {
            return None;
        };
        let packet = shared.memory().packet(frame.as_ref()?);
        match packet.get(start..place.end) {
            Some(bytes) => Some(bytes.into()),
            None => Pieces::new(packet, self, place.end)?.get(start..place.end),
        }
    }

    pub(super) fn trace(&self) -> u32 {
        match self {
            Content::InFrame { place, .. } => place.trace,
            Content::Bytes { .. } => 0,
        }
    }
}

impl Arrived<'_> {
    /// Returns the index of its arrival interface in the list of those that were opened.
    pub fn interface(&self) -> usize {
        self.interface
    }

    /// Returns the number of its arrival queue, on its interface.
    pub fn queue(&self) -> usize {
        match &self.content {
            Content::InFrame { shared, .. } => shared.queue() as usize,
            Content::Bytes { .. } => 0,
        }
    }

    /// Returns true while `tidewall trace` follows its frame.
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
    pub fn segment(&self) -> Option<SegmentInPieces<'_>> {
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

    /// Returns the payload of the segment, whose checks count as done; nothing once it
    /// was forwarded.
    pub fn payload(&self) -> Pieces<'_> {
        let checked = InputOptions {
            verified: true,
            ..self.core.ip.input_options
        };
        let segment = self.parse(&checked);
        segment.map_or(Pieces::EMPTY, |segment| segment.payload)
    }

    fn parse(&self, options: &InputOptions) -> Result<SegmentInPieces<'_>, Option<DropReason>> {
        match &self.content {
            Content::InFrame { place, .. } => {
                if place.labelled {
                    return Err(None);
                }
                let bytes = self.content.packet(place.network).ok_or(None)?;
                let transport = place.transport.saturating_sub(place.network);
                tcp::input_in_pieces(bytes, transport, options).map_err(Some)
            }
            Content::Bytes { from, bytes } => {
                let addresses = Addresses::new(from.source.ip(), from.destination.ip());
                let addresses = addresses.ok_or(Some(DropReason::MartianSource))?;
                let segment = tcp::input_bare(bytes, addresses, options);
                segment.map(SegmentInPieces::from).map_err(Some)
            }
        }
    }
}
