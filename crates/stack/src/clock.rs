//! Stacks on a clock other than the machine's.
//!
//! On virtual time nothing happens by itself. The clock's owner moves it, and calls
//! [`attend`](crate::StackHandle::attend) to do the helper thread's work. It also lets a
//! thread that sleeps in a call continue once [`Sleep::is_ready`] is true or the timeout
//! has passed.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidewall_sys::SignalSet;

/// The clock of a stack on virtual time, and how its threads sleep.
pub trait VirtualTime: Send + Sync {
    /// Time since any fixed moment.
    fn now(&self) -> Duration;

    /// Blocks the calling thread until `sleep` is ready or its timeout has passed on this
    /// clock; it may return earlier.
    ///
    /// # Errors
    /// Any error ends the call that sleeps; EINTR for a clock that no longer moves.
    fn sleep(&self, sleep: &Sleep<'_>) -> io::Result<()>;
}

/// The descriptors that a thread sleeps on, and its timeout.
#[derive(Debug)]
pub struct Sleep<'a> {
    descriptors: &'a [i32],
    timeout: Option<Duration>,
}

impl Sleep<'_> {
    /// Returns true when an event has woken the thread. Any thread may ask; it does not
    /// wait.
    pub fn is_ready(&self) -> bool {
        let mut fired = Vec::new();
        let zero = Some(Duration::ZERO);
        tidewall_sys::poll_readable(self.descriptors, zero, None, &mut fired).is_ok()
            && !fired.is_empty()
    }

    /// Returns the longest sleep; `None`: until it is woken.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }
}

/// The clock of a stack.
pub struct Clock {
    source: Source,
    /// When it was at zero.
    origin: Instant,
}

enum Source {
    /// The machine's, since then.
    Real(Instant),
    /// Time since any fixed moment; threads sleep in real time.
    #[cfg_attr(not(any(test, feature = "testutil")), allow(dead_code))]
    Given(Box<dyn Fn() -> Duration + Send + Sync>),
    #[cfg_attr(not(any(test, feature = "testutil")), allow(dead_code))]
    Virtual(Arc<dyn VirtualTime>),
}

impl Source {
    #[inline]
    fn now(&self) -> Duration {
        match self {
            Source::Real(start) => start.elapsed(),
            Source::Given(clock) => clock(),
            Source::Virtual(time) => time.now(),
        }
    }
}

impl Clock {
    fn new(source: Source) -> Self {
        let now = Instant::now();
        let origin = now.checked_sub(source.now()).unwrap_or(now);
        Clock { source, origin }
    }

    /// The machine's, from zero on.
    pub fn real() -> Self {
        Self::new(Source::Real(Instant::now()))
    }

    /// `clock`: time since any fixed moment.
    #[cfg(any(test, feature = "testutil"))]
    pub fn given(clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self::new(Source::Given(Box::new(clock)))
    }

    /// Virtual time.
    #[cfg(any(test, feature = "testutil"))]
    pub fn of(time: Arc<dyn VirtualTime>) -> Self {
        Self::new(Source::Virtual(time))
    }

    /// Returns the time since the clock was at zero.
    #[inline]
    pub fn now(&self) -> Duration {
        self.source.now()
    }
}

impl Clock {
    /// Returns the present time, for deadlines of calls that wait.
    #[inline]
    pub fn instant_now(&self) -> Instant {
        match &self.source {
            Source::Real(_) | Source::Given(_) => Instant::now(),
            Source::Virtual(time) => self.instant(time.now()),
        }
    }

    /// Returns [`Clock::instant_now`] for a stack's clock that was just read as `now`. A
    /// clock that only the caller supplies does not tell the time of threads that sleep
    /// in real time.
    pub fn instant_at(&self, now: Duration) -> Instant {
        match &self.source {
            Source::Given(_) => Instant::now(),
            Source::Real(_) | Source::Virtual(_) => self.instant(now),
        }
    }

    /// Converts a time of the stack's clock.
    pub fn instant(&self, at: Duration) -> Instant {
        let origin = self.origin;
        origin.checked_add(at).unwrap_or(origin)
    }

    /// Sleeps as [`tidewall_sys::poll_readable`] does, on the stack's time.
    pub fn sleep_on(
        &self,
        descriptors: &[i32],
        timeout: Option<Duration>,
        signals: Option<&SignalSet>,
        fired: &mut Vec<usize>,
    ) -> io::Result<()> {
        let Source::Virtual(time) = &self.source else {
            return tidewall_sys::poll_readable(descriptors, timeout, signals, fired);
        };
        let sleep = Sleep {
            descriptors,
            timeout,
        };
        if timeout != Some(Duration::ZERO) && !sleep.is_ready() {
            time.sleep(&sleep)?;
        }
        tidewall_sys::poll_readable(descriptors, Some(Duration::ZERO), signals, fired)
    }

    /// When it was at zero.
    pub fn origin(&self) -> Instant {
        self.origin
    }
}
