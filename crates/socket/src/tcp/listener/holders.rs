//! Processes that share one listening kernel socket, and how each uses it.
//!
//! A process publishes its use by locks on bytes of the socket itself
//! ([`tidewall_sys::lock_byte`]). The kernel releases them when the process ends, and shows
//! them to any process that has the socket, however it received the socket.
//!
//! A connection of a stack belongs to its process. So a stack has a listener's
//! connections only while no other process accepts from it. A child that was forked to do
//! so counts before its first accept: it may wait for its turn, as Apache's children do.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidewall_device::demux::CookieMode;
use tidewall_device::forked;
use tidewall_stack::core::Core;
use tidewall_stack::lock::lock;
use tidewall_sys::netlink::SocketDiag;
use tidewall_sys::{byte_locker, lock_byte};

use super::{ListenerInner, TcpListener};
use crate::tcp::Tcp;

/// Byte of processes that accept connections, or wait for them.
const ACCEPTS: u32 = 0;
/// Byte of forked children that may still do so.
const INHERITED: u32 = 1;
/// Byte of the process whose stack has the connections.
const OWNS: u32 = 2;

/// Interval at which a stack checks for other processes, after it has forked and before.
const LOOK_EVERY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// Another process that may accept connections to a listener's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharer {
    /// It accepts by the same socket, or was forked with it: its process id, 0 in another
    /// namespace.
    Socket(i32),
    /// It has a listener of its own at the address (SO_REUSEPORT).
    Address,
}

/// Callbacks of the owner of adopted listeners, about other processes.
#[derive(Clone, Copy, Debug)]
pub struct Watcher {
    /// Called by a thread of the stack when another process makes a listener's new
    /// connections go to the kernel, or when they go to the stack again (`None`).
    pub hear: fn(SocketAddr, Option<Sharer>),
    /// Reports whether a socket, given by its inode, is this process's.
    pub is_own: fn(u32) -> bool,
}

/// Returns true if another process listens at a port, too (SO_REUSEPORT).
pub fn another_listens(sockets: &mut SocketDiag, port: u16, is_own: fn(u32) -> bool) -> bool {
    let listening = sockets.listening(port).unwrap_or_default();
    let files = listening.iter().map(|it| it.inode);
    files.into_iter().any(|inode| inode != 0 && !is_own(inode))
}

/// Records that this process accepts connections by a listening socket from now on.
/// Async-signal-safe.
pub fn note_accepting(socket: BorrowedFd<'_>) {
    // A process that cannot lock the byte counts as one that does not accept.
    let _ = lock_byte(socket, ACCEPTS, true);
}

/// Records that this process was forked with a listening socket (true), or has executed a
/// program since (false). Async-signal-safe.
pub fn note_inherited(socket: BorrowedFd<'_>, inherited: bool) {
    let _ = lock_byte(socket, INHERITED, inherited);
}

/// Returns another process that accepts connections by a listening socket, or was forked with
/// it.
pub fn other_user(socket: BorrowedFd<'_>) -> Option<i32> {
    byte_locker(socket, ACCEPTS..INHERITED + 1).ok().flatten()
}

/// Returns true while a stack of another process has a listening socket's connections.
pub fn is_owned(socket: BorrowedFd<'_>) -> bool {
    byte_locker(socket, OWNS..OWNS + 1).is_ok_and(|owner| owner.is_some())
}

impl TcpListener {
    /// Leaves new connections to the adopted kernel socket, for good. Existing connections
    /// here, and those whose handshake has begun, are accepted as before.
    ///
    /// # Errors
    /// EOWNERDEAD in a forked child.
    pub fn give_back(&self) -> io::Result<()> {
        let core = self.stack.here()?;
        self.inner.for_good.store(true, Ordering::SeqCst);
        self.inner.give_back(core);
        Ok(())
    }
}

impl ListenerInner {
    pub(super) fn is_adopted(&self) -> bool {
        self.adopted.load(Ordering::Acquire)
    }

    /// Returns true while connections to its address begin here.
    pub(super) fn is_served(&self) -> bool {
        !self.is_shut() && !self.given_back.load(Ordering::SeqCst)
    }

    /// Locks the bytes that publish this process's use; closing a descriptor of the socket has
    /// released them.
    pub(super) fn say_what_it_does(&self) {
        if let Some(kernel) = &self.kernel {
            note_accepting(kernel.as_fd());
            let _ = lock_byte(kernel.as_fd(), OWNS, self.is_served());
        }
    }

    fn give_back(&self, core: &Core) {
        if !self.is_adopted() || self.is_shut() || self.given_back.swap(true, Ordering::SeqCst) {
            return;
        }
        self.bequeath(core);
        *lock(&self.cookies) = CookieMode::Off;
        self.say_what_it_does();
    }

    fn take_again(&self, core: &Core) -> io::Result<()> {
        let _binding = lock(&core.binding);
        if self.is_shut() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.listen(core)?;
        self.given_back.store(false, Ordering::SeqCst);
        self.say_what_it_does();
        Ok(())
    }

    /// Returns connections that another process may accept to the kernel, or takes them
    /// again. Returns a change: the other process, or `None` if there is none any more.
    fn look_for_others(
        &self,
        core: &Core,
        sockets: Option<&mut SocketDiag>,
    ) -> Option<Option<Sharer>> {
        let kernel = self.kernel.as_ref().filter(|_| self.is_adopted())?;
        if self.is_shut() || self.for_good.load(Ordering::SeqCst) {
            return None;
        }
        self.say_what_it_does();
        let beside = || {
            let is_own = Tcp::of(core).shared_listener.get()?.is_own;
            let sockets = sockets.filter(|_| self.shares)?;
            another_listens(sockets, self.local.port(), is_own).then_some(Sharer::Address)
        };
        let other = other_user(kernel.as_fd())
            .map(Sharer::Socket)
            .or_else(beside);
        match (other, self.is_served()) {
            (other @ Some(_), true) => {
                self.give_back(core);
                Some(other)
            }
            (None, false) => self.take_again(core).is_ok().then_some(None),
            _ => None,
        }
    }
}

impl Tcp {
    /// Checks whether other processes have the adopted listeners. Returns the time until the
    /// next check; `None` without such a listener.
    pub(crate) fn look_for_others(
        &self,
        core: &Core,
        mut sockets: Option<&mut SocketDiag>,
    ) -> Option<Duration> {
        let listeners = self.all_listeners();
        let mut adopted = listeners.iter().filter(|it| it.is_adopted()).peekable();
        adopted.peek()?;
        for listener in adopted {
            if let Some(other) = listener.look_for_others(core, sockets.as_deref_mut())
                && let Some(watcher) = self.shared_listener.get()
            {
                (watcher.hear)(listener.local, other);
            }
        }
        let [forked, alone] = LOOK_EVERY;
        Some(if forked::is_shared() { forked } else { alone })
    }
}
