//! The TCP engine: two of them over a link, and one against a peer whose
//! segments are written by hand.

mod attacks;
mod closing;
mod duplicates;
mod ecn;
mod frozen;
mod handshake;
mod link;
mod marks;
mod pacing;
mod path_mtu;
mod peer;
mod receiving;
mod recovery;
mod sending;
mod transfer;
