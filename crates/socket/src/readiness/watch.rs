//! What ties a socket to the contexts that watch it: its registrations.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex};

use super::Events;
use super::hints::Hints;
use super::registration::Registration;
use crate::stack::lock;
use crate::tcp::helper::Helper;

/// Registrations of a socket. Most have one at most, which needs no list.
#[derive(Default)]
enum List {
    #[default]
    None,
    One(Arc<Registration>),
    // A pointer: most sockets have one registration or none.
    #[allow(clippy::box_collection)]
    Many(Box<Vec<Arc<Registration>>>),
}

impl List {
    fn as_slice(&self) -> &[Arc<Registration>] {
        match self {
            List::None => &[],
            List::One(one) => std::slice::from_ref(one),
            List::Many(many) => many,
        }
    }

    fn push(&mut self, registration: Arc<Registration>) {
        *self = match std::mem::take(self) {
            List::None => List::One(registration),
            List::One(one) => List::Many(Box::new(vec![one, registration])),
            List::Many(mut many) => {
                many.push(registration);
                List::Many(many)
            }
        };
    }

    /// Keeps those that `keep` says; returns the others.
    fn retain(&mut self, keep: impl Fn(&Registration) -> bool) -> Vec<Arc<Registration>> {
        let mut gone = Vec::new();
        match self {
            List::None => {}
            List::One(one) => {
                if !keep(one)
                    && let List::One(one) = std::mem::take(self)
                {
                    gone.push(one);
                }
            }
            List::Many(many) => {
                gone.extend(many.extract_if(.., |each| !keep(each)));
                if many.is_empty() {
                    *self = List::None;
                }
            }
        }
        gone
    }
}

thread_local! {
    /// The context that the calling thread turns, as an address: hints that it
    /// leaves there wake nobody, since it takes them itself.
    pub(super) static TURNING: Cell<usize> = const { Cell::new(0) };
}

/// A socket's place for its registrations.
#[derive(Default)]
pub(crate) struct Watch {
    /// Length of the list; read without the lock.
    count: AtomicU32,
    list: Mutex<List>,
}

impl Watch {
    /// Enters a registration. False when a selector watches the socket already
    /// and this is another one's.
    pub(crate) fn add(&self, registration: Arc<Registration>) -> bool {
        let mut list = lock(&self.list);
        let dead = list.retain(Registration::lives);
        let taken =
            registration.manner.sole && list.as_slice().iter().any(|other| other.manner.sole);
        if !taken {
            list.push(registration);
        }
        self.count
            .store(list.as_slice().len() as u32, Ordering::SeqCst);
        drop(list);
        // Its owner may be the last that holds what it points to.
        drop(dead);
        // Either whoever notifies sees it, or we see what it is about.
        fence(Ordering::SeqCst);
        !taken
    }

    /// Takes a registration out.
    pub(crate) fn remove(&self, registration: &Registration) {
        let gone = {
            let mut list = lock(&self.list);
            let gone = list.retain(|other| !std::ptr::eq(other, registration));
            self.count
                .store(list.as_slice().len() as u32, Ordering::SeqCst);
            gone
        };
        drop(gone);
    }

    /// The registration with a context, if it has one there.
    pub(crate) fn find(&self, hints: &Arc<Hints>) -> Option<Arc<Registration>> {
        let list = lock(&self.list);
        let mut of_context = list.as_slice().iter().filter(|it| it.is_of(hints));
        of_context.find(|it| it.lives()).cloned()
    }

    /// The socket is closed: nobody watches it any more.
    pub(crate) fn retire(&self) {
        let all = {
            let mut list = lock(&self.list);
            self.count.store(0, Ordering::SeqCst);
            std::mem::take(&mut *list)
        };
        for registration in all.as_slice() {
            registration.retire_here();
        }
    }

    /// The contexts that watch it.
    pub(super) fn contexts(&self) -> Vec<Arc<Hints>> {
        let list = lock(&self.list);
        let living = list.as_slice().iter().filter(|it| it.lives());
        living.map(|it| it.hints.clone()).collect()
    }

    fn any(&self, is: impl Fn(&Registration) -> bool) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let list = lock(&self.list);
        list.as_slice().iter().any(|it| it.lives() && is(it))
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.any(|_| true)
    }

    /// True while the application has been told of something, or is about to
    /// be, that it has not dealt with.
    pub(crate) fn is_ready(&self) -> bool {
        self.any(Registration::is_ready)
    }

    /// True when the next turn of a context will send what is written now.
    ///
    /// Nobody is in one: whoever is inside may sleep.
    pub(crate) fn is_turned_later(&self) -> bool {
        self.is_watched() && !self.is_attended()
    }

    /// True when a thread is in a context that watches it, or in one above that.
    pub(super) fn is_attended(&self) -> bool {
        self.any(|registration| registration.hints.is_attended())
    }

    /// Something changed, or is so. Whoever is interested gets a hint. Of the
    /// exclusive registrations those get one, in order, until somebody takes it;
    /// all of them when the state changed.
    pub(crate) fn notify(&self, changed: Events) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let list = lock(&self.list);
        let all = list.as_slice();
        let is_exclusive = |it: &&Arc<Registration>| it.interest().contains(Events::EXCLUSIVE);
        for registration in all.iter().filter(|it| !is_exclusive(it) && it.lives()) {
            registration.notify(changed);
        }
        if all.len() == 1 && !all.iter().any(|it| is_exclusive(&it)) {
            return;
        }
        for registration in all.iter().filter(|it| is_exclusive(it) && it.lives()) {
            if registration.notify(changed) && changed != Events::STATE_CHANGED {
                return;
            }
        }
    }

    /// Frames wait for the socket; false when nobody watches it.
    pub(crate) fn has_frames(&self) -> bool {
        // The fence of whoever woke the socket's own waiters comes before.
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let entered = self.enter_frames(true);
        if let Some(helper) = entered.unattended {
            helper.wake();
        }
        entered.watched
    }

    /// Enters the socket with every context that watches it, for whichever turns
    /// first, and (`wake`) wakes one thread to do it.
    pub(super) fn enter_frames(&self, wake: bool) -> Entered {
        let mut entered = Entered::default();
        let list = lock(&self.list);
        for registration in list.as_slice().iter().filter(|it| it.lives()) {
            entered.watched = true;
            let hints = &registration.hints;
            let wake = wake && !entered.attended;
            if !registration.framed.enter() {
                // Nobody has come for the first of them yet. That may be because
                // another context saw to those, where nobody is now.
                entered.attended |= wake && hints.attend_frames(wake);
                continue;
            }
            if hints.push_framed(registration.clone(), wake) {
                entered.attended = true;
            } else {
                entered.unattended = Some(hints.helper().clone());
            }
        }
        if entered.attended {
            entered.unattended = None;
        }
        entered
    }
}

/// What became of frames that were entered with contexts.
#[derive(Default)]
pub(super) struct Entered {
    pub(super) watched: bool,
    /// A thread is in one of them.
    pub(super) attended: bool,
    /// Nobody is: whom to ask.
    unattended: Option<Arc<Helper>>,
}
