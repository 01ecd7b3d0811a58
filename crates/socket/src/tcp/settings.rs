//! TCP settings of a whole stack.

use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidewall_protocol::tcp::{FastOpenKeys, Sysctl};
use tidewall_stack::StackHandle;
use tidewall_stack::lock::lock;

use super::Tcp;
use super::listener::holders::Watcher;

/// Sets the bytes of memory for the data of all TCP connections (Linux `tcp_mem`): data
/// that is unread, out of order, or written and not acknowledged.
///
/// From two thirds of the limit on, no data is held out of order, and windows and buffers
/// stay small. At the limit:
///
/// - no connection holds more than 4 KiB of new data in either direction;
/// - no new connection is accepted;
/// - the largest closed connections are reset.
///
/// Data that an application has not read, or that an open connection has to send, is
/// kept.
pub fn set_tcp_memory(stack: &StackHandle, bytes: u64) {
    Tcp::of(stack.core()).memory.set_limit(bytes);
}

/// Sets the maximum number of closed connections that the stack drives until their written
/// data has arrived. Those closed beyond it are reset (Linux `tcp_max_orphans`).
pub fn set_tcp_orphans(stack: &StackHandle, connections: u64) {
    Tcp::of(stack.core()).memory.set_orphans_max(connections);
}

/// Waits a while for closed connections to send their data. The caller is a process that
/// is about to end and no longer uses any socket. In a forked child it does nothing.
pub fn linger(stack: &StackHandle) {
    if let Ok(core) = stack.here() {
        Tcp::of(core).linger(core);
    }
}

/// Sets the TCP parameters of connections that begin from now on.
pub fn set_sysctl(stack: &StackHandle, sysctl: &Sysctl) {
    if let Ok(core) = stack.here() {
        Tcp::of(core).set_sysctl(sysctl);
        for listener in Tcp::of(core).all_listeners() {
            listener.refresh(core);
        }
    }
}

/// Returns the TCP parameters with which connections begin: those of the kernel when the
/// stack started, or those of [`set_sysctl`].
pub fn sysctl(stack: &StackHandle) -> Sysctl {
    Tcp::of(stack.core()).sysctl()
}

/// Sets the keys of Fast Open cookies (`tcp_fastopen_key`), for several machines that
/// serve one address. They are initially the network namespace's, or random if it has
/// none.
pub fn set_fast_open_keys(stack: &StackHandle, keys: FastOpenKeys) {
    if let Ok(core) = stack.here() {
        Tcp::of(core).set_fast_open_keys(core, keys);
    }
}

/// Sets for how long no client uses Fast Open once the network seems to have dropped it
/// (`tcp_fastopen_blackhole_timeout_sec`). The unit is whole seconds and the default is an
/// hour. With zero, clients continue to use it.
pub fn set_fast_open_black_hole(stack: &StackHandle, time: Duration) {
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let place = &Tcp::of(stack.core()).fast_open.black_hole;
    place.store(seconds, Ordering::Relaxed);
}

/// Returns the keys of Fast Open cookies ([`set_fast_open_keys`]).
pub fn fast_open_keys(stack: &StackHandle) -> FastOpenKeys {
    *lock(&Tcp::of(stack.core()).fast_open.keys)
}

/// Generates a new key for Fast Open cookies. Cookies of the previous key are still
/// accepted, and replaced; older ones are not (RFC 7413 §4.1.2 recommends such a
/// rotation now and then).
///
/// # Errors
/// The errors of reading `/dev/urandom`.
pub fn rotate_fast_open_key(stack: &StackHandle) -> io::Result<()> {
    let mut key = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    let core = stack.here()?;
    let last = lock(&Tcp::of(core).fast_open.keys).primary;
    Tcp::of(core).set_fast_open_keys(
        core,
        FastOpenKeys {
            primary: key,
            backup: Some(last),
        },
    );
    Ok(())
}

/// Sets the callbacks that report what other processes do with adopted listeners. The first
/// watcher stays.
pub fn on_shared_listener(stack: &StackHandle, watcher: Watcher) {
    let _ = Tcp::of(stack.core()).shared_listener.set(watcher);
}
