//! Reads frames from a stream of bytes.

use std::io::{self, Read};

use tidewall_wire::acp::{Error, HEADER_LEN, Header, Kind, PAYLOAD_MAX};

/// The longest frame, which is also the most that one read returns.
const FRAME_MAX: usize = HEADER_LEN + PAYLOAD_MAX;

/// Finds the frames in a reader's bytes, however they were cut.
#[derive(Debug)]
pub struct FrameReader<R> {
    inner: R,
    /// Bytes that were read lie between `start` and `end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R: Read> FrameReader<R> {
    /// Reads from `inner`, whose bytes begin with a frame's header.
    pub const fn new(inner: R) -> Self {
        Self {
            inner,
            buffer: Vec::new(),
            start: 0,
            end: 0,
        }
    }

    /// The source of the bytes.
    pub const fn get_ref(&self) -> &R {
        &self.inner
    }

    /// The payload of the next frame, which may be empty; null frames are skipped. `None`
    /// is the end of the stream, between two frames.
    ///
    /// # Errors
    /// `InvalidData` for bytes that are not a frame, with [`Error`] inside, and from then
    /// on for every call. `UnexpectedEof` for an end within a frame. Otherwise the
    /// reader's errors; after `WouldBlock` or `TimedOut` the call may be repeated, and
    /// nothing is lost.
    pub fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            let read = self.buffer.get(self.start..self.end).unwrap_or_default();
            if let Some(header) = read.first_chunk::<HEADER_LEN>() {
                let header = Header::parse(*header).map_err(invalid)?;
                if read.len() >= header.size() {
                    let payload = self.start + HEADER_LEN;
                    self.start += header.size();
                    if header.kind == Kind::Null {
                        continue;
                    }
                    return Ok(self.buffer.get(payload..self.start));
                }
            }
            if self.fill()? == 0 {
                return if self.start == self.end {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
        }
    }

    /// Reads more bytes after the present ones. There is room, since those are not a
    /// whole frame.
    fn fill(&mut self) -> io::Result<usize> {
        if self.buffer.is_empty() {
            self.buffer.resize(FRAME_MAX, 0);
        }
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        loop {
            match self.inner.read(room) {
                Ok(length) => {
                    self.end += length;
                    return Ok(length);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn invalid(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewall_wire::acp::Builder;

    /// Returns a few bytes at a time, and between them nothing.
    struct Dripping<'a> {
        rest: &'a [u8],
        step: usize,
        dry: bool,
    }

    impl Read for Dripping<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.dry = !self.dry;
            if self.dry {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let length = self.step.min(self.rest.len()).min(buffer.len());
            let (now, later) = self.rest.split_at(length);
            buffer[..length].copy_from_slice(now);
            self.rest = later;
            Ok(length)
        }
    }

    fn all(bytes: &[u8], step: usize) -> (Vec<Vec<u8>>, Option<io::ErrorKind>) {
        let mut reader = FrameReader::new(Dripping {
            rest: bytes,
            step,
            dry: false,
        });
        let mut frames = Vec::new();
        loop {
            match reader.receive() {
                Ok(Some(payload)) => frames.push(payload.to_vec()),
                Ok(None) => return (frames, None),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return (frames, Some(error.kind())),
            }
        }
    }

    #[test]
    fn frames_are_found_wherever_the_bytes_are_cut() {
        let mut buffer = vec![0; 3 * FRAME_MAX];
        let mut builder = Builder::new(&mut buffer);
        let long = vec![7; PAYLOAD_MAX];
        for payload in [&b"one"[..], b"", &long, b"two"] {
            builder.null(3).unwrap();
            builder.data(payload).unwrap();
        }
        let length = builder.len();
        buffer.truncate(length);
        let expected = vec![b"one".to_vec(), vec![], long, b"two".to_vec()];
        for step in [1, 2, 5, 1000, usize::MAX] {
            assert_eq!(all(&buffer, step), (expected.clone(), None), "{step}");
        }
        // An end within a frame is not an end of the stream.
        let (frames, error) = all(&buffer[..length - 1], 1000);
        assert_eq!(frames, expected[..3]);
        assert_eq!(error, Some(io::ErrorKind::UnexpectedEof));
    }

    #[test]
    fn what_is_no_frame_is_an_error_for_good() {
        let mut reader = FrameReader::new(&b"\xac\x00\x00\x01xHTTP"[..]);
        assert_eq!(reader.receive().unwrap(), Some(&b"x"[..]));
        for _ in 0..2 {
            let error = reader.receive().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            let cause = error.get_ref().and_then(|it| it.downcast_ref::<Error>());
            assert_eq!(cause, Some(&Error::Magic(b'H')));
        }
    }
}
