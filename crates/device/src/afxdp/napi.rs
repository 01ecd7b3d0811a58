//! Drives a driver's NAPI poll from the receiver's own context.
//!
//! An AF_XDP socket can itself be busy-polled where the kernel gives it its queue's NAPI
//! id. Before Linux 6.14 that happens with the first frame, for drivers that register the
//! id with the queue; since then in zero-copy mode. Elsewhere the socket has no id, and
//! `SO_BUSY_POLL` on it silently does nothing. One method works everywhere. A kernel UDP
//! socket that has once received a frame of this queue knows the id. Each nonblocking
//! `recv` on it runs the driver's poll, the XDP program and XSK delivery in the caller's
//! context.
//!
//! NAPI id discovery: the driver program sends such a *helper* one owned datagram, the
//! *probe* (bpf/napi.h), or a TCP segment rewritten into one. The probe is read back
//! here, not lost. A helper accepts nothing else: its filter admits only the probe's
//! source port, which is drawn at random. Once the id is known it admits nothing. A
//! socket keeps the first id it saw. A driver that recreates its NAPI (on interface down
//! and up, on a ring change) therefore needs new helpers.
//!
//! A probe passes the kernel's firewall and source validation, which may drop it. So
//! these are tested first with a datagram of no value (`probe`). If they drop it,
//! discovery is *blocked*, the stack warns, and the test is repeated. A probe that still
//! does not arrive in time counts as lost. After some losses, at most one datagram in a
//! thousand is risked. Only bare acknowledgments serve as TCP probes, since their loss
//! costs nothing.
//!
//! While discovery is blocked the AF_XDP socket itself is polled where it has the id.
//! Otherwise it is not, since sending would poll it, too.
//!
//! There are two helpers per queue. One prefers busy polling: after its poll the device
//! stays masked and only a timer may wake it. That keeps a receiver alive under overload.
//! The other does not: its poll ends by unmasking the interrupt, as a receiver that is
//! about to sleep needs. With `napi_defer_hard_irqs` at 1 the switch costs no extra call.
//! Until the second one has its id the first does both, at the price of that call. A peer
//! that only sends makes no bare acknowledgment after its first. A device that no helper
//! can unmask keeps frames for the whole time of its timer.
//!
//! A private application's frames arrive over a virtual pair. While it may poll the
//! device ([`Owner::lets_poll`]) it polls the device's NAPI and no other. The softirq
//! after the poll receives the redirected frames from the pair. It runs in the caller's
//! context, before the call returns.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidewall_sys::Received;

mod polled;

pub(super) use polled::no_helpers;
use polled::{HALF_MAX, Helper, OwnPoll, napi_id, receive, set_budget};
pub use polled::{HELPER_PORTS, helpers};

use super::socket::poke_receive;
use super::{Owner, probe};
use crate::demux::DriverCounters;
use crate::demux::layout::{Counter, Protocol};
use crate::forked::Unshared;
use crate::queue::{Interrupt, KernelDelivered, NapiState, POLL_MAX};

/// A probe that has not reached its helper by then is lost. It arrives in the driver's
/// own poll, or soon after where another CPU handles it (RPS).
const PROBE_TIME: Duration = Duration::from_millis(100);
/// This many consecutive losses are no coincidence.
const PROBES_LOST: u32 = 3;
/// The first and the longest pause before the next probe after that.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Owned frames that must also have arrived since.
const FRAMES_BETWEEN_PROBES: u64 = 1_000;
/// Time after which an owner that did not answer is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Consecutive polls that found nothing while the device received, after which their NAPI
/// id is doubted.
const DOUBT: u32 = 32;

/// The known state of the kernel's input path.
#[derive(Debug, Default)]
enum Input {
    /// The next owned frame serves as the pattern of a test.
    #[default]
    Unknown,
    /// A test datagram has been in flight since then.
    Tested(Instant),
    /// The input path admits probes.
    Open,
}

/// The probe in flight.
#[derive(Debug, Default)]
struct Probe {
    input: Input,
    /// Time at which it was first looked for after the driver had sent it.
    sent: Option<Instant>,
    /// Consecutive losses.
    lost: u32,
    /// No probe before this time, nor before this many owned frames.
    pause: Option<(Instant, u64)>,
}

/// Random, so that it cannot be guessed, and never zero, which is not a port.
fn any_port(other: u16) -> u16 {
    (RandomState::new().hash_one(other) as u16).max(1)
}

/// The poll of one queue.
pub(crate) struct Napi {
    owner: Arc<dyn Owner>,
    counters: DriverCounters,
    queue: u32,
    masked: Helper,
    armed: Helper,
    own: OwnPoll,
    probe: Probe,
    /// Frames of each of the two polls that the kernel makes of one.
    half: u32,
    /// The driver's count of frames after the last poll.
    frames: u64,
    /// Consecutive polls that found nothing although the count had moved.
    idle: u32,
    doubt: bool,
    /// Another process polls the device.
    by_others: bool,
    /// Time at which to ask the owner again for sockets that it did not make.
    ask_at: Option<Instant>,
}

impl Napi {
    /// Polls for what `socket` receives, by [`helpers`].
    ///
    /// # Errors
    /// Those of attaching a filter to them.
    pub(crate) fn new(
        owner: Arc<dyn Owner>,
        counters: DriverCounters,
        queue: u32,
        socket: Arc<Unshared<OwnedFd>>,
        helpers: [UdpSocket; 2],
    ) -> io::Result<Self> {
        let [masked, armed] = helpers;
        Ok(Napi {
            by_others: !owner.lets_poll(),
            ask_at: None,
            counters,
            owner,
            queue,
            masked: Helper::new(masked, true)?,
            armed: Helper::new(armed, false)?,
            own: OwnPoll {
                socket,
                id: 0,
                prefer: false,
                outdated: false,
            },
            probe: Probe::default(),
            half: HALF_MAX,
            frames: 0,
            idle: 0,
            doubt: false,
        })
    }

    /// Forgets the ids and restarts discovery with other sockets.
    ///
    /// # Errors
    /// Those of making sockets; the old ones are then kept.
    pub(crate) fn rediscover(&mut self) -> io::Result<()> {
        let [masked, armed] = self.owner.helpers()?;
        (self.masked, self.armed) = (Helper::new(masked, true)?, Helper::new(armed, false)?);
        let half = std::mem::replace(&mut self.half, HALF_MAX);
        // Keep the budget, where it may be set.
        let _ = self.set_budget(half * 2);
        self.own.end();
        self.own.outdated = napi_id(self.own.socket.as_fd()) != 0;
        self.probe = Probe::default();
        (self.idle, self.doubt) = (0, false);
        Ok(())
    }

    /// Starts or stops polling, as the owner permits.
    #[inline]
    pub(crate) fn follow_owner(&mut self) {
        if self.owner.lets_poll() == self.by_others {
            self.change_poller();
        }
    }

    #[cold]
    fn change_poller(&mut self) {
        if !self.by_others {
            self.by_others = true;
            (self.masked.id, self.armed.id) = (0, 0);
            self.probe = Probe::default();
            self.own.end();
            return;
        }
        let now = Instant::now();
        if self.ask_at.is_some_and(|at| now < at) {
            return;
        }
        // The old ones may have lost their preference.
        match self.rediscover() {
            Ok(()) => (self.by_others, self.ask_at) = (false, None),
            Err(_) => self.ask_at = Some(now + ASK_AGAIN),
        }
    }

    pub(crate) fn state(&self) -> NapiState {
        NapiState {
            polled_by_others: self.by_others,
            ids: [&self.masked, &self.armed].map(|helper| match helper.id {
                0 => self.own.id,
                id => id,
            }),
            blocked: self.probe.lost >= PROBES_LOST && self.own.id == 0,
        }
    }

    pub(crate) fn take_doubt(&mut self) -> bool {
        std::mem::take(&mut self.doubt)
    }

    /// The helper whose id is to be found.
    fn seeking(&mut self) -> Option<&mut Helper> {
        [&mut self.masked, &mut self.armed]
            .into_iter()
            .find(|helper| helper.id == 0)
            .filter(|_| !self.by_others)
    }

    /// Whether [`Napi::test_input`] wants to see an owned frame.
    #[inline]
    pub(crate) fn wants_frame(&self) -> bool {
        matches!(self.probe.input, Input::Unknown) && self.probe.pause.is_none() && !self.by_others
    }

    /// Tests whether the kernel admits frames like `frame`.
    pub(crate) fn test_input(&mut self, frame: &[u8]) {
        let Some(helper) = self.seeking() else {
            self.probe.input = Input::Open;
            return;
        };
        let source = any_port(helper.port);
        let Some(datagram) = probe::datagram(frame, source, helper.port) else {
            return;
        };
        let sent = helper
            .take_from(source)
            .and_then(|()| self.owner.receive_in_kernel(&datagram));
        match sent {
            Ok(()) => self.probe.input = Input::Tested(Instant::now()),
            // Probes are then sent untested.
            Err(_) => self.open(),
        }
    }

    /// Marks the input path as open to probes.
    fn open(&mut self) {
        self.probe.input = Input::Open;
        // A socket that cannot be filtered now may be later. An owner busy with another
        // thread's request may answer later.
        if self.ask().is_err() {
            self.probe.input = Input::Unknown;
            self.probe.pause = Some((Instant::now() + ASK_AGAIN, 0));
        }
    }

    /// Asks the driver program for a probe.
    fn ask(&mut self) -> io::Result<()> {
        self.probe.sent = None;
        let Some(helper) = self.seeking() else {
            self.own.end();
            return Ok(());
        };
        let source = any_port(helper.port);
        helper.take_from(source)?;
        let port = helper.port;
        self.owner.probe_napi(self.queue, port, source)
    }

    /// Polls once. The kernel makes two polls of it, the second when it leaves busy
    /// polling.
    pub(crate) fn poll(&mut self, interrupt: Interrupt) -> io::Result<()> {
        let masked = interrupt == Interrupt::Masked;
        let socket = if !masked && self.armed.id != 0 {
            self.armed.socket.as_fd()
        } else if self.masked.id != 0 && (masked || !self.masked.prefer || self.masked.may_prefer())
        {
            self.masked.prefer(masked)?;
            self.masked.socket.as_fd()
        } else if self.own.id != 0 {
            self.own.prefer(masked)?;
            self.own.socket.as_fd()
        } else {
            // Frames arrive by interrupt until an id is known.
            return Ok(());
        };
        let frames = || self.counters.counter(Counter::Frames);
        let before = frames();
        poke_receive(socket)?;
        let after = frames();
        if after != before {
            self.idle = 0;
        } else if before != self.frames {
            self.idle += 1;
            if self.idle >= DOUBT {
                (self.idle, self.doubt) = (0, true);
            }
        }
        self.frames = after;
        Ok(())
    }

    /// Sets how many frames one poll may take from the device.
    pub(crate) fn set_budget(&mut self, frames: u32) -> io::Result<()> {
        if !(1..=POLL_MAX).contains(&frames) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let half = frames.div_ceil(2);
        if half != self.half {
            set_budget(self.masked.socket.as_fd(), half as i32)?;
            set_budget(self.armed.socket.as_fd(), half as i32)?;
            if self.own.id != 0 {
                set_budget(self.own.socket.as_fd(), half as i32)?;
            }
            self.half = half;
        }
        Ok(())
    }

    /// The descriptors that become readable when a probe arrives.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        [&self.masked, &self.armed]
            .into_iter()
            .find(|helper| helper.id == 0 && !self.by_others)
            .map(|helper| helper.socket.as_raw_fd())
            .into_iter()
    }

    /// Reads the probe if it has arrived, and requests the next.
    pub(crate) fn take_probe(&mut self, payload: &mut Vec<u8>) -> Option<KernelDelivered> {
        self.seeking()?;
        if let Some((pause, frames)) = self.probe.pause {
            if self.owned_frames() >= frames && Instant::now() >= pause {
                self.probe.pause = None;
            }
            return None;
        }
        match self.probe.input {
            Input::Unknown => return None,
            Input::Tested(sent) => {
                let helper = self.seeking()?;
                let fd = helper.socket.as_fd();
                if receive(fd, &mut []).is_ok() {
                    self.open();
                } else if sent.elapsed() >= PROBE_TIME {
                    // A probe would not arrive either.
                    self.pause(0);
                }
                return None;
            }
            Input::Open => {}
        }
        let was = self.owner.napi_probe(self.queue)?;
        payload.resize(u16::MAX as usize, 0);
        let helper = self.seeking()?;
        let received = receive(helper.socket.as_fd(), payload);
        let received = received.ok().and_then(|it| Some((it, it.source?)));
        let Some((
            Received {
                length, ancillary, ..
            },
            source,
        )) = received
        else {
            self.miss_probe(Instant::now());
            return None;
        };
        payload.truncate(length);
        helper.id = napi_id(helper.socket.as_fd());
        if helper.id != 0 {
            // It is polled from now on, filtered or not.
            let _ = helper.take_nothing();
            self.probe.lost = 0;
        }
        self.open();
        let destination = ancillary
            .destination
            .unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        let delivered = KernelDelivered {
            protocol: if was.sequence.is_some() {
                Protocol::Tcp
            } else {
                Protocol::Udp
            },
            source: SocketAddr::new(source.ip().to_canonical(), was.source),
            destination: SocketAddr::new(destination.to_canonical(), was.port),
            neighbour: was.neighbour,
        };
        if let Some(sequence) = was.sequence {
            // The eight bytes that the UDP header occupied.
            let mut header = [0; 8];
            header[..2].copy_from_slice(&was.source.to_be_bytes());
            header[2..4].copy_from_slice(&was.port.to_be_bytes());
            header[4..].copy_from_slice(&sequence.to_be_bytes());
            payload.splice(0..0, header);
        }
        Some(delivered)
    }

    /// Counts a probe that the driver has sent but that is not here.
    fn miss_probe(&mut self, now: Instant) {
        let sent = *self.probe.sent.get_or_insert(now);
        if now.duration_since(sent) < PROBE_TIME {
            return;
        }
        self.pause(FRAMES_BETWEEN_PROBES);
    }

    /// Delays the next probe and the next test after a loss. After several losses, also
    /// waits for `frames` more owned frames.
    fn pause(&mut self, frames: u64) {
        self.probe.lost = self.probe.lost.saturating_add(1);
        let (pause, frames) = match self.probe.lost.checked_sub(PROBES_LOST) {
            None => (Duration::ZERO, 0),
            Some(times) => (PAUSES[1].min(PAUSES[0] * (1 << times.min(6))), frames),
        };
        if let Some(helper) = self.seeking() {
            // A late probe would wake a sleeper again and again.
            let _ = helper.drain();
        }
        self.probe.input = Input::Unknown;
        self.probe.pause = Some((Instant::now() + pause, self.owned_frames() + frames));
        if self.probe.lost >= PROBES_LOST {
            // Without it, frames come by interrupt.
            let _ = self.own.begin(self.half as i32);
        }
    }

    fn owned_frames(&self) -> u64 {
        let count = |counter| self.counters.counter(counter);
        count(Counter::Channel) + count(Counter::Raw)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;
    use crate::demux::{NapiProbe, Tables};
    use crate::queue::InterruptModeration;

    /// An owner that is busy with another thread's request when first asked for a probe.
    #[derive(Default)]
    struct Busy(AtomicU32);

    impl Owner for Busy {
        fn set_moderation(&self, _: InterruptModeration) -> bool {
            false
        }

        fn set_deferral(&self, _: bool) -> bool {
            true
        }

        fn probe_napi(&self, _: u32, _: u16, _: u16) -> io::Result<()> {
            match self.0.fetch_add(1, Relaxed) {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                _ => Ok(()),
            }
        }

        fn napi_probe(&self, _: u32) -> Option<NapiProbe> {
            None
        }

        fn receive_in_kernel(&self, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn helpers(&self) -> io::Result<[UdpSocket; 2]> {
            sockets()
        }
    }

    fn sockets() -> io::Result<[UdpSocket; 2]> {
        let socket = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        Ok([socket()?, socket()?])
    }

    /// An IPv4 datagram without content, 192.0.2.2 to 192.0.2.1.
    const FRAME: [u8; 34] = [
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, // Ethernet
        0x45, 0, 0, 20, 0, 1, 0, 0, 64, 17, 0xf6, 0xd5, 192, 0, 2, 2, 192, 0, 2, 1,
    ];

    #[test]
    fn a_probe_that_could_not_be_asked_for_is_asked_for_again() {
        let owner = Arc::new(Busy::default());
        let counters = Tables::in_memory().unwrap().trusted.counters(0);
        let [own, _] = sockets().unwrap();
        let own = Arc::new(Unshared::new(own.into()).unwrap());
        let mut napi = Napi::new(owner.clone(), counters, 0, own, sockets().unwrap()).unwrap();
        napi.test_input(&FRAME);
        let asked = || owner.0.load(Relaxed);
        assert_eq!(asked(), 1);
        let end = Instant::now() + Duration::from_secs(5);
        while asked() == 1 && Instant::now() < end {
            if napi.wants_frame() {
                napi.test_input(&FRAME);
            }
            assert_eq!(napi.take_probe(&mut Vec::new()), None);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(asked(), 2);
    }
}
