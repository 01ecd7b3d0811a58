//! TCP held against what others expect of it: whole conversations, socket calls
//! on one side and packets on the other, on a virtual clock.
//!
//! What lives here: [`stack`], the socket calls over the engines of
//! `tidewall_protocol::tcp`, as one host of Linux has them; [`script`] and
//! [`run`], packet scripts and what runs them; `raw_interface`, the C interface
//! by which the public packetdrill tool drives a stack that is a library.
//!
//! What may not: a rule of TCP, or anything else that makes what the engine does
//! look like what another stack does. The host adds nothing: packets leave as the
//! engine gives them, calls take and tell what the engine does. Otherwise the
//! scripts would judge what nobody ships. Nor sockets, threads, or waiting for
//! time to pass; nothing here is on the way of a real packet.
//!
//! Read first: RFC 9293 §3.9 (the calls), socket(7), tcp(7), epoll(7), and
//! docs/tcp.md for what the public scripts find.
#![deny(unsafe_code)]

pub mod raw_interface;
pub mod run;
pub mod script;
pub mod stack;
