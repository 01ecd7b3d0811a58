//! Readiness: which of many sockets are ready, at a cost that does not grow with
//! those that are not.
//!
//! Every socket has a wait queue, in which are the *registrations* of the contexts
//! that poll it. A context (`PollContext`) is what one call waits on: a selector's,
//! an epoll set's, that of a thread's `select` or of its event queue. Where the
//! protocol changes a socket it notifies the wait queue, and each registration that is
//! interested in such a change goes on its context's *ready list*: once (a flag of the
//! registration), before a thread is woken, and not once the registration is retired.
//! A context looks at what is on its ready list and at nothing else.
//!
//! A change is reported as by Linux, so that edge-triggered users see the same
//! edges: data that comes is `IN` even if older data was not read; `OUT` comes
//! when a write has found no space and there is some again; a change of state
//! (connected, FIN, RST, shutdown) is reported to everyone.
//!
//! Frames that the protocol has not processed wait in channels. Their socket is
//! entered with every context that polls it, and one thread is woken to run the
//! protocol: that of whichever context looks first does it for all.
//!
//! ```text
//!  frames ──► WaitQueue::frames_arrived ──► PollContext::process ──► protocol
//!              (one thread woken)                                       │ notify
//!  select, poll, epoll_wait, Selector::wait ◄── ready list ◄────────────┤
//!           kernel's descriptors ──► KernelDescriptors::poll ───────────┘
//! ```
//!
//! The way of an event, and where each step is:
//!
//! 1. A frame is sorted into its socket's channel, whose wait queue hears of it
//!    (`wait_queue`). Each `Registration` there (`registration`) is entered with its
//!    context as one with frames, and one thread that sleeps in one of the contexts
//!    is woken.
//! 2. That thread, in `PollContext::wait` (`poll_context`), runs the protocol on what
//!    was entered. The socket finds out what has changed and notifies its wait queue:
//!    registrations that are interested go on their contexts' ready lists.
//! 3. The call that waits takes them off, looks what they are ready for, and reports
//!    it: `epoll` and `Selector` each in their way, `select` and `poll` through what
//!    the thread knows of its descriptors (`interest`, in `thread_state`),
//!    `event_queue` by the ready list alone, `event_loop` by an eventfd.
//!
//! Kernel descriptors of a context sit in one epoll descriptor of the kernel's, so
//! idle ones cost nothing (`kernel_descriptors`); the thread that sleeps on it puts
//! those that are ready on the ready list.
//!
//! Of the ways to wait, [`Selector`] is for programs written for this
//! stack; `select`, `poll` and `epoll_wait` of [`Descriptors`] for
//! those written for Linux; `get_next_event` for threads that share a table and want
//! events alone; mio (a feature) for loops that sleep in the kernel;
//! `Stack::wait` for a few UDP sockets by priority.
//!
//! Read first: Banga & Mogul, USENIX 1998 and (with Druschel) USENIX 1999; epoll(7).
#![deny(unsafe_code)]

pub mod classes;
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
pub mod interest;
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
