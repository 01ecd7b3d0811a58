//! The outcome of a run on a frame, for comparing two drivers.

use tidewall_device::demux::layout::{Class, Counter, Metadata};
use tidewall_device::demux::{NapiProbe, Tables, Verdict};

use super::CHANNELS_USED;

/// `enum xdp_action`.
pub const DROP: u32 = 1;
pub const PASS: u32 = 2;
pub const TRANSMIT: u32 = 3;
pub const REDIRECT: u32 = 4;

/// The parts in which two runs may differ.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    action: u32,
    frame: Vec<u8>,
    metadata: Option<Metadata>,
    counters: Vec<u64>,
    classes: Vec<(u64, u64)>,
    accounts: Vec<(u32, u64)>,
    probe: Option<NapiProbe>,
    waiting: u32,
}

impl Outcome {
    /// The outcome after a run that ended so.
    pub fn new(tables: &Tables, action: u32, frame: Vec<u8>, metadata: Option<Metadata>) -> Self {
        let classes = Class::ALL.map(|class| tables.trusted.class(0, class));
        // Each arrived at its own time.
        let metadata = metadata.map(|metadata| match metadata.waited_since() {
            0 => metadata,
            _ => Metadata {
                arrival: 0,
                fragment: 1,
                ..metadata
            },
        });
        Outcome {
            action,
            frame,
            metadata,
            counters: Counter::ALL
                .map(|counter| tables.trusted.counter(0, counter))
                .to_vec(),
            classes: classes
                .map(|counts| (counts.passed, counts.dropped))
                .to_vec(),
            accounts: (0..CHANNELS_USED)
                .map(|index| {
                    (
                        tables.embedded.head(0, index),
                        tables.embedded.dropped(0, index),
                    )
                })
                .collect(),
            probe: tables.trusted.napi_probe(0),
            waiting: tables.embedded.waiting_head(0),
        }
    }

    /// The outcome after a run of [`tidewall_device::demux::drive`] on a frame, which is
    /// passed as it is afterwards.
    pub fn of_verdict(tables: &Tables, verdict: Verdict, frame: Vec<u8>) -> Self {
        let (action, frame, metadata) = match verdict {
            Verdict::Answered(answer) => (TRANSMIT, answer.as_bytes().to_vec(), None),
            Verdict::Kernel { .. } | Verdict::NapiProbe => (PASS, frame, None),
            Verdict::Drop { .. } => (DROP, frame, None),
            Verdict::Channel(metadata) | Verdict::Raw(metadata) => {
                (REDIRECT, frame, Some(metadata))
            }
        };
        Outcome::new(tables, action, frame, metadata)
    }
}
