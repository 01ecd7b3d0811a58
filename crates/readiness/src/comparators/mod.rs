//! What the papers compared with, kept to be measured beside the rest. Slow on
//! purpose; nothing else uses it.

mod classical_select;
pub(crate) mod linear;
