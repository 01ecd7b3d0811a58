//! Input that the kernel has reported for a socket that it shares.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::events::Events;
use crate::wait_queue::WaitQueue;

/// Whether the kernel's part of a socket has input, as far as is known. The kernel
/// reports only changes, so a report is remembered until the kernel reports that nothing
/// is left.
#[derive(Debug, Default)]
pub struct KernelInput(AtomicBool);

impl KernelInput {
    /// Notes that the kernel has reported input.
    pub fn note(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Returns true after a report of input, which may have been read since.
    pub fn is_noted(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Returns true while the kernel has input; asks it if it has reported some. `watch`:
    /// the socket's wait queue, as for [`KernelInput::forget`].
    pub fn is_there(&self, descriptor: i32, wait_queue: &WaitQueue) -> bool {
        self.is_noted()
            && (tidewall_sys::ready_now(descriptor, libc::POLLIN) != 0
                || self.forget(descriptor, wait_queue))
    }

    /// Notes that the kernel had nothing. Returns true when there is input again. Its
    /// watchers are then notified again, since the kernel's last report was about to be
    /// forgotten.
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
