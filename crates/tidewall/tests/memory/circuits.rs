//! Circuits: two stacks on a link, and frames of neither.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidewall::descriptor::{Descriptors, Flags};
use tidewall::readiness::{Events, PollFd};
use tidewall::{AtmOptions, AtmSocket, Circuit, Rates, Stack};
use tidewall_device::demux::layout::Counter;
use tidewall_device::memory::{LinkConfig, Rings, Side};
use tidewall_wire::atm::oam::Loopback;
use tidewall_wire::atm::pseudowire::{CircuitCell, FrameHeader, Label, Packet};
use tidewall_wire::atm::{PayloadType, aal5};

use super::support::*;
use super::tcp::stacks;

const CIRCUIT: Circuit = Circuit { vpi: 0, vci: 100 };
const OTHER: Circuit = Circuit { vpi: 1, vci: 100 };
/// The longest payload of one frame: 31 cells are 1,488 bytes, and 8 stand before them.
const ONE_FRAME: usize = 31 * 48 - aal5::TRAILER_LEN;

fn attached() -> Bed {
    attached_with(LinkConfig::default())
}

fn attached_with(config: LinkConfig) -> Bed {
    let bed = Bed::with(config);
    bed.near.attach_atm(FAR4.into()).unwrap();
    bed.far.attach_atm(NEAR4.into()).unwrap();
    bed
}

fn open(stack: &Stack, circuit: Circuit) -> AtmSocket {
    let socket = AtmSocket::bind(stack, circuit).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Everything that waits, once the stack finds nothing more.
fn all(socket: &AtmSocket) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut quiet = 0;
    while quiet < 10 {
        let got = socket.recv_batch(64, |received| found.push(received.payload.to_vec()));
        match got {
            Ok(_) => quiet = 0,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                quiet += 1;
            }
        }
    }
    found
}

fn counted(stack: &Stack) -> BTreeMap<String, u64> {
    stack.snapshot().counters.circuits
}

fn one(name: &str, count: u64) -> BTreeMap<String, u64> {
    [(name.to_owned(), count)].into()
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + length) as u8).collect()
}

/// A frame for the far end, of what is behind the Ethernet header.
fn frame(packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0x47];
    frame.extend(packet);
    frame
}

fn pdu(circuit: Circuit, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 8 + aal5::pdu_len(payload.len())];
    let label = Label::of_circuit(circuit).unwrap();
    let rest = FrameHeader::whole(label).emit(&mut packet).unwrap();
    aal5::emit(payload, 0, rest).unwrap();
    frame(&packet)
}

fn cell(payload_type: PayloadType, payload: &[u8; 48]) -> Vec<u8> {
    let mut packet = [0; CircuitCell::LEN];
    let cell = CircuitCell {
        label: Label::of_circuit(CIRCUIT).unwrap(),
        payload_type,
        low_priority: false,
        payload,
    };
    cell.emit(&mut packet).unwrap();
    frame(&packet)
}

#[test]
fn payloads_of_every_size_come_whole_and_in_order() {
    let bed = attached();
    let (near, far) = (open(&bed.near, CIRCUIT), open(&bed.far, CIRCUIT));
    let sizes = [1, 40, 41, 1000, ONE_FRAME, ONE_FRAME + 1, 2968, 9179, 9180];
    for size in sizes {
        let payload = bytes(size);
        assert_eq!(near.send(&payload).unwrap(), size);
        let came = all(&far);
        assert_eq!(came, std::slice::from_ref(&payload), "{size} bytes");
        assert_eq!(far.send(&came[0]).unwrap(), size);
        assert_eq!(all(&near), [payload], "{size} bytes back");
    }
    for size in sizes {
        near.queue(&bytes(size)).unwrap();
    }
    near.flush().unwrap();
    assert_eq!(all(&far), sizes.map(bytes));
    // The rest of a longer one is lost, and an empty one is not sent.
    assert_eq!(near.send(&[]).unwrap(), 0);
    near.send(&bytes(300)).unwrap();
    let mut short = [0; 100];
    assert_eq!(far.recv(&mut short).unwrap(), 100);
    assert_eq!(short, bytes(300)[..100]);
    assert!(all(&far).is_empty());
    assert_eq!(bed.outstanding(), 0);
    assert_eq!(counted(&bed.far), BTreeMap::new());
}

#[test]
fn the_longest_payload_is_the_one_that_was_agreed_on() {
    let bed = attached();
    let longest = AtmOptions {
        send_max: 65_535,
        receive_max: 65_535,
        ..AtmOptions::default()
    };
    let near = AtmSocket::bind_with(&bed.near, CIRCUIT, longest).unwrap();
    let far = AtmSocket::bind_with(&bed.far, CIRCUIT, longest).unwrap();
    far.set_nonblocking(true).unwrap();
    near.send(&bytes(65_535)).unwrap();
    assert_eq!(all(&far), [bytes(65_535)]);
    let near = open(&bed.near, OTHER);
    assert_eq!(near.options(), AtmOptions::default());
    assert_eq!(errno(near.send(&bytes(9181)).unwrap_err()), libc::EMSGSIZE);
    // The other end has agreed on less: whole cells above it are refused.
    let less = AtmOptions {
        receive_max: 80,
        ..AtmOptions::default()
    };
    let far = AtmSocket::bind_with(&bed.far, OTHER, less).unwrap();
    far.set_nonblocking(true).unwrap();
    for size in [88, 89, 9180, 88] {
        near.send(&bytes(size)).unwrap();
    }
    assert_eq!(all(&far), [bytes(88), bytes(88)]);
    // The first of the long one's seven frames was refused, and then the rest.
    let refused = counted(&bed.far);
    assert_eq!(refused.get("aal5-too-long"), Some(&2), "{refused:?}");
    assert_eq!(refused.get("aal5-rest"), Some(&6), "{refused:?}");
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn binding_fails_as_linux_does() {
    let bed = Bed::new();
    let fails = |circuit| errno(AtmSocket::bind(&bed.near, circuit).map(drop).unwrap_err());
    assert_eq!(fails(CIRCUIT), libc::ENODEV);
    bed.near.attach_atm(FAR4.into()).unwrap();
    assert_eq!(fails(Circuit { vpi: 0, vci: 0 }), libc::EINVAL);
    assert_eq!(fails(Circuit { vpi: 15, vci: 100 }), libc::EINVAL);
    for (send_max, receive_max) in [(1, 0), (1, 65_536), (65_536, 1)] {
        let options = AtmOptions {
            send_max,
            receive_max,
            ..AtmOptions::default()
        };
        let bound = AtmSocket::bind_with(&bed.near, CIRCUIT, options);
        assert_eq!(
            bound.map(drop).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
    let first = open(&bed.near, CIRCUIT);
    assert_eq!(first.circuit(), Some(CIRCUIT));
    assert_eq!(fails(CIRCUIT), libc::EADDRINUSE);
    let _other = open(&bed.near, OTHER);
    drop(first);
    let again = open(&bed.near, CIRCUIT);
    assert_eq!(errno(again.recv(&mut [0]).unwrap_err()), libc::EAGAIN);
    // Every channel is one circuit's, and all come back.
    let before = bed.near.snapshot().sockets.len();
    let all: Vec<_> = (1000..)
        .map_while(|vci| AtmSocket::bind(&bed.near, Circuit { vpi: 2, vci }).ok())
        .collect();
    assert!(all.len() > 4000, "{}", all.len());
    let one_more = AtmSocket::bind(&bed.near, Circuit { vpi: 3, vci: 100 });
    assert_eq!(errno(one_more.map(drop).unwrap_err()), libc::ENFILE);
    drop(all);
    assert_eq!(bed.near.snapshot().sockets.len(), before);
    open(&bed.near, Circuit { vpi: 3, vci: 100 });
}

#[test]
fn frames_of_no_circuit_are_the_kernels() {
    let bed = attached();
    let far = open(&bed.far, CIRCUIT);
    let whole = pdu(CIRCUIT, b"for us");
    let mut other_link = whole.clone();
    other_link[5] = 9;
    let mut two_labels = whole.clone();
    two_labels[16] &= !1;
    for frame in [&pdu(OTHER, b"of nobody"), &other_link, &two_labels] {
        bed.inject(frame);
    }
    assert!(all(&far).is_empty());
    assert_eq!(bed.link.take_kernel(Side::B).len(), 3);
    assert_eq!(bed.driver(Counter::NoCircuit), 3);
    bed.inject(&whole);
    assert_eq!(all(&far), [b"for us"]);
    drop(far);
    let other = open(&bed.far, OTHER);
    bed.inject(&whole);
    assert!(all(&other).is_empty());
    assert_eq!(bed.driver(Counter::NoCircuit), 4);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn what_is_damaged_is_counted_by_its_cause() {
    let bed = attached();
    let far = open(&bed.far, CIRCUIT);
    let whole = pdu(CIRCUIT, &bytes(100));
    let changed = |at: usize, bit: u8| {
        let mut frame = whole.clone();
        frame[at] ^= bit;
        frame
    };
    let after = |frames: &[Vec<u8>]| {
        let before = counted(&bed.far);
        frames.iter().for_each(|frame| bed.inject(frame));
        let came = all(&far).len();
        let mut more = counted(&bed.far);
        for (name, count) in &mut more {
            *count -= before.get(name).unwrap_or(&0);
        }
        more.retain(|_, count| *count > 0);
        (came, more)
    };
    assert_eq!(after(&[changed(30, 1)]), (0, one("aal5-crc", 1)));
    // Reserved bits before the control word, and a payload that is no number of cells.
    assert_eq!(
        after(&[changed(18, 0x10)]),
        (0, one("circuit-malformed", 1))
    );
    assert_eq!(
        after(&[whole[..100].to_vec()]),
        (0, one("circuit-malformed", 1))
    );
    // A lost last part takes the next PDU with it, and no more.
    let mut part = whole[..14 + 8 + 96].to_vec();
    part[21] &= !4;
    let frames = [part, whole.clone(), whole.clone()];
    assert_eq!(after(&frames), (1, one("aal5-crc", 1)));
    // A cell of resource management, and a damaged loopback.
    let loopback = Loopback::request(1).bytes();
    let mut damaged = loopback;
    damaged[2] ^= 1;
    let end_to_end = PayloadType::OAM_END_TO_END;
    let cells = [
        cell(PayloadType::from_bits(6), &loopback),
        cell(end_to_end, &damaged),
    ];
    assert_eq!(after(&cells), (0, one("oam-ignored", 2)));
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_full_circuit_harms_no_other() {
    let bed = attached();
    let (full, beside) = (open(&bed.far, CIRCUIT), open(&bed.far, OTHER));
    full.set_receive_limit(4).unwrap();
    let near = [open(&bed.near, CIRCUIT), open(&bed.near, OTHER)];
    for n in 0..10u8 {
        near[0].send(&[n]).unwrap();
        near[1].send(&[n]).unwrap();
    }
    assert_eq!(all(&beside).len(), 10);
    assert_eq!(all(&full), [[0], [1], [2], [3]]);
    assert_eq!(bed.driver(Counter::ChannelFull), 6);
    let snapshot = bed.far.snapshot();
    let full = snapshot.sockets.iter().find(|it| it.local == "0.100");
    let full = full.unwrap();
    assert_eq!((full.protocol.as_str(), full.received), ("aal5", 4));
    assert_eq!((full.limit, full.dropped_full), (4, 6));
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn what_is_copied_out_for_want_of_frames_stays_in_order() {
    // Half of the memory would be enough for one and a half of these channels.
    let bed = attached_with(LinkConfig {
        frames: 1024,
        ..LinkConfig::default()
    });
    let circuits: Vec<_> = (0..6).map(|vpi| Circuit { vpi, vci: 100 }).collect();
    let sockets: Vec<_> = circuits.iter().map(|&it| open(&bed.far, it)).collect();
    let (quick, slow) = sockets.split_last().unwrap();
    for socket in slow {
        socket.set_receive_limit(1000).unwrap();
    }
    let mut seen = [0_u32; 5];
    for round in 0..40_u32 {
        let numbers = round * 10..round * 10 + 10;
        for &circuit in &circuits {
            for n in numbers.clone() {
                bed.inject(&pdu(circuit, &n.to_be_bytes()));
            }
        }
        let came: Vec<_> = numbers.map(|n| n.to_be_bytes().to_vec()).collect();
        assert!(all(quick) == came, "round {round}");
        // Each of the others takes a few of its own, now and then.
        let turn = round as usize % 5;
        let _ = slow[turn].recv_batch(8, |received| {
            assert_eq!(received.payload, seen[turn].to_be_bytes(), "round {round}");
            seen[turn] += 1;
        });
    }
    assert!(bed.far.snapshot().counters.copied_out > 0);
    for (socket, next) in slow.iter().zip(seen) {
        let rest: Vec<_> = (next..400).map(|n| n.to_be_bytes().to_vec()).collect();
        assert!(all(socket) == rest, "from {next}");
    }
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_closure_that_panics_costs_no_frame_and_no_credit() {
    let bed = attached_with(LinkConfig {
        frames: 512,
        ..LinkConfig::default()
    });
    let far = open(&bed.far, CIRCUIT);
    let panics = || {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            // As panic!, without a message.
            far.recv_batch(64, |_| resume_unwind(Box::new("the application")))
        }));
        assert!(ended.is_err());
    };
    for _ in 0..400 {
        for n in 0..4 {
            bed.inject(&pdu(CIRCUIT, &[n]));
        }
        panics();
        assert_eq!(all(&far), [[1], [2], [3]]);
        assert_eq!(bed.outstanding(), 0);
    }
}

#[test]
fn a_loopback_cell_is_answered_by_who_receives() {
    let bed = attached();
    let far = open(&bed.far, CIRCUIT);
    let tap = bed.far_tap();
    let request = Loopback::request(77);
    for of in [PayloadType::OAM_SEGMENT, PayloadType::OAM_END_TO_END] {
        bed.inject(&cell(of, &request.bytes()));
        assert_eq!(all(&far).len(), 0);
        let sent = tap.take();
        let answers: Vec<_> = sent.iter().filter(|it| it.from == Side::B).collect();
        assert_eq!(answers.len(), 1, "{sent:?}");
        let packet = Packet::new(&answers[0].bytes[14..]).unwrap();
        let answer = packet.cell().unwrap();
        assert_eq!(answer.payload_type, of);
        let answer = Loopback::parse(answer.payload).unwrap();
        assert_eq!(Some(answer), request.reply());
    }
    // An unsolicited answer, and one for another point of the circuit.
    let elsewhere = Loopback {
        location: [1; 16],
        ..request
    };
    let end_to_end = PayloadType::OAM_END_TO_END;
    bed.inject(&cell(end_to_end, &request.reply().unwrap().bytes()));
    bed.inject(&cell(end_to_end, &elsewhere.bytes()));
    assert_eq!(all(&far).len(), 0);
    let answered = [
        ("oam-answered".to_owned(), 2),
        ("oam-ignored".to_owned(), 1),
    ];
    assert_eq!(counted(&bed.far), answered.into());
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn ping_waits_for_its_answer_and_keeps_what_comes_meanwhile() {
    let (near, far) = stacks();
    near.attach_atm(FAR4.into()).unwrap();
    far.attach_atm(NEAR4.into()).unwrap();
    let (asking, answering) = (
        AtmSocket::bind(&near, CIRCUIT).unwrap(),
        AtmSocket::bind(&far, CIRCUIT).unwrap(),
    );
    answering.send(b"before").unwrap();
    let timeout = Duration::from_millis(50);
    let error = asking.ping(timeout).unwrap_err();
    assert_eq!(errno(error), libc::ETIMEDOUT);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            answering.set_read_timeout(Some(timeout)).unwrap();
            while !ended.load(Ordering::Relaxed) {
                let _ = answering.recv(&mut [0; 8]);
            }
        });
        let timeouts = [
            Duration::from_secs(10),
            Duration::MAX,
            Duration::from_secs(10),
        ];
        let pinged = timeouts.into_iter().map(|it| asking.ping(it));
        let pinged: Vec<_> = pinged.collect();
        ended.store(true, Ordering::Relaxed);
        assert!(pinged.iter().all(Result::is_ok), "{pinged:?}");
    });
    let mut buffer = [0; 8];
    assert_eq!(asking.recv(&mut buffer).unwrap(), 6);
    assert_eq!(&buffer[..6], b"before");
}

#[test]
fn a_circuit_is_a_descriptor_as_other_sockets_are() {
    let bed = attached();
    let near = open(&bed.near, CIRCUIT);
    let descriptors = Descriptors::new(&bed.far, 16);
    let bound = AtmSocket::bind(&bed.far, CIRCUIT).unwrap();
    let fd = descriptors.open(bound, Flags::NONBLOCK).unwrap();
    let poll = || {
        let mut set = [PollFd::new(fd, Events::IN | Events::OUT)];
        descriptors.poll(&mut set, Some(Duration::ZERO)).unwrap();
        Events::from_bits(u32::from(set[0].revents as u16))
    };
    assert_eq!(poll(), Events::OUT);
    near.send(b"readable").unwrap();
    // A caller that asks without waiting makes the device be polled now and then.
    let readable = (0..100).map(|_| poll()).find(|&ready| ready != Events::OUT);
    assert_eq!(readable, Some(Events::IN | Events::OUT));
    let mut buffer = [0; 16];
    assert_eq!(descriptors.read(fd, &mut buffer).unwrap(), 8);
    assert_eq!(poll(), Events::OUT);
    let error = descriptors.read(fd, &mut buffer).unwrap_err();
    assert_eq!(errno(error), libc::EAGAIN);
    let pieces = [IoSlice::new(b"two "), IoSlice::new(b"pieces")];
    assert_eq!(descriptors.writev(fd, &pieces).unwrap(), 10);
    assert_eq!(all(&near), [b"two pieces"]);
    let to = at(FAR4, 7);
    let fails = |result: io::Result<usize>| errno(result.unwrap_err());
    assert_eq!(fails(descriptors.sendto(fd, b"x", 0, to)), libc::EISCONN);
    assert_eq!(
        errno(descriptors.connect_to(fd, to).unwrap_err()),
        libc::EISCONN
    );
    let flags = libc::MSG_OOB;
    assert_eq!(
        fails(descriptors.recv(fd, &mut buffer, flags)),
        libc::EOPNOTSUPP
    );
    descriptors.close(fd).unwrap();
    // The circuit went with its last number.
    open(&bed.far, CIRCUIT);
}

/// Two frames with one PDU.
fn in_two(payload: &[u8]) -> [Vec<u8>; 2] {
    let whole = pdu(CIRCUIT, payload);
    let (head, cells) = whole.split_at(14 + 8);
    let mut first = [head, &cells[..48]].concat();
    first[21] &= !4;
    [first, [head, &cells[48..]].concat()]
}

#[test]
fn a_pdu_in_parts_is_traced() {
    let bed = attached();
    let far = open(&bed.far, CIRCUIT);
    bed.tables.trusted.start_trace(u32::MAX);
    in_two(&bytes(80)).iter().for_each(|part| bed.inject(part));
    assert_eq!(all(&far), [bytes(80)]);
    let [first, mut last] = in_two(&bytes(80));
    last[30] ^= 1;
    bed.inject(&first);
    bed.inject(&last);
    assert!(all(&far).is_empty());
    assert_eq!(counted(&bed.far), one("aal5-crc", 1));
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_part_without_an_end_is_given_up_when_the_counters_are_read() {
    let bed = attached();
    let far = open(&bed.far, CIRCUIT);
    bed.inject(&in_two(&bytes(80))[0]);
    assert!(all(&far).is_empty());
    assert_eq!(counted(&bed.far), BTreeMap::new());
    bed.advance(Duration::from_secs(1));
    assert_eq!(counted(&bed.far), one("aal5-timed-out", 1));
}

#[test]
fn frames_that_yield_nothing_do_not_hold_a_call() {
    // None is copied out for want of frames.
    let bed = attached_with(LinkConfig {
        frames: 8192,
        ..LinkConfig::default()
    });
    let (far, other) = (open(&bed.far, CIRCUIT), open(&bed.far, OTHER));
    far.set_receive_limit(1000).unwrap();
    let ignored = cell(PayloadType::from_bits(6), &[0; 48]);
    for _ in 0..8 {
        (0..100).for_each(|_| bed.inject(&ignored));
        assert!(all(&other).is_empty());
    }
    bed.inject(&pdu(CIRCUIT, b"at last"));
    assert!(all(&other).is_empty());
    let error = far.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    let ignored = counted(&bed.far);
    assert!(ignored["oam-ignored"] < 800, "{ignored:?}");
    assert_eq!(all(&far), [b"at last"]);
    assert_eq!(counted(&bed.far), one("oam-ignored", 800));
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_send_that_is_not_to_wait_does_not() {
    let bed = attached_with(LinkConfig {
        rings: Rings {
            transmit: 0,
            ..Rings::default()
        },
        ..LinkConfig::default()
    });
    let descriptors = Descriptors::new(&bed.near, 16);
    let bound = AtmSocket::bind(&bed.near, CIRCUIT).unwrap();
    let fd = descriptors.open(bound, Flags::default()).unwrap();
    let send = |flags| {
        let mut sent = (0..2000).map(|_| descriptors.send(fd, b"x", flags));
        errno(sent.find_map(Result::err).unwrap())
    };
    assert_eq!(send(libc::MSG_DONTWAIT), libc::EAGAIN);
    assert_eq!(send(0), libc::ENOBUFS);
}

#[test]
fn a_payload_of_more_frames_than_there_are_is_too_long() {
    let bed = attached_with(LinkConfig {
        frames: 64,
        ..LinkConfig::default()
    });
    let options = AtmOptions {
        send_max: 65_535,
        receive_max: 65_535,
        ..AtmOptions::default()
    };
    let near = AtmSocket::bind_with(&bed.near, CIRCUIT, options).unwrap();
    near.set_nonblocking(true).unwrap();
    let error = near.send(&bytes(65_535)).unwrap_err();
    assert_eq!(errno(error), libc::EMSGSIZE);
    near.send(&bytes(9180)).unwrap();
    // It takes nothing of a constant rate, either.
    let options = AtmOptions {
        rates: Some(Rates {
            send: 1,
            receive: 1,
        }),
        ..options
    };
    let near = AtmSocket::bind_with(&bed.near, OTHER, options).unwrap();
    near.set_nonblocking(true).unwrap();
    let error = near.send(&bytes(65_535)).unwrap_err();
    assert_eq!(errno(error), libc::EMSGSIZE);
    near.send(b"x").unwrap();
    assert_eq!(errno(near.send(b"x").unwrap_err()), libc::EAGAIN);
}

#[test]
fn tshark_reads_what_circuits_send() {
    if !tidewall_skip::has_programs("tshark_reads_what_circuits_send", &["tshark"]) {
        return;
    }
    let bed = attached();
    let tap = bed.far_tap();
    let (near, far) = (open(&bed.near, CIRCUIT), open(&bed.far, CIRCUIT));
    near.send(&bytes(40)).unwrap();
    near.set_low_priority(true);
    near.send(&bytes(ONE_FRAME)).unwrap();
    bed.inject(&cell(
        PayloadType::OAM_END_TO_END,
        &Loopback::request(5).bytes(),
    ));
    assert_eq!(all(&far).len(), 2);
    let mut capture = Vec::new();
    capture.extend(0xa1b2_c3d4_u32.to_be_bytes());
    capture.extend([0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    capture.extend(1_u32.to_be_bytes());
    for frame in tap.take() {
        let length = (frame.bytes.len() as u32).to_be_bytes();
        capture.extend([[0; 4], [0; 4], length, length].concat());
        capture.extend(frame.bytes);
    }
    let path = std::env::temp_dir().join(format!("tw-circuits-{}.pcap", std::process::id()));
    std::fs::write(&path, capture).unwrap();
    let mut command = Command::new("tshark");
    command.args(["-n", "-V", "-d"]);
    command.arg("mpls.label==65636,mplspwatm11_or_aal5pdu");
    let output = command.arg("-r").arg(&path).output().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let said = |what: &str| text.matches(what).count();
    assert_eq!(said("Malformed"), 0, "{text}");
    assert_eq!(said("(incorrect)"), 0, "{text}");
    assert_eq!(said("AAL5 len: 40\n"), 1, "{text}");
    assert_eq!(said(&format!("AAL5 len: {ONE_FRAME}\n")), 1, "{text}");
    assert_eq!(said("AAL5 CRC: 0x"), 2, "{text}");
    assert_eq!(said("Cell Loss Priority: Low priority (1)"), 1, "{text}");
    // The request that was injected, and its answer.
    assert_eq!(said("Function Type: OAM Cell Loopback (8)"), 2, "{text}");
    assert_eq!(said("End-to-end OAM F5 flow related cell (5)"), 2, "{text}");
}
