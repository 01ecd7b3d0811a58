//! Agreements between threads by one word: whether something is in a list, and which of
//! several threads has a role.
//!
//! Their interleavings are modelled (`make loom`).

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// Records whether something is in a list, so that it is entered once, however often it
/// changes.
pub(crate) struct Listed(AtomicBool);

impl Listed {
    pub(crate) fn new() -> Self {
        Listed(AtomicBool::new(false))
    }

    /// Called after a change. Returns true if the caller must enter it.
    pub(crate) fn enter(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Called when it was taken out and is examined next. That examination sees earlier
    /// changes; later ones enter it again. Returns false if it was not in the list.
    pub(crate) fn leave(&self) -> bool {
        // Not a store: it must see the changes of the thread that found it set.
        let was = self.0.swap(false, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        was
    }

    /// Returns true while it is in the list.
    pub(crate) fn is_in(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A role that one of several threads has, identified by a nonzero number.
pub(super) struct Role(AtomicUsize);

impl Default for Role {
    fn default() -> Self {
        Role(AtomicUsize::new(0))
    }
}

impl Role {
    /// Claims the role; returns true if the caller has it. The caller is already in the
    /// list of waiters.
    pub(super) fn take(&self, own: usize) -> bool {
        let taken = self
            .0
            .compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst);
        taken.is_ok() || taken == Err(own)
    }

    /// Called as the caller leaves. Returns true if no thread has the role: then one of
    /// the remaining waiters must claim it. SeqCst, here and in [`Role::take`]: either
    /// this thread sees a newcomer among them, or the newcomer finds the role free.
    pub(super) fn leave(&self, own: usize) -> bool {
        let left = self
            .0
            .compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        matches!(left, Ok(_) | Err(0))
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    struct Model {
        listed: Listed,
        list: Mutex<usize>,
        /// The state that changes, without any ordering.
        state: AtomicUsize,
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Model {
                listed: Listed::new(),
                list: Mutex::new(0),
                state: AtomicUsize::new(0),
            })
        }

        fn change(&self) {
            self.state.fetch_add(1, Ordering::Relaxed);
            if self.listed.enter() {
                *self.list.lock().unwrap() += 1;
            }
        }

        fn take(&self) -> bool {
            let mut list = self.list.lock().unwrap();
            assert!(*list <= 1, "entered twice");
            std::mem::take(&mut *list) == 1
        }
    }

    /// Edges: the last thread to examine has seen every change.
    #[test]
    fn loom_a_change_is_seen_or_enters_again() {
        loom::model(|| {
            let model = Model::new();
            let changing = [0; 2].map(|_| {
                let model = model.clone();
                thread::spawn(move || model.change())
            });
            let mut seen = 0;
            let mut scan = || {
                if model.take() {
                    assert!(model.listed.leave());
                    seen = model.state.load(Ordering::Relaxed);
                }
            };
            scan();
            for each in changing {
                each.join().unwrap();
            }
            scan();
            assert_eq!(seen, 2);
        });
    }

    /// Levels: a file that becomes ready after a scan found nothing is in the list.
    #[test]
    fn loom_what_becomes_ready_during_a_scan_stays() {
        loom::model(|| {
            let model = Model::new();
            assert!(model.listed.enter());
            let changing = {
                let model = model.clone();
                thread::spawn(move || model.change())
            };
            let ready = || model.state.load(Ordering::Relaxed) > 0;
            // Taken out with its flag set.
            if ready() {
                *model.list.lock().unwrap() += 1;
            } else {
                model.listed.leave();
                if ready() && model.listed.enter() {
                    *model.list.lock().unwrap() += 1;
                }
            }
            changing.join().unwrap();
            assert!(model.take(), "ready, and nobody knows");
        });
    }

    /// A sleeper has the role, or is woken to claim it.
    #[test]
    fn loom_a_role_that_is_left_is_taken_or_offered() {
        loom::model(|| {
            let here = Arc::new(Mutex::new(vec![1]));
            let (role, woken) = (Arc::new(Role::default()), Arc::new(AtomicBool::new(false)));
            assert!(role.take(1));
            let comes = {
                let (here, role) = (here.clone(), role.clone());
                thread::spawn(move || {
                    here.lock().unwrap().push(2);
                    role.take(2)
                })
            };
            here.lock().unwrap().retain(|&each| each != 1);
            if role.leave(1) && here.lock().unwrap().contains(&2) {
                woken.store(true, Ordering::SeqCst);
            }
            let has = comes.join().unwrap();
            assert!(has || woken.load(Ordering::SeqCst));
            // A thread that leaves without the role offers it too, if no thread has it.
            assert_eq!(role.leave(3), !has);
        });
    }
}
