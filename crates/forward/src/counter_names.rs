//! Counters of what forwards under the names that `tidewall stat` prints.

use std::collections::BTreeMap;

use crate::OutputCounters;

/// Returns counters under their names in `tidewall stat`; leaves zeroes out.
pub fn named(counters: impl Iterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    counters
        .filter(|&(_, count)| count > 0)
        .map(|(name, count)| (shown(name), count))
        .collect()
}

/// Returns the counters of sent packets, by name.
pub fn sent(output: OutputCounters) -> [(&'static str, u64); 8] {
    [
        ("sent_in_place", output.in_place),
        ("sent_copied", output.copied),
        ("not_sent_unresolved", output.unresolved),
        ("not_sent_unasked", output.unasked),
        ("not_sent_unreachable", output.unreachable),
        ("not_sent_full", output.full),
        ("not_sent_refused", output.refused),
        ("device_down", output.down),
    ]
}

/// Returns a counter's name in `tidewall stat`.
pub fn shown(name: &str) -> String {
    name.replace('_', "-")
}
