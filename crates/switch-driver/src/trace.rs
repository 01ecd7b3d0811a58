//! Writes `tidewall trace` lines for a segment that the switch received: its connection,
//! the machine's counters, each frame's path, the headers written, and the result. Only
//! for followed frames.

use tidewall_forward::{Arrived, OutputCounters};
use tidewall_protocol::tcp::{FourTuple, SegmentInPieces};
use tidewall_switch::{Counters, Emission, Payload, Switch};
use tidewall_wire::acp::FramesInPieces;
use tidewall_wire::pieces::Pieces;
use tidewall_wire::tcp::Header;

/// Reports a segment's connection; returns the earlier counters.
pub(super) fn before(
    switch: &Switch,
    segment: &SegmentInPieces<'_>,
    arrived: &Arrived<'_>,
) -> Counters {
    let from = segment.flow.remote;
    arrived.trace("flow", || match switch.flow_of(&segment.flow) {
        None => format!("none of {from}"),
        Some((flow, member)) => {
            let whose = match member {
                Some(_) => format!("member {from} of peer {}", flow.peer.remote),
                None => format!("peer {from}"),
            };
            let (phase, rings) = (flow.phase, (flow.ring_in, flow.ring_out));
            format!(
                "{whose}, {phase:?}, ring in {}, out {}, holes {}",
                rings.0, rings.1, flow.holes
            )
        }
    });
    *switch.counters()
}

/// Reports the changes of the machine's counters, and the reason of a drop.
pub(super) fn after(before: &Counters, switch: &Switch, arrived: &Arrived<'_>) {
    let changes = before.each().zip(switch.counters().each());
    let changed = changes.filter(|((_, before), (_, after))| before != after);
    for ((name, before), (_, after)) in changed {
        let stage = match name.split('_').next() {
            Some("dropped") => "dropped",
            Some("reset") => "reset",
            _ => "counted",
        };
        let name = tidewall_forward::counter_names::shown(name);
        arrived.trace(stage, || format!("{name} {}", after - before));
    }
}

/// Reports which frames go to which destination, behind which header.
pub(super) fn translated(
    flow: &FourTuple,
    header: &Header,
    parts: &[Emission],
    arrived: &Arrived<'_>,
) {
    parts.iter().for_each(|part| match &part.payload {
        Payload::None => {}
        Payload::Null(size) => arrived.trace("frames", || {
            format!("a null frame of {size} bytes to {}", flow.remote)
        }),
        Payload::Received(range) => arrived.trace("frames", || {
            let bytes = arrived.payload().get(range.clone());
            let frames = FramesInPieces::new(bytes.unwrap_or(Pieces::EMPTY)).flatten();
            let sizes: Vec<_> = frames.map(|frame| frame.size().to_string()).collect();
            let sizes = sizes.join("+");
            format!("bytes {range:?} of it, {sizes} to {}", flow.remote)
        }),
    });
    arrived.trace("translated", || {
        let Header {
            sequence,
            acknowledgment,
            flags,
            window,
            ..
        } = header;
        format!(
            "{} > {} {flags:?} sequence {sequence}, acknowledgment {acknowledgment}, window {window}",
            flow.local, flow.remote
        )
    });
}

/// Reports the result at an interface.
pub(super) fn sent(
    before: OutputCounters,
    after: OutputCounters,
    interface: &str,
    arrived: &Arrived<'_>,
) {
    let changes = tidewall_forward::counter_names::sent(before)
        .into_iter()
        .zip(tidewall_forward::counter_names::sent(after));
    for ((name, before), (_, after)) in changes {
        if before != after {
            let name = tidewall_forward::counter_names::shown(name);
            let stage = match name.starts_with("sent") {
                true => "sent",
                false => "dropped",
            };
            arrived.trace(stage, || format!("{name}, {interface}"));
        }
    }
}
