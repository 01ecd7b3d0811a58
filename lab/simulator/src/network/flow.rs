//! A flow: two hosts, and the application that talks between them.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tidewall_protocol::tcp::{self, Config, Connection, Info, Time};

use super::host::{Goal, Host};
use super::packet::Side;
use super::stream::Stream;
use super::{FlowId, LinkId};
use crate::random::Random;

/// The behaviour of an application.
#[derive(Clone, Copy, Debug)]
pub enum Application {
    /// The client sends on one connection: a number of bytes, after which it closes, or
    /// without end.
    Bulk {
        /// `None`: without end.
        bytes: Option<u64>,
    },
    /// The client asks and the server answers, again and again, one exchange at a time.
    Exchange {
        /// Bytes of a request.
        request: u64,
        /// Bytes of an answer.
        response: u64,
        /// Number of exchanges.
        count: u32,
        /// Time from the end of one exchange to the beginning of the next.
        pause: Duration,
        /// Keep one connection; otherwise each exchange has a new one, which the server
        /// closes.
        keep: bool,
    },
}

/// How an application reads.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Bytes per read; not zero.
    pub at_once: usize,
    /// Pause between reads.
    pub pause: Duration,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            at_once: usize::MAX,
            pause: Duration::ZERO,
        }
    }
}

/// The setup of a flow.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Configuration of the client's engine.
    pub client: Config,
    /// Configuration of the server's engine.
    pub server: Config,
    /// The links from client to server, in order.
    pub forward: Vec<LinkId>,
    /// The links from server to client, in order.
    pub back: Vec<LinkId>,
    /// The application protocol.
    pub application: Application,
    /// The start time.
    pub start: Duration,
    /// How both hosts read.
    pub reading: Reading,
    /// Limit of bytes that wait in front of each host's first link, like a device's
    /// queue. Packets beyond it are refused, and retried when half of it has left.
    pub device_queue: Option<u32>,
}

impl Setup {
    /// A flow that begins at zero. Both ends have the same engine, read at once, and send
    /// into links without a device queue in front.
    pub fn new(config: Config, forward: LinkId, back: LinkId, application: Application) -> Self {
        Setup {
            client: config,
            server: config,
            forward: vec![forward],
            back: vec![back],
            application,
            start: Duration::ZERO,
            reading: Reading::default(),
            device_queue: None,
        }
    }
}

/// The results of a flow so far.
#[derive(Clone, Debug)]
pub struct Report {
    /// Bytes that the server's application has read.
    pub uploaded: u64,
    /// Bytes that the client's application has read.
    pub downloaded: u64,
    /// Duration of each exchange, from its beginning (on a new connection, from the SYN)
    /// to the last byte read. For a bulk with an end, its total time.
    pub completions: Vec<Duration>,
    /// Segments that both hosts have retransmitted.
    pub retransmissions: u64,
    /// Retransmission timeouts of both hosts.
    pub timeouts: u64,
    /// How often both hosts entered fast recovery.
    pub fast_recoveries: u64,
    /// Segments that both hosts have sent, bursts counted once.
    pub segments_sent: u64,
    /// How often the device refused packets.
    pub refusals: u64,
    /// Current statistics of the client's connection.
    pub client: Option<Info>,
    /// Current statistics of the server's connection.
    pub server: Option<Info>,
    /// Nothing is left to do.
    pub done: bool,
}

pub(super) struct Flow {
    pub(super) setup: Setup,
    pub(super) hosts: [Host; 2],
    pub(super) refusals: u64,
    id: FlowId,
    connections: u32,
    /// Start of the next connection, or exchange.
    next: Option<Duration>,
    /// Start of the current exchange.
    begun: Duration,
    /// Exchanges begun on this connection.
    asked: u64,
    completions: Vec<Duration>,
    done: bool,
}

impl Flow {
    pub(super) fn new(id: FlowId, setup: Setup, random: &mut Random) -> Self {
        let client = Host::new(setup.client, false, random);
        let server = Host::new(setup.server, true, random);
        Self {
            next: Some(setup.start),
            hosts: [client, server],
            refusals: 0,
            id,
            setup,
            connections: 0,
            begun: Duration::ZERO,
            asked: 0,
            completions: Vec::new(),
            done: false,
        }
    }

    /// The flow as one side sees it.
    pub(super) fn addresses(&self, side: Side) -> tcp::FourTuple {
        let number = self.id.0 as u32;
        let host = |network: u8| {
            let [_, high, middle, low] = number.to_be_bytes();
            Ipv4Addr::new(network, high, middle, low)
        };
        // A range of ports that no run exhausts while packets of an earlier connection
        // are in transit.
        let port = 1024 + (self.connections % 60_000) as u16;
        let client = SocketAddr::from((host(10), port));
        let server = SocketAddr::from((host(11), 80));
        match side {
            Side::Client => tcp::FourTuple {
                local: client,
                remote: server,
            },
            Side::Server => tcp::FourTuple {
                local: server,
                remote: client,
            },
        }
    }

    /// When the flow must act, if nothing happens before.
    pub(super) fn wake(&self) -> Option<Duration> {
        let [client, server] = &self.hosts;
        let dirty = client.dirty || server.dirty;
        let waits = [
            client.wake,
            server.wake,
            self.next,
            dirty.then_some(Duration::ZERO),
        ];
        waits.into_iter().flatten().min()
    }

    /// Begins a connection or exchange that is due.
    pub(super) fn begin(&mut self, now: Duration, time: Time, random: &mut Random) {
        if self.next.is_none_or(|at| at > now) {
            return;
        }
        self.next = None;
        self.begun = now;
        let keeps = matches!(
            self.setup.application,
            Application::Exchange { keep: true, .. }
        );
        let [client, server] = &mut self.hosts;
        client.dirty = true;
        if keeps && client.connection.is_some() {
            self.asked += 1;
            return;
        }
        self.asked = 1;
        self.connections += 1;
        let (up, down) = (Stream::new(random.bits()), Stream::new(random.bits()));
        client.reset(up, down);
        server.reset(down, up);
        let isn = random.bits() as u32;
        let offset = random.bits() as u32;
        let addresses = self.addresses(Side::Client);
        let connection = Connection::connect(addresses, isn, offset, &self.setup.client, time);
        let [client, _] = &mut self.hosts;
        client.connection = Some(connection);
    }

    /// The application's goal for a host, given the bytes it has read.
    pub(super) fn goal(&self, side: Side) -> Goal {
        let host = &self.hosts[side as usize];
        let (written, close) = match (self.setup.application, side) {
            (Application::Bulk { bytes }, Side::Client) => {
                (bytes.unwrap_or(u64::MAX), bytes.is_some())
            }
            (Application::Bulk { .. }, Side::Server) => (0, host.ended),
            (
                Application::Exchange {
                    request,
                    keep,
                    count,
                    ..
                },
                Side::Client,
            ) => {
                let last = keep && self.completions.len() as u64 >= u64::from(count);
                (request * self.asked, host.ended || last)
            }
            (
                Application::Exchange {
                    request,
                    response,
                    keep,
                    ..
                },
                Side::Server,
            ) => {
                let answers = host.read / request.max(1);
                (response * answers, host.ended || !keep && answers > 0)
            }
        };
        Goal { written, close }
    }

    /// Records completed exchanges, and schedules the next.
    pub(super) fn advance(&mut self, now: Duration) {
        let [client, server] = &self.hosts;
        let over = client.is_over() && server.is_over();
        match self.setup.application {
            Application::Bulk { .. } => {
                if server.ended && self.completions.is_empty() && self.connections > 0 {
                    self.completions.push(now.saturating_sub(self.begun));
                }
                self.done |= over;
            }
            Application::Exchange {
                response,
                count,
                pause,
                keep,
                ..
            } => {
                let before = if keep { 0 } else { self.connections - 1 };
                let complete = self.completions.len() as u64 - u64::from(before);
                if complete < self.asked && client.read >= response * self.asked {
                    self.completions.push(now.saturating_sub(self.begun));
                    if keep && self.completions.len() < count as usize {
                        self.next = Some(now + pause);
                    }
                }
                let all = self.completions.len() >= count as usize;
                if over && all {
                    self.done = true;
                } else if over && !keep && self.next.is_none() {
                    self.next = Some(now + pause);
                }
            }
        }
        if self.done {
            // The remaining work of these connections does not matter.
            for host in &mut self.hosts {
                host.wake = None;
                host.dirty = false;
            }
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// True before the first connection.
    pub(super) fn is_waiting(&self) -> bool {
        self.connections == 0
    }

    pub(super) fn report(&self) -> Report {
        let [client, server] = &self.hosts;
        let mut totals = client.totals;
        totals.retransmissions += server.totals.retransmissions;
        totals.timeouts += server.totals.timeouts;
        totals.fast_recoveries += server.totals.fast_recoveries;
        totals.segments_sent += server.totals.segments_sent;
        let [first, second] = [client, server].map(|host| {
            let info = host.connection.as_ref().map(Connection::info);
            if let Some(info) = &info {
                totals.add(info);
            }
            info
        });
        Report {
            uploaded: server.read_before + server.read,
            downloaded: client.read_before + client.read,
            completions: self.completions.clone(),
            retransmissions: totals.retransmissions,
            timeouts: totals.timeouts,
            fast_recoveries: totals.fast_recoveries,
            segments_sent: totals.segments_sent,
            refusals: self.refusals,
            client: first,
            server: second,
            done: self.done,
        }
    }
}
