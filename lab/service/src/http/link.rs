//! A stream in an event loop, and its state since its last event.

use std::fs::File;
use std::io;

use crate::stream::{Event, Interest, Stream, StreamHost};

/// Bytes per read.
pub(super) const READ_BYTES: usize = 16 * 1024;
/// In a key: it belongs not to a client, but to the part behind the clients.
pub(super) const BEHIND: usize = 1 << 31;

/// A stream and its known state.
pub(super) struct Link<S> {
    pub(super) stream: S,
    generation: u32,
    /// Since the last event, no read (write) has returned `WouldBlock` or been short.
    pub(super) may_read: bool,
    pub(super) may_write: bool,
    /// The peer will send nothing more: read to the end.
    pub(super) hangup: bool,
    /// The events for which it is watched, if it is.
    watched: Option<Interest>,
}

impl<S: Stream> Link<S> {
    /// Wraps a stream that may be read from and written to, or is not connected yet.
    /// `generation` distinguishes it from others that have had its key.
    pub(super) fn new(stream: S, generation: u32, may_read: bool, may_write: bool) -> Self {
        Link {
            stream,
            generation,
            may_read,
            may_write,
            hangup: false,
            watched: None,
        }
    }

    /// Returns whether a token of this generation is its own: an event may outlive its
    /// connection by the rest of its batch.
    pub(super) fn is(&self, generation: u32) -> bool {
        self.generation == generation
    }

    /// Returns the token of its events.
    pub(super) fn token(&self, key: usize) -> u64 {
        u64::from(self.generation) << 32 | key as u64
    }

    /// Records an event.
    pub(super) fn note(&mut self, event: &Event) {
        self.may_read |= event.readable;
        self.may_write |= event.writable;
        self.hangup |= event.hangup;
    }

    /// Watches it for what is wanted now.
    pub(super) fn watch<H: StreamHost<Stream = S>>(
        &mut self,
        host: &H,
        key: usize,
        interest: Interest,
    ) -> io::Result<()> {
        let token = self.token(key);
        match self.watched {
            Some(watched) if watched == interest => Ok(()),
            Some(_) => host.rewatch(&self.stream, token, interest),
            None => host.watch(&self.stream, token, interest),
        }?;
        self.watched = Some(interest);
        Ok(())
    }

    /// Closes it.
    pub(super) fn close<H: StreamHost<Stream = S>>(self, host: &H) {
        if self.watched.is_some() {
            host.unwatch(&self.stream);
        }
    }

    pub(super) fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let result = self.stream.read(room);
        match &result {
            // A short read found no more, except for the end, which is a separate event.
            Ok(count) if *count > 0 && *count < room.len() && !self.hangup => self.may_read = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.may_read = false,
            _ => {}
        }
        result
    }

    pub(super) fn write(&mut self, bytes: &[u8], more: bool) -> io::Result<usize> {
        let result = self.stream.write(bytes, more);
        match &result {
            // As much as there was room for.
            Ok(count) if *count < bytes.len() => self.may_write = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.may_write = false,
            _ => {}
        }
        result
    }

    pub(super) fn send_file(
        &mut self,
        file: &File,
        offset: u64,
        length: u64,
        scratch: &mut [u8],
    ) -> io::Result<usize> {
        let result = self.stream.send_file(file, offset, length, scratch);
        if let Err(error) = &result
            && error.kind() == io::ErrorKind::WouldBlock
        {
            self.may_write = false;
        }
        result
    }
}

/// Splits a token into its key and generation.
pub(super) fn parts(token: u64) -> (usize, u32) {
    ((token & 0xffff_ffff) as usize, (token >> 32) as u32)
}
