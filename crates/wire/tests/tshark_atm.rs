//! Signalling messages, judged by tshark.

mod judge;

use judge::judged;
use tidewall_wire::atm::q2931::{
    Aal, Bearer, CallReference, Cause, ConnectionIdentifier, Elements, MESSAGE_MAX, MessageType,
    Opaque, Party, QosClasses, Restart, TrafficDescriptor,
};
use tidewall_wire::atm::sscop::{List, PDU_MAX, Pdu, Sequence};
use tidewall_wire::atm::{Circuit, Nsap};

fn emitted(pdu: Pdu<'_>) -> Vec<u8> {
    let mut bytes = vec![0; PDU_MAX];
    let length = pdu.emit(&mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

fn message(number: u32, kind: MessageType, elements: &Elements) -> Vec<u8> {
    let mut bytes = [0; MESSAGE_MAX];
    let reference = match kind {
        MessageType::Restart | MessageType::RestartAcknowledge => CallReference::global(false),
        _ => CallReference::new(0x0102, true).unwrap(),
    };
    let length = elements.emit(reference, kind, &mut bytes).unwrap();
    emitted(Pdu::Data {
        number: Sequence::new(number),
        data: &bytes[..length],
    })
}

#[test]
fn tshark_reads_every_message_without_complaint() {
    let connection = ConnectionIdentifier::exclusive(Circuit { vpi: 1, vci: 777 });
    let cause = |value| Elements {
        cause: Some(Cause::new(value)),
        ..Elements::default()
    };
    let answer = Elements {
        connection: Some(connection),
        ..Elements::default()
    };
    let setup = Elements {
        aal: Some(Aal::Five {
            forward_max: Some(9180),
            backward_max: Some(1500),
        }),
        traffic: Some(TrafficDescriptor::best_effort()),
        connection: Some(connection),
        qos: Some(QosClasses::default()),
        high_layer: Opaque::new(&[0x81, 1, 2, 3, 4, 5, 6, 7, 8]),
        bearer: Some(Bearer::data()),
        low_layer: Opaque::new(&[0xcc]),
        calling: Some(Party::from(Nsap([0x47; 20]))),
        called: Some(Party::from(Nsap([0x47; 20]))),
        sending_complete: false,
        ..Elements::default()
    };
    let restart = Elements {
        connection: Some(connection),
        restart: Some(Restart::Circuit),
        ..Elements::default()
    };
    let status = Elements {
        cause: Some(Cause::new(Cause::MANDATORY_ELEMENT_MISSING).with(&[0x70])),
        call_state: Some(11),
        ..Elements::default()
    };
    let rows = [
        (MessageType::Setup, setup, "SETUP|777||9180|1500"),
        (
            MessageType::CallProceeding,
            answer,
            "CALL PROCEEDING|777|||",
        ),
        (MessageType::Connect, answer, "CONNECT|777|||"),
        (
            MessageType::ConnectAcknowledge,
            Elements::default(),
            "CONNECT ACKNOWLEDGE||||",
        ),
        (
            MessageType::Release,
            cause(Cause::NORMAL),
            "RELEASE||0x10||",
        ),
        (
            MessageType::ReleaseComplete,
            cause(Cause::USER_BUSY),
            "RELEASE COMPLETE||0x11||",
        ),
        (
            MessageType::StatusEnquiry,
            Elements::default(),
            "STATUS ENQUIRY||||",
        ),
        (MessageType::Status, status, "STATUS||0x60||"),
        (MessageType::Restart, restart, "RESTART|777|||"),
        (
            MessageType::RestartAcknowledge,
            restart,
            "RESTART ACKNOWLEDGE|777|||",
        ),
    ];
    let pdus: Vec<Vec<u8>> = (0..)
        .zip(&rows)
        .map(|(number, (kind, elements, _))| message(number, *kind, elements))
        .collect();
    let fields = [
        "_ws.col.Info",
        "q2931.conn_id.vci",
        "q2931.cause.value",
        "q2931.aal1.forward_max_cpcs_sdu_size",
        "q2931.aal1.backward_max_cpcs_sdu_size",
    ];
    let test = "tshark_reads_every_message_without_complaint";
    let Some(lines) = judged(test, &pdus, &fields) else {
        return;
    };
    let wanted = rows.map(|(_, _, words)| format!("{words}||"));
    assert_eq!(lines, wanted);
}

#[test]
fn tshark_reads_every_pdu_without_complaint() {
    let (two, nine) = (Sequence::new(2), Sequence::new(9));
    let (sequence, credit, data) = (7, Sequence::new(128), &[][..]);
    let list = [[0, 0, 0, 2], [0, 0, 0, 5], [0, 0, 0, 9]];
    let rows = [
        (
            Pdu::Begin {
                sequence,
                credit,
                data,
            },
            "Begin|7|128||||",
        ),
        (
            Pdu::BeginAcknowledge { credit, data },
            "Begin Acknowledge||128||||",
        ),
        (Pdu::BeginReject { data }, "Begin Reject||||||"),
        (
            Pdu::End {
                by_protocol: true,
                data,
            },
            "End||||||",
        ),
        (Pdu::EndAcknowledge, "End Acknowledge||||||"),
        (
            Pdu::Resynchronize {
                sequence,
                credit,
                data,
            },
            "Resynchronization|7|128||||",
        ),
        (
            Pdu::ResynchronizeAcknowledge { credit },
            "Resynchronization Acknowledge||128||||",
        ),
        (
            Pdu::Recover { sequence, credit },
            "Error Recovery|7|128||||",
        ),
        (
            Pdu::RecoverAcknowledge { credit },
            "Error Acknowledge||128||||",
        ),
        (
            Pdu::Poll {
                poll: nine,
                next: two,
            },
            "Status Request|||2|9||",
        ),
        (
            Pdu::Status {
                missing: List::new(&list),
                poll: nine,
                credit,
                expected: two,
            },
            "Solicited Status Response||128||9|2|2;5;9",
        ),
        (
            Pdu::UnsolicitedStatus {
                first: two,
                end: nine,
                credit,
                expected: two,
            },
            "Unsolicited Status Response||128|||2|2;9",
        ),
        (
            Pdu::UnnumberedData { data: b"abc" },
            "Unnumbered Data||||||",
        ),
        (
            Pdu::ManagementData { data: b"abcd" },
            "Management Data||||||",
        ),
    ];
    let pdus: Vec<Vec<u8>> = rows.iter().map(|(pdu, _)| emitted(*pdu)).collect();
    let fields = [
        "_ws.col.Info",
        "sscop.sq",
        "sscop.mr",
        "sscop.s",
        "sscop.ps",
        "sscop.r",
        "sscop.stat.s",
    ];
    let test = "tshark_reads_every_pdu_without_complaint";
    let Some(lines) = judged(test, &pdus, &fields) else {
        return;
    };
    let wanted = rows.map(|(_, words)| format!("{words}||"));
    assert_eq!(lines, wanted);
}
