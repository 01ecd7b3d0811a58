//! A stack's snapshots as tables.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use tidewall_device::demux::layout::Counter;
use tidewall_socket::snapshot::{QueueSnapshot, StackSnapshot};

use super::Pair;
use super::causes::ENTRIES;
use super::control;
use super::explain::{self, Counts, Place};
use super::processor::Shares;
use super::tcp;
use crate::table::{Align, Table, wrap};
use crate::units::{age, count, per_second};

/// Width that explanations are broken at.
const WIDTH: usize = 96;

/// A loss: where, why, and how to find its count in a snapshot.
struct Loss {
    place: Place,
    queue: Option<usize>,
    name: String,
    lost: u64,
    rate: f64,
}

/// Everything about one stack.
pub fn text(pair: &Pair, shares: &Shares) -> String {
    format!("{}{}\n{}", head(pair), shares.text(), details(pair))
}

/// What changes from look to look, of all stacks first; then the rest.
pub fn watch(looks: &[(Pair, Shares)], notes: &[String]) -> String {
    let mut text = String::new();
    for note in notes {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{note}");
    }
    for (pair, shares) in looks {
        let table = control::table(pair);
        let _ = write!(text, "{}{}\n{table}\n", head(pair), shares.text());
    }
    for (pair, _) in looks {
        if looks.len() > 1 {
            let _ = writeln!(text, "{}", name(&pair.now));
        }
        text.push_str(details(pair).trim_start_matches('\n'));
        text.push('\n');
    }
    text
}

/// How a stack is called in a sentence.
pub fn name(stack: &StackSnapshot) -> String {
    format!("process {} on {}", stack.process, stack.interface)
}

fn head(pair: &Pair) -> String {
    let now = &pair.now;
    let device = now.device.as_ref().map(|device| format!("{device}\n"));
    format!(
        "{} on {}, process {}{}, up {}, rates over {:.1} s\n{}",
        now.architecture,
        now.interface,
        now.process,
        program(now.process)
            .map(|name| format!(" ({name})"))
            .unwrap_or_default(),
        age(Duration::from_micros(now.microseconds)),
        pair.seconds(),
        device.unwrap_or_default(),
    )
}

/// Every counter: queues, sockets, losses.
fn details(pair: &Pair) -> String {
    let mut text = String::new();
    for queue in 0..pair.now.queues.len() {
        text.push_str(&queue_text(pair, queue));
    }
    text.push_str(&sockets(pair));
    text.push_str(&tcp::text(pair));
    text.push_str(&losses_text(pair));
    text
}

/// The name of a process.
fn program(process: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some(name.trim().to_owned())
}

/// Counters in the order of their explanations, which is that of a frame's way.
fn in_order<T>(place: Place, counters: &BTreeMap<String, T>) -> Vec<(&String, &T)> {
    let rank = |name: &str| {
        ENTRIES
            .iter()
            .position(|entry| entry.place == place && entry.name == name)
            .unwrap_or(usize::MAX)
    };
    let mut list: Vec<(&String, &T)> = counters.iter().collect();
    list.sort_by_key(|(name, _)| rank(name));
    list
}

fn queue_text(pair: &Pair, number: usize) -> String {
    let Some(queue) = pair.now.queues.get(number) else {
        return String::new();
    };
    let rate = |find: fn(&QueueSnapshot) -> u64| {
        pair.rate(|stack| stack.queues.get(number).map_or(0, find))
    };
    let mut text = format!(
        "\nqueue {number}, receive control: {}\n",
        control::line(&queue.control)
    );
    let mut table = Table::new(
        2,
        &[
            ("", Align::Left),
            ("frames", Align::Right),
            ("/s", Align::Right),
            ("", Align::Left),
        ],
    );
    for (name, frames) in in_order(Place::Driver, &queue.driver) {
        let name_rate = pair.rate(|stack| {
            stack
                .queues
                .get(number)
                .and_then(|queue| queue.driver.get(name))
                .copied()
                .unwrap_or(0)
        });
        let lost =
            explain::find(Place::Driver, name).is_some_and(|entry| entry.counts == Counts::Loss);
        let note = if lost { "lost" } else { "" };
        table.row([
            format!("driver: {name}"),
            count(*frames),
            per_second(name_rate),
            note.to_owned(),
        ]);
    }
    for (class, (passed, dropped)) in in_order(Place::Kernel, &queue.kernel) {
        if passed + dropped == 0 {
            continue;
        }
        let of = |stack: &StackSnapshot| {
            stack
                .queues
                .get(number)
                .and_then(|queue| queue.kernel.get(class))
                .copied()
                .unwrap_or((0, 0))
        };
        table.row([
            format!("kernel: {class} passed"),
            count(*passed),
            per_second(pair.rate(|stack| of(stack).0)),
            String::new(),
        ]);
        if *dropped > 0 {
            table.row([
                format!("kernel: {class} over its rate"),
                count(*dropped),
                per_second(pair.rate(|stack| of(stack).1)),
                "lost".to_owned(),
            ]);
        }
    }
    type Row = (&'static str, fn(&QueueSnapshot) -> u64, bool);
    let rows: [Row; 11] = [
        ("delivered to channels", |queue| queue.delivered, false),
        ("lost in the ring", |queue| queue.lost_in_ring, true),
        ("for a channel closed meanwhile", |queue| queue.stale, true),
        ("sent", |queue| queue.transmitted, false),
        (
            "sent, checksum by the device",
            |queue| queue.checksums_by_device,
            false,
        ),
        (
            "sent, checksum in software",
            |queue| queue.transmitted.saturating_sub(queue.checksums_by_device),
            false,
        ),
        (
            "sends refused: no free frame",
            |queue| queue.no_transmit_frame,
            true,
        ),
        ("rounds", |queue| queue.rounds, false),
        (
            "rounds that used up Bp",
            |queue| queue.control.exhausted_rounds,
            false,
        ),
        ("interrupts", |queue| queue.control.interrupts, false),
        (
            "found their channel full",
            |queue| queue.control.overflowed,
            false,
        ),
    ];
    for (name, find, lost) in rows {
        let frames = find(queue);
        if frames == 0 && lost {
            continue;
        }
        let note = match name {
            "rounds" if queue.rounds > 0 => {
                format!(
                    "{:.0} % found the ring empty",
                    100.0 * queue.empty_rounds as f64 / queue.rounds as f64
                )
            }
            _ if lost => "lost".to_owned(),
            _ => String::new(),
        };
        table.row([name.to_owned(), count(frames), per_second(rate(find)), note]);
    }
    text.push_str(&table.text());
    text
}

fn sockets(pair: &Pair) -> String {
    if pair.now.sockets.is_empty() {
        return "\nno open sockets\n".to_owned();
    }
    let mut table = Table::new(
        2,
        &[
            ("channel", Align::Right),
            ("protocol", Align::Left),
            ("local", Align::Left),
            ("peer", Align::Left),
            ("received", Align::Right),
            ("/s", Align::Right),
            ("by kernel", Align::Right),
            ("waiting/limit", Align::Right),
            ("dropped full", Align::Right),
            ("/s", Align::Right),
        ],
    );
    for socket in &pair.now.sockets {
        let rate = |find: fn(&tidewall_socket::snapshot::SocketSnapshot) -> u64| {
            pair.rate(|stack| {
                // Channel numbers are used again: the address must agree too.
                stack
                    .sockets
                    .iter()
                    .find(|other| other.channel == socket.channel && other.local == socket.local)
                    .map_or(0, find)
            })
        };
        table.row([
            socket.channel.to_string(),
            socket.protocol.clone(),
            socket.local.clone(),
            socket.peer.clone().unwrap_or_else(|| "-".to_owned()),
            count(socket.received),
            per_second(rate(|socket| socket.received)),
            count(socket.through_kernel),
            format!("{}/{}", socket.occupancy, socket.limit),
            count(socket.dropped_full),
            per_second(rate(|socket| socket.dropped_full)),
        ]);
    }
    format!("\nsockets\n{}", table.text())
}

/// Everything that was lost, in the order of a frame's way.
fn losses(pair: &Pair) -> Vec<Loss> {
    let now = &pair.now;
    let mut losses = Vec::new();
    let mut add = |place, queue, name: &str, find: &dyn Fn(&StackSnapshot) -> u64| {
        let is_loss = explain::find(place, name).is_none_or(|entry| entry.counts == Counts::Loss);
        let lost = find(now);
        if is_loss && lost > 0 {
            losses.push(Loss {
                place,
                queue,
                name: name.to_owned(),
                lost,
                rate: pair.rate(find),
            });
        }
    };
    let device = |stack: &StackSnapshot| stack.losses.unwrap_or_default();
    add(Place::Device, None, "ring-full", &|stack| {
        device(stack).receive_ring
    });
    add(Place::Transmit, None, "dropped-by-device", &|stack| {
        device(stack).sent
    });
    for (number, queue) in now.queues.iter().enumerate() {
        let of = |stack: &StackSnapshot, find: &dyn Fn(&QueueSnapshot) -> Option<u64>| {
            stack.queues.get(number).and_then(find).unwrap_or(0)
        };
        for name in queue.driver.keys() {
            add(Place::Driver, Some(number), name, &|stack| {
                of(stack, &|queue| queue.driver.get(name).copied())
            });
        }
        for name in queue.kernel.keys() {
            add(Place::Kernel, Some(number), name, &|stack| {
                of(stack, &|queue| queue.kernel.get(name).map(|c| c.1))
            });
        }
        add(Place::Ring, Some(number), "lost-in-ring", &|stack| {
            of(stack, &|queue| Some(queue.lost_in_ring))
        });
        add(Place::Ring, Some(number), "stale", &|stack| {
            of(stack, &|queue| Some(queue.stale))
        });
        add(
            Place::Transmit,
            Some(number),
            "no-transmit-frame",
            &|stack| of(stack, &|queue| Some(queue.no_transmit_frame)),
        );
    }
    for name in now.protocol.keys() {
        add(Place::Protocol, None, name, &|stack| {
            stack.protocol.get(name).copied().unwrap_or(0)
        });
    }
    for name in now.fragments.keys() {
        add(Place::Reassembly, None, name, &|stack| {
            stack.fragments.get(name).copied().unwrap_or(0)
        });
    }
    add(Place::Socket, None, "socket-gone", &|stack| stack.no_socket);
    add(Place::Socket, None, "socket-full", &|stack| {
        stack.socket_full
    });
    losses.sort_by(|a, b| {
        (a.place, a.queue)
            .cmp(&(b.place, b.queue))
            .then(b.lost.cmp(&a.lost))
    });
    losses
}

/// Why packets can come of which the driver program sees none.
pub const UNSEEN_CAUSE: &str = "The kernel gets them all: owned ports are served by its sockets, without early \
     discard. The driver no longer runs the program, although it may be shown as attached: vmxnet3 loses it \
     when the interface goes down and up.";
/// What to do about it.
pub const UNSEEN_REMEDY: &str = "Start the service anew, which attaches the program again.";

/// What an operator must know although nothing was lost by it; empty where
/// there is nothing of the kind.
fn warning(pair: &Pair) -> String {
    let mut text = String::new();
    for warning in &pair.now.warnings {
        text += &wrap(warning, 2, WIDTH);
    }
    let mut warning = |what: &str, meaning: &str, advice: &str| {
        text += &wrap(what, 2, WIDTH);
        text += &wrap(meaning, 4, WIDTH);
        text += &wrap(&format!("→ {advice}"), 4, WIDTH);
    };
    if let Some(packets) = pair.unseen() {
        let what = format!(
            "{} packets came to {}, and the driver program saw none of them.",
            count(packets),
            pair.now.interface
        );
        warning(&what, UNSEEN_CAUSE, UNSEEN_REMEDY);
    }
    let frames = pair.now.no_metadata();
    let entry = explain::find(Place::Driver, Counter::NoMetadata.name());
    if let (true, Some(entry)) = (frames > 0, entry) {
        let what = format!(
            "{} frames of owned ports did not take Tidewall's way (driver: {}).",
            count(frames),
            entry.name
        );
        warning(&what, entry.meaning, entry.advice);
    }
    if !text.is_empty() {
        text.insert_str(0, "\nwarning\n");
    }
    text
}

fn losses_text(pair: &Pair) -> String {
    let losses = losses(pair);
    let warning = warning(pair);
    if losses.is_empty() {
        return if warning.is_empty() {
            "\nnothing was lost\n".to_owned()
        } else {
            warning
        };
    }
    let mut table = Table::new(
        2,
        &[
            ("place", Align::Left),
            ("cause", Align::Left),
            ("lost", Align::Right),
            ("/s", Align::Right),
        ],
    );
    for loss in &losses {
        let place = match loss.queue {
            Some(queue) => format!("{}, queue {queue}", loss.place.name()),
            None => loss.place.name().to_owned(),
        };
        table.row([
            place,
            loss.name.clone(),
            count(loss.lost),
            per_second(loss.rate),
        ]);
    }
    let mut text = format!("\ndrops by cause and place\n{}", table.text());
    let mut explained = Vec::new();
    for loss in &losses {
        let Some(entry) = explain::find(loss.place, &loss.name) else {
            continue;
        };
        if explained.contains(&(loss.place, entry.name)) {
            continue;
        }
        explained.push((loss.place, entry.name));
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {}: {}", entry.place.name(), entry.name);
        text.push('\n');
        text.push_str(&wrap(entry.meaning, 4, WIDTH));
        if !entry.advice.is_empty() {
            text.push_str(&wrap(&format!("→ {}", entry.advice), 4, WIDTH));
        }
    }
    text + &warning
}

#[cfg(test)]
pub mod tests;
