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
pub const UNSEEN_CURE: &str = "Start the service anew, which attaches the program again.";

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
        warning(&what, UNSEEN_CAUSE, UNSEEN_CURE);
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
    let mut told = Vec::new();
    for loss in &losses {
        let Some(entry) = explain::find(loss.place, &loss.name) else {
            continue;
        };
        if told.contains(&(loss.place, entry.name)) {
            continue;
        }
        told.push((loss.place, entry.name));
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
pub mod tests {
    use tidewall_socket::snapshot::{
        ControlSnapshot, DeviceLosses, DeviceSnapshot, SocketSnapshot,
    };

    use super::super::control::tests::control;
    use super::*;

    /// A stack with one queue and one socket, which lost `full` of `frames`.
    pub fn stack(seconds: u64, frames: u64, full: u64) -> StackSnapshot {
        let driver = [
            ("frames", frames),
            ("channel", frames - full),
            ("channel-full", full),
        ];
        StackSnapshot {
            process: 0,
            interface: "tw-x".to_owned(),
            architecture: "ni-lrp".to_owned(),
            device: None,
            deferred: true,
            microseconds: seconds * 1_000_000,
            received: None,
            losses: None,
            queues: vec![QueueSnapshot {
                driver: driver
                    .into_iter()
                    .map(|(name, count)| (name.to_owned(), count))
                    .collect(),
                kernel: BTreeMap::from([("other".to_owned(), (7, 3)), ("icmp".to_owned(), (0, 0))]),
                delivered: frames - full,
                stale: 0,
                lost_in_ring: 0,
                napi: [0; 2],
                rounds: 10,
                driven: 0,
                empty_rounds: 5,
                transmitted: 1,
                checksums_by_device: 0,
                no_transmit_frame: 0,
                host: BTreeMap::new(),
                control: ControlSnapshot::default(),
            }],
            sockets: vec![SocketSnapshot {
                channel: 2,
                protocol: "udp".to_owned(),
                local: "0.0.0.0:7".to_owned(),
                peer: None,
                received: frames - full,
                through_kernel: 0,
                occupancy: 12,
                limit: 1024,
                dropped_full: full,
            }],
            tcp: Default::default(),
            protocol: BTreeMap::from([("udp-checksum".to_owned(), 4)]),
            fragments: BTreeMap::from([("reassembled".to_owned(), 9)]),
            no_socket: 0,
            socket_full: 0,
            icmp_errors: 0,
            copied_out: 0,
            kernel_delivered: 2,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn rates_come_from_the_stack_s_own_clock() {
        let pair = Pair::new(stack(12, 3_000, 1_000), Some(stack(10, 1_000, 0)));
        let text = text(&pair, &Shares::default());
        let line = |start: &str| -> Vec<String> {
            let line = text
                .lines()
                .find(|line| line.trim_start().starts_with(start));
            line.unwrap_or_else(|| panic!("no {start:?} in\n{text}"))
                .split_whitespace()
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(
            line("driver: frames"),
            ["driver:", "frames", "3,000", "1,000"]
        );
        assert_eq!(
            line("driver: channel-full"),
            ["driver:", "channel-full", "1,000", "500", "lost"]
        );
        assert_eq!(
            line("2 "),
            [
                "2",
                "udp",
                "0.0.0.0:7",
                "-",
                "2,000",
                "500",
                "0",
                "12/1024",
                "1,000",
                "500"
            ]
        );
        assert_eq!(
            line("rounds"),
            [
                "rounds", "10", "-", "50", "%", "found", "the", "ring", "empty"
            ]
        );
    }

    #[test]
    fn only_losses_are_in_the_summary_and_each_is_explained_once() {
        let mut now = stack(12, 3_000, 1_000);
        now.queues.push(now.queues[0].clone());
        now.losses = Some(DeviceLosses {
            receive_ring: 2,
            sent: 5,
        });
        let pair = Pair::new(now, None);
        let found: Vec<(Place, Option<usize>, String, u64)> = losses(&pair)
            .into_iter()
            .map(|loss| (loss.place, loss.queue, loss.name, loss.lost))
            .collect();
        assert_eq!(
            found,
            [
                (Place::Device, None, "ring-full".to_owned(), 2),
                (Place::Driver, Some(0), "channel-full".to_owned(), 1_000),
                (Place::Driver, Some(1), "channel-full".to_owned(), 1_000),
                (Place::Kernel, Some(0), "other".to_owned(), 3),
                (Place::Kernel, Some(1), "other".to_owned(), 3),
                (Place::Protocol, None, "udp-checksum".to_owned(), 4),
                (Place::Transmit, None, "dropped-by-device".to_owned(), 5),
            ]
        );
        assert_eq!(losses_text(&pair).matches("Early discard").count(), 1);
    }

    #[test]
    fn a_stack_that_warns_is_heard() {
        let mut warns = stack(1, 5, 0);
        warns.warnings = vec!["the receiver does not poll".to_owned()];
        let text = text(&Pair::new(warns, None), &Shares::default());
        assert!(
            text.contains("\nwarning\n  the receiver does not poll\n"),
            "{text}"
        );
    }

    #[test]
    fn a_stack_that_lost_nothing_says_so() {
        let mut quiet = stack(1, 5, 0);
        quiet.protocol.clear();
        quiet.queues[0].kernel.clear();
        quiet.queues[0].driver.remove("channel-full");
        assert!(
            text(&Pair::new(quiet, None), &Shares::default()).ends_with("\nnothing was lost\n")
        );
    }

    #[test]
    fn frames_that_miss_tidewall_s_way_are_a_warning_not_silence() {
        let mut now = stack(1, 5, 0);
        now.protocol.clear();
        now.queues[0].kernel.clear();
        now.queues[0].driver.clear();
        now.queues[0].driver.insert("no-metadata".to_owned(), 62);
        let text = text(&Pair::new(now.clone(), None), &Shares::default());
        assert!(!text.contains("nothing was lost"), "{text}");
        assert!(
            text.contains("\nwarning\n  62 frames of owned ports did not take Tidewall's way"),
            "{text}"
        );
        // Beside losses, it comes last.
        now.queues[0].lost_in_ring = 1;
        let text = losses_text(&Pair::new(now, None));
        assert!(
            text.find("lost-in-ring") < text.find("\nwarning\n"),
            "{text}"
        );
    }

    #[test]
    fn packets_that_the_program_does_not_see_are_a_warning_not_silence() {
        let mut now = stack(1, 5, 0);
        now.protocol.clear();
        now.queues[0].kernel.clear();
        now.queues[0].driver.remove("channel-full");
        let mut pair = Pair::new(now.clone(), Some(now));
        pair.received = Some(1_200);
        let text = text(&pair, &Shares::default());
        assert!(!text.contains("nothing was lost"), "{text}");
        assert!(
            text.contains("\nwarning\n  1,200 packets came to tw-x, and the driver program saw none of them.\n"),
            "{text}"
        );
        assert!(
            text.ends_with("    → Start the service anew, which attaches the program again.\n")
        );
    }

    #[test]
    fn the_device_and_who_makes_checksums_are_in_the_header_and_the_rows() {
        let mut now = stack(1, 5, 0);
        now.device = Some(DeviceSnapshot {
            driver: "virtio_net".to_owned(),
            xdp: "native".to_owned(),
            zero_copy: false,
            receive_queues: 2,
            transmit_queues: 1,
            checksums: "in software (why)".to_owned(),
        });
        now.queues[0].transmitted = 10;
        now.queues[0].checksums_by_device = 3;
        let text = text(&Pair::new(now, None), &Shares::default());
        let second = text.lines().nth(1);
        assert_eq!(
            second,
            Some(
                "virtio_net, native XDP, copy mode, 2 receive and 1 transmit queue, \
                 checksums in software (why)"
            )
        );
        let row = |start: &str| text.lines().find(|line| line.contains(start)).unwrap();
        assert!(row("checksum by the device").contains(" 3 "), "{text}");
        assert!(row("checksum in software").contains(" 7 "), "{text}");
    }

    #[test]
    fn receive_control_is_a_line_of_its_queue() {
        let mut now = stack(1, 5, 0);
        now.queues[0].control = control();
        let text = text(&Pair::new(now, None), &Shares::default());
        assert!(
            text.contains(
                "\nqueue 0, receive control: adaptive, Bp 1,200, T 50 µs, mixed, fullest buffer 38 %\n"
            ),
            "{text}"
        );
        for row in [
            "rounds that used up Bp",
            "interrupts",
            "found their channel full",
        ] {
            assert!(text.contains(&format!("\n  {row} ")), "no {row} in\n{text}");
        }
    }

    #[test]
    fn what_changes_is_above_the_counters_of_all_stacks() {
        let looks: Vec<(Pair, Shares)> = ["tw-x", "tw-y"]
            .map(|interface| {
                let mut now = stack(1, 5, 0);
                now.interface = interface.to_owned();
                (Pair::new(now, None), Shares::default())
            })
            .into();
        let text = watch(
            &looks,
            &["the stack of process 9 on tw-z has ended".to_owned()],
        );
        let place = |word: &str| {
            text.find(word)
                .unwrap_or_else(|| panic!("no {word:?} in\n{text}"))
        };
        assert_eq!(place("the stack of process 9 on tw-z has ended\n"), 0);
        assert!(place("ni-lrp on tw-x") < place("ni-lrp on tw-y"));
        assert!(place("ni-lrp on tw-y") < place("\nprocess 0 on tw-x\nqueue 0"));
        assert_eq!(text.matches("exhausted/s").count(), 2, "{text}");
        assert_eq!(text.matches("driver: frames").count(), 2, "{text}");
        // One stack needs no name above its counters.
        assert!(!watch(&looks[..1], &[]).contains("process 0 on"));
    }
}
