//! Processes that have one listening kernel socket: what each does with it.
//!
//! A process says it by locks on bytes of the socket itself ([`tidewall_sys::lock_byte`]). The
//! kernel releases them when the process ends, and shows them to any process that has the
//! socket, whatever way it came there.
//!
//! A connection of a stack is its process's. So a stack has a listener's connections only
//! while no other process accepts by it. A child that was forked off to do so is counted
//! before its first accept: it may wait for its turn, as Apache's children do.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidewall_device::demux::CookieMode;
use tidewall_device::forked;
use tidewall_sys::netlink::SocketDiag;
use tidewall_sys::{byte_locker, lock_byte};

use super::{ListenerInner, TcpListener};
use crate::tcp::Tcp;
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::lock::lock;

/// Byte of processes that accept connections, or wait for them.
const ACCEPTS: u32 = 0;
/// Byte of forked children that may yet do so.
const INHERITED: u32 = 1;
/// Byte of the process whose stack has the connections.
const OWNS: u32 = 2;

/// How often a stack looks for other processes after it has forked, and before.
const LOOK_EVERY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// Another process that may accept what comes to a listener's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharer {
    /// It accepts by the same socket, or was forked off with it: its number, 0 in another
    /// namespace.
    Socket(i32),
    /// It has a listener of its own at the address (SO_REUSEPORT).
    Address,
}

/// Callbacks of the owner of adopted listeners, about other processes.
#[derive(Clone, Copy, Debug)]
pub struct Watcher {
    /// A listener's new connections go to the kernel because of another process, or come to
    /// the stack again (`None`). A thread of the stack calls it.
    pub hear: fn(SocketAddr, Option<Sharer>),
    /// Whether a socket, by the number of its file, is this process's.
    pub is_own: fn(u32) -> bool,
}

/// True where another process listens at a port, too (SO_REUSEPORT).
pub fn another_listens(sockets: &mut SocketDiag, port: u16, is_own: fn(u32) -> bool) -> bool {
    let listening = sockets.listening(port).unwrap_or_default();
    let files = listening.iter().map(|it| it.inode);
    files.into_iter().any(|inode| inode != 0 && !is_own(inode))
}

/// This process accepts connections by a listening socket from now on. Async-signal-safe.
pub fn note_accepting(socket: BorrowedFd<'_>) {
    // A process that cannot lock the byte counts as one that does not accept.
    let _ = lock_byte(socket, ACCEPTS, true);
}

/// This process was forked off with a listening socket (true), or has executed a program
/// since (false). Async-signal-safe.
pub fn note_inherited(socket: BorrowedFd<'_>, inherited: bool) {
    let _ = lock_byte(socket, INHERITED, inherited);
}

/// Another process that accepts connections by a listening socket, or was forked off with it.
pub fn other_user(socket: BorrowedFd<'_>) -> Option<i32> {
    byte_locker(socket, ACCEPTS..INHERITED + 1).ok().flatten()
}

/// True while a stack of another process has a listening socket's connections.
pub fn is_owned(socket: BorrowedFd<'_>) -> bool {
    byte_locker(socket, OWNS..OWNS + 1).is_ok_and(|owner| owner.is_some())
}

impl TcpListener {
    /// Leaves new connections to the kernel socket that was adopted, for good. Connections
    /// that are here already, and those whose handshake has begun, are accepted as before.
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

    /// True while connections to its address begin here.
    pub(super) fn is_served(&self) -> bool {
        !self.is_shut() && !self.given_back.load(Ordering::SeqCst)
    }

    /// Locks the bytes that say what this process does; a number of the socket that was closed
    /// has released them.
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

    /// Gives connections back that another process may accept, or takes them again. What has
    /// changed: the other process, or `None` where there is none any more.
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
    /// Looks whether other processes have the listeners that were adopted. How long until the
    /// next look; `None` without such a listener.
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
