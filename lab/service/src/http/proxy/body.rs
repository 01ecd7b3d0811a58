//! The content of a message and its end (RFC 9112 §§6, 7).

use std::ops::Range;

/// Most bytes of a chunk's size line, extensions included.
const LINE_MAX: usize = 1024;
/// Most bytes of a trailer section, which is discarded (§7.1.2).
const TRAILER_MAX: usize = 16 * 1024;

/// How the end of a message's content is found, and its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// This many bytes are still expected.
    Length(u64),
    /// Chunks.
    Chunked(Chunks),
    /// Everything until the connection ends.
    Close,
}

/// The chunks are invalid: the message has no known end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadChunk;

/// The result of parsing bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of bytes consumed.
    pub used: usize,
    /// Range of those that are content.
    pub content: Range<usize>,
}

impl Body {
    /// Creates a body of chunks, at its beginning.
    pub fn chunked() -> Self {
        Body::Chunked(Chunks {
            place: Place::Size(0, 0),
        })
    }

    /// Returns whether it is complete.
    pub fn is_complete(&self) -> bool {
        matches!(
            self,
            Body::Length(0)
                | Body::Chunked(Chunks {
                    place: Place::Complete
                })
        )
    }

    /// Consumes bytes, up to the end of one piece of content; call it again with the rest
    /// until nothing is consumed.
    ///
    /// # Errors
    /// An error if chunks are malformed.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Piece, BadChunk> {
        match self {
            Body::Close => Ok(Piece {
                used: bytes.len(),
                content: 0..bytes.len(),
            }),
            Body::Length(left) => {
                let count =
                    usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= count as u64;
                Ok(Piece {
                    used: count,
                    content: 0..count,
                })
            }
            Body::Chunked(chunks) => chunks.take(bytes),
        }
    }
}

/// The state of the chunked coding (§7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In a size: its value, its digits so far.
    Size(u64, u8),
    /// Behind a size, in extensions: the value, bytes of the line so far.
    Extension(u64, u16),
    /// Behind the CR of a size line.
    SizeEnd(u64),
    /// In content: bytes still expected.
    Content(u64),
    /// Behind content: its CR LF, of which this many bytes have arrived.
    ContentEnd(u8),
    /// At the beginning of a trailer line: bytes of trailers so far.
    Trailer(u16),
    /// Within one.
    TrailerLine(u16),
    /// Behind its CR.
    TrailerLineEnd(u16),
    /// Behind a CR at the beginning of a line.
    TrailerEnd,
    /// The end was reached.
    Complete,
}

impl Chunks {
    fn take(&mut self, bytes: &[u8]) -> Result<Piece, BadChunk> {
        let mut used = 0;
        while let Some(&byte) = bytes.get(used) {
            match self.place {
                Place::Complete => break,
                Place::Content(left) => {
                    let there = bytes.len() - used;
                    let count = usize::try_from(left).map_or(there, |left| left.min(there));
                    let left = left - count as u64;
                    self.place = match left {
                        0 => Place::ContentEnd(0),
                        left => Place::Content(left),
                    };
                    let content = used..used + count;
                    used += count;
                    return Ok(Piece { used, content });
                }
                place => {
                    self.place = step(place, byte)?;
                    used += 1;
                }
            }
        }
        Ok(Piece {
            used,
            content: used..used,
        })
    }
}

/// Returns the state after one byte outside of content. A bare LF for CR LF is rejected:
/// response smuggling exploits two readers that see different lines.
fn step(place: Place, byte: u8) -> Result<Place, BadChunk> {
    let hex = |byte: u8| char::from(byte).to_digit(16).map(u64::from);
    Ok(match (place, byte) {
        (Place::Size(value, digits), byte) => match hex(byte) {
            // No length has more than 15 digits.
            Some(digit) if digits < 15 => Place::Size(value << 4 | digit, digits + 1),
            Some(_) => return Err(BadChunk),
            None if digits == 0 => return Err(BadChunk),
            None => match byte {
                b'\r' => Place::SizeEnd(value),
                b';' | b' ' | b'\t' => Place::Extension(value, 0),
                _ => return Err(BadChunk),
            },
        },
        (Place::Extension(value, _), b'\r') => Place::SizeEnd(value),
        (Place::Extension(_, _), b'\n') => return Err(BadChunk),
        (Place::Extension(value, length), _) if usize::from(length) < LINE_MAX => {
            Place::Extension(value, length + 1)
        }
        (Place::SizeEnd(0), b'\n') => Place::Trailer(0),
        (Place::SizeEnd(value), b'\n') => Place::Content(value),
        (Place::ContentEnd(0), b'\r') => Place::ContentEnd(1),
        (Place::ContentEnd(1), b'\n') => Place::Size(0, 0),
        (Place::Trailer(_), b'\r') => Place::TrailerEnd,
        (Place::TrailerEnd, b'\n') => Place::Complete,
        (Place::TrailerLine(length), b'\r') => Place::TrailerLineEnd(length),
        (Place::TrailerLineEnd(length), b'\n') => Place::Trailer(length),
        (Place::Trailer(_) | Place::TrailerLine(_), b'\n') => return Err(BadChunk),
        (Place::Trailer(length) | Place::TrailerLine(length), _)
            if usize::from(length) < TRAILER_MAX =>
        {
            Place::TrailerLine(length + 1)
        }
        _ => return Err(BadChunk),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `bytes` fed in pieces of `step`; returns the content, and how
    /// many bytes belong to the message.
    fn decode(
        mut body: Body,
        bytes: &[u8],
        step: usize,
    ) -> Result<(Vec<u8>, usize, bool), BadChunk> {
        let (mut content, mut total) = (Vec::new(), 0);
        for mut piece in bytes.chunks(step) {
            loop {
                let taken = body.take(piece)?;
                content.extend_from_slice(&piece[taken.content.clone()]);
                total += taken.used;
                piece = &piece[taken.used..];
                if taken.used == 0 {
                    break;
                }
            }
        }
        Ok((content, total, body.is_complete()))
    }

    #[test]
    fn chunks_are_joined_however_they_are_cut() {
        let bytes = b"4;x=\"y\"\r\nWiki\r\n05 \r\npedia\r\n0\r\nA: b\r\nC: d\r\n\r\nHTTP";
        for step in 1..bytes.len() {
            let (content, total, over) = decode(Body::chunked(), bytes, step).unwrap();
            assert_eq!(content, b"Wikipedia", "{step}");
            assert_eq!((total, over), (bytes.len() - 4, true), "{step}");
        }
        let part = decode(Body::chunked(), &bytes[..20], 3).unwrap();
        assert!(!part.2, "more is to come");
    }

    #[test]
    fn nonsense_is_refused() {
        let long = format!("1;{}\r\na", "x".repeat(LINE_MAX + 1));
        let trailer = format!("0\r\n{}", "A: b\r\n".repeat(TRAILER_MAX));
        for text in [
            "x\r\n",
            "\r\n",
            "4\nWiki",
            "4\r\nWiki\n",
            "4\r\nWikipedia",
            "-1\r\n",
            "1000000000000000\r\n",
            "1;a\n",
            "0\r\n\r\r",
            "0\r\n\n",
            "0\r\nA: b\n\r\n",
            "0\r\nA: b\r\n\n",
            "0\r\nA: b\rC: d\r\n\r\n",
            "4\r\rWiki",
            &long,
            &trailer,
        ] {
            assert!(
                decode(Body::chunked(), text.as_bytes(), 7).is_err(),
                "{text:?}"
            );
        }
    }

    #[test]
    fn lengths_and_ends() {
        let (content, used, over) = decode(Body::Length(5), b"12345678", 2).unwrap();
        assert_eq!(
            (content.as_slice(), used, over),
            (b"12345".as_slice(), 5, true)
        );
        assert!(Body::Length(0).is_complete());
        let (content, _, over) = decode(Body::Close, b"12345678", 3).unwrap();
        assert_eq!((content.len(), over), (8, false));
    }
}
