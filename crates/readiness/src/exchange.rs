//! What threads agree on by one word: whether something is in a list, and who of
//! several does what one must.
//!
//! Their interleavings are modelled (`make loom`).

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// Whether something is in a list, so that it is entered once, however often it
/// changes.
pub(crate) struct Listed(AtomicBool);

impl Listed {
    pub(crate) fn new() -> Self {
        Listed(AtomicBool::new(false))
    }

    /// It has changed. True when the caller is to enter it.
    pub(crate) fn enter(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// It was taken out and is looked at next: what changed before is seen then, and
    /// what changes from here on enters it again. False when it was not in.
    pub(crate) fn leave(&self) -> bool {
        // Not a store: it must see the changes of who found it set.
        let was = self.0.swap(false, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        was
    }

    /// True while it is in.
    pub(crate) fn is_in(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one of several does, by a number of its own that is not 0.
pub(super) struct Role(AtomicUsize);

impl Default for Role {
    fn default() -> Self {
        Role(AtomicUsize::new(0))
    }
}

impl Role {
    /// True when it is the caller's, which is in the others' list already.
    pub(super) fn take(&self, own: usize) -> bool {
        let taken = self
            .0
            .compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst);
        taken.is_ok() || taken == Err(own)
    }

    /// The caller leaves. True when it is nobody's: one of those who are still here
    /// is to take it. SeqCst, here and in [`Role::take`]: either we see a newcomer
    /// among them, or it finds the role free.
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
        /// What has changed, by no ordering of its own.
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

    /// Edges: the thread that looks last has seen every change.
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

    /// Levels: what is ready after a scan that found nothing is in the list.
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
            // It is taken out, its flag set.
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

    /// A sleeper has the role, or is woken to take it.
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
            // One that leaves without it offers it too, if it is nobody's.
            assert_eq!(role.leave(3), !has);
        });
    }
}
