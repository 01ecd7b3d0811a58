//! The application's half: what a process asks of a manager.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::getsockname;
use tidewall_device::demux::layout::Protocol;
use tidewall_device::forked::Unshared;
use zerocopy::FromZeros;

use crate::connection::{Connection, Received};
use crate::protocol::{
    Answer, BLOCK_PORTS, Block, Blocks, Counters, Empty, Holder, Join, Joined, Port, Present,
    Queue, Request, Transport, address_bytes, header,
};

/// An application of a manager. It ends when this is dropped or its process dies.
///
/// When the manager is started anew, the next request finds it again, presents the
/// application and its ports, and only then is made.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    joined: Joined,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    connection: Connection,
    next: u32,
    /// Ports owned, by the cookie of a copy of the socket that holds each.
    holders: Vec<(u64, Unshared<OwnedFd>, Port)>,
    leases: Vec<Block>,
}

/// What an application was handed.
#[derive(Debug)]
pub struct Handed {
    /// The map of its tables ([`tidewall_device::demux::ApplicationTables::of_map`]).
    pub tables: OwnedFd,
    /// Its queues, each with AF_XDP socket, frame memory and helper sockets.
    pub queues: Vec<(Queue, Vec<OwnedFd>)>,
}

/// How long a manager that is gone is looked for: longer than it awaits its applications.
const FIND_WITHIN: Duration = Duration::from_secs(6);
/// Between the first looks, and at most.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

impl Client {
    /// Connects to the manager at a path and becomes an application.
    ///
    /// # Errors
    /// NotFound, ConnectionRefused where no manager listens; what it answers, with the
    /// cure.
    pub fn join(path: &Path, join: &Join) -> io::Result<(Self, Handed)> {
        let mut state = State {
            connection: Connection::connect(path)?,
            next: 1,
            holders: Vec::new(),
            leases: Vec::new(),
        };
        let (answer, received) = state.ask(&Request::Join(join.clone()), &[])?;
        let Answer::Joined(joined) = answer else {
            return Err(unexpected());
        };
        let tables = received.descriptors.into_iter().next();
        let mut queues = Vec::new();
        for _ in 0..joined.queues {
            let received = state.connection.receive()?.ok_or_else(gone)?;
            match Answer::parse(&received.bytes) {
                Ok((_, Answer::Queue(queue))) => queues.push((queue, received.descriptors)),
                _ => return Err(unexpected()),
            }
        }
        let handed = Handed {
            tables: tables.ok_or_else(unexpected)?,
            queues,
        };
        let client = Client {
            path: path.to_owned(),
            joined,
            state: Mutex::new(state),
        };
        Ok((client, handed))
    }

    /// What the manager said when it joined.
    pub fn joined(&self) -> &Joined {
        &self.joined
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the driver give the application the frames of the port that a socket is bound
    /// to; what names it to [`Client::disown_port`].
    ///
    /// # Errors
    /// EADDRINUSE where another application has it; ENOBUFS beyond a quota; as the manager
    /// answers.
    pub fn own_port(&self, protocol: Protocol, socket: impl AsFd) -> io::Result<u64> {
        let local: SocketAddr = getsockname(&socket)?.try_into()?;
        let port = Port {
            address: address_bytes(local.ip()),
            port: local.port(),
            protocol: protocol as u8,
            pad: 0,
        };
        let copy = Unshared::new(rustix::io::fcntl_dupfd_cloexec(&socket, 0)?)?;
        let mut state = self.state();
        let request = Request::OwnPort(port.clone());
        let (answer, _) = self.request(&mut state, &request, &[copy.as_fd()])?;
        let Answer::Owned(Holder { cookie }) = answer else {
            return Err(unexpected());
        };
        state.holders.retain(|(other, ..)| *other != cookie);
        state.holders.push((cookie, copy, port));
        Ok(cookie)
    }

    /// Leaves a port's frames to the kernel again, as far as this socket had them.
    ///
    /// # Errors
    /// What the connection reports; the port is the kernel's then when the application
    /// ends.
    pub fn disown_port(&self, cookie: u64) -> io::Result<()> {
        let mut state = self.state();
        state.holders.retain(|(other, ..)| *other != cookie);
        let request = Request::DisownPort(Holder { cookie });
        self.request(&mut state, &request, &[]).map(|_| ())
    }

    /// A block of outgoing ports.
    ///
    /// # Errors
    /// EADDRNOTAVAIL where none is free; ENOBUFS beyond a quota.
    pub fn lease(&self, protocol: Protocol) -> io::Result<Block> {
        let mut state = self.state();
        let request = Request::Lease(Transport {
            protocol: protocol as u8,
            pad: [0; 7],
        });
        match self.request(&mut state, &request, &[])? {
            (Answer::Leased(block), _) => {
                state.leases.push(block.clone());
                Ok(block)
            }
            _ => Err(unexpected()),
        }
    }

    /// Gives a block back.
    ///
    /// # Errors
    /// EINVAL for one that it has not leased.
    pub fn return_lease(&self, block: &Block) -> io::Result<()> {
        let mut state = self.state();
        state.leases.retain(|other| other != block);
        let request = Request::ReturnLease(block.clone());
        match state.ask(&request, &[]) {
            // Who presents itself gives back what it does not know of, which this is now.
            Err(error) if is_gone(&error) => self.find_again(&mut state),
            result => result.map(|_| ()),
        }
    }

    /// What the manager counts.
    ///
    /// # Errors
    /// What the connection reports.
    pub fn counters(&self) -> io::Result<Counters> {
        let request = Request::GetCounters(Empty {});
        match self.request(&mut self.state(), &request, &[])? {
            (Answer::Counters(counters), _) => Ok(counters),
            _ => Err(unexpected()),
        }
    }

    /// Asks, of a manager that was started anew if need be.
    fn request(
        &self,
        state: &mut State,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(Answer, Received)> {
        let end = Instant::now() + FIND_WITHIN;
        loop {
            match state.ask(request, descriptors) {
                // It may be gone again by then.
                Err(error) if is_gone(&error) && Instant::now() < end => self.find_again(state)?,
                result => return result,
            }
        }
    }

    fn find_again(&self, state: &mut State) -> io::Result<()> {
        let end = Instant::now() + FIND_WITHIN;
        let [mut pause, longest] = LOOK_AGAIN;
        loop {
            let found = Connection::connect(&self.path).and_then(|connection| {
                state.connection = connection;
                self.present(state)
            });
            match found {
                Err(error) if is_gone(&error) && Instant::now() < end => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(longest);
                }
                result => return result,
            }
        }
    }

    fn present(&self, state: &mut State) -> io::Result<()> {
        let token = self.joined.token;
        let (answer, _) = state.ask(&Request::Present(Present { token }), &[])?;
        let Answer::Joined(again) = answer else {
            return Err(unexpected());
        };
        for at in 0..state.holders.len() {
            let Some((_, socket, port)) = state.holders.get(at) else {
                break;
            };
            let (message, socket) = (Request::OwnPort(port.clone()), socket.try_clone()?);
            state.ask(&message, &[socket.as_fd()])?;
        }
        // Granted by an answer that was lost.
        for block in unknown(&again.leases, &state.leases) {
            state.ask(&Request::ReturnLease(block), &[])?;
        }
        Ok(())
    }
}

impl State {
    fn ask(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(Answer, Received)> {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        self.connection.send(&request.emit(id), descriptors)?;
        loop {
            let received = self.connection.receive()?.ok_or_else(gone)?;
            // An answer to nothing was refused entry.
            if header(&received.bytes).is_some_and(|header| ![id, 0].contains(&header.id)) {
                continue;
            }
            return match Answer::parse(&received.bytes) {
                Ok((_, Answer::Error(failure))) => Err((&failure).into()),
                Ok((_, answer)) => Ok((answer, received)),
                Err(_) => Err(unexpected()),
            };
        }
    }
}

/// Blocks of a set that are not among those known, by their first port.
fn unknown(leases: &[Blocks; 2], known: &[Block]) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (protocol, of) in [Protocol::Udp, Protocol::Tcp].into_iter().zip(leases) {
        for first in (0..=u16::MAX).step_by(BLOCK_PORTS.into()) {
            let number = usize::from(first / BLOCK_PORTS);
            let leased = of
                .get(number / 64)
                .is_some_and(|word| word & (1 << (number % 64)) != 0);
            let is_known = known.iter().any(|block| {
                block.protocol == protocol as u8 && block.first / BLOCK_PORTS == number as u16
            });
            if leased && !is_known {
                let mut block = Block::new_zeroed();
                (block.first, block.protocol) = (first, protocol as u8);
                blocks.push(block);
            }
        }
    }
    blocks
}

fn gone() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    // Not what the manager answers, which has a text.
    let unanswered = error.get_ref().is_none();
    unanswered && [BrokenPipe, ConnectionRefused, ConnectionReset, NotFound].contains(&error.kind())
}

fn unexpected() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the manager answered something else",
    )
}
