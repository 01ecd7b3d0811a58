//! Tests of the link. Most send numbered frames of an experimental ethertype,
//! which every driver passes to the kernel, and read them from the kernel's
//! list; those about receiving send UDP to a port that a channel owns.

mod driver;
mod support;
mod wire;
