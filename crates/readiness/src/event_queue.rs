//! `declare_interest` and `get_next_event`: events instead of states.
//!
//! Banga, Mogul and Druschel, "A scalable and explicit event delivery mechanism
//! for UNIX", USENIX 1999. A thread says once what it is interested in, and is
//! given what has happened since: nothing of the size of the set crosses the
//! interface.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::thread_state::{DescriptorContext, OpenFiles, ThreadState, with_thread_state};
use crate::descriptor::{Descriptors, FileTable, TableFile};
use crate::events::Events;

/// What has happened to a descriptor ([`Descriptors::get_next_event`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorEvent {
    /// Its number.
    pub fd: i32,
    /// What it is ready for, of what was declared, and errors and hang-ups.
    pub events: Events,
}

impl<F: TableFile> Descriptors<F> {
    /// Declares what the calling thread is interested in of a descriptor, instead
    /// of what it declared before; [`Events::NONE`] ends it. What happens from now
    /// on is reported by [`Descriptors::get_next_event`].
    ///
    /// `state` is given what the descriptor is ready for now, of that interest:
    /// nothing that happened before the call is reported as an event. Without it, what
    /// the descriptor is ready for already is the first event.
    ///
    /// Interest ends when the descriptor is closed. With [`Events::EXCLUSIVE`]
    /// what happens is reported to one of the threads that are interested so
    /// (SO_WAKEUP_ONE); of the kernel's own descriptors to all.
    ///
    /// # Errors
    /// EBADF; what epoll reports of a descriptor of the kernel's.
    pub fn declare_interest(
        &self,
        fd: i32,
        interest: Events,
        state: Option<&mut Events>,
    ) -> io::Result<()> {
        let number = usize::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
        with_thread_state(self, |thread| {
            let queue = thread.queue(self)?;
            queue.take_closed(|_| ());
            let mut files = OpenFiles::new(self, &queue);
            // Under the lock that a closing waits for.
            let file = self.file(fd)?;
            if interest.without(Events::FLAGS).is_empty() {
                files.by_number.remove(number);
                if let Some(state) = state {
                    *state = Events::NONE;
                }
                return Ok(());
            }
            let reported = interest.without(Events::FLAGS) | Events::ALWAYS;
            // The kernel does not let an exclusive interest be changed; its own are
            // reported to everybody.
            let exclusive = match file.pollable() {
                None => Events::NONE,
                Some(_) => interest & Events::EXCLUSIVE,
            };
            let wanted = reported | Events::EDGE | exclusive;
            let known = files.by_number.get(number).cloned();
            let registration = match known {
                Some(registration) => registration,
                None => {
                    // For nothing at first, so that what it is ready for already is not
                    // put on the ready list.
                    let new = queue.register(&*file, number, Events::EDGE)?;
                    files.by_number.insert(number, new.clone());
                    new
                }
            };
            registration.set_interest(wanted)?;
            let Some(state) = state else {
                registration.mark_if_ready();
                return Ok(());
            };
            // The kernel reports what is ready already; that is no event.
            files.mark_kernel_ready(true)?;
            registration.unmark();
            *state = registration.events() & reported;
            Ok(())
        })
    }

    /// Waits until something has happened that the calling thread is interested
    /// in, and puts it into `events`: of each descriptor everything at once, in
    /// the order in which it began, as many as there is room for. Returns how many
    /// there are; none at the timeout. `None` for a timeout waits for ever, zero
    /// does not wait.
    ///
    /// An event says what the descriptor is ready for when it is given out; what
    /// ended before, or was undone by the application itself, is not reported. What is
    /// reported is not reported again until something else happens: read until EAGAIN.
    ///
    /// # Errors
    /// EINVAL without room for an event; EINTR when a signal arrives; what
    /// [`Selector::wait`](crate::Selector::wait) reports of the device.
    pub fn get_next_event(
        &self,
        events: &mut [DescriptorEvent],
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        if events.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        with_thread_state(self, |thread| {
            let queue = thread.queue(self)?;
            let context = &queue.context;
            let core = self.stack().here()?;
            context.wait(core, timeout, None, &mut |insist| {
                queue.take_closed(|_| ());
                OpenFiles::new(self, &queue).mark_kernel_ready(insist)?;
                let most = context.most_events(core, events.len());
                Ok(thread.dequeue(&queue, events.get_mut(..most).unwrap_or_default()))
            })
        })
    }
}

impl ThreadState {
    fn queue(&mut self, descriptors: &dyn FileTable) -> io::Result<Arc<DescriptorContext>> {
        match &self.events {
            Some(queue) => Ok(queue.clone()),
            None => Ok(self
                .events
                .insert(DescriptorContext::new(descriptors)?)
                .clone()),
        }
    }

    fn dequeue(&mut self, queue: &DescriptorContext, events: &mut [DescriptorEvent]) -> usize {
        let mut count = 0;
        while count < events.len() {
            queue
                .context
                .take_ready(events.len() - count, &mut self.taken);
            if self.taken.is_empty() {
                break;
            }
            for registration in self.taken.drain(..) {
                if !registration.unmark() {
                    // Its state was asked for since.
                    continue;
                }
                let interest = registration.interest().without(Events::FLAGS);
                let happened = registration.events() & interest;
                if !happened.is_empty()
                    && let Some(event) = events.get_mut(count)
                {
                    *event = DescriptorEvent {
                        fd: i32::try_from(registration.key()).unwrap_or(-1),
                        events: happened,
                    };
                    count += 1;
                }
            }
        }
        count
    }
}
