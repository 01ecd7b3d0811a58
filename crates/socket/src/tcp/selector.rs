//! Readiness for many sockets at a cost proportional to those that are ready.

use std::collections::VecDeque;
use std::io;
use std::ops::BitOr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use slab::Slab;

use super::helper::Helper;
use super::listener::TcpListener;
use super::stream::TcpStream;
use super::watch::{Readiness, Registration, Source, Watch};
use crate::raw::epoll::{Epoll, Fired};
use crate::stack::{Core, Stack, lock};
use crate::udp::UdpSocket;
use crate::wait::{WaitList, Waitable};

/// Most events of one [`Selector::wait`]: the others' turn comes with the next.
const EVENTS: usize = 256;
/// How long the application may be away while the device is flooded: the ring of
/// a veth, 256 frames, fills in 128 µs at two million frames/s.
const FLOODED_TURN: Duration = Duration::from_micros(128);
/// Waits after which the device is polled in any case.
const POLL_EVERY: u32 = 16;
/// Waits with something to do after which the kernel's descriptors are looked
/// at although nobody has said that they are ready.
const KERNELS_TURN: u32 = 16;

/// What a socket is watched for. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(u8);

impl Interest {
    /// Reading, or accepting, would not wait.
    pub const READABLE: Interest = Interest(Readiness::READABLE.0);
    /// Writing would not wait.
    pub const WRITABLE: Interest = Interest(Readiness::WRITABLE.0);
    /// Errors and hang-ups alone.
    pub const NONE: Interest = Interest(0);

    fn reads(self) -> bool {
        self.0 & Self::READABLE.0 != 0
    }

    fn writes(self) -> bool {
        self.0 & Self::WRITABLE.0 != 0
    }
}

impl BitOr for Interest {
    type Output = Interest;
    fn bitor(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

/// A socket that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What the socket was added with.
    pub token: u64,
    /// Reading or accepting would not wait: data, the end of the stream, a
    /// connection or an error is there.
    pub readable: bool,
    /// Writing would not wait.
    pub writable: bool,
    /// Both halves are closed.
    pub hangup: bool,
    /// An error is pending ([`TcpStream::take_error`]), or there is something to be
    /// told ([`TcpStream::take_notifications`]).
    pub error: bool,
}

/// Readiness of many sockets of one [`Stack`], level-triggered: what is ready is
/// reported by every [`Selector::wait`] until it has been dealt with.
///
/// A socket belongs to one selector at a time. What the application writes to
/// streams of a selector between two calls of [`Selector::wait`] is sent by the
/// second one, with the acknowledgments of what it read, or after a few
/// milliseconds if that call does not come.
pub struct Selector {
    inner: Arc<SelectorInner>,
    stack: Stack,
}

#[derive(Debug)]
pub(crate) struct SelectorInner {
    ready: Mutex<VecDeque<Arc<Registration>>>,
    ready_count: AtomicUsize,
    /// Those whose channels have frames that the protocol has not seen.
    framed: Mutex<Vec<Arc<Registration>>>,
    framed_count: AtomicUsize,
    waiters: WaitList,
    /// Threads in [`Selector::wait`].
    inside: AtomicUsize,
    epoll: OnceLock<Epoll>,
    /// Those with a descriptor in `epoll`, by key.
    kernel: Mutex<Slab<Arc<Registration>>>,
    kernel_count: AtomicUsize,
    kernel_ready: AtomicBool,
    turns: AtomicU32,
    /// What an event has cost the application lately, ns, and what the next
    /// [`Selector::wait`] learns it from: when the last one returned, in ns since
    /// the stack started, and with how many.
    event_cost: AtomicU64,
    returned_at: AtomicU64,
    returned: AtomicUsize,
    /// The application has dropped it.
    gone: AtomicBool,
    helper: Arc<Helper>,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

mod sealed {
    use super::{Source, Watch};

    /// What a selector needs of a socket.
    pub struct Parts<'a> {
        pub(crate) source: Source,
        /// Where its registration is kept.
        pub(crate) watch: &'a Watch,
        /// Its descriptor of the kernel; -1: none.
        pub(crate) descriptor: i32,
    }

    pub trait Watched {
        fn watched(&self) -> Parts<'_>;
        /// True for a socket of this stack.
        fn is_of(&self, stack: &crate::Stack) -> bool;
    }
}
pub(crate) use sealed::{Parts, Watched};

/// A socket that a [`Selector`] can watch: [`TcpStream`], [`TcpListener`],
/// [`UdpSocket`].
pub trait Selectable: Watched {}
impl Selectable for TcpStream {}
impl Selectable for TcpListener {}
impl Selectable for UdpSocket {}

impl Watched for UdpSocket {
    fn watched(&self) -> Parts<'_> {
        Parts {
            source: Source::Udp(Arc::downgrade(&self.inner)),
            watch: &self.inner.watch,
            descriptor: self.inner.kernel_descriptor(),
        }
    }

    fn is_of(&self, stack: &Stack) -> bool {
        Arc::ptr_eq(&self.stack.inner, &stack.inner)
    }
}

impl Selector {
    /// A selector for sockets of `stack`.
    ///
    /// # Errors
    /// What starting the stack's helper thread reports.
    pub fn new(stack: &Stack) -> io::Result<Self> {
        let core = stack.core();
        Helper::start(core)?;
        let inner = Arc::new(SelectorInner {
            ready: Mutex::default(),
            ready_count: AtomicUsize::new(0),
            framed: Mutex::default(),
            framed_count: AtomicUsize::new(0),
            waiters: WaitList::default(),
            inside: AtomicUsize::new(0),
            epoll: OnceLock::new(),
            kernel: Mutex::default(),
            kernel_count: AtomicUsize::new(0),
            kernel_ready: AtomicBool::new(false),
            turns: AtomicU32::new(0),
            event_cost: AtomicU64::new(0),
            returned_at: AtomicU64::new(0),
            returned: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            helper: core.tcp.helper.clone(),
        });
        core.tcp.helper.add_selector(&inner);
        Ok(Selector {
            inner,
            stack: stack.clone(),
        })
    }

    /// Watches a socket; its events carry `token`.
    ///
    /// # Errors
    /// EEXIST when a selector watches it already; EINVAL for a socket of another
    /// stack; what epoll reports for sockets that the kernel has a part in.
    pub fn add(&self, socket: &impl Selectable, token: u64, interest: Interest) -> io::Result<()> {
        if !socket.is_of(&self.stack) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let Parts {
            source,
            watch,
            descriptor,
        } = socket.watched();
        let has_frames = matches!(&source, Source::Connection(_) | Source::Listener(_));
        let registration = Arc::new(Registration {
            selector: self.inner.clone(),
            source,
            descriptor,
            key: AtomicUsize::new(usize::MAX),
            token: AtomicU64::new(token),
            interest: AtomicU8::new(interest.0),
            ready: AtomicBool::new(false),
            framed: AtomicBool::new(false),
            active: AtomicBool::new(true),
        });
        if !watch.set(registration.clone()) {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        if descriptor >= 0
            && let Err(error) = self.inner.watch_kernel(&registration, interest)
        {
            watch.clear();
            return Err(error);
        }
        // What came before it was watched.
        registration.notify(registration.readiness());
        if has_frames {
            watch.has_frames();
        }
        Ok(())
    }

    /// Changes what a socket is watched for.
    ///
    /// # Errors
    /// ENOENT when this selector does not watch it.
    pub fn modify(
        &self,
        socket: &impl Selectable,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let registration = self.registration(socket)?;
        registration.token.store(token, Ordering::Relaxed);
        registration.interest.store(interest.0, Ordering::Relaxed);
        let key = registration.key.load(Ordering::Relaxed);
        if key != usize::MAX
            && let Some(epoll) = self.inner.epoll.get()
        {
            let reads = interest.reads() || !matches!(registration.source, Source::Kernel);
            epoll.modify(
                registration.descriptor,
                key as u64,
                reads,
                interest.writes() && matches!(registration.source, Source::Kernel),
            )?;
        }
        registration.notify(registration.readiness());
        Ok(())
    }

    /// Stops watching a socket. Dropping the socket does so too.
    ///
    /// # Errors
    /// ENOENT when this selector does not watch it.
    pub fn remove(&self, socket: &impl Selectable) -> io::Result<()> {
        self.registration(socket)?;
        retire(socket.watched().watch);
        Ok(())
    }

    fn registration(&self, socket: &impl Selectable) -> io::Result<Arc<Registration>> {
        socket
            .watched()
            .watch
            .get()
            .filter(|registration| Arc::ptr_eq(&registration.selector, &self.inner))
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    /// Waits until a socket is ready and puts what is ready into `events`, which
    /// it empties first. Returns how many there are; none at the timeout. `None`
    /// waits for ever.
    ///
    /// # Errors
    /// EINTR when a signal arrives; ENETDOWN and what else the device reports.
    pub fn wait(&self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<usize> {
        events.clear();
        self.inner.inside.fetch_add(1, Ordering::SeqCst);
        self.inner.learn_cost(self.stack.core());
        let result = self.wait_inside(events, timeout);
        self.inner.inside.fetch_sub(1, Ordering::SeqCst);
        self.inner.note_return(self.stack.core(), events.len());
        result
    }

    fn wait_inside(&self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<usize> {
        let core = self.stack.core();
        let inner = &*self.inner;
        core.tcp.helper.application_is_here();
        // The last turn's output.
        core.tcp_flush(false);
        core.tcp_run_timers();
        let turn = inner.turns.fetch_add(1, Ordering::Relaxed);
        let busy = core.is_busy() && !core.device_polls();
        // An application that leaves what is ready may not keep the device from
        // being looked at.
        if busy || turn.is_multiple_of(POLL_EVERY) {
            core.round_and_return()?;
        } else {
            core.collect();
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut polled = false;
        loop {
            inner.process(core);
            inner.look_at_kernel(events, polled)?;
            inner.take_ready(events, inner.most_events(core));
            core.tcp_flush(true);
            if !events.is_empty() {
                return Ok(events.len());
            }
            if timeout == Some(Duration::ZERO) {
                if polled {
                    return Ok(0);
                }
                polled = true;
                core.round(false)?;
                continue;
            }
            if !core.sleep(&[inner], deadline)? {
                return Ok(0);
            }
        }
    }
}

impl Drop for Selector {
    fn drop(&mut self) {
        let core = self.stack.core();
        // Sockets may outlive it; then nobody watches them.
        self.inner.gone.store(true, Ordering::SeqCst);
        self.inner.process(core);
        core.tcp.helper.remove_selector(&self.inner);
        // They point to it, and it to them.
        drop(std::mem::take(&mut *lock(&self.inner.ready)));
        drop(std::mem::take(&mut *lock(&self.inner.kernel)));
    }
}

/// A socket is no longer watched.
pub(crate) fn retire(watch: &Watch) {
    let Some(registration) = watch.clear() else {
        return;
    };
    registration.active.store(false, Ordering::Release);
    let inner = &registration.selector;
    let key = registration.key.swap(usize::MAX, Ordering::Relaxed);
    if key != usize::MAX {
        if let Some(epoll) = inner.epoll.get() {
            let _ = epoll.remove(registration.descriptor);
        }
        let forgotten = lock(&inner.kernel).try_remove(key);
        drop(forgotten);
        inner.kernel_count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Registration {
    /// What its socket is ready for now.
    fn readiness(&self) -> Readiness {
        match &self.source {
            Source::Udp(socket) => socket.upgrade().map_or(Readiness::NONE, |socket| {
                // Sending waits for a frame at worst.
                Readiness::WRITABLE.with(Readiness::READABLE, socket.has_input())
            }),
            Source::Listener(listener) => listener
                .upgrade()
                .map_or(Readiness::NONE, |listener| listener.readiness()),
            Source::Connection(connection) => connection
                .upgrade()
                .map_or(Readiness::NONE, |connection| connection.readiness()),
            Source::Kernel => Readiness::NONE,
        }
    }

    fn event(&self, readiness: Readiness) -> Event {
        let readiness = readiness.of_interest(self.interest.load(Ordering::Relaxed));
        Event {
            token: self.token.load(Ordering::Relaxed),
            readable: readiness.has(Readiness::READABLE),
            writable: readiness.has(Readiness::WRITABLE),
            hangup: readiness.has(Readiness::HANGUP),
            error: readiness.has(Readiness::ERROR),
        }
    }
}

impl SelectorInner {
    /// A socket became ready. Its flag is set by the caller.
    pub(crate) fn push_ready(&self, registration: Arc<Registration>) {
        {
            let mut ready = lock(&self.ready);
            ready.push_back(registration);
            self.ready_count.store(ready.len(), Ordering::SeqCst);
        }
        self.waiters.wake_all();
    }

    /// Frames came for a socket. Its flag is set by the caller.
    pub(crate) fn push_framed(&self, registration: Arc<Registration>) {
        {
            let mut framed = lock(&self.framed);
            framed.push(registration);
            self.framed_count.store(framed.len(), Ordering::SeqCst);
        }
        self.waiters.wake_all();
        if self.inside.load(Ordering::SeqCst) == 0 {
            self.helper.needed();
        }
    }

    /// True once the application has dropped it.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// True when frames wait that the protocol has not seen.
    pub(crate) fn has_frames(&self) -> bool {
        self.framed_count.load(Ordering::SeqCst) != 0
    }

    /// True while a thread waits here.
    pub(crate) fn is_inside(&self) -> bool {
        self.inside.load(Ordering::SeqCst) != 0
    }

    /// Runs the protocol on the frames of the sockets watched.
    pub(crate) fn process(&self, core: &Core) {
        while self.framed_count.load(Ordering::SeqCst) != 0 {
            let framed = {
                let mut framed = lock(&self.framed);
                self.framed_count.store(0, Ordering::SeqCst);
                std::mem::take(&mut *framed)
            };
            for registration in framed {
                registration.framed.store(false, Ordering::Release);
                match &registration.source {
                    Source::Connection(connection) => {
                        if let Some(connection) = connection.upgrade() {
                            connection.process(core);
                        }
                    }
                    Source::Listener(listener) => {
                        if let Some(listener) = listener.upgrade() {
                            listener.process(core);
                        }
                    }
                    Source::Udp(_) | Source::Kernel => {}
                }
            }
        }
    }

    /// Notes what the application was given, and when. Its cost matters under a
    /// flood only: without one the clock is not read.
    fn note_return(&self, core: &Core, events: usize) {
        if core.is_flooded() && events > 0 {
            let now = core.age().as_nanos() as u64;
            self.returned_at.store(now, Ordering::Relaxed);
            self.returned.store(events, Ordering::Relaxed);
        }
    }

    /// What an event cost the application, if the last wait noted it.
    fn learn_cost(&self, core: &Core) {
        if self.returned.load(Ordering::Relaxed) == 0 {
            return;
        }
        let events = self.returned.swap(0, Ordering::Relaxed) as u64;
        let now = core.age();
        let since = self.returned_at.load(Ordering::Relaxed);
        let away = (now.as_nanos() as u64).saturating_sub(since);
        if let Some(cost) = away.checked_div(events) {
            let known = self.event_cost.load(Ordering::Relaxed);
            let learned = known - known / 8 + cost / 8;
            self.event_cost.store(learned, Ordering::Relaxed);
        }
    }

    /// How many events the application may have at once. While the device is
    /// flooded it must be looked at again before its ring is full: 32 requests of
    /// 20 µs each are as long as 256 frames at 400,000/s, and what is lost then
    /// are segments of connections, too.
    fn most_events(&self, core: &Core) -> usize {
        if !core.is_flooded() {
            return EVENTS;
        }
        let cost = self.event_cost.load(Ordering::Relaxed).max(1);
        (FLOODED_TURN.as_nanos() as u64 / cost).clamp(1, EVENTS as u64) as usize
    }

    fn take_ready(&self, events: &mut Vec<Event>, most: usize) {
        if self.ready_count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let batch: Vec<Arc<Registration>> = {
            let mut ready = lock(&self.ready);
            let count = ready.len().min(most);
            let batch = ready.drain(..count).collect();
            self.ready_count.store(ready.len(), Ordering::SeqCst);
            batch
        };
        let mut kept = Vec::with_capacity(batch.len());
        for registration in batch {
            if !registration.active.load(Ordering::Acquire) {
                continue;
            }
            let interest = registration.interest.load(Ordering::Relaxed);
            let mut readiness = registration.readiness();
            if readiness.of_interest(interest) == Readiness::NONE {
                registration.ready.store(false, Ordering::SeqCst);
                // It may have become ready since, and found its flag set.
                readiness = registration.readiness();
                if readiness.of_interest(interest) == Readiness::NONE
                    || registration.ready.swap(true, Ordering::SeqCst)
                {
                    continue;
                }
            }
            events.push(registration.event(readiness));
            kept.push(registration);
        }
        if !kept.is_empty() {
            let mut ready = lock(&self.ready);
            ready.extend(kept);
            self.ready_count.store(ready.len(), Ordering::SeqCst);
        }
    }

    fn watch_kernel(&self, registration: &Arc<Registration>, interest: Interest) -> io::Result<()> {
        if self.epoll.get().is_none() {
            let _ = self.epoll.set(Epoll::new()?);
        }
        let Some(epoll) = self.epoll.get() else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let is_stream = matches!(registration.source, Source::Kernel);
        let key = lock(&self.kernel).insert(registration.clone());
        let added = epoll.add(
            registration.descriptor,
            key as u64,
            interest.reads() || !is_stream,
            interest.writes() && is_stream,
        );
        if let Err(error) = added {
            let forgotten = lock(&self.kernel).try_remove(key);
            drop(forgotten);
            return Err(error);
        }
        registration.key.store(key, Ordering::Relaxed);
        self.kernel_count.fetch_add(1, Ordering::Relaxed);
        self.kernel_ready.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Asks the kernel which of its descriptors are ready: when it has said that
    /// some are, and now and then.
    fn look_at_kernel(&self, events: &mut Vec<Event>, insist: bool) -> io::Result<()> {
        if self.kernel_count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let turn = self.turns.load(Ordering::Relaxed);
        if !self.kernel_ready.load(Ordering::Relaxed)
            && !insist
            && !turn.is_multiple_of(KERNELS_TURN)
        {
            return Ok(());
        }
        let Some(epoll) = self.epoll.get() else {
            return Ok(());
        };
        let mut fired: Vec<Fired> = Vec::new();
        epoll.ready(&mut fired)?;
        // Level-triggered: what was ready may still be so next time.
        self.kernel_ready
            .store(!fired.is_empty(), Ordering::Relaxed);
        for fired in fired {
            let registration = lock(&self.kernel).get(fired.key as usize).cloned();
            let Some(registration) = registration else {
                continue;
            };
            match &registration.source {
                Source::Kernel => {
                    let readiness = Readiness::NONE
                        .with(Readiness::READABLE, fired.readable)
                        .with(Readiness::WRITABLE, fired.writable)
                        .with(Readiness::HANGUP, fired.hangup)
                        .with(Readiness::ERROR, fired.error);
                    let interest = registration.interest.load(Ordering::Relaxed);
                    if readiness.of_interest(interest) != Readiness::NONE {
                        events.push(registration.event(readiness));
                    }
                }
                Source::Listener(listener) => {
                    if let Some(listener) = listener.upgrade() {
                        listener.kernel_has_input();
                        registration.notify(Readiness::READABLE);
                    }
                }
                Source::Udp(socket) => {
                    if let Some(socket) = socket.upgrade() {
                        socket.kernel_has_input();
                        registration.notify(Readiness::READABLE);
                    }
                }
                Source::Connection(_) => {}
            }
        }
        Ok(())
    }
}

impl Waitable for SelectorInner {
    fn waiters(&self) -> &WaitList {
        &self.waiters
    }

    fn has_input(&self) -> bool {
        self.ready_count.load(Ordering::SeqCst) != 0
            || self.framed_count.load(Ordering::SeqCst) != 0
            || self.kernel_ready.load(Ordering::Relaxed)
    }

    fn kernel_descriptor(&self) -> i32 {
        self.epoll.get().map_or(-1, Epoll::descriptor)
    }

    fn kernel_has_input(&self) {
        self.kernel_ready.store(true, Ordering::Relaxed);
    }
}
