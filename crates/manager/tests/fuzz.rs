//! Fuzz targets of the protocol between a manager and its applications (`tidewall_fuzz`
//! describes how they are run; `BOLERO_RANDOM_TEST_TIME_MS` sets for how long).

use std::time::Duration;

use tidewall_device::demux::layout::COUNTERS;
use tidewall_fuzz::Seed;
use tidewall_manager::protocol::*;

/// Time for random inputs to one target in an ordinary test run.
const TIME: Duration = Duration::from_millis(300);

#[test]
fn fuzz_request() {
    fuzz("request", |bytes| {
        same_again(bytes, Request::parse(bytes), Request::emit);
    });
}

/// A circuit's body is emitted again as the same bytes, or is refused.
#[test]
fn fuzz_circuits() {
    fuzz("request", |bytes| {
        let (sap, carried) = match Request::parse(bytes) {
            Ok((_, Request::AtmListen(of))) => (of.sap, of.carried),
            Ok((_, Request::AtmCall(of))) => (of.to, of.carried),
            _ => return,
        };
        if let Some(meant) = sap.sap() {
            assert_eq!(AtmSap::of(&meant).sap(), Some(meant));
        }
        if let Some(options) = carried.options() {
            assert_eq!(AtmCarried::of(&options), carried);
        }
    });
}

#[test]
fn fuzz_answer() {
    fuzz("answer", |bytes| {
        same_again(bytes, Answer::parse(bytes), Answer::emit);
        if let Ok((_, Answer::Error(failure))) = Answer::parse(bytes) {
            let _ = std::io::Error::from(&failure).to_string();
        }
    });
}

/// An accepted form is the only one for its meaning; a refusal has a reason in its bytes.
fn same_again<T>(
    bytes: &[u8],
    parsed: Result<(u32, T), Malformed>,
    emit: fn(&T, u32) -> [u8; MESSAGE_BYTES],
) {
    match parsed {
        Ok((id, message)) => assert_eq!(emit(&message, id), bytes),
        Err(Malformed::Length) => assert_ne!(bytes.len(), MESSAGE_BYTES),
        Err(Malformed::Version(version)) => assert_ne!(version, VERSION),
        Err(Malformed::Kind(kind)) => assert_eq!(header(bytes).unwrap().kind, kind),
        Err(Malformed::Surplus) => assert!(bytes[8..].iter().any(|&byte| byte != 0)),
    }
}

tidewall_fuzz::targets!(seeds, TIME);

#[test]
fn the_corpus_is_as_generated() {
    tidewall_fuzz::check_corpus(env!("CARGO_MANIFEST_DIR"), &seeds());
}

fn circuit() -> CircuitNumber {
    CircuitNumber { vpi: 0, vci: 100 }
}

fn carried() -> AtmCarried {
    AtmCarried {
        send_max: 9180,
        receive_max: 1000,
        send_rate: 50_000,
        receive_rate: 1,
    }
}

fn sap() -> AtmSap {
    AtmSap {
        number: [0x47; 20],
        lengths: [2, 0],
        high_layer: [1, 2, 0, 0, 0, 0, 0, 0, 0],
        low_layer: [0; 13],
    }
}

fn released() -> AtmRelease {
    AtmRelease {
        call: 2,
        cause: 16,
        pad: [0; 3],
    }
}

fn reference() -> AtmReference {
    AtmReference {
        value: 0x7f_fffe,
        ours: 1,
        local: 0,
        known: 1,
        pad: 0,
        circuit: circuit(),
    }
}

fn seeds() -> Vec<Seed> {
    let block = Block {
        first: 32768,
        count: BLOCK_PORTS,
        protocol: 6,
        pad: [0; 3],
    };
    let requests = [
        (
            "join",
            Request::Join(Join {
                queues: 0,
                frames: 8192,
                receive_ring: 2048,
                flags: 0,
            }),
        ),
        ("present", Request::Present(Present { token: [7; 16] })),
        (
            "own_port",
            Request::OwnPort(Port {
                address: address_bytes([192, 0, 2, 1].into()),
                port: 80,
                protocol: 6,
                pad: 0,
            }),
        ),
        (
            "disown_port",
            Request::DisownPort(Holder {
                cookie: 0x1234_5678,
            }),
        ),
        (
            "lease",
            Request::Lease(Transport {
                protocol: 17,
                pad: [0; 7],
            }),
        ),
        ("return_lease", Request::ReturnLease(block.clone())),
        (
            "moderation",
            Request::Moderation(Moderation {
                queue: 1,
                mode: MODERATION_DEFER,
                interval: 200_000,
            }),
        ),
        (
            "probe",
            Request::Probe(Probe {
                queue: 1,
                port: 7000,
                source: 7001,
            }),
        ),
        ("get_probe", Request::GetProbe(QueueNumber { queue: 1 })),
        (
            "input",
            Request::Input(Input {
                length: 60,
                bytes: text("not a datagram"),
            }),
        ),
        (
            "resolve",
            Request::Resolve(Address {
                address: address_bytes([192, 0, 2, 9].into()),
            }),
        ),
        ("get_counters", Request::GetCounters(Empty {})),
        ("leave", Request::Leave(Empty {})),
        ("get_helpers", Request::GetHelpers(Empty {})),
        (
            "get_status",
            Request::GetStatus(ApplicationNumber { application: 1 }),
        ),
        (
            "get_queue_counters",
            Request::GetQueueCounters(QueueNumber { queue: 1 }),
        ),
        ("attach_atm", Request::AttachAtm(Empty {})),
        ("open_circuit", Request::OpenCircuit(circuit())),
        ("close_circuit", Request::CloseCircuit(circuit())),
        (
            "atm_listen",
            Request::AtmListen(AtmListen {
                listener: 1,
                backlog: 8,
                carried: carried(),
                sap: sap(),
            }),
        ),
        (
            "atm_unlisten",
            Request::AtmUnlisten(ListenerNumber { listener: 1 }),
        ),
        (
            "atm_call",
            Request::AtmCall(AtmCall {
                call: 2,
                carried: carried(),
                to: sap(),
                from: [0; 20],
            }),
        ),
        (
            "atm_accept",
            Request::AtmAccept(AtmAccept {
                listener: 1,
                call: 3,
                reference: reference(),
                cause: 0,
                pad: [0; 3],
            }),
        ),
        ("atm_release", Request::AtmRelease(released())),
        (
            "atm_present",
            Request::AtmPresent(AtmPresent {
                call: 3,
                reference: reference(),
            }),
        ),
        ("atm_presented", Request::AtmPresented(Empty {})),
        (
            "atm_acknowledge",
            Request::AtmAcknowledge(CallNumber { call: 2 }),
        ),
    ];
    let answers = [
        ("done", Answer::Done(Empty {})),
        (
            "error",
            Answer::Error(Failure::new(98, "another socket has the port")),
        ),
        (
            "joined",
            Answer::Joined(Joined {
                token: [9; 16],
                hash_key: [1, 2],
                leases: [[1, 0, 0, 0], [0, 0, 0, 1 << 63]],
                name: text("eth0"),
                driver: text("veth"),
                application: 3,
                domain: 1000,
                queues: 2,
                index: 5,
                mtu: 1500,
                transmit_queues: 2,
                mac: [2, 0, 0, 0, 0, 1],
                mode: 1,
                checksum_offload_possible: 1,
                private: 1,
                pad: [0; 7],
            }),
        ),
        (
            "queue",
            Answer::Queue(Queue {
                number: 1,
                frames: 8192,
                frame_size: 2048,
                receive_ring: 2048,
                transmit_ring: 2048,
                fill_ring: 8192,
                zero_copy: 0,
                transmit_metadata: 1,
                waiting: 1,
                helpers: 2,
            }),
        ),
        ("owned", Answer::Owned(Holder { cookie: 77 })),
        ("leased", Answer::Leased(block)),
        (
            "probed",
            Answer::Probed(Probed {
                found: 1,
                segment: 1,
                neighbour: [2, 0, 0, 0, 0, 2],
                port: 80,
                source: 40_000,
                sequence: 0x8000_0000,
            }),
        ),
        (
            "counters",
            Answer::Counters(Counters {
                applications: 1,
                clients: 1,
                ports: 2,
                blocks: 3,
                joined: 4,
                presented: 5,
                cleared: 6,
                refused: 7,
                malformed: 8,
                retried: 9,
                circuits: 10,
                calls: 11,
            }),
        ),
        ("helpers", Answer::Helpers(Empty {})),
        (
            "status",
            Answer::Status(Status {
                application: 1,
                domain: 1000,
                process: 4711,
                state: STATUS_AWAITED,
                queues: 1,
                ports: 2,
                holders: 3,
                blocks: 4,
                weight: 4,
                reserved: 0,
                charged: u64::MAX,
            }),
        ),
        (
            "queue_counters",
            Answer::QueueCounters(QueueCounters {
                queue: 1,
                queues: 2,
                counters: [5; COUNTERS],
            }),
        ),
        (
            "atm_attached",
            Answer::AtmAttached(AtmAttached {
                number: [0x47; 20],
                next_hop: address_bytes([192, 0, 2, 9].into()),
            }),
        ),
        (
            "atm_incoming",
            Answer::AtmIncoming(AtmIncoming {
                listener: 1,
                reference: reference(),
                carried: carried(),
                local: [0x47; 20],
                peer: [0x39; 20],
            }),
        ),
        (
            "atm_withdrawn",
            Answer::AtmWithdrawn(AtmWithdrawn {
                listener: 1,
                reference: reference(),
            }),
        ),
        (
            "atm_circuit",
            Answer::AtmCircuit(AtmCircuit {
                call: 2,
                circuit: circuit(),
            }),
        ),
        (
            "atm_connected",
            Answer::AtmConnected(AtmConnected {
                call: 2,
                longest: 9180,
                reference: reference(),
            }),
        ),
        (
            "atm_ended",
            Answer::AtmEnded(AtmEnded {
                call: 2,
                errno: 105,
                cause: 16,
                pad: [0; 3],
            }),
        ),
    ];
    let seed =
        |target, name, message: [u8; MESSAGE_BYTES]| Seed::from((target, name, message.to_vec()));
    let requests = (1..).zip(requests);
    let answers = (1..).zip(answers);
    requests
        .map(|(id, (name, request))| seed("request", name, request.emit(id)))
        .chain(answers.map(|(id, (name, answer))| seed("answer", name, answer.emit(id))))
        .collect()
}
