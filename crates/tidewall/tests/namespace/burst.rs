//! Clients that connect at once, through a ring of 256 places.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, TcpListener as KernelListener, TcpStream as KernelStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, connect, getpeername, listen, socket_with,
};

use tidewall::tcp::Interest;
use tidewall::{Selector, Stack, TcpListener, TcpStream};

use super::support::*;

const CLIENTS: usize = 300;
const ROUNDS: usize = 5;
/// A program's work on each connection that it has accepted, as Redis.
const ACCEPT: Duration = Duration::from_micros(30);
const LIMIT: Duration = Duration::from_secs(30);

fn work() {
    let end = Instant::now() + ACCEPT;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Answers a byte of each connection, and closes it.
fn serve(stack: &Stack, listener: &TcpListener, stop: &AtomicBool) {
    let selector = Selector::new(stack).unwrap();
    selector.add(listener, 0, Interest::READABLE).unwrap();
    let (mut events, mut next) = (Vec::new(), 1);
    let mut streams = std::collections::HashMap::<u64, TcpStream>::new();
    while !stop.load(Ordering::Acquire) {
        let wait = Some(Duration::from_millis(100));
        selector.wait(&mut events, wait).unwrap();
        for event in &events {
            if event.token == 0 {
                while let Ok((stream, _)) = listener.accept() {
                    work();
                    stream.set_nonblocking(true).unwrap();
                    selector.add(&stream, next, Interest::READABLE).unwrap();
                    streams.insert(next, stream);
                    next += 1;
                }
            } else if let Some(mut stream) = streams.get(&event.token) {
                match stream.read(&mut [0]) {
                    Ok(1) => stream.write_all(&[1]).unwrap(),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    _ => drop(streams.remove(&event.token)),
                }
            }
        }
    }
}

/// The same by the kernel, a connection at a time.
fn serve_by_kernel(listener: &KernelListener, stop: &AtomicBool) {
    let mut streams = Vec::new();
    while !stop.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((stream, _)) => {
                work();
                stream.set_nonblocking(true).unwrap();
                streams.push(stream);
            }
            Err(_) => std::thread::sleep(Duration::from_micros(100)),
        }
        streams.retain(|mut stream| match stream.read(&mut [0]) {
            Ok(1) => stream.write_all(&[1]).is_ok(),
            Ok(_) => false,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        });
    }
}

/// SYNs that the calling thread's namespace has sent again.
fn syns_again() -> u64 {
    let counters = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = counters.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    let found = pairs.find(|(name, _)| *name == "TCPSynRetrans").unwrap();
    found.1.parse().unwrap()
}

/// All clients connect at once, ask and are answered, several times. Returns SYNs that
/// were sent again, and how long the slowest took.
fn connect_together(port: u16) -> (u64, Duration) {
    let before = syns_again();
    let mut slowest = Duration::ZERO;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let sockets: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let flags = SocketFlags::NONBLOCK;
                let made = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
                let socket = made.unwrap();
                let begun = connect(&socket, &at(HERE4, port));
                assert_eq!(begun.err(), Some(rustix::io::Errno::INPROGRESS));
                socket
            })
            .collect();
        let mut waiting: Vec<_> = sockets.iter().collect();
        while !waiting.is_empty() {
            waiting.retain(|socket| getpeername(socket).is_err());
            assert!(began.elapsed() < LIMIT, "{} not connected", waiting.len());
            std::thread::sleep(Duration::from_micros(200));
        }
        slowest = slowest.max(began.elapsed());
        let streams: Vec<_> = sockets.into_iter().map(KernelStream::from).collect();
        for mut stream in &streams {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.write_all(&[1]).unwrap();
        }
        for mut stream in &streams {
            stream.read_exact(&mut [0]).unwrap();
        }
    }
    (syns_again() - before, slowest)
}

pub fn clients_that_connect_at_once_send_no_syn_twice() {
    let stack = stack();
    let stop = Arc::new(AtomicBool::new(false));
    // Each processor has other work, as beside a compiler.
    let others: Vec<_> = (0..std::thread::available_parallelism().unwrap().get())
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let kernels = KernelListener::bind(at(Ipv6Addr::UNSPECIFIED, SERVICE + 1)).unwrap();
    // The standard library's backlog is 128.
    listen(&kernels, 4096).unwrap();
    kernels.set_nonblocking(true).unwrap();
    let own = TcpListener::bind(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
    own.set_nonblocking(true).unwrap();
    let server = {
        let (stop, stack) = (stop.clone(), stack.clone());
        std::thread::spawn(move || serve(&stack, &own, &stop))
    };
    let tidewall = spawn_in_peer(|| connect_together(SERVICE)).join().unwrap();
    let kernel = {
        let stop = stop.clone();
        std::thread::spawn(move || serve_by_kernel(&kernels, &stop))
    };
    let linux = spawn_in_peer(|| connect_together(SERVICE + 1))
        .join()
        .unwrap();
    stop.store(true, Ordering::Release);
    server.join().unwrap();
    kernel.join().unwrap();
    others.into_iter().for_each(|other| other.join().unwrap());
    let of = CLIENTS * ROUNDS;
    for (name, (again, slowest)) in [("Linux", linux), ("Tidewall", tidewall)] {
        println!(
            "{CLIENTS} clients at once, {name}: {again} of {of} SYNs sent again, the slowest connected after {slowest:.1?}"
        );
    }
    let allowed = linux.0 + linux.0 / 10;
    assert!(tidewall.0 <= allowed, "{tidewall:?}");
}
