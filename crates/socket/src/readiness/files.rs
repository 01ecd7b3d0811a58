//! Open files, as contexts poll them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::registration::{Parts, Source, Watched};
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

impl Watched for KernelFile {
    fn watched(&self) -> Parts<'_> {
        Parts {
            source: Source::Kernel,
            wait_queue: &self.wait_queue,
            descriptor: self.descriptor.as_raw_fd(),
        }
    }

    fn is_of(&self, _stack: &Stack) -> bool {
        true
    }
}

impl OpenFile {
    fn as_watched(&self) -> &dyn Watched {
        match self {
            OpenFile::Stream(stream) => stream,
            OpenFile::Listener(listener) => listener,
            OpenFile::Datagram(socket) => socket,
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

impl Watched for OpenFile {
    fn watched(&self) -> Parts<'_> {
        self.as_watched().watched()
    }

    fn is_of(&self, stack: &Stack) -> bool {
        self.as_watched().is_of(stack)
    }
}
