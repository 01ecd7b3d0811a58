//! A frame out of a channel, as the driver program has described it.

use std::fmt::Display;
use std::time::Duration;

use tidewall_device::demux::layout::{Kind, METADATA_LENGTH, Metadata};
use tidewall_device::frame::Frame;
use tidewall_protocol::{DropReason, InputOptions};
use tidewall_receive::poller::Shared;
use tidewall_wire::ethernet::MacAddress;

use crate::core::Core;

/// A frame and what the driver program has written in front of it.
pub struct ChannelFrame<'a> {
    frame: &'a [u8],
    metadata: Metadata,
    /// End of the IP packet in the frame.
    end: usize,
}

impl<'a> ChannelFrame<'a> {
    /// Describes `frame`, which belongs to the queue of `shared`, by the metadata in
    /// front of it.
    #[inline]
    pub fn new(shared: &'a Shared, frame: &'a Frame) -> Self {
        let memory = shared.memory();
        let metadata = Metadata::from_bytes(memory.below(frame, METADATA_LENGTH));
        ChannelFrame {
            frame: memory.packet(frame),
            end: metadata.end.into(),
            metadata,
        }
    }

    /// As [`ChannelFrame::new`], for a packet that may lie in several frames: it is then
    /// joined in `bytes`.
    #[inline]
    pub fn whole(shared: &'a Shared, frame: &'a Frame, bytes: &'a mut Vec<u8>) -> Self {
        let described = Self::new(shared, frame);
        if described.end <= described.frame.len() {
            return described;
        }
        described.joined(shared, frame, bytes)
    }

    #[cold]
    fn joined(self, shared: &Shared, frame: &Frame, bytes: &'a mut Vec<u8>) -> Self {
        bytes.clear();
        shared.memory().append_whole(frame, bytes);
        let end = match self.metadata.end {
            // IP's own length has the end.
            u16::MAX => bytes.len(),
            end => end.into(),
        };
        ChannelFrame {
            frame: bytes,
            end,
            ..self
        }
    }

    /// Returns the kind that the driver program found; `None` for a frame that no driver
    /// program has described.
    #[inline]
    pub fn kind(&self) -> Option<Kind> {
        self.metadata.kind()
    }

    /// Returns the IP packet; `None` if it should end beyond the frame.
    #[inline]
    pub fn packet(&self) -> Option<&'a [u8]> {
        self.frame.get(usize::from(self.metadata.network)..self.end)
    }

    /// Returns the offset of the transport header in the packet, in bytes.
    #[inline]
    pub fn transport(&self) -> usize {
        let Metadata {
            network, transport, ..
        } = self.metadata;
        usize::from(transport.saturating_sub(network))
    }

    /// Returns the arrival time, if the frame has waited for `now`.
    #[inline]
    pub fn waited_since(&self, now: Duration) -> Option<Duration> {
        (self.metadata.waited_since() != 0).then(|| self.metadata.arrived(now))
    }

    /// Returns the options for checking its packet.
    #[inline]
    pub fn input_options(&self, core: &Core) -> InputOptions {
        InputOptions {
            verified: core.receiver.architecture.verifies_eagerly(),
            ..core.ip.input_options
        }
    }

    /// Adds a line of `tidewall trace`, if the frame is being followed.
    #[inline]
    pub fn trace(&self, core: &Core, stage: &str, what: impl FnOnce() -> String) {
        core.trace.line(self.metadata.trace, stage, what);
    }

    /// Counts and traces that it is dropped.
    pub fn dropped(&self, core: &Core, cause: DropReason) {
        self.trace(core, "dropped", || cause.name().to_owned());
        core.causes.protocol(cause);
    }

    /// Traces that it is the first fragment of a packet.
    pub fn trace_fragment(&self, core: &Core) {
        self.trace(core, "fragment", || "first fragment".to_owned());
    }

    /// It is an ICMP error: counted, and traced.
    pub fn count_icmp_error(&self, core: &Core, errno: impl Display) {
        self.trace(core, "icmp-error", || format!("errno {errno}"));
        core.causes.icmp_error();
    }
}

/// Returns the link address that a frame came from.
pub fn sender(packet: &[u8]) -> MacAddress {
    let bytes = packet.get(6..).and_then(<[u8]>::first_chunk);
    MacAddress(bytes.copied().unwrap_or_default())
}
