//! The event loop of simple services.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::counters::{Counters, SERVICES};
use crate::host::{Datagrams, Host, Peer};
use crate::work::multiply;

/// Most datagrams that one service receives before the next one's turn.
pub const BATCH: usize = 64;
/// Longest time from setting `stop` until a sleeping [`serve`] notices. Short enough for
/// the thread that stops it, and long enough that an idle service wakes less than three
/// times per second.
pub const STOP_WITHIN: Duration = Duration::from_millis(400);
/// Bytes that an acknowledgement returns: the number of the request.
const ACKNOWLEDGE: usize = 8;
/// This many errors in a row, with nothing received in between, are considered permanent.
pub(crate) const ERRORS_MAX: u32 = 1000;

/// A service's treatment of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Sends it back (RFC 862).
    Echo,
    /// Sends its first eight bytes back: the receiver of a sliding-window
    /// protocol.
    Acknowledge,
    /// Discards it (RFC 863).
    Discard,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Echo => "echo",
            Kind::Acknowledge => "acknowledge",
            Kind::Discard => "discard",
        })
    }
}

/// One service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSpec {
    /// Its kind.
    pub kind: Kind,
    /// Its UDP port; 0 lets the stack choose.
    pub port: u16,
    /// Floating-point multiplications per datagram ([`multiply`]).
    #[serde(default)]
    pub work: u32,
}

/// Serves until `stop` is set. The services take turns in the order of the list, the
/// first having the highest priority. Each receives at most `batch` datagrams per turn (0
/// counts as 1), and its replies leave together. If nothing arrived, the thread sleeps. A
/// single service blocks in its receive call, as a plain server does. Services beyond the
/// counters' [`SERVICES`] count as the last of them.
///
/// Calls `ready` once all sockets are bound, with their addresses.
///
/// # Errors
/// Errors of binding or waiting, and a socket whose errors do not end.
pub fn serve<H: Host>(
    host: &H,
    address: IpAddr,
    services: &[ServiceSpec],
    batch: usize,
    counters: &Counters,
    stop: &AtomicBool,
    ready: impl FnOnce(&[SocketAddr]),
) -> io::Result<()> {
    let batch = batch.max(1);
    let mut sockets = Vec::new();
    let mut addresses = Vec::new();
    for (priority, service) in services.iter().enumerate() {
        let local = SocketAddr::new(address, service.port);
        let socket = host
            .bind(local, priority, service.kind != Kind::Discard)
            .map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("cannot bind {} to {local}: {error}", service.kind),
                )
            })?;
        sockets.push(socket);
        addresses.push(local);
    }
    ready(&addresses);
    let all: Vec<&H::Socket> = sockets.iter().collect();
    let alone = sockets.len() == 1;
    let mut idle_since: Option<Instant> = None;
    let mut errors = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut received = 0;
        for (number, (socket, service)) in sockets.iter().zip(services).enumerate() {
            let number = number.min(SERVICES - 1);
            let wait = alone.then_some(STOP_WITHIN);
            match turn(socket, service, batch, wait, number, counters) {
                Ok(count) => received += count,
                Err(error) => {
                    counters.error(number);
                    errors += 1;
                    if errors >= ERRORS_MAX {
                        return Err(error);
                    }
                }
            }
        }
        counters.iterated();
        if received > 0 {
            errors = 0;
            idle_since = None;
            continue;
        }
        let spin = host.spin();
        if !spin.is_zero() && idle_since.get_or_insert_with(Instant::now).elapsed() < spin {
            continue;
        }
        counters.waited();
        // A lone service has slept in its turn already.
        if !alone {
            host.wait(&all, STOP_WITHIN)?;
        }
    }
    Ok(())
}

/// Runs one service's turn; returns how many datagrams it received.
pub(crate) fn turn<S: Datagrams>(
    socket: &S,
    service: &ServiceSpec,
    batch: usize,
    wait: Option<Duration>,
    number: usize,
    counters: &Counters,
) -> io::Result<usize> {
    let (mut bytes, mut replies) = (0, 0);
    let mut failed = None;
    let each = |payload: &[u8], peer: Option<Peer>| {
        bytes += payload.len() as u64;
        if service.work > 0 {
            multiply(
                service.work,
                1.0 + f64::from(payload.first().copied().unwrap_or(0)) * 1e-9,
            );
        }
        let reply = match service.kind {
            Kind::Echo => payload,
            Kind::Acknowledge => payload.get(..ACKNOWLEDGE).unwrap_or(payload),
            Kind::Discard => return,
        };
        if let Some(peer) = peer {
            match socket.queue(reply, peer) {
                Ok(()) => replies += 1,
                Err(error) => failed = Some(error),
            }
        }
    };
    let count = match wait {
        Some(timeout) => socket.receive_waiting(batch, timeout, each)?,
        None => socket.receive(batch, each)?,
    };
    // Counted before the replies leave, so that a client with a reply finds the count
    // updated.
    if count > 0 {
        counters.batch(number, count as u64, bytes, replies);
    }
    if replies > 0 {
        socket.flush()?;
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(count),
    }
}
