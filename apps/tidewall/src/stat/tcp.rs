//! TCP connections of a stack: their number, their memory, and their events.

use tidewall::snapshot::TcpSnapshot;

use super::Pair;
use crate::table::Table;
use crate::units::{bytes, count, per_second};

/// Describes connections; empty for a stack that never had one.
pub fn text(pair: &Pair) -> String {
    let tcp = &pair.now.tcp;
    if tcp.states.is_empty() && tcp.counters.values().all(|&count| count == 0) {
        return String::new();
    }
    let mut table = Table::of(2, "|>|>/s");
    for (name, &times) in &tcp.counters {
        let of = |tcp: &TcpSnapshot| tcp.counters.get(name).copied().unwrap_or(0);
        if times > 0 {
            let rate = per_second(pair.rate(|stack| of(&stack.tcp)));
            table.row([name.clone(), count(times), rate]);
        }
    }
    format!("\ntcp: {}\n{}", holdings(tcp), table.text())
}

/// Describes the memory of connections, beside its limits.
fn holdings(tcp: &TcpSnapshot) -> String {
    let states = tcp
        .states
        .iter()
        .map(|(state, &connections)| format!("{} {state}", count(connections)));
    let mut parts: Vec<String> = states.collect();
    parts.push(format!("{} half-open", count(tcp.half_open)));
    parts.push(format!(
        "orphans {} of {}",
        count(tcp.orphans),
        count(tcp.orphans_max)
    ));
    let limit = match tcp.memory_max {
        u64::MAX => "no limit".to_owned(),
        limit => bytes(limit),
    };
    parts.push(format!("memory of data {} of {limit}", bytes(tcp.memory)));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_shown_beside_its_limit() {
        let tcp = {
            let mut tcp = TcpSnapshot::default();
            tcp.states = [("established".to_owned(), 1200)].into();
            tcp.orphans = 3;
            tcp.orphans_max = 65_536;
            tcp.memory = 5 << 20;
            tcp.memory_max = 3 << 30;
            tcp
        };
        assert_eq!(
            holdings(&tcp),
            "1,200 established, 0 half-open, orphans 3 of 65,536, memory of data 5.0 MiB of 3.0 GiB"
        );
    }
}
