//! Input that the kernel has reported for a socket that it shares.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::events::Events;
use crate::wait_queue::WaitQueue;

/// Whether the kernel's part of a socket has input, as far as is known. It says
/// of changes only, so what it reported is remembered until it says that nothing is left.
#[derive(Debug, Default)]
pub struct KernelInput(AtomicBool);

impl KernelInput {
    /// The kernel has said that there is some.
    pub fn note(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// True when it has said so; what there was may have been taken since.
    pub fn is_noted(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// True while the kernel has some; asks it if it has said so. `watch`: whose
    /// input it is, as for [`KernelInput::forget`].
    pub fn is_there(&self, descriptor: i32, wait_queue: &WaitQueue) -> bool {
        self.is_noted()
            && (tidewall_sys::ready_now(descriptor, libc::POLLIN) != 0
                || self.forget(descriptor, wait_queue))
    }

    /// The kernel had nothing. True when there is some again, which those who watch
    /// are notified again: what it said just now was about to be forgotten.
    pub fn forget(&self, descriptor: i32, wait_queue: &WaitQueue) -> bool {
        if !self.0.swap(false, Ordering::SeqCst)
            || tidewall_sys::ready_now(descriptor, libc::POLLIN) == 0
        {
            return false;
        }
        self.note();
        wait_queue.notify_registrations(Events::DATA_CAME);
        true
    }
}
