//! Commands of a key-value store in RESP, by their key.

use super::{Frame, Lost, Members, Module, Verdict, hash_of};
use crate::MemberId;

/// The most arguments of a command that are looked at.
const ARGUMENTS_MAX: usize = 1 << 20;

/// Sends each command to the member that has its key: one command of RESP (an array of
/// bulk strings) a frame. A command without a key (`PING`, `INFO`) goes to the member
/// of the empty key.
///
/// A command of several keys goes to the member of the first: a switch that holds no
/// bytes cannot make one command two, nor two replies one. Whoever makes frames of
/// commands splits `MGET`, `MSET`, `DEL` and their like by key first (the bridge does),
/// and puts replies into the order asked, since the members' replies come in that of
/// the members.
#[derive(Clone, Debug)]
pub struct KeyValue {
    skip: usize,
}

impl KeyValue {
    /// `skip` bytes of a frame's payload precede the command.
    #[must_use]
    pub const fn new(skip: usize) -> Self {
        Self { skip }
    }
}

impl Module for KeyValue {
    fn frame(&mut self, frame: Frame<'_>, members: Members<'_>) -> Verdict {
        let key = frame.payload.get(self.skip..).and_then(key);
        match key.and_then(|key| members.for_key(hash_of(key))) {
            Some(member) => Verdict::Send(member.id, 0),
            None => Verdict::Reset,
        }
    }

    fn member_down(&mut self, _member: MemberId) -> Lost {
        // INCR and APPEND are not idempotent, and the module does not tell them apart.
        Lost::Reset
    }
}

/// The key of a command, empty if it has none; `None` if it is no command.
fn key(command: &[u8]) -> Option<&[u8]> {
    let (count, mut rest) = line(command.strip_prefix(b"*")?)?;
    if !(1..=ARGUMENTS_MAX).contains(&count) {
        return None;
    }
    let mut arguments = [&[][..]; 4];
    for place in arguments.iter_mut().take(count) {
        let (length, behind) = line(rest.strip_prefix(b"$")?)?;
        let (argument, behind) = behind.split_at_checked(length)?;
        *place = argument;
        rest = behind.strip_prefix(b"\r\n")?;
    }
    let [name, first, second, third] = arguments;
    let among = |names: &[&str]| {
        let is = |other: &&str| name.eq_ignore_ascii_case(other.as_bytes());
        names.iter().any(is)
    };
    // Of these the key is not the first argument.
    Some(
        if among(&[
            "EVAL",
            "EVALSHA",
            "EVAL_RO",
            "EVALSHA_RO",
            "FCALL",
            "FCALL_RO",
        ]) {
            third
        } else if among(&["OBJECT", "BITOP", "XGROUP", "XINFO", "MEMORY"]) {
            second
        } else {
            first
        },
    )
}

/// A number and the end of its line, and what follows.
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
    }

    #[test]
    fn what_is_no_command_has_no_key() {
        for bytes in [
            "",
            "*",
            "*2\r\n",
            "*0\r\n",
            "*2\r\n$9\r\nGET\r\n",
            "PING\r\n",
            "*1\r\n$-1\r\n",
            "*99999999999999999999999\r\n",
            "*1\r\n$4\r\nPINGxx",
        ] {
            assert_eq!(key(bytes.as_bytes()), None, "{bytes:?}");
        }
    }
}
