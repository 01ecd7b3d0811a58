//! The device that a stack has taken over, and its state.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use tidewall_device::afxdp::HELPER_PORTS;
use tidewall_sys::interface;

use crate::device_owner::DeviceOwner;
use crate::link::LinkState;
use crate::lock::{Mutex, lock, rank};
use crate::receiver::QueueHandle;
use crate::snapshot::{DeviceLosses, DeviceSnapshot};

/// A stack's device.
pub struct NetDevice {
    /// The name of the interface.
    pub name: String,
    /// False on the in-memory device: there is no kernel to hold ports.
    pub has_kernel: bool,
    /// The owner of the device, by which the stack does what needs privilege.
    pub owner: DeviceOwner,
    /// The device as it was opened; `None` in memory and on a tap.
    pub snapshot: Option<DeviceSnapshot>,
    /// The device's losses before the stack started.
    pub losses_before: OnceLock<DeviceLosses>,
    warnings: Mutex<Vec<String>, rank::Leaf>,
    /// The state of the link, shared with its watch.
    pub link: Arc<LinkState>,
    /// [`Stack::when_interface_is_gone`](crate::StackHandle::when_interface_is_gone)
    pub when_gone: OnceLock<fn(&str)>,
}

impl NetDevice {
    /// # Errors
    /// EMFILE.
    pub fn new(
        name: String,
        has_kernel: bool,
        owner: DeviceOwner,
        snapshot: Option<DeviceSnapshot>,
        warnings: Vec<String>,
    ) -> io::Result<Self> {
        Ok(NetDevice {
            name,
            has_kernel,
            owner,
            snapshot,
            losses_before: OnceLock::new(),
            warnings: Mutex::new(warnings),
            link: Arc::new(LinkState::new()?),
            when_gone: OnceLock::new(),
        })
    }

    /// Returns true once the interface is gone: no frame arrives or leaves by it.
    pub fn is_gone(&self) -> bool {
        self.link.gone.load(Ordering::Relaxed)
    }

    /// Returns ENODEV once the interface is gone, for calls that no kernel socket can
    /// serve.
    pub fn check(&self) -> io::Result<()> {
        match self.is_gone() {
            true => Err(io::Error::from_raw_os_error(libc::ENODEV)),
            false => Ok(()),
        }
    }

    /// Writes this host's present addresses into the driver program's map.
    pub fn read_addresses(&self) {
        let set = crate::kernel_calls::local_addresses(&self.name)
            .and_then(|addresses| self.owner.set_locals(&addresses));
        if let Err(error) = set {
            self.warn(format!("{}: {error}", self.name));
        }
    }

    /// Adds a warning for the operator, once.
    pub fn warn(&self, warning: String) {
        let mut warnings = lock(&self.warnings);
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    /// See [`Stack::warnings`](crate::StackHandle::warnings).
    pub fn warnings(&self, queues: &[QueueHandle]) -> Vec<String> {
        let mut warnings = lock(&self.warnings).clone();
        warnings.extend(self.owner.warning());
        if self.snapshot.is_some() {
            warnings.extend(interface::down(&self.name));
        }
        let blocked = |queue: &&QueueHandle| queue.poller.lock().napi().blocked;
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
