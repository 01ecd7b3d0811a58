//! A reader that is busy between its reads: flow control, and not loss, slows its sender.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpListener as KernelListener, TcpStream as KernelStream};
use std::time::{Duration, Instant};

use tidewall::TcpListener;

use super::support::*;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));
/// Offset of a counter of the sender's kernel in `struct tcp_info` (linux/tcp.h).
const TOTAL_RETRANS: usize = 100;
const SEGS_OUT: usize = 136;

/// Segments sent again by a kernel connection, and all that it has sent.
fn sent_again(stream: &KernelStream) -> (u32, u32) {
    let mut info = [0; 232];
    tidewall_sys::option_bytes(stream, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).unwrap();
    let number = |at: usize| u32::from_ne_bytes(*info[at..].first_chunk().unwrap());
    (number(TOTAL_RETRANS), number(SEGS_OUT))
}

struct Outcome {
    again: u32,
    sent: u32,
    megabytes: f64,
}

/// Reads `chunk` bytes at a time, `total` in all, and computes for `pause` after each.
fn read_slowly(mut stream: impl Read, chunk: usize, total: usize, pause: Duration) {
    let mut buffer = vec![0; chunk];
    let mut wrong = 0u64;
    for _ in 0..total / chunk {
        stream.read_exact(&mut buffer).unwrap();
        wrong += buffer.iter().map(|&byte| u64::from(byte != 7)).sum::<u64>();
        let end = Instant::now() + pause;
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }
    assert_eq!(wrong, 0);
}

/// Measures a sender at the other end of the link, to a reader from `accept`.
fn send_to<S: Read>(
    port: u16,
    accept: impl FnOnce() -> S,
    (chunk, total, pause): (usize, usize, Duration),
) -> Outcome {
    let sender = spawn_in_peer(move || {
        let mut stream = KernelStream::connect(at(HERE4, port)).unwrap();
        stream.set_write_timeout(TIMEOUT).unwrap();
        let bytes = vec![7; 256 << 10];
        let began = Instant::now();
        for _ in 0..total / bytes.len() {
            stream.write_all(&bytes).unwrap();
        }
        let seconds = began.elapsed().as_secs_f64();
        let (again, sent) = sent_again(&stream);
        Outcome {
            again,
            sent,
            megabytes: total as f64 / seconds / 1e6,
        }
    });
    read_slowly(accept(), chunk, total, pause);
    sender.join().unwrap()
}

pub fn a_busy_reader_loses_no_segment_that_it_had_room_for() {
    let stack = stack();
    let own = TcpListener::bind(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
    let linux = KernelListener::bind(at(Ipv6Addr::UNSPECIFIED, SERVICE + 1)).unwrap();
    for (chunk, total, pause) in [
        (256 << 10, 64 << 20, Duration::from_millis(5)),
        (64 << 10, 32 << 20, Duration::from_millis(1)),
        // A reader that keeps up.
        (256 << 10, 256 << 20, Duration::ZERO),
    ] {
        let what = (chunk, total, pause);
        let kernels = send_to(SERVICE + 1, || linux.accept().unwrap().0, what);
        let stacks = send_to(SERVICE, || own.accept().unwrap().0, what);
        for (name, outcome) in [("Linux", &kernels), ("Tidewall", &stacks)] {
            println!(
                "{} KiB and {pause:?} of computing, {name}: {} of {} segments sent again, {:.0} MB/s",
                chunk >> 10,
                outcome.again,
                outcome.sent,
                outcome.megabytes,
            );
        }
        if !pause.is_zero() {
            // One in five hundred: what a machine that others load may lose in the
            // veth's ring.
            let most = (kernels.again * 2).max(stacks.sent / 500);
            assert!(stacks.again <= most, "{} sent again", stacks.again);
        }
    }
    let sockets = stack.snapshot().sockets;
    let losing: Vec<_> = sockets.iter().filter(|it| it.dropped_full > 0).collect();
    assert!(losing.is_empty(), "full channels: {losing:?}");
}
