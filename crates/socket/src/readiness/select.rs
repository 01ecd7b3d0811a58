//! `select` and `pselect`, of any width.

use std::io;
use std::time::Duration;

use super::SignalSet;
use super::descriptor_set::DescriptorSet;
use super::interest::Selecting;
use super::thread_state::{OpenFiles, ThreadState, interrupted_by_pending, with_thread_state};
use crate::descriptor::Descriptors;

impl Descriptors {
    /// Waits until one of the descriptors below `nfds` in the sets is ready for
    /// reading, for writing, or has an exception, and leaves those that are in
    /// the sets. Returns how many there are, each set counted by itself; none at
    /// the timeout. `None` for a timeout waits for ever, zero does not wait. On
    /// an error the sets are as they were.
    ///
    /// What is examined is what was not selected before by this thread, what has
    /// changed, and what was ready last time (Banga and Mogul, USENIX 1998).
    /// Beyond one pass over the sets a call costs nothing for the rest.
    ///
    /// Of a word of 64 descriptors that `nfds` cuts, the rest is cleared, as
    /// Linux does. A descriptor that another thread closes in the meantime is
    /// ready in every set: whoever tries it gets EBADF.
    ///
    /// # Errors
    /// EBADF for a set that names a descriptor below `nfds` which is not open;
    /// EINVAL for a negative `nfds`; EINTR when a signal arrives; what
    /// [`Selector::wait`](crate::Selector::wait) reports of the device.
    pub fn select(
        &self,
        nfds: i32,
        read: Option<&mut DescriptorSet>,
        write: Option<&mut DescriptorSet>,
        except: Option<&mut DescriptorSet>,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        self.pselect(nfds, read, write, except, timeout, None)
    }

    /// As [`Descriptors::select`], with `signals` blocked instead of those that
    /// are, while it waits: a signal that arrives between a test of what its
    /// handler sets and the wait is not missed.
    ///
    /// # Errors
    /// As [`Descriptors::select`]; EINTR also for a signal that was pending.
    pub fn pselect(
        &self,
        nfds: i32,
        read: Option<&mut DescriptorSet>,
        write: Option<&mut DescriptorSet>,
        except: Option<&mut DescriptorSet>,
        timeout: Option<Duration>,
        signals: Option<&SignalSet>,
    ) -> io::Result<usize> {
        let count = usize::try_from(nfds).map_err(|_| io::ErrorKind::InvalidInput)?;
        let sets = [read, write, except];
        with_thread_state(self, |thread| {
            let words = sets
                .each_ref()
                .map(|set| set.as_ref().map_or(&[][..], |set| set.words()));
            let selecting = Selecting::new(words, count);
            thread.select(self, &selecting, timeout, signals)?;
            let sets = sets.map(|set| set.map(DescriptorSet::words_mut));
            Ok(thread.found.write(sets, count))
        })
    }
}

impl ThreadState {
    fn select(
        &mut self,
        descriptors: &Descriptors,
        selecting: &Selecting<'_>,
        timeout: Option<Duration>,
        signals: Option<&SignalSet>,
    ) -> io::Result<()> {
        let context = self.polled.context.clone();
        let core = descriptors.stack().here()?;
        self.found.clear();
        let mut first = true;
        let found = context.wait(core, timeout, signals, &mut |insist| {
            if std::mem::take(&mut first) {
                self.take_hints(descriptors, insist)?;
                let mut files = OpenFiles::new(descriptors, &self.polled);
                self.interest
                    .select(selecting, &mut files, &mut self.found)?;
            } else {
                self.look_again(descriptors, selecting, insist)?;
            }
            if context.has_unprocessed_frames() {
                // Frames that were there before their socket was watched.
                context.process(core);
                self.look_again(descriptors, selecting, false)?;
            }
            Ok(self.found.len())
        })?;
        interrupted_by_pending(found, timeout, signals)
    }

    /// Learns what was closed and what has changed since the thread's last call.
    pub(super) fn take_hints(&mut self, descriptors: &Descriptors, insist: bool) -> io::Result<()> {
        let interest = &mut self.interest;
        self.polled.take_closed(|number| interest.forget(number));
        let mut files = OpenFiles::new(descriptors, &self.polled);
        files.mark_kernel_ready(insist)?;
        self.polled.context.take_all(&mut self.taken);
        for registration in self.taken.drain(..) {
            let number = registration.key() as usize;
            if files.by_number.is_current(&registration) && !interest.hint(number) {
                files.park(number);
            }
        }
        Ok(())
    }

    /// Examines what was hinted or closed in the meantime, nothing else.
    fn look_again(
        &mut self,
        descriptors: &Descriptors,
        selecting: &Selecting<'_>,
        insist: bool,
    ) -> io::Result<()> {
        let ThreadState {
            polled,
            interest,
            found,
            taken,
            changed,
            ..
        } = self;
        changed.clear();
        polled.take_closed(|number| {
            interest.forget(number);
            changed.push(number);
        });
        let mut files = OpenFiles::new(descriptors, polled);
        for number in changed.drain(..) {
            let asked = selecting.classes(number);
            if !asked.is_none() {
                // Another file may have the number by now.
                let ready = interest.see(number, asked, &mut files);
                found.push(number, ready.unwrap_or(asked));
            }
        }
        files.mark_kernel_ready(insist)?;
        polled.context.take_all(taken);
        // All are noted before one is examined, which may fail.
        for registration in taken.drain(..) {
            if files.by_number.is_current(&registration) {
                let number = registration.key() as usize;
                interest.hint(number);
                changed.push(number);
            }
        }
        for number in changed.drain(..) {
            let asked = selecting.classes(number);
            if asked.is_none() {
                // It woke us for nothing; it need not again.
                files.park(number);
            } else {
                found.push(number, interest.see(number, asked, &mut files)?);
            }
        }
        Ok(())
    }
}
