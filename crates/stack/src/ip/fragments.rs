//! Fragments, and their reassembly on the receiver's time.
//!
//! A first fragment waits in its owner's channel and is reassembled on the owner's time.
//! The others wait in the fragment channel, which the poller empties last, a bounded
//! number per round. LRP §3.1: a fragment without its transport header goes to a special
//! channel, which reassembly consults.

use std::sync::Arc;
use std::time::Duration;

use tidewall_device::demux::ChannelId;
use tidewall_protocol::ip::reassembly::{Counters, Limits, Reassembled, Reassembler};
use tidewall_receive::poller::{Channel, Done};

use super::Ip;
use crate::channel_frame::ChannelFrame;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::lock::lock;

/// Fragments taken from the fragment channel of a queue at a time. These are all that may
/// wait there, since it is not read again before the next fragment comes.
const BATCH: usize = super::FRAGMENT_LIMIT as usize;

/// The reassembler, and the fragment channel of each queue.
pub struct Fragments {
    reassembler: Reassembler,
    channels: Vec<Channel>,
}

impl Fragments {
    pub(crate) fn new(channels: Vec<Channel>) -> Self {
        Fragments {
            reassembler: Reassembler::new(Limits::default()),
            channels,
        }
    }

    /// Returns the time until the oldest unfinished datagram expires.
    pub fn next_expiry(&self, now: Duration) -> Option<Duration> {
        self.reassembler
            .next_expiry()
            .map(|expiry| expiry.saturating_sub(now))
    }

    /// Drops expired datagrams; the reassembler counts them. The clock is read only if
    /// there are unfinished ones.
    pub fn expire(&mut self, clock: impl FnOnce() -> Duration) {
        if let Some(expiry) = self.reassembler.next_expiry() {
            let now = clock();
            if expiry <= now {
                self.reassembler.expire(now);
            }
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        *self.reassembler.counters()
    }

    /// Moves waiting later fragments into the reassembler; datagrams that
    /// become reassembled are added to `reassembled`.
    fn take_waiting(&mut self, now: Duration, reassembled: &mut Vec<Reassembled>) {
        let Self {
            reassembler,
            channels,
        } = self;
        for channel in channels {
            let shared = channel.shared().clone();
            let mut done = Done::default();
            let mut joined = Vec::new();
            for _ in 0..BATCH {
                let Some(frame) = channel.remove() else { break };
                let packet = ChannelFrame::whole(&shared, &frame, &mut joined).packet();
                let packet = packet.unwrap_or_default();
                if let Ok(Some(datagram)) = reassembler.insert(now, packet, None) {
                    reassembled.push(datagram);
                }
                done.add(&shared, frame);
            }
            shared.give_back(channel.id(), done);
        }
    }
}

impl Ip {
    /// Empties the fragment channel and hands reassembled datagrams to their owners.
    pub fn reassemble(&self, core: &Core) {
        let mut reassembled = Vec::new();
        lock(&self.fragments).take_waiting(core.now(), &mut reassembled);
        self.deliver(core, reassembled);
    }

    /// Gives reassembled datagrams to the sockets that took their first fragments.
    /// No socket may be locked by the caller.
    pub fn deliver(&self, core: &Core, reassembled: Vec<Reassembled>) {
        for datagram in reassembled {
            let id = datagram
                .tag
                .and_then(|tag| u32::try_from(tag).ok())
                .map(ChannelId::from_value);
            let Some(id) = id else {
                core.causes.no_socket();
                continue;
            };
            match core.channels.endpoint(id.index()) {
                Some(endpoint) => endpoint.on_reassembled(core, id, datagram),
                None => core.causes.no_socket(),
            }
        }
    }

    /// Takes a first fragment on its owner's behalf. The datagram, if all its
    /// other fragments were waiting already. Others that became reassembled on the
    /// way are added to `others`, for [`Ip::deliver`].
    pub fn first_fragment(
        &self,
        core: &Core,
        bytes: &[u8],
        owner: ChannelId,
        others: &mut Vec<Reassembled>,
    ) -> Option<Reassembled> {
        {
            let mut fragments = lock(&self.fragments);
            let now = core.now();
            // Those that overtook their first fragment.
            fragments.take_waiting(now, others);
            let tag = Some(u64::from(owner.value()));
            fragments.reassembler.insert(now, bytes, tag).ok().flatten()
        }
    }
}

/// Owns the channel of fragments without a transport header.
pub struct FragmentEndpoint;

impl Endpoint for FragmentEndpoint {
    fn on_frames(self: Arc<Self>, core: &Core, _channel: u16) {
        core.ip.reassemble(core);
    }
}
