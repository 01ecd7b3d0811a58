//! What is watched, and one of it in one context.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};

use super::Events;
use super::epoll::SetInner;
use super::exchange::Listed;
use super::hints::{Hints, Manner};
use super::watch::Watch;
use crate::raw::poll;
use crate::stack::{Core, Stack, lock};
use crate::tcp::connection::ConnectionInner;
use crate::tcp::listener::ListenerInner;
use crate::udp::inner::SocketInner;

/// What is watched.
#[derive(Clone)]
pub(crate) enum Source {
    Udp(Weak<SocketInner>),
    Listener(Weak<ListenerInner>),
    Connection(Weak<ConnectionInner>),
    /// An epoll set.
    Set(Weak<SetInner>),
    /// A descriptor of the kernel's: only the context's epoll descriptor knows.
    Kernel,
    /// A file that epoll refuses: it never waits, as poll(2) has it.
    Always,
}

impl Source {
    /// What it is ready for now; of a descriptor of the kernel's only the kernel
    /// can say.
    pub(super) fn events(&self) -> Events {
        match self {
            Source::Udp(socket) => socket.upgrade().map_or(Events::NONE, |it| it.events()),
            Source::Listener(listener) => listener.upgrade().map_or(Events::NONE, |it| it.events()),
            Source::Connection(connection) => connection
                .upgrade()
                .map_or(Events::NONE, |connection| connection.events()),
            Source::Set(set) => set.upgrade().map_or(Events::NONE, |set| set.events()),
            Source::Kernel => Events::NONE,
            Source::Always => Events::READABLE | Events::WRITABLE,
        }
    }

    /// Runs the protocol on the frames that wait for it.
    pub(super) fn process(&self, core: &Core) {
        match self {
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
            Source::Set(set) => {
                if let Some(set) = set.upgrade() {
                    set.hints.process(core);
                }
            }
            Source::Udp(_) | Source::Kernel | Source::Always => {}
        }
    }

    /// True while frames wait that the protocol has not seen.
    fn has_waiting_frames(&self) -> bool {
        match self {
            Source::Connection(connection) => connection
                .upgrade()
                .is_some_and(|connection| connection.lock().has_frames()),
            Source::Listener(listener) => listener
                .upgrade()
                .is_some_and(|listener| listener.has_waiting_frames()),
            Source::Set(set) => set.upgrade().is_some_and(|set| set.hints.has_frames()),
            Source::Udp(_) | Source::Kernel | Source::Always => false,
        }
    }

    /// The kernel says that its descriptor of it has input.
    pub(super) fn kernel_has_input(&self) {
        use crate::wait::Waitable;
        match self {
            Source::Listener(listener) => {
                if let Some(listener) = listener.upgrade() {
                    listener.kernel_has_input();
                }
            }
            Source::Udp(socket) => {
                if let Some(socket) = socket.upgrade() {
                    Waitable::kernel_has_input(&*socket);
                }
            }
            Source::Set(set) => {
                if let Some(set) = set.upgrade() {
                    set.hints.note_kernel_ready();
                }
            }
            Source::Connection(_) | Source::Kernel | Source::Always => {}
        }
    }
}

/// Something that contexts can watch.
pub trait Watched {
    /// What a context needs of it.
    fn watched(&self) -> Parts<'_>;
    /// True for one of this stack, or of none.
    fn is_of(&self, stack: &Stack) -> bool;
}

/// What a context needs of a socket.
pub struct Parts<'a> {
    pub(crate) source: Source,
    /// Where its registrations are kept.
    pub(crate) watch: &'a Watch,
    /// Its descriptor of the kernel; -1: none.
    pub(crate) descriptor: i32,
}

/// One socket in one context.
pub(crate) struct Registration {
    pub(super) hints: Arc<Hints>,
    pub(super) source: Source,
    /// Descriptor of the kernel that is watched too; -1: none.
    pub(super) descriptor: i32,
    /// That descriptor, where it is the registration's own.
    own: Mutex<Option<OwnedFd>>,
    /// Its place among those with a descriptor; `usize::MAX`: none.
    pub(super) kernel_key: AtomicUsize,
    /// The owner's: a token, a descriptor's number.
    key: AtomicU64,
    slot: AtomicUsize,
    /// Events, and the flags of `epoll_ctl`.
    interest: AtomicU32,
    /// It is in the context's list of hinted ones.
    pub(super) hinted: Listed,
    /// It is in the context's list of those with frames.
    pub(super) framed: Listed,
    /// False once removed.
    active: AtomicBool,
    /// The context's turn in which the application was told of it.
    told: AtomicU32,
    pub(super) manner: Manner,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration")
            .field("key", &self.key)
            .field("interest", &self.interest())
            .finish_non_exhaustive()
    }
}

impl Registration {
    pub(super) fn new(
        hints: Arc<Hints>,
        source: Source,
        descriptor: i32,
        own: Option<OwnedFd>,
        key: u64,
        interest: Events,
        manner: Manner,
    ) -> Self {
        Registration {
            hints,
            source,
            descriptor,
            own: Mutex::new(own),
            kernel_key: AtomicUsize::new(usize::MAX),
            key: AtomicU64::new(key),
            slot: AtomicUsize::new(usize::MAX),
            interest: AtomicU32::new(interest.bits()),
            hinted: Listed::new(),
            framed: Listed::new(),
            active: AtomicBool::new(true),
            told: AtomicU32::new(0),
            manner,
        }
    }

    /// What its owner calls it.
    pub(crate) fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// Its place in a table of its owner's: see [`Hints::take_retired`].
    pub(super) fn slot(&self) -> usize {
        self.slot.load(Ordering::Relaxed)
    }

    pub(super) fn set_slot(&self, slot: usize) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    pub(crate) fn set_key(&self, key: u64) {
        self.key.store(key, Ordering::Relaxed);
    }

    /// What it is watched for, with the flags of `epoll_ctl`.
    pub(crate) fn interest(&self) -> Events {
        Events::from_bits(self.interest.load(Ordering::Relaxed))
    }

    /// Changes what it is watched for; the caller looks at [`Registration::events`]
    /// afterwards, since what happened before left no hint. ERR and HUP are told
    /// if they are in it.
    ///
    /// # Errors
    /// What epoll reports of a descriptor of the kernel's.
    pub(crate) fn set_interest(&self, interest: Events) -> std::io::Result<()> {
        self.interest.store(interest.bits(), Ordering::Relaxed);
        // Either whoever notifies sees it, or we see what it is about.
        fence(Ordering::SeqCst);
        self.hints.change_kernel(self)
    }

    /// Forgets what it is watched for, and leaves the kernel's part alone: a
    /// one-shot registration that was told.
    pub(crate) fn disable(&self) {
        self.interest
            .fetch_and(Events::FLAGS.bits(), Ordering::Relaxed);
    }

    /// False once it is retired.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// False once it is retired or its context gone.
    pub(super) fn lives(&self) -> bool {
        self.is_active() && !self.hints.is_gone()
    }

    /// True for one of this context.
    pub(crate) fn is_of(&self, hints: &Arc<Hints>) -> bool {
        Arc::ptr_eq(&self.hints, hints)
    }

    /// True while frames wait for its protocol: those that came before it was
    /// watched.
    pub(super) fn has_waiting_frames(&self) -> bool {
        self.source.has_waiting_frames()
    }

    /// What the kernel's epoll is asked about its descriptor. Of what the kernel has
    /// but a part in it tells changes of the input alone, whatever is asked for.
    pub(super) fn kernel_interest(&self) -> u32 {
        if self.is_kernels() {
            self.interest().without(Events::WAKEUP).bits()
        } else {
            (Events::IN | Events::EDGE).bits()
        }
    }

    /// It is looked at, and not put back: from now on a change leaves a hint again.
    /// Look at [`Registration::events`] afterwards.
    pub(crate) fn settle(&self) {
        self.hinted.leave();
    }

    /// As [`Registration::settle`], for whoever has taken it from the list. False
    /// when it was settled since it was entered there.
    pub(crate) fn take_hint(&self) -> bool {
        self.hinted.leave()
    }

    /// Takes it for hinted again; false when a change has done so meanwhile.
    pub(crate) fn unsettle(&self) -> bool {
        self.hinted.enter()
    }

    /// True for one of which only the kernel knows what it is ready for; a set may
    /// have such in it.
    pub(super) fn is_told_by_kernel(&self) -> bool {
        matches!(&self.source, Source::Kernel | Source::Set(_))
    }

    /// True for one that only the kernel knows about.
    pub(crate) fn is_kernels(&self) -> bool {
        matches!(self.source, Source::Kernel)
    }

    /// The application is being told of it: what its connection wants to send
    /// waits for what it writes.
    pub(crate) fn note_told(&self) {
        self.told.store(self.hints.turn_number(), Ordering::Relaxed);
    }

    /// True while the application has been told of it, or is about to be.
    pub(super) fn is_ready(&self) -> bool {
        self.hinted.is_in() || self.told.load(Ordering::Relaxed) == self.hints.turn_number()
    }

    /// What its file is ready for now, whatever it is watched for; nothing once
    /// it is retired.
    pub(crate) fn events(&self) -> Events {
        if !self.is_active() {
            return Events::NONE;
        }
        match &self.source {
            Source::Kernel => {
                let wanted = self.interest().bits() & !Events::FLAGS.bits();
                let ready = poll::ready_now(self.descriptor, wanted as u16 as i16);
                Events::from_bits(u32::from(ready as u16) & !(libc::POLLNVAL as u32))
            }
            source => source.events(),
        }
    }

    /// Leaves a hint, if it is of interest. True when somebody takes it: see
    /// [`Watch::notify`].
    pub(super) fn notify(self: &Arc<Self>, changed: Events) -> bool {
        let interest = self.interest();
        if !interest.intersects(changed) {
            return false;
        }
        if self.hinted.enter() {
            self.hints.push_hinted(self.clone());
        }
        self.hints.tell_watchers();
        if !interest.contains(Events::EXCLUSIVE) {
            return true;
        }
        let direction = changed & (Events::IN | Events::OUT);
        self.hints.has_taker()
            && match direction {
                Events::IN | Events::OUT => interest.intersects(direction),
                other => other.is_empty(),
            }
    }

    /// Leaves a hint if it is ready for what it is watched for.
    pub(crate) fn hint_if_ready(self: &Arc<Self>) {
        if !self.is_kernels() && self.events().intersects(self.interest()) {
            self.hint();
        }
    }

    /// As [`Registration::hint_if_ready`], for one that is new: what the kernel has for
    /// it, it tells by itself.
    pub(super) fn hint_at_first(self: &Arc<Self>) {
        match &self.source {
            Source::Set(set) if self.descriptor >= 0 => {
                let readable = self.interest().intersects(Events::READABLE);
                if readable && set.upgrade().is_some_and(|set| set.has_hinted()) {
                    self.hint();
                }
            }
            _ => self.hint_if_ready(),
        }
    }

    /// Leaves a hint whatever it is watched for: its owner wants it looked at.
    pub(crate) fn hint(self: &Arc<Self>) {
        if self.hinted.enter() {
            self.hints.push_hinted(self.clone());
        }
        self.hints.tell_watchers();
    }

    /// Runs the protocol on the frames that wait for its socket.
    pub(super) fn process(&self, core: &Core) {
        self.source.process(core);
    }

    /// The kernel says that a descriptor of a socket that it has a part in has
    /// input.
    pub(super) fn kernel_has_input(self: &Arc<Self>) {
        self.source.kernel_has_input();
        self.notify(Events::DATA_CAME);
    }

    /// It leaves no hint from now on, and those that it left count for nothing.
    pub(crate) fn retire(&self) {
        if self.retire_here() {
            match &self.source {
                Source::Udp(socket) => {
                    if let Some(socket) = socket.upgrade() {
                        socket.watch.remove(self);
                    }
                }
                Source::Listener(listener) => {
                    if let Some(listener) = listener.upgrade() {
                        listener.watch.remove(self);
                    }
                }
                Source::Connection(connection) => {
                    if let Some(connection) = connection.upgrade() {
                        connection.watch.remove(self);
                    }
                }
                Source::Set(set) => {
                    if let Some(set) = set.upgrade() {
                        set.hints.watch.remove(self);
                    }
                }
                // Its place is cleared with the next registration there.
                Source::Kernel | Source::Always => {}
            }
        }
    }

    /// As [`Registration::retire`], but for its place in the socket's list. False
    /// when it was retired before.
    pub(super) fn retire_here(&self) -> bool {
        let first = self.active.swap(false, Ordering::AcqRel);
        if first {
            self.interest.store(0, Ordering::Relaxed);
            self.hints.forget_kernel(self);
            drop(lock(&self.own).take());
            self.hints.note_retired(self.slot());
        }
        first
    }
}
