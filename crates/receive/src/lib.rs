//! Receiving: how a frame gets from a device queue into the channel of its socket, and
//! which thread's time that takes.
//!
//! Lives here:
//! - [`channel`]: one bounded queue per socket
//! - [`free`]: the return path of frames
//! - [`credit`]: how the driver knows that a channel is full
//! - [`poller`]: one round of receiving
//! - [`control`]: how many frames a round takes, and when the device may interrupt
//! - [`architecture`]: the division of work: LRP's four arrangements and RHIP's
//! - [`schedule`]: when a queue is polled next
//! - [`steering`]: when a flooded port gets its own queue
//! - [`share`]: how often that queue is polled
//!
//! Does not live here: protocols, sockets, system calls of a socket.
//!
//! Read first: LRP (Druschel & Banga, OSDI 1996) §3; RHIP (Chang & Muppala, LCN 2007) §II
//! to IV; docs/decisions/index.md on credits and receive control.
//!
//! ```text
//!  device queue ──poll──► frames + metadata ──► credit ──► channel ──► receiver
//!   ▲    ▲                                                               │
//!   └─ control (Bp, T)                                                   │
//!        │                                                               │
//!        └────────── fill ring ◄──────────── free stack ◄────────────────┘
//! ```
#![deny(unsafe_code)]

pub mod architecture;
pub mod channel;
pub mod control;
pub mod credit;
pub mod free;
pub mod poller;
#[allow(unsafe_code)]
pub(crate) mod raw;
pub mod schedule;
pub mod share;
mod slots;
pub mod steering;
mod sync;

pub use slots::Slots;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod model_tests;
