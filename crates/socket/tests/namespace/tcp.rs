//! Streams against the kernel's own TCP at the other end, both ways.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener as KernelListener,
    TcpStream as KernelStream,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidewall_socket::tcp::{Event, Interest};
use tidewall_socket::{Selector, Stack, TcpListener, TcpStream};

use super::support::*;

const PATIENCE: Duration = Duration::from_secs(5);

/// An echo service on one selector, in a thread of its own.
struct Server {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Server {
    fn start(stack: &Stack, address: SocketAddr) -> Server {
        let listener = TcpListener::bind(stack, address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (ended, stack) = (stop.clone(), stack.clone());
        let thread = std::thread::spawn(move || serve(&stack, &listener, &ended));
        Server { stop, thread }
    }

    /// Ends the service; how many connections it served.
    fn finish(self) -> usize {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

struct Client {
    stream: TcpStream,
    /// What is still to be sent back.
    rest: Vec<u8>,
    ended: bool,
}

fn serve(stack: &Stack, listener: &TcpListener, stop: &AtomicBool) -> usize {
    let selector = Selector::new(stack).unwrap();
    selector.add(listener, 0, Interest::READABLE).unwrap();
    let mut clients: HashMap<u64, Client> = HashMap::new();
    let mut served = 0;
    let mut events: Vec<Event> = Vec::new();
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::Acquire) {
        selector
            .wait(&mut events, Some(Duration::from_millis(100)))
            .unwrap();
        for event in &events {
            if event.token == 0 {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    stream.set_nodelay(true).unwrap();
                    served += 1;
                    selector
                        .add(&stream, served as u64, Interest::READABLE)
                        .unwrap();
                    let client = Client {
                        stream,
                        rest: Vec::new(),
                        ended: false,
                    };
                    clients.insert(served as u64, client);
                }
                continue;
            }
            let Some(client) = clients.get_mut(&event.token) else {
                continue;
            };
            if answer(client, &mut buffer).unwrap_or(true) {
                clients.remove(&event.token);
                continue;
            }
            let interest = if client.rest.is_empty() {
                Interest::READABLE
            } else {
                Interest::WRITABLE
            };
            selector
                .modify(&client.stream, event.token, interest)
                .unwrap();
        }
    }
    served
}

/// Sends back what came. True when the connection is over.
fn answer(client: &mut Client, buffer: &mut [u8]) -> io::Result<bool> {
    loop {
        while !client.rest.is_empty() {
            match (&client.stream).write(&client.rest) {
                Ok(length) => drop(client.rest.drain(..length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        if client.ended {
            return Ok(true);
        }
        match (&client.stream).read(buffer) {
            Ok(0) => client.ended = true,
            Ok(length) => client.rest.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + n / 251) as u8).collect()
}

fn patient(stream: &KernelStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
}

/// Sends `bytes` and expects them back.
fn exchange(stream: &KernelStream, bytes: &[u8]) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = stream;
            stream.write_all(bytes).unwrap();
        });
        let mut back = vec![0; bytes.len()];
        let mut stream = stream;
        stream.read_exact(&mut back).unwrap();
        assert!(back == bytes, "{} bytes came back changed", bytes.len());
    });
}

pub fn kernel_clients_are_served_by_a_selector() {
    let stack = stack();
    let server = Server::start(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE));
    in_peer(|| {
        for address in [IpAddr::from(HERE4), IpAddr::from(HERE6)] {
            let stream = KernelStream::connect_timeout(&at(address, SERVICE), PATIENCE).unwrap();
            patient(&stream);
            for length in [1, 100, 1448, 1449, 20_000] {
                exchange(&stream, &pattern(length));
            }
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!((&stream).read(&mut [0]).unwrap(), 0);
        }
    });
    assert_eq!(server.finish(), 2);
}
