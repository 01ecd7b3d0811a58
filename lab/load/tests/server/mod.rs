//! A small server over loopback that accepts at a bounded rate, from a short
//! queue, and behaves as a test wants it to.
#![allow(dead_code, reason = "each user takes a part")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::listen;
use rustix::net::sockopt::set_socket_linger;

/// The server's treatment of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Answers its request with a document of this many bytes and closes it.
    Answer(usize),
    /// Answers each request with a document of this many bytes and keeps it.
    Keep(usize),
    /// Answers its request with 404 and closes it.
    NotFound,
    /// Closes it after its request.
    Close,
    /// Resets it after its request.
    Reset,
    /// Answers with something other than HTTP.
    Garbage,
    /// Never reads, answers or closes.
    Silence,
    /// Sends half of a response and nothing more.
    Stall,
    /// Answers and never closes.
    Linger,
    /// Accepts it and closes it at once.
    Refuse,
}

/// How the server accepts.
#[derive(Clone, Copy, Debug)]
pub struct Accepting {
    /// Connections/s, at most.
    pub rate: u64,
    /// Connections that may wait to be accepted.
    pub backlog: i32,
}

/// At any rate.
pub const FREELY: Accepting = Accepting {
    rate: 1_000_000,
    backlog: 4096,
};

/// The running server; ended when dropped.
pub struct Server {
    pub address: SocketAddr,
    accepted: Arc<AtomicU64>,
    last_request: Arc<std::sync::Mutex<String>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(behaviour: Behaviour, accepting: Accepting) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Listening again only changes the backlog.
        listen(&listener, accepting.backlog).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (accepted, over) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let last_request = Arc::default();
        let mut work = Work {
            listener,
            behaviour,
            accepting,
            connections: Vec::new(),
            accepted: Arc::clone(&accepted),
            last_request: Arc::clone(&last_request),
        };
        let seen = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut last = Instant::now();
            let mut allowance = 0.0;
            while !seen.load(Ordering::Relaxed) {
                let now = Instant::now();
                // A tick's worth and a little: unused capacity does not accumulate.
                let most = f64::max(accepting.rate as f64 * 0.01, 1.0);
                let due = (now - last).as_secs_f64() * work.accepting.rate as f64;
                allowance = f64::min(allowance + due, most);
                last = now;
                let busy = work.accept(&mut allowance) | work.serve();
                if !busy {
                    thread::sleep(Duration::from_micros(500));
                }
            }
        });
        Server {
            address,
            accepted,
            last_request,
            over,
            thread: Some(thread),
        }
    }

    /// Returns the connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Returns the last request.
    pub fn last_request(&self) -> String {
        self.last_request.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    listener: TcpListener,
    behaviour: Behaviour,
    accepting: Accepting,
    connections: Vec<(TcpStream, Vec<u8>)>,
    accepted: Arc<AtomicU64>,
    last_request: Arc<std::sync::Mutex<String>>,
}

impl Work {
    fn accept(&mut self, allowance: &mut f64) -> bool {
        let mut busy = false;
        while *allowance >= 1.0 {
            let Ok((stream, _)) = self.listener.accept() else {
                break;
            };
            *allowance -= 1.0;
            busy = true;
            self.accepted.fetch_add(1, Ordering::Relaxed);
            if self.behaviour != Behaviour::Refuse {
                stream.set_nonblocking(true).unwrap();
                self.connections.push((stream, Vec::new()));
            }
        }
        busy
    }

    fn serve(&mut self) -> bool {
        if self.behaviour == Behaviour::Silence {
            return false;
        }
        let mut busy = false;
        let (behaviour, last) = (self.behaviour, &self.last_request);
        self.connections.retain_mut(|(stream, request)| {
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => request.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
            busy = true;
            if !request.ends_with(b"\r\n\r\n") {
                return true;
            }
            *last.lock().unwrap() = String::from_utf8_lossy(&std::mem::take(request)).into_owned();
            answer(stream, behaviour).unwrap_or(false)
        });
        busy
    }
}

/// Returns true if the connection is to be kept.
fn answer(stream: &mut TcpStream, behaviour: Behaviour) -> io::Result<bool> {
    let whole = |bytes: usize, status: &str| {
        let mut response =
            format!("HTTP/1.1 {status}\r\nContent-Length: {bytes}\r\n\r\n").into_bytes();
        response.resize(response.len() + bytes, b'x');
        response
    };
    match behaviour {
        Behaviour::Answer(bytes) => stream.write_all(&whole(bytes, "200 OK"))?,
        Behaviour::Keep(bytes) => {
            // The rest waits for a reader that is slow on purpose.
            stream.set_nonblocking(false)?;
            stream.set_write_timeout(Some(Duration::from_millis(20)))?;
            let _ = stream.write(&whole(bytes, "200 OK"));
            stream.set_nonblocking(true)?;
            return Ok(true);
        }
        Behaviour::Linger => {
            stream.write_all(&whole(10, "200 OK"))?;
            return Ok(true);
        }
        Behaviour::NotFound => stream.write_all(&whole(3, "404 Not Found"))?,
        Behaviour::Close | Behaviour::Refuse => {}
        Behaviour::Reset => set_socket_linger(stream, Some(Duration::ZERO))?,
        Behaviour::Garbage => stream.write_all(b"SSH-2.0-nonsense\r\n")?,
        Behaviour::Stall => {
            let response = whole(1000, "200 OK");
            stream.write_all(&response[..response.len() / 2])?;
            return Ok(true);
        }
        Behaviour::Silence => return Ok(true),
    }
    Ok(false)
}
