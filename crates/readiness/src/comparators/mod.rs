//! The algorithms that the papers compared with, kept to be measured beside the rest.
//!
//! Lives here: the classical `select` (`classical_select`) and the linear search for a
//! free descriptor (`linear`). They are slow on purpose; no other code uses them.
//!
//! Read first: Banga and Mogul, USENIX 1998.

mod classical_select;
pub(crate) mod linear;
