//! IP over ATM: a tun interface of the kernel's whose packets go over circuits.
//!
//! ```text
//!  kernel's IP ─► tun ─► neighbour's circuit ─► LLC/SNAP, AAL5 ─► frames
//!  kernel's IP ◄─ tun ◄─────────────────────── LLC/SNAP, AAL5 ◄── frames
//!                              InATMARP ◄────────┘
//! ```
//!
//! One thread does everything, and waits for the tun and for all circuits at once. What a
//! device does not take for so long that it cannot be a burst is dropped, as behind any link.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidewall_atm::ip::{Config, HEADER_LEN, Subnetwork};
use tidewall_socket::descriptor::Flags;
use tidewall_socket::readiness::{Events, PollFd};
use tidewall_socket::{AtmOptions, AtmSocket, Circuit, Descriptors, OpenFile, Stack};
use tidewall_sys::interface;
use tidewall_wire::atm::llc;
use tidewall_wire::ethernet::EtherType;
use tidewall_wire::ipv4;

/// Packets from one side before the other's turn.
const BATCH: usize = 64;
/// How long packets wait for frames to be sent from, until one is sent.
const FRAME_TIMEOUT: Duration = Duration::from_millis(10);

/// What happened that [`Subnetwork::counters`] does not know, packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sent over circuits.
    pub sent: u64,
    /// Given to the kernel.
    pub delivered: u64,
    /// From the kernel, and not IPv4.
    pub not_ipv4: u64,
    /// Not sent: no frame was free, or the next hop's link address is not known.
    pub not_sent: u64,
    /// The kernel did not take them.
    pub refused: u64,
}

/// An interface that is served.
pub struct IpOverAtm {
    subnetwork: Subnetwork,
    descriptors: Descriptors,
    circuits: Vec<(Circuit, Arc<OpenFile>)>,
    tun: File,
    /// The tun first, then the circuits in their order.
    list: Vec<PollFd>,
    buffer: Vec<u8>,
    /// What is left of [`FRAME_TIMEOUT`].
    left: Duration,
    began: Instant,
    counters: Counters,
}

impl IpOverAtm {
    /// Makes a tun interface of this name, with the configuration's address and prefix and an
    /// MTU of 68 to 65,527 bytes, which goes with the value or the process, however that ends.
    ///
    /// # Errors
    /// EBUSY when there is such an interface; EPERM; ENOENT without /dev/net/tun; EINVAL.
    pub fn open(stack: &Stack, name: &str, mtu: u16, config: Config) -> io::Result<Self> {
        let tun = interface::open_tun(name)?;
        interface::set_address(name, config.address, config.prefix_len)?;
        interface::set_up(name, mtu)?;
        let descriptors = Descriptors::new(stack, u32::from(u16::MAX));
        let polled = OwnedFd::from(tun.try_clone()?);
        let polled = descriptors.open(polled, Flags::NONE)?;
        Ok(IpOverAtm {
            subnetwork: Subnetwork::new(config),
            descriptors,
            circuits: Vec::new(),
            tun,
            list: vec![PollFd::new(polled, Events::IN)],
            buffer: vec![0; HEADER_LEN + usize::from(u16::MAX)],
            left: FRAME_TIMEOUT,
            began: Instant::now(),
            counters: Counters::default(),
        })
    }

    /// Adds a permanent circuit of the stack, to this neighbour or to whom InATMARP finds.
    ///
    /// # Errors
    /// As [`AtmSocket::bind`]; EINVAL, in words, for a neighbour that is another circuit's.
    pub fn add(
        &mut self,
        stack: &Stack,
        circuit: Circuit,
        neighbour: Option<Ipv4Addr>,
    ) -> io::Result<()> {
        let longest = usize::from(u16::MAX);
        let options = AtmOptions {
            send_max: longest,
            receive_max: longest,
            ..AtmOptions::default()
        };
        let socket = AtmSocket::bind_with(stack, circuit, options)?;
        socket.set_nonblocking(true)?;
        let fd = self.descriptors.open(socket, Flags::NONBLOCK)?;
        let added = self
            .subnetwork
            .add(self.began.elapsed(), circuit, neighbour);
        if let Err(error) = added {
            self.descriptors.close(fd)?;
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        self.circuits.push((circuit, self.descriptors.file(fd)?));
        self.list.push(PollFd::new(fd, Events::IN));
        Ok(())
    }

    /// The table of neighbours and routes.
    pub fn subnetwork(&mut self) -> &mut Subnetwork {
        &mut self.subnetwork
    }

    /// What happened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Waits until something comes or is due, no longer than `most`, and does it.
    ///
    /// # Errors
    /// What device and tun report; EINTR.
    pub fn turn(&mut self, most: Duration) -> io::Result<()> {
        let now = self.began.elapsed();
        let due = self.subnetwork.poll_timeout();
        let most = due.map_or(most, |due| most.min(due.saturating_sub(now)));
        self.descriptors.poll(&mut self.list, Some(most))?;
        let ready = |entry: &PollFd| entry.returned() != Events::default();
        for number in 0..self.circuits.len() {
            if self.list.get(number + 1).is_some_and(ready) {
                self.receive(number)?;
            }
        }
        if self.list.first().is_some_and(ready) {
            self.send()?;
        }
        let now = self.began.elapsed();
        self.subnetwork.handle_timeout(now);
        while let Some((circuit, payload)) = self.subnetwork.poll_transmit() {
            let socket = self.circuits.iter().find(|it| it.0 == circuit);
            if let Some(OpenFile::Circuit(socket)) = socket.map(|it| &*it.1) {
                // Lost, it is asked or answered again.
                drop(socket.send(&payload));
            }
        }
        Ok(())
    }

    /// From a circuit to the kernel.
    fn receive(&mut self, number: usize) -> io::Result<()> {
        let Some((circuit, file)) = self.circuits.get(number) else {
            return Ok(());
        };
        let OpenFile::Circuit(socket) = &**file else {
            return Ok(());
        };
        let now = self.began.elapsed();
        let (subnetwork, counters) = (&mut self.subnetwork, &mut self.counters);
        let mut tun = &self.tun;
        let received = socket.recv_batch(BATCH, |received| {
            if let Some(packet) = subnetwork.received(now, *circuit, received.payload) {
                match tun.write_all(packet) {
                    Ok(()) => counters.delivered += 1,
                    Err(_) => counters.refused += 1,
                }
            }
        });
        match received {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// From the kernel to circuits.
    fn send(&mut self) -> io::Result<()> {
        llc::emit_routed(EtherType::IPV4, &mut self.buffer)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let mut last: Option<usize> = None;
        for _ in 0..BATCH {
            let place = self.buffer.get_mut(HEADER_LEN..).unwrap_or_default();
            let length = match (&self.tun).read(place) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            let payload = self.buffer.get(..HEADER_LEN + length).unwrap_or_default();
            let packet = payload.get(HEADER_LEN..).unwrap_or_default();
            let Ok(packet) = ipv4::Packet::new(packet) else {
                self.counters.not_ipv4 += 1;
                continue;
            };
            let Some(circuit) = self.subnetwork.circuit(packet.destination()) else {
                continue;
            };
            let number = self.circuits.iter().position(|it| it.0 == circuit);
            let Some(OpenFile::Circuit(socket)) =
                number.and_then(|it| self.circuits.get(it)).map(|it| &*it.1)
            else {
                continue;
            };
            last = number;
            match queue(socket, payload, &mut self.left) {
                Ok(()) => self.counters.sent += 1,
                Err(_) => self.counters.not_sent += 1,
            }
        }
        // All circuits of a stack share the device's queue.
        let last = last.and_then(|it| self.circuits.get(it));
        if let Some(OpenFile::Circuit(socket)) = last.map(|it| &*it.1) {
            // A device that is down has sent nothing; TCP repeats it.
            drop(socket.flush());
        }
        Ok(())
    }
}

/// Queues a payload, and waits a little for frames.
fn queue(socket: &AtmSocket, payload: &[u8], left: &mut Duration) -> io::Result<()> {
    let free = || {
        socket.flush()?;
        std::thread::yield_now();
        Ok(())
    };
    retry(left, || socket.queue(payload), free)
}

/// Tries again while there is no place, with `free` before each time and as long as `left`
/// lasts. A next hop that does not answer ARP has no place, too: when `left` has run out,
/// nothing waits until something is taken again.
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

    /// How often something is tried until it is given up, or taken the `taken`-th time.
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
        // One is taken at once, and the next waits again.
        assert_eq!(tries(&mut left, 1), (true, 1));
        assert_eq!(tries(&mut left, 3), (true, 3));
    }
}
