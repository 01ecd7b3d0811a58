//! Both levels of tables together, and the code both use.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use super::layout::{Application, Device, Protocol};
use super::{ApplicationTables, TrustedTables};

/// The application of an embedded stack, which is alone on its device and in the process
/// of the device's owner.
pub const EMBEDDED_APPLICATION: u16 = 0;

/// Both levels of a device whose owner and one application are in the same process.
#[derive(Clone, Debug)]
pub struct Tables {
    /// The tables that the device's owner writes.
    pub trusted: Arc<TrustedTables>,
    /// The tables that its application writes.
    pub embedded: Arc<ApplicationTables>,
}

pub(super) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_owned())
}

/// Index of a port in the tables that hold UDP, then TCP, each by the port as
/// it stands in a header (`bpf/tables.h`).
pub(super) fn port_index(protocol: Protocol, port: u16) -> usize {
    (if protocol == Protocol::Tcp { 65536 } else { 0 }) + usize::from(port.to_be())
}

/// An address to bind to, `None` for any.
pub(super) fn specified(address: Option<IpAddr>) -> Option<IpAddr> {
    address.filter(|address| !address.to_canonical().is_unspecified())
}

impl Tables {
    /// Creates empty tables on the heap, for a device inside this process and for tests.
    /// The flow table's key is constant: no stranger sends here.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn in_memory() -> io::Result<Self> {
        Self::in_memory_with_key([0; 2])
    }

    /// As [`Tables::in_memory`], with a key for the flow table's SipHash. A device that
    /// strangers reach must draw it at random.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn in_memory_with_key(hash_key: [u64; 2]) -> io::Result<Self> {
        Ok(Tables {
            trusted: Arc::new(TrustedTables::in_memory(hash_key)?),
            embedded: Arc::new(ApplicationTables::in_memory(
                EMBEDDED_APPLICATION,
                hash_key,
            )?),
        })
    }

    /// [`TrustedTables::map`].
    pub fn device(&self) -> &Device {
        self.trusted.map()
    }

    /// [`ApplicationTables::map`].
    pub fn application(&self) -> &Application {
        self.embedded.map()
    }
}
