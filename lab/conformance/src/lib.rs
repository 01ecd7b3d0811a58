//! Tests TCP against the expectations of others. The tests are whole conversations on a
//! virtual clock, with socket calls on one side and packets on the other.
//!
//! Lives here:
//! - [`script`] and [`run`]: packet scripts and their execution on the production
//!   sockets, `tidewall_posix` over a stack on virtual time;
//! - `raw_interface`: the C interface by which the public packetdrill tool drives the
//!   same host.
//!
//! Does not live here: a rule of TCP, or anything else that makes the stack's behaviour
//! look like another's. Otherwise the scripts would judge code that is never shipped. Nor
//! does anything here wait for real time or handle real packets.
//!
//! Read first: RFC 9293 §3.9 (the calls), socket(7), tcp(7), epoll(7), and docs/tcp.md
//! for the results of the public scripts.
#![deny(unsafe_code)]

mod host;
pub mod raw_interface;
pub mod run;
pub mod script;
