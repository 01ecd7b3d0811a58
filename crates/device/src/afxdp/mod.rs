//! AF_XDP: a queue of a Linux interface, received without the kernel's stack.
//!
//! [`make`] binds the socket of one queue, over frame memory of its own or a part of
//! [`SharedUmem`]; it needs privileges. [`adopt`] receives and sends with it; it needs
//! none and may run in another process. [`open`] does both. The device's owner
//! (crates/manager) decides which program redirects frames here and when the device
//! interrupts. The receiver asks it through [`Owner`]. Rings and memory are closed on
//! exec and end with the process.
//!
//! The path of a frame in here: driver ring → poll (`napi`) → driver program
//! (`bpf/demux.bpf.c`) → receive ring (`socket`) → [`crate::queue::Receive`].

use std::io;
use std::net::UdpSocket;

use crate::demux::NapiProbe;
use crate::queue::InterruptModeration;

mod bind;
mod checksums;
mod made;
mod napi;
mod probe;
mod segments;
mod sent_pieces;
mod socket;
mod umem;

pub use bind::{frame_size_of, receivable};
pub use checksums::Checksums;
pub use made::{Made, Prepared, Shape, make};
pub use napi::{HELPER_PORTS, helpers};
pub use segments::{Segmentation, leave_packet_sockets};
pub use socket::{Opened, Settings, TRANSMIT_RING, adopt, open, open_transmitter};
pub use umem::SharedUmem;

/// The requests that a queue's receiver makes to the device's owner. Only the owner has
/// the privileges and the trusted tables for them; it may be another process.
pub trait Owner: Send + Sync {
    /// Whether the receiver may poll the device. If not, another process polls it.
    fn lets_poll(&self) -> bool {
        true
    }

    /// See [`crate::queue::Receive::set_moderation`].
    fn set_moderation(&self, moderation: InterruptModeration) -> bool;

    /// See [`crate::queue::Receive::set_deferral`].
    fn set_deferral(&self, deferred: bool) -> bool;

    /// See [`crate::queue::Receive::moderation_lags`].
    fn moderation_lags(&self) -> bool {
        false
    }

    /// See [`crate::demux::TrustedTables::probe_napi`].
    ///
    /// # Errors
    /// Those of an owner that could not be asked, or that refuses.
    fn probe_napi(&self, queue: u32, port: u16, source: u16) -> io::Result<()>;

    /// See [`crate::demux::TrustedTables::napi_probe`].
    fn napi_probe(&self, queue: u32) -> Option<NapiProbe>;

    /// Makes the kernel receive a datagram as if it had arrived on the interface, usually
    /// before this returns.
    ///
    /// # Errors
    /// Unsupported where the kernel cannot; what it reports otherwise.
    fn receive_in_kernel(&self, datagram: &[u8]) -> io::Result<()>;

    /// Replacements for the sockets that a queue was made with.
    ///
    /// # Errors
    /// As [`helpers`].
    fn helpers(&self) -> io::Result<[UdpSocket; 2]>;
}
