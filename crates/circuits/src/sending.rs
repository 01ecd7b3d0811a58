//! Sending on a circuit.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidewall_atm::rate::Bucket;
use tidewall_readiness::Events;
use tidewall_stack::core::Core;
use tidewall_stack::ip::transmit::Transmitter;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::receiver::QueueHandle;
use tidewall_wire::atm::oam::Loopback;
use tidewall_wire::atm::pseudowire::{CircuitCell, FrameHeader, Label};
use tidewall_wire::atm::{CELL_PAYLOAD_LEN, PayloadType, aal5};
use tidewall_wire::ethernet::MacAddress;

#[cfg(doc)]
use super::AtmOptions;
use super::call::{Progress, Until};
use super::circuit::CircuitInner;
use super::{AtmSocket, errno};
use crate::Atm;

/// How long a blocking send waits for a frame.
const FRAME_TIMEOUT: Duration = Duration::from_millis(100);
/// How long it waits for the next hop's link address: the kernel asks three times, a second
/// apart.
pub(super) const NEIGHBOUR_TIMEOUT: Duration = Duration::from_secs(3);
/// How often it looks for that.
pub(super) const NEIGHBOUR_LOOK: Duration = Duration::from_millis(5);

impl AtmSocket {
    /// Sends one payload. An empty one is not sent, as by Linux.
    ///
    /// # Errors
    /// - EMSGSIZE over [`AtmOptions::send_max`] bytes, and for a payload that needs more
    ///   frames than a queue sends from.
    /// - ENETUNREACH if the interface does not lead to the next hop.
    /// - EHOSTUNREACH if the next hop does not answer.
    /// - EAGAIN when nonblocking, if no frame is free or the next hop is being resolved.
    /// - ENOBUFS when no frame is free for 100 ms.
    /// - ENODEV once the interface is gone.
    /// - For a call, ENOTCONN before it is connected and EPIPE once it is released.
    ///
    /// On a call that was just accepted, it waits until the caller has acknowledged that. At
    /// a constant rate, it waits until the earlier cells have ended at that rate. When
    /// nonblocking, it returns EAGAIN instead.
    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.send_at(payload, false)
    }

    /// As [`AtmSocket::send`]. `at_once`: does not wait, whatever the socket is set to.
    pub fn send_at(&self, payload: &[u8], at_once: bool) -> io::Result<usize> {
        self.take_pending()?;
        let sent = self.send_payload(payload, at_once)?;
        self.flush()?;
        Ok(sent)
    }

    /// Queues a payload; [`AtmSocket::flush`] sends everything queued with one system call.
    ///
    /// # Errors
    /// As [`AtmSocket::send`].
    pub fn queue(&self, payload: &[u8]) -> io::Result<()> {
        self.send_payload(payload, false).map(drop)
    }

    /// Sends the queued payloads.
    ///
    /// # Errors
    /// ENETDOWN and other device errors.
    pub fn flush(&self) -> io::Result<()> {
        self.inner.flush(self.stack.here()?)
    }

    fn send_payload(&self, payload: &[u8], at_once: bool) -> io::Result<usize> {
        if payload.is_empty() {
            return Ok(0);
        }
        let core = self.stack.here()?;
        core.netdev.check()?;
        let nonblocking = at_once || self.is_nonblocking();
        self.await_connected(core, nonblocking, None)?;
        if payload.len() > self.inner.send_max.load(Ordering::Relaxed) {
            return Err(errno(libc::EMSGSIZE));
        }
        if let Some(local) = self.inner.local.get() {
            self.inner.send_local(local, payload)?;
            return Ok(payload.len());
        }
        let mut began = Instant::now();
        loop {
            if self.await_rate(core, nonblocking)? {
                began = Instant::now();
            }
            let sent = (Atm::of(core).neighbour(core))
                .and_then(|neighbour| self.inner.send_at_rate(core, neighbour, payload));
            let error = match sent {
                Ok(true) => {
                    if nonblocking && let Some(rate) = &self.inner.rate {
                        rate.hold_back(core);
                    }
                    return Ok(payload.len());
                }
                // Another thread's payload went before.
                Ok(false) => continue,
                Err(error) => error,
            };
            let (limit, at_last) = match error.raw_os_error() {
                Some(libc::EAGAIN) => (NEIGHBOUR_TIMEOUT, libc::EHOSTUNREACH),
                Some(libc::ENOBUFS) => (FRAME_TIMEOUT, libc::ENOBUFS),
                _ => return Err(error),
            };
            if nonblocking {
                // No event reports when that ends, which is soon: an edge-triggered caller
                // may try again.
                self.inner
                    .wait_queue
                    .notify_registrations(Events::SPACE_CAME);
                return Err(errno(libc::EAGAIN));
            }
            if began.elapsed() >= limit {
                return Err(errno(at_last));
            }
            match at_last {
                libc::ENOBUFS => tidewall_sys::priority::yield_processor(),
                _ => std::thread::sleep(NEIGHBOUR_LOOK),
            }
        }
    }
}

impl AtmSocket {
    /// Waits until a payload may go at the circuit's rate. True where it had to.
    ///
    /// # Errors
    /// EAGAIN for `nonblocking`, EPIPE as soon as the call is released, EINTR, ENODEV.
    fn await_rate(&self, core: &Core, nonblocking: bool) -> io::Result<bool> {
        let inner = &*self.inner;
        let Some(rate) = &inner.rate else {
            return Ok(false);
        };
        let mut waited = false;
        loop {
            let now = core.now();
            let next = lock(&rate.pace).bucket.next();
            if next <= now {
                return Ok(waited);
            }
            if nonblocking {
                rate.hold_back(core);
                return Err(errno(libc::EAGAIN));
            }
            waited = true;
            // Earlier queued payloads must not wait.
            inner.flush(core)?;
            let until = core.clock.instant_now() + (next - now);
            let not = Progress::Connected;
            core.receiver
                .sleep(core, &[&Until { inner, not }], Some(until))?;
            self.await_connected(core, nonblocking, None)?;
        }
    }
}

/// A constant rate of what is sent, and who waits for it without sleeping.
pub(super) struct Rate {
    /// Locked while a payload is queued: of two threads one is too early.
    pace: Mutex<Pace, rank::CircuitRate>,
    /// The circuit is not writable until its timer has expired.
    holds_back: AtomicBool,
}

struct Pace {
    bucket: Bucket,
    /// `None` once the circuit is closed.
    timer: Option<u32>,
}

impl Rate {
    /// `rate` is in cells per second.
    pub(super) fn new(rate: u32, timer: Option<u32>) -> Self {
        let bucket = Bucket::new(rate, Duration::ZERO);
        Rate {
            pace: Mutex::new(Pace { bucket, timer }),
            holds_back: AtomicBool::new(false),
        }
    }

    /// The circuit is not writable until the next payload may go.
    fn hold_back(&self, core: &Core) {
        let pace = lock(&self.pace);
        if let Some(timer) = pace.timer {
            self.holds_back.store(true, Ordering::Relaxed);
            core.arm(timer, pace.bucket.next());
        }
    }

    pub(super) fn holds_back(&self) -> bool {
        self.holds_back.load(Ordering::Relaxed)
    }

    /// Its timer has expired. True where a payload may go; otherwise others went before, and
    /// the timer is armed again.
    pub(super) fn expired(&self, core: &Core) -> bool {
        let pace = lock(&self.pace);
        let due = pace.bucket.next() <= core.now();
        match pace.timer {
            Some(timer) if !due => core.arm(timer, pace.bucket.next()),
            _ => self.holds_back.store(false, Ordering::Relaxed),
        }
        due
    }

    /// Gives its timer back.
    pub(super) fn close(&self, core: &Core) {
        if let Some(timer) = lock(&self.pace).timer.take() {
            core.timers.remove(timer);
        }
    }
}

impl CircuitInner {
    fn transmit_queue<'a>(&self, core: &'a Core) -> io::Result<(usize, &'a QueueHandle)> {
        // Answers leave by the queue on which their requests arrived.
        let queue = self.last_queue.load(Ordering::Relaxed);
        let found = core.receiver.sending_queue(queue);
        found.ok_or_else(|| errno(libc::ENETDOWN))
    }

    /// Queues something behind the label of its place.
    ///
    /// # Errors
    /// ENOTCONN before it has a place, EPIPE once that is closed; ENETDOWN, and those of
    /// `queue`.
    pub(super) fn transmit<V>(
        &self,
        core: &Core,
        queue: impl FnOnce(&mut Transmitter, Label) -> io::Result<V>,
    ) -> io::Result<V> {
        let (_, handle) = self.transmit_queue(core)?;
        let mut transmitter = lock(&handle.transmitter);
        let place = self.open_place_now().ok_or_else(|| match self.place() {
            Some(_) => errno(libc::EPIPE),
            None => errno(libc::ENOTCONN),
        })?;
        queue(&mut transmitter, place.label)
    }

    /// Queues a payload if its rate allows that now, which only one that is queued is counted
    /// for. False where it does not.
    fn send_at_rate(&self, core: &Core, neighbour: MacAddress, payload: &[u8]) -> io::Result<bool> {
        let mut pace = self.rate.as_ref().map(|rate| lock(&rate.pace));
        let now = core.now();
        if (pace.as_ref()).is_some_and(|pace| pace.bucket.next() > now) {
            return Ok(false);
        }
        self.transmit(core, |transmitter, label| {
            let header = FrameHeader {
                low_priority: self.low_priority.load(Ordering::Relaxed),
                ..FrameHeader::whole(label)
            };
            transmitter.queue_pdu(neighbour, &header, payload)
        })?;
        if let Some(pace) = &mut pace {
            let cells = aal5::pdu_len(payload.len()) / CELL_PAYLOAD_LEN;
            pace.bucket.take(now, cells);
        }
        Ok(true)
    }

    pub(super) fn flush(&self, core: &Core) -> io::Result<()> {
        let (number, handle) = self.transmit_queue(core)?;
        core.send_queue(number, handle)
    }

    /// Sends a loopback cell on its way out. Returns its tag.
    pub(super) fn send_loopback(&self, core: &Core) -> io::Result<u32> {
        let tag = self
            .last_tag
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        let request = Loopback::request(tag);
        let began = Instant::now();
        loop {
            match self.send_oam(core, PayloadType::OAM_END_TO_END, &request) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    if began.elapsed() >= NEIGHBOUR_TIMEOUT {
                        return Err(errno(libc::EHOSTUNREACH));
                    }
                    std::thread::sleep(NEIGHBOUR_LOOK);
                }
                sent => return sent.map(|()| tag),
            }
        }
    }

    /// Sends a loopback cell.
    pub(super) fn send_oam(
        &self,
        core: &Core,
        payload_type: PayloadType,
        loopback: &Loopback,
    ) -> io::Result<()> {
        let neighbour = Atm::of(core).neighbour(core)?;
        self.transmit(core, |transmitter, label| {
            let cell = CircuitCell {
                label,
                payload_type,
                low_priority: false,
                payload: &loopback.bytes(),
            };
            transmitter.queue_cell(neighbour, &cell)
        })?;
        self.flush(core)
    }
}
