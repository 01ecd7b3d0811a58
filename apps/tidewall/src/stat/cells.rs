//! The cell switch whose first port is a stack's interface.

use tidewall::snapshot::CellSwitchSnapshot;

use super::Pair;
use super::causes::entry;
use super::explain::Counts::{Loss, Way};
use super::explain::Place::Cells;
use super::explain::{self, Entry};
use crate::table::Table;
use crate::units::{count, per_second};

const CONGESTED: &str = "The outgoing link is slower than what comes for it: a higher priority for what must \
     not wait, or a longer queue for short bursts.";

/// Counters of a cell switch.
pub(super) const CELLS: &[Entry] = &[
    entry(
        Cells,
        "cells-marked",
        Way,
        "User cells marked (EFCI) as they met a queue half full.",
        CONGESTED,
    ),
    entry(
        Cells,
        "cells-in-place",
        Way,
        "Cells that went on in the frame that they came in.",
        "",
    ),
    entry(
        Cells,
        "dropped-malformed",
        Loss,
        "Packets that are none of their port's mode.",
        "The neighbour uses another mode or label: the file's port must say the same as it.",
    ),
    entry(
        Cells,
        "dropped-hec",
        Loss,
        "Cells with a damaged header.",
        "",
    ),
    entry(
        Cells,
        "dropped-no-circuit",
        Loss,
        "Cells of a circuit that leads nowhere.",
        "The neighbour has a circuit that the file has not.",
    ),
    entry(
        Cells,
        "dropped-early-discard",
        Loss,
        "First cells of PDUs that were not begun, as the queue was short.",
        CONGESTED,
    ),
    entry(
        Cells,
        "dropped-queue-full",
        Loss,
        "Cells within a PDU, or of none, for which the queue had no room.",
        CONGESTED,
    ),
    entry(
        Cells,
        "dropped-rest",
        Loss,
        "Further cells of PDUs that were refused.",
        "See why they were, among the others.",
    ),
    entry(
        Cells,
        "dropped-removed",
        Loss,
        "Cells that waited when their circuit was taken out of the file.",
        "",
    ),
    entry(
        Cells,
        "dropped-signalling",
        Loss,
        "PDUs of signalling (circuit 0.5) that are damaged, too long or without an end.",
        "The neighbour's end of the link is none of UNI 3.1, or the link loses much.",
    ),
    entry(
        Cells,
        "calls-no-route",
        Way,
        "Calls refused with cause 3: their number leads to no port.",
        "numbers in the file say which do; tidewall atm switch --dry-run FILE shows them.",
    ),
    entry(
        Cells,
        "calls-no-circuit",
        Way,
        "Calls refused with cause 35 or 45: no circuit was free, or the one that was named is not.",
        "",
    ),
    entry(
        Cells,
        "calls-no-resources",
        Way,
        "Calls refused with cause 47: as many as a port's calls say, 64 of a port that nobody has answered, or a \
         quarter of the outgoing queue's cells.",
        "More calls or a longer queue in the file; or a neighbour that floods.",
    ),
    entry(
        Cells,
        "circuits-refused",
        Way,
        "Circuits that a called end has for something else (cause 35); the call goes by another, the eighth at the \
         latest.",
        "Permanent circuits of another VPI than 0 cost calls nothing.",
    ),
    entry(
        Cells,
        "calls-number-withheld",
        Way,
        "Callers' numbers that do not lead to them, which were not passed on.",
        "numbers of the caller's port say which are its own.",
    ),
    entry(
        Cells,
        "not-sent-unreachable",
        Loss,
        "Packets for a next hop to which no route leads by the port's interface.",
        "next-hop must be a neighbour on the link: see ip route get.",
    ),
    entry(
        Cells,
        "not-sent-refused",
        Loss,
        "Packets longer than the outgoing interface's MTU, which became smaller.",
        "",
    ),
];

/// Describes the switch; empty without one.
pub fn text(pair: &Pair) -> String {
    let Some(switch) = &pair.now.cell_switch else {
        return String::new();
    };
    let mut ports = Table::of(2, "port||>cells wait, by priority|>of");
    for port in &switch.ports {
        let waiting: Vec<_> = port.waiting.iter().map(|&cells| count(cells)).collect();
        ports.row([
            port.interface.clone(),
            port.mode.clone(),
            waiting.join(" "),
            count(port.queue),
        ]);
    }
    let mut counters = Table::of(2, "|>|>/s|");
    for (name, &times) in &switch.counters {
        let entry = explain::find(Cells, name);
        let lost = entry.is_some_and(|entry| entry.counts == Loss);
        let of = |switch: &CellSwitchSnapshot| counter(switch, name);
        counters.row([
            name.clone(),
            count(times),
            per_second(pair.rate(|stack| stack.cell_switch.as_ref().map_or(0, of))),
            if lost { "lost" } else { "" }.to_owned(),
        ]);
    }
    format!(
        "\nswitch of cells: {} directions of circuits\n{}{}",
        count(switch.circuits),
        ports.text(),
        counters.text()
    )
}

/// Returns one of the switch's counters.
pub fn counter(switch: &CellSwitchSnapshot, name: &str) -> u64 {
    switch.counters.get(name).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidewall::snapshot::{CellSwitchPort, StackSnapshot};
    use tidewall_circuits::cell_switch::counter_names;

    use super::*;

    /// Each kind of drop is explained as a loss. Cells that a device does not accept at
    /// once wait here, so three counters of the transport switch stay zero.
    #[test]
    fn losses_are_explained() {
        let is_loss = |name: &String| {
            ["dropped-", "not-sent-"]
                .iter()
                .any(|kind| name.starts_with(kind))
                && !["not-sent-unresolved", "not-sent-unasked", "not-sent-full"]
                    .contains(&name.as_str())
        };
        let explained = explain::entries(Cells);
        let lost = explained.filter(|entry| entry.counts == Loss);
        let lost: BTreeSet<String> = lost.map(|entry| entry.name.to_owned()).collect();
        assert_eq!(lost, counter_names().filter(is_loss).collect());
    }

    #[test]
    fn ports_and_counters_are_shown() {
        let mut port = CellSwitchPort::default();
        port.interface = "eth1".to_owned();
        port.mode = "cell".to_owned();
        (port.waiting, port.queue) = (vec![0, 7, 0, 0], 1024);
        let mut switch = CellSwitchSnapshot::default();
        (switch.circuits, switch.ports) = (2, vec![port]);
        switch.counters = [("dropped-rest".to_owned(), 5)].into();
        let mut stack = StackSnapshot::default();
        stack.cell_switch = Some(switch);
        let text = text(&Pair::new(stack, None));
        for part in [
            "switch of cells: 2 directions",
            "eth1  cell",
            "0 7 0 0  1,024",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let lost = text.lines().find(|line| line.contains("dropped-rest"));
        assert!(lost.unwrap().ends_with("lost"), "{text}");
        assert_eq!(super::text(&Pair::new(StackSnapshot::default(), None)), "");
    }
}
