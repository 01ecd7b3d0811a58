//! Stored tables of results of TCP on bad paths: each test computes one and compares it
//! with the file in `tables/`. The crate's documentation describes how to read them.

mod acknowledgments;
mod black_hole;
mod bursts;
mod completion;
mod device;
mod ecn;
mod fairness;
mod mixed;
mod pacing;
mod pauses;
mod queue;
mod reordering;
mod rivals;
mod scenario;
mod table;
mod tail_loss;
mod throughput;
mod windows;
