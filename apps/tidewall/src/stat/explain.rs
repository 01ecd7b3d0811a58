//! Looks up the meaning of a counter. The table is in [`super::causes`]; a test here
//! compares it with the names that the stack really uses.

use super::causes::ENTRIES;
use crate::table::wrap;

/// The stage of a frame's path at which a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The device, before the driver program.
    Device,
    /// The driver program, at the device.
    Driver,
    /// Kernel-bound frames in the driver program, by class.
    Kernel,
    /// Between the driver and the channels.
    Ring,
    /// The protocol engines, in the receiver's context.
    Protocol,
    /// Reassembly of fragments.
    Reassembly,
    /// AAL5 and cells of circuits.
    Circuit,
    /// The socket.
    Socket,
    /// The transport switch.
    Switch,
    /// The cell switch.
    Cells,
    /// Sending.
    Transmit,
}

impl Place {
    /// All stages, in the order in which a frame passes them.
    pub const ALL: [Place; 11] = [
        Place::Device,
        Place::Driver,
        Place::Kernel,
        Place::Ring,
        Place::Protocol,
        Place::Reassembly,
        Place::Circuit,
        Place::Socket,
        Place::Switch,
        Place::Cells,
        Place::Transmit,
    ];

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Place::Device => "device",
            Place::Driver => "driver",
            Place::Kernel => "kernel class",
            Place::Ring => "ring",
            Place::Protocol => "protocol",
            Place::Reassembly => "reassembly",
            Place::Circuit => "circuit",
            Place::Socket => "socket",
            Place::Switch => "switch",
            Place::Cells => "switch of cells",
            Place::Transmit => "transmit",
        }
    }
}

/// The kind of thing that a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Frames or datagrams that died here.
    Loss,
    /// Frames that went on, or events that are no loss.
    Way,
}

/// One counter.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The stage at which it counts.
    pub place: Place,
    /// Its name there.
    pub name: &'static str,
    /// Whether something was lost.
    pub counts: Counts,
    /// Its meaning, in a sentence.
    pub meaning: &'static str,
    /// The remedy; empty if nothing needs to be done.
    pub advice: &'static str,
}

/// Returns the entry of a counter.
pub fn find(place: Place, name: &str) -> Option<&'static Entry> {
    entries(place).find(|entry| entry.name == name)
}

/// Returns the entries of a stage.
pub fn entries(place: Place) -> impl Iterator<Item = &'static Entry> {
    ENTRIES.iter().filter(move |entry| entry.place == place)
}

/// Formats all entries for `tidewall stat --explain`; `word` keeps those whose name
/// contains it.
pub fn text(word: &str, width: usize) -> String {
    let mut text = String::new();
    for place in Place::ALL {
        let named: Vec<&Entry> = entries(place)
            .filter(|entry| entry.name.contains(word))
            .collect();
        if named.is_empty() {
            continue;
        }
        text.push_str(&format!("{}\n", place.name()));
        for entry in named {
            let loss = if entry.counts == Counts::Loss {
                " (lost)"
            } else {
                ""
            };
            text.push_str(&format!(
                "  {}{loss}\n{}",
                entry.name,
                wrap(entry.meaning, 4, width)
            ));
            if !entry.advice.is_empty() {
                text.push_str(&wrap(&format!("→ {}", entry.advice), 4, width));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidewall::circuit_counters;
    use tidewall_device::demux::layout::{Class, Counter};
    use tidewall_protocol::DropReason;

    use super::Place::{Circuit, Driver, Kernel, Protocol};
    use super::*;

    #[test]
    fn every_counter_of_the_stack_is_explained_and_no_other() {
        let names = |place| -> BTreeSet<&str> { entries(place).map(|entry| entry.name).collect() };
        assert_eq!(
            names(Driver),
            Counter::ALL.iter().map(|counter| counter.name()).collect()
        );
        assert_eq!(
            names(Kernel),
            Class::ALL.iter().map(|class| class.name()).collect()
        );
        assert_eq!(
            names(Protocol),
            DropReason::ALL.iter().map(|cause| cause.name()).collect()
        );
        assert_eq!(names(Circuit), circuit_counters().into_iter().collect());
    }

    #[test]
    fn entries_are_unique_and_whole_sentences() {
        let mut seen = BTreeSet::new();
        for entry in ENTRIES.iter() {
            assert!(
                seen.insert((entry.place, entry.name)),
                "{} twice",
                entry.name
            );
            assert!(entry.meaning.ends_with('.'), "{}", entry.name);
            assert!(
                entry.advice.is_empty() || entry.advice.ends_with('.'),
                "{}",
                entry.name
            );
        }
    }

    #[test]
    fn the_text_can_be_narrowed_to_a_word() {
        let all = text("", 80);
        assert!(ENTRIES.iter().all(|entry| all.contains(entry.name)));
        let some = text("channel-full", 80);
        assert!(
            some.starts_with("driver\n  channel-full (lost)\n"),
            "{some}"
        );
        assert!(!some.contains("udp-checksum"));
        assert_eq!(text("no such counter", 80), "");
    }
}
