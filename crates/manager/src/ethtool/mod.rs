//! The settings of a real network card that its host controls:
//!
//! - [`Coalescing`]: when it interrupts
//! - [`Steering`], with [`Filters`] and [`Channels`]: the receive queue of a flow
//! - [`Narrowed`]: the queues over which its hash spreads other flows
//! - [`xps`]: the transmit queue of a CPU's frames
//! - [`Features`]: what it changes by itself when a program is attached
//!
//! Everything set here is restored when its value is dropped. If the process dies first,
//! the [`Restorer`] sends the device the request that was registered before the change.
//! The restorer works in the network namespace in which it was started, so start it in
//! that of the interface.
//!
//! Virtual devices refuse most of this (veth, the loopback device). Every error names the
//! interface and the knob, so that a caller can print it as a warning and continue.
//! Refusals have the kind `Unsupported`.
//!
//! Read first: ethtool(8) `-C`, `-N`, `-K`, `-l`; linux/ethtool.h;
//! Documentation/networking/scaling.rst in the Linux tree.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::restore::{Restorer, Undo};
use tidewall_device::interface::name_bytes;
use tidewall_sys::ethtool::{self as raw, NAME_BYTES};

mod channels;
mod coalesce;
mod features;
mod indirection;
mod layout;
mod ntuple;
mod rules;
pub mod xps;

pub use channels::Channels;
pub use coalesce::{Coalescing, Moderation};
pub use features::Features;
pub use indirection::Narrowed;
pub use ntuple::{Filters, NtupleRule, Steering};

/// An interface that requests are sent to. It stays with the network namespace in which
/// it was opened, wherever the thread goes later.
#[derive(Debug)]
struct Device {
    socket: OwnedFd,
    interface: String,
    name: [u8; NAME_BYTES],
}

impl Device {
    fn open(interface: &str) -> io::Result<Device> {
        let name = name_bytes(interface)?;
        Ok(Device {
            socket: tidewall_sys::interface::any_socket()?,
            interface: interface.to_owned(),
            name,
        })
    }

    /// Sends a request and replaces it with the answer.
    fn call<T: FromBytes + IntoBytes + Immutable>(&self, request: &mut T) -> io::Result<()> {
        self.call_bytes(request.as_mut_bytes())
    }

    fn call_bytes(&self, request: &mut [u8]) -> io::Result<()> {
        raw::call(self.socket.as_fd(), &self.name, request)
    }

    /// Makes the restorer send a request when the process dies.
    fn on_exit(
        &self,
        restorer: &Restorer,
        request: &(impl IntoBytes + Immutable),
    ) -> io::Result<Undo> {
        restorer.on_exit_request(&self.name, request.as_bytes())
    }

    /// The error for the caller: interface, knob, reason, and for a device without
    /// support the alternative.
    fn refused(&self, knob: &str, instead: &str, error: &io::Error) -> io::Error {
        let interface = &self.interface;
        let (kind, text) = match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => (
                io::ErrorKind::Unsupported,
                format!("{interface}: the device does not support {knob}{instead}"),
            ),
            Some(libc::EPERM) => (
                io::ErrorKind::PermissionDenied,
                format!("{interface}: {knob}: CAP_NET_ADMIN is needed"),
            ),
            Some(libc::ENODEV) => (
                io::ErrorKind::NotFound,
                format!("{interface}: {knob}: no such interface in this network namespace"),
            ),
            _ => (error.kind(), format!("{interface}: {knob}: {error}")),
        };
        io::Error::new(kind, text)
    }
}

/// Finishes a registered step after this process has tried to undo the change itself. It
/// is forgotten if that worked or nothing is left to undo. Otherwise it is carried out as
/// registered; if that fails too, the restorer keeps it.
fn finish_undo(undo: Option<Undo>, undone: &io::Result<()>) {
    let done = match undone {
        Ok(()) => true,
        Err(error) => error.raw_os_error() == Some(libc::ENODEV),
    };
    match undo {
        // A restorer that is gone has nothing to forget.
        Some(undo) if done => drop(undo.keep()),
        undo => drop(undo),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_interface_and_knob() {
        let device = Device::open("eth9").unwrap();
        let text = |code, kind| {
            let error = device.refused("rx-usecs", "; try X", &io::Error::from_raw_os_error(code));
            assert_eq!(error.kind(), kind);
            error.to_string()
        };
        assert_eq!(
            text(libc::EOPNOTSUPP, io::ErrorKind::Unsupported),
            "eth9: the device does not support rx-usecs; try X"
        );
        assert_eq!(
            text(libc::EPERM, io::ErrorKind::PermissionDenied),
            "eth9: rx-usecs: CAP_NET_ADMIN is needed"
        );
        let absent = text(libc::ENODEV, io::ErrorKind::NotFound);
        assert!(absent.starts_with("eth9: rx-usecs: no such interface"));
        let other = text(libc::EINVAL, io::ErrorKind::InvalidInput);
        assert!(other.starts_with("eth9: rx-usecs: Invalid argument"));
    }
}
