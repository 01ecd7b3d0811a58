//! `tidewall acp-bridge`: programs that know nothing of frames, at both ends of a switch.
//!
//! `client` and `member` are the two sides, without I/O; `commands` knows what is done
//! with which command of Redis, `queue` has the header between bridges, `pair` joins two
//! sockets, and here one thread waits for all of them.

mod client;
mod commands;
mod member;
mod pair;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    sockopt,
};
use tidewall_acp::limit_segments;

use crate::end::{Failure, Outcome, say_line, stop_flag};
use crate::units::count;
use pair::{End, Next, Pair};
use queue::Messages;

/// How often it looks for signals.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// Connections that the kernel keeps until they are taken.
const BACKLOG: i32 = 512;
/// The event of the listener; pairs count from 0.
const LISTENER: u64 = u64::MAX;
/// Errors that are printed; after so many it only counts.
const ERRORS_SHOWN: u64 = 20;

/// Let unmodified programs use a switch: messages of a TCP connection into frames (ACP) and back.
///
/// On the client's side a program connects to it as to its server; commands of RESP (Redis) of
/// several keys (MGET, MSET, DEL, EXISTS, UNLINK, TOUCH) are cut by key, and replies come in the order
/// asked. What needs all members at once, or several keys in one (MULTI, SUBSCRIBE, SELECT, KEYS,
/// RENAME …), is refused with an error. On the member's side it connects to the member's
/// server for each connection of the switch's. One thread; needs no privileges. The switch needs
/// `kernel-ends = true`, its module key-value `key = [8, 9]`, since a header of 8 bytes precedes commands;
/// segmentation offloads are to be off on the switch's way (docs/acp.md).
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tidewall acp-bridge client --listen 127.0.0.1:6379 --to 10.0.0.99:6379\n  \
    tidewall acp-bridge member --listen 10.0.1.2:6379 --to 127.0.0.1:6379\n  \
    tidewall acp-bridge member --listen 10.0.1.2:6379 --to unix:/run/redis/redis.sock\n\n\
    Exit codes: 0 ended by a signal; 1 it failed; 2 it could not begin.")]
pub struct Arguments {
    /// Whether programs connect to it, or the switch
    #[arg(value_name = "client|member", value_enum)]
    side: Side,
    /// Where it listens
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The switch's virtual address, or the member's server
    #[arg(long, value_name = "ADDRESS:PORT|unix:PATH")]
    to: Target,
    /// What a message is: a value of RESP, or bytes behind their length (4 bytes, big endian; one
    /// message each way in turn, a request no longer than a segment)
    #[arg(long, value_name = "KIND", value_enum, default_value = "resp")]
    messages: Messages,
    /// Segments of frames of at most so many bytes, where a link on the way carries less than the
    /// first one
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(128..=32_767))]
    segment: Option<u16>,
    /// Connections at a time; others wait
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    connections: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Side {
    Client,
    Member,
}

#[derive(Clone, Debug)]
enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) => Ok(Self::Unix(path.into())),
            None => text
                .parse()
                .map(Self::Tcp)
                .map_err(|_| "neither ADDRESS:PORT nor unix:PATH".to_owned()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

pub fn run(arguments: &Arguments) -> Outcome {
    if let (Side::Client, Target::Unix(_)) = (arguments.side, &arguments.to) {
        return Err(Failure::usage(
            "frames towards a switch go by TCP: --to ADDRESS:PORT",
        ));
    }
    let stop = stop_flag()?;
    let what = format!("listening at {}", arguments.listen);
    let mut bridge = Bridge::new(arguments).map_err(|error| Failure::io(&what, &error))?;
    let address = bridge
        .listener
        .local_addr()
        .map_err(|error| Failure::io(&what, &error))?;
    say_line(&format!(
        "connections to {address} go on to {}; Ctrl-C ends",
        arguments.to
    ))?;
    while !stop.load(Ordering::Relaxed) {
        bridge
            .turn()
            .map_err(|error| Failure::io("waiting", &error))?;
    }
    say_line(&format!(
        "connections {}, of which {} were broken off",
        count(bridge.taken),
        count(bridge.errors)
    ))
}

struct Bridge<'a> {
    arguments: &'a Arguments,
    epoll: OwnedFd,
    listener: TcpListener,
    /// There may be connections that wait to be taken.
    acceptable: bool,
    pairs: HashMap<u64, Pair>,
    /// Those with something to do at once.
    again: Vec<u64>,
    events: Vec<epoll::Event>,
    taken: u64,
    errors: u64,
}

impl<'a> Bridge<'a> {
    fn new(arguments: &'a Arguments) -> io::Result<Self> {
        let socket = tcp_socket(arguments.listen)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if let (Side::Member, Some(bytes)) = (arguments.side, arguments.segment) {
            limit_segments(&socket, bytes)?;
        }
        bind(&socket, &arguments.listen)?;
        listen(&socket, BACKLOG)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(
            &epoll,
            &socket,
            data,
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        Ok(Self {
            arguments,
            epoll,
            listener: TcpListener::from(socket),
            acceptable: true,
            pairs: HashMap::new(),
            again: Vec::new(),
            events: Vec::with_capacity(256),
            taken: 0,
            errors: 0,
        })
    }

    /// Waits for the kernel, at most [`LOOK`], and does what there is.
    fn turn(&mut self) -> io::Result<()> {
        self.accept();
        let timeout = if self.again.is_empty() {
            LOOK
        } else {
            Timespec::default()
        };
        self.events.clear();
        let room = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, room, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut due = std::mem::take(&mut self.again);
        for event in self.events.drain(..) {
            let token = event.data.u64();
            self.acceptable |= token == LISTENER;
            let Some(pair) = self.pairs.get_mut(&(token / 2)) else {
                continue;
            };
            use epoll::EventFlags as Flags;
            let any = |flags| { event.flags }.intersects(flags);
            let broken = Flags::ERR | Flags::HUP;
            let readable = any(Flags::IN | Flags::RDHUP | broken);
            let writable = any(Flags::OUT | broken);
            let end = match token % 2 {
                0 => End::Frames,
                _ => End::Bytes,
            };
            match pair.event(end, readable, writable) {
                Ok(()) => due.push(token / 2),
                Err(what) => {
                    pair.reset();
                    self.pairs.remove(&(token / 2));
                    report(&mut self.errors, &what);
                }
            }
        }
        due.sort_unstable();
        due.dedup();
        for number in due {
            let Some(pair) = self.pairs.get_mut(&number) else {
                continue;
            };
            match pair.turn() {
                Ok(Next::Wait) => {}
                Ok(Next::Again) => self.again.push(number),
                Ok(Next::Over) => drop(self.pairs.remove(&number)),
                Err(what) => {
                    pair.reset();
                    self.pairs.remove(&number);
                    report(&mut self.errors, &what);
                }
            }
        }
        Ok(())
    }

    /// Takes the connections that wait, as many as there may be.
    fn accept(&mut self) {
        while self.acceptable && self.pairs.len() < self.arguments.connections as usize {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // One that went again, or no descriptors: it is tried again later.
                    self.acceptable = error.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            };
            let number = self.taken;
            self.taken += 1;
            match self.join(number, stream) {
                Ok(pair) => drop(self.pairs.insert(number, pair)),
                Err(error) => report(
                    &mut self.errors,
                    &format!("connecting to {}: {error}", self.arguments.to),
                ),
            }
        }
    }

    /// Connects for a connection that was taken. One that fails is reset, so that a
    /// switch takes its member for dead and not for one that has nothing to say.
    fn join(&self, number: u64, stream: TcpStream) -> io::Result<Pair> {
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let socket = match &self.arguments.to {
            Target::Tcp(address) => {
                let socket = tcp_socket(*address)?;
                if let (Side::Client, Some(bytes)) = (self.arguments.side, self.arguments.segment) {
                    limit_segments(&socket, bytes)?;
                }
                sockopt::set_tcp_nodelay(&socket, true)?;
                begun(connect(&socket, address))?;
                socket
            }
            Target::Unix(path) => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                connect(&socket, &SocketAddrUnix::new(path)?)?;
                socket
            }
        };
        let stream_end = stream.as_fd().try_clone_to_owned()?;
        let client = self.arguments.side == Side::Client;
        let (frames, plain) = if client {
            (TcpStream::from(socket), File::from(OwnedFd::from(stream)))
        } else {
            (stream, File::from(socket))
        };
        let pair = Pair::new(frames, plain, client, self.arguments.messages)?;
        for (token, end) in [(2 * number, End::Frames), (2 * number + 1, End::Bytes)] {
            use epoll::EventFlags as Flags;
            let flags = Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET;
            let data = epoll::EventData::new_u64(token);
            epoll::add(&self.epoll, pair.socket(end), data, flags)?;
        }
        sockopt::set_socket_linger(&stream_end, None)?;
        Ok(pair)
    }
}

/// Counts a connection that was broken off, and says why.
fn report(errors: &mut u64, what: &str) {
    *errors += 1;
    if *errors <= ERRORS_SHOWN {
        eprintln!("tidewall: a connection was broken off: {what}");
    }
    if *errors == ERRORS_SHOWN {
        eprintln!("tidewall: others that are broken off are only counted");
    }
}

/// A socket that waits for nothing.
fn tcp_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}

/// Whether connecting has begun.
fn begun(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
