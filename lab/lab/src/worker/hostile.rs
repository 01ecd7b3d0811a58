//! An application of a manager that does its worst in private mode, and an observer of
//! the frames that leave the device meanwhile.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use rustix::process::setpriority_process;
use serde::{Deserialize, Serialize};
use tidewall_device::demux::layout::Protocol as Transport;
use tidewall_device::queue::Queue;
use tidewall_manager::client::{Application, Client};
use tidewall_manager::connection::Connection;
use tidewall_manager::protocol::{JOIN_PRIVATE, Join, MESSAGE_BYTES};
use tidewall_simulator::random::Random;
use tidewall_sys::SharedPage;
use tidewall_wire::Protocol;
use tidewall_wire::ethernet::MacAddress;
use tidewall_wire::ipv4;

use super::Managed;
use super::service::until_input_ends;
use crate::bridge::port::{BATCH, Port, wait};
use crate::testbed::{CLIENT, CLIENT_INTERFACE, CLIENT_MAC_ADDRESS, SERVER, SERVER_MAC_ADDRESS};

/// Contained in every frame of it.
const GENUINE: &[u8] = b"tidewall-lab genuine";
const FORGED: &[u8] = b"tidewall-lab forged!";
/// Port of its frames at the client.
const CLIENT_PORT: u16 = 6666;
/// Offsets at which the rings of an AF_XDP socket are mapped (linux/if_xdp.h).
const RINGS: [u64; 4] = [0, 0x8000_0000, 0x1_0000_0000, 0x1_8000_0000];
/// Messages that it sends without reading an answer.
const UNREAD: usize = 4_096;
/// Pause between two rounds of attacks: some thousand per second.
const REST: Duration = Duration::from_micros(200);

/// Such an application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostileJob {
    /// Its manager.
    pub managed: Managed,
    /// The UDP port that it owns.
    pub port: u16,
    /// False: it does as many rounds of nothing.
    pub attacks: bool,
}

/// The counts of its attacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attacks {
    /// Forged frames handed to the kernel.
    pub(crate) forged: u64,
    /// Words of rings, tables and frame memory that were overwritten.
    pub(crate) scribbled: u64,
    /// Messages garbled or repeated.
    pub(crate) messages: u64,
}

/// Frames that left the device and, by their contents, belong to an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// From its own port and addresses.
    pub(crate) genuine: u64,
    /// From those of others, or with another link address than the device's.
    pub(crate) forged: u64,
    /// Frames that were not examined because they arrived too fast.
    pub(crate) missed: u64,
}

/// Attacks until the standard input ends; answers the line `attacks`.
pub(super) fn attack(job: &HostileJob) -> anyhow::Result<()> {
    // Others are to suffer from its attacks, not from its CPU time.
    let _ = std::fs::write("/proc/self/autogroup", "19");
    setpriority_process(None, 19)?;
    job.managed.become_user()?;
    let counts = Arc::new([const { AtomicU64::new(0) }; 3]);
    let stop = Arc::new(AtomicBool::new(false));
    let mut hostile = Hostile::join(job, counts.clone())?;
    let (seen, attacks) = (stop.clone(), job.attacks);
    let worker = std::thread::spawn(move || {
        while !seen.load(Ordering::Relaxed) {
            if attacks {
                hostile.round();
            }
            std::thread::sleep(REST);
        }
    });
    println!("ready");
    until_input_ends(|line| {
        if line == "attacks" {
            let [forged, scribbled, messages] =
                [0, 1, 2].map(|number: usize| counts[number].load(Ordering::Relaxed));
            let attacks = Attacks {
                forged,
                scribbled,
                messages,
            };
            println!("{}", serde_json::to_string(&attacks)?);
        }
        Ok(())
    })?;
    stop.store(true, Ordering::Relaxed);
    let _ = worker.join();
    Ok(())
}

struct Hostile {
    random: Random,
    counts: Arc<[AtomicU64; 3]>,
    port: u16,
    /// Sends the forged frames; its own memory and rings are left alone.
    _forger: Application,
    queue: Queue,
    /// The target of scribbling.
    _scribbled: Client,
    descriptors: Vec<OwnedFd>,
    pages: Vec<SharedPage>,
    memory_bytes: u64,
    _holder: std::net::UdpSocket,
    socket: std::path::PathBuf,
    garbled: Option<Connection>,
}

impl Hostile {
    fn join(job: &HostileJob, counts: Arc<[AtomicU64; 3]>) -> anyhow::Result<Self> {
        let join = Join {
            queues: 0,
            frames: 0,
            receive_ring: 0,
            flags: JOIN_PRIVATE,
        };
        let socket = job.managed.socket.clone();
        let (forger, queues) = Application::join(&socket, &join)?;
        let queue = queues.into_iter().next().context("no queue")?;
        let holder = std::net::UdpSocket::bind((SERVER.0, job.port))?;
        forger.client.own_port(Transport::Udp, &holder)?;
        let (scribbled, handed) = Client::join(&socket, &join)?;
        let made = handed.queues.first().context("no queue to scribble over")?;
        let shape = made.shape();
        let descriptors = made
            .descriptors()
            .into_iter()
            .take(2)
            .chain([handed.tables.as_fd()])
            .map(|fd| fd.try_clone_to_owned())
            .collect::<Result<Vec<_>, _>>()?;
        let [socket_fd, _, tables] = descriptors.as_slice() else {
            anyhow::bail!("a queue without its descriptors");
        };
        let mut pages = Vec::new();
        for ring in RINGS {
            pages.push(SharedPage::of_object(socket_fd, ring).context("cannot map a ring")?);
        }
        // The table's first pages, as many as it has.
        pages.extend((0..64).map_while(|page| SharedPage::of_object(tables, page * 4096).ok()));
        // The driver program's counters can be mapped, but not for writing.
        anyhow::ensure!(
            SharedPage::of_object(&handed.counters, 0).is_err(),
            "the driver program's counters could be written"
        );
        Ok(Hostile {
            random: Random::new(job.port.into()),
            counts,
            port: job.port,
            _forger: forger,
            queue,
            _scribbled: scribbled,
            memory_bytes: u64::from(shape.frames) * u64::from(shape.frame_size),
            descriptors,
            pages,
            _holder: holder,
            socket,
            garbled: None,
        })
    }

    fn count(&self, what: usize, number: u64) {
        self.counts[what].fetch_add(number, Ordering::Relaxed);
    }

    fn round(&mut self) {
        self.forge();
        self.scribble();
        self.garble();
    }

    /// Sends one genuine frame behind one of each kind of forged ones.
    fn forge(&mut self) {
        let mut frames = frames(self.port);
        frames.push(frame(self.port, &Wrong::default(), GENUINE));
        let mut sent = 0;
        for bytes in &frames {
            let Some(mut frame) = self.queue.frames.pop() else {
                break;
            };
            frame.set_extent(self.queue.transmit.headroom(), bytes.len() as u16);
            self.queue
                .memory
                .packet_mut(&mut frame)
                .copy_from_slice(bytes);
            match self.queue.transmit.transmit(frame, None) {
                Ok(()) => sent += 1,
                Err(frame) => self.queue.frames.push(frame),
            }
        }
        let _ = self.queue.transmit.flush();
        self.queue.transmit.reclaim(&mut self.queue.frames);
        self.count(0, sent);
    }

    /// Writes random words into a page of rings or tables, and a forged frame somewhere
    /// into the frame memory, then makes the kernel process the rings.
    fn scribble(&mut self) {
        for _ in 0..16 {
            let page = self.random.below(self.pages.len() as u64) as usize;
            let word = self.random.below(SharedPage::WORDS as u64) as usize;
            let value = match self.random.below(4) {
                0 => u64::MAX,
                // Small numbers are positions and lengths that could be valid.
                1 => self.random.below(self.memory_bytes),
                2 => self.random.below(self.memory_bytes) | 64 << 32,
                _ => self.random.bits(),
            };
            if let Some(page) = self.pages.get(page) {
                page.words()[word].store(value, Ordering::Relaxed);
            }
        }
        let forged = frames(self.port);
        let at = self.random.below(self.memory_bytes) & !63;
        if let (Some(frame), [socket, memory, _]) = (
            forged.get(self.random.below(forged.len() as u64) as usize),
            self.descriptors.as_slice(),
        ) {
            let _ = rustix::io::pwrite(memory, frame, at);
            let flags = rustix::net::SendFlags::DONTWAIT;
            let _ = rustix::net::send(socket, &[], flags);
        }
        self.count(1, 17);
    }

    /// Sends garbled messages, and a repeated one, on a connection whose answers are
    /// never read, until it is closed; then on a new one.
    fn garble(&mut self) {
        if self.garbled.is_none() {
            self.garbled = Connection::connect(&self.socket).ok();
        }
        let Some(connection) = &self.garbled else {
            return;
        };
        let mut message = [0; MESSAGE_BYTES];
        // Version 1 and some kind, so that most are examined.
        let kind = self.random.below(24) as u16;
        message[..2].copy_from_slice(&1u16.to_ne_bytes());
        message[2..4].copy_from_slice(&kind.to_ne_bytes());
        for byte in &mut message[4..64] {
            *byte = match self.random.below(4) {
                0 => self.random.bits() as u8,
                _ => 0,
            };
        }
        let passed = [self._holder.as_fd()];
        let beside: &[_] = if kind == 3 { &passed } else { &[] };
        for _ in 0..2 {
            let sent = connection.send(&message, beside);
            self.count(2, 1);
            let over = |error: &std::io::Error| error.kind() != std::io::ErrorKind::WouldBlock;
            if sent.as_ref().is_err_and(over) {
                self.garbled = None;
                return;
            }
        }
        if self.counts[2]
            .load(Ordering::Relaxed)
            .is_multiple_of(UNREAD as u64)
        {
            self.garbled = None;
        }
    }
}

/// The forged fields of a frame.
#[derive(Clone, Copy, Default)]
struct Wrong {
    link: bool,
    address: bool,
    port: bool,
    fragment: bool,
    transport: Option<u8>,
    ethertype: Option<u16>,
}

/// Returns one frame of each kind.
fn frames(port: u16) -> Vec<Vec<u8>> {
    let right = Wrong::default();
    [
        Wrong {
            link: true,
            ..right
        },
        Wrong {
            address: true,
            ..right
        },
        Wrong {
            port: true,
            ..right
        },
        Wrong {
            fragment: true,
            ..right
        },
        // ICMP, and TCP from a port that it owns for UDP only.
        Wrong {
            transport: Some(1),
            ..right
        },
        Wrong {
            transport: Some(6),
            ..right
        },
        // ARP.
        Wrong {
            ethertype: Some(0x0806),
            ..right
        },
    ]
    .map(|wrong| frame(port, &wrong, FORGED))
    .to_vec()
}

/// Returns a frame to the client with this payload, from `port`, except for the forged
/// fields.
fn frame(port: u16, wrong: &Wrong, payload: &[u8]) -> Vec<u8> {
    const UDP_HEADER: usize = 8;
    let source = if wrong.link {
        MacAddress([0x02, 0x77, 0, 0, 0, 9])
    } else {
        SERVER_MAC_ADDRESS
    };
    let mut bytes = [CLIENT_MAC_ADDRESS.0, source.0].concat();
    bytes.extend(wrong.ethertype.unwrap_or(0x0800).to_be_bytes());
    let mut rest = vec![0; 20 + UDP_HEADER];
    let header = ipv4::Header {
        tos: 0,
        identification: 0,
        dont_fragment: !wrong.fragment,
        more_fragments: wrong.fragment,
        fragment_offset: Default::default(),
        ttl: 64,
        protocol: Protocol(wrong.transport.unwrap_or(17)),
        source: match wrong.address {
            true => [10, 77, 0, 3].into(),
            false => SERVER.0,
        },
        destination: CLIENT.0,
        options: Default::default(),
    };
    let length = UDP_HEADER + payload.len();
    if let Ok(udp) = header.emit(length, &mut rest) {
        let from = if wrong.port { port ^ 1 } else { port };
        udp[..2].copy_from_slice(&from.to_be_bytes());
        udp[2..4].copy_from_slice(&CLIENT_PORT.to_be_bytes());
        // Without a checksum, which UDP over IPv4 permits.
        udp[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    }
    bytes.extend(rest);
    bytes.extend(payload);
    bytes
}

/// Examines every frame that arrives at the client's interface, until the standard input
/// ends; answers the line `seen`.
pub(super) fn watch() -> anyhow::Result<()> {
    let mut port = Port::open(CLIENT_INTERFACE).context("cannot watch the interface")?;
    let counts = Arc::new([const { AtomicU64::new(0) }; 3]);
    let stop = Arc::new(AtomicBool::new(false));
    let (shown, over) = (counts.clone(), stop.clone());
    let watcher = std::thread::spawn(move || -> std::io::Result<()> {
        let mut buffers = vec![vec![0; port.frame_max()]; BATCH];
        let mut arrivals = Vec::new();
        while !over.load(Ordering::Relaxed) {
            wait(std::slice::from_ref(&port), Duration::from_millis(20))?;
            port.receive(&mut buffers, &mut arrivals)?;
            for (arrival, bytes) in arrivals.iter().zip(&buffers) {
                if let Some(number) = classify(&bytes[..arrival.length]) {
                    shown[number].fetch_add(1, Ordering::Relaxed);
                }
            }
            shown[2].store(port.dropped(), Ordering::Relaxed);
        }
        Ok(())
    });
    println!("ready");
    until_input_ends(|line| {
        if line == "seen" {
            let [genuine, forged, missed] =
                [0, 1, 2].map(|number: usize| counts[number].load(Ordering::Relaxed));
            let seen = Seen {
                genuine,
                forged,
                missed,
            };
            println!("{}", serde_json::to_string(&seen)?);
        }
        Ok(())
    })?;
    stop.store(true, Ordering::Relaxed);
    match watcher.join() {
        Ok(watched) => Ok(watched?),
        Err(_) => anyhow::bail!("the watcher panicked"),
    }
}

/// Returns 0 for a genuine frame, 1 for a forged one, none for any other.
fn classify(frame: &[u8]) -> Option<usize> {
    let has = |text: &[u8]| frame.windows(text.len()).any(|bytes| bytes == text);
    let foreign = frame.get(6..12) != Some(SERVER_MAC_ADDRESS.0.as_slice());
    if foreign || has(FORGED) {
        Some(1)
    } else {
        has(GENUINE).then_some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_frame_is_told_from_a_genuine_one() {
        for forged in frames(4000) {
            assert_eq!(classify(&forged), Some(1));
        }
        let genuine = frame(4000, &Wrong::default(), GENUINE);
        assert_eq!(classify(&genuine), Some(0));
        let packet = ipv4::Packet::new(&genuine[14..]).unwrap();
        assert!(packet.has_valid_checksum());
        // From another link address it is forged, whatever its contents.
        let stranger = frame(
            4000,
            &Wrong {
                link: true,
                ..Wrong::default()
            },
            GENUINE,
        );
        assert_eq!(classify(&stranger), Some(1));
        let echo = frame(7, &Wrong::default(), b"an echo");
        assert_eq!(classify(&echo), None);
    }
}
