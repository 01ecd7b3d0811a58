//! `Stack::wait`, priorities, and threads that block.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use tidewall::UdpSocket;
use tidewall_device::memory::Side;

use super::support::*;

#[test]
fn wait_reports_higher_priorities_first() {
    let bed = Bed::new();
    let sockets: Vec<UdpSocket> = (0..4)
        .map(|n| nonblocking(&bed.far, anywhere(SERVICE + n)))
        .collect();
    let all: Vec<&UdpSocket> = sockets.iter().collect();
    for (socket, priority) in sockets.iter().zip([1, 6, 0, 3]) {
        socket.set_priority(priority).unwrap();
    }
    assert!(bed.far.wait(&all, Some(Duration::ZERO)).unwrap().is_empty());
    for n in [0, 1, 3] {
        bed.inject(&datagram(at(NEAR4, 5000), at(FAR4, SERVICE + n), b"x"));
    }
    assert_eq!(
        bed.far.wait(&all, Some(Duration::from_secs(5))).unwrap(),
        [1, 3, 0]
    );
    drain(&sockets[1]);
    assert_eq!(
        bed.far.wait(&all, Some(Duration::from_secs(5))).unwrap(),
        [3, 0]
    );
    for n in [0, 3] {
        assert_eq!(drain(&sockets[n]).len(), 1);
    }
    assert!(bed.far.wait(&all, Some(Duration::ZERO)).unwrap().is_empty());
    let foreign = bed.near_socket();
    assert_eq!(
        errno(bed.far.wait(&[&foreign], Some(Duration::ZERO)).unwrap_err()),
        libc::EINVAL
    );
}

#[test]
fn a_blocked_receive_wakes_for_its_datagram() {
    let bed = Bed::new();
    let socket = Arc::new(UdpSocket::bind(&bed.far, anywhere(SERVICE)).unwrap());
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let (send, receive) = channel();
    let receiver = {
        let socket = socket.clone();
        thread::spawn(move || {
            for _ in 0..100 {
                let mut buffer = [0; 4];
                assert_eq!(socket.recv(&mut buffer).unwrap(), 4);
                send.send(read_number(&buffer)).unwrap();
            }
        })
    };
    for n in 0..100 {
        bed.inject(&datagram(at(NEAR4, 5000), service(), &number(n)));
        assert_eq!(receive.recv_timeout(Duration::from_secs(5)).unwrap(), n);
    }
    receiver.join().unwrap();
}

/// Threads that block on sockets of their own take turns at leading: each
/// answer may wake another one.
#[test]
fn threads_hand_the_lead_on() {
    let bed = Bed::new();
    let (send, receive) = channel();
    let threads: Vec<_> = (0..4u16)
        .map(|n| {
            let socket = UdpSocket::bind(&bed.far, anywhere(SERVICE + n)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            let send = send.clone();
            thread::spawn(move || {
                // Each ends after a different number, leading or not.
                for _ in 0..50 * (n + 1) {
                    let mut buffer = [0; 4];
                    assert_eq!(socket.recv(&mut buffer).unwrap(), 4);
                    send.send((n, read_number(&buffer))).unwrap();
                }
            })
        })
        .collect();
    let start = Instant::now();
    for number in 0..200u32 {
        let alive: Vec<u16> = (0..4)
            .filter(|n| number < u32::from(50 * (n + 1)))
            .collect();
        for &n in &alive {
            let to = at(FAR4, SERVICE + n);
            bed.inject(&datagram(
                at(NEAR4, 5000),
                to,
                &super::support::number(number),
            ));
        }
        let mut got: Vec<(u16, u32)> = alive
            .iter()
            .map(|_| {
                receive
                    .recv_timeout(Duration::from_secs(5))
                    .expect("nobody leads")
            })
            .collect();
        got.sort_unstable();
        assert_eq!(got, alive.iter().map(|&n| (n, number)).collect::<Vec<_>>());
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn several_threads_may_share_one_socket() {
    let bed = Bed::new();
    let socket = Arc::new(UdpSocket::bind(&bed.far, anywhere(SERVICE)).unwrap());
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let (send, receive) = channel();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (socket, send) = (socket.clone(), send.clone());
            thread::spawn(move || {
                loop {
                    let mut buffer = [0; 4];
                    assert_eq!(socket.recv(&mut buffer).unwrap(), 4);
                    let number = read_number(&buffer);
                    if number == u32::MAX {
                        return;
                    }
                    send.send(number).unwrap();
                }
            })
        })
        .collect();
    let mut got = Vec::new();
    for burst in 0..20 {
        for n in burst * 10..burst * 10 + 10 {
            bed.inject(&datagram(at(NEAR4, 5000), service(), &number(n)));
        }
        for _ in 0..10 {
            got.push(receive.recv_timeout(Duration::from_secs(5)).unwrap());
        }
    }
    for _ in 0..3 {
        bed.inject(&datagram(at(NEAR4, 5000), service(), &number(u32::MAX)));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    got.sort_unstable();
    assert_eq!(got, (0..200).collect::<Vec<_>>());
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_sleeper_hears_that_the_device_went_down() {
    let bed = Bed::new();
    let socket = UdpSocket::bind(&bed.far, anywhere(SERVICE)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let receiver = thread::spawn(move || errno(socket.recv(&mut [0; 4]).unwrap_err()));
    bed.link.set_down(Side::B, true);
    assert_eq!(receiver.join().unwrap(), libc::ENETDOWN);
}
