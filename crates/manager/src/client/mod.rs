//! The application's half: requests from a process to a manager.

mod application;
mod circuits;
mod link;
mod owner;
pub(crate) mod session;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::getsockname;
use rustix::net::sockopt::socket_cookie;
use tidewall_device::afxdp::Made;
use tidewall_device::demux::NapiProbe;
use tidewall_device::demux::layout::Protocol;
use tidewall_device::forked::Unshared;
use tidewall_device::queue::InterruptModeration;
use tidewall_wire::ethernet::MacAddress;

use crate::connection::ANSWER_WITHIN;
use crate::protocol::{
    Address, Answer, Block, Counters, Empty, Holder, INPUT_BYTES, Input, Join, Joined,
    MODERATION_BUSY_POLL, MODERATION_DEFER, MODERATION_ENABLED, MODERATION_NONE, Moderation, Port,
    Probe, QueueNumber, Request, Transport, address_bytes,
};

pub use application::Application;
pub use circuits::Deliver;
use link::{Answered, Link, State, is_full, is_gone, unexpected};
use session::Session;

/// An application of a manager. It ends when this is dropped or its process dies.
///
/// After a restart of the manager, a thread reconnects and presents the application and
/// its ports. Only calls documented to do so wait for the manager, and until a deadline.
#[derive(Debug)]
pub struct Client {
    joined: Joined,
    link: Link,
}

/// The objects handed over to an application.
#[derive(Debug)]
pub struct Handed {
    /// The map of its tables ([`tidewall_device::demux::ApplicationTables::of_map`]).
    pub tables: OwnedFd,
    /// The map of the driver program's counters
    /// ([`tidewall_device::demux::DriverCounters::of_map`]).
    pub counters: OwnedFd,
    /// Its queues.
    pub queues: Vec<Made>,
}

/// Whether the application may poll the device, by [`Client::lent`].
fn is_lent(lent: u32) -> bool {
    lent % 2 == 1
}

/// How long to wait for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// 6 s, long enough for a restart of the manager: for requests without an
    /// alternative.
    Restart,
    /// 500 ms; no wait at all while the manager has missed a deadline and sent nothing
    /// since. For requests that the kernel can serve as well.
    Prompt,
}

/// See [`Patience::Prompt`].
const PROMPT_WITHIN: Duration = Duration::from_millis(500);

/// How long to wait for a busy queue: its last user may have just exited.
const BUSY_WITHIN: Duration = Duration::from_secs(2);
/// Pause between the first two attempts, and the longest pause; for a queue, and for a
/// manager that is gone.
const TRY_QUEUE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(2)];
/// Pause before reconnecting when the manager had no place for a connection.
const CONNECT_AGAIN: Duration = Duration::from_millis(20);
const TRY_AGAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(1)];

impl Client {
    /// Connects to the manager at a path and becomes an application. Waits up to 2 s
    /// while another one has the queues, or had them until just now.
    ///
    /// # Errors
    /// NotFound, ConnectionRefused where no manager listens; the manager's error, with
    /// the remedy.
    pub fn join(path: &Path, join: &Join) -> io::Result<(Self, Handed)> {
        let mut session = Session::connect(path)?;
        let end = Instant::now() + BUSY_WITHIN;
        let [mut pause, longest] = TRY_QUEUE;
        let (answer, received) = loop {
            match session.ask(&Request::Join(join.clone()), &[]) {
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < end =>
                {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(longest);
                }
                Err(error) if (is_gone(&error) || is_full(&error)) && Instant::now() < end => {
                    std::thread::sleep(CONNECT_AGAIN);
                    session = Session::connect(path)?;
                }
                result => break result?,
            }
        };
        let Answer::Joined(joined) = answer else {
            return Err(unexpected());
        };
        let mut maps = received.descriptors.into_iter();
        let (Some(tables), Some(counters)) = (maps.next(), maps.next()) else {
            return Err(unexpected());
        };
        let mut queues = Vec::new();
        for _ in 0..joined.queues {
            let received = session.receive()?;
            match Answer::parse(&received.bytes) {
                Ok((_, Answer::Queue(queue))) => {
                    queues.push(Made::of_descriptors(&queue.shape(), received.descriptors)?);
                }
                _ => return Err(unexpected()),
            }
        }
        let handed = Handed {
            tables,
            counters,
            queues,
        };
        let private = joined.private != 0;
        let link = Link::start(path, joined.token, private, &session)?;
        Ok((Client { joined, link }, handed))
    }

    /// Counts how often the device was lent and taken back. It is odd while the
    /// application may poll the device, as always in direct mode.
    pub fn lent(&self) -> u32 {
        self.link.lent()
    }

    /// The manager's reply to the Join.
    pub fn joined(&self) -> &Joined {
        &self.joined
    }

    /// The reason why it is no longer an application, if so: a restarted manager does not
    /// know it.
    pub fn ended(&self) -> Option<String> {
        self.link.ended()
    }

    /// Makes the driver deliver the frames of the port that a socket is bound to. Returns
    /// the name of the port for [`Client::disown_port`].
    ///
    /// # Errors
    /// EADDRINUSE where another application has it; ENOBUFS beyond a quota; the manager's
    /// error; TimedOut.
    pub fn own_port(&self, protocol: Protocol, socket: impl AsFd) -> io::Result<u64> {
        self.own_port_within(protocol, socket, Patience::Restart)
    }

    /// As [`Client::own_port`], with another deadline.
    ///
    /// # Errors
    /// As [`Client::own_port`].
    pub fn own_port_within(
        &self,
        protocol: Protocol,
        socket: impl AsFd,
        patience: Patience,
    ) -> io::Result<u64> {
        let local: SocketAddr = getsockname(&socket)?.try_into()?;
        let port = Port {
            address: address_bytes(local.ip()),
            port: local.port(),
            protocol: protocol as u8,
            pad: 0,
        };
        let cookie = socket_cookie(&socket)?;
        let copy = Unshared::new(rustix::io::fcntl_dupfd_cloexec(&socket, 0)?)?;
        // Recorded before the request, so that a manager restarted meanwhile knows of it.
        let is_new = self.link.state().hold(cookie, copy, port.clone());
        let beside = Some(socket.as_fd());
        let asked = self.request(&Request::OwnPort(port), beside, patience);
        let owned = asked.and_then(|answer| match answer {
            Answer::Owned(Holder { cookie }) => Ok(cookie),
            _ => Err(unexpected()),
        });
        owned.inspect_err(|error| match error.kind() {
            // It may be owned nonetheless.
            io::ErrorKind::TimedOut if is_new => self.disown_port(cookie),
            _ if is_new => self.link.state().let_go(cookie),
            _ => {}
        })
    }

    /// Leaves a port's frames to the kernel again, as far as this socket received them.
    /// The manager learns of it later; one that is gone forgets the port by itself.
    pub fn disown_port(&self, cookie: u64) {
        let request = Request::DisownPort(Holder { cookie });
        self.link.give_back(&request, |state| state.let_go(cookie));
    }

    /// Closes the copy of the socket that holds a port. The application keeps the port
    /// until [`Client::disown_port`], unless its manager is restarted.
    pub fn leave_port_unheld(&self, cookie: u64) {
        self.link.state().let_go(cookie);
    }

    /// Leases a block of outgoing ports.
    ///
    /// # Errors
    /// EADDRNOTAVAIL where none is free; ENOBUFS beyond a quota; TimedOut.
    pub fn lease(&self, protocol: Protocol) -> io::Result<Block> {
        self.lease_within(protocol, Patience::Restart)
    }

    /// As [`Client::lease`], with another deadline.
    ///
    /// # Errors
    /// As [`Client::lease`].
    pub fn lease_within(&self, protocol: Protocol, patience: Patience) -> io::Result<Block> {
        let request = Request::Lease(Transport {
            protocol: protocol as u8,
            pad: [0; 7],
        });
        match self.request(&request, None, patience)? {
            Answer::Leased(block) => Ok(block),
            _ => Err(unexpected()),
        }
    }

    /// Returns a block. The manager learns of it later.
    pub fn return_lease(&self, block: &Block) {
        let request = Request::ReturnLease(block.clone());
        let forget = |state: &mut State| state.leases.retain(|other| other != block);
        self.link.give_back(&request, forget);
    }

    /// The manager's counters.
    ///
    /// # Errors
    /// Those of the connection; TimedOut.
    pub fn counters(&self) -> io::Result<Counters> {
        match self.ask(&Request::GetCounters(Empty {}), None)? {
            Answer::Counters(counters) => Ok(counters),
            _ => Err(unexpected()),
        }
    }

    /// Resolves a neighbour, if the manager is connected.
    ///
    /// # Errors
    /// WouldBlock, NotConnected: the request was not sent.
    pub fn resolve(&self, address: IpAddr) -> io::Result<()> {
        let address = address_bytes(address);
        self.link.tell(&Request::Resolve(Address { address }))
    }

    /// Requests an interrupt setting of the device, if the manager is connected; `None`:
    /// as before there was an application. Returns the question, for
    /// [`Client::moderated`].
    ///
    /// # Errors
    /// WouldBlock, NotConnected: the request was not sent.
    pub fn moderate(&self, moderation: Option<InterruptModeration>) -> io::Result<u32> {
        let (mode, interval) = match moderation {
            None => (MODERATION_NONE, Duration::ZERO),
            Some(InterruptModeration::Enabled) => (MODERATION_ENABLED, Duration::ZERO),
            Some(InterruptModeration::DeferFor(interval)) => (MODERATION_DEFER, interval),
            Some(InterruptModeration::BusyPoll) => (MODERATION_BUSY_POLL, Duration::ZERO),
        };
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        self.link.begin(&Request::Moderation(Moderation {
            queue: 0,
            mode,
            interval,
        }))
    }

    /// The answer to [`Client::moderate`]; `None` until it has arrived.
    ///
    /// # Errors
    /// The manager's error; ConnectionReset where it is gone.
    pub fn moderated(&self, question: u32) -> Option<io::Result<()>> {
        let answered = self.link.take_answer(question);
        answered.map(|answered| answered.map(drop))
    }

    /// [`tidewall_device::demux::TrustedTables::probe_napi`], if the manager is
    /// connected.
    ///
    /// # Errors
    /// WouldBlock, NotConnected: the request was not sent.
    pub fn probe_napi(&self, queue: u32, port: u16, source: u16) -> io::Result<()> {
        self.link.tell(&Request::Probe(Probe {
            queue,
            port,
            source,
        }))
    }

    /// Requests [`tidewall_device::demux::TrustedTables::napi_probe`], if the manager is
    /// connected. Returns the question, for [`Client::napi_probe`].
    ///
    /// # Errors
    /// WouldBlock, NotConnected: the request was not sent.
    pub fn ask_napi_probe(&self, queue: u32) -> io::Result<u32> {
        self.link.begin(&Request::GetProbe(QueueNumber { queue }))
    }

    /// The answer to [`Client::ask_napi_probe`]; `None` until it has arrived.
    ///
    /// # Errors
    /// The manager's error; ConnectionReset where it is gone.
    pub fn napi_probe(&self, question: u32) -> Option<io::Result<Option<NapiProbe>>> {
        let of = |answered: Answered| match answered?.0 {
            Answer::Probed(probed) => Ok((probed.found != 0).then_some(NapiProbe {
                port: probed.port,
                source: probed.source,
                sequence: (probed.segment != 0).then_some(probed.sequence),
                neighbour: MacAddress(probed.neighbour),
            })),
            _ => Err(unexpected()),
        };
        self.link.take_answer(question).map(of)
    }

    /// Makes the kernel receive a short datagram as if it had arrived on the interface,
    /// if the manager is connected.
    ///
    /// # Errors
    /// EINVAL for one longer than a message holds; WouldBlock, NotConnected: the request
    /// was not sent.
    pub fn receive_in_kernel(&self, datagram: &[u8]) -> io::Result<()> {
        let mut bytes = [0; INPUT_BYTES];
        let place = bytes.get_mut(..datagram.len());
        place
            .ok_or(io::ErrorKind::InvalidInput)?
            .copy_from_slice(datagram);
        let length = datagram.len() as u32;
        self.link.tell(&Request::Input(Input { length, bytes }))
    }

    /// Requests replacements for the sockets of a queue, if the manager is connected.
    /// Returns the question, for [`Client::helpers`].
    ///
    /// # Errors
    /// WouldBlock, NotConnected: the request was not sent.
    pub fn ask_helpers(&self) -> io::Result<u32> {
        self.link.begin(&Request::GetHelpers(Empty {}))
    }

    /// The answer to [`Client::ask_helpers`]; `None` until it has arrived.
    ///
    /// # Errors
    /// The manager's error; ConnectionReset where it is gone.
    pub fn helpers(&self, question: u32) -> Option<io::Result<[UdpSocket; 2]>> {
        let of = |answered: Answered| {
            let helpers = answered?.1.descriptors.into_iter().map(UdpSocket::from);
            let helpers: Vec<UdpSocket> = helpers.collect();
            helpers.try_into().map_err(|_| unexpected())
        };
        self.link.take_answer(question).map(of)
    }

    /// Discards the answer to a question that is no longer wanted.
    pub fn forget(&self, question: u32) {
        self.link.forget_answer(question);
    }

    /// Sets a function to call before each wait for the manager. It checks that the
    /// thread may wait, that is, holds no lock.
    pub fn check_before_waiting(&self, check: fn()) {
        self.link.check_before_waiting(check);
    }

    /// Waits for an answer, also over a restart of the manager.
    fn ask(&self, request: &Request, beside: Option<BorrowedFd<'_>>) -> io::Result<Answer> {
        self.request(request, beside, Patience::Restart)
    }

    fn request(
        &self,
        request: &Request,
        beside: Option<BorrowedFd<'_>>,
        patience: Patience,
    ) -> io::Result<Answer> {
        let (within, prompt) = match patience {
            Patience::Restart => (ANSWER_WITHIN, false),
            Patience::Prompt => (PROMPT_WITHIN, true),
        };
        self.link
            .request(request, beside, Instant::now() + within, prompt)
    }
}

/// The deadline of an answer requested now.
fn deadline() -> Instant {
    Instant::now() + ANSWER_WITHIN
}
