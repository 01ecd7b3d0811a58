//! Every policy on virtual time.

mod grid;
mod machine;
mod properties;
mod replay;
mod steps;
