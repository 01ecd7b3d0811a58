//! Datagrams between a stack and kernel peers.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use super::support::*;

pub fn echo_to_kernel_peers_in_every_size() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let mut asked = 0;
    for offload in ["on", "off"] {
        // Off, the peer computes its checksums itself; on, it leaves them.
        let peer = peer_namespace();
        shell(&format!(
            "ip netns exec {peer} ethtool -K {PEER} tx {offload} >/dev/null"
        ));
        let (four, six) = (peer_socket(PEER4), peer_socket(PEER6));
        // The first three of a stack may be NAPI probes; over an MTU,
        // the peer's kernel cuts the question and ours the answer.
        for size in [
            8, 8, 8, 0, 1, 2, 255, 256, 257, 1451, 1452, 1471, 1472, 1473, 2000, 4096, 8192,
        ] {
            let payload: Vec<u8> = (0..size).map(|n| (n * 7 + n / 256) as u8).collect();
            ask(&four, at(HERE4, SERVICE), &payload);
            ask(&six, at(HERE6, SERVICE), &payload);
            asked += 2;
        }
    }
    // The last answer left before its question's credit came back.
    let idle = || {
        let snapshot = stack.snapshot();
        let mut sockets = snapshot.sockets.iter();
        sockets.all(|socket| (socket.occupancy, socket.dropped_full) == (0, 0))
    };
    assert!(wait_until(idle), "{:?}", stack.snapshot());
    let snapshot = stack.snapshot();
    let answered = echo.finish();
    assert!(answered >= asked, "{answered} of {asked}");
    assert!(
        snapshot.counters.protocol.is_empty(),
        "{:?}",
        snapshot.counters.protocol
    );
    assert!(
        snapshot.counters.fragments["reassembled"] >= 20,
        "{:?}",
        snapshot.counters.fragments
    );
    let queue = &snapshot.queues[0];
    assert!(queue.driver["channel"] > 60, "{queue:?}");
    assert!(
        queue.transmitted > 20,
        "answers went through the kernel: {queue:?}"
    );
}

pub fn connected_sockets_hear_that_nobody_listens() {
    let stack = stack();
    for (local, peer) in [
        (at(Ipv4Addr::UNSPECIFIED, 0), at(PEER4, 9)),
        (at(HERE6, 0), at(PEER6, 9)),
    ] {
        let socket = bind(&stack, local);
        socket.connect(peer).unwrap();
        let mut refused = 0;
        for _ in 0..4 {
            // The first may go through the kernel while it resolves the peer.
            let result = socket
                .send(b"anybody?")
                .and_then(|_| socket.recv(&mut [0; 8]));
            let error = result.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED), "{error}");
            refused += 1;
        }
        assert_eq!(refused, 4);
    }
    assert!(
        stack.snapshot().counters.icmp_errors > 0,
        "every error came through the kernel"
    );
}

pub fn two_queues_both_serve() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let clients: Vec<_> = (0..16).map(|_| peer_socket(PEER4)).collect();
    for round in 0..10u8 {
        for client in &clients {
            ask(client, at(HERE4, SERVICE), &[round; 32]);
        }
    }
    let snapshot = stack.snapshot();
    echo.finish();
    for (number, queue) in snapshot.queues.iter().enumerate() {
        assert!(
            queue.delivered > 5,
            "queue {number} served nobody: {snapshot:?}"
        );
    }
}

pub fn batches_reach_a_kernel_peer_in_order() {
    let stack = stack();
    let socket = bind(&stack, at(HERE4, SERVICE));
    let peer = peer_socket(PEER4);
    let to = peer.local_addr().unwrap();
    let mut buffer = [0; 64];
    peer.send_to(b"first", at(HERE4, SERVICE)).unwrap();
    socket.recv(&mut buffer).unwrap();
    until_it_transmits(&stack, || {
        socket.send_to(b"second", to).unwrap();
        peer.recv(&mut buffer).unwrap();
    });
    for batch in 0..20u32 {
        let payloads: Vec<[u8; 4]> = (0..32u32).map(|n| (batch * 32 + n).to_be_bytes()).collect();
        let sent = socket.send_batch(payloads.iter().map(|payload| (&payload[..], to)));
        assert_eq!(sent.unwrap(), 32);
        for payload in &payloads {
            let length = peer.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], payload);
        }
    }
    assert!(stack.snapshot().queues[0].transmitted >= 600);
}

pub fn marks_and_hops_reach_the_application() {
    let stack = stack();
    let socket = bind(&stack, at(HERE4, SERVICE));
    let peer = peer_socket(PEER4);
    peer.set_ttl(7).unwrap();
    let mut through = [0, 0];
    let end = Instant::now() + Duration::from_secs(3);
    // Through the kernel while polls are learned, then through the channel.
    while through[0] < 5 && Instant::now() < end {
        peer.send_to(b"marked", at(HERE4, SERVICE)).unwrap();
        let before = stack.snapshot().sockets[0].received;
        let mut seen = None;
        socket
            .recv_batch(1, |r| seen = Some((r.hop_limit, r.destination, r.source)))
            .unwrap();
        let (hops, destination, source) = seen.unwrap();
        assert_eq!(destination, at(HERE4, SERVICE));
        assert_eq!(source, peer.local_addr().unwrap());
        assert!(stack.snapshot().sockets[0].received >= before);
        through[usize::from(hops != 7)] += 1;
    }
    assert!(
        through[0] >= 5,
        "hops of {through:?} datagrams were 7, something else"
    );
    assert!(
        through[1] <= 2,
        "only NAPI probes may lack them: {through:?}"
    );
    // Answers carry what the socket was set to.
    socket.set_tos(0x2e << 2).unwrap();
    socket.set_ttl(9).unwrap();
    socket
        .send_to(b"answer", peer.local_addr().unwrap())
        .unwrap();
    assert_eq!(peer.recv(&mut [0; 16]).unwrap(), 6);
}
