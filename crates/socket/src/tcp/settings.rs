//! What is set, and asked, of TCP of a whole stack.

use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidewall_protocol::tcp::{FastOpenKeys, Sysctl};
use tidewall_stack::StackHandle;
use tidewall_stack::lock::lock;

use super::Tcp;
use super::listener::holders::Watcher;

/// Sets the bytes of memory that data of all TCP connections may take: what waits
/// to be read, came out of order, or was written and not acknowledged. From two
/// thirds of it on nothing is held out of order and windows and buffers stay small;
/// at the limit no connection holds more than 4 KiB of new data either way, nobody
/// new gets in, and the largest connections that are closed are reset (Linux
/// `tcp_mem`). What an application has not read, and what a connection that is not
/// closed has to send, is kept.
pub fn set_tcp_memory(stack: &StackHandle, bytes: u64) {
    Tcp::of(stack.core()).memory.set_limit(bytes);
}

/// Sets how many connections that are closed the stack drives at most, until
/// what was written has arrived; those closed beyond are reset (Linux
/// `tcp_max_orphans`).
pub fn set_tcp_orphans(stack: &StackHandle, connections: u64) {
    Tcp::of(stack.core()).memory.set_orphans_max(connections);
}

/// The process is about to end, and with it all sockets, of which none is used any
/// more: connections that were closed send what they have, for a while. In a forked
/// child it does nothing.
pub fn linger(stack: &StackHandle) {
    if let Ok(core) = stack.here() {
        Tcp::of(core).linger(core);
    }
}

/// Changes the kernel's parameters of TCP, for connections that begin from now
/// on.
pub fn set_sysctl(stack: &StackHandle, sysctl: &Sysctl) {
    if let Ok(core) = stack.here() {
        Tcp::of(core).set_sysctl(sysctl);
        for listener in Tcp::of(core).all_listeners() {
            listener.refresh(core);
        }
    }
}

/// The kernel's parameters of TCP as they were when the stack started, or as
/// `Stack::set_sysctl` has set them: what its connections begin with.
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

/// Sets for how long no client uses Fast Open once the network seems to have dropped
/// it (`tcp_fastopen_blackhole_timeout_sec`, in whole seconds; the default is an
/// hour; with zero, clients continue to use it).
pub fn set_fast_open_black_hole(stack: &StackHandle, time: Duration) {
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let place = &Tcp::of(stack.core()).fast_open.black_hole;
    place.store(seconds, Ordering::Relaxed);
}

/// The keys of Fast Open cookies (`Stack::set_fast_open_keys`).
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
