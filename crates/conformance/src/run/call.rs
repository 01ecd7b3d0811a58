//! System calls of a script, made on the host.

use core::time::Duration;
use std::collections::HashMap;
use std::net::SocketAddr;

use super::argument::{address, field, int, integer, iovec_length, needed, number, option_value};
use super::constant;
use super::control;
use super::settings::Settings;
use crate::script::{Call, Expression};
use crate::stack::{EpollEvent, Failure, Fd, Host, PollFd};

/// The most bytes that one call may move: a script's mistake must not take all
/// memory.
const BYTES_MAX: usize = 64 << 20;

/// The byte at a place of a stream that a script sends or receives. Places that
/// are near or a power of two apart differ.
pub(super) fn pattern(position: u64) -> u8 {
    (position ^ position >> 8 ^ position >> 16).wrapping_mul(0x9d) as u8
}

/// What a call has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Returned {
    Value(i64),
    Errno(i32),
}

impl core::fmt::Display for Returned {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Value(value) => write!(f, "{value}"),
            Self::Errno(number) => write!(f, "-1 {}", constant::error_name(*number)),
        }
    }
}

/// How far a call has come that is made again and again until it does not block.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Progress {
    /// Bytes written so far.
    written: usize,
    /// When it gives up.
    pub(super) deadline: Option<Duration>,
}

/// A descriptor of the script.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    live: Fd,
    /// Bytes written to it and read from it.
    written: u64,
    read: u64,
}

/// The descriptors of a script.
#[derive(Default)]
pub(super) struct Calls {
    descriptors: HashMap<i64, Descriptor>,
    /// The last connection that was made or accepted.
    pub(super) subject: Option<Fd>,
    /// Whom a write with MSG_FASTOPEN connects to.
    peer: Option<SocketAddr>,
    /// Data of the script's own was written: what goes out is not our pattern.
    pub(super) own_data: bool,
    /// The family of the script's sockets.
    domain: i32,
}

/// A call's outcome: it blocks, or has returned; or the script is wrong, or what
/// the call gave back through a pointer differs.
type Outcome = Result<Option<Returned>, String>;

impl Calls {
    /// Makes a call.
    pub(super) fn make(
        &mut self,
        host: &mut Host,
        settings: &Settings,
        call: &Call,
        progress: &mut Progress,
    ) -> Outcome {
        let remote = self.shown(settings, settings.remote);
        self.peer = Some(SocketAddr::new(remote, settings.connect_port));
        let arguments = call.arguments.as_slice();
        self.domain = settings.family.domain();
        match (call.name.as_str(), arguments) {
            ("socket", [domain, kind, protocol]) => {
                let domain = match domain {
                    Expression::Ellipsis => settings.family.domain(),
                    domain => int(domain)?,
                };
                let result = host.socket(domain, int(kind)?, int(protocol)?);
                self.descriptor(call, result)
            }
            ("bind", [fd, to, _]) => {
                let own = SocketAddr::new(self.shown(settings, settings.local), settings.bind_port);
                let to = address(to)?.unwrap_or(own);
                unit(host.bind(self.live(fd)?, to))
            }
            ("listen", [fd, backlog]) => unit(host.listen(self.live(fd)?, int(backlog)?)),
            ("accept", [fd, _, _]) | ("accept4", [fd, _, _, _]) => {
                let result = host.accept(self.live(fd)?).map(|(fd, _)| fd);
                if let Ok(fd) = result {
                    self.subject = Some(fd);
                }
                self.descriptor(call, result)
            }
            ("connect", [fd, to, _]) => {
                let remote = self.shown(settings, settings.remote);
                let peer = SocketAddr::new(remote, settings.connect_port);
                let fd = self.live(fd)?;
                self.subject = Some(fd);
                unit(host.connect(fd, address(to)?.unwrap_or(peer)))
            }
            ("shutdown", [fd, how]) => unit(host.shutdown(self.live(fd)?, int(how)?)),
            ("close", [fd]) => {
                let result = host.close(self.live(fd)?);
                if result.is_ok() {
                    self.descriptors.remove(&integer(fd)?);
                }
                unit(result)
            }
            ("fcntl", [fd, command]) => value(host.fcntl(self.live(fd)?, int(command)?, 0)),
            ("fcntl", [fd, command, argument]) => {
                value(host.fcntl(self.live(fd)?, int(command)?, integer(argument)?))
            }
            ("ioctl", [fd, request, argument]) => self.ioctl(host, fd, request, argument),
            ("setsockopt", [fd, level, option, new, length]) => {
                let length = number::<u32>(length)? as usize;
                let new = option_value(new, Some(length))?;
                unit(host.setsockopt(self.live(fd)?, int(level)?, int(option)?, &new))
            }
            ("getsockopt", [fd, level, option, expected, length]) => {
                self.getsockopt(host, fd, [level, option], expected, length)
            }
            ("poll", [list, _, timeout]) => self.poll(host, list, timeout, progress),
            ("epoll_create", [size]) => {
                let result = host.epoll_create(int(size)?);
                self.descriptor(call, result)
            }
            ("epoll_ctl", [set, operation, fd, event]) => {
                let event = epoll_event(event)?;
                unit(host.epoll_ctl(self.live(set)?, int(operation)?, self.live(fd)?, event))
            }
            ("epoll_wait", [set, expected, limit, timeout]) => {
                self.epoll_wait(host, set, expected, [limit, timeout], progress)
            }
            _ => self.transfer(host, call, progress),
        }
    }

    /// Reading and writing.
    fn transfer(&mut self, host: &mut Host, call: &Call, progress: &mut Progress) -> Outcome {
        let nothing = Expression::Integer(0);
        match (call.name.as_str(), call.arguments.as_slice()) {
            ("write", [fd, data, length]) => self.write(host, fd, data, length, 0, progress),
            ("send", [fd, data, length, flags]) | ("sendto", [fd, data, length, flags, _, _]) => {
                self.write(host, fd, data, length, int(flags)?, progress)
            }
            ("writev", [fd, vectors, _]) => {
                let length = Expression::Integer(iovec_length(vectors)? as i64);
                self.write(host, fd, &Expression::Ellipsis, &length, 0, progress)
            }
            ("sendmsg", [fd, message, flags]) => {
                let length = iovec_length(needed(message, "msg_iov")?)?;
                let length = Expression::Integer(length as i64);
                self.write(
                    host,
                    fd,
                    &Expression::Ellipsis,
                    &length,
                    int(flags)?,
                    progress,
                )
            }
            ("read", [fd, data, length]) => self.read(host, fd, data, length, &nothing, None),
            ("recv", [fd, data, length, flags]) | ("recvfrom", [fd, data, length, flags, _, _]) => {
                self.read(host, fd, data, length, flags, None)
            }
            ("readv", [fd, vectors, _]) => {
                let length = Expression::Integer(iovec_length(vectors)? as i64);
                self.read(host, fd, &Expression::Ellipsis, &length, &nothing, None)
            }
            ("recvmsg", [fd, message, flags]) => {
                let length = iovec_length(needed(message, "msg_iov")?)?;
                let length = Expression::Integer(length as i64);
                self.read(
                    host,
                    fd,
                    &Expression::Ellipsis,
                    &length,
                    flags,
                    Some(message),
                )
            }
            (name, arguments) => Err(format!(
                "there is no call {name} with {} arguments here",
                arguments.len()
            )),
        }
    }

    /// An address as a socket of the script's family has it.
    fn shown(&self, settings: &Settings, ip: std::net::IpAddr) -> std::net::IpAddr {
        match ip {
            std::net::IpAddr::V4(v4) if settings.family.domain() == libc::AF_INET6 => {
                v4.to_ipv6_mapped().into()
            }
            ip => ip,
        }
    }

    /// The live descriptor; one that was never opened is none of the host's.
    fn live(&self, fd: &Expression) -> Result<Fd, String> {
        let fd = integer(fd)?;
        Ok(self
            .descriptors
            .get(&fd)
            .map_or(-1, |descriptor| descriptor.live))
    }

    /// A call that gives a new descriptor: the script says by which number it
    /// calls it.
    fn descriptor(&mut self, call: &Call, result: Result<Fd, Failure>) -> Outcome {
        match result {
            Ok(live) => {
                let name = integer(&call.result)?;
                if name < 0 {
                    return Ok(Some(Returned::Value(live.into())));
                }
                let new = Descriptor {
                    live,
                    written: 0,
                    read: 0,
                };
                match self.descriptors.insert(name, new) {
                    None => Ok(Some(Returned::Value(name))),
                    Some(_) => Err(format!("descriptor {name} is open already")),
                }
            }
            Err(failure) => failed(failure),
        }
    }

    fn ioctl(
        &mut self,
        host: &mut Host,
        fd: &Expression,
        request: &Expression,
        argument: &Expression,
    ) -> Outcome {
        let request = integer(request)? as u64;
        let given = if request == libc::FIONBIO {
            int(argument)?
        } else {
            0
        };
        match host.ioctl(self.live(fd)?, request, given) {
            Ok(told) if request != libc::FIONBIO => {
                if *argument != Expression::Ellipsis && integer(argument)? != i64::from(told) {
                    return Err(format!("ioctl tells [{told}], expected {argument}"));
                }
                Ok(Some(Returned::Value(0)))
            }
            Ok(_) => Ok(Some(Returned::Value(0))),
            Err(failure) => failed(failure),
        }
    }

    fn getsockopt(
        &mut self,
        host: &mut Host,
        fd: &Expression,
        [level, option]: [&Expression; 2],
        expected: &Expression,
        length: &Expression,
    ) -> Outcome {
        let found = match host.getsockopt(self.live(fd)?, int(level)?, int(option)?) {
            Ok(found) => found,
            Err(failure) => return failed(failure),
        };
        if *expected == Expression::Ellipsis {
            return Ok(Some(Returned::Value(0)));
        }
        let length = match length {
            Expression::Ellipsis => found.len(),
            length => number::<u32>(length)? as usize,
        };
        let told = found.get(..length).unwrap_or(&found);
        let wanted = option_value(expected, None)?;
        // A string may end where the script's does.
        let same = match expected {
            Expression::Text(..) => told.starts_with(&wanted),
            _ => told == wanted,
        };
        if !same {
            let shown = match (expected, told) {
                (Expression::Text(..), told) => format!("{:?}", String::from_utf8_lossy(told)),
                (_, [a, b, c, d]) => format!("[{}]", i32::from_ne_bytes([*a, *b, *c, *d])),
                (_, told) => format!("{told:?}"),
            };
            return Err(format!("getsockopt gives {shown}, expected {expected}"));
        }
        Ok(Some(Returned::Value(0)))
    }

    fn write(
        &mut self,
        host: &mut Host,
        fd: &Expression,
        data: &Expression,
        length: &Expression,
        flags: i32,
        progress: &mut Progress,
    ) -> Outcome {
        let length = number::<u32>(length)? as usize;
        if length > BYTES_MAX {
            return Err(format!("{length} bytes are more than a script may write"));
        }
        let live = self.live(fd)?;
        if flags & libc::MSG_FASTOPEN != 0 {
            self.subject = Some(live);
        }
        let descriptor = self.descriptors.get_mut(&integer(fd)?);
        let position = descriptor
            .as_ref()
            .map_or(0, |descriptor| descriptor.written);
        let bytes = if let Expression::Text(text, _) = data {
            self.own_data = true;
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(length, 0);
            bytes
        } else {
            let first = position.wrapping_sub(progress.written as u64);
            (0..length as u64)
                .map(|at| pattern(first.wrapping_add(at)))
                .collect()
        };
        let mut descriptor = descriptor;
        loop {
            let rest = bytes.get(progress.written..).unwrap_or_default();
            match host.sendto(live, rest, flags, self.peer) {
                Ok(taken) => {
                    progress.written += taken;
                    if let Some(descriptor) = descriptor.as_deref_mut() {
                        descriptor.written += taken as u64;
                    }
                    // A blocking call goes on until all is taken.
                    if progress.written >= length || taken == 0 {
                        return Ok(Some(Returned::Value(progress.written as i64)));
                    }
                }
                Err(Failure::Blocked) => return Ok(None),
                Err(Failure::Errno(_)) if progress.written > 0 => {
                    return Ok(Some(Returned::Value(progress.written as i64)));
                }
                Err(failure) => return failed(failure),
            }
        }
    }

    fn read(
        &mut self,
        host: &mut Host,
        fd: &Expression,
        data: &Expression,
        length: &Expression,
        flags: &Expression,
        message: Option<&Expression>,
    ) -> Outcome {
        let length = number::<u32>(length)? as usize;
        if length > BYTES_MAX {
            return Err(format!("{length} bytes are more than a script may read"));
        }
        let flags = int(flags)?;
        let mut buffer = vec![0; length];
        let received = match host.receive(self.live(fd)?, &mut buffer, flags) {
            Ok(received) => received,
            Err(failure) => return failed(failure),
        };
        buffer.truncate(received.bytes);
        let Some(descriptor) = self.descriptors.get_mut(&integer(fd)?) else {
            return Err("read from a descriptor that is not open".into());
        };
        let first = descriptor.read;
        if flags & libc::MSG_PEEK == 0 {
            descriptor.read += received.bytes as u64;
        }
        match data {
            Expression::Text(text, _) if !buffer.starts_with(text.as_bytes()) => {
                return Err(format!(
                    "read {:?}, expected {data}",
                    String::from_utf8_lossy(&buffer)
                ));
            }
            _ if flags & libc::MSG_TRUNC == 0 => {
                let wrong = buffer
                    .iter()
                    .zip(first..)
                    .position(|(byte, position)| *byte != pattern(position));
                if let Some(at) = wrong {
                    return Err(format!(
                        "byte {at} of what was read is not byte {} of what was sent",
                        first + at as u64
                    ));
                }
            }
            _ => {}
        }
        if let Some(message) = message {
            control::check(message, self.domain, &received)?;
        }
        Ok(Some(Returned::Value(received.bytes as i64)))
    }

    fn poll(
        &mut self,
        host: &mut Host,
        list: &Expression,
        timeout: &Expression,
        progress: &mut Progress,
    ) -> Outcome {
        let Expression::List(list) = list else {
            return Err(format!("expected a list of pollfds, found {list}"));
        };
        let mut descriptors = Vec::new();
        for item in list {
            descriptors.push(PollFd {
                fd: self.live(needed(item, "fd")?)?,
                events: number(needed(item, "events")?)?,
                revents: 0,
            });
        }
        let count = match host.poll(&mut descriptors) {
            Ok(count) => count,
            Err(failure) => return failed(failure),
        };
        if count == 0 && waits(host, timeout, progress)? {
            return Ok(None);
        }
        for (item, found) in list.iter().zip(&descriptors) {
            let expected = match field(item, "revents") {
                Some(Expression::Ellipsis) => continue,
                Some(expected) => number(expected)?,
                None => 0,
            };
            if found.revents != expected {
                return Err(format!(
                    "poll gives revents={:#x}, expected {expected:#x} in {item}",
                    found.revents
                ));
            }
        }
        Ok(Some(Returned::Value(count as i64)))
    }

    fn epoll_wait(
        &mut self,
        host: &mut Host,
        set: &Expression,
        expected: &Expression,
        [limit, timeout]: [&Expression; 2],
        progress: &mut Progress,
    ) -> Outcome {
        let limit = number::<u32>(limit)? as usize;
        let events = match host.epoll_wait(self.live(set)?, limit) {
            Ok(events) => events,
            Err(failure) => return failed(failure),
        };
        if events.is_empty() && waits(host, timeout, progress)? {
            return Ok(None);
        }
        if *expected != Expression::Ellipsis {
            let wanted = epoll_event(expected)?;
            let found = events
                .first()
                .copied()
                .unwrap_or(EpollEvent { events: 0, data: 0 });
            if (found.events, found.data) != (wanted.events, wanted.data) {
                return Err(format!(
                    "epoll_wait gives events={:#x} of {}, expected {:#x} in {expected}",
                    found.events, found.data, wanted.events
                ));
            }
        }
        Ok(Some(Returned::Value(events.len() as i64)))
    }
}

/// Whether a call with a timeout in milliseconds waits on.
fn waits(host: &Host, timeout: &Expression, progress: &mut Progress) -> Result<bool, String> {
    let timeout = int(timeout)?;
    let now = host.now();
    Ok(match u64::try_from(timeout) {
        Ok(milliseconds) => {
            let deadline = *progress
                .deadline
                .get_or_insert(now.saturating_add(Duration::from_millis(milliseconds)));
            now < deadline
        }
        Err(_) => true,
    })
}

/// `{events=EPOLLIN, fd=4}`; the data is as written, not a live descriptor.
fn epoll_event(expression: &Expression) -> Result<EpollEvent, String> {
    let data = ["fd", "ptr", "u32", "u64"]
        .into_iter()
        .find_map(|name| field(expression, name))
        .ok_or_else(|| format!("expected fd, ptr, u32 or u64 in {expression}"))?;
    Ok(EpollEvent {
        events: int(needed(expression, "events")?)? as u32,
        data: integer(data)? as u64,
    })
}

fn failed(failure: Failure) -> Outcome {
    match failure {
        Failure::Blocked => Ok(None),
        Failure::Errno(number) => Ok(Some(Returned::Errno(number))),
    }
}

fn unit(result: Result<(), Failure>) -> Outcome {
    value(result.map(|()| 0))
}

fn value(result: Result<i32, Failure>) -> Outcome {
    match result {
        Ok(value) => Ok(Some(Returned::Value(value.into()))),
        Err(failure) => failed(failure),
    }
}
