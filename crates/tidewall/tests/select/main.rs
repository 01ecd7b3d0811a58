//! `select`, `poll` and event queues of one table: what wakes them, what they do
//! with numbers that come and go, and events as the 1999 interface delivers them.
//! What they answer is compared with Linux in `readiness_model`.

mod event_queue;
mod kernel_files;
mod kernel_set;
#[path = "../signals/raw_signals.rs"]
mod raw_signals;
mod sleeping;
mod support;
mod tables;
