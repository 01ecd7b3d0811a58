//! Open files, as contexts poll them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::registration::{File, Pollable};
use crate::descriptor::OpenFile;
use crate::raw::epoll;
use crate::stack::Stack;
use crate::wait_queue::WaitQueue;

/// A descriptor of the kernel's as an open file.
pub struct KernelFile {
    descriptor: OwnedFd,
    wait_queue: WaitQueue,
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
        // Before it is closed: its number is another's then.
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

    fn is_of(&self, _stack: &Stack) -> bool {
        true
    }
}

impl OpenFile {
    /// What of it contexts poll.
    pub(crate) fn polled(&self) -> &dyn File {
        match self {
            OpenFile::Stream(stream) => stream,
            OpenFile::Listener(listener) => listener,
            OpenFile::Datagram(socket) => socket,
            OpenFile::Circuit(socket) => socket,
            OpenFile::CircuitListener(listener) => listener,
            OpenFile::Kernel(file) => file,
            OpenFile::Epoll(set) => set,
        }
    }

    /// False for files that epoll refuses: they never wait.
    pub(super) fn can_poll(&self) -> bool {
        match self {
            OpenFile::Kernel(file) => epoll::can_poll(file.as_fd()),
            _ => true,
        }
    }
}
