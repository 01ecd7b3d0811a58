//! The event loop of an ordinary program: epoll(7), level-triggered, and recvmmsg(2) on
//! ready sockets, all by the C library's calls. `tidewall run` intercepts them like any
//! other program's.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use tidewall_sys::Epoll;

use crate::counters::Counters;
use crate::host::Host;
use crate::linux::{Linux, Options, Receive};
use crate::services::{BATCH, ERRORS_MAX, Kind, STOP_WITHIN, ServiceSpec, turn};

/// Serves until `stop` is set. Each ready socket takes at most [`BATCH`] datagrams per
/// turn. The last service has `sockets` sockets (0 counts as 1), at its port and the
/// following ones, which are counted together. Calls `ready` once all are bound.
///
/// # Errors
/// Errors of binding or waiting, and a socket whose errors do not end.
pub fn serve_events(
    address: IpAddr,
    services: &[ServiceSpec],
    sockets: u16,
    options: Options,
    counters: &Counters,
    stop: &AtomicBool,
    ready: impl FnOnce(),
) -> io::Result<()> {
    let host = Linux::new(Options {
        receive: Receive::Recvmmsg,
        ..options
    });
    let epoll = Epoll::new()?;
    if let Some(busy) = options.epoll_busy_poll {
        epoll.busy_poll(busy.microseconds, busy.budget)?;
    }
    let last = services.len().saturating_sub(1);
    let mut served = Vec::new();
    for (number, service) in services.iter().enumerate() {
        let count = if number == last { sockets.max(1) } else { 1 };
        for port in (service.port..=u16::MAX).take(count.into()) {
            let local = SocketAddr::new(address, port);
            let socket = host.bind(local, number, service.kind != Kind::Discard)?;
            epoll.add(socket.fd(), served.len() as u64)?;
            served.push((socket, service, number));
        }
    }
    ready();
    let (mut events, mut errors) = (Vec::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        epoll.wait(STOP_WITHIN, &mut events)?;
        for &event in &events {
            let Some((socket, service, number)) = served.get(event as usize) else {
                continue;
            };
            match turn(socket, service, BATCH, None, *number, counters) {
                Ok(0) => {}
                Ok(_) => errors = 0,
                Err(error) => {
                    counters.error(*number);
                    errors += 1;
                    if errors >= ERRORS_MAX {
                        return Err(error);
                    }
                }
            }
        }
        counters.iterated();
        if events.is_empty() {
            counters.waited();
        }
    }
    Ok(())
}
