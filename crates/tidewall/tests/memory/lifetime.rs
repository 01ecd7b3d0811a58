//! Sockets that come and go while frames are on their way.

use tidewall::UdpSocket;
use tidewall_device::demux::layout::Counter;

use super::support::*;

fn send(bed: &Bed, payload: &[u8], count: usize) {
    for _ in 0..count {
        bed.inject(&datagram(at(NEAR4, 5000), service(), payload));
    }
}

#[test]
fn closing_gives_back_what_waits_in_the_channel() {
    let bed = Bed::new();
    let (socket, other) = (bed.service(), nonblocking(&bed.far, anywhere(SERVICE + 1)));
    send(&bed, b"never read", 50);
    drain(&other);
    assert_eq!(bed.outstanding(), 50);
    drop(socket);
    assert_eq!(bed.outstanding(), 0);
    let again = bed.service();
    assert_eq!(drain(&again), []);
    send(&bed, b"for the new one", 3);
    assert_eq!(drain(&again).len(), 3);
    assert_eq!(bed.outstanding(), 0);
}

/// Opens and closes sockets until one has the channel number `wanted`.
fn with_channel(bed: &Bed, wanted: u16) -> UdpSocket {
    let mut kept = Vec::new();
    for _ in 0..5000 {
        let socket = bed.service();
        if bed
            .far
            .snapshot()
            .sockets
            .iter()
            .any(|seen| seen.channel == wanted)
        {
            return socket;
        }
        drop(socket);
        kept.push(());
    }
    panic!("channel {wanted} was never used again");
}

#[test]
fn frames_for_a_closed_socket_reach_nobody_who_gets_its_number() {
    let bed = Bed::new();
    let other = nonblocking(&bed.far, anywhere(SERVICE + 1));
    let socket = bed.service();
    let number = bed
        .far
        .snapshot()
        .sockets
        .iter()
        .map(|seen| seen.channel)
        .max()
        .unwrap();
    // Armed, the driver puts frames into the receive ring as they arrive, and
    // no thread takes them out.
    assert!(
        bed.far
            .wait(&[&other], Some(std::time::Duration::ZERO))
            .unwrap()
            .is_empty()
    );
    send(&bed, b"for the old one", 1);
    assert_eq!(bed.outstanding(), 1, "no frame is in the receive ring");
    drop(socket);
    let again = with_channel(&bed, number);
    assert_eq!(drain(&again), []);
    assert_eq!(bed.far.snapshot().queues[0].stale, 1);
    assert_eq!(bed.outstanding(), 0);
    send(&bed, b"for the new one", 2);
    assert_eq!(payloads(&again), [b"for the new one", b"for the new one"]);
}

#[test]
fn opening_and_closing_for_ever_leaks_no_frame_and_no_credit() {
    let bed = Bed::new();
    for _ in 0..300 {
        let socket = bed.service();
        send(&bed, b"half of them are read", 20);
        assert_eq!(socket.recv_batch(10, |_| ()).unwrap(), 10);
    }
    let socket = bed.service();
    drain(&socket);
    assert_eq!(bed.outstanding(), 0);
    send(&bed, b"all of memory is there", 200);
    assert_eq!(drain(&socket).len(), 200);
    assert_eq!(
        bed.link
            .port_counters(tidewall_device::memory::Side::B)
            .fill_empty,
        0
    );
}

#[test]
fn every_channel_can_be_open_and_then_there_are_no_more() {
    let bed = Bed::new();
    for round in 0..2 {
        let mut sockets = Vec::new();
        let refused = loop {
            match UdpSocket::bind(&bed.far, anywhere(1 + sockets.len() as u16)) {
                Ok(socket) => sockets.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(errno(refused), libc::ENFILE, "round {round}");
        // Channel 0 names none, channel 1 has the fragments, 2 and 3 are TCP's.
        assert_eq!(sockets.len(), 4092, "round {round}");
        for port in [1, 100, 4092] {
            bed.inject(&datagram(
                at(NEAR4, 5000),
                at(FAR4, port),
                &number(u32::from(port)),
            ));
            let socket = &sockets[usize::from(port) - 1];
            socket.set_nonblocking(true).unwrap();
            assert_eq!(numbers(socket), [u32::from(port)], "round {round}");
        }
        // One that closes makes room for one.
        drop(sockets.pop());
        sockets.push(UdpSocket::bind(&bed.far, anywhere(60_000)).unwrap());
        assert_eq!(
            errno(
                UdpSocket::bind(&bed.far, anywhere(60_001))
                    .map(drop)
                    .unwrap_err()
            ),
            libc::ENFILE
        );
    }
    assert_eq!(bed.far.snapshot().sockets.len(), 0);
    assert_eq!(bed.outstanding(), 0);
    bed.inject(&datagram(at(NEAR4, 5000), at(FAR4, 100), b"nobody"));
    let socket = bed.service();
    assert_eq!(drain(&socket), []);
    assert_eq!(bed.driver(Counter::Unowned), 1);
}

#[test]
fn the_socket_that_was_bound_last_gets_a_shared_port_and_its_heir_after_it() {
    let bed = Bed::new();
    let how = tidewall::BindOptions {
        reuse_port: true,
        ..Default::default()
    };
    let bind = || {
        let socket = UdpSocket::bind_with(&bed.far, anywhere(SERVICE), how).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let (first, second) = (bind(), bind());
    send(&bed, b"one", 1);
    assert_eq!((drain(&first).len(), drain(&second).len()), (0, 1));
    drop(second);
    send(&bed, b"two", 1);
    assert_eq!(drain(&first).len(), 1);
}

#[test]
fn the_stack_closes_its_device_when_the_last_user_is_gone() {
    let bed = Bed::new();
    let Bed {
        near,
        far,
        link,
        tables,
        ..
    } = bed;
    let socket = nonblocking(&far, anywhere(SERVICE));
    drop(far);
    // The socket keeps it.
    link.inject(
        tidewall_device::memory::Side::B,
        &datagram(at(NEAR4, 5000), service(), b"still here"),
    );
    assert_eq!(payloads(&socket), [b"still here"]);
    let before = std::sync::Arc::strong_count(&tables.embedded);
    drop(socket);
    assert!(std::sync::Arc::strong_count(&tables.embedded) < before);
    drop(near);
}
