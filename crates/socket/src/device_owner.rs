//! What only the owner of the device may do for a stack.
//!
//! An embedded stack is the owner itself, and does it here and nowhere else: through the
//! trusted tables and, on a Linux interface, through the open device. The stack of a
//! process without privileges will ask a daemon for the same.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use tidewall_device::demux::layout::{LOCALS, Protocol, TraceRecord};
use tidewall_device::demux::{Tables, TrustedTables};
use tidewall_manager::AfXdp;
use tidewall_manager::restore::Undo;

use crate::lock::{Mutex, lock, rank};

/// See the module's documentation.
pub(crate) struct DeviceOwner {
    trusted: Arc<TrustedTables>,
    /// Number of the application that the stack is.
    application: u16,
    /// Keeps the driver program attached and the device's settings changed; none where
    /// there is no driver.
    device: Option<Mutex<AfXdp, rank::Leaf>>,
}

impl DeviceOwner {
    /// The owner of a device on which the stack has the `embedded` tables.
    pub(crate) fn new(tables: &Tables, device: Option<AfXdp>) -> Self {
        DeviceOwner {
            trusted: tables.trusted.clone(),
            application: tables.embedded.number(),
            device: device.map(Mutex::new),
        }
    }

    /// True on an interface of Linux.
    pub(crate) fn has_driver(&self) -> bool {
        self.device.is_some()
    }

    /// Has the driver give the stack a port's frames: [`TrustedTables::own_port`].
    pub(crate) fn own_port(
        &self,
        protocol: Protocol,
        address: Option<IpAddr>,
        port: u16,
    ) -> io::Result<()> {
        self.trusted
            .own_port(protocol, address, port, self.application)
    }

    /// Has the kernel get a port's frames again.
    pub(crate) fn disown_port(&self, protocol: Protocol, address: Option<IpAddr>, port: u16) {
        // A port that the table keeps costs the driver one look-up.
        let _ = self.trusted.disown_port(protocol, address, port);
    }

    /// Has the stack get later fragments that came before their first.
    pub(crate) fn own_orphan_fragments(&self) {
        self.trusted
            .set_fragment_application(Some(self.application));
    }

    /// Sets the addresses of this host.
    pub(crate) fn set_locals(&self, addresses: &[IpAddr]) -> io::Result<()> {
        self.trusted.set_locals(addresses).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!(
                    "{} addresses of this host do not fit into the driver's table of {LOCALS}",
                    addresses.len()
                ),
            )
        })
    }

    /// Attaches the driver program anew.
    pub(crate) fn attach_again(&self, interface: &str) -> io::Result<()> {
        let Some(device) = &self.device else {
            return Ok(());
        };
        let mut device = lock(device);
        let mode = device.mode;
        device.program.attach(interface, mode)
    }

    /// Has a file removed when the process ends, however it does; `None` where nobody
    /// could.
    pub(crate) fn remove_on_exit(&self, path: &Path) -> Option<Undo> {
        let device = lock(self.device.as_ref()?);
        device.restorer()?.on_exit_remove(path).ok()
    }

    /// Has a command run when the process ends, however it does, or when the result is
    /// dropped ([`tidewall_manager::restore::Restorer::on_exit_run`]).
    ///
    /// # Errors
    /// Unsupported where there is nobody who could; as there.
    pub(crate) fn run_on_exit(&self, arguments: &[&str]) -> io::Result<Undo> {
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let device = lock(self.device.as_ref().ok_or_else(unsupported)?);
        let restorer = device.restorer().ok_or_else(unsupported)?;
        restorer.on_exit_run(arguments)
    }

    /// Samples the next `frames` frames, none for 0. What an earlier trace left is dropped.
    pub(crate) fn start_trace(&self, frames: u32) {
        self.traced().for_each(drop);
        self.trusted.start_trace(frames);
    }

    /// Frames sampled since the last call.
    pub(crate) fn traced(&self) -> impl Iterator<Item = TraceRecord> {
        let device = self.device.as_ref();
        let records: Vec<TraceRecord> = device
            .map(|device| lock(device).program.traces().collect())
            .unwrap_or_default();
        records.into_iter()
    }
}
