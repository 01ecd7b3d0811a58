//! The half of a wait queue that contexts are in: epoll sets, `select`, selectors.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use tidewall_stack::lock::lock;

use super::WaitQueue;
use crate::events::Events;
use crate::poll_context::PollContext;
use crate::registration::Registration;

/// The registrations with an endpoint. Most endpoints have at most one, which needs no
/// list.
#[derive(Default)]
pub(super) enum Registrations {
    #[default]
    None,
    One(Arc<Registration>),
    // A pointer: most sockets have one registration or none.
    #[allow(clippy::box_collection)]
    Many(Box<Vec<Arc<Registration>>>),
}

impl Registrations {
    fn as_slice(&self) -> &[Arc<Registration>] {
        match self {
            Self::None => &[],
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    fn push(&mut self, registration: Arc<Registration>) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(registration),
            Self::One(one) => Self::Many(Box::new(vec![one, registration])),
            Self::Many(mut many) => {
                many.push(registration);
                Self::Many(many)
            }
        };
    }

    /// Keeps those for which `keep` returns true; returns the others.
    fn retain(&mut self, keep: impl Fn(&Registration) -> bool) -> Vec<Arc<Registration>> {
        let mut gone = Vec::new();
        match self {
            Self::None => {}
            Self::One(one) => {
                if !keep(one)
                    && let Self::One(one) = std::mem::take(self)
                {
                    gone.push(one);
                }
            }
            Self::Many(many) => {
                gone.extend(many.extract_if(.., |each| !keep(each)));
                if many.is_empty() {
                    *self = Self::None;
                }
            }
        }
        gone
    }
}

thread_local! {
    /// The context that the calling thread is in, as an address. An addition to the ready
    /// list there wakes no thread, since this thread takes it itself.
    pub static CURRENT_CONTEXT: Cell<usize> = const { Cell::new(0) };
}

impl WaitQueue {
    /// Enters a registration. Returns false when another selector polls the endpoint
    /// already.
    pub fn register(&self, registration: Arc<Registration>) -> bool {
        let mut list = lock(&self.registrations);
        let dead = list.retain(Registration::is_live);
        let taken =
            registration.is_selectors() && list.as_slice().iter().any(|it| it.is_selectors());
        if !taken {
            list.push(registration);
        }
        self.count(&list);
        drop(list);
        // Its owner may hold the last reference to what it points to.
        drop(dead);
        // Either a notifier sees it, or we see the change.
        fence(Ordering::SeqCst);
        !taken
    }

    /// Removes a registration.
    pub fn unregister(&self, registration: &Registration) {
        let gone = {
            let mut list = lock(&self.registrations);
            let gone = list.retain(|other| !std::ptr::eq(other, registration));
            self.count(&list);
            gone
        };
        drop(gone);
    }

    fn count(&self, list: &Registrations) {
        let count = list.as_slice().len() as u32;
        self.registration_count.store(count, Ordering::SeqCst);
    }

    /// Returns the registration with a context, if it has one there.
    pub fn find(&self, context: &Arc<PollContext>) -> Option<Arc<Registration>> {
        let list = lock(&self.registrations);
        let mut of_context = list.as_slice().iter().filter(|it| it.is_of(context));
        of_context.find(|it| it.is_live()).cloned()
    }

    /// Ends all registrations of a closed endpoint.
    pub fn close(&self) {
        let all = {
            let mut list = lock(&self.registrations);
            self.registration_count.store(0, Ordering::SeqCst);
            std::mem::take(&mut *list)
        };
        for registration in all.as_slice() {
            registration.deactivate();
        }
    }

    /// Returns the contexts that poll it.
    pub fn contexts(&self) -> Vec<Arc<PollContext>> {
        let list = lock(&self.registrations);
        let live = list.as_slice().iter().filter(|it| it.is_live());
        live.map(|it| it.context.clone()).collect()
    }

    fn any(&self, is: impl Fn(&Registration) -> bool) -> bool {
        if self.registration_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let list = lock(&self.registrations);
        list.as_slice().iter().any(|it| it.is_live() && is(it))
    }

    /// Returns true while a context polls it.
    pub fn is_polled(&self) -> bool {
        self.any(|_| true)
    }

    /// Returns true while an event was reported to the application, or is about to be,
    /// that it has not handled.
    pub fn is_ready(&self) -> bool {
        self.any(Registration::is_ready)
    }

    /// Returns true when the next wait of an event loop will send what is written now. It
    /// is false while a thread is in one: it may sleep.
    pub fn is_sent_later(&self) -> bool {
        self.any(|registration| registration.context.loops()) && !self.has_thread_in_context()
    }

    /// Returns true when a thread is in a context that polls it, or in one above that.
    pub fn has_thread_in_context(&self) -> bool {
        self.any(|registration| registration.context.is_waited_in())
    }

    /// Notifies registrations of a change or a state: interested ones go on their
    /// contexts' ready lists. Exclusive ones go on them in order, until a thread takes
    /// the event; all of them do when the state changed.
    #[inline]
    pub fn notify_registrations(&self, changed: Events) {
        if self.registration_count.load(Ordering::Relaxed) != 0 {
            self.notify_all_registrations(changed);
        }
    }

    fn notify_all_registrations(&self, changed: Events) {
        let list = lock(&self.registrations);
        let all = list.as_slice();
        let is_exclusive = |it: &&Arc<Registration>| it.interest().contains(Events::EXCLUSIVE);
        for registration in all.iter().filter(|it| !is_exclusive(it) && it.is_live()) {
            registration.notify(changed);
        }
        if all.len() == 1 && !all.iter().any(|it| is_exclusive(&it)) {
            return;
        }
        for registration in all.iter().filter(|it| is_exclusive(it) && it.is_live()) {
            if registration.notify(changed) && changed != Events::STATE_CHANGED {
                return;
            }
        }
    }

    /// Enters waiting frames of the endpoint's protocol; returns false when no context
    /// polls it.
    pub fn enter_frames_with_contexts(&self) -> bool {
        self.enter_frames(true, true).is_polled
    }

    /// Enters the endpoint with every context that polls it, for the thread that waits
    /// there first, and (`wake`) wakes one. If no thread is in any of them, the stack's
    /// helper thread is asked (`ask_helper`).
    #[inline]
    pub fn enter_frames(&self, wake: bool, ask_helper: bool) -> Entered {
        // A fence comes before: that of `wake_any`, or of a new registration.
        if self.registration_count.load(Ordering::Relaxed) == 0 {
            return Entered::default();
        }
        self.enter_frames_with_all(wake, ask_helper)
    }

    fn enter_frames_with_all(&self, wake: bool, ask_helper: bool) -> Entered {
        let mut entered = Entered::default();
        let mut helper = None;
        let list = lock(&self.registrations);
        for registration in list.as_slice().iter().filter(|it| it.is_live()) {
            entered.is_polled = true;
            let context = &registration.context;
            let wake = wake && !entered.has_thread;
            if !registration.unprocessed.enter() {
                // No thread has come for the first of them yet. That may be because
                // another context processed those, where no thread is now.
                entered.has_thread |= wake && context.wake_for_frames(wake);
                continue;
            }
            if context.push_unprocessed(registration.clone(), wake) {
                entered.has_thread = true;
            } else {
                helper = Some(context.helper());
            }
        }
        if let Some(helper) = helper.filter(|_| ask_helper && !entered.has_thread) {
            helper.wake();
        }
        entered
    }
}

/// The outcome of entering frames with contexts.
#[derive(Clone, Copy, Default)]
pub struct Entered {
    is_polled: bool,
    /// A thread is in one of the contexts.
    pub has_thread: bool,
}
