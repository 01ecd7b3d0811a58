//! Provisional.
pub mod script;
