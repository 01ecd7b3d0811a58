//! The state of a switch for `tidewall stat`.

use tidewall_forward::OutputCounters;
use tidewall_forward::counter_names::{named, sent, shown};
use tidewall_stack::snapshot::{SwitchMember, SwitchSnapshot};
use tidewall_switch::{Counters, FlowInfo, Switch};

/// Connections examined for one answer: some milliseconds of the forwarding thread.
const EXAMINED: usize = 4096;

/// Returns the state of the switch, and the counters of its interfaces.
pub(super) fn snapshot(switch: &Switch, output: OutputCounters) -> SwitchSnapshot {
    let mut snapshot = SwitchSnapshot::default();
    snapshot.address = switch.config().address.to_string();
    snapshot.ring = switch.config().ring.into();
    snapshot.connections = switch.len() as u64;
    let mut ids = Vec::new();
    for (id, member, up, counters) in switch.members() {
        let mut entry = SwitchMember::default();
        entry.address = member.address.to_string();
        entry.up = up;
        entry.counters = named(counters.each());
        ids.push(id);
        snapshot.members.push(entry);
    }
    for flow in switch.flows().take(EXAMINED) {
        snapshot.examined += 1;
        snapshot.ring_in = snapshot.ring_in.max(flow.ring_in as u64);
        snapshot.ring_out = snapshot.ring_out.max(flow.ring_out as u64);
        snapshot.holes += flow.holes as u64;
        snapshot.unacknowledged_in += flow.unacknowledged_in;
        snapshot.unacknowledged_out += flow.unacknowledged_out;
        let FlowInfo { members, .. } = flow;
        for end in members {
            let place = ids.iter().position(|&id| id == end.id);
            if let Some(entry) = place.and_then(|place| snapshot.members.get_mut(place)) {
                entry.open += u64::from(end.open);
                entry.outstanding += u64::from(end.outstanding);
            }
        }
    }
    snapshot.counters = named(switch.counters().each().chain(sent(output)));
    snapshot
}

/// Returns the names of all counters of a switch, in the form of `tidewall stat`.
pub fn counter_names() -> impl Iterator<Item = String> {
    let all = Counters::default();
    let names = all.each().chain(sent(OutputCounters::default()));
    let names: Vec<String> = names.map(|(name, _)| shown(name)).collect();
    names.into_iter()
}
