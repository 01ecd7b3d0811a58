//! Sending on a circuit.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidewall_wire::atm::oam::Loopback;
use tidewall_wire::atm::pseudowire::{CircuitCell, FrameHeader};
use tidewall_wire::atm::{CELL_PAYLOAD_LEN, PayloadType, aal5};

#[cfg(doc)]
use super::AtmOptions;
use super::circuit::CircuitInner;
use super::{AtmSocket, errno};
use crate::ip::transmit::Transmitter;
use crate::lock::lock;
use crate::readiness::Events;
use crate::receiver::QueueHandle;
use crate::stack::Core;

/// How long a blocking send waits for a frame.
const FRAME_TIMEOUT: Duration = Duration::from_millis(100);
/// How long it waits for the next hop's link address: the kernel asks three times, a second
/// apart.
pub(super) const NEIGHBOUR_TIMEOUT: Duration = Duration::from_secs(3);
/// How often it looks for that.
pub(super) const NEIGHBOUR_LOOK: Duration = Duration::from_millis(5);

impl AtmSocket {
    /// Sends one payload. Of an empty one nothing is sent, as by Linux.
    ///
    /// # Errors
    /// EMSGSIZE over [`AtmOptions::send_max`] bytes, and where a payload needs more frames
    /// than a queue sends from; ENETUNREACH where the interface does
    /// not lead to the next hop, EHOSTUNREACH where that does not answer; EAGAIN when
    /// nonblocking, and no frame is free or the next hop is still looked for; ENOBUFS when no
    /// frame is free for 100 ms; ENODEV once the interface is no more; of a call ENOTCONN
    /// before it is connected and EPIPE once it is released. On a call that was just
    /// accepted it waits until the caller has acknowledged that; of a constant rate until the
    /// cells before have ended at that rate, or EAGAIN.
    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.send_at(payload, false)
    }

    /// As [`AtmSocket::send`]. `at_once`: does not wait, whatever the socket is set to.
    pub(crate) fn send_at(&self, payload: &[u8], at_once: bool) -> io::Result<usize> {
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

    /// Sends what was queued.
    ///
    /// # Errors
    /// ENETDOWN and what else the device reports.
    pub fn flush(&self) -> io::Result<()> {
        self.inner.flush(self.stack.here()?)
    }

    fn send_payload(&self, payload: &[u8], at_once: bool) -> io::Result<usize> {
        if payload.is_empty() {
            return Ok(0);
        }
        let core = self.stack.here()?;
        core.netdev.check()?;
        let label = self.sending_label(core, at_once)?;
        if payload.len() > self.inner.send_max.load(Ordering::Relaxed) {
            return Err(errno(libc::EMSGSIZE));
        }
        self.await_rate(core, payload.len(), at_once)?;
        let header = FrameHeader {
            low_priority: self.inner.low_priority.load(Ordering::Relaxed),
            ..FrameHeader::whole(label)
        };
        let began = Instant::now();
        loop {
            let sent = core.atm.neighbour(core).and_then(|neighbour| {
                let queue = |transmitter: &mut Transmitter| {
                    transmitter.queue_pdu(neighbour, &header, payload)
                };
                self.inner.transmit(core, queue)
            });
            let Err(error) = sent else {
                return Ok(payload.len());
            };
            let (limit, at_last) = match error.raw_os_error() {
                Some(libc::EAGAIN) => (NEIGHBOUR_TIMEOUT, libc::EHOSTUNREACH),
                Some(libc::ENOBUFS) => (FRAME_TIMEOUT, libc::ENOBUFS),
                _ => return Err(error),
            };
            if at_once || self.is_nonblocking() {
                // Nobody says when that ends, which is soon: an edge-triggered caller may
                // try again.
                self.inner
                    .wait_queue
                    .notify_registrations(Events::SPACE_CAME);
                return Err(errno(libc::EAGAIN));
            }
            if began.elapsed() >= limit {
                return Err(errno(at_last));
            }
            match at_last {
                libc::ENOBUFS => std::thread::yield_now(),
                _ => std::thread::sleep(NEIGHBOUR_LOOK),
            }
        }
    }
}

impl AtmSocket {
    /// Waits until a payload may go at the circuit's rate, and takes its cells.
    fn await_rate(&self, core: &Core, length: usize, at_once: bool) -> io::Result<()> {
        let Some(bucket) = &self.inner.bucket else {
            return Ok(());
        };
        loop {
            let now = core.now();
            let next = {
                let mut bucket = lock(bucket);
                if bucket.next() <= now {
                    bucket.take(now, aal5::pdu_len(length) / CELL_PAYLOAD_LEN);
                    return Ok(());
                }
                bucket.next()
            };
            if at_once || self.is_nonblocking() {
                // As for a frame.
                let queue = &self.inner.wait_queue;
                queue.notify_registrations(Events::SPACE_CAME);
                return Err(errno(libc::EAGAIN));
            }
            // What was queued before is not to wait.
            self.inner.flush(core)?;
            let until = core.instant_now() + (next - now);
            core.receiver.sleep(core, &[], Some(until))?;
        }
    }
}

impl CircuitInner {
    fn transmit_queue<'a>(&self, core: &'a Core) -> io::Result<(usize, &'a QueueHandle)> {
        // Answers leave by the queue their questions came in on.
        let queue = self.last_queue.load(Ordering::Relaxed);
        let found = core.receiver.sending_queue(queue);
        found.ok_or_else(|| errno(libc::ENETDOWN))
    }

    pub(super) fn transmit<V>(
        &self,
        core: &Core,
        queue: impl FnOnce(&mut Transmitter) -> io::Result<V>,
    ) -> io::Result<V> {
        let (_, handle) = self.transmit_queue(core)?;
        queue(&mut lock(&handle.transmitter))
    }

    pub(super) fn flush(&self, core: &Core) -> io::Result<()> {
        let (number, handle) = self.transmit_queue(core)?;
        core.receiver.send_queue(core, number, handle)
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
        let cell = CircuitCell {
            label: self.place().ok_or_else(|| errno(libc::ENOTCONN))?.label,
            payload_type,
            low_priority: false,
            payload: &loopback.bytes(),
        };
        let neighbour = core.atm.neighbour(core)?;
        self.transmit(core, |transmitter| transmitter.queue_cell(neighbour, &cell))?;
        self.flush(core)
    }
}
