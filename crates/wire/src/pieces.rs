//! Bytes in one slice or in several: a packet may be longer than a frame of memory.

use core::fmt;
use core::ops::Range;

use crate::checksum::Sum;

/// The pieces of a packet after its first.
pub trait Behind {
    /// The piece of this number, from 0; `None` after the last one.
    fn piece(&self, number: usize) -> Option<&[u8]>;
}

/// Bytes in one slice, or in several consecutive ones. A copy refers to the same bytes.
#[derive(Clone, Copy)]
pub struct Pieces<'a> {
    first: &'a [u8],
    /// The pieces that follow, and the number of the next one; `None` if `first` is all.
    behind: Option<(&'a dyn Behind, usize)>,
    length: usize,
}

impl<'a> Pieces<'a> {
    /// No bytes.
    pub const EMPTY: Self = Pieces {
        first: &[],
        behind: None,
        length: 0,
    };

    /// The first piece and those after it, `length` bytes in total. `None` if they are
    /// fewer.
    #[must_use]
    pub fn new(first: &'a [u8], behind: &'a dyn Behind, length: usize) -> Option<Self> {
        if let Some(first) = first.get(..length) {
            return Some(first.into());
        }
        let pieces = Pieces {
            first,
            behind: Some((behind, 0)),
            length,
        };
        let there: usize = pieces.iter().map(<[u8]>::len).sum();
        (there == length).then_some(pieces)
    }

    /// Number of bytes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// True when there are none.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes, if they lie in one slice.
    #[inline]
    #[must_use]
    pub fn as_slice(self) -> Option<&'a [u8]> {
        match self.behind {
            None => Some(self.first),
            Some(_) => None,
        }
    }

    /// The bytes of the first slice.
    #[inline]
    #[must_use]
    pub const fn first(self) -> &'a [u8] {
        self.first
    }

    /// A part of the bytes; `None` if it is not all present.
    #[inline]
    #[must_use]
    pub fn get(self, range: Range<usize>) -> Option<Self> {
        match self.behind {
            None => self.first.get(range).map(Into::into),
            Some(behind) => self.part(behind, range),
        }
    }

    #[cold]
    fn part(self, behind: (&'a dyn Behind, usize), range: Range<usize>) -> Option<Self> {
        let length = range.end.checked_sub(range.start)?;
        if range.end > self.length {
            return None;
        }
        let (mut first, (behind, mut number)) = (self.first, behind);
        let mut start = range.start;
        while start >= first.len() && length > 0 {
            start -= first.len();
            first = behind.piece(number)?;
            number += 1;
        }
        let first = match length {
            0 => &[],
            _ => first.get(start..)?,
        };
        Some(match first.get(..length) {
            Some(all) => all.into(),
            None => Pieces {
                first,
                behind: Some((behind, number)),
                length,
            },
        })
    }

    /// The first bytes, wherever they lie; `None` if there are fewer.
    #[inline]
    #[must_use]
    pub fn first_chunk<const N: usize>(self) -> Option<[u8; N]> {
        match self.first.first_chunk() {
            Some(chunk) => Some(*chunk),
            None => {
                let mut chunk = [0; N];
                let mut place = self.get(0..N)?.iter().flatten();
                chunk.fill_with(|| place.next().copied().unwrap_or(0));
                Some(chunk)
            }
        }
    }

    /// The slices, none of them empty.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let (mut next, mut left) = (Some((self.first, 0)), self.length);
        core::iter::from_fn(move || {
            loop {
                let (piece, read) = next?;
                next = self.behind.and_then(|(behind, number)| {
                    let piece = behind.piece(number + read)?;
                    Some((piece, read + 1))
                });
                let piece = piece.get(..left).unwrap_or(piece);
                left -= piece.len();
                if left == 0 {
                    next = None;
                }
                if !piece.is_empty() {
                    return Some(piece);
                }
            }
        })
    }

    /// Appends the bytes to `buffer`.
    pub fn append_to(self, buffer: &mut Vec<u8>) {
        self.iter()
            .for_each(|piece| buffer.extend_from_slice(piece));
    }

    /// The sum of the bytes, the last one padded with a zero byte if their number is odd.
    #[must_use]
    pub fn sum(self) -> Sum {
        let mut at = 0;
        self.iter().fold(Sum::ZERO, |sum, piece| {
            let own = Sum::ZERO.bytes(piece);
            let is_odd = at % 2 == 1;
            at += piece.len();
            sum.sum(if is_odd { own.shifted() } else { own })
        })
    }
}

impl<'a> From<&'a [u8]> for Pieces<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Pieces {
            first: bytes,
            behind: None,
            length: bytes.len(),
        }
    }
}

impl fmt::Debug for Pieces<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests;
