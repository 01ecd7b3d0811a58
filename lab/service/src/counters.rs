//! Counters that another process can read at any time.
//!
//! A service whose processor is livelocked cannot answer, so its progress must be
//! readable without it. It counts in a page of a file (best in /dev/shm), at the cost of
//! little more than a memory store per batch.
//!
//! Layout, in 64-bit words of the machine's byte order:
//!
//! | word | meaning |
//! |---|---|
//! | 0 | [`MAGIC`] |
//! | 1 | number of services |
//! | 2 | iterations of the event loop |
//! | 3 | number of times it slept, or tried to |
//! | 4 | CPU time of its waiting calls, ns, if it is counted ([`Counters::count_times`]) |
//! | 5 | CPU time of its calls that accept and connect, ns |
//! | 6 | CPU time of its thread, ns |
//! | 7 | lines that its access log has dropped |
//! | 8 + 8·n | datagrams that service n received |
//! | 9 + 8·n | bytes of their payloads |
//! | 10 + 8·n | replies that it handed to the stack |
//! | 11 + 8·n | errors that its socket reported |
//! | 12 + 8·n | batches that held at least one datagram |
//! | 13 + 8·n | connections accepted |
//! | 14 + 8·n | connections open now |
//! | 15 + 8·n | bytes sent over connections |
//!
//! For a web server, requests stand for datagrams received, the bytes are the received
//! ones, and replies are responses. Errors are connections that broke and requests that
//! were rejected.
//!
//! The last [`PROXY_WORDS`] words are those of a proxy ([`ProxyCounts`], in the
//! order of its fields).
//!
//! The service is the only writer; each cell has its own cache line.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidewall_sys::{SharedPage, thread_time};

use crate::http::proxy::session::Uses;

const BYTES: usize = SharedPage::BYTES;
const WORDS: usize = SharedPage::WORDS;

/// First word of the page.
pub const MAGIC: u64 = u64::from_be_bytes(*b"twservc1");
/// Most services that fit into a page.
pub const SERVICES: usize = (WORDS - PROXY_WORDS) / CELL - 1;
/// Words of a proxy's counts.
pub const PROXY_WORDS: usize = 8;

const CELL: usize = 8;
const COUNT: usize = 1;
const ITERATIONS: usize = 2;
const WAITS: usize = 3;
const TIMES: usize = 4;
const LOG_LOST: usize = 7;

/// Counts, in the order of the words that hold them.
macro_rules! counts {
    ($(#[$about:meta])* $name:ident { $($(#[$note:meta])* $field:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$note])* pub $field: u64,)*
        }

        impl $name {
            fn of(words: &[AtomicU64]) -> Self {
                let mut words = words.iter().map(|word| word.load(Ordering::Relaxed));
                $name { $($field: words.next().unwrap_or(0),)* }
            }
        }
    };
}

counts! {
    /// The counts of one service since it started.
    ServiceCounts {
        /// Datagrams received, processed and answered or discarded.
        received,
        /// Bytes of their payloads.
        bytes,
        /// Replies handed to the stack.
        replies,
        /// Errors that the socket reported.
        errors,
        /// Batches that held at least one datagram.
        batches,
        /// Connections accepted, by a connection service.
        connections,
        /// Connections open now.
        open,
        /// Bytes sent over them.
        sent,
    }
}

counts! {
    /// CPU time of an event loop, if it is counted ([`Counters::count_times`]).
    Times {
        /// In calls that wait (epoll_wait, select, ...), nanoseconds.
        waiting,
        /// In calls that accept and connect, nanoseconds: they allocate descriptors.
        opening,
        /// The whole thread, nanoseconds.
        total,
    }
}

counts! {
    /// The counts of a proxy since it started, beside those of every connection service.
    ProxyCounts {
        /// Requests for which the origin could not be reached or gave no valid
        /// answer.
        upstream_errors,
        /// Bytes received from origins.
        upstream_bytes,
        /// Connections to origins begun.
        upstream_connections,
        /// Connections to origins open now.
        upstream_open,
    }
}

/// The page, for the service that counts.
#[derive(Debug)]
pub struct Counters {
    page: SharedPage,
    path: PathBuf,
    times: AtomicBool,
}

impl Counters {
    /// Creates the file, or takes over an existing one, for `services` services, all
    /// counts zero. The file is removed on drop.
    ///
    /// # Errors
    /// InvalidInput for more than [`SERVICES`]; the error of the file system.
    pub fn create(path: impl AsRef<Path>, services: usize) -> io::Result<Self> {
        if services > SERVICES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("at most {SERVICES} services can be counted"),
            ));
        }
        let path = path.as_ref().to_owned();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        file.set_len(BYTES as u64)?;
        let page = SharedPage::new(&file)?;
        page.words()[COUNT].store(services as u64, Ordering::Relaxed);
        // Last: a reader that sees it sees the count.
        page.words()[0].store(MAGIC, Ordering::Release);
        let times = AtomicBool::new(false);
        Ok(Counters { page, path, times })
    }

    /// Enables counting of the CPU time of calls that wait and of those that allocate
    /// descriptors, for machines without `perf`. It costs two clock readings for each
    /// such call, about half a microsecond.
    pub fn count_times(&self) {
        self.times.store(true, Ordering::Relaxed);
    }

    pub(crate) fn iterated(&self) {
        bump(self.page.words().get(ITERATIONS), 1);
    }

    pub(crate) fn waited(&self) {
        bump(self.page.words().get(WAITS), 1);
    }

    /// Counts lines that the access log has dropped.
    pub(crate) fn log_lost(&self, lines: u64) {
        bump(self.page.words().get(LOG_LOST), lines);
    }

    /// Runs a call that waits, or one that opens a connection, and counts its CPU time if
    /// times are counted.
    pub(crate) fn time<T>(&self, waits: bool, call: impl FnOnce() -> T) -> T {
        if !self.times.load(Ordering::Relaxed) {
            return call();
        }
        let before = thread_time();
        let result = call();
        let after = thread_time();
        self.timed(waits, after.saturating_sub(before), after);
        result
    }

    /// Counts the CPU time of a call that waits, or of one that opens a connection; the
    /// thread has used `total`.
    fn timed(&self, waits: bool, spent: Duration, total: Duration) {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let words = self.page.words();
        bump(words.get(TIMES + usize::from(!waits)), nanoseconds(spent));
        if let Some(word) = words.get(TIMES + 2) {
            word.store(nanoseconds(total), Ordering::Relaxed);
        }
    }

    /// Adds one batch of service `number`: datagrams, bytes of their payloads and
    /// replies handed on.
    pub fn batch(&self, number: usize, datagrams: u64, bytes: u64, replies: u64) {
        let cell = self.cell(number);
        bump(cell.first(), datagrams);
        bump(cell.get(1), bytes);
        bump(cell.get(2), replies);
        bump(cell.get(4), datagrams.min(1));
    }

    /// Counts an accepted connection of service `number`; `open` of them are open now.
    pub(crate) fn accepted(&self, number: usize, open: u64) {
        bump(self.cell(number).get(5), 1);
        self.open(number, open);
    }

    /// Sets the number of open connections of service `number`.
    pub(crate) fn open(&self, number: usize, open: u64) {
        if let Some(word) = self.cell(number).get(6) {
            word.store(open, Ordering::Relaxed);
        }
    }

    /// Adds bytes sent over connections of service `number`.
    pub(crate) fn sent(&self, number: usize, bytes: u64) {
        bump(self.cell(number).get(7), bytes);
    }

    pub(crate) fn error(&self, number: usize) {
        bump(self.cell(number).get(3), 1);
    }

    /// Adds the counts of a proxy.
    pub(crate) fn proxy(&self, uses: &Uses) {
        let words = proxy_words(&self.page);
        for (word, by) in words
            .iter()
            .zip([uses.upstream_errors, uses.upstream_bytes])
        {
            if by > 0 {
                bump(Some(word), by);
            }
        }
    }

    /// Counts a connection to an origin that a proxy has begun.
    pub(crate) fn proxy_connected(&self) {
        bump(proxy_words(&self.page).get(2), 1);
    }

    /// Sets the number of connections that a proxy has to origins.
    pub(crate) fn proxy_open(&self, upstreams: usize) {
        if let Some(word) = proxy_words(&self.page).get(3) {
            word.store(upstreams as u64, Ordering::Relaxed);
        }
    }

    fn cell(&self, number: usize) -> &[AtomicU64] {
        let start = CELL * (number.min(SERVICES) + 1);
        let cells = self.page.words().get(..WORDS - PROXY_WORDS);
        let cell = cells.and_then(|cells| cells.get(start..start + CELL));
        cell.unwrap_or_default()
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // A reader that has mapped it keeps it; the name need not stay.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the words of a proxy.
fn proxy_words(page: &SharedPage) -> &[AtomicU64] {
    page.words().get(WORDS - PROXY_WORDS..).unwrap_or_default()
}

/// Adds without a locked instruction: there is only one writer.
fn bump(word: Option<&AtomicU64>, by: u64) {
    if let Some(word) = word {
        word.store(
            word.load(Ordering::Relaxed).wrapping_add(by),
            Ordering::Relaxed,
        );
    }
}

/// A reader of the page.
#[derive(Debug)]
pub struct Reader {
    page: SharedPage,
}

impl Reader {
    /// Maps the page of a running service.
    ///
    /// # Errors
    /// NotFound before the service has started; InvalidData for another file.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let page = SharedPage::new(&file)?;
        if page.words()[0].load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not a page of service counters",
            ));
        }
        Ok(Reader { page })
    }

    /// Returns the counts of each service so far, in the order of the services. The
    /// numbers of one service may be a batch apart.
    pub fn read(&self) -> Vec<ServiceCounts> {
        let words = self.page.words();
        let count = words[COUNT].load(Ordering::Relaxed).min(SERVICES as u64) as usize;
        let cells = words[CELL..].chunks(CELL).take(count);
        cells.map(ServiceCounts::of).collect()
    }

    /// Returns the counts of a proxy so far; zeroes without one.
    pub fn proxy(&self) -> ProxyCounts {
        ProxyCounts::of(proxy_words(&self.page))
    }

    /// Returns the CPU time of the event loop by kind of call; zeroes if it is not
    /// counted.
    pub fn times(&self) -> Times {
        Times::of(self.page.words().get(TIMES..).unwrap_or_default())
    }

    /// Returns the lines that the access log has dropped so far: its writer was too slow,
    /// or failed.
    pub fn log_lost(&self) -> u64 {
        self.page.words()[LOG_LOST].load(Ordering::Relaxed)
    }

    /// Returns the iterations of the event loop so far.
    pub fn iterations(&self) -> u64 {
        self.page.words()[ITERATIONS].load(Ordering::Relaxed)
    }

    /// Returns how often the event loop slept, or tried to, so far.
    pub fn waits(&self) -> u64 {
        self.page.words()[WAITS].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("tw-counters-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_reader_sees_what_is_counted() {
        let path = path("seen");
        let counters = Counters::create(&path, 2).unwrap();
        let reader = Reader::open(&path).unwrap();
        counters.batch(1, 3, 42, 2);
        counters.batch(1, 1, 14, 1);
        counters.error(0);
        counters.iterated();
        counters.waited();
        counters.accepted(1, 1);
        counters.accepted(1, 2);
        counters.open(1, 1);
        counters.sent(1, 99);
        let counts = reader.read();
        assert_eq!(counts.len(), 2);
        assert_eq!(
            counts[0],
            ServiceCounts {
                errors: 1,
                ..Default::default()
            }
        );
        assert_eq!(
            counts[1],
            ServiceCounts {
                received: 4,
                bytes: 56,
                replies: 3,
                errors: 0,
                batches: 2,
                connections: 2,
                open: 1,
                sent: 99,
            }
        );
        assert_eq!((reader.iterations(), reader.waits()), (1, 1));
        let nanoseconds = Duration::from_nanos;
        counters.timed(true, nanoseconds(5), nanoseconds(100));
        counters.timed(true, nanoseconds(6), nanoseconds(200));
        counters.timed(false, nanoseconds(7), nanoseconds(300));
        let times = reader.times();
        assert_eq!((times.waiting, times.opening, times.total), (11, 7, 300));
        let uses = Uses {
            upstream_errors: 1,
            upstream_bytes: 9,
        };
        counters.proxy(&uses);
        counters.proxy(&uses);
        counters.proxy_connected();
        counters.proxy_open(6);
        let expected = ProxyCounts {
            upstream_errors: 2,
            upstream_bytes: 18,
            upstream_connections: 1,
            upstream_open: 6,
        };
        assert_eq!(reader.proxy(), expected);
        drop(counters);
        assert!(!path.exists());
        assert_eq!(reader.read().len(), 2, "the mapping outlives the name");
    }

    #[test]
    fn other_files_are_refused() {
        let path = path("other");
        std::fs::write(&path, [0; BYTES]).unwrap();
        assert_eq!(
            Reader::open(&path).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(
            Reader::open(&path).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            Reader::open(&path).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn only_as_many_services_as_fit() {
        assert!(Counters::create(path("many"), SERVICES + 1).is_err());
        let counters = Counters::create(path("most"), SERVICES).unwrap();
        counters.batch(SERVICES - 1, 1, 1, 1);
        // An index out of range counts nothing, and breaks nothing.
        counters.batch(SERVICES, 1, 1, 1);
        assert_eq!(
            counters.page.words()[WORDS - PROXY_WORDS - CELL].load(Ordering::Relaxed),
            1
        );
    }
}
