//! Listeners for calls.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tidewall_atm::calls::ListenerId;
use tidewall_readiness::Events;
use tidewall_readiness::registration::{Handle, Pollable};
use tidewall_readiness::wait_queue::WaitQueue;
use tidewall_stack::StackHandle;
use tidewall_stack::threads::{Waitable, Waker};
use tidewall_wire::atm::Nsap;

use super::call::check;
use super::{Atm, AtmOptions, AtmSocket, Sap, errno};

/// Largest backlog (Linux's `net.core.somaxconn`).
const BACKLOG_MAX: usize = 4096;

/// A socket that accepts calls to a number: what Linux's AF_ATMSVC socket is once it
/// listens.
///
/// Calls wait until they are accepted; a caller sees its call answered only then. A caller
/// that is not answered within 10 seconds gives up (T310). A call beyond the backlog is
/// refused.
pub struct AtmListener {
    pub(super) inner: Arc<ListenerInner>,
    // Dropped after `inner`'s use in Drop; keeps the device open.
    stack: StackHandle,
    nonblocking: AtomicBool,
}

impl std::fmt::Debug for AtmListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AtmListener")
            .field("sap", &self.inner.sap)
            .finish_non_exhaustive()
    }
}

/// The state that a listener shares with the stack.
pub struct ListenerInner {
    pub(super) sap: Sap,
    pub(super) options: AtmOptions,
    pub(super) backlog: usize,
    pub(super) wait_queue: WaitQueue,
    /// Set with the lock of the calls held.
    pub(super) id: OnceLock<ListenerId>,
    /// Calls that wait to be accepted; changed with the lock of the calls held.
    pub(super) waiting: AtomicUsize,
    pending_error: AtomicI32,
}

impl ListenerInner {
    pub(super) fn has_calls(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// A waiting call was removed.
    pub(super) fn taken(&self) {
        let less = |waiting: usize| waiting.checked_sub(1);
        let _ = (self.waiting).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// A call waits.
    pub(super) fn called(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.wait_queue.notify_one(Events::DATA_CAME);
    }

    /// Fails the next call that accepts.
    pub(super) fn fail(&self, error: i32) {
        self.pending_error.store(error, Ordering::Relaxed);
        self.wait_queue.notify(Events::STATE_CHANGED);
    }
}

impl AtmListener {
    /// Listens for calls to a number of the stack: its address, with any last byte.
    ///
    /// # Errors
    /// As Linux: EUNATCH without control (`Stack::control_atm`). EADDRNOTAVAIL for a number
    /// that is not the stack's. EADDRINUSE when another listener has the same address. EINVAL
    /// for a backlog over 4,096, or 0, and for options out of range.
    pub fn bind(
        stack: &StackHandle,
        sap: impl Into<Sap>,
        backlog: usize,
        options: AtmOptions,
    ) -> io::Result<Self> {
        let core = stack.here()?;
        core.check_protocol::<Atm>()?;
        core.netdev.check()?;
        check(&options)?;
        if !(1..=BACKLOG_MAX).contains(&backlog) {
            return Err(errno(libc::EINVAL));
        }
        let inner = Arc::new(ListenerInner {
            sap: sap.into(),
            options,
            backlog,
            wait_queue: WaitQueue::default(),
            id: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            pending_error: AtomicI32::new(0),
        });
        Atm::of(core).listen(core, &inner)?;
        Ok(AtmListener {
            inner,
            stack: stack.clone(),
            nonblocking: AtomicBool::new(false),
        })
    }

    /// Accepts a call: returns its socket, and the calling number, if the caller states it.
    /// Payloads sent on it wait until the caller has acknowledged.
    ///
    /// # Errors
    /// EAGAIN when nonblocking and none waits, EINTR; ENFILE when the stack's channels are all
    /// in use: the call is released then.
    pub fn accept(&self) -> io::Result<(AtmSocket, Option<Nsap>)> {
        let core = self.stack.here()?;
        core.helper.application_is_here();
        let mut polled = false;
        loop {
            let accepted = Atm::of(core).accept(core, &self.inner);
            // One thread may have been woken for several calls, whatever comes of this one.
            if !matches!(accepted, Ok(None)) && self.inner.has_calls() {
                self.inner.wait_queue.threads().wake_one();
            }
            if let Some(inner) = accepted? {
                let peer = inner.peer();
                return Ok((AtmSocket::of(inner, &self.stack, false), peer));
            }
            core.netdev.check()?;
            if self.is_nonblocking() {
                if polled {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                polled = true;
                core.receiver.round(core, false)?;
                core.before_sleep(core.now());
                continue;
            }
            core.receiver.sleep(core, &[&*self.inner], None)?;
            self.take_error()?.map_or(Ok(()), Err)?;
        }
    }

    /// Returns the address to which it is bound (`getsockname`).
    pub fn sap(&self) -> Sap {
        self.inner.sap
    }

    /// Takes the pending error, if any (SO_ERROR).
    ///
    /// # Errors
    /// None; the signature is the other sockets'.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(match self.inner.pending_error.swap(0, Ordering::Relaxed) {
            0 => None,
            error => Some(errno(error)),
        })
    }

    /// Makes accepting return EAGAIN when it would block.
    ///
    /// # Errors
    /// None; the signature is the standard library's.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Reports whether accepting returns EAGAIN when it would block.
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }
}

impl Drop for AtmListener {
    fn drop(&mut self) {
        let Ok(core) = self.stack.here() else { return };
        self.inner.wait_queue.close();
        Atm::of(core).unlisten(core, &self.inner);
    }
}

impl Handle for AtmListener {
    type Shared = ListenerInner;

    fn stack(&self) -> &StackHandle {
        &self.stack
    }

    fn shared(&self) -> &Arc<ListenerInner> {
        &self.inner
    }
}

impl Waitable for ListenerInner {
    fn enter(&self, waker: &Arc<Waker>) {
        self.wait_queue.enter(waker, true);
    }

    fn leave(&self, waker: &Arc<Waker>) {
        self.wait_queue.leave(waker);
    }

    fn has_input(&self) -> bool {
        self.has_calls() || self.pending_error.load(Ordering::Relaxed) != 0
    }
}

impl Pollable for ListenerInner {
    fn wait_queue(&self) -> &WaitQueue {
        &self.wait_queue
    }

    fn events(&self) -> Events {
        let failed = self.pending_error.load(Ordering::Relaxed) != 0;
        Events::NONE
            .with_if(Events::ERR, failed)
            .with_if(Events::READABLE, self.has_calls())
    }
}
