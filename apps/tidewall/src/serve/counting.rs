//! The counters of a service: one line per second while it runs, totals at its end.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidewall::Stack;
use tidewall_service::counters::{ProxyCounts, Times};
use tidewall_service::{Counters, Reader, ServiceCounts};

use super::Place;
use crate::end::{Failure, Outcome, say_line};
use crate::stat::control;
use crate::units;

/// Time between two lines of statistics.
pub(super) const LINE: Duration = Duration::from_secs(1);

/// The counters at some moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    pub(super) service: ServiceCounts,
    /// Zero for services other than the proxy.
    pub(super) proxy: ProxyCounts,
    /// Lines that the access log has dropped.
    pub(super) log_lost: u64,
}

impl Look {
    fn at(reader: &Reader) -> Option<Self> {
        Some(Look {
            service: reader.read().first().copied()?,
            proxy: reader.proxy(),
            log_lost: reader.log_lost(),
        })
    }

    /// Describes the lines that the access log has dropped.
    fn losses(&self) -> String {
        match self.log_lost {
            0 => String::new(),
            lost => format!(", {} lines of the access log lost", units::count(lost)),
        }
    }
}

/// The wording of a service's counters.
pub(super) struct Words {
    /// Formats a line of statistics: the counters now, the previous ones, the time
    /// between.
    pub(super) rates: &'static (dyn Fn(&Look, &Look, Duration) -> String + Sync),
    /// Formats the end: all counters, and the duration.
    pub(super) totals: &'static (dyn Fn(&Look, Duration) -> String + Sync),
}

/// Runs `service` with counters, statistics beside it and totals at its end.
pub(super) fn begin(
    place: &Place<'_>,
    words: &Words,
    service: impl FnOnce(&Counters) -> io::Result<()>,
) -> Outcome {
    let path = counters_path();
    let counters = Counters::create(&path, 1)
        .map_err(|error| Failure::io(&format!("making the counters {}", path.display()), &error))?;
    if place.arguments.profile {
        counters.count_times();
    }
    let open = || Reader::open(&path).map_err(|error| Failure::io("reading the counters", &error));
    let (reader, look) = (open()?, open()?);
    // No other process reads them. And a killed process leaves no file that another user
    // could not write once the process id is reused.
    let _ = std::fs::remove_file(&path);
    let terminal = io::stderr().is_terminal();
    let begun = Instant::now();
    let ended = Arc::new(AtomicBool::new(false));
    let watcher = (terminal || place.arguments.stats).then(|| {
        let (ended, rates, stack) = (ended.clone(), words.rates, place.stack.clone());
        std::thread::spawn(move || watch(&reader, stack.as_ref(), rates, &ended, terminal))
    });
    let result = service(&counters);
    ended.store(true, Ordering::Relaxed);
    if let Some(watcher) = watcher {
        // A panic of the thread has been reported; the totals below do not depend on it.
        let _ = watcher.join();
    }
    if let Some(look) = Look::at(&look).filter(|_| has_begun(&result)) {
        let totals = (words.totals)(&look, begun.elapsed());
        let _ = say_line(&(totals + &look.losses()));
    }
    if place.arguments.profile {
        let _ = say_line(&parts(&look.times()));
    }
    result.map_err(|error| Failure::io("serving", &error))
}

/// Returns whether a service began to serve; first of all it asks for its address.
fn has_begun(result: &io::Result<()>) -> bool {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
    !result.as_ref().is_err_and(|error| {
        matches!(
            error.kind(),
            AddrInUse | AddrNotAvailable | PermissionDenied
        )
    })
}

/// Formats the distribution of the CPU time.
fn parts(times: &Times) -> String {
    let share = |part: u64| 100.0 * part as f64 / times.total.max(1) as f64;
    format!(
        "{} of processor time: {:.1} % in waiting calls, {:.1} % in accept and connect",
        units::trimmed(times.total),
        share(times.waiting),
        share(times.opening),
    )
}

/// Returns the path of the counters: in memory, if there is such a file system.
fn counters_path() -> PathBuf {
    let directory = std::path::Path::new("/dev/shm");
    let directory = if directory.is_dir() {
        directory.to_owned()
    } else {
        std::env::temp_dir()
    };
    directory.join(format!("tidewall-serve-{}", std::process::id()))
}

/// Prints rates every second until `ended`; on a terminal, over the same line.
fn watch(
    reader: &Reader,
    stack: Option<&Stack>,
    rates: &dyn Fn(&Look, &Look, Duration) -> String,
    ended: &AtomicBool,
    terminal: bool,
) {
    let mut last = Look::default();
    let mut at = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
        let elapsed = at.elapsed();
        if elapsed < LINE {
            continue;
        }
        let Some(now) = Look::at(reader) else {
            continue;
        };
        let mut line = rates(&now, &last, elapsed) + &now.losses();
        if let Some(stack) = stack {
            let queues = stack.snapshot().queues;
            let control = control::short(queues.iter().map(|queue| &queue.control));
            line = format!("{line}, {control}");
        }
        if terminal {
            eprint!("\r\x1b[K{line}");
        } else {
            eprintln!("{line}");
        }
        let _ = std::io::stderr().flush();
        (last, at) = (now, Instant::now());
    }
    if terminal {
        eprint!("\r\x1b[K");
    }
}
