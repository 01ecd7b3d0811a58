//! The subset of HTTP/1.0 that a scraper needs: `GET /metrics`, one answer per
//! connection.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, listen, recv, send, socket_with, sockopt,
};

/// Maximum number of scrapers at once; the oldest is dropped for one more.
const MOST: usize = 8;
/// Maximum size of a request in bytes.
const REQUEST_BYTES: usize = 4096;
/// The end of a request.
const END: &[u8] = b"\r\n\r\n";

/// The endpoint of the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A loopback address and port: for all users of this host.
    Loopback(SocketAddr),
    /// A Unix socket, for user 0 alone.
    Unix(PathBuf),
}

impl FromStr for Endpoint {
    type Err = String;

    /// An absolute path, or a loopback address and port.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Endpoint::Unix(text.into()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Endpoint::Loopback(address)),
            Ok(_) => Err("only a loopback address: there is no authentication".to_owned()),
            Err(_) => {
                Err("an absolute path, or a loopback address such as 127.0.0.1:9600".to_owned())
            }
        }
    }
}

/// The scrapers, including those that have not received the whole answer yet.
#[derive(Debug)]
pub struct Metrics {
    listener: OwnedFd,
    scrapers: Vec<Scraper>,
    next: u64,
}

#[derive(Debug)]
struct Scraper {
    number: u64,
    socket: OwnedFd,
    request: Vec<u8>,
    /// The part of the answer still to be sent; `None` while the request is incomplete.
    answer: Option<Vec<u8>>,
}

/// The next action for a scraper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait until it is readable.
    Reads,
    /// Wait until it is writable.
    Writes,
    /// It is gone.
    Gone,
}

impl Metrics {
    /// Listens at an endpoint. Replaces what an earlier process left at a path.
    ///
    /// # Errors
    /// Those the file system and the kernel report.
    pub fn open(endpoint: &Endpoint) -> io::Result<Self> {
        let listener = match endpoint {
            Endpoint::Loopback(address) => {
                let family = match address {
                    SocketAddr::V4(_) => AddressFamily::INET,
                    SocketAddr::V6(_) => AddressFamily::INET6,
                };
                let socket = stream(family)?;
                sockopt::set_socket_reuseaddr(&socket, true)?;
                bind(&socket, address)?;
                socket
            }
            Endpoint::Unix(path) => unix(path)?,
        };
        listen(&listener, MOST as i32)?;
        Ok(Metrics {
            listener,
            scrapers: Vec::new(),
            next: 0,
        })
    }

    /// Accepts the next scraper: its number, and the descriptor to watch.
    ///
    /// # Errors
    /// WouldBlock where there is none; EMFILE, ENFILE; ENOMEM.
    pub fn accept(&mut self) -> io::Result<(u64, BorrowedFd<'_>)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = accept_with(&self.listener, flags)?;
        if self.scrapers.len() == MOST {
            self.scrapers.remove(0);
        }
        let number = self.next;
        self.next += 1;
        self.scrapers.push(Scraper {
            number,
            socket,
            request: Vec::new(),
            answer: None,
        });
        let taken = self.scrapers.last().ok_or(io::ErrorKind::NotFound)?;
        Ok((number, taken.socket.as_fd()))
    }

    /// Reads and answers, as far as possible without waiting.
    pub fn serve(&mut self, number: u64, text: impl FnOnce() -> String) -> Next {
        let Some(at) = self.scrapers.iter().position(|of| of.number == number) else {
            return Next::Gone;
        };
        let next = self
            .scrapers
            .get_mut(at)
            .map_or(Next::Gone, |scraper| scraper.serve(text));
        if next == Next::Gone {
            self.scrapers.remove(at);
        }
        next
    }

    /// The socket of a scraper that is not gone.
    pub fn socket(&self, number: u64) -> Option<BorrowedFd<'_>> {
        let found = self.scrapers.iter().find(|of| of.number == number);
        found.map(|scraper| scraper.socket.as_fd())
    }
}

impl AsFd for Metrics {
    /// Becomes readable when a scraper connects.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Scraper {
    fn serve(&mut self, text: impl FnOnce() -> String) -> Next {
        if self.answer.is_none() {
            match self.read() {
                Ok(true) => self.answer = Some(answer(&self.request, text)),
                Ok(false) => return Next::Reads,
                Err(_) => return Next::Gone,
            }
        }
        let Some(left) = &mut self.answer else {
            return Next::Gone;
        };
        while !left.is_empty() {
            match send(&self.socket, left, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(left.drain(..sent)),
                Err(Errno::AGAIN) => return Next::Writes,
                Err(Errno::INTR) => {}
                Err(_) => return Next::Gone,
            }
        }
        Next::Gone
    }

    /// Whether the request is whole.
    fn read(&mut self) -> io::Result<bool> {
        loop {
            let mut bytes = [0; 1024];
            match recv(&self.socket, &mut bytes, RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((length, _)) => self.request.extend(bytes.get(..length).unwrap_or_default()),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if self.request.windows(END.len()).any(|part| part == END) {
                return Ok(true);
            }
            if self.request.len() > REQUEST_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }
}

fn answer(request: &[u8], text: impl FnOnce() -> String) -> Vec<u8> {
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", text()),
        false => ("404 Not Found", "there is /metrics\n".to_owned()),
    };
    let length = body.len();
    format!(
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

fn stream(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}

fn unix(path: &Path) -> io::Result<OwnedFd> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = stream(AddressFamily::UNIX)?;
    // The file takes the permissions of the socket.
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::net::getsockname;

    use super::*;

    #[test]
    fn only_paths_and_loopback_addresses_are_endpoints() {
        let unix = Endpoint::Unix("/run/x".into());
        assert_eq!("/run/x".parse(), Ok(unix));
        assert!("[::1]:9600".parse::<Endpoint>().is_ok());
        for text in ["0.0.0.0:9600", "192.0.2.1:1", "9600", "run/x", ""] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    fn until_readable(descriptor: BorrowedFd<'_>) {
        let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
        poll(&mut descriptors, None).unwrap();
    }

    fn scraped(request: &str) -> String {
        let mut metrics = Metrics::open(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let address: SocketAddr = getsockname(&metrics).unwrap().try_into().unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        until_readable(metrics.as_fd());
        let (number, _) = metrics.accept().unwrap();
        let (first, rest) = request.split_at(request.len() / 2);
        for part in [first, rest] {
            client.write_all(part.as_bytes()).unwrap();
            until_readable(metrics.socket(number).unwrap());
            let next = metrics.serve(number, || "x 1\n".to_owned());
            assert_eq!(
                next,
                if part == rest {
                    Next::Gone
                } else {
                    Next::Reads
                }
            );
        }
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_scraper_gets_one_answer() {
        let answer = scraped("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("Content-Length: 4\r\nConnection: close\r\n\r\nx 1\n"));
        assert!(scraped("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 404 "));
    }

    #[test]
    fn scrapers_that_do_not_ask_make_way() {
        let mut metrics = Metrics::open(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let address: SocketAddr = getsockname(&metrics).unwrap().try_into().unwrap();
        let mut clients = Vec::new();
        for _ in 0..MOST + 2 {
            clients.push(TcpStream::connect(address).unwrap());
            until_readable(metrics.as_fd());
            metrics.accept().unwrap();
        }
        assert_eq!(metrics.scrapers.len(), MOST);
        assert_eq!(metrics.serve(0, String::new), Next::Gone);
        let last = clients.last().unwrap();
        last.shutdown(Shutdown::Both).unwrap();
        let number = metrics.next - 1;
        until_readable(metrics.socket(number).unwrap());
        assert_eq!(metrics.serve(number, String::new), Next::Gone);
        assert_eq!(metrics.scrapers.len(), MOST - 1);
    }
}
