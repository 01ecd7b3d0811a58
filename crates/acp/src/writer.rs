//! Writes frames into their own segments.

use std::io::{self, IoSlice};
use std::net::TcpStream;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tidewall_sys::option;
use tidewall_wire::acp::{HEADER_LEN, Header};

use crate::send_at_once;

/// Payload of a segment at any path MTU. Linux accepts no MTU below 552 bytes for IPv4
/// (`net.ipv4.route.min_pmtu`; for IPv6 1,280), less the headers with timestamps and SACK
/// blocks.
const SEGMENT_SURE: usize = 500 - SACK_MAX;
/// Space that Linux takes from a segment for SACK blocks while it holds data out of order
/// (four blocks, RFC 2018). TCP_MAXSEG does not report it, and a longer frame would be
/// cut then.
const SACK_MAX: usize = 4 + 4 * 8;

/// The sending half of a connection of frames over a kernel TCP socket.
#[derive(Debug)]
pub struct FrameWriter {
    stream: TcpStream,
    /// A segment size that is certain, so that shorter frames need no system call. Zero
    /// until a frame was sent, since only then is the peer's limit known.
    sure: usize,
    /// The part of the last frame that the kernel did not accept.
    rest: Vec<u8>,
}

impl FrameWriter {
    /// Takes a connection on which nothing was sent yet; sets TCP_NODELAY.
    ///
    /// # Errors
    /// The kernel's errors.
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

    /// The largest payload of a frame now, in bytes: a segment beside SACK blocks, less
    /// the frame's header. The segment is `tcpi_snd_mss`, which reading TCP_MAXSEG also
    /// returns, less 36 bytes.
    ///
    /// # Errors
    /// The kernel's errors.
    pub fn frame_max(&self) -> io::Result<usize> {
        let segment = option(&self.stream, libc::IPPROTO_TCP, libc::TCP_MAXSEG)?;
        let frame = |bytes: usize| bytes.saturating_sub(SACK_MAX + HEADER_LEN);
        Ok(usize::try_from(segment).map_or(0, frame))
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// EMSGSIZE for more than [`FrameWriter::frame_max`]; EPIPE, without a signal;
    /// `WouldBlock` on a nonblocking connection that accepted none of it. If the kernel
    /// accepts only a part, the frame counts as sent. Its rest leaves before anything
    /// else: with the next call, or [`FrameWriter::flush`].
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

    /// Sends frames that already have their headers, as many per segment as fit, until
    /// the kernel accepts no more. Returns the number of bytes sent; the caller passes
    /// the others to the next call.
    ///
    /// # Errors
    /// As [`FrameWriter::send`]; EMSGSIZE also if the bytes do not begin with a whole
    /// frame.
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

    /// The size of a segment, at least: `wanted` bytes, or as much as is known.
    fn segment_max(&self, wanted: usize) -> io::Result<usize> {
        if wanted <= self.sure {
            return Ok(self.sure);
        }
        Ok(self.frame_max()? + HEADER_LEN)
    }

    /// Sends at most a segment in one call; a part that the kernel does not accept is
    /// kept. `most` is the size of a segment.
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

    /// Sends the part of the last frame that the kernel did not accept.
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

    /// True while [`FrameWriter::flush`] has data to send.
    pub const fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Writes as much as the kernel accepts at once; nothing joins the segment after its
    /// end.
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

/// The leading whole frames, as many as fit into `most` bytes.
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
