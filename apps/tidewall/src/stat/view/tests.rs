use tidewall::snapshot::{DeviceLosses, DeviceSnapshot, SocketSnapshot};

use super::super::control::tests::control;
use super::*;

/// A stack with one queue and one socket, which lost `full` of `frames`.
pub fn stack(seconds: u64, frames: u64, full: u64) -> StackSnapshot {
    let driver = [
        ("frames", frames),
        ("channel", frames - full),
        ("channel-full", full),
    ];
    let mut stack = StackSnapshot::default();
    stack.interface = "tw-x".to_owned();
    stack.architecture = "tidewall".to_owned();
    stack.deferred = true;
    stack.microseconds = seconds * 1_000_000;
    stack.queues = vec![{
        let mut queue = QueueSnapshot::default();
        queue.driver = driver
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count))
            .collect();
        queue.kernel = BTreeMap::from([("other".to_owned(), (7, 3)), ("icmp".to_owned(), (0, 0))]);
        queue.delivered = frames - full;
        queue.rounds = 10;
        queue.empty_rounds = 5;
        queue.transmitted = 1;
        queue
    }];
    stack.sockets = vec![{
        let mut socket = SocketSnapshot::default();
        socket.channel = 2;
        socket.protocol = "udp".to_owned();
        socket.local = "0.0.0.0:7".to_owned();
        socket.received = frames - full;
        socket.occupancy = 12;
        socket.limit = 1024;
        socket.dropped_full = full;
        socket
    }];
    stack.counters.protocol = BTreeMap::from([("udp-checksum".to_owned(), 4)]);
    stack.counters.fragments = BTreeMap::from([("reassembled".to_owned(), 9)]);
    stack.counters.kernel_delivered = 2;
    stack
}

#[test]
fn a_queue_that_a_flooded_port_has_for_itself_says_so() {
    let mut now = stack(12, 3_000, 1_000);
    now.steered = Some((9, 0));
    let text = text(&Pair::new(now, None), &Shares::default());
    let line = "queue 0, of UDP port 9 alone while that is flooded, receive control: ";
    assert!(text.contains(line), "{text}");
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
    now.losses = Some({
        let mut losses = DeviceLosses::default();
        losses.receive_ring = 2;
        losses.sent = 5;
        losses
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
    quiet.counters.protocol.clear();
    quiet.queues[0].kernel.clear();
    quiet.queues[0].driver.remove("channel-full");
    assert!(text(&Pair::new(quiet, None), &Shares::default()).ends_with("\nnothing was lost\n"));
}

#[test]
fn frames_that_miss_tidewall_s_way_are_a_warning_not_silence() {
    let mut now = stack(1, 5, 0);
    now.counters.protocol.clear();
    now.queues[0].kernel.clear();
    now.queues[0].driver.clear();
    now.queues[0].driver.insert("no-metadata".to_owned(), 62);
    let text = text(&Pair::new(now.clone(), None), &Shares::default());
    assert!(!text.contains("nothing was lost"), "{text}");
    assert!(
        text.contains("\nwarning\n  62 frames of owned ports did not take Tidewall's way"),
        "{text}"
    );
    // Beside losses, it is listed last.
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
    now.counters.protocol.clear();
    now.queues[0].kernel.clear();
    now.queues[0].driver.remove("channel-full");
    let mut pair = Pair::new(now.clone(), Some(now));
    pair.received = Some(1_200);
    let text = text(&pair, &Shares::default());
    assert!(!text.contains("nothing was lost"), "{text}");
    assert!(
        text.contains(
            "\nwarning\n  1,200 packets came to tw-x, and the driver program saw none of them.\n"
        ),
        "{text}"
    );
    assert!(text.ends_with("    → Start the service anew, which attaches the program again.\n"));
}

#[test]
fn the_device_and_who_makes_checksums_are_in_the_header_and_the_rows() {
    let mut now = stack(1, 5, 0);
    now.device = Some({
        let mut device = DeviceSnapshot::default();
        device.driver = "virtio_net".to_owned();
        device.xdp = "native".to_owned();
        device.receive_queues = 2;
        device.transmit_queues = 1;
        device.checksums = "in software (why)".to_owned();
        device.segmentation = "by the kernel (why)".to_owned();
        device
    });
    now.queues[0].transmitted = 10;
    now.queues[0].checksums_by_device = 3;
    let text = text(&Pair::new(now, None), &Shares::default());
    let second = text.lines().nth(1);
    assert_eq!(
        second,
        Some(
            "virtio_net, native XDP, copy mode, 2 receive and 1 transmit queue, \
             checksums in software (why), segments cut by the kernel (why)"
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
    assert!(place("tidewall on tw-x") < place("tidewall on tw-y"));
    assert!(place("tidewall on tw-y") < place("\nprocess 0 on tw-x\nqueue 0"));
    assert_eq!(text.matches("exhausted/s").count(), 2, "{text}");
    assert_eq!(text.matches("driver: frames").count(), 2, "{text}");
    // One stack needs no name above its counters.
    assert!(!watch(&looks[..1], &[]).contains("process 0 on"));
}
