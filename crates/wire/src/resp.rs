//! RESP, the Redis serialization protocol, version 2: the end of a value, the arguments
//! of a command, and its key.
//!
//! [`Scanner`] finds the end of a value that arrives in pieces, in constant memory
//! whatever lengths are claimed. [`arguments`] reads a whole command.

/// The most bytes of one bulk string (Redis's `proto-max-bulk-len`).
pub const BULK_MAX: u64 = 512 << 20;
/// The deepest nesting of arrays.
pub const DEPTH_MAX: usize = 16;
/// The most digits of a length.
const DIGITS_MAX: u8 = 10;
/// The most elements of an array.
const ELEMENTS_MAX: u64 = u32::MAX as u64;
/// The most arguments of a command (Redis's limit).
const ARGUMENTS_MAX: usize = 1 << 20;

/// Why bytes are not a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The first byte of a value is not a type of version 2.
    #[error("a value cannot begin with 0x{0:02x}")]
    Type(u8),
    /// A length that is not a number, or negative other than -1.
    #[error("a length is no number")]
    Length,
    /// A bulk string or an array that exceeds the limits.
    #[error("a length is over the limit")]
    TooLong,
    /// A line or a bulk string does not end with CR LF.
    #[error("no line end where one belongs")]
    LineEnd,
    /// Arrays nested deeper than [`DEPTH_MAX`].
    #[error("arrays lie in arrays more than {DEPTH_MAX} deep")]
    Depth,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Before the first byte of a value.
    Type,
    /// In a simple string, an error or an integer.
    Line,
    /// In the length of a bulk string (`bulk`) or of an array.
    Length {
        bulk: bool,
        negative: bool,
        digits: u8,
        value: u64,
    },
    /// Before the LF after that length.
    LengthEnd {
        bulk: bool,
        length: Option<u64>,
    },
    /// In a bulk string, with this many bytes remaining.
    Bulk(u64),
    /// Before the CR and before the LF after it.
    BulkCr,
    Lf,
}

/// Finds the end of a value, however the bytes are cut.
#[derive(Clone, Debug)]
pub struct Scanner {
    state: State,
    /// Missing elements of each open array.
    open: [u64; DEPTH_MAX],
    depth: usize,
}

impl Default for Scanner {
    fn default() -> Self {
        Self::new()
    }
}

impl Scanner {
    /// Before the first byte of a value.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: State::Type,
            open: [0; DEPTH_MAX],
            depth: 0,
        }
    }

    /// Takes the next bytes. Returns how many of them belong to the value, and whether it
    /// ends there. The next call then begins the next value.
    ///
    /// # Errors
    /// [`Error`]; nothing can be read after it.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<(usize, bool), Error> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let (taken, ended) = self.step(rest)?;
            at += taken;
            if ended && self.element_ended() {
                return Ok((at, true));
            }
        }
        Ok((at, false))
    }

    /// One step: returns the bytes taken, and whether an element ends there.
    fn step(&mut self, bytes: &[u8]) -> Result<(usize, bool), Error> {
        let Some(&byte) = bytes.first() else {
            return Ok((0, false));
        };
        match self.state {
            State::Type => {
                self.state = match byte {
                    b'+' | b'-' | b':' => State::Line,
                    b'$' | b'*' => State::Length {
                        bulk: byte == b'$',
                        negative: false,
                        digits: 0,
                        value: 0,
                    },
                    other => return Err(Error::Type(other)),
                };
                Ok((1, false))
            }
            State::Line => match bytes.iter().position(|&byte| byte == b'\r') {
                Some(at) => {
                    self.state = State::Lf;
                    Ok((at + 1, false))
                }
                None => Ok((bytes.len(), false)),
            },
            State::Length {
                bulk,
                negative,
                digits,
                value,
            } => {
                self.state = match byte {
                    b'-' if digits == 0 && !negative => State::Length {
                        bulk,
                        negative: true,
                        digits,
                        value,
                    },
                    b'0'..=b'9' if digits < DIGITS_MAX => State::Length {
                        bulk,
                        negative,
                        digits: digits + 1,
                        value: value * 10 + u64::from(byte - b'0'),
                    },
                    b'0'..=b'9' => return Err(Error::TooLong),
                    b'\r' if digits > 0 => {
                        let most = if bulk { BULK_MAX } else { ELEMENTS_MAX };
                        let length = match (negative, value) {
                            (true, 1) => None,
                            (true, _) => return Err(Error::Length),
                            (false, length) if length > most => return Err(Error::TooLong),
                            (false, length) => Some(length),
                        };
                        State::LengthEnd { bulk, length }
                    }
                    _ => return Err(Error::Length),
                };
                Ok((1, false))
            }
            State::LengthEnd { bulk, length } => {
                if byte != b'\n' {
                    return Err(Error::LineEnd);
                }
                self.state = State::Type;
                match (bulk, length) {
                    (true, Some(0)) => self.state = State::BulkCr,
                    (true, Some(length)) => self.state = State::Bulk(length),
                    (false, Some(length)) if length > 0 => {
                        let open = self.open.get_mut(self.depth).ok_or(Error::Depth)?;
                        *open = length;
                        self.depth += 1;
                    }
                    // Null, or an empty array.
                    _ => return Ok((1, true)),
                }
                Ok((1, false))
            }
            State::Bulk(left) => {
                let taken = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                let left = left - taken as u64;
                self.state = if left == 0 {
                    State::BulkCr
                } else {
                    State::Bulk(left)
                };
                Ok((taken, false))
            }
            State::BulkCr if byte == b'\r' => {
                self.state = State::Lf;
                Ok((1, false))
            }
            State::Lf if byte == b'\n' => {
                self.state = State::Type;
                Ok((1, true))
            }
            State::BulkCr | State::Lf => Err(Error::LineEnd),
        }
    }

    /// Counts an element in the open arrays; returns true when none is open afterwards.
    fn element_ended(&mut self) -> bool {
        while let Some(above) = self.depth.checked_sub(1) {
            let Some(open) = self.open.get_mut(above) else {
                break;
            };
            *open -= 1;
            if *open > 0 {
                return false;
            }
            self.depth = above;
        }
        true
    }
}

/// The arguments of a command (an array of bulk strings), its name first. The iterator
/// ends early if the command does. `None` if it is not a command, or has no name.
#[must_use]
pub fn arguments(command: &[u8]) -> Option<Arguments<'_>> {
    let (left, rest) = line(command.strip_prefix(b"*")?)?;
    (1..=ARGUMENTS_MAX)
        .contains(&left)
        .then_some(Arguments { left, rest })
}

/// See [`arguments`].
#[derive(Clone, Debug)]
pub struct Arguments<'a> {
    left: usize,
    rest: &'a [u8],
}

impl Arguments<'_> {
    /// The number of remaining arguments, according to the command.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.left
    }
}

impl<'a> Iterator for Arguments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let left = self.left.checked_sub(1)?;
        let (length, rest) = line(self.rest.strip_prefix(b"$")?)?;
        let (argument, rest) = rest.split_at_checked(length)?;
        self.rest = rest.strip_prefix(b"\r\n")?;
        self.left = left;
        Some(argument)
    }
}

/// The key by which a command is steered: empty if it has none. `None` if it is not a
/// command, or ends before its key does. Bytes after the key are ignored.
#[must_use]
pub fn key(command: &[u8]) -> Option<&[u8]> {
    let mut arguments = arguments(command)?;
    let name = arguments.next()?;
    // For these commands the key is not the first argument.
    let before = if among(
        name,
        &[
            "EVAL",
            "EVALSHA",
            "EVAL_RO",
            "EVALSHA_RO",
            "FCALL",
            "FCALL_RO",
        ],
    ) {
        2
    } else if among(name, &["OBJECT", "BITOP", "XGROUP", "XINFO", "MEMORY"]) {
        1
    } else {
        0
    };
    if arguments.left() <= before {
        return Some(b"");
    }
    arguments.nth(before)
}

/// Whether a command's name is in the list, in upper or lower case.
#[must_use]
pub fn among(name: &[u8], names: &[&str]) -> bool {
    names
        .iter()
        .any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
}

/// A number with the end of its line, and the bytes after it.
fn line(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let digits = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let (number, rest) = bytes.split_at(digits);
    let number = core::str::from_utf8(number).ok()?.parse().ok()?;
    Some((number, rest.strip_prefix(b"\r\n")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends of values when fed in pieces of this length.
    fn ends(bytes: &[u8], piece: usize) -> (Vec<usize>, Option<Error>) {
        let (mut scanner, mut at, mut ends) = (Scanner::new(), 0, Vec::new());
        while at < bytes.len() {
            let end = bytes.len().min(at + piece);
            match scanner.scan(&bytes[at..end]) {
                Ok((taken, ended)) => {
                    at += taken;
                    assert!(ended || at == end);
                    if ended {
                        ends.push(at);
                    }
                }
                Err(error) => return (ends, Some(error)),
            }
        }
        (ends, None)
    }

    #[test]
    fn values_end_where_they_do_wherever_they_are_cut() {
        let values: [&[u8]; 9] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":-5\r\n",
            b"$-1\r\n",
            b"$0\r\n\r\n",
            b"$4\r\na\r\nb\r\n",
            b"*0\r\n",
            b"*-1\r\n",
            b"*2\r\n*2\r\n$1\r\nx\r\n*0\r\n:1\r\n",
        ];
        let mut expected = Vec::new();
        let mut all = Vec::new();
        for value in values {
            all.extend(value);
            expected.push(all.len());
        }
        for piece in [1, 2, 3, 7, 1000] {
            assert_eq!(ends(&all, piece), (expected.clone(), None), "{piece}");
        }
    }

    #[test]
    fn lengths_that_lie_are_refused_or_waited_for() {
        for (bytes, error) in [
            (&b"!"[..], Error::Type(b'!')),
            (b"$x\r\n", Error::Length),
            (b"$\r\n", Error::Length),
            (b"$-2\r\n", Error::Length),
            (b"$536870913\r\n", Error::TooLong),
            (b"*99999999999999\r\n", Error::TooLong),
            (b"$1\r\nxx", Error::LineEnd),
            (b"$1\rx", Error::LineEnd),
            (&b"*1\r\n".repeat(DEPTH_MAX + 1), Error::Depth),
        ] {
            assert_eq!(ends(bytes, 1), (vec![], Some(error)), "{bytes:?}");
        }
        // A huge array without elements takes no memory.
        assert_eq!(ends(b"*4294967295\r\n:1\r\n", 5), (vec![], None));
    }

    #[test]
    fn keys_of_commands() {
        let of = |command: &'static str| key(command.as_bytes());
        let get = "*2\r\n$3\r\nGET\r\n$3\r\nabc\r\n";
        assert_eq!(of(get), Some(&b"abc"[..]));
        let set = "*3\r\n$3\r\nset\r\n$2\r\nab\r\n$1\r\nx\r\n";
        assert_eq!(of(set), Some(&b"ab"[..]));
        let eval = "*4\r\n$4\r\neval\r\n$1\r\ns\r\n$1\r\n1\r\n$1\r\nk\r\n";
        assert_eq!(of(eval), Some(&b"k"[..]));
        assert_eq!(of("*1\r\n$4\r\nPING\r\n"), Some(&b""[..]));
        assert_eq!(of("*1\r\n$4\r\nEVAL\r\n"), Some(&b""[..]));
        let names: Vec<_> = arguments(set.as_bytes()).unwrap().collect();
        assert_eq!(names, [&b"set"[..], b"ab", b"x"]);
    }

    #[test]
    fn what_is_no_command_has_no_key() {
        for bytes in [
            "",
            "*",
            "*2\r\n",
            "*0\r\n",
            "*2\r\n$9\r\nGET\r\n",
            "*2\r\n$3\r\nGET\r\n$9\r\nab\r\n",
            "PING\r\n",
            "*1\r\n$-1\r\n",
            "*99999999999999999999999\r\n",
            "*1\r\n$4\r\nPINGxx",
        ] {
            assert_eq!(key(bytes.as_bytes()), None, "{bytes:?}");
        }
    }
}
