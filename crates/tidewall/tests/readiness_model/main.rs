//! Readiness beside Linux's own: the same operations on kernel sockets over
//! loopback in one column and on Tidewall's in the other must give the same answers.
//!
//! `column` says what a column does; `linux` and `tidewall` are the two; `random`
//! runs random sequences over both, `scripts` and `select_scripts` those that are
//! worth naming.
//! `threads` is about what happens at the same time, where only we answer.

mod column;
mod linux;
mod random;
mod raw_linux;
#[path = "../signals/raw_signals.rs"]
mod raw_signals;
mod scripts;
mod select_scripts;
mod threads;
mod tidewall;
