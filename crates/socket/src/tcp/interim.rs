//! Stand-in until the listen side of the engine is merged.
#![allow(missing_docs, dead_code)]
use std::collections::HashMap;
use std::time::Duration;

use tidewall_protocol::Drop as Cause;
use tidewall_protocol::tcp::{Config, Flow, Handshake, Outgoing, Segment, TimeWaitEntry};
use tidewall_wire::tcp::{Flags, Header, Options, Timestamps};

pub struct Listener {
    config: Config,
    half: HashMap<Flow, (u32, Header)>,
}
pub enum Reaction {
    Nothing,
    HalfOpen(Flow),
    Established(Handshake),
    Dropped(Cause),
}
#[derive(Clone, Copy)]
pub struct Secrets {
    pub sequence: [u8; 16],
    pub cookie: [u8; 16],
}
impl Listener {
    pub fn new(config: &Config, _backlog: u32, _secrets: Secrets) -> Self {
        Self {
            config: *config,
            half: HashMap::new(),
        }
    }
    pub fn input(
        &mut self,
        segment: &Segment<'_>,
        now: Duration,
        send: &mut dyn FnMut(&Flow, &Outgoing<'_>),
    ) -> Reaction {
        let h = segment.header;
        if h.flags.contains(Flags::SYN) {
            let iss = 1000;
            self.half.insert(segment.flow, (iss, h));
            let o = Outgoing {
                header: Header {
                    source_port: h.destination_port,
                    destination_port: h.source_port,
                    sequence: iss,
                    acknowledgment: h.sequence.wrapping_add(1),
                    flags: Flags::SYN | Flags::ACK,
                    window: 65535,
                    options: Options {
                        maximum_segment_size: Some(self.config.mss),
                        window_scale: h.options.window_scale.map(|_| self.config.window_scale()),
                        sack_permitted: h.options.sack_permitted,
                        timestamps: h.options.timestamps.map(|t| Timestamps {
                            value: tidewall_protocol::tcp::timestamp(now, 0),
                            echo: t.value,
                        }),
                        ..Options::default()
                    },
                    ..Header::default()
                },
                payload: [&[]; 2],
                segment_size: 0,
                traffic_class: 0,
            };
            send(&segment.flow, &o);
            return Reaction::HalfOpen(segment.flow);
        }
        if let Some((iss, syn)) = self.half.remove(&segment.flow) {
            return Reaction::Established(Handshake {
                flow: segment.flow,
                local_isn: iss,
                remote_isn: syn.sequence,
                mss: syn.options.maximum_segment_size.unwrap_or(536),
                window_scale: syn.options.window_scale,
                local_window_scale: self.config.window_scale(),
                sack: syn.options.sack_permitted,
                timestamps: h.options.timestamps.or(syn.options.timestamps),
                timestamp_offset: 0,
                window: h.window,
                round_trip: None,
            });
        }
        Reaction::Nothing
    }
    pub fn next_timeout(&self) -> Option<Duration> {
        None
    }
    pub fn timeout(
        &mut self,
        _now: Duration,
        _send: &mut dyn FnMut(&Flow, &Outgoing<'_>),
        _forgotten: &mut dyn FnMut(&Flow),
    ) {
    }
    pub fn close(&mut self, forgotten: &mut dyn FnMut(&Flow)) {
        for flow in self.half.keys() {
            forgotten(flow);
        }
    }
    pub fn half_open(&self) -> usize {
        self.half.len()
    }
    pub fn set_accept_queue(&mut self, _waiting: usize) {}
    pub fn attacked(&self) -> bool {
        false
    }
}
#[derive(Default)]
pub struct TimeWaitTable(HashMap<Flow, Duration>);
pub enum TimeWaitReaction {
    Handled,
    Reuse(u32),
    Unknown,
}
impl TimeWaitTable {
    pub fn insert(&mut self, entry: TimeWaitEntry, now: Duration, _f: &mut dyn FnMut(&Flow)) {
        self.0.insert(entry.flow, now + Duration::from_secs(60));
    }
    pub fn input(
        &mut self,
        segment: &Segment<'_>,
        _now: Duration,
        _send: &mut dyn FnMut(&Flow, &Outgoing<'_>),
    ) -> TimeWaitReaction {
        if self.0.contains_key(&segment.flow) {
            if segment.header.flags.contains(Flags::SYN) {
                self.0.remove(&segment.flow);
                return TimeWaitReaction::Reuse(0);
            }
            return TimeWaitReaction::Handled;
        }
        TimeWaitReaction::Unknown
    }
    pub fn next_timeout(&self) -> Option<Duration> {
        self.0.values().min().copied()
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
    pub fn expire(&mut self, now: Duration, forgotten: &mut dyn FnMut(&Flow)) {
        self.0.retain(|flow, at| {
            if *at <= now {
                forgotten(flow);
            }
            *at > now
        });
    }
}
pub mod isn {
    use super::{Duration, Flow};
    pub fn initial(_: &[u8; 16], _: &Flow, now: Duration) -> u32 {
        now.as_micros() as u32
    }
    pub fn timestamp_offset(_: &[u8; 16], _: &Flow) -> u32 {
        0
    }
}
