//! Debian's programs, unmodified, on Tidewall (`tidewall run`) and on the kernel's
//! sockets, queried by Linux clients; their answers are the same. Needs root; skipped
//! without. `scripts/compatibility.sh` writes docs/compatibility.md from the tests that
//! passed.

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
