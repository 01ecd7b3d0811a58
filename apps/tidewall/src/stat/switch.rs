//! The transport switch whose peers use a stack's interface.

use tidewall::snapshot::{SwitchMember, SwitchSnapshot};

use super::Pair;
use super::explain::{self, Counts, Place};
use crate::table::Table;
use crate::units::{bytes, count, per_second};

/// Describes the switch; empty without one.
pub fn text(pair: &Pair) -> String {
    let Some(switch) = &pair.now.switch else {
        return String::new();
    };
    let mut members = Table::of(
        2,
        "member||>connections|>outstanding|>frames in|>/s|>frames out|>/s|>failures",
    );
    for member in &switch.members {
        let of = |member: &SwitchMember, name| member.counters.get(name).copied().unwrap_or(0);
        let rate = |name| {
            let same = |it: &&SwitchMember| it.address == member.address;
            per_second(rate(pair, |switch| {
                let member = switch.members.iter().find(same);
                member.map_or(0, |member| of(member, name))
            }))
        };
        members.row([
            member.address.clone(),
            if member.up { "up" } else { "leaves" }.to_owned(),
            count(member.open),
            count(member.outstanding),
            count(of(member, "frames-in")),
            rate("frames-in"),
            count(of(member, "frames-out")),
            rate("frames-out"),
            count(of(member, "failures")),
        ]);
    }
    let mut counters = Table::of(2, "|>|>/s|");
    for (name, &times) in &switch.counters {
        let entry = explain::find(Place::Switch, name);
        let lost = entry.is_some_and(|entry| entry.counts == Counts::Loss);
        counters.row([
            name.clone(),
            count(times),
            per_second(rate(pair, |switch| counter(switch, name))),
            if lost { "lost" } else { "" }.to_owned(),
        ]);
    }
    format!(
        "\nswitch {}: {}\n{}{}",
        switch.address,
        state(switch),
        members.text(),
        counters.text()
    )
}

/// Returns one of the switch's counters.
pub fn counter(switch: &SwitchSnapshot, name: &str) -> u64 {
    switch.counters.get(name).copied().unwrap_or(0)
}

fn rate(pair: &Pair, find: impl Fn(&SwitchSnapshot) -> u64) -> f64 {
    pair.rate(|stack| stack.switch.as_ref().map_or(0, &find))
}

/// Describes its current state.
fn state(switch: &SwitchSnapshot) -> String {
    let examined = if switch.examined < switch.connections {
        format!(" (of {} of them)", count(switch.examined))
    } else {
        String::new()
    };
    format!(
        "{} connections{examined}, fullest ring in {}, out {} of {} frames, {} holes, \
         not acknowledged in {}, out {}",
        count(switch.connections),
        count(switch.ring_in),
        count(switch.ring_out),
        count(switch.ring),
        count(switch.holes),
        bytes(switch.unacknowledged_in),
        bytes(switch.unacknowledged_out),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidewall::snapshot::StackSnapshot;
    use tidewall_switch_driver::counter_names;

    use super::*;

    /// Drops and resets are explained as losses; nothing else is.
    #[test]
    fn losses_of_a_switch_are_explained() {
        let is_loss = |name: &String| {
            let kinds = ["dropped-", "reset-", "not-sent-"];
            kinds.iter().any(|kind| name.starts_with(kind))
        };
        let explained = explain::entries(Place::Switch);
        let lost = explained.filter(|entry| entry.counts == Counts::Loss);
        let lost: BTreeSet<String> = lost.map(|entry| entry.name.to_owned()).collect();
        assert_eq!(lost, counter_names().filter(is_loss).collect());
    }

    fn stack(seconds: u64, frames: u64) -> StackSnapshot {
        let mut switch = SwitchSnapshot::default();
        switch.address = "10.0.0.9:80".to_owned();
        (switch.connections, switch.examined) = (5000, 4096);
        (switch.ring, switch.ring_in, switch.holes) = (384, 12, 1);
        switch.counters = [("frames-in", frames), ("dropped-ring-full", 7)]
            .map(|(name, count)| (name.to_owned(), count))
            .into();
        let mut member = SwitchMember::default();
        member.address = "10.0.1.2:80".to_owned();
        member.up = true;
        member.counters = [("frames-in".to_owned(), frames)].into();
        switch.members = vec![member];
        let mut stack = StackSnapshot::default();
        stack.microseconds = seconds * 1_000_000;
        stack.switch = Some(switch);
        stack
    }

    #[test]
    fn members_counters_and_state_are_shown_with_rates() {
        let pair = Pair::new(stack(12, 3000), Some(stack(10, 1000)));
        let text = text(&pair);
        for part in [
            "switch 10.0.0.9:80: 5,000 connections (of 4,096 of them), fullest ring in 12, out 0 \
             of 384 frames, 1 holes",
            "10.0.1.2:80",
            "3,000  1,000",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let lost = text.lines().find(|line| line.contains("dropped-ring-full"));
        assert!(lost.unwrap().ends_with("lost"), "{text}");
        assert_eq!(super::text(&Pair::new(StackSnapshot::default(), None)), "");
    }
}
