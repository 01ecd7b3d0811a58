//! The device that a stack has taken over, and what is known of it.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

use tidewall_device::afxdp::HELPER_PORTS;
use tidewall_device::demux::TrustedTables;
use tidewall_device::demux::layout::LOCALS;
use tidewall_manager::AfXdp;

use crate::link::LinkState;
use crate::receiver::QueueHandle;
use crate::snapshot::{DeviceLosses, DeviceSnapshot};
use crate::stack::lock;

/// A stack's device.
pub(crate) struct NetDevice {
    pub(crate) name: String,
    /// False on the in-memory device: there is no kernel to hold ports.
    pub(crate) has_kernel: bool,
    /// Keeps the driver program attached and the knobs set.
    pub(crate) device: Option<Mutex<AfXdp>>,
    pub(crate) snapshot: Option<DeviceSnapshot>,
    /// What the device had lost when the stack started.
    pub(crate) losses_before: OnceLock<DeviceLosses>,
    warnings: Mutex<Vec<String>>,
    pub(crate) link: Arc<LinkState>,
}

impl NetDevice {
    /// # Errors
    /// EMFILE.
    pub(crate) fn new(
        name: String,
        has_kernel: bool,
        device: Option<AfXdp>,
        snapshot: Option<DeviceSnapshot>,
        warnings: Vec<String>,
    ) -> io::Result<Self> {
        Ok(NetDevice {
            name,
            has_kernel,
            device: device.map(Mutex::new),
            snapshot,
            losses_before: OnceLock::new(),
            warnings: Mutex::new(warnings),
            link: Arc::new(LinkState::new()?),
        })
    }

    /// ENODEV once the interface is no more.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.link.gone.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        Ok(())
    }

    /// Tells the driver which addresses are this host's now.
    pub(crate) fn read_addresses(&self, tables: &TrustedTables) {
        let set = crate::raw::options::local_addresses(&self.name)
            .and_then(|addresses| set_locals(tables, &addresses));
        if let Err(error) = set {
            self.warn(format!("{}: {error}", self.name));
        }
    }

    /// Attaches the driver program anew.
    pub(crate) fn attach_again(&self) -> io::Result<()> {
        let Some(device) = &self.device else {
            return Ok(());
        };
        let mut device = lock(device);
        let mode = device.mode;
        device.program.attach(&self.name, mode)
    }

    pub(crate) fn warn(&self, warning: String) {
        let mut warnings = lock(&self.warnings);
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    /// See [`Stack::warnings`].
    pub(crate) fn warnings(&self, queues: &[QueueHandle]) -> Vec<String> {
        let mut warnings = lock(&self.warnings).clone();
        let blocked = |queue: &&QueueHandle| lock(&queue.poller).napi().blocked;
        if queues.iter().any(|queue| blocked(&queue)) {
            let (name, ports) = (&self.name, HELPER_PORTS);
            let (first, last) = (ports.start(), ports.end());
            warnings.push(format!(
                "{name}: the receiver does not poll, since the datagrams from which it has the \
                 NAPI id do not reach it: a firewall or rp_filter drops what comes in to UDP \
                 ports {first} to {last} (see: nft add rule inet filter input iifname {name} \
                 udp dport {first}-{last} accept)"
            ));
        }
        warnings
    }
}

/// Enters the addresses of this host into the driver's table.
pub(crate) fn set_locals(tables: &TrustedTables, addresses: &[IpAddr]) -> io::Result<()> {
    tables.set_locals(addresses).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!(
                "{} addresses of this host do not fit into the driver's table of {LOCALS}",
                addresses.len()
            ),
        )
    })
}
