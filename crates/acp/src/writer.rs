//! Frames into segments of their own.

use std::io::{self, IoSlice};
use std::net::TcpStream;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tidewall_sys::option;
use tidewall_wire::acp::{HEADER_LEN, Header};

use crate::send_at_once;

/// The sending half of a connection of frames over a kernel's TCP.
#[derive(Debug)]
pub struct FrameWriter {
    stream: TcpStream,
    /// What the kernel did not take of the last frame.
    rest: Vec<u8>,
}

impl FrameWriter {
    /// Of a connection over which nothing was sent yet; sets TCP_NODELAY.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        send_at_once(&stream)?;
        let rest = Vec::new();
        Ok(Self { stream, rest })
    }

    /// The connection.
    pub const fn get_ref(&self) -> &TcpStream {
        &self.stream
    }

    /// The most payload of a frame now, in bytes: what a segment carries (`tcpi_snd_mss`;
    /// reading TCP_MAXSEG gives that, too) less the header.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn frame_max(&self) -> io::Result<usize> {
        let segment = option(&self.stream, libc::IPPROTO_TCP, libc::TCP_MAXSEG)?;
        Ok(usize::try_from(segment).map_or(0, |bytes| bytes.saturating_sub(HEADER_LEN)))
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// EMSGSIZE for more than [`FrameWriter::frame_max`]; EPIPE, without a signal;
    /// `WouldBlock` on a nonblocking connection when nothing of it was taken. Should the
    /// kernel take a part only, the frame counts as sent, and its rest leaves before
    /// anything else: with the next call, or [`FrameWriter::flush`].
    pub fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let header = Header::data(payload.len())
            .filter(|_| self.frame_max().is_ok_and(|most| payload.len() <= most))
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        self.flush()?;
        let bytes = header.bytes();
        self.segment(&[&bytes, payload])
    }

    /// Sends the first of these frames, which have their headers, as many as one segment
    /// carries: how many bytes that is, for the call with the others.
    ///
    /// # Errors
    /// As [`FrameWriter::send`]; EMSGSIZE also where no whole frame begins the bytes.
    pub fn send_frames(&mut self, frames: &[u8]) -> io::Result<usize> {
        self.flush()?;
        let most = self.frame_max()? + HEADER_LEN;
        let mut length = 0;
        while let Some(header) = frames.get(length..).and_then(<[u8]>::first_chunk) {
            let size = Header::parse(*header).map_or(usize::MAX, |header| header.size());
            match length.checked_add(size) {
                Some(end) if end <= most.min(frames.len()) => length = end,
                _ => break,
            }
        }
        match frames.get(..length) {
            Some(segment) if length > 0 => self.segment(&[segment]).map(|()| length),
            _ => Err(io::Error::from_raw_os_error(libc::EMSGSIZE)),
        }
    }

    /// Sends what fills a segment or less of it, in one call; a part that the kernel does
    /// not take is kept.
    fn segment(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let taken = self.write(&slices)?;
        self.rest
            .extend(pieces.iter().copied().flatten().skip(taken));
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends what the kernel did not take of the last frame.
    ///
    /// # Errors
    /// As [`FrameWriter::send`].
    pub fn flush(&mut self) -> io::Result<()> {
        while !self.rest.is_empty() {
            let taken = self.write(&[IoSlice::new(&self.rest)])?;
            self.rest.drain(..taken.min(self.rest.len()));
        }
        Ok(())
    }

    /// True while [`FrameWriter::flush`] has something to do.
    pub const fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    /// As much as the kernel takes at once; behind the end of it nothing joins its
    /// segment.
    fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::EOR | SendFlags::NOSIGNAL;
        let mut ancillary = SendAncillaryBuffer::default();
        loop {
            match sendmsg(&self.stream, pieces, &mut ancillary, flags) {
                Err(rustix::io::Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }
}
