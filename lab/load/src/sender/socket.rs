//! Kernel UDP sockets, one for each flow.

use std::io;
use std::iter::repeat_n;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use tidewall_sys::{Message, MessageBatch};

use super::{Sender, Sent};
use crate::neighbour::{Path, bind_to_interface};
use crate::spec::BlastSpec;

/// Most datagrams of one call.
const BATCH: usize = 256;

/// Sends bursts with `sendmmsg`; a burst is shared out between the flows.
pub(super) struct SocketSender {
    sockets: Vec<UdpSocket>,
    /// The flow whose turn it is.
    turn: usize,
    payload: Vec<u8>,
    batch: MessageBatch,
}

impl SocketSender {
    pub(super) fn open(spec: &BlastSpec, path: &Path) -> io::Result<Self> {
        let mut sockets = Vec::new();
        for flow in 0..spec.flows.max(1) {
            let port = spec
                .source_port
                .map_or(0, |first| first.saturating_add(flow));
            let local = SocketAddr::new(path.source, port);
            let open = || {
                let socket = UdpSocket::bind(local)?;
                if let Some(interface) = &spec.interface {
                    bind_to_interface(&socket, interface)?;
                }
                socket.connect(spec.destination)?;
                Ok(socket)
            };
            sockets.push(open().map_err(|error: io::Error| {
                io::Error::new(
                    error.kind(),
                    format!("cannot send from {local} to {}: {error}", spec.destination),
                )
            })?);
        }
        Ok(SocketSender {
            sockets,
            turn: 0,
            payload: vec![0; spec.payload.into()],
            batch: MessageBatch::new(BATCH),
        })
    }
}

impl Sender for SocketSender {
    fn send(&mut self, count: u32) -> io::Result<Sent> {
        let flows = u32::try_from(self.sockets.len()).unwrap_or(u32::MAX).max(1);
        let mut result = Sent::default();
        let mut left = count;
        while left > 0 {
            let share = count.div_ceil(flows).min(left);
            let turn = self.turn;
            self.turn = (turn + 1) % self.sockets.len().max(1);
            let Some(socket) = self.sockets.get(turn) else {
                break;
            };
            left -= share;
            let sent = send_share(socket, &self.payload, share, &mut self.batch)?;
            result.sent += u64::from(sent);
        }
        result.ring_full = u64::from(count) - result.sent;
        Ok(result)
    }
}

fn send_share(
    socket: &UdpSocket,
    payload: &[u8],
    share: u32,
    batch: &mut MessageBatch,
) -> io::Result<u32> {
    let message = Message {
        payload,
        destination: None,
        source: Ipv4Addr::UNSPECIFIED.into(),
        interface: 0,
    };
    let mut sent = 0;
    // An error left behind by ICMP replaces one datagram and is then gone. More than one
    // retry per datagram means something else.
    let mut retries = share;
    while sent < share {
        let left = repeat_n(message, (share - sent) as usize);
        match batch.send(socket, left, libc::MSG_DONTWAIT) {
            Ok(0) => break,
            Ok(count) => sent += count as u32,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS) => break,
                Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::EINTR) if retries > 0 => {
                    retries -= 1;
                }
                _ => return Err(error),
            },
        }
    }
    Ok(sent)
}
