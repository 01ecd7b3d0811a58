//! Frames from one interface, and the order in which they are processed.

use std::io;
use std::sync::Arc;

use tidewall_device::demux::ChannelId;
use tidewall_receive::poller::Done;
use tidewall_stack::StackHandle;
use tidewall_stack::channels::ChannelSet;
use tidewall_stack::lock::lock;

use super::arrived::{Arrived, Content, place};
use super::claims::Claims;
use super::{ForwardEndpoint, Forwarding, Output};

/// Frames taken out of one channel before those of the next interface.
const BATCH: usize = 64;
/// Frames taken out of a channel in which strangers' frames wait, before the connections'
/// frames are looked for again.
const STRANGERS: usize = 4;

/// Which frames to take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All but those of [`Part::Strangers`].
    Connections,
    /// Frames to a claimed address, where connections have a channel of their own.
    Strangers,
}

/// Frames from one interface.
pub(super) struct Input {
    pub(super) stack: StackHandle,
    /// Channels of ports, then of admitted connections; empty while it is dropped.
    pub(super) sets: Vec<ChannelSet>,
    pub(super) endpoint: Arc<ForwardEndpoint>,
    pub(super) claims: Claims,
    /// The channel of ports may hold earlier frames of a connection that was admitted since:
    /// it goes first until it is empty.
    admits: bool,
}

impl Input {
    /// `limits`: of the channel of ports, and of that of admitted connections.
    pub(super) fn open(stack: StackHandle, limits: [u32; 2]) -> io::Result<Self> {
        let core = stack.core();
        let endpoint = Arc::new(ForwardEndpoint::default());
        let _binding = lock(&core.binding);
        let mut sets = Vec::new();
        for limit in limits {
            let id = core.channels.allocate()?;
            let queues = &core.receiver.queues;
            sets.push(core.channels.open(queues, id, limit)?);
            core.channels
                .set_endpoint(id.index(), Some(endpoint.clone()));
        }
        if core
            .protocol::<Forwarding>()
            .0
            .set(endpoint.clone())
            .is_err()
        {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        drop(_binding);
        Ok(Input {
            stack,
            sets,
            endpoint,
            claims: Claims::default(),
            admits: false,
        })
    }

    /// The channel of connections that were admitted.
    pub(super) fn admitted(&self) -> Option<ChannelId> {
        self.sets.get(1).map(|set| set.id)
    }

    /// Returns true when the device has delivered more by itself.
    pub(super) fn has_come(&self) -> bool {
        let core = self.stack.core();
        core.receiver.collect(core);
        self.has_waiting()
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.sets.iter().any(|set| !set.looks_empty()) || self.endpoint.has_waiting()
    }

    /// Strangers' frames wait, and connections' frames go before them.
    pub(super) fn has_strangers(&self) -> bool {
        let ports = self.sets.first();
        !self.admits && self.claims.is_open() && ports.is_some_and(|set| !set.looks_empty())
    }

    pub(super) fn receive(
        &mut self,
        interface: usize,
        output: &mut Output,
        part: Part,
        each: &mut impl FnMut(&mut Output, &mut Arrived<'_>),
    ) -> usize {
        let is_empty = self.sets.first().is_none_or(ChannelSet::looks_empty);
        self.admits = (output.take_admission(interface) || self.admits) && !is_empty;
        let strangers_last = self.has_strangers();
        let core = self.stack.core();
        let mut count = 0;
        let mut hand = |content: Content<'_>| {
            let trace = content.trace();
            let mut arrived = Arrived {
                interface,
                core,
                trace,
                content,
            };
            count += 1;
            each(output, &mut arrived);
            match arrived.content {
                Content::InFrame { frame, .. } => frame,
                Content::Bytes { .. } => None,
            }
        };
        if part == Part::Connections {
            for (from, bytes) in self.endpoint.take_all() {
                let bytes = &bytes;
                hand(Content::Bytes { from, bytes });
            }
        }
        let of_admitted = self.admitted();
        // Frames of a connection may wait in front of those of its own channel.
        let mut is_behind = false;
        let sets = self.sets.iter_mut();
        for (id, channel) in sets.flat_map(|set| set.channels.iter_mut().map(|it| (set.id, it))) {
            let admitted = Some(id) == of_admitted;
            let of_strangers = strangers_last && !admitted;
            if channel.looks_empty() || of_strangers != (part == Part::Strangers) {
                continue;
            }
            let most = if of_strangers { STRANGERS } else { BATCH };
            if admitted && is_behind {
                continue;
            }
            let shared = channel.shared().clone();
            let mut done = Done::default();
            let mut forwarded = 0;
            for _ in 0..most {
                let Some(frame) = channel.remove() else {
                    break;
                };
                let frame = match place(core, &shared, &frame) {
                    Some(place) => {
                        core.trace.line(place.trace, "received", || {
                            let kind = if place.labelled {
                                "circuits"
                            } else if admitted {
                                "admitted connections"
                            } else {
                                "its port"
                            };
                            format!("queue {}, channel of {kind}", shared.queue())
                        });
                        hand(Content::InFrame {
                            frame: Some(frame),
                            shared: &shared,
                            place,
                        })
                    }
                    None => Some(frame),
                };
                match frame {
                    Some(frame) => done.add(&shared, frame),
                    None => forwarded += 1,
                }
            }
            is_behind |= self.admits && !channel.looks_empty();
            shared.give_back(id, done);
            if forwarded > 0 {
                shared.give_credit(id, forwarded);
            }
        }
        count
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.endpoint.status.set_answers(false);
        let Ok(core) = self.stack.here() else { return };
        self.claims.release(core);
        let _binding = lock(&core.binding);
        for set in self.sets.drain(..) {
            core.channels.set_endpoint(set.id.index(), None);
            core.channels.close(&core.receiver.queues, set);
        }
    }
}
