//! One host: a stack on virtual time with the production sockets, at one end of a link.
//! The script is the other end.
//!
//! The host adds no rule: packets are the stack's, byte for byte, and calls are those of
//! `tidewall_posix`. Packets that the driver passes to the kernel are answered as such a
//! host's kernel would: with a reset, if nothing listens.

mod segments;
mod time;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tidewall::{MemoryConfig, Stack, VirtualTime as _};
use tidewall_device::memory::{Link, LinkConfig, LinkPort, Side, Tap, pair};
use tidewall_posix::{Posix, PosixConfig};
use tidewall_protocol::InputOptions;
use tidewall_protocol::tcp::{self, Checksum, Sysctl};
use tidewall_wire::Protocol;
use tidewall_wire::ethernet::{HEADER_LEN, MacAddress};

pub(crate) use time::Time;

/// The first descriptor, above those that a process uses, so that a caller can
/// distinguish the host's from its own.
pub(crate) const FIRST_FD: i32 = 10_000;

const OWN_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

/// Limit of rounds at one time of the clock in which all parts are asked for work: a host
/// that always has work is broken.
const ROUNDS: u32 = 10_000;

/// The initial configuration of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HostConfig {
    /// Its addresses: a connection whose socket is not bound uses the first of a family.
    pub(crate) addresses: Vec<IpAddr>,
    /// MTU of its link: bytes of an IP datagram.
    pub(crate) mtu: u16,
    /// Kernel parameters.
    pub(crate) sysctl: Sysctl,
    /// Time since 1970 at zero of its clock.
    pub(crate) epoch: Duration,
}

impl Default for HostConfig {
    /// The addresses that the public suite uses, Ethernet's MTU.
    fn default() -> Self {
        Self {
            addresses: vec![
                IpAddr::from([192, 168, 0, 1]),
                IpAddr::from([0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1]),
            ],
            mtu: 1500,
            sysctl: Sysctl::default(),
            epoch: Duration::ZERO,
        }
    }
}

/// See the module documentation.
pub(crate) struct Host {
    posix: Arc<Posix>,
    stack: Stack,
    time: Arc<Time>,
    link: Link,
    /// MTU of the link: bytes of an IP datagram.
    mtu: usize,
    tap: Tap,
    /// Packets that have left, from the IP header on, and when.
    out: VecDeque<(Duration, Vec<u8>)>,
    /// The script's end, which is passive.
    _peer: LinkPort,
}

impl Host {
    /// Creates a host at time zero.
    ///
    /// # Errors
    /// ENOMEM, EMFILE.
    pub(crate) fn new(config: HostConfig, time: Arc<Time>) -> io::Result<Self> {
        let (link, end, peer) = pair(LinkConfig {
            frames: 8192,
            mtu: config.mtu,
            ..LinkConfig::default()
        })?;
        let memory = MemoryConfig {
            addresses: config.addresses,
            mac: OWN_MAC,
            peer: PEER_MAC,
        };
        let stack = Stack::on_virtual_time(end, memory, time.clone())?;
        stack.set_sysctl(&config.sysctl);
        let posix = PosixConfig::default().first(FIRST_FD).epoch(config.epoch);
        Ok(Self {
            posix: Arc::new(Posix::new(&stack, posix)),
            mtu: config.mtu.into(),
            tap: link.tap(),
            stack,
            time,
            link,
            out: VecDeque::new(),
            _peer: peer,
        })
    }

    /// Its sockets.
    pub(crate) fn posix(&self) -> &Arc<Posix> {
        &self.posix
    }

    /// Its clock.
    pub(crate) fn time(&self) -> &Arc<Time> {
        &self.time
    }

    pub(crate) fn now(&self) -> Duration {
        self.time.now()
    }

    pub(crate) fn sysctl(&self) -> Sysctl {
        self.stack.sysctl()
    }

    /// Changes kernel parameters for connections that begin from now on.
    pub(crate) fn set_sysctl(&self, sysctl: &Sysctl) {
        if self.stack.sysctl() != *sysctl {
            self.stack.set_sysctl(sysctl);
        }
    }

    /// Sets whether the device accepts packets; while it does not, they stay with the
    /// stack.
    pub(crate) fn set_room(&self, room: bool) {
        self.link.refuse_frames(Side::A, !room);
    }

    /// The time of the next spontaneous event: a timer, or a call that gives up.
    pub(crate) fn next_event(&self) -> Option<Duration> {
        let timer = self.stack.next_timeout();
        let deadline = self.time.next_deadline();
        timer.into_iter().chain(deadline).min()
    }

    /// Moves the clock from event to event.
    pub(crate) fn advance(&mut self, to: Duration) {
        self.run_until_idle();
        while let Some(event) = self.next_event().filter(|&event| event <= to) {
            if event <= self.now() {
                break;
            }
            self.move_to(event);
        }
        self.move_to(to);
    }

    fn move_to(&mut self, to: Duration) {
        self.time.set(to);
        self.link.advance_to(to);
        self.run_until_idle();
    }

    /// A packet arrives: an IP datagram from its first byte on. A segment that is longer
    /// than the link's MTU arrives in several datagrams.
    pub(crate) fn packet_in(&mut self, datagram: &[u8]) {
        let datagrams = if datagram.len() > self.mtu {
            segments::cut(datagram, self.mtu)
        } else {
            vec![datagram.to_vec()]
        };
        let frames = datagrams.iter().filter_map(|datagram| frame(datagram));
        self.link.inject_burst(Side::A, frames.collect());
        self.run_until_idle();
    }

    /// The next packet that has left, from its IP header on, and its time.
    pub(crate) fn packet_out(&mut self) -> Option<(Duration, Vec<u8>)> {
        for captured in self.tap.take() {
            if captured.from == Side::A {
                let mut bytes = captured.bytes;
                let datagram = bytes.split_off(HEADER_LEN.min(bytes.len()));
                self.out.push_back((captured.time, datagram));
            }
        }
        self.out.pop_front()
    }

    /// Does all work that is due: threads that were woken continue, and sockets without a
    /// thread are served.
    pub(crate) fn run_until_idle(&mut self) {
        for _ in 0..ROUNDS {
            let woke = self.time.look();
            let attended = self.stack.attend();
            let answered = self.answer_as_kernel();
            if !woke && !attended && !answered {
                return;
            }
        }
    }

    /// Sends a reset for packets that the driver passed to the kernel, if nothing
    /// listens.
    fn answer_as_kernel(&mut self) -> bool {
        let frames = self.link.take_kernel(Side::A);
        for frame in &frames {
            let datagram = frame.bytes.get(HEADER_LEN..).unwrap_or_default();
            self.link_reset(datagram);
        }
        !frames.is_empty()
    }

    fn link_reset(&self, datagram: &[u8]) {
        let (offset, protocol) = match datagram {
            [first, ..] if first >> 4 == 4 => (usize::from(first & 15) * 4, datagram.get(9)),
            _ => (40, datagram.get(6)),
        };
        if protocol.copied().map(Protocol) != Some(Protocol::TCP) {
            return;
        }
        let options = InputOptions {
            checksum_offload_possible: true,
            verified: false,
        };
        let Ok(segment) = tcp::input(datagram, offset, &options) else {
            return;
        };
        let link = tcp::Link {
            source_mac: OWN_MAC,
            destination_mac: PEER_MAC,
            hop_limit: 64,
            checksum: Checksum::Software,
        };
        let mut frame = vec![0; 128];
        let reset = tcp::reset_for(&segment);
        let length =
            reset.and_then(|reset| tcp::output(&mut frame, &link, &segment.flow, &reset).ok());
        if let Some(length) = length {
            frame.truncate(length);
            self.link.send(Side::A, &frame);
        }
    }
}

/// The Ethernet frame of an IP datagram from the script's end.
fn frame(datagram: &[u8]) -> Option<Vec<u8>> {
    let ethertype: u16 = match datagram.first()? >> 4 {
        4 => 0x0800,
        6 => 0x86dd,
        _ => return None,
    };
    let mut frame = Vec::with_capacity(HEADER_LEN + datagram.len());
    frame.extend_from_slice(&OWN_MAC.0);
    frame.extend_from_slice(&PEER_MAC.0);
    frame.extend_from_slice(&ethertype.to_be_bytes());
    frame.extend_from_slice(datagram);
    Some(frame)
}

impl Drop for Host {
    fn drop(&mut self) {
        self.time.end();
    }
}
