//! The program of datagram sockets: an event loop that knows nothing of Tidewall.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use tidewall_service::{Counters, ServiceSpec, linux};

use crate::system::RECEIVE_BUFFER;

/// Its line on standard error once its sockets are bound.
pub(super) const READY: &str = "ready";

/// The services of an event loop over datagram sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatagramsJob {
    /// The services; the last one discards.
    pub services: Vec<ServiceSpec>,
    /// Sockets of the last one, at its port and the following ones.
    pub sockets: u16,
    /// Path of the counters; filled in by the worker that starts it.
    #[serde(default)]
    pub counters: PathBuf,
    /// How its epoll instance busy-polls; filled in likewise.
    #[serde(default)]
    pub busy_poll: Option<linux::BusyPoll>,
}

impl DatagramsJob {
    /// Serves until a signal ends it.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let counters = Counters::create(&self.counters, self.services.len())?;
        let options = linux::Options {
            receive_buffer: Some(RECEIVE_BUFFER),
            epoll_busy_poll: self.busy_poll,
            ..linux::Options::default()
        };
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::flag::register(signal, stop.clone())?;
        }
        let ready = || eprintln!("{READY}");
        let any = Ipv4Addr::UNSPECIFIED.into();
        let (services, sockets) = (&self.services, self.sockets);
        tidewall_service::serve_events(any, services, sockets, options, &counters, &stop, ready)?;
        Ok(())
    }
}
