//! Readiness: which of many sockets are ready, at a cost that does not grow with idle
//! sockets.
//!
//! Lives here: the wait queue of an endpoint ([`wait_queue`]), contexts that poll many of
//! them ([`poll_context`], [`registration`]), and the ways to wait:
//! - [`Selector`], for programs written for this stack;
//! - `select`, `poll` and `epoll_wait` of [`Descriptors`], for programs written for
//!   Linux;
//! - `get_next_event`, for threads that share a table and want events alone;
//! - mio (a feature), for loops that sleep in the kernel.
//!
//! Does not live here: sockets, protocols, and `Stack::wait`, which waits for a few UDP
//! sockets by priority.
//!
//! Every socket has a wait queue, which holds the *registrations* of the contexts that
//! poll it. A context (`PollContext`) is what one call waits on: that of a selector, an
//! epoll set, a thread's `select`, or its event queue. A change of a socket notifies its
//! wait queue, and each interested registration goes on its context's *ready list*. It
//! does so once (a flag of the registration), before a thread is woken, and not after it
//! is retired. A context examines only its ready list.
//!
//! Changes are reported as by Linux, so that edge-triggered users see the same edges. New
//! data is `IN` even if older data was not read. `OUT` is reported when space returns
//! after a write has found none. A change of state (connected, FIN, RST, shutdown) is
//! reported to all.
//!
//! Frames that the protocol has not processed wait in channels. Their socket is entered
//! with every context that polls it, and one thread is woken to run the protocol. The
//! context that polls first runs it for all.
//!
//! ```text
//!  frames ──► WaitQueue::frames_arrived ──► PollContext::process ──► protocol
//!              (one thread woken)                                       │ notify
//!  select, poll, epoll_wait, Selector::wait ◄── ready list ◄────────────┤
//!           kernel's descriptors ──► KernelDescriptors::poll ───────────┘
//! ```
//!
//! The path of an event, and the code of each step:
//!
//! 1. A frame is sorted into its socket's channel, and the socket's wait queue is
//!    notified (`wait_queue`). Each `Registration` there (`registration`) is entered with
//!    its context as one with frames. One thread that sleeps in one of the contexts is
//!    woken.
//! 2. That thread, in `PollContext::wait` (`poll_context`), runs the protocol on the
//!    entered sockets. The socket determines what has changed and notifies its wait
//!    queue. Interested registrations go on their contexts' ready lists.
//! 3. The call that waits takes them off, determines their readiness, and reports it.
//!    `epoll` and `Selector` have their own code for this. `select` and `poll` use the
//!    thread's state of its descriptors (`interest`, in `thread_state`). `event_queue`
//!    uses the ready list alone, and `event_loop` an eventfd.
//!
//! A context's kernel descriptors are in one kernel epoll descriptor, so idle ones cost
//! nothing (`kernel_descriptors`). The thread that sleeps on it puts those that are ready
//! on the ready list.
//!
//! Read first: Banga & Mogul, USENIX 1998 and (with Druschel) USENIX 1999; epoll(7).
#![deny(unsafe_code)]

mod classes;
mod comparators;
pub mod descriptor;
pub mod descriptor_set;
mod epoll;
mod epoll_calls;
mod epoll_control;
#[cfg(feature = "mio")]
pub mod event_loop;
mod event_queue;
pub mod events;
mod exchange;
mod files;
mod interest;
mod kernel_descriptors;
pub mod kernel_input;
mod poll;
pub mod poll_context;
#[allow(unsafe_code)]
mod raw;
pub mod registration;
mod select;
mod selector;
mod thread_state;
pub mod wait_queue;

pub use descriptor::Descriptors;
pub use descriptor_set::{DescriptorSet, Iter};
pub use epoll::{EpollEvent, EpollSet};
pub use epoll_control::Operation;
pub use event_queue::DescriptorEvent;
pub use events::Events;
pub use files::KernelFile;
pub use poll::PollFd;
pub use selector::{Event, Interest, Selectable, Selected, Selector};
pub use tidewall_stack::threads::{Interrupter, interrupt_sleep, take_interruption};
pub use tidewall_sys::SignalSet;
