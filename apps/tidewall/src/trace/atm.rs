//! Describes frames of virtual circuits: the circuit, and on circuit 0.5 the message and
//! its call.

use tidewall_wire::atm::Circuit;
use tidewall_wire::atm::aal5;
use tidewall_wire::atm::pseudowire::{Error, Packet};
use tidewall_wire::atm::q2931::{Message, MessageType};
use tidewall_wire::atm::sscop;

/// Describes the bytes behind the Ethernet header of a labelled frame. `cut`: there were
/// more on the wire.
pub fn labelled(bytes: &[u8], cut: bool) -> String {
    let packet = match Packet::new(bytes) {
        Ok(packet) => packet,
        Err(error) => return format!("MPLS, none of ATM: {error}"),
    };
    let Some(circuit) = packet.label().circuit() else {
        return format!("cells of any circuits, label {}", packet.label().value());
    };
    match packet.frame() {
        Ok(frame) => {
            let part = if frame.header.last {
                ""
            } else {
                ", to be continued"
            };
            let said = match circuit == Circuit::SIGNALLING && !cut {
                true => aal5::Pdu::new(frame.bytes)
                    .ok()
                    .map(|pdu| signalled(pdu.payload())),
                false => None,
            };
            let said = said.map_or(String::new(), |said| format!(", {said}"));
            format!(
                "circuit {circuit}, AAL5, {} bytes{part}{said}",
                frame.bytes.len()
            )
        }
        // The length of a cut frame is not a whole number of cells.
        Err(Error::Cells(_)) if cut => format!("circuit {circuit}, AAL5"),
        Err(Error::NotFrame) => format!("circuit {circuit}, a cell"),
        Err(error) => format!("circuit {circuit}, {error}"),
    }
}

/// Describes a signalling message (circuit 0.5).
fn signalled(payload: &[u8]) -> String {
    let data = match sscop::Pdu::parse(payload) {
        Ok(sscop::Pdu::Data { data, .. }) => data,
        Ok(pdu) => {
            let name = format!("{pdu:?}");
            let name = name.split([' ', '{']).next().unwrap_or_default().to_owned();
            return format!("signalling link: {name}");
        }
        Err(error) => return format!("signalling link: {error}"),
    };
    let Ok(message) = Message::new(data) else {
        return "signalling: no message".to_owned();
    };
    let (elements, _) = message.elements();
    let name = match MessageType::from_number(message.kind()) {
        Some(kind) => format!("{kind:?}"),
        None => format!("message {:#04x}", message.kind()),
    };
    let reference = message.reference();
    let by = if reference.to_origin {
        "to who set it up"
    } else {
        "from who set it up"
    };
    let call = match reference.is_global() {
        true => "all calls".to_owned(),
        false => format!("call {} ({by})", reference.value()),
    };
    let cause = elements
        .cause
        .map_or(String::new(), |it| format!(", cause {}", it.value()));
    let named = elements.connection.and_then(|it| it.circuit());
    let named = named.map_or(String::new(), |it| format!(", circuit {it}"));
    format!("{name}, {call}{named}{cause}")
}

#[cfg(test)]
mod tests {
    use tidewall_wire::atm::pseudowire::{FrameHeader, HEADER_LEN, Label};
    use tidewall_wire::atm::q2931::{CallReference, Cause, ConnectionIdentifier, Elements};
    use tidewall_wire::atm::sscop::{Pdu, Sequence};

    use super::*;

    fn frame(circuit: Circuit, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN + aal5::pdu_len(payload.len())];
        let header = FrameHeader::whole(Label::of_circuit(circuit).unwrap());
        let place = header.emit(&mut bytes).unwrap();
        aal5::emit(payload, 0, place).unwrap();
        bytes
    }

    #[test]
    fn a_message_is_named_with_its_call() {
        let elements = Elements {
            cause: Some(Cause::new(Cause::NO_ROUTE)),
            connection: Some(ConnectionIdentifier::exclusive(Circuit { vpi: 0, vci: 40 })),
            ..Elements::default()
        };
        let reference = CallReference::new(7, true).unwrap();
        let mut message = [0; 100];
        let kind = MessageType::Release;
        let length = elements.emit(reference, kind, &mut message).unwrap();
        let pdu = Pdu::Data {
            number: Sequence::default(),
            data: &message[..length],
        };
        let mut payload = [0; 200];
        let length = pdu.emit(&mut payload).unwrap();
        let bytes = frame(Circuit::SIGNALLING, &payload[..length]);
        let said = labelled(&bytes, false);
        assert!(said.starts_with("circuit 0.5, AAL5, "), "{said}");
        assert!(
            said.contains("Release, call 7 (to who set it up)"),
            "{said}"
        );
        assert!(said.ends_with(", cause 3"), "{said}");
        let said = labelled(&frame(Circuit { vpi: 3, vci: 200 }, b"hello"), false);
        assert_eq!(said, "circuit 3.200, AAL5, 48 bytes");
        for length in 0..bytes.len() {
            labelled(&bytes[..length], true);
            labelled(&bytes[..length], false);
        }
    }
}
