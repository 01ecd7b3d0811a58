//! Open files, as contexts poll them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tidewall_stack::StackHandle;

use super::registration::{File, Pollable};
use crate::raw::epoll;
use crate::wait_queue::WaitQueue;

/// A kernel descriptor as an open file.
pub struct KernelFile {
    descriptor: OwnedFd,
    wait_queue: WaitQueue,
}

impl std::fmt::Debug for KernelFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelFile")
            .field("descriptor", &self.descriptor)
            .finish_non_exhaustive()
    }
}

impl From<OwnedFd> for KernelFile {
    fn from(descriptor: OwnedFd) -> Self {
        KernelFile {
            descriptor,
            wait_queue: WaitQueue::default(),
        }
    }
}

impl AsFd for KernelFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for KernelFile {
    fn drop(&mut self) {
        // Before it is closed: another file may then get its number.
        self.wait_queue.close();
    }
}

impl File for KernelFile {
    fn pollable(&self) -> Option<Arc<dyn Pollable>> {
        None
    }

    fn wait_queue(&self) -> &WaitQueue {
        &self.wait_queue
    }

    fn descriptor(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    fn is_of(&self, _stack: &StackHandle) -> bool {
        true
    }

    fn can_poll(&self) -> bool {
        epoll::can_poll(self.as_fd())
    }
}
