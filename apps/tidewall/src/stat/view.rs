//! A stack's snapshots as tables.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use tidewall::snapshot::{QueueSnapshot, StackSnapshot};
use tidewall_device::demux::layout::Counter;

use super::Pair;
use super::causes::ENTRIES;
use super::control;
use super::explain::{self, Counts, Place};
use super::processor::Shares;
use super::{cells, switch, tcp};
use crate::table::{Table, wrap};
use crate::units::{age, count, per_second};

/// Width at which explanations are wrapped.
const WIDTH: usize = 96;

/// A loss: its stage, its cause, and how to find its count in a snapshot.
pub struct Loss {
    place: Place,
    queue: Option<usize>,
    /// Its cause.
    pub name: String,
    lost: u64,
    /// Frames per second.
    pub rate: f64,
}

/// Describes one stack in full.
pub fn text(pair: &Pair, shares: &Shares) -> String {
    format!("{}{}\n{}", head(pair), shares.text(), details(pair))
}

/// Describes all stacks: first the values that change between looks, then the rest.
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

/// Returns a stack's name for use in a sentence.
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

/// Lists every counter: queues, sockets, losses.
fn details(pair: &Pair) -> String {
    let mut text = String::new();
    for queue in 0..pair.now.queues.len() {
        text.push_str(&queue_text(pair, queue));
    }
    text.push_str(&sockets(pair));
    text.push_str(&tcp::text(pair));
    text.push_str(&switch::text(pair));
    text.push_str(&cells::text(pair));
    text.push_str(&losses_text(pair));
    text
}

/// Returns the name of a process.
fn program(process: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some(name.trim().to_owned())
}

/// Sorts counters in the order of their explanations, which is that of a frame's path.
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
    let steered = pair
        .now
        .steered
        .filter(|&(_, queue)| queue as usize == number);
    let steered = steered.map_or(String::new(), |(port, _)| {
        format!(", of UDP port {port} alone while that is flooded")
    });
    let mut text = format!(
        "\nqueue {number}{steered}, receive control: {}\n",
        control::line(&queue.control)
    );
    let mut table = Table::of(2, "|>frames|>/s|");
    let mut row = |name: String, find: &dyn Fn(&QueueSnapshot) -> u64, note: &str| {
        let rate = per_second(pair.queue_rate(number, find));
        table.row([name, count(find(queue)), rate, note.to_owned()]);
    };
    let lost = |lost| if lost { "lost" } else { "" };
    for (name, _) in in_order(Place::Driver, &queue.driver) {
        let entry = explain::find(Place::Driver, name);
        row(
            format!("driver: {name}"),
            &|queue| queue.driver.get(name).copied().unwrap_or(0),
            lost(entry.is_some_and(|entry| entry.counts == Counts::Loss)),
        );
    }
    for (class, &(passed, dropped)) in in_order(Place::Kernel, &queue.kernel) {
        let of = |queue: &QueueSnapshot| queue.kernel.get(class).copied().unwrap_or_default();
        if passed + dropped > 0 {
            let name = format!("kernel: {class} passed");
            row(name, &|queue| of(queue).0, "");
        }
        if dropped > 0 {
            let name = format!("kernel: {class} over its rate");
            row(name, &|queue| of(queue).1, "lost");
        }
    }
    let empty = match queue.rounds {
        0 => String::new(),
        rounds => format!(
            "{:.0} % found the ring empty",
            100.0 * queue.empty_rounds as f64 / rounds as f64
        ),
    };
    let software =
        |queue: &QueueSnapshot| queue.transmitted.saturating_sub(queue.checksums_by_device);
    type Row<'a> = (&'a str, fn(&QueueSnapshot) -> u64, &'a str);
    let rows: [Row<'_>; 15] = [
        ("delivered to channels", |queue| queue.delivered, ""),
        ("lost in the ring", |queue| queue.lost_in_ring, "lost"),
        (
            "for a channel closed meanwhile",
            |queue| queue.stale,
            "lost",
        ),
        ("sent", |queue| queue.transmitted, ""),
        (
            "sent, checksum by the device",
            |queue| queue.checksums_by_device,
            "",
        ),
        ("sent, checksum in software", software, ""),
        ("sent, long segments", |queue| queue.long_segments, ""),
        ("sent, bytes in long segments", |queue| queue.long_bytes, ""),
        (
            "long segments dropped by the kernel",
            |queue| queue.long_dropped,
            "lost",
        ),
        (
            "long segments refused: no room",
            |queue| queue.long_no_room,
            "lost",
        ),
        (
            "sends refused: no free frame",
            |queue| queue.no_transmit_frame,
            "lost",
        ),
        ("rounds", |queue| queue.rounds, &empty),
        (
            "rounds that used up Bp",
            |queue| queue.control.exhausted_rounds,
            "",
        ),
        ("interrupts", |queue| queue.control.interrupts, ""),
        (
            "found their channel full",
            |queue| queue.control.overflowed,
            "",
        ),
    ];
    for (name, find, note) in rows {
        if find(queue) > 0 || note != "lost" {
            row(name.to_owned(), &find, note);
        }
    }
    text.push_str(&table.text());
    text
}

fn sockets(pair: &Pair) -> String {
    if pair.now.sockets.is_empty() {
        return "\nno open sockets\n".to_owned();
    }
    let mut table = Table::of(
        2,
        ">channel|protocol|local|peer|>received|>/s|>by kernel|>waiting/limit|>dropped full|>/s",
    );
    for socket in &pair.now.sockets {
        let rate = |find: fn(&tidewall::snapshot::SocketSnapshot) -> u64| {
            pair.rate(|stack| {
                // Channel numbers are reused: the address must agree, too.
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

/// Returns every loss, in the order of a frame's path.
pub fn losses(pair: &Pair) -> Vec<Loss> {
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
        let mut add = |place, name: &str, find: &dyn Fn(&QueueSnapshot) -> u64| {
            add(place, Some(number), name, &|stack| {
                stack.queues.get(number).map_or(0, find)
            });
        };
        for name in queue.driver.keys() {
            add(Place::Driver, name, &|queue| {
                queue.driver.get(name).copied().unwrap_or(0)
            });
        }
        for name in queue.kernel.keys() {
            add(Place::Kernel, name, &|queue| {
                queue.kernel.get(name).map_or(0, |class| class.1)
            });
        }
        add(Place::Ring, "lost-in-ring", &|queue| queue.lost_in_ring);
        add(Place::Ring, "stale", &|queue| queue.stale);
        add(Place::Transmit, "no-transmit-frame", &|queue| {
            queue.no_transmit_frame
        });
        add(Place::Transmit, "long-dropped", &|queue| queue.long_dropped);
        add(Place::Transmit, "long-no-room", &|queue| queue.long_no_room);
    }
    for name in now.counters.protocol.keys() {
        add(Place::Protocol, None, name, &|stack| {
            stack.counters.protocol.get(name).copied().unwrap_or(0)
        });
    }
    for name in now.counters.fragments.keys() {
        add(Place::Reassembly, None, name, &|stack| {
            stack.counters.fragments.get(name).copied().unwrap_or(0)
        });
    }
    for name in now.counters.circuits.keys() {
        add(Place::Circuit, None, name, &|stack| {
            stack.counters.circuits.get(name).copied().unwrap_or(0)
        });
    }
    add(Place::Socket, None, "socket-gone", &|stack| {
        stack.counters.no_socket
    });
    add(Place::Socket, None, "socket-full", &|stack| {
        stack.counters.socket_full
    });
    let switched = now.switch.iter().flat_map(|switch| switch.counters.keys());
    for name in switched.filter(|name| explain::find(Place::Switch, name).is_some()) {
        add(Place::Switch, None, name, &|stack| {
            let switch = stack.switch.as_ref();
            switch.map_or(0, |it| switch::counter(it, name))
        });
    }
    let switched = now.cell_switch.iter().flat_map(|it| it.counters.keys());
    for name in switched.filter(|name| explain::find(Place::Cells, name).is_some()) {
        add(Place::Cells, None, name, &|stack| {
            let switch = stack.cell_switch.as_ref();
            switch.map_or(0, |it| cells::counter(it, name))
        });
    }
    losses.sort_by(|a, b| {
        (a.place, a.queue)
            .cmp(&(b.place, b.queue))
            .then(b.lost.cmp(&a.lost))
    });
    losses
}

/// The reason why packets can arrive without being seen by the driver program.
pub const UNSEEN_CAUSE: &str = "The kernel gets them all: owned ports are served by its sockets, without early \
     discard. The driver no longer runs the program, although it may be shown as attached: vmxnet3 loses it \
     when the interface goes down and up.";
/// The remedy.
pub const UNSEEN_REMEDY: &str = "Start the service anew, which attaches the program again.";

/// Returns what an operator must know although nothing was lost by it; otherwise empty.
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
    let mut table = Table::of(2, "place|cause|>lost|>/s");
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
