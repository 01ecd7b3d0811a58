//! Tests of the link. Most send numbered frames of an experimental ethertype. Every
//! driver passes these to the kernel, and the tests read them from the kernel's list.
//! Tests of receiving send UDP to a port that a channel owns.

mod driver;
mod support;
mod wire;
