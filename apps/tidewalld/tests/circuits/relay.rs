//! Connects the two ends of a link with a gap ([`crate::support::run_with_gap`]). Whole
//! frames pass, but those of circuit 0.5, signalling, may be lost or late. Listeners hear
//! those, too.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use tidewall_sys::interface::{bind_packet, ignore_outgoing, index};
use tidewall_wire::atm::Circuit;
use tidewall_wire::atm::aal5::Pdu;
use tidewall_wire::atm::pseudowire::{Label, Packet};
use tidewall_wire::atm::q2931::{Message, MessageType};
use tidewall_wire::atm::sscop;

use crate::ends::End;

/// ETH_P_ALL.
const ALL: u16 = 3;
/// Destination, source, ETH_P_MPLS_UC.
const ETHERNET_LEN: usize = 14;
const MPLS: [u8; 2] = [0x88, 0x47];

/// The treatment of signalling.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// PDUs lost, per 1,000.
    pub lost: u32,
    /// Smallest and largest delay; the order is kept.
    pub late: [Duration; 2],
}

#[derive(Default)]
struct Shared {
    way: Mutex<Way>,
    heard: Mutex<Vec<(End, Vec<u8>)>>,
    lost: Mutex<u64>,
    ends: AtomicBool,
}

/// A thread that passes frames, until it is dropped.
pub struct Relay {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay that passes everything at once.
    pub fn start() -> Self {
        let shared = Arc::<Shared>::default();
        let of_thread = shared.clone();
        let sockets = ["tw-left", "tw-right"].map(|name| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).unwrap();
            ignore_outgoing(&socket).unwrap();
            bind_packet(&socket, index(name).unwrap(), ALL).unwrap();
            socket
        });
        Relay {
            shared,
            thread: Some(std::thread::spawn(move || pass(&sockets, &of_thread))),
        }
    }

    /// Sets the treatment of signalling from now on.
    pub fn set(&self, way: Way) {
        *self.shared.way.lock().unwrap() = way;
    }

    /// Returns how many PDUs of it were lost.
    pub fn lost(&self) -> u64 {
        *self.shared.lost.lock().unwrap()
    }

    /// Returns the PDUs of circuit 0.5 since the last call, including lost ones, and
    /// which end sent each.
    pub fn heard(&self) -> Vec<(End, Vec<u8>)> {
        std::mem::take(&mut self.shared.heard.lock().unwrap())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Returns the call message in an SSCOP PDU, if there is one.
pub fn message_of(pdu: &[u8]) -> Option<MessageType> {
    match sscop::Pdu::parse(pdu).ok()? {
        sscop::Pdu::Data { data, .. } => MessageType::from_number(Message::new(data).ok()?.kind()),
        _ => None,
    }
}

/// Returns the PDU of circuit 0.5 in a frame, if there is one.
fn signalling_of(frame: &[u8]) -> Option<Vec<u8>> {
    let (header, packet) = frame.split_at_checked(ETHERNET_LEN)?;
    let packet = header
        .ends_with(&MPLS)
        .then(|| Packet::new(packet).ok())??;
    let is_of_link = Some(packet.label()) == Label::of_circuit(Circuit::SIGNALLING);
    let part = is_of_link.then(|| packet.frame().ok())??;
    Some(Pdu::new(part.bytes).ok()?.payload().to_vec())
}

fn pass(sockets: &[OwnedFd; 2], shared: &Shared) {
    let mut late: VecDeque<(Instant, usize, Vec<u8>)> = VecDeque::new();
    let mut random = 0x5eed_0018_u64;
    let mut buffer = [0; 65_536];
    let step = Timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    while !shared.ends.load(Ordering::Relaxed) {
        let mut polled = sockets.each_ref().map(|it| PollFd::new(it, PollFlags::IN));
        let _ = poll(&mut polled, Some(&step));
        for (from, end) in [End::Here, End::There].into_iter().enumerate() {
            let socket = sockets[from].as_fd();
            while let Ok((length, _)) = recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                let frame = &buffer[..length];
                let Some(pdu) = signalling_of(frame) else {
                    let _ = send(&sockets[1 - from], frame, SendFlags::DONTWAIT);
                    continue;
                };
                shared.heard.lock().unwrap().push((end, pdu));
                let Way {
                    lost,
                    late: [least, most],
                } = *shared.way.lock().unwrap();
                // xorshift64: the same random numbers each time.
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                if random % 1000 < lost.into() {
                    *shared.lost.lock().unwrap() += 1;
                    continue;
                }
                let more = (most - least).as_micros() as u64;
                let by = least + Duration::from_micros((random >> 32) % (more + 1));
                let after = late.iter().filter(|it| it.1 != from).map(|it| it.0).max();
                let at = (Instant::now() + by).max(after.unwrap_or_else(Instant::now));
                late.push_back((at, 1 - from, frame.to_vec()));
            }
        }
        let now = Instant::now();
        late.retain(|(at, to, frame)| {
            if *at <= now {
                let _ = send(&sockets[*to], frame, SendFlags::DONTWAIT);
            }
            *at > now
        });
    }
}
