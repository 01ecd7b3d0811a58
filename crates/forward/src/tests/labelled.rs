//! Frames of circuits through a forwarder.

use tidewall_wire::atm::Circuit;
use tidewall_wire::atm::pseudowire::{FrameHeader, Label, Packet};
use tidewall_wire::ethernet::{EtherType, Header};

use super::*;

fn label(vci: u16) -> Label {
    Label::of_circuit(Circuit { vpi: 0, vci }).unwrap()
}

/// A frame of a circuit to the forwarder: one cell of this byte.
fn frame(vci: u16, byte: u8) -> Vec<u8> {
    let mut bytes = vec![byte; 14 + 8 + 48];
    let header = Header {
        destination: HERE,
        source: THERE,
        ethertype: EtherType::MPLS,
    };
    let rest = header.emit(&mut bytes).unwrap();
    FrameHeader::whole(label(vci)).emit(rest).unwrap();
    bytes
}

fn circuits(links: usize, config: &LinkConfig) -> Bed {
    let mut bed = bed(links, config);
    for link in 0..links {
        bed.forwarder.claim_label(link, label(100)).unwrap();
    }
    bed
}

/// Labels and bytes of what was sent by a link.
fn sent(bed: &Bed, link: usize) -> Vec<(Label, u8)> {
    let captured = bed.links[link].1.take();
    let sent = captured.iter().filter(|frame| frame.from == Side::A);
    let parsed = sent.map(|frame| {
        assert_eq!(frame.bytes[..6], THERE.0);
        assert_eq!(frame.bytes[6..12], HERE.0);
        assert_eq!(frame.bytes.len(), 14 + 8 + 48);
        let packet = Packet::new(&frame.bytes[14..]).unwrap();
        let bytes = packet.frame().unwrap().bytes;
        assert_eq!(bytes, [bytes[0]; 48]);
        (packet.label(), bytes[0])
    });
    parsed.collect()
}

/// The host at the end of a link.
fn next_hop(link: usize) -> IpAddr {
    ends(link, false).1
}

#[test]
fn frames_of_circuits_go_on_with_another_label_and_home() {
    let mut bed = circuits(2, &LinkConfig::default());
    let rounds = 3 * FRAMES;
    for round in 0..rounds {
        bed.links[0].0.inject(Side::A, &frame(100, round as u8));
        bed.poll();
        let received = bed.forwarder.receive(|output, arrived| {
            assert!(arrived.segment().is_none());
            assert_eq!(arrived.labelled().unwrap().len(), 56);
            let sent = output.relabel(1, next_hop(1), label(200), arrived);
            assert_eq!(sent, Labelled::Sent);
            assert!(arrived.labelled().is_none(), "its frame is gone");
            let sent = output.relabel(1, next_hop(1), label(200), arrived);
            assert_eq!(sent, Labelled::Never);
        });
        assert_eq!(received, 1);
        assert_eq!(sent(&bed, 1), [(label(200), round as u8)]);
    }
    assert!(!bed.forwarder.output.is_sending());
    let counters = bed.forwarder.output().counters();
    let all = OutputCounters {
        in_place: rounds.into(),
        ..OutputCounters::default()
    };
    assert_eq!(counters, all);
    assert_eq!(bed.counters(0).fill_empty, 0);
}

/// It may then be dealt with in another way, with the label it came with.
#[test]
fn what_a_device_does_not_take_is_as_it_was() {
    let mut bed = circuits(2, &LinkConfig::default());
    bed.links[1].0.refuse_frames(Side::A, true);
    for _ in 0..3 * FRAMES {
        bed.links[0].0.inject(Side::A, &frame(100, 7));
        bed.poll();
        let received = bed.forwarder.receive(|output, arrived| {
            let before = arrived.labelled().unwrap().as_slice().unwrap().to_vec();
            let sent = output.relabel(1, next_hop(1), label(200), arrived);
            if sent == Labelled::Sent {
                return;
            }
            assert_eq!(sent, Labelled::Later);
            assert_eq!(arrived.labelled().unwrap().as_slice(), Some(&before[..]));
            assert_eq!(
                output.send_labelled(1, next_hop(1), &before),
                Labelled::Later
            );
        });
        assert_eq!(received, 1);
    }
    bed.links[1].0.refuse_frames(Side::A, false);
    let long = vec![0; 1501];
    let output = bed.forwarder.output();
    assert_eq!(output.mtu(1), 1500);
    let sent = output.send_labelled(1, next_hop(1), &long);
    assert_eq!(sent, Labelled::Never);
    assert_eq!(output.counters().refused, 1);
    assert_eq!(bed.counters(0).fill_empty, 0);
}

#[test]
fn labels_have_one_owner_and_go_back() {
    let mut bed = circuits(1, &LinkConfig::default());
    let error = bed.forwarder.claim_label(0, label(100)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EADDRINUSE));
    let error = bed.forwarder.claim_label(9, label(100)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    bed.forwarder.release_label(0, label(100)).unwrap();
    bed.links[0].0.inject(Side::A, &frame(100, 1));
    bed.poll();
    assert_eq!(bed.forwarder.receive(|_, _| {}), 0);
    bed.forwarder.claim_label(0, label(100)).unwrap();
    bed.links[0].0.inject(Side::A, &frame(100, 1));
    bed.poll();
    // Not forwarded, its frame and its credit go back all the same.
    let received = bed.forwarder.receive(|_, arrived| {
        assert!(arrived.payload().is_empty());
    });
    assert_eq!(received, 1);
}
