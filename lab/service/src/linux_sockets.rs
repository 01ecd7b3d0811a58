//! Linux sockets by descriptor, for hosts that wait with `select` or `poll`. Everything
//! but the waiting is as in [`crate::linux_stream`].

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use tidewall::readiness::DescriptorSet;
use tidewall_sys::raise_open_files;

use crate::linux_stream::{self, LinuxStream};
use crate::poll_host::PollCall;
use crate::select_host::SelectCall;
use crate::sockets::Sockets;
use crate::stream::Progress;

/// The kernel's sockets.
#[derive(Clone, Copy, Debug)]
pub struct LinuxSockets(());

impl LinuxSockets {
    /// Raises the process's soft limit of open files to the hard one, as every
    /// connection is a file.
    pub fn new() -> Self {
        // If it cannot be raised, fewer connections are served.
        let _ = raise_open_files(u64::MAX);
        LinuxSockets(())
    }
}

impl Default for LinuxSockets {
    fn default() -> Self {
        Self::new()
    }
}

impl Sockets for LinuxSockets {
    type Listener = TcpListener;
    type Stream = LinuxStream;

    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
        linux_stream::listen(address, backlog, false)
    }

    fn local_address(&self, listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }

    fn accept(&self, listener: &TcpListener) -> io::Result<Option<(LinuxStream, SocketAddr)>> {
        linux_stream::accept(listener)
    }

    fn connect(&self, address: SocketAddr) -> io::Result<(LinuxStream, Progress)> {
        linux_stream::connect(address)
    }

    fn listener_number(&self, listener: &TcpListener) -> i32 {
        listener.as_raw_fd()
    }

    fn stream_number(&self, stream: &LinuxStream) -> i32 {
        stream.as_fd().as_raw_fd()
    }
}

impl SelectCall for LinuxSockets {
    fn select(
        &self,
        nfds: i32,
        read: &mut DescriptorSet,
        write: &mut DescriptorSet,
        timeout: Duration,
    ) -> io::Result<usize> {
        tidewall_sys::select(
            nfds,
            read.words_mut(),
            write.words_mut(),
            &mut [],
            Some(timeout),
        )
    }
}

impl PollCall for LinuxSockets {
    type Entry = libc::pollfd;

    fn poll(&self, entries: &mut [libc::pollfd], timeout: Duration) -> io::Result<usize> {
        tidewall_sys::ppoll(entries, Some(timeout), None)
    }
}
