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
    /// Waits until a descriptor below `nfds` in the sets is readable, writable, or has an
    /// exception. Leaves the ready ones in the sets. Returns their number, counted in
    /// each set; 0 at the timeout. `None` waits forever, zero does not wait. On an error
    /// the sets are unchanged.
    ///
    /// It examines descriptors that this thread has not selected before, those that have
    /// changed, and those that were ready last time. The rule is that of Banga and Mogul,
    /// USENIX 1998. Beyond one pass over the sets a call costs nothing for the rest.
    ///
    /// If `nfds` cuts a word of 64 descriptors, the rest of the word is cleared, as Linux
    /// does. A descriptor that another thread closes meanwhile is ready in every set: a
    /// call on it gets EBADF.
    ///
    /// # Errors
    /// - EBADF for a descriptor below `nfds` in a set that is not open;
    /// - EINVAL for a negative `nfds`;
    /// - EINTR when a signal arrives;
    /// - the device's errors as [`Selector::wait`](crate::Selector::wait) reports them.
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

    /// As [`Descriptors::select`], with `signals` as the signal mask while it waits. A
    /// signal that arrives between a test of its handler's result and the wait is not
    /// missed.
    ///
    /// # Errors
    /// Those of [`Descriptors::select`]; EINTR also for a signal that was pending.
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

    /// Passes the sets' requests to `call`, and writes its results into the sets.
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
