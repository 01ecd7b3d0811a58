//! `select`, `poll` and event queues of one table. The tests cover wake-ups, descriptors
//! that come and go, and events as the 1999 interface delivers them. `readiness_model`
//! compares the answers with Linux.

mod event_queue;
mod kernel_files;
mod kernel_set;
#[path = "../signals/raw_signals.rs"]
mod raw_signals;
mod sleeping;
mod support;
mod tables;
