//! Sending a file's bytes, read into the send buffer's own memory (`sendfile(2)`).

use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;

use rustix::io::{ReadWriteFlags, preadv2};

use tidewall_protocol::tcp::{self, SendFlags};

use super::TcpStream;
use crate::tcp::connection::error;

/// The reason that nothing was sent.
enum Refusal {
    Stream(tcp::Errno),
    File,
}

impl From<tcp::Errno> for Refusal {
    fn from(errno: tcp::Errno) -> Self {
        Refusal::Stream(errno)
    }
}

impl TcpStream {
    /// Sends up to `count` bytes of a file from an offset on, without a copy outside the
    /// send buffer. Never waits, neither for room nor for a disk. `more`: MSG_MORE follows
    /// these bytes. Returns how many bytes were accepted; 0 at the end of the file.
    ///
    /// The connection is locked while the page cache is copied, as it is while a write is.
    ///
    /// # Errors
    /// - `WouldBlock` without room, and until the handshake is complete.
    /// - `Unsupported` for a kernel connection, for one of frames, and for one whose SYN awaits
    ///   data. It is also returned if the file returns no bytes at once (RWF_NOWAIT of
    ///   preadv2(2)): the caller reads those, or receives the file's error.
    /// - The error that ended the connection.
    pub fn send_file(
        &self,
        file: impl AsFd,
        offset: u64,
        count: usize,
        more: bool,
    ) -> io::Result<usize> {
        let connection = self
            .own_connection()
            .filter(|it| !it.is_framed() && !self.awaits_first_write())
            .ok_or(io::ErrorKind::Unsupported)?;
        let core = self.stack.here()?;
        core.helper.application_is_here();
        core.receiver.poll_if_due(core)?;
        let flags = SendFlags {
            more,
            ..SendFlags::default()
        };
        let mut polled = false;
        let result = loop {
            let (result, is_full) = connection.with(core, |state, deferred| {
                let notified = state.connection.notification_count();
                if connection.take_frames(core, state, deferred) > 0 {
                    connection.notify_changes(state);
                }
                let result = state
                    .connection
                    .write_from(count, flags, |[first, second]| {
                        let mut memory = [IoSliceMut::new(first), IoSliceMut::new(second)];
                        let read = preadv2(&file, &mut memory, offset, ReadWriteFlags::NOWAIT);
                        read.map_err(|_| Refusal::File)
                    });
                match &result {
                    Ok(taken) => {
                        state.connection.end_write(*taken, false);
                        connection.notify_notifications(state, notified);
                    }
                    Err(Refusal::Stream(tcp::Errno::AGAIN)) => state.note_no_space(),
                    Err(_) => {}
                }
                connection.update(core, state, deferred);
                (result, state.connection.has_full_burst())
            });
            self.send_unless_later(connection, is_full);
            let is_without_room = matches!(result, Err(Refusal::Stream(tcp::Errno::AGAIN)));
            if !is_without_room || polled || connection.wait_queue.is_polled() {
                break result;
            }
            polled = true;
            core.receiver.round(core, false)?;
        };
        result.map_err(|refusal| match refusal {
            Refusal::Stream(errno) => error(errno),
            Refusal::File => io::ErrorKind::Unsupported.into(),
        })
    }
}
