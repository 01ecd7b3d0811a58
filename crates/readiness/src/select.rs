//! `select` and `pselect`, of any width.

use std::io;
use std::time::Duration;

use super::classes::CLASSES;
use super::descriptor_set::DescriptorSet;
use super::interest::Selecting;
use super::thread_state::{Call, OpenFiles, ThreadState, with_thread_state};
use crate::SignalSet;
use crate::descriptor::{Descriptors, TableFile};

impl<F: TableFile> Descriptors<F> {
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
    /// ready in every set: a call on it gets EBADF.
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
        self.with_sets(nfds, [read, write, except], |thread, selecting| {
            thread.found.clear();
            thread.wait(self, timeout, signals, &mut Select { selecting })?;
            Ok(())
        })
    }

    /// Gives what the sets ask about to `call`, and makes them what it found.
    pub(crate) fn with_sets(
        &self,
        nfds: i32,
        sets: [Option<&mut DescriptorSet>; CLASSES],
        call: impl FnOnce(&mut ThreadState, Selecting<'_>) -> io::Result<()>,
    ) -> io::Result<usize> {
        let count = usize::try_from(nfds).map_err(|_| io::ErrorKind::InvalidInput)?;
        with_thread_state(self, |thread| {
            let words = sets
                .each_ref()
                .map(|set| set.as_ref().map_or(&[][..], |set| set.words()));
            call(thread, Selecting::new(words, count))?;
            let sets = sets.map(|set| set.map(DescriptorSet::words_mut));
            Ok(thread.found.write(sets, count))
        })
    }
}

/// A call of `select`.
struct Select<'a> {
    selecting: Selecting<'a>,
}

impl Call for Select<'_> {
    fn examine_all(
        &mut self,
        thread: &mut ThreadState,
        files: &mut OpenFiles<'_>,
    ) -> io::Result<()> {
        let ThreadState {
            interest, found, ..
        } = thread;
        interest.select(&self.selecting, files, found)
    }

    fn examine_changed(
        &mut self,
        thread: &mut ThreadState,
        files: &mut OpenFiles<'_>,
    ) -> io::Result<()> {
        for number in thread.changed.drain(..) {
            let asked = self.selecting.classes(number);
            if asked.is_none() {
                files.park(number);
                continue;
            }
            let ready = match thread.interest.see(number, asked, files) {
                // Closed: ready in every set.
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => asked,
                ready => ready?,
            };
            thread.found.push(number, ready);
        }
        Ok(())
    }

    fn found(&self, thread: &ThreadState) -> usize {
        thread.found.len()
    }

    fn all_asked(&self, each: &mut dyn FnMut(usize) -> bool) -> bool {
        let mut one = |number, _| each(number).then_some(()).ok_or(());
        self.selecting.each(&mut one).is_ok()
    }
}
