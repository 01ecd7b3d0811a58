//! Two managers' signalling as decoded by tshark.

use rustix::io::Errno;
use tidewall::AtmSocket;
use tidewall_wire::atm::Circuit;
use tidewall_wire::atm::q2931::{
    ConnectionIdentifier, Elements, MESSAGE_MAX, Message, MessageType,
};
use tidewall_wire::atm::sscop::{PDU_MAX, Pdu};

use crate::ends::*;
use crate::judge::judged;
use crate::relay::{Relay, message_of};
use crate::support::*;

/// Returns the PDU, with one more element if it is a CONNECT. tshark 4.0 examines the
/// byte behind the AAL parameters (`judge`), and reports a message that ends with them as
/// malformed.
fn readable(pdu: Vec<u8>) -> Vec<u8> {
    if message_of(&pdu) != Some(MessageType::Connect) {
        return pdu;
    }
    let Ok(Pdu::Data { number, data }) = Pdu::parse(&pdu) else {
        return pdu;
    };
    let message = Message::new(data).unwrap();
    let mut bytes = [0; MESSAGE_MAX];
    let (mut elements, _) = message.elements();
    let mut emitted = |elements: &Elements| {
        let emitted = elements.emit(message.reference(), MessageType::Connect, &mut bytes);
        bytes[..emitted.unwrap()].to_vec()
    };
    assert_eq!(emitted(&elements), data);
    let circuit = Circuit { vpi: 0, vci: 32 };
    elements.connection = Some(ConnectionIdentifier::exclusive(circuit));
    let mut pdu = vec![0; PDU_MAX];
    let data = &emitted(&elements)[..];
    let length = Pdu::Data { number, data }.emit(&mut pdu).unwrap();
    pdu.truncate(length);
    pdu
}

#[test]
#[ignore = "started by the test of this name"]
fn tshark_reads_what_managers_say() {
    let relay = Relay::start();
    let (_here, mut there) = (End::Here.daemon(), Some(End::There.daemon()));
    let _server = End::There.serve(4711);
    let to = number(THERE, SELECTOR);
    let near = stack_of(TRUSTED);
    let mut chapters = Vec::new();
    let mut ends = |name, mut heard: Vec<_>, expected: &[&'static str]| {
        wait_until(name, || End::Here.is_idle() && End::There.is_idle());
        heard.extend(relay.heard());
        chapters.push((name, heard, expected.to_vec()));
    };
    echo(&call(&near, to), b"a payload").unwrap();
    let course = ["SETUP", "CONNECT", "CONNECT ACKNOWLEDGE"];
    let whole = [&course[..], &["RELEASE", "RELEASE COMPLETE"]].concat();
    ends("a call", Vec::new(), &whole);
    let refused = AtmSocket::connect(&near, number(THERE, 1));
    assert_eq!(errno(refused), Some(Errno::CONNREFUSED));
    ends(
        "a call that is refused",
        Vec::new(),
        &["SETUP", "RELEASE COMPLETE"],
    );
    let socket = call(&near, to);
    drop(there.take());
    there = Some(End::There.daemon());
    wait_until("the call is presented", || End::There.counters().calls == 1);
    // The link is re-established with it.
    drop(call(&near, to));
    echo(&socket, b"with the next one").unwrap();
    let mut heard = Vec::new();
    wait_until("the call's state is told", || {
        heard.extend(relay.heard());
        (heard.iter()).any(|(_, pdu)| message_of(pdu) == Some(MessageType::Status))
    });
    drop(socket);
    let asked = ["STATUS ENQUIRY", "STATUS"];
    ends(
        "a manager is started anew",
        heard,
        &[&whole[..], &asked].concat(),
    );
    drop(there);
    let test = "captures::tshark_reads_what_managers_say";
    for (name, heard, expected) in chapters {
        let pdus: Vec<Vec<u8>> = heard.into_iter().map(|(_, pdu)| readable(pdu)).collect();
        let Some(lines) = judged(test, &pdus, &["_ws.col.Info"]) else {
            return;
        };
        assert_eq!(lines.len(), pdus.len(), "{name}");
        for line in &lines {
            // Neither malformed nor remarked upon.
            assert!(line.ends_with("||"), "{name}: {line}");
        }
        for message in expected {
            let is_said = lines.iter().any(|line| line == &format!("{message}||"));
            assert!(is_said, "{name}: no {message} in {lines:?}");
        }
    }
}
