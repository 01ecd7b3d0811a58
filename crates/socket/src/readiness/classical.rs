//! The classical `select`, to compare with.
//!
//! As 4.3BSD and Linux have it (fs/select.c, do_select): every descriptor of the
//! sets is looked up and its file asked, the thread is registered with each until
//! one is found ready, it sleeps, all are looked up and asked again, and at the
//! end every registration is undone. Nothing is kept between calls.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::classes::Classes;
use super::context::{ThreadContext, with_context};
use super::descriptor_set::DescriptorSet;
use super::hints::{Hints, Manner};
use super::interest::{Found, Selecting};
use super::watch::{Registration, Watched as _};
use crate::descriptor::{Descriptors, OpenFile};

impl Descriptors {
    /// As [`Descriptors::select`], in the classical way, whose cost grows with the
    /// number of descriptors in the sets: a comparator.
    ///
    /// # Errors
    /// As [`Descriptors::select`].
    pub fn classical_select(
        &self,
        nfds: i32,
        read: Option<&mut DescriptorSet>,
        write: Option<&mut DescriptorSet>,
        except: Option<&mut DescriptorSet>,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        let count = usize::try_from(nfds).map_err(|_| io::ErrorKind::InvalidInput)?;
        let sets = [read, write, except];
        with_context(self, |context| {
            let words = sets
                .each_ref()
                .map(|set| set.as_ref().map_or(&[][..], |set| set.words()));
            let selecting = Selecting::new(words, count);
            context.classical_select(self, &selecting, timeout)?;
            let sets = sets.map(|set| set.map(DescriptorSet::words_mut));
            Ok(context.found.write(sets, count))
        })
    }
}

/// What a call is registered with, until it ends.
struct Scan<'a> {
    descriptors: &'a Descriptors,
    hints: &'a Arc<Hints>,
    registered: Vec<Arc<Registration>>,
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        for registration in &self.registered {
            registration.retire();
        }
    }
}

impl Scan<'_> {
    /// Asks every file, and registers with it until one is ready.
    fn first(
        &mut self,
        selecting: &Selecting<'_>,
        waits: bool,
        found: &mut Found,
    ) -> io::Result<()> {
        selecting.each(|number, asked| {
            let file = self.file(number)?;
            if waits && found.len() == 0 {
                let registration = self.register(&file, number, asked)?;
                self.registered.push(registration);
            }
            found.push(number, ready(&file, self.descriptors).and(asked));
            Ok(())
        })
    }

    /// Asks every file again. One that was closed since is ready for everything.
    fn again(&self, selecting: &Selecting<'_>, found: &mut Found) -> io::Result<()> {
        selecting.each(|number, asked| {
            let ready = match self.file(number) {
                Ok(file) => ready(&file, self.descriptors).and(asked),
                Err(_) => asked,
            };
            found.push(number, ready);
            Ok(())
        })
    }

    fn file(&self, number: usize) -> io::Result<Arc<OpenFile>> {
        self.descriptors.file(i32::try_from(number).unwrap_or(-1))
    }

    fn register(
        &self,
        file: &OpenFile,
        number: usize,
        asked: Classes,
    ) -> io::Result<Arc<Registration>> {
        let manner = Manner {
            sole: false,
            always: true,
        };
        let parts = file.watched();
        self.hints
            .register(parts, number as u64, asked.interest(), manner)
    }
}

