//! The switch between a peer and members, in virtual time. Both are small TCP ends of
//! whole-frame segments, over links that lose, reorder, duplicate and delay. A model
//! beside it knows what the switch may do and checks each of its segments.

mod bed;
mod end;
mod endurance;
mod engine;
mod handshakes;
mod hostile;
mod members;
mod model;
mod owners;
mod raw;
mod sack;
mod transfer;
