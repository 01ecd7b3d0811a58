//! The system calls that rustix lacks. Callers use rustix for those that it has.
//!
//! Lives here:
//! - socket options by number ([`set_option`]);
//! - datagrams with their ancillary data ([`receive_message`], [`MessageBatch`]);
//! - sleeping with a signal mask ([`wait_readable`], [`SignalSet`]);
//! - ioctls of interfaces and of epoll;
//! - one netlink client ([`netlink`]);
//! - shared memory ([`Mapping`]) and record locks ([`lock_byte`]);
//! - priorities of threads ([`priority`]);
//! - decisions of a filter of system calls ([`seccomp`]).
//!
//! Does not live here: anything that knows packets or Tidewall's sockets.
//!
//! Read first: socket(7), ip(7), netlink(7), rtnetlink(7);
//! Documentation/userspace-api/netlink/intro.rst in the Linux tree.
#![deny(unsafe_code)]

pub mod ethtool;
pub mod bpf {
    //! Maps and names of bpf(2).
    pub use crate::raw_bpf::{
        ArrayMap, create_array, delete_element, freeze, interface_of_link, pin, pinned, set_object,
    };
}
pub mod interface {
    //! ioctls that take a `struct ifreq`.
    pub use crate::raw_interface::*;

    /// Describes that an interface is down, and how to fix it; `None` if it is up or does
    /// not exist.
    pub fn down(name: &str) -> Option<String> {
        let link = crate::netlink::Rtnetlink::open()
            .ok()?
            .link(index(name).ok()?)
            .ok()?;
        (!link.up).then(|| {
            format!("{name} is down: no frame comes or leaves (ip link set dev {name} up)")
        })
    }
}
mod address;
mod ancillary;
pub mod netlink;
pub mod priority;
#[allow(unsafe_code)]
mod raw_bpf;
#[allow(unsafe_code)]
mod raw_epoll;
#[allow(unsafe_code)]
mod raw_interface;
#[allow(unsafe_code)]
mod raw_lock;
#[allow(unsafe_code)]
mod raw_mapping;
#[allow(unsafe_code)]
mod raw_message;
#[allow(unsafe_code)]
mod raw_option;
#[allow(unsafe_code)]
mod raw_poll;
#[allow(unsafe_code)]
mod raw_thread;
pub mod seccomp;
mod thread;
mod wake;

pub use address::RawAddress;
pub use ancillary::Ancillary;
pub use raw_bpf::{Attach, attach_xdp};
pub use raw_epoll::{Epoll, busy_poll};
pub use raw_lock::{byte_locker, lock_byte};
pub use raw_mapping::{Mapping, SharedPage};
pub use raw_message::{Message, MessageBatch, Received, receive_message, send_message};
pub use raw_option::{
    SO_BUSY_POLL, SO_BUSY_POLL_BUDGET, SO_INCOMING_NAPI_ID, SO_PREFER_BUSY_POLL, attach_filter,
    option, option_bytes, peer_process, set_option, set_option_bytes,
};
pub use raw_poll::{SignalSet, poll_readable, ppoll, ready_now, select};
pub use raw_thread::{find_no_files, set_fifo};
pub use thread::{monotonic, pin, process_time, raise_open_files, thread_time};
pub use wake::{WakeFd, wait_readable};

/// Converts a call's result: a count, or the calling thread's last error.
fn count(result: std::ffi::c_long) -> std::io::Result<usize> {
    usize::try_from(result).map_err(|_| std::io::Error::last_os_error())
}

/// As [`count`], for a call that returns nothing else.
fn done(result: i32) -> std::io::Result<()> {
    count(result.into()).map(|_| ())
}
