//! IP over ATM: a kernel tun interface whose packets travel over circuits.
//!
//! ```text
//!  kernel's IP ─► tun ─► neighbour's circuit ─► LLC/SNAP, AAL5 ─► frames
//!  kernel's IP ◄─ tun ◄─────────────────────── LLC/SNAP, AAL5 ◄── frames
//!                       InATMARP, ATMARP ◄───────┘
//!                           └─► calls
//! ```
//!
//! One thread does everything, and waits for the tun and for all circuits at once. A
//! packet is dropped if the device rejects it for longer than a burst lasts, as on any
//! link. TCP segments of up to 64 KiB cross the tun without being split, in either
//! direction.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidewall::descriptor::Flags;
use tidewall::readiness::{Events, PollFd};
use tidewall::{
    AtmListener, AtmOptions, AtmSocket, CallOptions, Circuit, Descriptors, Nsap, OpenFile, Stack,
};
use tidewall_atm::ip::segments::{Joiner, cut};
use tidewall_atm::ip::{Action, Config, HEADER_LEN, Subnetwork, Way};
use tidewall_sys::interface;
use tidewall_wire::atm::llc;
use tidewall_wire::ethernet::EtherType;
use tidewall_wire::{ipv4, virtio_net};

/// Packets from one side before the other side's turn.
const BATCH: usize = 64;
/// Frames that may wait for a circuit: enough for some of a kernel's longest segments.
const RECEIVE_LIMIT: u32 = 1024;
/// Longest time that packets wait for a free frame, until one is sent.
const FRAME_TIMEOUT: Duration = Duration::from_millis(10);
/// Calls that wait to be accepted.
const BACKLOG: usize = 64;
/// Most packets that wait for circuits being set up, or for the next hop's link address:
/// in total and per destination.
const WAITING_MAX: usize = 64;
const WAITING_EACH: usize = 3;
/// Timeout of the address look-up, and its interval: the kernel sends three requests, a
/// second apart.
const NEXT_HOP_TIMEOUT: Duration = Duration::from_secs(3);
const NEXT_HOP_LOOK: Duration = Duration::from_millis(5);

/// Packet counts beyond those of [`Subnetwork::counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sent over circuits.
    pub sent: u64,
    /// Passed to the kernel.
    pub delivered: u64,
    /// From the kernel, and not IPv4, or long and not TCP.
    pub not_ipv4: u64,
    /// Not sent: no frame was free, or the next hop's link address was not found.
    pub not_sent: u64,
    /// The kernel rejected them.
    pub refused: u64,
    /// Not sent: the circuit for which they waited was not set up, or too many waited.
    pub not_reached: u64,
    /// Calls that were made, answered or not, and calls received.
    pub calls: u64,
}

/// A served interface.
pub struct IpOverAtm {
    stack: Stack,
    subnetwork: Subnetwork,
    descriptors: Descriptors,
    ends: BTreeMap<i32, End>,
    circuits: BTreeMap<Circuit, i32>,
    tun: File,
    /// The tun first, then the circuits' ends.
    list: Vec<PollFd>,
    buffer: Vec<u8>,
    joiner: Joiner,
    waiting: VecDeque<Waiting>,
    /// Some of it has a circuit.
    unsent: bool,
    /// The rest of [`FRAME_TIMEOUT`].
    left: Duration,
    began: Instant,
    counters: Counters,
}

/// A payload that cannot be sent yet.
struct Waiting {
    destination: Ipv4Addr,
    payload: Vec<u8>,
    since: Duration,
}

/// A socket.
#[derive(Clone)]
struct End {
    what: What,
    file: Arc<OpenFile>,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Listener,
    /// An outgoing call without an answer yet.
    Calling(Nsap),
    Circuit(Circuit),
}

impl IpOverAtm {
    /// Creates a tun interface of this name, with the configuration's address and prefix
    /// and an MTU of 68 to 65,527 bytes. It disappears with the value or the process,
    /// however that ends.
    ///
    /// # Errors
    /// EBUSY if there is such an interface; EPERM; ENOENT without /dev/net/tun; EINVAL.
    pub fn open(stack: &Stack, name: &str, mtu: u16, config: Config) -> io::Result<Self> {
        let tun = interface::open_tun(name)?;
        interface::take_offloads(&tun)?;
        interface::set_address(name, config.address, config.prefix_len)?;
        interface::set_up(name, mtu)?;
        let descriptors = Descriptors::new(stack, u32::from(u16::MAX));
        let polled = OwnedFd::from(tun.try_clone()?);
        let polled = descriptors.open(polled, Flags::NONE)?;
        Ok(IpOverAtm {
            stack: stack.clone(),
            subnetwork: Subnetwork::new(config),
            descriptors,
            ends: BTreeMap::new(),
            circuits: BTreeMap::new(),
            tun,
            list: vec![PollFd::new(polled, Events::IN)],
            buffer: vec![0; HEADER_LEN + usize::from(u16::MAX)],
            joiner: Joiner::default(),
            waiting: VecDeque::new(),
            unsent: false,
            left: FRAME_TIMEOUT,
            began: Instant::now(),
            counters: Counters::default(),
        })
    }

    /// Adds a permanent circuit of the stack, to this neighbour or to the one that
    /// InATMARP finds.
    ///
    /// # Errors
    /// Those of [`AtmSocket::bind`]; EINVAL, in words, for a neighbour that belongs to
    /// another circuit.
    pub fn add(&mut self, circuit: Circuit, neighbour: Option<Ipv4Addr>) -> io::Result<()> {
        let socket = AtmSocket::bind_with(&self.stack, circuit, options())?;
        let fd = self.open_end(socket, What::Circuit(circuit), Events::IN)?;
        let added = self
            .subnetwork
            .add(self.began.elapsed(), circuit, neighbour);
        if let Err(error) = added {
            self.close(fd);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        Ok(())
    }

    /// Removes a permanent circuit; its neighbour is forgotten.
    ///
    /// # Errors
    /// ENOENT if there is none.
    pub fn remove(&mut self, circuit: Circuit) -> io::Result<()> {
        let fd = self.circuits.get(&circuit).copied();
        let permanent = |fd: &i32| match self.ends.get(fd).map(|end| &*end.file) {
            Some(OpenFile::Circuit(socket)) => socket.local_number().is_none(),
            _ => false,
        };
        let fd = fd.filter(permanent).ok_or(io::ErrorKind::NotFound)?;
        self.close(fd);
        Ok(())
    }

    /// Accepts calls to this number, which is the stack's.
    ///
    /// # Errors
    /// Those of [`AtmListener::bind`].
    pub fn listen(&mut self, number: Nsap) -> io::Result<()> {
        let listener = AtmListener::bind(&self.stack, number, BACKLOG, options())?;
        self.open_end(listener, What::Listener, Events::IN)?;
        Ok(())
    }

    fn open_end(
        &mut self,
        file: impl Into<OpenFile>,
        what: What,
        events: Events,
    ) -> io::Result<i32> {
        let fd = self.descriptors.open(file, Flags::NONBLOCK)?;
        let file = self.descriptors.file(fd)?;
        if let OpenFile::Circuit(socket) = &*file {
            socket.set_receive_limit(RECEIVE_LIMIT)?;
        }
        self.ends.insert(fd, End { what, file });
        self.list.push(PollFd::new(fd, events));
        if let What::Circuit(circuit) = what {
            self.circuits.insert(circuit, fd);
        }
        Ok(fd)
    }

    /// Closes a socket; its call is released.
    fn close(&mut self, fd: i32) {
        let now = self.began.elapsed();
        let end = self.ends.remove(&fd);
        self.list.retain(|entry| entry.fd != fd);
        // It is open.
        let _ = self.descriptors.close(fd);
        match end.map(|end| end.what) {
            Some(What::Circuit(circuit)) => {
                self.circuits.remove(&circuit);
                self.subnetwork.ended(now, circuit);
            }
            Some(What::Calling(number)) => self.subnetwork.failed(now, number),
            _ => {}
        }
    }

    /// Returns the table of neighbours and routes.
    pub fn subnetwork(&mut self) -> &mut Subnetwork {
        &mut self.subnetwork
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Waits until something arrives or is due, no longer than `most`, and handles it.
    ///
    /// # Errors
    /// The error of the device or the tun; EINTR.
    pub fn turn(&mut self, most: Duration) -> io::Result<()> {
        let now = self.began.elapsed();
        let due = self.subnetwork.poll_timeout();
        let most = due.map_or(most, |due| most.min(due.saturating_sub(now)));
        let most = match self.unsent {
            true => most.min(NEXT_HOP_LOOK),
            false => most,
        };
        self.descriptors.poll(&mut self.list, Some(most))?;
        let ready = |entry: &&PollFd| entry.returned() != Events::default();
        let tun = self.list.first().is_some_and(|it| ready(&it));
        let ends = self.list.iter().skip(1).filter(ready);
        for fd in ends.map(|entry| entry.fd).collect::<Vec<_>>() {
            let Some(End { what, file }) = self.ends.get(&fd).cloned() else {
                continue;
            };
            match (what, &*file) {
                (What::Circuit(circuit), OpenFile::Circuit(socket)) => {
                    let ended = self.receive(circuit, socket)?;
                    if ended {
                        self.close(fd);
                    }
                }
                (What::Calling(number), OpenFile::Circuit(socket)) => {
                    self.answered(fd, number, socket);
                }
                (_, OpenFile::CircuitListener(listener)) => self.accept(listener)?,
                _ => {}
            }
        }
        self.send_waiting();
        if tun {
            self.send()?;
        }
        let now = self.began.elapsed();
        self.subnetwork.handle_timeout(now);
        while let Some(action) = self.subnetwork.poll_action() {
            self.act(now, action);
        }
        while let Some((circuit, payload)) = self.subnetwork.poll_transmit() {
            if let Some(OpenFile::Circuit(socket)) = self.file(circuit).as_deref() {
                // A lost request or answer is repeated.
                drop(socket.send(&payload));
            }
        }
        Ok(())
    }

    fn file(&self, circuit: Circuit) -> Option<Arc<OpenFile>> {
        let end = self.ends.get(self.circuits.get(&circuit)?)?;
        Some(end.file.clone())
    }

    fn act(&mut self, now: Duration, action: Action) {
        match action {
            Action::Call(number) => {
                self.counters.calls += 1;
                let call = CallOptions {
                    circuit: options(),
                    ..CallOptions::default()
                };
                let called = AtmSocket::connect_nonblocking(&self.stack, number, &call);
                let called = called
                    .and_then(|socket| self.open_end(socket, What::Calling(number), Events::OUT));
                if called.is_err() {
                    self.subnetwork.failed(now, number);
                }
            }
            Action::Release(circuit) => {
                if let Some(&fd) = self.circuits.get(&circuit) {
                    self.close(fd);
                }
            }
        }
    }

    /// Handles the answer to an outgoing call.
    fn answered(&mut self, fd: i32, number: Nsap, socket: &AtmSocket) {
        if socket.is_connecting() {
            return;
        }
        let answered = socket.finish_connect(None);
        let (Ok(()), Some(circuit)) = (answered, socket.circuit()) else {
            return self.close(fd);
        };
        if let Some(end) = self.ends.get_mut(&fd) {
            end.what = What::Circuit(circuit);
        }
        if let Some(entry) = self.list.iter_mut().find(|entry| entry.fd == fd) {
            *entry = PollFd::new(fd, Events::IN);
        }
        self.circuits.insert(circuit, fd);
        let now = self.began.elapsed();
        self.subnetwork.connected(now, number, circuit);
    }

    fn accept(&mut self, listener: &AtmListener) -> io::Result<()> {
        for _ in 0..BATCH {
            let (socket, caller) = match listener.accept() {
                Ok(accepted) => accepted,
                // A call that cannot be accepted is rejected; later ones may be accepted.
                Err(_) => return Ok(()),
            };
            self.counters.calls += 1;
            let Some(circuit) = socket.circuit() else {
                continue;
            };
            self.open_end(socket, What::Circuit(circuit), Events::IN)?;
            let now = self.began.elapsed();
            self.subnetwork.called(now, circuit, caller);
        }
        Ok(())
    }

    /// Passes payloads from a circuit to the kernel. Returns true at the end of a call.
    fn receive(&mut self, circuit: Circuit, socket: &AtmSocket) -> io::Result<bool> {
        let now = self.began.elapsed();
        let (subnetwork, counters) = (&mut self.subnetwork, &mut self.counters);
        let mut tun = &self.tun;
        let mut write = |header: &virtio_net::Header, packet: &[u8], packets: u32| {
            let header = header.bytes();
            let parts = [IoSlice::new(&header), IoSlice::new(packet)];
            match tun.write_vectored(&parts) {
                Ok(written) if written > packet.len() => counters.delivered += u64::from(packets),
                _ => counters.refused += u64::from(packets),
            }
        };
        let joiner = &mut self.joiner;
        let received = socket.recv_batch(BATCH, |received| {
            if let Some(packet) = subnetwork.received(now, circuit, received.payload) {
                joiner.add(packet, &mut write);
            }
        });
        joiner.flush(&mut write);
        match received {
            Ok(0) | Err(_) if socket.is_released() => Ok(true),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(false),
        }
    }

    /// Passes packets from the kernel to circuits.
    fn send(&mut self) -> io::Result<()> {
        llc::emit_routed(EtherType::IPV4, &mut self.buffer)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let sent = self.send_from(&mut buffer);
        self.buffer = buffer;
        sent
    }

    fn send_from(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let now = self.began.elapsed();
        let mut last = None;
        for _ in 0..BATCH {
            let mut header = [0; virtio_net::HEADER_LEN];
            let place = buffer.get_mut(HEADER_LEN..).unwrap_or_default();
            let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(place)];
            let length = match (&self.tun).read_vectored(&mut parts) {
                Ok(length) => length.saturating_sub(virtio_net::HEADER_LEN),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            let header = virtio_net::Header::parse(&header);
            let payload = buffer.get_mut(..HEADER_LEN + length).unwrap_or_default();
            let packet = payload.get(HEADER_LEN..).unwrap_or_default();
            let Ok(packet) = ipv4::Packet::new(packet) else {
                self.counters.not_ipv4 += 1;
                continue;
            };
            let destination = packet.destination();
            let way = self.subnetwork.way(now, destination);
            let cut = cut(&header, payload, |payload| match way {
                Way::By(circuit) => match self.queue(circuit, payload) {
                    Ok(file) => last = Some(file),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        let waits = self.wait(now, destination, payload);
                        self.unsent |= waits;
                        self.counters.not_sent += u64::from(!waits);
                    }
                    Err(_) => self.counters.not_sent += 1,
                },
                Way::Soon => {
                    let waits = self.wait(now, destination, payload);
                    self.counters.not_reached += u64::from(!waits);
                }
                Way::None => {}
            });
            if cut.is_err() {
                self.counters.not_ipv4 += 1;
            }
        }
        self.flush(last);
        Ok(())
    }

    /// Keeps a packet until it can be sent; returns false if too many wait.
    fn wait(&mut self, now: Duration, destination: Ipv4Addr, payload: &[u8]) -> bool {
        let of_it = self.waiting.iter();
        let of_it = of_it.filter(|it| it.destination == destination);
        let waits = self.waiting.len() < WAITING_MAX && of_it.count() < WAITING_EACH;
        if waits {
            self.waiting.push_back(Waiting {
                destination,
                payload: payload.to_vec(),
                since: now,
            });
        }
        waits
    }

    fn send_waiting(&mut self) {
        let now = self.began.elapsed();
        let mut last = None;
        self.unsent = false;
        for packet in std::mem::take(&mut self.waiting) {
            match self.subnetwork.way(now, packet.destination) {
                Way::By(circuit) => match self.queue(circuit, &packet.payload) {
                    Ok(file) => last = Some(file),
                    Err(error)
                        if error.kind() == io::ErrorKind::WouldBlock
                            && now.saturating_sub(packet.since) < NEXT_HOP_TIMEOUT =>
                    {
                        self.unsent = true;
                        self.waiting.push_back(packet);
                    }
                    Err(_) => self.counters.not_sent += 1,
                },
                Way::Soon => self.waiting.push_back(packet),
                Way::None => self.counters.not_reached += 1,
            }
        }
        self.flush(last);
    }

    /// Queues a payload on a circuit, whose socket must be flushed then.
    ///
    /// # Errors
    /// WouldBlock while no frame is free or the next hop's link address is being
    /// resolved.
    fn queue(&mut self, circuit: Circuit, payload: &[u8]) -> io::Result<Arc<OpenFile>> {
        let file = self.file(circuit).ok_or(io::ErrorKind::NotFound)?;
        let OpenFile::Circuit(socket) = &*file else {
            return Err(io::ErrorKind::NotFound.into());
        };
        queue(socket, payload, &mut self.left)?;
        self.counters.sent += 1;
        Ok(file)
    }

    /// Flushes one socket: all circuits of a stack share the device's queue.
    fn flush(&self, last: Option<Arc<OpenFile>>) {
        if let Some(OpenFile::Circuit(socket)) = last.as_deref() {
            // A device that is down has sent nothing; TCP retransmits it.
            drop(socket.flush());
        }
    }
}

/// Returns the options of every circuit: packets of any length.
fn options() -> AtmOptions {
    let longest = usize::from(u16::MAX);
    AtmOptions {
        send_max: longest,
        receive_max: longest,
        ..AtmOptions::default()
    }
}

/// Queues a payload, and waits briefly for free frames.
fn queue(socket: &AtmSocket, payload: &[u8], left: &mut Duration) -> io::Result<()> {
    let free = || {
        socket.flush()?;
        std::thread::yield_now();
        Ok(())
    };
    retry(left, || socket.queue(payload), free)
}

/// Retries while there is no room, calling `free` before each attempt, as long as `left`
/// lasts. A next hop that does not answer ARP causes the same: when `left` has run out,
/// nothing waits until an attempt succeeds again.
fn retry(
    left: &mut Duration,
    mut attempt: impl FnMut() -> io::Result<()>,
    mut free: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if began.elapsed() >= *left {
                    *left = Duration::ZERO;
                    return Err(error);
                }
                free()?;
            }
            Err(error) => return Err(error),
            Ok(()) => {
                *left = FRAME_TIMEOUT;
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the attempts until one is abandoned, or the `taken`-th succeeds.
    fn tries(left: &mut Duration, taken: usize) -> (bool, usize) {
        let mut tries = 0;
        let attempt = || {
            tries += 1;
            match tries == taken {
                true => Ok(()),
                false => Err(io::ErrorKind::WouldBlock.into()),
            }
        };
        let result = retry(left, attempt, || Ok(()));
        (result.is_ok(), tries)
    }

    #[test]
    fn packets_behind_one_that_waited_in_vain_do_not_wait() {
        let mut left = FRAME_TIMEOUT;
        assert_eq!(tries(&mut left, 3), (true, 3));
        let (taken, tried) = tries(&mut left, usize::MAX);
        assert!(!taken && tried > 1);
        for _ in 0..BATCH {
            assert_eq!(tries(&mut left, 3), (false, 1));
        }
        // One succeeds at once, and the next waits again.
        assert_eq!(tries(&mut left, 1), (true, 1));
        assert_eq!(tries(&mut left, 3), (true, 3));
    }
}
