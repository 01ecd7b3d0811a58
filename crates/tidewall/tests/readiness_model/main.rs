//! Readiness beside that of Linux. One column runs operations on kernel sockets over
//! loopback, the other the same on Tidewall's sockets. Both must give the same answers.
//!
//! `column` defines the operations of a column; `linux` and `tidewall` are the two.
//! `random` runs random sequences over both, `scripts` and `select_scripts` those that are
//! worth naming. `threads` tests concurrency, on Tidewall alone.

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
