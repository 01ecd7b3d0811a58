//! Signalling messages, judged by saaldump of Debian's atm-tools. It is the decoder that
//! the ATM part of Linux uses for its signalling, which shares no code with this project.
//! It needs a kernel with ATM only for its socket, and gets another socket instead
//! (`saaldump_atm.c`).

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tidewall_wire::atm::q2931::{
    Aal, Bearer, CallReference, Cause, ConnectionIdentifier, Elements, MESSAGE_MAX, MessageType,
    Opaque, Party, QosClasses, Restart, TrafficDescriptor,
};
use tidewall_wire::atm::sscop::{PDU_MAX, Pdu, Sequence};
use tidewall_wire::atm::{Circuit, Nsap};

fn message(kind: MessageType, elements: &Elements) -> Vec<u8> {
    let reference = match kind {
        MessageType::Restart | MessageType::RestartAcknowledge => CallReference::global(false),
        _ => CallReference::new(0x0102, false).unwrap(),
    };
    let mut data = [0; MESSAGE_MAX];
    let length = elements.emit(reference, kind, &mut data).unwrap();
    let pdu = Pdu::Data {
        number: Sequence::new(5),
        data: &data[..length],
    };
    let mut bytes = vec![0; PDU_MAX];
    let length = pdu.emit(&mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

/// saaldump's output for PDUs, each from its name on.
fn judged(test: &str, pdus: &[Vec<u8>]) -> Option<Vec<String>> {
    if !tidewall_skip::has_programs(test, &["saaldump", "clang"]) {
        return None;
    }
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/saaldump_atm.c");
    let library = std::env::temp_dir().join(format!("tw-{test}-{}.so", std::process::id()));
    let mut compile = Command::new("clang");
    compile
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source);
    assert!(compile.status().unwrap().success());
    let (here, there) = UnixDatagram::pair().unwrap();
    for pdu in pdus {
        here.send(pdu).unwrap();
    }
    // Nothing more comes.
    here.send(&[]).unwrap();
    let mut command = Command::new("saaldump");
    command.arg("0.5").env("LD_PRELOAD", &library);
    command.stdin(Stdio::from(OwnedFd::from(there)));
    let output = command.output().unwrap();
    std::fs::remove_file(&library).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let complaints = String::from_utf8(output.stderr).unwrap();
    assert_eq!(complaints, "read: Success\n", "{text}");
    // After the time that precedes each PDU.
    let mut parts = text.split("0:00:00    ").map(str::to_owned);
    parts.next();
    Some(parts.collect())
}

#[test]
fn saaldump_reads_every_message() {
    let circuit = Circuit { vpi: 1, vci: 777 };
    let connection = Some(ConnectionIdentifier::exclusive(circuit));
    let answer = Elements {
        connection,
        ..Elements::default()
    };
    let none = Elements::default();
    let setup = Elements {
        aal: Some(Aal::Five {
            forward_max: Some(9180),
            backward_max: Some(1500),
        }),
        traffic: Some(TrafficDescriptor::best_effort()),
        qos: Some(QosClasses::default()),
        high_layer: Opaque::new(&[0x81, 1, 2, 3, 4, 5, 6, 7, 8]),
        bearer: Some(Bearer::data()),
        low_layer: Opaque::new(&[0xcc]),
        calling: Some(Party::from(Nsap([0x47; 20]))),
        called: Some(Party::from(Nsap([0x39; 20]))),
        ..answer
    };
    let constant = Elements {
        traffic: Some(TrafficDescriptor::constant(353_207, 1000)),
        ..setup
    };
    let release = Elements {
        cause: Some(Cause::new(Cause::NORMAL)),
        ..none
    };
    let status = Elements {
        cause: Some(Cause::new(Cause::MANDATORY_ELEMENT_MISSING).with(&[0x70])),
        call_state: Some(11),
        ..none
    };
    let restart = Elements {
        restart: Some(Restart::Circuit),
        ..answer
    };
    let rows: [(MessageType, &Elements, &[&str]); 11] = [
        (
            MessageType::Setup,
            &setup,
            &[
                "\"SETUP\"",
                "= 9180 ",
                "= 1500 ",
                "= 777 ",
                "cgpn = 47 47 47 ",
                "cdpn_esa = 39 39 39 ",
            ],
        ),
        (
            MessageType::Setup,
            &constant,
            &["\"SETUP\"", "= 353207 ", "= 1000 "],
        ),
        (
            MessageType::CallProceeding,
            &answer,
            &["\"CALL PROCEEDING\"", "= 777 "],
        ),
        (MessageType::Connect, &answer, &["\"CONNECT\"", "= 777 "]),
        (
            MessageType::ConnectAcknowledge,
            &none,
            &["\"CONNECT ACKNOWLEDGE\""],
        ),
        (
            MessageType::Release,
            &release,
            &["\"RELEASE\"", "cause = 16 "],
        ),
        (
            MessageType::ReleaseComplete,
            &release,
            &["\"RELEASE COMPLETE\""],
        ),
        (MessageType::StatusEnquiry, &none, &["\"STATUS ENQUIRY\""]),
        (MessageType::Status, &status, &["\"STATUS\"", "cause = 96 "]),
        (MessageType::Restart, &restart, &["\"RESTART\"", "= 777 "]),
        (
            MessageType::RestartAcknowledge,
            &restart,
            &["\"RESTART ACKNOWLEDGE\""],
        ),
    ];
    let pdus: Vec<Vec<u8>> = (rows.iter())
        .map(|(kind, elements, _)| message(*kind, elements))
        .collect();
    let Some(said) = judged("saaldump_reads_every_message", &pdus) else {
        return;
    };
    assert_eq!(said.len(), rows.len(), "{said:?}");
    for ((kind, _, parts), said) in rows.iter().zip(&said) {
        assert!(said.starts_with("SD(S=5,"), "{said}");
        for part in *parts {
            assert!(said.contains(part), "{kind:?}: {part} is not in {said}");
        }
    }
}
