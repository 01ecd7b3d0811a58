//! The web server: clients, without a part behind them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::Spec;
use super::connection::Connection;
use super::engine::{Back, Engine};
use super::files::Files;
use super::listener::{ClientConnection, Listener, Tally, unix};
use super::log::Log;
use super::site::{Clock, Site};
use crate::counters::Counters;
use crate::stream::StreamHost;

/// Serves the files of `spec.root` at `address` until `stop` is set, then finishes the
/// current responses. Counts as the first service of `counters`. Calls `ready` once it
/// listens, with the address.
///
/// # Errors
/// The error of opening the root, listening or waiting.
pub fn serve<H: StreamHost>(
    host: &H,
    address: IpAddr,
    spec: &Spec,
    log: Option<Log>,
    counters: &Counters,
    stop: &AtomicBool,
    ready: impl FnOnce(SocketAddr),
) -> io::Result<()> {
    let files = Files::open(&spec.root).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot serve {}: {error}", spec.root.display()),
        )
    })?;
    let mut site = Site::new(files, Clock::new(Duration::ZERO, unix()), spec.limits);
    site.work = spec.work;
    site.log = log;
    let local = SocketAddr::new(address, spec.port);
    let tally = Tally { counters };
    let listener = Listener::open(host, local, site, tally, ready)?;
    Engine::new(listener, Nobody).run(stop)
}

/// The server answers by itself.
struct Nobody;

impl<H: StreamHost> Back<H> for Nobody {
    type ClientConnection = Connection;
}

impl ClientConnection for Connection {
    type Store = Files;

    fn new(peer: IpAddr, now: Duration) -> Self {
        Connection::new(peer, now)
    }

    fn connection(&self) -> &Connection {
        self
    }

    fn connection_mut(&mut self) -> &mut Connection {
        self
    }
}
