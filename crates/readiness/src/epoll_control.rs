//! `epoll_ctl`: the contents of a set, and the nesting of sets.

use std::io;
use std::sync::{Arc, Weak};

use tidewall_stack::lock::{Mutex, lock, rank};

use super::epoll::{EpollEvent, EpollSet, Items, SetInner};
use super::poll_context::{Interface, PollContext};
use super::registration::File;
use crate::events::Events;

/// The operation of `epoll_ctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// EPOLL_CTL_ADD.
    Add,
    /// EPOLL_CTL_MOD.
    Modify,
    /// EPOLL_CTL_DEL.
    Delete,
}

/// Sets above and below one, at most (Linux's EP_MAX_NESTS).
const NESTS_MAX: usize = 4;

/// Events allowed with EXCLUSIVE (Linux's EPOLLEXCLUSIVE_OK_BITS).
const BESIDE_EXCLUSIVE: Events = Events::IN
    .with(Events::OUT)
    .with(Events::ERR)
    .with(Events::HUP)
    .with(Events::WAKEUP)
    .with(Events::EDGE)
    .with(Events::EXCLUSIVE);

/// Held while a set is added to a set, so that two threads together do not close a loop.
static NESTING: Mutex<(), rank::EpollNesting> = Mutex::new(());

fn refuse<T>(errno: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(errno))
}

impl EpollSet {
    /// Changes the contents of the set. An item is a descriptor *and* the open file that
    /// it named when it was added.
    ///
    /// # Errors
    /// In Linux's order:
    ///
    /// - EFAULT without an event where one is needed;
    /// - EPERM for a file that cannot be polled;
    /// - EINVAL for the set itself, and for EXCLUSIVE with an event that it excludes;
    /// - ELOOP for sets in a cycle or more than five deep;
    /// - EEXIST, ENOENT;
    /// - the kernel's own errors.
    pub(crate) fn control(
        &self,
        operation: Operation,
        fd: i32,
        file: &Arc<dyn File>,
        event: Option<EpollEvent>,
    ) -> io::Result<()> {
        let event = match (operation, event) {
            (Operation::Delete, _) => EpollEvent::default(),
            (_, Some(event)) => event,
            (_, None) => return refuse(libc::EFAULT),
        };
        if !file.can_poll() {
            return refuse(libc::EPERM);
        }
        let nested = file.epoll_set().map(|set| &set.inner);
        if nested.is_some_and(|nested| Arc::ptr_eq(nested, &self.inner)) {
            return refuse(libc::EINVAL);
        }
        if event.events.contains(Events::EXCLUSIVE) {
            let allowed = match operation {
                Operation::Modify => false,
                Operation::Add => {
                    nested.is_none() && event.events.without(BESIDE_EXCLUSIVE).is_empty()
                }
                Operation::Delete => true,
            };
            if !allowed {
                return refuse(libc::EINVAL);
            }
        }
        let nesting = (operation == Operation::Add && nested.is_some()).then(|| lock(&NESTING));
        if nesting.is_some()
            && let Some(nested) = nested
        {
            let below = depth_below(nested, &self.inner, 0);
            if below.is_none_or(|below| below + 1 + depth_above(&self.inner.context) > NESTS_MAX) {
                return refuse(libc::ELOOP);
            }
        }
        let mut items = self.inner.lock_items();
        let interest = event.events | Events::ALWAYS;
        match (operation, items.find(fd, file)) {
            (Operation::Add, Some(_)) => refuse(libc::EEXIST),
            (Operation::Modify | Operation::Delete, None) => refuse(libc::ENOENT),
            (Operation::Add, None) => self.add(
                &mut items,
                fd,
                file,
                nested.map(Arc::downgrade),
                interest,
                event.data,
            ),
            (Operation::Modify, Some(item)) => {
                let registration = &item.registration;
                if registration.interest().contains(Events::EXCLUSIVE) {
                    return refuse(libc::EINVAL);
                }
                registration.set_key(event.data);
                registration.set_interest(interest)?;
                registration.mark_if_ready();
                Ok(())
            }
            (Operation::Delete, Some(item)) => {
                let registration = item.registration.clone();
                registration.retire();
                file.wait_queue().unregister(&registration);
                items.remove(registration.slot());
                Ok(())
            }
        }
    }

    fn add(
        &self,
        items: &mut Items,
        fd: i32,
        file: &Arc<dyn File>,
        nested: Option<Weak<SetInner>>,
        interest: Events,
        data: u64,
    ) -> io::Result<()> {
        if !file.is_of(self.stack()) {
            return refuse(libc::EINVAL);
        }
        let registration =
            self.inner
                .context
                .register(&**file, data, interest, Interface::Epoll)?;
        registration.set_slot(items.next_slot());
        items.insert(registration, fd, file, nested);
        Ok(())
    }
}

/// Returns the longest chain of sets below `set`; `None` if `above` is among them, or the
/// chain is too long.
fn depth_below(set: &SetInner, above: &Arc<SetInner>, depth: usize) -> Option<usize> {
    let nested: Vec<_> = {
        let items = set.lock_items();
        let sets = items.items.iter();
        sets.filter_map(|(_, item)| item.nested.as_ref()?.upgrade())
            .collect()
    };
    let mut deepest = 0;
    for set in nested {
        if Arc::ptr_eq(&set, above) || depth > NESTS_MAX {
            return None;
        }
        deepest = deepest.max(depth_below(&set, above, depth + 1)? + 1);
    }
    Some(deepest)
}

/// Returns the longest chain of sets that contain a set.
fn depth_above(context: &PollContext) -> usize {
    let above = context.wait_queue.contexts();
    let sets = above.iter().filter(|context| context.is_epoll());
    sets.map(|context| depth_above(context) + 1)
        .max()
        .unwrap_or(0)
}
