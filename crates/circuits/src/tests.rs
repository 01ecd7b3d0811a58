//! A circuit that is closed while its socket is there, and opened by another.

use std::time::Duration;

use tidewall_device::memory::{LinkConfig, pair};
use tidewall_stack::protocol::Protocol;
use tidewall_stack::stack::{MemoryConfig, Start};

use super::*;
use crate::Atm;

const CIRCUIT: Circuit = Circuit { vpi: 0, vci: 100 };

fn stacks() -> [StackHandle; 2] {
    let (_, near, far) = pair(LinkConfig::default()).unwrap();
    [(near, 1, 2), (far, 2, 1)].map(|(end, own, peer)| {
        let config = MemoryConfig {
            addresses: vec![IpAddr::from([10, 0, 0, own])],
            mac: MacAddress([2, 0, 0, 0, 0, own]),
            peer: MacAddress([2, 0, 0, 0, 0, peer]),
        };
        let stack = StackHandle::in_memory(end, config, protocols).unwrap();
        Atm::attach_atm(&stack, IpAddr::from([10, 0, 0, peer])).unwrap();
        stack
    })
}

fn open(stack: &StackHandle) -> AtmSocket {
    let socket = AtmSocket::bind(stack, CIRCUIT).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn failed<V>(result: io::Result<V>) -> io::ErrorKind {
    result.map(drop).unwrap_err().kind()
}

#[test]
fn a_closed_circuit_is_used_by_its_old_socket_no_more() {
    let [near, far] = stacks();
    let (sending, old) = (open(&near), open(&far));
    let long = [7; 3000];
    sending.send(&long).unwrap();
    // Its parts are in the old socket's channel, and no thread has received.
    let core = far.here().unwrap();
    for _ in 0..3 {
        core.receiver.round(core, false).unwrap();
    }
    assert!(old.inner.has_payloads());
    {
        let _binding = lock(&core.binding);
        old.inner.close_place(core);
    }
    let new = open(&far);
    let mut buffer = [0; 9180];
    assert_eq!(failed(old.recv(&mut buffer)), io::ErrorKind::WouldBlock);
    let dropped = Atm::of(core).counters(core.now());
    let no_circuit = DropReason::NoCircuit.name().to_owned();
    assert_eq!(dropped, [(no_circuit, 3)].into());
    assert_eq!(failed(old.send(b"of the old")), io::ErrorKind::BrokenPipe);
    assert_eq!(failed(old.ping(Duration::ZERO)), io::ErrorKind::BrokenPipe);
    new.send(b"of the new").unwrap();
    let length = sending.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"of the new");
    assert_eq!(failed(sending.recv(&mut buffer)), io::ErrorKind::WouldBlock);
    sending.send(&long).unwrap();
    assert_eq!(new.recv(&mut buffer).unwrap(), long.len());
}

/// The protocol of this crate.
fn protocols(_start: Start<'_>) -> io::Result<Vec<Arc<dyn Protocol>>> {
    Ok(vec![Arc::new(Atm::default())])
}
