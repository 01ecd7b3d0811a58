//! The application's half: what a process asks of a manager.

mod application;
mod circuits;
mod link;
mod owner;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::getsockname;
use tidewall_device::afxdp::Made;
use tidewall_device::demux::NapiProbe;
use tidewall_device::demux::layout::Protocol;
use tidewall_device::forked::Unshared;
use tidewall_device::queue::InterruptModeration;
use tidewall_wire::ethernet::MacAddress;

use crate::connection::Connection;
use crate::protocol::{
    Address, Answer, Block, Counters, Empty, Holder, INPUT_BYTES, Input, Join, Joined,
    MODERATION_BUSY_POLL, MODERATION_DEFER, MODERATION_ENABLED, MODERATION_NONE, Moderation, Port,
    Probe, QueueNumber, Request, Transport, address_bytes,
};

pub use application::Application;
pub use circuits::Deliver;
use link::{Link, State, gone, is_gone, unexpected};

/// An application of a manager. It ends when this is dropped or its process dies.
///
/// When the manager is started anew, a thread finds it again and presents the application
/// and its ports. A request that needs it meanwhile waits for that.
#[derive(Debug)]
pub struct Client {
    joined: Joined,
    link: Link,
}

/// What an application was handed.
#[derive(Debug)]
pub struct Handed {
    /// The map of its tables ([`tidewall_device::demux::ApplicationTables::of_map`]).
    pub tables: OwnedFd,
    /// The map of what the driver program counts
    /// ([`tidewall_device::demux::DriverCounters::of_map`]).
    pub counters: OwnedFd,
    /// Its queues.
    pub queues: Vec<Made>,
}

/// Whether the application may poll the device, by [`Client::lent`].
fn is_lent(lent: u32) -> bool {
    lent % 2 == 1
}

/// How long a queue that is busy is waited for: its last user may be just gone.
const BUSY_WITHIN: Duration = Duration::from_secs(2);
/// Between the first two tries, and at most; of a queue, and of a manager that is gone.
const TRY_QUEUE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(2)];
/// Before a connection that the manager had no place for is made again.
const CONNECT_AGAIN: Duration = Duration::from_millis(20);
const TRY_AGAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

impl Client {
    /// Connects to the manager at a path and becomes an application. While another one has
    /// the queues, or had them until just now, this waits for 2 s.
    ///
    /// # Errors
    /// NotFound, ConnectionRefused where no manager listens; what it answers, with the
    /// cure.
    pub fn join(path: &Path, join: &Join) -> io::Result<(Self, Handed)> {
        let mut state = State::new(Connection::connect(path)?);
        let end = Instant::now() + BUSY_WITHIN;
        let [mut pause, longest] = TRY_QUEUE;
        let (answer, received) = loop {
            match state.ask(&Request::Join(join.clone()), &[]) {
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < end =>
                {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(longest);
                }
                Err(error) if is_gone(&error) && Instant::now() < end => {
                    std::thread::sleep(CONNECT_AGAIN);
                    state = State::new(Connection::connect(path)?);
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
            let received = state.receive()?.ok_or_else(gone)?;
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
        let link = Link::start(path, joined.token, private, state)?;
        Ok((Client { joined, link }, handed))
    }

    /// Counts how often the device was lent and taken back: odd while the application may
    /// poll it, as always in direct mode.
    pub fn lent(&self) -> u32 {
        self.link.lent()
    }

    /// What the manager said when it joined.
    pub fn joined(&self) -> &Joined {
        &self.joined
    }

    /// Why it is an application no more, if so: a manager that was started anew does not
    /// know it.
    pub fn ended(&self) -> Option<String> {
        self.link.ended()
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
        let mut copy = Some(copy);
        let request = Request::OwnPort(port.clone());
        self.link.request(|state| {
            let (answer, _) = state.ask(&request, &[socket.as_fd()])?;
            let Answer::Owned(Holder { cookie }) = answer else {
                return Err(unexpected());
            };
            if let Some(copy) = copy.take() {
                state.hold(cookie, copy, port.clone());
            }
            Ok(cookie)
        })
    }

    /// Leaves a port's frames to the kernel again, as far as this socket had them.
    ///
    /// # Errors
    /// What the connection reports; the port is the kernel's then when the application
    /// ends.
    pub fn disown_port(&self, cookie: u64) -> io::Result<()> {
        let request = Request::DisownPort(Holder { cookie });
        self.link.give_back(&request, |state| state.let_go(cookie))
    }

    /// Closes the copy of a socket by which a port is held, which the application keeps until
    /// [`Client::disown_port`], unless its manager is started anew.
    pub fn leave_port_unheld(&self, cookie: u64) {
        self.link.state().let_go(cookie);
    }

    /// A block of outgoing ports.
    ///
    /// # Errors
    /// EADDRNOTAVAIL where none is free; ENOBUFS beyond a quota.
    pub fn lease(&self, protocol: Protocol) -> io::Result<Block> {
        let request = Request::Lease(Transport {
            protocol: protocol as u8,
            pad: [0; 7],
        });
        self.link.request(|state| match state.ask(&request, &[])? {
            (Answer::Leased(block), _) => {
                state.leases.push(block.clone());
                Ok(block)
            }
            _ => Err(unexpected()),
        })
    }

    /// Gives a block back.
    ///
    /// # Errors
    /// EINVAL for one that it has not leased.
    pub fn return_lease(&self, block: &Block) -> io::Result<()> {
        let request = Request::ReturnLease(block.clone());
        let forget = |state: &mut State| state.leases.retain(|other| other != block);
        self.link.give_back(&request, forget)
    }

    /// What the manager counts.
    ///
    /// # Errors
    /// What the connection reports.
    pub fn counters(&self) -> io::Result<Counters> {
        let request = Request::GetCounters(Empty {});
        self.link.request(|state| match state.ask(&request, &[])? {
            (Answer::Counters(counters), _) => Ok(counters),
            _ => Err(unexpected()),
        })
    }

    /// Has a neighbour resolved, if the manager is there.
    ///
    /// # Errors
    /// What it answers, and what the connection reports.
    pub fn resolve(&self, address: IpAddr) -> io::Result<()> {
        let address = address_bytes(address);
        self.done_now(&Request::Resolve(Address { address }))
    }

    /// Has the device interrupt as said, if the manager is there; `None`: as before there
    /// was an application.
    ///
    /// # Errors
    /// What it answers, and what the connection reports.
    pub fn moderate(&self, moderation: Option<InterruptModeration>) -> io::Result<()> {
        let (mode, interval) = match moderation {
            None => (MODERATION_NONE, Duration::ZERO),
            Some(InterruptModeration::Enabled) => (MODERATION_ENABLED, Duration::ZERO),
            Some(InterruptModeration::DeferFor(interval)) => (MODERATION_DEFER, interval),
            Some(InterruptModeration::BusyPoll) => (MODERATION_BUSY_POLL, Duration::ZERO),
        };
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        self.done_now(&Request::Moderation(Moderation {
            queue: 0,
            mode,
            interval,
        }))
    }

    /// [`tidewall_device::demux::TrustedTables::probe_napi`], if the manager is there.
    ///
    /// # Errors
    /// What it answers, and what the connection reports.
    pub fn probe_napi(&self, queue: u32, port: u16, source: u16) -> io::Result<()> {
        self.done_now(&Request::Probe(Probe {
            queue,
            port,
            source,
        }))
    }

    /// [`tidewall_device::demux::TrustedTables::napi_probe`], if the manager is there.
    ///
    /// # Errors
    /// What it answers, and what the connection reports.
    pub fn napi_probe(&self, queue: u32) -> io::Result<Option<NapiProbe>> {
        let request = Request::GetProbe(QueueNumber { queue });
        match self.link.now()?.ask(&request, &[])? {
            (Answer::Probed(probed), _) => Ok((probed.found != 0).then_some(NapiProbe {
                port: probed.port,
                source: probed.source,
                sequence: (probed.segment != 0).then_some(probed.sequence),
                neighbour: MacAddress(probed.neighbour),
            })),
            _ => Err(unexpected()),
        }
    }

    /// Has the kernel take a short datagram as if the interface had received it, if the
    /// manager is there.
    ///
    /// # Errors
    /// EINVAL for a longer one than a message holds; what it answers, and what the
    /// connection reports.
    pub fn receive_in_kernel(&self, datagram: &[u8]) -> io::Result<()> {
        let mut bytes = [0; INPUT_BYTES];
        let place = bytes.get_mut(..datagram.len());
        place
            .ok_or(io::ErrorKind::InvalidInput)?
            .copy_from_slice(datagram);
        let length = datagram.len() as u32;
        self.done_now(&Request::Input(Input { length, bytes }))
    }

    /// Other sockets in place of those of a queue, if the manager is there.
    ///
    /// # Errors
    /// What it answers, and what the connection reports.
    pub fn helpers(&self) -> io::Result<[UdpSocket; 2]> {
        let request = Request::GetHelpers(Empty {});
        let (_, received) = self.link.now()?.ask(&request, &[])?;
        let helpers: Vec<UdpSocket> = received.descriptors.into_iter().map(Into::into).collect();
        helpers.try_into().map_err(|_| unexpected())
    }

    /// Of a thread that receives, which waits for nobody.
    fn done_now(&self, request: &Request) -> io::Result<()> {
        self.link.now()?.ask(request, &[]).map(drop)
    }
}
