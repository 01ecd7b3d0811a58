//! `tidewall acp-bridge` connects programs that know nothing of frames, at both ends of a
//! switch.
//!
//! - `client` and `member` are the two sides, without I/O.
//! - `commands` knows the treatment of each Redis command.
//! - `queue` has the header between bridges.
//! - `requests` records whose requests share a connection.
//! - `ends` are the sockets: `shared` has the programs' sockets and the one to the
//!   switch, `pair` the switch's and the one to the member's server.
//!
//! One thread, here, waits for all of them.

mod client;
mod commands;
mod ends;
mod member;
mod pair;
mod queue;
mod requests;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
use crate::units::{self, count};
pub use ends::is_connected;
use ends::{Event, Next};
use pair::Pair;
use queue::Messages;
use shared::{Over, Shared};

/// How often the bridge checks for signals.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// Connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 512;
/// Most bytes of one read.
const READ: usize = 64 << 10;
/// Connections to the switch that Redis programs share. Fewer fill segments better; with
/// only one, a lost frame delays every program.
const SHARED: u32 = 2;
/// The event of the listener; connections count from 0.
const LISTENER: u64 = u64::MAX;
/// Errors printed; later ones are only counted.
const ERRORS_SHOWN: u64 = 20;

/// Let unmodified programs use a switch: translate the messages of a TCP connection into
/// frames (ACP) and back.
///
/// On the client side, a program connects to the bridge as to its server. RESP (Redis)
/// commands with several keys (MGET, MSET, DEL, EXISTS, UNLINK, TOUCH) are split by key,
/// and replies arrive in the order of the requests. Commands that need all members at
/// once, or several keys in one (MULTI, SUBSCRIBE, SELECT, KEYS, RENAME …), are rejected
/// with an error. On the member side, the bridge connects to the member's server once for
/// each connection from the switch. Programs share a few connections to the switch, so
/// that their requests share segments. If one of these ends, all programs on it are
/// disconnected. One thread; needs no privileges. The switch needs `kernel-ends = true`,
/// and its key-value module `key = [8, 9]`, since a header of 8 bytes precedes commands.
/// Segmentation offloads must be off on the path to the switch (docs/acp.md).
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tidewall acp-bridge client --listen 127.0.0.1:6379 --to 10.0.0.99:6379\n  \
    tidewall acp-bridge member --listen 10.0.1.2:6379 --to 127.0.0.1:6379\n  \
    tidewall acp-bridge member --listen 10.0.1.2:6379 --to unix:/run/redis/redis.sock\n\n\
    Exit codes: 0 ended by a signal; 1 it failed; 2 it could not begin.")]
pub struct Arguments {
    /// Side of the bridge: programs connect to it, or the switch does
    #[arg(value_name = "client|member", value_enum)]
    side: Side,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::address::<SocketAddr>)]
    listen: SocketAddr,
    /// The switch's virtual address, or the member's server
    #[arg(long, value_name = "ADDRESS:PORT|unix:PATH")]
    to: Target,
    /// Kind of message: a RESP value, or bytes behind their length (4 bytes, big endian;
    /// one message each way in turn, a request no longer than a segment)
    #[arg(long, value_name = "KIND", value_enum, default_value = "resp")]
    messages: Messages,
    /// Most bytes of a segment of frames, if a link on the path carries less than the
    /// first link
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(128..=32_767))]
    segment: Option<u16>,
    /// Connections to the switch that all programs share; 0: one for each program
    /// [default: 2 for resp, 0 for length, whose servers may keep state for each
    /// connection]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    shared: Option<u32>,
    /// Most concurrent connections; others wait
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
            None => text.parse().map(Self::Tcp).map_err(|_| {
                "neither ADDRESS:PORT nor unix:PATH; names are not looked up".to_owned()
            }),
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
    /// Connections may be waiting to be accepted.
    acceptable: bool,
    /// Connections of frames, with the byte connections that use them.
    groups: HashMap<u64, Group>,
    /// The group of each accepted, live connection.
    owners: HashMap<u64, u64>,
    /// The next connection's number.
    next: u64,
    /// Groups that can do more at once.
    again: Vec<u64>,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
    taken: u64,
    errors: u64,
}

enum Group {
    Client(Shared),
    Member(Pair),
}

impl Group {
    fn frames_event(&mut self, event: Event) -> Result<(), String> {
        match self {
            Self::Client(shared) => shared.frames_event(event),
            Self::Member(pair) => {
                pair.frames_event(event);
                Ok(())
            }
        }
    }

    fn bytes_event(&mut self, number: u64, event: Event) -> Result<(), String> {
        match self {
            Self::Client(shared) => {
                shared.program_event(number, event);
                Ok(())
            }
            Self::Member(pair) => pair.server_event(event),
        }
    }

    fn turn(&mut self, buffer: &mut [u8], over: &mut Over) -> Result<Next, String> {
        match self {
            Self::Client(shared) => shared.turn(buffer, over),
            Self::Member(pair) => pair.turn(buffer),
        }
    }

    fn reset(&self) {
        match self {
            Self::Client(shared) => shared.frames().reset(),
            Self::Member(pair) => pair.frames().reset(),
        }
    }
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
            groups: HashMap::new(),
            owners: HashMap::new(),
            next: 0,
            again: Vec::new(),
            events: Vec::with_capacity(256),
            buffer: vec![0; READ],
            taken: 0,
            errors: 0,
        })
    }

    /// Waits for the kernel, at most [`LOOK`], and handles its events.
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
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            let token = event.data.u64();
            self.acceptable |= token == LISTENER;
            let number = token / 2;
            let is_frames = token.is_multiple_of(2);
            let group = match is_frames {
                true => Some(number),
                false => self.owners.get(&number).copied(),
            };
            let Some((group, it)) = group.and_then(|it| Some((it, self.groups.get_mut(&it)?)))
            else {
                continue;
            };
            use epoll::EventFlags as Flags;
            let any = |flags| { event.flags }.intersects(flags);
            let broken = Flags::ERR | Flags::HUP;
            let event = Event {
                readable: any(Flags::IN | Flags::RDHUP | broken),
                writable: any(Flags::OUT | broken),
                hung_up: any(Flags::RDHUP | broken),
            };
            let result = match is_frames {
                true => it.frames_event(event),
                false => it.bytes_event(number, event),
            };
            match result {
                Ok(()) => due.push(group),
                Err(what) => self.break_off(group, &what),
            }
        }
        self.events = events;
        due.sort_unstable();
        due.dedup();
        let mut over = Over::new();
        for group in due {
            let Some(it) = self.groups.get_mut(&group) else {
                continue;
            };
            let next = it.turn(&mut self.buffer, &mut over);
            for (number, why) in over.drain(..) {
                self.owners.remove(&number);
                if let Some(what) = why {
                    report(&mut self.errors, &what);
                }
            }
            match next {
                Ok(Next::Wait) => {}
                Ok(Next::Again) => self.again.push(group),
                Ok(Next::Over) => {
                    self.groups.remove(&group);
                    self.owners.remove(&group);
                }
                Err(what) => self.break_off(group, &what),
            }
        }
        Ok(())
    }

    /// Ends a connection of frames, and the connections that use it.
    fn break_off(&mut self, group: u64, what: &str) {
        let Some(it) = self.groups.remove(&group) else {
            return;
        };
        it.reset();
        let numbers: Vec<u64> = match &it {
            Group::Client(shared) => shared.programs().collect(),
            Group::Member(_) => vec![group],
        };
        for number in numbers {
            self.owners.remove(&number);
            report(&mut self.errors, what);
        }
    }

    /// Accepts the waiting connections, up to the limit.
    fn accept(&mut self) {
        while self.acceptable && self.owners.len() < self.arguments.connections as usize {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // The connection went away again, or there are no descriptors:
                    // retried later.
                    self.acceptable = error.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            };
            self.taken += 1;
            if let Err(error) = self.join(stream) {
                let what = format!("connecting to {}: {error}", self.arguments.to);
                report(&mut self.errors, &what);
            }
        }
    }

    /// Joins an accepted connection to a new outgoing one. If that fails, the connection
    /// is reset, so that a switch declares its member dead rather than silent.
    fn join(&mut self, stream: TcpStream) -> io::Result<()> {
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let number = self.next;
        self.next += 1;
        match self.arguments.side {
            Side::Client => self.share(number, stream),
            Side::Member => {
                let server = File::from(self.connect()?);
                let stream_end = stream.as_fd().try_clone_to_owned()?;
                let pair = Pair::new(stream, server, self.arguments.messages)?;
                self.watch(2 * number, pair.frames().socket())?;
                self.watch(2 * number + 1, pair.server().socket())?;
                sockopt::set_socket_linger(&stream_end, None)?;
                self.groups.insert(number, Group::Member(pair));
                self.owners.insert(number, number);
                Ok(())
            }
        }
    }

    /// Assigns a program a connection to the switch: its own, or the least used of the
    /// shared ones.
    fn share(&mut self, number: u64, program: TcpStream) -> io::Result<()> {
        let messages = self.arguments.messages;
        let default = match messages {
            Messages::Resp => SHARED,
            Messages::Length => 0,
        };
        let most = self.arguments.shared.unwrap_or(default) as usize;
        let loads = || {
            self.groups.iter().filter_map(|(&group, it)| match it {
                Group::Client(shared) => Some((shared.load()?, group)),
                Group::Member(_) => None,
            })
        };
        let group = match most {
            0 => None,
            _ if loads().count() < most => None,
            _ => loads().min().map(|it| it.1),
        };
        let group = match group {
            Some(group) => group,
            None => {
                let shared = Shared::new(TcpStream::from(self.connect()?), messages)?;
                let group = self.next;
                self.next += 1;
                self.watch(2 * group, shared.frames().socket())?;
                self.groups.insert(group, Group::Client(shared));
                group
            }
        };
        self.watch(2 * number + 1, program.as_fd())?;
        sockopt::set_socket_linger(&program, None)?;
        if let Some(Group::Client(shared)) = self.groups.get_mut(&group) {
            shared.add(number, File::from(OwnedFd::from(program)));
            self.owners.insert(number, group);
        }
        Ok(())
    }

    /// Begins an outgoing connection, which may not be established yet.
    fn connect(&self) -> io::Result<OwnedFd> {
        match &self.arguments.to {
            Target::Tcp(address) => {
                let socket = tcp_socket(*address)?;
                if let (Side::Client, Some(bytes)) = (self.arguments.side, self.arguments.segment) {
                    limit_segments(&socket, bytes)?;
                }
                sockopt::set_tcp_nodelay(&socket, true)?;
                begun(connect(&socket, address))?;
                Ok(socket)
            }
            Target::Unix(path) => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                connect(&socket, &SocketAddrUnix::new(path)?)?;
                Ok(socket)
            }
        }
    }

    /// Registers a socket for events, under this token.
    fn watch(&self, token: u64, socket: BorrowedFd<'_>) -> io::Result<()> {
        use epoll::EventFlags as Flags;
        let flags = Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET;
        Ok(epoll::add(
            &self.epoll,
            socket,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }
}

/// Counts a connection that was broken off, and prints why.
fn report(errors: &mut u64, what: &str) {
    *errors += 1;
    if *errors <= ERRORS_SHOWN {
        eprintln!("tidewall: a connection was broken off: {what}");
    }
    if *errors == ERRORS_SHOWN {
        eprintln!("tidewall: others that are broken off are only counted");
    }
}

/// Creates a non-blocking socket.
pub fn tcp_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}

/// Returns whether connecting has begun.
pub fn begun(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
