//! Programs of Debian's, unchanged, on Tidewall (`tidewall run`) and on the kernel's sockets,
//! asked by Linux clients; what they answer is the same. Needs root; skipped without.
//! `scripts/compatibility.sh` writes docs/compatibility.md from what passed.

#[path = "../common/mod.rs"]
mod common;

mod caches;
mod clients;
mod lane;
mod linked;
mod names;
mod proxies;
mod scripted;
mod stock;
mod web;
