//! Frames into segments of their own.

use std::io::{self, IoSlice};
use std::net::TcpStream;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tidewall_sys::option;
use tidewall_wire::acp::{HEADER_LEN, Header};

use crate::send_at_once;

/// What a segment carries wherever the path's MTU goes: Linux takes none below 552 bytes
/// for IPv4 (`net.ipv4.route.min_pmtu`; for IPv6 1,280), less the headers with timestamps
/// and SACK blocks.
const SEGMENT_SURE: usize = 500 - SACK_MAX;
/// What Linux takes of a segment's room for SACK blocks while it holds data out of order
/// (four blocks, RFC 2018); TCP_MAXSEG does not say so. A longer frame would be cut then.
const SACK_MAX: usize = 4 + 4 * 8;

/// The sending half of a connection of frames over a kernel's TCP.
#[derive(Debug)]
pub struct FrameWriter {
    stream: TcpStream,
    /// A segment carries so much for sure, so that shorter ones need no question to the
    /// kernel; zero until one was sent, as only then the peer's limit is known.
    sure: usize,
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
        Ok(Self {
            stream,
            sure: 0,
            rest: Vec::new(),
        })
    }

    /// The connection.
    pub const fn get_ref(&self) -> &TcpStream {
        &self.stream
    }

    /// The most payload of a frame now, in bytes: what a segment carries beside SACK blocks
    /// (`tcpi_snd_mss`, which reading TCP_MAXSEG gives, too, less 36 bytes), less the
    /// header.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn frame_max(&self) -> io::Result<usize> {
        let segment = option(&self.stream, libc::IPPROTO_TCP, libc::TCP_MAXSEG)?;
        let frame = |bytes: usize| bytes.saturating_sub(SACK_MAX + HEADER_LEN);
        Ok(usize::try_from(segment).map_or(0, frame))
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// EMSGSIZE for more than [`FrameWriter::frame_max`]; EPIPE, without a signal;
    /// `WouldBlock` on a nonblocking connection when nothing of it was taken. Should the
    /// kernel take a part only, the frame counts as sent, and its rest leaves before
    /// anything else: with the next call, or [`FrameWriter::flush`].
    pub fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let header = Header::data(payload.len()).ok_or_else(too_long)?;
        let most = self.segment_max(header.size())?;
        if header.size() > most {
            return Err(too_long());
        }
        self.flush()?;
        let bytes = header.bytes();
        self.segment([&bytes, payload], most)
    }

    /// Sends these frames, which have their headers, as many in each segment as it
    /// carries, until the kernel takes no more: how many bytes that were, for the call
    /// with the others.
    ///
    /// # Errors
    /// As [`FrameWriter::send`]; EMSGSIZE also where no whole frame begins the bytes.
    pub fn send_frames(&mut self, frames: &[u8]) -> io::Result<usize> {
        self.flush()?;
        let most = self.segment_max(frames.len())?;
        let mut sent = 0;
        loop {
            let rest = frames.get(sent..).unwrap_or_default();
            let segment = whole_frames(rest, most);
            if segment.is_empty() {
                return if sent > 0 { Ok(sent) } else { Err(too_long()) };
            }
            match self.segment([segment, &[]], most) {
                Ok(()) => sent += segment.len(),
                Err(error) if sent > 0 && error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(sent);
                }
                Err(error) => return Err(error),
            }
            if self.has_rest() {
                return Ok(sent);
            }
        }
    }

    /// What a segment carries at least: `wanted` bytes, or as much as there is to know.
    fn segment_max(&self, wanted: usize) -> io::Result<usize> {
        if wanted <= self.sure {
            return Ok(self.sure);
        }
        Ok(self.frame_max()? + HEADER_LEN)
    }

    /// Sends what fills a segment or less of it, in one call; a part that the kernel does
    /// not take is kept. `most`: what a segment carries.
    fn segment(&mut self, pieces: [&[u8]; 2], most: usize) -> io::Result<()> {
        let taken = self.write(&pieces.map(IoSlice::new))?;
        self.sure = most.min(SEGMENT_SURE);
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

/// The frames that begin these bytes, as many as `most` bytes hold.
fn whole_frames(frames: &[u8], most: usize) -> &[u8] {
    let mut length = 0;
    while let Some(header) = frames.get(length..).and_then(<[u8]>::first_chunk) {
        let size = Header::parse(*header).map_or(usize::MAX, |header| header.size());
        match length.checked_add(size) {
            Some(end) if end <= most.min(frames.len()) => length = end,
            _ => break,
        }
    }
    frames.get(..length).unwrap_or_default()
}

fn too_long() -> io::Error {
    io::Error::from_raw_os_error(libc::EMSGSIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_holds_as_many_whole_frames_as_fit() {
        let frame = |length| {
            let mut bytes = Header::data(length).unwrap().bytes().to_vec();
            bytes.resize(HEADER_LEN + length, 7);
            bytes
        };
        let frames = [frame(10), frame(20), frame(30)].concat();
        for (most, length) in [(13, 0), (14, 14), (37, 14), (38, 38), (72, 72), (500, 72)] {
            assert_eq!(whole_frames(&frames, most).len(), length, "{most}");
        }
        assert_eq!(whole_frames(&frames[..60], 500).len(), 38);
        assert_eq!(whole_frames(b"HTTP", 500), b"");
    }
}
