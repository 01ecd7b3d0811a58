//! TCP held against what others expect of it: whole conversations, socket calls
//! on one side and packets on the other, on a virtual clock.
//!
//! What lives here: [`script`] and [`run`], packet scripts and what runs them on the
//! sockets that ship, `tidewall_posix` over a stack on virtual time; `raw_interface`,
//! the C interface by which the public packetdrill tool drives the same host.
//!
//! What may not: a rule of TCP, or anything else that makes what the stack does look
//! like what another does: otherwise the scripts would judge what nobody ships. Nor
//! waiting for time to pass; nothing here is on the way of a real packet.
//!
//! Read first: RFC 9293 §3.9 (the calls), socket(7), tcp(7), epoll(7), and
//! docs/tcp.md for what the public scripts find.
#![deny(unsafe_code)]

mod host;
pub mod raw_interface;
pub mod run;
pub mod script;
