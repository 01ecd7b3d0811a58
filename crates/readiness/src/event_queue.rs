//! `declare_interest` and `get_next_event`: events in place of states.
//!
//! Banga, Mogul and Druschel, "A scalable and explicit event delivery mechanism for
//! UNIX", USENIX 1999. A thread declares its interest once, and receives what has
//! happened since. Nothing of the size of the set crosses the interface.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::thread_state::{DescriptorContext, OpenFiles, ThreadState, with_thread_state};
use crate::descriptor::{Descriptors, FileTable, TableFile};
use crate::events::Events;

/// An event on a descriptor ([`Descriptors::get_next_event`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorEvent {
    /// The descriptor.
    pub fd: i32,
    /// The declared events that it is ready for, and errors and hang-ups.
    pub events: Events,
}

impl<F: TableFile> Descriptors<F> {
    /// Declares the calling thread's interest in a descriptor, in place of an earlier
    /// declaration; [`Events::NONE`] ends it. [`Descriptors::get_next_event`] reports
    /// what happens from now on.
    ///
    /// `state` receives the declared events that the descriptor is ready for now; nothing
    /// that happened before the call is reported as an event. Without `state`, this
    /// readiness is the first event.
    ///
    /// Interest ends when the descriptor is closed. With [`Events::EXCLUSIVE`] an event
    /// is reported to one of the threads with exclusive interest (SO_WAKEUP_ONE). Events
    /// of kernel descriptors are reported to all.
    ///
    /// # Errors
    /// EBADF; epoll's errors for a kernel descriptor.
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
            // Under the lock that a close waits for.
            let file = self.file(fd)?;
            if interest.without(Events::FLAGS).is_empty() {
                files.by_number.remove(number);
                if let Some(state) = state {
                    *state = Events::NONE;
                }
                return Ok(());
            }
            let reported = interest.without(Events::FLAGS) | Events::ALWAYS;
            // The kernel does not allow changes of an exclusive interest, so its events
            // are reported to all threads.
            let exclusive = match file.pollable() {
                None => Events::NONE,
                Some(_) => interest & Events::EXCLUSIVE,
            };
            let wanted = reported | Events::EDGE | exclusive;
            let known = files.by_number.get(number).cloned();
            let registration = match known {
                Some(registration) => registration,
                None => {
                    // Registered for nothing at first, so that present readiness does not
                    // put it on the ready list.
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
            // The kernel reports present readiness; that is no event.
            files.mark_kernel_ready(true)?;
            registration.unmark();
            *state = registration.events() & reported;
            Ok(())
        })
    }

    /// Waits until an event happens that the calling thread has declared an interest in,
    /// and puts it into `events`. Each descriptor has all its events in one entry, in the
    /// order in which they began, as many as fit. Returns the number of entries; 0 at the
    /// timeout. `None` waits forever, zero does not wait.
    ///
    /// An event states what the descriptor is ready for when it is returned. Readiness
    /// that ended before, or that the application itself undid, is not reported. An event
    /// is not repeated until something else happens: read until EAGAIN.
    ///
    /// # Errors
    /// EINVAL for an empty buffer; EINTR when a signal arrives; the device's errors as
    /// [`Selector::wait`](crate::Selector::wait) reports them.
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
                    // Its state was queried since.
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
