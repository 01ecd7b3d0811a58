//! The TCP engine: two engines over a link, and one with a peer whose segments are
//! written by hand.

mod acp;
mod attacks;
mod closing;
mod duplicates;
mod ecn;
mod fast_link;
mod fast_open;
mod frames;
mod frozen;
mod handshake;
mod link;
mod notifications;
mod odd_peer;
mod pacing;
mod path_mtu;
mod peer;
mod push_marks;
mod random;
mod receiving;
mod recovery;
mod sending;
mod transfer;
