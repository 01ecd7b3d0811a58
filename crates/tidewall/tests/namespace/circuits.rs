//! Circuits through the driver program, over a veth between two stacks.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use tidewall::{
    AtmControl, AtmListener, AtmOptions, AtmSocket, Circuit, EmbeddedConfig, Nsap, Side, Stack,
};

use super::raw_system;
use super::support::{PEER, PEER4, peer_namespace, shell, stack, wait_until};

const CIRCUIT: Circuit = Circuit { vpi: 0, vci: 100 };
const TIMEOUT: Duration = Duration::from_secs(10);

/// Two stacks on a veth whose ends are both here: neither is the other's neighbour by
/// itself.
fn two_stacks() -> [Stack; 2] {
    two_stacks_with(1500)
}

fn two_stacks_with(mtu: usize) -> [Stack; 2] {
    let ends = [("tw-c", "10.78.0"), ("tw-d", "10.79.0")];
    shell("ip link add tw-c type veth peer name tw-d");
    for (index, (name, network)) in ends.into_iter().enumerate() {
        let (other, _) = ends[1 - index];
        shell(&format!(
            "ip addr add {network}.1/24 dev {name}; ip link set {name} mtu {mtu} up
             ip neigh add {network}.2 dev {name} nud permanent \
                lladdr $(cat /sys/class/net/{other}/address)"
        ));
    }
    ends.map(|(name, network)| {
        let stack = Stack::embedded(EmbeddedConfig::new(name).control(false)).unwrap();
        stack
            .attach_atm(format!("{network}.2").parse().unwrap())
            .unwrap();
        stack
    })
}

pub fn two_stacks_exchange_payloads_and_pings() {
    let stacks = two_stacks();
    let [near, far] = stacks.each_ref().map(|stack| {
        let socket = AtmSocket::bind(stack, CIRCUIT).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    });
    let answering = thread::spawn(move || {
        let mut buffer = vec![0; 9180];
        loop {
            let length = far.recv(&mut buffer).unwrap();
            far.send(&buffer[..length]).unwrap();
            if length == 1 {
                return far;
            }
        }
    });
    let mut buffer = vec![0; 9180];
    for size in [40, 41, 1480, 1481, 1500, 9180].repeat(20) {
        let payload: Vec<u8> = (0..size).map(|n| (n * 7 + size) as u8).collect();
        near.send(&payload).unwrap();
        assert_eq!(near.recv(&mut buffer).unwrap(), size);
        assert!(buffer[..size] == payload, "{size} bytes");
    }
    for _ in 0..5 {
        near.ping(TIMEOUT).unwrap();
    }
    near.send(&[1]).unwrap();
    assert_eq!(near.recv(&mut buffer).unwrap(), 1);
    let far = answering.join().unwrap();
    let counters = |stack: &Stack| stack.snapshot().counters.circuits;
    let answered = [("oam-answered".to_owned(), 5)].into();
    assert_eq!(
        (counters(&stacks[0]), counters(&stacks[1])),
        ([].into(), answered)
    );
    // Its owner is gone: the driver knows the label no more.
    drop(far);
    near.send(b"nobody").unwrap();
    assert!(wait_until(|| {
        let queues = stacks[1].snapshot().queues;
        queues[0].driver.get("no-circuit") == Some(&1)
    }));
    // A label is free again with its socket.
    let far = AtmSocket::bind(&stacks[1], CIRCUIT).unwrap();
    far.set_read_timeout(Some(TIMEOUT)).unwrap();
    near.send(b"again").unwrap();
    assert_eq!(far.recv(&mut buffer).unwrap(), 5);
}

/// A frame of the link carries what its MTU allows, whatever a frame of memory holds.
fn exchange_uncut(mtu: usize, sizes: &[usize]) {
    let stacks = two_stacks_with(mtu);
    let [near, far] = stacks.each_ref().map(|stack| {
        let longest = AtmOptions {
            send_max: 65_535,
            receive_max: 65_535,
            ..AtmOptions::default()
        };
        let socket = AtmSocket::bind_with(stack, CIRCUIT, longest).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    });
    let came = || -> u64 {
        let counter = "/sys/class/net/tw-d/statistics/rx_packets";
        let count = std::fs::read_to_string(counter).unwrap();
        count.trim().parse().unwrap()
    };
    // The kernel's own packets have gone.
    assert!(wait_until(|| {
        let before = came();
        thread::sleep(Duration::from_millis(100));
        came() == before
    }));
    let mut buffer = vec![0; 65_535];
    for &size in sizes {
        let payload: Vec<u8> = (0..size).map(|n| (n ^ n >> 8 ^ size) as u8).collect();
        // Label, control word and trailer.
        let frames = ((size + 8).next_multiple_of(48) + 8).div_ceil(mtu) as u64;
        let before = came();
        for _ in 0..20 {
            near.send(&payload).unwrap();
            assert_eq!(far.recv(&mut buffer).unwrap(), size);
            assert!(buffer[..size] == payload, "{size} bytes");
        }
        let frames_came = came() - before;
        // The kernel may have something to say meanwhile.
        let few = 20 * frames..20 * frames + 5;
        assert!(few.contains(&frames_came), "{size} bytes: {frames_came}");
        far.send(&payload).unwrap();
        assert_eq!(near.recv(&mut buffer).unwrap(), size);
    }
}

pub fn payloads_of_rfc_2225_go_in_one_frame_each() {
    exchange_uncut(9224, &[40, 1500, 4060, 4100, 9188, 9208, 30_000]);
}

pub fn payloads_of_64_kib_go_in_one_frame_each() {
    exchange_uncut(65_535, &[9188, 60_000, 65_512, 65_535]);
}

/// A stack that has circuits alone receives its frames by interrupt, since on veth it never
/// learns the driver's poll. After a burst it waits for the next without the CPU, and no poll
/// timer delays that.
pub fn a_stack_of_circuits_alone_sleeps_after_a_burst() {
    let stacks = two_stacks();
    let [near, far] = stacks
        .each_ref()
        .map(|stack| AtmSocket::bind(stack, CIRCUIT).unwrap());
    let nothing = Duration::from_millis(500);
    far.set_read_timeout(Some(nothing)).unwrap();
    let mut buffer = [0; 64];
    let sending = thread::spawn(move || {
        // As many as make receive control poll.
        for _ in 0..200_000 {
            near.send(b"burst").unwrap();
        }
        near
    });
    while !sending.is_finished() || far.recv(&mut buffer).is_ok() {
        let _ = far.recv(&mut buffer);
    }
    let near = sending.join().unwrap();
    near.send(b"last").unwrap();
    assert_eq!(far.recv(&mut buffer).unwrap(), 4);
    let before = raw_system::processor_time();
    let error = far.recv(&mut buffer).unwrap_err();
    let used = raw_system::processor_time() - before;
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    assert!(used < nothing / 3, "{used:?} of {nothing:?}");
    let held = std::fs::read_to_string("/sys/class/net/tw-d/gro_flush_timeout").unwrap();
    assert_eq!(held.trim(), "0");
}

/// Calls through the driver program. Between two calls no thread is in the called end's stack.
pub fn two_stacks_call_each_other() {
    let stacks = two_stacks();
    let number = |system| {
        let mut number = [0x47; 20];
        number[18] = system;
        Nsap(number)
    };
    let sides = [Side::User, Side::Network];
    for ((stack, side), system) in stacks.iter().zip(sides).zip(0..) {
        let number = number(system);
        stack.control_atm(AtmControl { number, side }).unwrap();
    }
    for (calling, called) in [(0, 1), (1, 0)] {
        let to = number(called as u8);
        let options = AtmOptions::default();
        let listener = AtmListener::bind(&stacks[called], to, 8, options).unwrap();
        let echoing = thread::spawn(move || {
            for _ in 0..20 {
                let (socket, _) = listener.accept().unwrap();
                let mut buffer = vec![0; 9180];
                loop {
                    match socket.recv(&mut buffer).unwrap() {
                        0 => break,
                        length => socket.send(&buffer[..length]).unwrap(),
                    };
                }
                assert!(socket.is_released());
            }
        });
        for _ in 0..20 {
            let socket = AtmSocket::connect(&stacks[calling], to).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            assert_eq!(socket.peer_number(), Some(to));
            let mut buffer = vec![0; 9180];
            for size in [40, 1480, 9180] {
                socket.send(&vec![size as u8; size]).unwrap();
                assert_eq!(socket.recv(&mut buffer).unwrap(), size);
            }
        }
        echoing.join().unwrap();
    }
    let refused = AtmSocket::connect(&stacks[0], number(1)).map(drop);
    assert_eq!(
        refused.unwrap_err().raw_os_error(),
        Some(libc::ECONNREFUSED)
    );
    let idle = || stacks.iter().all(|stack| stack.snapshot().calls.is_empty());
    assert!(wait_until(idle));
}

/// The kernel at the other end says where it is, and takes frames that are not IP's.
pub fn the_next_hop_is_found_as_any_neighbour() {
    let stack = stack();
    stack.attach_atm(PEER4.into()).unwrap();
    let socket = AtmSocket::bind(&stack, CIRCUIT).unwrap();
    let received = || {
        let path = format!("/sys/class/net/{PEER}/statistics/rx_packets");
        let read = shell(&format!("ip netns exec {} cat {path}", peer_namespace()));
        read.trim().parse::<u64>().unwrap()
    };
    socket.send(b"to be resolved first").unwrap();
    let before = received();
    for _ in 0..10 {
        socket.send(b"whole").unwrap();
    }
    assert!(wait_until(|| received() >= before + 10));
    // There is no neighbour.
    stack
        .attach_atm(Ipv4Addr::new(10, 77, 0, 99).into())
        .unwrap();
    let error = socket.send(b"lost").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EHOSTUNREACH));
    // The way leads elsewhere.
    stack
        .attach_atm(Ipv4Addr::new(127, 0, 0, 1).into())
        .unwrap();
    let error = socket.send(b"not so").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH));
}
