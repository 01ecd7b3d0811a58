//! What all connections of a proxy share.

use std::cell::Cell;
use std::rc::Rc;

use super::super::log::Log;
use super::super::site::{Clock, Counts};
use super::Spec;

/// What was done since it was last counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Origins that could not be reached or gave no valid answer: 502, 504, 503.
    pub upstream_errors: u64,
    /// Bytes that came from origins.
    pub upstream_bytes: u64,
}

/// What all connections of a proxy share.
#[derive(Debug)]
pub struct Shared {
    /// What it is to do.
    pub spec: Spec,
    /// The time.
    pub clock: Clock,
    /// Set once no further requests are wanted.
    pub stopping: bool,
    /// What was done since it was last counted.
    pub counts: Counts,
    /// The same, of what only a proxy does.
    pub uses: Uses,
    /// The access log.
    pub log: Option<Log>,
    /// Bytes of requests' content that are buffered.
    pub(super) buffered: Rc<Cell<usize>>,
    /// Its name in Via.
    pub(super) pseudonym: String,
}

impl Shared {
    /// A proxy. `number`, best random, tells it apart from other proxies that
    /// requests pass.
    pub fn new(spec: Spec, clock: Clock, number: u64) -> Self {
        Shared {
            spec,
            clock,
            stopping: false,
            counts: Counts::default(),
            uses: Uses::default(),
            log: None,
            buffered: Rc::default(),
            pseudonym: format!("tidewall-{number:x}"),
        }
    }
}
