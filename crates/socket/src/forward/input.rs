//! What comes from one interface, and in which order it is taken.

use std::io;
use std::sync::Arc;

use tidewall_device::demux::ChannelId;
use tidewall_receive::poller::Done;

use super::arrived::{Arrived, Content, place};
use super::claims::Claims;
use super::{ForwardEndpoint, Output};
use crate::channels::ChannelSet;
use crate::lock::lock;
use crate::stack::Stack;

/// Frames taken out of one channel before those of the next interface.
const BATCH: usize = 64;

/// What comes from one interface.
pub(super) struct Input {
    pub(super) stack: Stack,
    /// Of ports, then of connections that were admitted; none while it is dropped.
    pub(super) sets: Vec<ChannelSet>,
    pub(super) endpoint: Arc<ForwardEndpoint>,
    pub(super) claims: Claims,
}

impl Input {
    /// `limits`: of the channel of ports, and of that of admitted connections.
    pub(super) fn open(stack: Stack, limits: [u32; 2]) -> io::Result<Self> {
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
        if core.forward.set(endpoint.clone()).is_err() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        drop(_binding);
        Ok(Input {
            stack,
            sets,
            endpoint,
            claims: Claims::default(),
        })
    }

    /// The channel of connections that were admitted.
    pub(super) fn admitted(&self) -> Option<ChannelId> {
        self.sets.get(1).map(|set| set.id)
    }

    /// True when the device has delivered more by itself.
    pub(super) fn has_come(&self) -> bool {
        let core = self.stack.core();
        core.receiver.collect(core);
        self.has_waiting()
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.sets.iter().any(|set| !set.looks_empty()) || self.endpoint.has_waiting()
    }

    pub(super) fn receive(
        &mut self,
        interface: usize,
        output: &mut Output,
        each: &mut impl FnMut(&mut Output, &mut Arrived<'_>),
    ) -> usize {
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
        for (from, bytes) in self.endpoint.take_all() {
            let bytes = &bytes;
            hand(Content::Bytes { from, bytes });
        }
        let of_admitted = self.admitted();
        let sets = self.sets.iter_mut();
        for (id, channel) in sets.flat_map(|set| set.channels.iter_mut().map(|it| (set.id, it))) {
            let admitted = Some(id) == of_admitted;
            if channel.looks_empty() {
                continue;
            }
            let shared = channel.shared().clone();
            let mut done = Done::default();
            let mut forwarded = 0;
            for _ in 0..BATCH {
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
