//! The TCP engine: two of them over a link, and one against a peer whose
//! segments are written by hand.

mod link;
mod transfer;
