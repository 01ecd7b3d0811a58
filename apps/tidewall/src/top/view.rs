//! The output of `tidewall top`, as tables.

use std::collections::BTreeMap;

use super::Shown;
use crate::table::Table;
use crate::units::{count, per_second, trimmed};

/// Causes of drops per line; the others are only counted.
const CAUSES: usize = 2;

pub fn text(shown: &Shown) -> String {
    let mut table = Table::of(
        0,
        ">process|program|>user|interface|>app|state|>ports|>sockets|>connections|>received/s|>sent/s|>dropped/s|>Bp|>T|>processor|>polled for|>weight|by cause",
    );
    for row in &shown.applications {
        let known =
            |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
        let of = |value: fn(&super::StackRow) -> String| {
            row.stack.as_ref().map_or("-".to_owned(), value)
        };
        table.row([
            row.process.to_string(),
            row.program.clone().unwrap_or_else(|| "-".to_owned()),
            known(row.user),
            row.interface.clone(),
            known(row.application),
            row.state.to_owned(),
            known(row.ports),
            of(|stack| stack.sockets.to_string()),
            of(|stack| count(stack.connections)),
            of(|stack| per_second(stack.received)),
            of(|stack| per_second(stack.sent)),
            of(|stack| per_second(stack.drops.values().sum())),
            of(|stack| joined(&stack.budgets, |&budget| count(budget.into()))),
            of(|stack| joined(&stack.intervals, |&interval| trimmed(interval))),
            share(row.processor),
            share(row.charged),
            known(row.weight),
            of(|stack| causes(&stack.drops)),
        ]);
    }
    let mut text = format!("rates over {:.1} s\n{}", shown.seconds, table.text());
    if !shown.devices.is_empty() {
        let mut table = Table::of(0, "interface|>queue|>frames/s|>dropped/s|by cause");
        for device in &shown.devices {
            table.row([
                device.interface.clone(),
                device.queue.to_string(),
                per_second(device.frames),
                per_second(device.drops.values().sum()),
                causes(&device.drops),
            ]);
        }
        text.push_str("\nin the driver program, of all applications\n");
        text.push_str(&table.text());
    }
    if !shown.unprotected.is_empty() {
        text.push_str("\non the kernel's sockets, without Tidewall's protection\n");
        let lines = shown.unprotected.iter().map(|line| format!("  {line}\n"));
        text.extend(lines);
    }
    text
}

fn share(of: Option<f64>) -> String {
    of.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share))
}

/// Joins values; with `/` if queues differ.
fn joined<T>(values: &[T], text: impl Fn(&T) -> String) -> String {
    let mut all: Vec<String> = values.iter().map(text).collect();
    all.dedup();
    all.join("/")
}

/// Lists the causes, the greatest first.
fn causes(drops: &BTreeMap<String, f64>) -> String {
    let mut all: Vec<_> = drops.iter().collect();
    all.sort_by(|one, other| other.1.total_cmp(one.1));
    let shown = all.iter().take(CAUSES);
    let mut words: Vec<String> = shown
        .map(|(name, rate)| format!("{name} {}", per_second(**rate)))
        .collect();
    if all.len() > CAUSES {
        words.push(format!("{} more", all.len() - CAUSES));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_causes_are_named() {
        let drops = BTreeMap::from([
            ("a".to_owned(), 1.0),
            ("b".to_owned(), 2_000.0),
            ("c".to_owned(), 30.0),
        ]);
        assert_eq!(causes(&drops), "b 2,000, c 30, 1 more");
        assert_eq!(causes(&BTreeMap::new()), "");
    }

    #[test]
    fn a_line_an_application_and_a_line_a_queue() {
        let text = text(&super::super::tests::looks());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("rates over 2.0 s"), "{text}");
        assert_eq!(lines.len(), 2 + 3 + 2 + 2 + 3, "{text}");
        assert!(lines[8].ends_with("channel-full 50"), "{text}");
        assert!(lines[11].contains("listener 0.0.0.0:80 stays"), "{text}");
    }
}
