//! The stack below the sockets: the state and the work that all protocols share.
//!
//! Lives here:
//! - the queues of a device, and the rounds that poll them ([`receiver`]);
//! - the channels and their owners ([`channels`], [`endpoint`]);
//! - threads that wait ([`threads`]);
//! - routes, fragments and transmission ([`ip`]);
//! - timers ([`timers`]) and the helper thread ([`helper`]);
//! - the owner of the device ([`device_owner`]);
//! - an operator's view of the stack ([`snapshot`], [`control`]).
//!
//! Protocols stand above and are registered when a stack starts ([`protocol::Protocol`]).
//! No protocol is known here.
//!
//! Does not live here: sockets, readiness, packet formats, demultiplexing.
//!
//! Modules of state (`receiver`, `channels`, `timers`, `output`, `helper`) do not use
//! [`core::Core`], which contains one of each. Modules of work (`rounds`, `sleep`,
//! `work`, `observe`, `link`, `control`) stand above it.
//!
//! Read first: LRP §3 (protocol processing in the receiver's context).
//!
//! ```text
//!  channel ──► protocol ──► application        (in the thread that calls recv)
//!     ▲                          │
//!   round ◄── poll when empty    └──► transmit ring, or the kernel socket
//! ```
#![deny(unsafe_code)]

pub mod address;
pub mod causes;
pub mod channel_frame;
pub mod channels;
pub mod clock;
pub mod control;
pub mod core;
pub mod device_owner;
pub mod endpoint;
pub mod helper;
mod host;
pub mod ip;
pub mod kernel_calls;
mod link;
pub mod lock;
pub mod netdev;
mod observe;
pub mod operator;
pub mod output;
pub mod protocol;
pub mod receiver;
pub mod snapshot;
pub mod stack;
pub mod threads;
pub mod timeout;
pub mod timers;
pub mod trace;
mod work;

pub use stack::StackHandle;
