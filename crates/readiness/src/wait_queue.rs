//! The threads that wait for an endpoint, and their wake-ups.
//!
//! Every endpoint has a [`WaitQueue`], as a file has in Linux and in gVisor (pkg/waiter).
//! In it are threads, which sleep in a call on the endpoint itself, and [`Registration`]s
//! of contexts that poll many endpoints (epoll sets, `select`, selectors). A thread is
//! *woken* ([`Waker::wake`]). A registration is *notified* of a mask of events, which
//! puts it on its context's ready list. Code that changes an endpoint calls
//! [`WaitQueue::notify`] or its kin after the change is visible.
//!
//! A call that blocks registers, checks again, sleeps, and unregisters:
//!
//! ```text
//!  loop {
//!      if let Some(result) = attempt() { return result }
//!      queue.enter(&waker, exclusive);          // from here on it is woken
//!      if !has_input() { sleep on the waker }   // what came before `enter` is seen here
//!      queue.leave(&waker);
//!  }
//! ```
//!
//! The check after `enter` closes the window in which something comes and no thread is
//! there to wake; the fence in [`Sleepers::is_empty`] orders it. `Receiver::sleep` does
//! this for every call; [`PollContext::wait`] for every context.
//!
//! [`PollContext::wait`]: crate::poll_context::PollContext::wait
//! [`Registration`]: crate::registration::Registration

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use tidewall_stack::lock::{Mutex, rank};
use tidewall_stack::threads::{Sleepers, ThreadList, Waker};

use crate::events::Events;

mod registrations;

pub use registrations::CURRENT_CONTEXT;
use registrations::Registrations;

/// Threads and registrations that wait for one endpoint. See the module.
#[derive(Default)]
pub struct WaitQueue {
    /// Length of `threads`; read without the lock by those who wake.
    thread_count: AtomicU32,
    /// Length of `registrations`, likewise.
    registration_count: AtomicU32,
    threads: ThreadList,
    registrations: Mutex<Registrations, rank::WaitQueue>,
}

impl std::fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitQueue")
            .field("threads", &self.thread_count)
            .field("registrations", &self.registration_count)
            .finish_non_exhaustive()
    }
}

impl WaitQueue {
    /// Threads that sleep in a call on the endpoint itself.
    #[inline]
    pub fn threads(&self) -> Sleepers<'_> {
        Sleepers {
            count: &self.thread_count,
            threads: &self.threads,
        }
    }

    /// Enters a thread. `exclusive`: it consumes the event that wakes it.
    pub fn enter(&self, waker: &Arc<Waker>, exclusive: bool) {
        self.threads().enter(waker, exclusive);
    }

    /// Removes a thread.
    pub fn leave(&self, waker: &Arc<Waker>) {
        self.threads().leave(waker);
    }

    /// Wakes every thread and notifies the registrations of a change of the endpoint.
    #[inline]
    pub fn notify(&self, changed: Events) {
        self.threads().wake_all();
        self.notify_registrations(changed);
    }

    /// Wakes one thread, as something came that one thread takes. Notifies the
    /// registrations as [`WaitQueue::notify`] does.
    #[inline]
    pub fn notify_one(&self, changed: Events) {
        self.threads().wake_one();
        self.notify_registrations(changed);
    }

    /// Wakes one thread to process frames that came for the protocol. Returns false when
    /// no context polls the endpoint.
    #[inline]
    pub fn frames_arrived(&self) -> bool {
        self.threads().wake_any();
        self.enter_frames_with_contexts()
    }
}
