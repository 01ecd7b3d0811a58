//! An event loop of `mio`'s on a stack, against the kernel's TCP and UDP.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpStream as KernelStream};
use std::time::Duration;

use super::support::*;

#[path = "../../examples/mio_echo.rs"]
mod mio_echo;
use mio_echo::Echo;

const TIMEOUT: Duration = Duration::from_secs(10);

fn ask_for(mut stream: &KernelStream, length: usize) {
    let bytes: Vec<u8> = (0..length).map(|n| (n * 11 + n / 239) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| (&*stream).write_all(&bytes).unwrap());
        let mut back = vec![0; length];
        stream.read_exact(&mut back).unwrap();
        assert!(back == bytes, "{length} bytes came back changed");
    });
}

pub fn an_event_loop_serves_kernel_clients() {
    let stack = stack();
    let mut echo = Echo::new(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
    let stop = echo.stopper();
    let server = std::thread::spawn(move || echo.run().unwrap());
    let connect = |address: std::net::IpAddr| {
        let stream = KernelStream::connect_timeout(&at(address, SERVICE), TIMEOUT).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    };
    let streams: Vec<KernelStream> = in_peer(move || {
        [HERE4.into(), HERE6.into(), HERE4.into()]
            .into_iter()
            .map(connect)
            .collect()
    });
    for stream in &streams {
        for length in [1, 1448, 100_000, 2 << 20] {
            ask_for(stream, length);
        }
    }
    // A peer on this host is the kernel's business, in the same loop.
    let local = connect(Ipv4Addr::LOCALHOST.into());
    ask_for(&local, 100_000);
    let socket = peer_socket(PEER4);
    for length in [1, 1000] {
        ask(&socket, at(HERE4, SERVICE), &vec![7; length]);
    }
    for stream in streams.iter().chain([&local]) {
        stream.shutdown(Shutdown::Write).unwrap();
        let mut stream = stream;
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    stop();
    assert_eq!(server.join().unwrap(), 4);
}
