//! Operations on the device that only its owner may do for a stack.
//!
//! Lives here: the driver program's trusted tables, ports, and actions that run when the
//! process ends. An embedded stack is the owner itself, and does these things here and
//! nowhere else. It uses the trusted tables and, on a Linux interface, the open device.
//! The stack of a process without privileges asks a manager to do them.
//!
//! Does not live here: the tables that an application may write, and the queues.
//!
//! Read first: the module `connection` of tidewall-manager.

mod managed;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use tidewall_device::demux::layout::{LOCALS, Protocol, TraceRecord};
use tidewall_device::demux::{Tables, TrustedTables};
use tidewall_device::interface::UsesReader;
use tidewall_manager::AfXdp;
use tidewall_manager::client::{Client, Patience};
use tidewall_manager::restore::Undo;
use tidewall_wire::atm::pseudowire::Label;
use tidewall_wire::ethernet::MacAddress;

use crate::lock::{Mutex, lock, rank};
use managed::Managed;

/// See the module's documentation.
pub enum DeviceOwner {
    /// This process.
    Embedded(Box<Embedded>),
    /// Another.
    Managed(Box<Managed>),
}

/// The device of an embedded stack.
pub struct Embedded {
    trusted: Arc<TrustedTables>,
    /// Number of the application that the stack is.
    application: u16,
    /// Keeps the driver program attached and the device's settings changed; `None`
    /// without a driver.
    device: Option<Mutex<AfXdp, rank::Leaf>>,
}

fn unsupported() -> io::Error {
    io::ErrorKind::Unsupported.into()
}

impl DeviceOwner {
    /// The owner of a device on which the stack has the `embedded` tables.
    pub fn new(tables: &Tables, device: Option<AfXdp>) -> Self {
        DeviceOwner::Embedded(Box::new(Embedded {
            trusted: tables.trusted.clone(),
            application: tables.embedded.number(),
            device: device.map(Mutex::new),
        }))
    }

    /// A manager, of which the stack is an application.
    pub fn managed(client: Arc<Client>) -> Self {
        DeviceOwner::Managed(Box::new(Managed::new(client)))
    }

    fn device(&self) -> Option<&Mutex<AfXdp, rank::Leaf>> {
        match self {
            DeviceOwner::Embedded(embedded) => embedded.device.as_ref(),
            DeviceOwner::Managed(_) => None,
        }
    }

    /// Returns true in the process that owns the device.
    pub fn is_embedded(&self) -> bool {
        matches!(self, DeviceOwner::Embedded(_))
    }

    /// Returns true in private mode: queues are on virtual pairs, and no process has them
    /// polled.
    pub fn is_private(&self) -> bool {
        match self {
            DeviceOwner::Embedded(_) => false,
            DeviceOwner::Managed(managed) => managed.client.joined().private != 0,
        }
    }

    /// Returns true on an interface of Linux.
    pub fn has_driver(&self) -> bool {
        matches!(self, DeviceOwner::Managed(_)) || self.device().is_some()
    }

    /// Asks a manager to make the driver give the stack a port's frames. The caller
    /// waits, and so must hold no lock. `holder`: the kernel socket that is bound there,
    /// which the manager verifies. [`DeviceOwner::own_port`] follows.
    ///
    /// # Errors
    /// As [`Client::own_port_within`].
    pub fn ask_for_port(
        &self,
        protocol: Protocol,
        address: Option<IpAddr>,
        port: u16,
        holder: Option<BorrowedFd<'_>>,
        patience: Patience,
    ) -> io::Result<()> {
        match self {
            DeviceOwner::Embedded(_) => Ok(()),
            DeviceOwner::Managed(managed) => {
                managed.ask_for_port(protocol, address, port, holder, patience)
            }
        }
    }

    /// Makes the driver give the stack a port's frames: [`TrustedTables::own_port`]. A
    /// manager did so when it was asked.
    pub fn own_port(
        &self,
        protocol: Protocol,
        address: Option<IpAddr>,
        port: u16,
    ) -> io::Result<()> {
        match self {
            DeviceOwner::Embedded(own) => {
                own.trusted
                    .own_port(protocol, address, port, own.application)
            }
            DeviceOwner::Managed(_) => Ok(()),
        }
    }

    /// Returns a port's frames to the kernel.
    pub fn disown_port(&self, protocol: Protocol, address: Option<IpAddr>, port: u16) {
        match self {
            // A port that the table keeps costs the driver one look-up.
            DeviceOwner::Embedded(own) => {
                drop(own.trusted.disown_port(protocol, address, port));
            }
            DeviceOwner::Managed(managed) => managed.disown_port(protocol, address, port),
        }
    }

    /// As [`DeviceOwner::ask_for_port`], for a circuit's frames.
    ///
    /// # Errors
    /// As [`Client::open_circuit`].
    pub fn ask_for_circuit(&self, label: Label) -> io::Result<()> {
        match self {
            DeviceOwner::Embedded(_) => Ok(()),
            DeviceOwner::Managed(managed) => match label.circuit() {
                Some(circuit) => managed.client.open_circuit(circuit),
                None => Err(io::ErrorKind::InvalidInput.into()),
            },
        }
    }

    /// Makes the driver give the stack a circuit's frames:
    /// [`TrustedTables::own_circuit`]. A manager did so when it was asked, or when it
    /// gave a call its circuit.
    ///
    /// # Errors
    /// As there.
    pub fn own_circuit(&self, label: Label) -> io::Result<()> {
        match self {
            DeviceOwner::Embedded(own) => own.trusted.own_circuit(label, own.application),
            DeviceOwner::Managed(_) => Ok(()),
        }
    }

    /// Undoes [`DeviceOwner::ask_for_circuit`] and [`DeviceOwner::own_circuit`].
    pub fn disown_circuit(&self, label: Label) {
        match (self, label.circuit()) {
            // A label that the table keeps costs the driver one look-up.
            (DeviceOwner::Embedded(own), _) => own.trusted.disown_circuit(label),
            (DeviceOwner::Managed(managed), Some(circuit)) => {
                managed.client.close_circuit(circuit);
            }
            (DeviceOwner::Managed(_), None) => {}
        }
    }

    /// Returns the connection to the manager, if another process owns the device.
    pub fn client(&self) -> Option<&Arc<Client>> {
        match self {
            DeviceOwner::Embedded(_) => None,
            DeviceOwner::Managed(managed) => Some(&managed.client),
        }
    }

    /// Declares the device to the driver program, which a manager has done by itself.
    pub fn set_device(&self, interface: u32, link: MacAddress, mtu: usize) {
        if let DeviceOwner::Embedded(own) = self {
            let mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
            own.trusted.set_device(interface, link, mtu);
        }
    }

    /// Releases the port of a datagram socket that is about to be closed.
    pub fn close_datagrams(&self, holder: BorrowedFd<'_>) {
        if let DeviceOwner::Managed(managed) = self {
            managed.close_datagrams(holder);
        }
    }

    /// A listener that holds a port is about to be closed: the port goes with the last of its
    /// connections. `shared`: another process may listen by it on.
    pub fn close_listener(&self, holder: BorrowedFd<'_>, shared: bool) {
        if let DeviceOwner::Managed(managed) = self {
            managed.close_listener(holder, shared);
        }
    }

    /// Returns a port for an outgoing connection, which need not be held; `None`: the
    /// kernel chooses one. The call may wait for a manager, so the caller must hold no
    /// lock.
    ///
    /// # Errors
    /// EADDRNOTAVAIL when no port is left; as [`Client::lease_within`].
    pub fn outgoing_port(&self, patience: Patience) -> io::Result<Option<u16>> {
        match self {
            DeviceOwner::Embedded(_) => Ok(None),
            DeviceOwner::Managed(managed) => managed.outgoing_port(patience).map(Some),
        }
    }

    /// Has the stack get later fragments that came before their first, as an application
    /// with queues of a manager does anyway.
    pub fn own_orphan_fragments(&self) {
        if let DeviceOwner::Embedded(own) = self {
            own.trusted.set_fragment_application(Some(own.application));
        }
    }

    /// Sets the addresses of this host, which a manager knows by itself.
    pub fn set_locals(&self, addresses: &[IpAddr]) -> io::Result<()> {
        let DeviceOwner::Embedded(own) = self else {
            return Ok(());
        };
        own.trusted.set_locals(addresses).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!(
                    "{} addresses of this host do not fit into the driver's table of {LOCALS}",
                    addresses.len()
                ),
            )
        })
    }

    /// Sets which frames the kernel uses although they are not for this host, which a
    /// manager knows by itself.
    pub fn set_kernel_uses(&self, reader: &mut UsesReader) {
        if let DeviceOwner::Embedded(own) = self {
            own.trusted.set_kernel_uses(reader.read());
        }
    }

    /// Attaches the driver program again.
    ///
    /// # Errors
    /// `Unsupported` on a manager's device; the errors of attaching it.
    pub fn attach_again(&self, interface: &str) -> io::Result<()> {
        if !self.is_embedded() {
            return Err(unsupported());
        }
        let Some(device) = self.device() else {
            return Ok(());
        };
        let mut device = lock(device);
        let mode = device.mode;
        device.program.attach(interface, mode)
    }

    /// Returns what is wrong with the manager, if there is one.
    pub fn warning(&self) -> Option<String> {
        match self {
            DeviceOwner::Embedded(_) => None,
            DeviceOwner::Managed(managed) => managed.client.ended(),
        }
    }

    /// Arranges that a file is removed when the process ends, even if it is killed.
    /// `None` if this cannot be arranged.
    pub fn remove_on_exit(&self, path: &Path) -> Option<Undo> {
        let device = lock(self.device()?);
        device.restorer()?.on_exit_remove(path).ok()
    }

    /// Arranges that a command runs when the process ends, even if it is killed, or when
    /// the result is dropped ([`tidewall_manager::restore::Restorer::on_exit_run`]).
    ///
    /// # Errors
    /// `Unsupported` without a process that could run it; the errors of `on_exit_run`.
    pub fn run_on_exit(&self, arguments: &[&str]) -> io::Result<Undo> {
        let device = lock(self.device().ok_or_else(unsupported)?);
        let restorer = device.restorer().ok_or_else(unsupported)?;
        restorer.on_exit_run(arguments)
    }

    /// Samples the next `frames` frames, none for 0. Records of an earlier trace are
    /// dropped. A manager starts the traces of its own device.
    pub fn start_trace(&self, frames: u32) {
        if let DeviceOwner::Embedded(own) = self {
            self.traced().for_each(drop);
            own.trusted.start_trace(frames);
        }
    }

    /// Returns the frames sampled since the last call.
    pub fn traced(&self) -> impl Iterator<Item = TraceRecord> {
        let records: Vec<TraceRecord> = self
            .device()
            .map(|device| lock(device).program.traces().collect())
            .unwrap_or_default();
        records.into_iter()
    }
}
