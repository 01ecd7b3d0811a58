//! What all connections of a proxy share.

use std::cell::Cell;
use std::rc::Rc;

use super::super::log::Log;
use super::super::site::{Clock, Counts};
use super::Spec;
use super::store::Cache;

/// What has been done for requests, to be collected by whoever counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Answered from the cache without asking.
    pub hits: u64,
    /// Answered from the cache after the origin had confirmed it (304).
    pub revalidated: u64,
    /// The origin was asked whether what is stored is current, and had
    /// something else.
    pub replaced: u64,
    /// Nothing was stored that suits.
    pub misses: u64,
    /// Passed on without looking: other methods, conditions that only the
    /// origin can judge.
    pub passed: u64,
    /// Answered from the cache although the origin could not be asked
    /// (stale-if-error).
    pub stale: u64,
    /// Origins that could not be reached or answered no good: 502, 504, 503.
    pub upstream_errors: u64,
    /// Bytes that came from origins.
    pub upstream_bytes: u64,
    /// Responses that were stored.
    pub stored: u64,
}

/// What all connections of a proxy share.
#[derive(Debug)]
pub struct Shared {
    /// What it is to do.
    pub spec: Spec,
    /// The time.
    pub clock: Clock,
    /// What is kept.
    pub cache: Cache,
    /// Set once no further requests are wanted.
    pub stopping: bool,
    /// What has been done since somebody last took it.
    pub counts: Counts,
    /// The same, of what only a proxy does.
    pub uses: Uses,
    /// The access log.
    pub log: Option<Log>,
    /// Bytes of content that are collected now.
    pub(super) collected: Rc<Cell<usize>>,
    /// Its name in Via.
    pub(super) pseudonym: String,
    /// Room for the key of the request at hand.
    pub(super) key: Vec<u8>,
}

impl Shared {
    /// A proxy with an empty cache. `number` tells it apart from other proxies
    /// that requests pass: best random.
    pub fn new(spec: Spec, clock: Clock, number: u64) -> Self {
        Shared {
            cache: Cache::new(spec.cache_bytes),
            spec,
            clock,
            stopping: false,
            counts: Counts::default(),
            uses: Uses::default(),
            log: None,
            collected: Rc::default(),
            pseudonym: format!("tidewall-{number:x}"),
            key: Vec::new(),
        }
    }
}
