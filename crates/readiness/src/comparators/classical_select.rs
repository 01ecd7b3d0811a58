//! The classical `select`, to compare with.
//!
//! It works as in 4.3BSD and Linux (fs/select.c, do_select). Every descriptor of the sets
//! is looked up and its file asked. The thread is registered with each until one is found
//! ready, and sleeps. Then all are looked up and asked again, and at the end every
//! registration is undone. Nothing is kept between calls.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tidewall_stack::core::Core;

use crate::classes::Classes;
use crate::descriptor::{Descriptors, FileTable, TableFile};
use crate::descriptor_set::DescriptorSet;
use crate::events::Events;
use crate::interest::{Found, Selecting};
use crate::poll_context::{Interface, PollContext};
use crate::registration::{File, Registration};
use crate::thread_state::ThreadState;

impl<F: TableFile> Descriptors<F> {
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
        self.with_sets(nfds, [read, write, except], |thread, selecting| {
            thread.classical_select(self, &selecting, timeout)
        })
    }
}

/// The registrations of a call, until it ends.
struct Scan<'a> {
    descriptors: &'a dyn FileTable,
    core: &'a Core,
    context: &'a Arc<PollContext>,
    registered: Vec<Arc<Registration>>,
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        for registration in &self.registered {
            registration.retire();
        }
    }
}

impl ThreadState {
    fn classical_select(
        &mut self,
        descriptors: &dyn FileTable,
        selecting: &Selecting<'_>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let core = descriptors.stack().here()?;
        let context = match &self.classical {
            Some(context) => context.clone(),
            None => self
                .classical
                .insert(PollContext::new(core, false)?)
                .clone(),
        };
        let (found, taken) = (&mut self.found, &mut self.taken);
        let waits = timeout != Some(Duration::ZERO);
        let mut scan = Scan {
            descriptors,
            core,
            context: &context,
            registered: Vec::new(),
        };
        let mut first = true;
        context.wait(core, timeout, None, &mut |_| {
            found.clear();
            if std::mem::take(&mut first) {
                scan.first(selecting, waits, found)?;
            } else {
                // The list of what became ready is not used: every descriptor is looked
                // at again.
                context.mark_kernel_ready(true)?;
                context.take_all(taken);
                taken.clear();
                scan.again(selecting, found)?;
            }
            Ok(found.len())
        })?;
        Ok(())
    }
}

impl Scan<'_> {
    /// Asks every file, and registers with each until one is ready.
    fn first(
        &mut self,
        selecting: &Selecting<'_>,
        waits: bool,
        found: &mut Found,
    ) -> io::Result<()> {
        selecting.each(|number, asked| {
            let file = self.file(number)?;
            if waits && found.len() == 0 {
                self.register(&*file, number, asked)?;
            }
            found.push(number, self.ready(&*file).and(asked));
            Ok(())
        })
    }

    /// Asks every file again. One that was closed since is ready for everything.
    fn again(&self, selecting: &Selecting<'_>, found: &mut Found) -> io::Result<()> {
        selecting.each(|number, asked| {
            let ready = match self.file(number) {
                Ok(file) => self.ready(&*file).and(asked),
                Err(_) => asked,
            };
            found.push(number, ready);
            Ok(())
        })
    }

    fn file(&self, number: usize) -> io::Result<Arc<dyn File>> {
        self.descriptors
            .open_file(i32::try_from(number).unwrap_or(-1))
    }

    /// Returns the readiness of a file, once its protocol has seen the frames that wait.
    fn ready(&self, file: &dyn File) -> Classes {
        if let Some(state) = file.ready_now(self.core) {
            return Classes::ready(state);
        }
        let socket = file.pollable();
        let wanted = match socket {
            None => Classes::ALL.interest().bits() as u16 as i16,
            Some(_) => libc::POLLIN,
        };
        let kernel = match file.descriptor() {
            -1 => 0,
            descriptor => tidewall_sys::ready_now(descriptor, wanted),
        };
        let Some(socket) = socket else {
            return Classes::ready(Events::from_bits(u32::from(kernel as u16)));
        };
        if kernel != 0 {
            socket.kernel_has_input();
        }
        socket.clone().process_frames(self.core);
        Classes::ready(socket.events())
    }

    fn register(&mut self, file: &dyn File, number: usize, asked: Classes) -> io::Result<()> {
        let (key, interest) = (number as u64, asked.interest());
        let registration = match file.pollable() {
            // All that is needed, and no more than Linux does: an entry in the socket's
            // wait queue. Its readiness is asked next in any case.
            Some(socket) if file.descriptor() < 0 => {
                let (context, source) = (self.context.clone(), Arc::downgrade(&socket));
                let poll = Interface::Poll;
                let new = Registration::new(context, Some(source), -1, None, key, interest, poll);
                let new = Arc::new(new);
                socket.wait_queue().register(new.clone());
                new
            }
            _ => self
                .context
                .register(file, key, interest, Interface::Poll)?,
        };
        self.registered.push(registration);
        Ok(())
    }
}
