//! System calls of a script: the call, and the checks when it returns.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

use tidewall_posix::{PollFd, Posix};

use super::argument::{address, field, int, integer, iovec_length, needed, number, option_value};
use super::constant;
use super::control;
use super::settings::Settings;
use crate::script::{Call, Expression};

/// A descriptor.
pub(super) type Fd = i32;

/// The most bytes that one call may transfer: a script's mistake must not exhaust memory.
const BYTES_MAX: usize = 64 << 20;

/// The byte at a position of a stream that a script sends or receives. Bytes at positions
/// that are near, or a power of two apart, differ.
pub(super) fn pattern(position: u64) -> u8 {
    (position ^ position >> 8 ^ position >> 16).wrapping_mul(0x9d) as u8
}

/// The result of a call.
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
    /// The connection made or accepted last.
    pub(super) subject: Option<Fd>,
    /// The destination of a write with MSG_FASTOPEN.
    peer: Option<SocketAddr>,
    /// The script wrote its own data: the output is not our pattern.
    pub(super) own_data: bool,
    /// The family of the script's sockets.
    domain: i32,
}

/// A call's outcome; or an error in the script, or a difference in what the call returned
/// through a pointer.
type Outcome = Result<Returned, String>;

/// Compares the results of a call once it has returned.
pub(super) type Check = Box<dyn FnOnce(&mut Calls) -> Outcome + Send>;

/// A call, to be made in a thread that may block.
pub(super) type Job = Box<dyn FnOnce(&Posix) -> Check + Send>;

fn job<T: Send + 'static>(
    make: impl FnOnce(&Posix) -> tidewall_posix::Result<T> + Send + 'static,
    check: impl FnOnce(&mut Calls, T) -> Outcome + Send + 'static,
) -> Job {
    Box::new(move |posix| {
        let result = make(posix);
        Box::new(move |calls| match result {
            Ok(value) => check(calls, value),
            Err(errno) => Ok(Returned::Errno(errno.0)),
        })
    })
}

/// A call that returns zero.
fn unit(make: impl FnOnce(&Posix) -> tidewall_posix::Result<()> + Send + 'static) -> Job {
    job(make, |_, ()| Ok(Returned::Value(0)))
}

/// A call that returns a new descriptor: the script gives it a number.
fn descriptor(
    call: &Call,
    make: impl FnOnce(&Posix) -> tidewall_posix::Result<Fd> + Send + 'static,
) -> Job {
    let result = call.result.clone();
    job(make, move |calls, live| {
        let name = integer(&result)?;
        if name < 0 {
            return Ok(Returned::Value(live.into()));
        }
        let new = Descriptor {
            live,
            written: 0,
            read: 0,
        };
        match calls.descriptors.insert(name, new) {
            None => Ok(Returned::Value(name)),
            Some(_) => Err(format!("descriptor {name} is open already")),
        }
    })
}

impl Calls {
    /// Prepares a call.
    pub(super) fn prepare(&mut self, settings: &Settings, call: &Call) -> Result<Job, String> {
        let remote = self.shown(settings, settings.remote);
        self.peer = Some(SocketAddr::new(remote, settings.connect_port));
        let arguments = call.arguments.as_slice();
        self.domain = settings.family.domain();
        Ok(match (call.name.as_str(), arguments) {
            ("socket", [domain, kind, protocol]) => {
                let domain = match domain {
                    Expression::Ellipsis => settings.family.domain(),
                    domain => int(domain)?,
                };
                let (kind, protocol) = (int(kind)?, int(protocol)?);
                descriptor(call, move |posix| posix.socket(domain, kind, protocol))
            }
            ("bind", [fd, to, _]) => {
                let own = SocketAddr::new(self.shown(settings, settings.local), settings.bind_port);
                let to = address(to)?.unwrap_or(own);
                let fd = self.live(fd)?;
                unit(move |posix| posix.bind(fd, to))
            }
            ("listen", [fd, backlog]) => {
                let (fd, backlog) = (self.live(fd)?, int(backlog)?);
                unit(move |posix| posix.listen(fd, backlog))
            }
            ("accept", [fd, _, _]) => self.accept(call, fd, 0)?,
            ("accept4", [fd, _, _, flags]) => self.accept(call, fd, int(flags)?)?,
            ("connect", [fd, to, _]) => {
                let remote = self.shown(settings, settings.remote);
                let peer = SocketAddr::new(remote, settings.connect_port);
                let fd = self.live(fd)?;
                self.subject = Some(fd);
                let to = address(to)?.unwrap_or(peer);
                unit(move |posix| posix.connect(fd, to))
            }
            ("shutdown", [fd, how]) => {
                let (fd, how) = (self.live(fd)?, int(how)?);
                unit(move |posix| posix.shutdown(fd, how))
            }
            ("close", [fd]) => {
                let (live, name) = (self.live(fd)?, integer(fd)?);
                job(
                    move |posix| posix.close(live),
                    move |calls, ()| {
                        calls.descriptors.remove(&name);
                        Ok(Returned::Value(0))
                    },
                )
            }
            ("fcntl", [fd, command]) => self.fcntl(fd, command, 0)?,
            ("fcntl", [fd, command, argument]) => self.fcntl(fd, command, integer(argument)?)?,
            ("ioctl", [fd, request, argument]) => self.ioctl(fd, request, argument)?,
            ("setsockopt", [fd, level, option, new, length]) => {
                let length = number::<u32>(length)? as usize;
                let new = option_value(new, Some(length))?;
                let (fd, level, option) = (self.live(fd)?, int(level)?, int(option)?);
                unit(move |posix| posix.setsockopt(fd, level, option, &new))
            }
            ("getsockopt", [fd, level, option, expected, length]) => {
                self.getsockopt(fd, [level, option], expected, length)?
            }
            ("poll", [list, _, timeout]) => self.poll(list, int(timeout)?)?,
            ("epoll_create", [size]) => {
                let size = int(size)?;
                descriptor(call, move |posix| match size {
                    1.. => posix.epoll_create1(0),
                    _ => Err(tidewall_posix::Errno(libc::EINVAL)),
                })
            }
            ("epoll_ctl", [set, operation, fd, event]) => {
                let event = epoll_event(event)?;
                let (set, operation, fd) = (self.live(set)?, int(operation)?, self.live(fd)?);
                unit(move |posix| posix.epoll_ctl(set, operation, fd, Some(event)))
            }
            ("epoll_wait", [set, expected, limit, timeout]) => {
                self.epoll_wait(set, expected, limit, int(timeout)?)?
            }
            _ => self.transfer(call)?,
        })
    }

    fn accept(&self, call: &Call, fd: &Expression, flags: i32) -> Result<Job, String> {
        let fd = self.live(fd)?;
        let named = descriptor(call, move |posix| {
            posix.accept4(fd, flags).map(|(fd, _)| fd)
        });
        Ok(Box::new(move |posix| {
            let check = named(posix);
            Box::new(move |calls| {
                let before: Vec<Fd> = calls.descriptors.values().map(|it| it.live).collect();
                let returned = check(calls)?;
                let new = calls
                    .descriptors
                    .values()
                    .find(|it| !before.contains(&it.live));
                if let Some(new) = new {
                    calls.subject = Some(new.live);
                }
                Ok(returned)
            })
        }))
    }

    fn fcntl(&self, fd: &Expression, command: &Expression, argument: i64) -> Result<Job, String> {
        let (fd, command) = (self.live(fd)?, int(command)?);
        Ok(job(
            move |posix| posix.fcntl(fd, command, argument),
            |_, value| Ok(Returned::Value(value.into())),
        ))
    }

    /// Reading and writing.
    fn transfer(&mut self, call: &Call) -> Result<Job, String> {
        let length_of = |vectors: &Expression| -> Result<Expression, String> {
            Ok(Expression::Integer(iovec_length(vectors)? as i64))
        };
        let any = &Expression::Ellipsis;
        match (call.name.as_str(), call.arguments.as_slice()) {
            ("write", [fd, data, length]) => self.write(fd, data, length, 0),
            ("send", [fd, data, length, flags]) | ("sendto", [fd, data, length, flags, _, _]) => {
                self.write(fd, data, length, int(flags)?)
            }
            ("writev", [fd, vectors, _]) => self.write(fd, any, &length_of(vectors)?, 0),
            ("sendmsg", [fd, message, flags]) => {
                let length = length_of(needed(message, "msg_iov")?)?;
                self.write(fd, any, &length, int(flags)?)
            }
            ("read", [fd, data, length]) => self.read(fd, data, length, 0, None),
            ("recv", [fd, data, length, flags]) | ("recvfrom", [fd, data, length, flags, _, _]) => {
                self.read(fd, data, length, int(flags)?, None)
            }
            ("readv", [fd, vectors, _]) => self.read(fd, any, &length_of(vectors)?, 0, None),
            ("recvmsg", [fd, message, flags]) => {
                let length = length_of(needed(message, "msg_iov")?)?;
                self.read(fd, any, &length, int(flags)?, Some(message.clone()))
            }
            (name, arguments) => Err(format!(
                "there is no call {name} with {} arguments here",
                arguments.len()
            )),
        }
    }

    /// An address in the form of the script's socket family.
    fn shown(&self, settings: &Settings, ip: std::net::IpAddr) -> std::net::IpAddr {
        match ip {
            std::net::IpAddr::V4(v4) if settings.family.domain() == libc::AF_INET6 => {
                v4.to_ipv6_mapped().into()
            }
            ip => ip,
        }
    }

    /// The live descriptor; one that was never opened does not belong to the host.
    fn live(&self, fd: &Expression) -> Result<Fd, String> {
        let fd = integer(fd)?;
        Ok(self
            .descriptors
            .get(&fd)
            .map_or(-1, |descriptor| descriptor.live))
    }

    fn ioctl(
        &self,
        fd: &Expression,
        request: &Expression,
        argument: &Expression,
    ) -> Result<Job, String> {
        let (fd, request) = (self.live(fd)?, integer(request)? as u64);
        let sets = request == libc::FIONBIO;
        let given = if sets { int(argument)? } else { 0 };
        let argument = argument.clone();
        Ok(job(
            move |posix| posix.ioctl(fd, request, given),
            move |_, reported| {
                let compared = !sets && argument != Expression::Ellipsis;
                if compared && integer(&argument)? != i64::from(reported) {
                    return Err(format!("ioctl returns [{reported}], expected {argument}"));
                }
                Ok(Returned::Value(0))
            },
        ))
    }

    fn getsockopt(
        &self,
        fd: &Expression,
        [level, option]: [&Expression; 2],
        expected: &Expression,
        length: &Expression,
    ) -> Result<Job, String> {
        let (fd, level, option) = (self.live(fd)?, int(level)?, int(option)?);
        let (expected, length) = (expected.clone(), length.clone());
        Ok(job(
            move |posix| posix.getsockopt(fd, level, option),
            move |_, found| check_option(&found, &expected, &length),
        ))
    }

    fn write(
        &mut self,
        fd: &Expression,
        data: &Expression,
        length: &Expression,
        flags: i32,
    ) -> Result<Job, String> {
        let length = number::<u32>(length)? as usize;
        if length > BYTES_MAX {
            return Err(format!("{length} bytes are more than a script may write"));
        }
        let (live, name) = (self.live(fd)?, integer(fd)?);
        if flags & libc::MSG_FASTOPEN != 0 {
            self.subject = Some(live);
        }
        let bytes: Vec<u8> = if let Expression::Text(text, _) = data {
            self.own_data = true;
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(length, 0);
            bytes
        } else {
            let first = self.descriptors.get(&name).map_or(0, |it| it.written);
            (0..length as u64)
                .map(|at| pattern(first.wrapping_add(at)))
                .collect()
        };
        let to = self.peer;
        Ok(job(
            move |posix| posix.sendmsg(live, &[IoSlice::new(&bytes)], flags, to),
            move |calls, written| {
                if let Some(descriptor) = calls.descriptors.get_mut(&name) {
                    descriptor.written += written as u64;
                }
                Ok(Returned::Value(written as i64))
            },
        ))
    }

    fn read(
        &self,
        fd: &Expression,
        data: &Expression,
        length: &Expression,
        flags: i32,
        message: Option<Expression>,
    ) -> Result<Job, String> {
        let length = number::<u32>(length)? as usize;
        if length > BYTES_MAX {
            return Err(format!("{length} bytes are more than a script may read"));
        }
        let (live, name, data) = (self.live(fd)?, integer(fd)?, data.clone());
        Ok(job(
            move |posix| {
                let mut buffer = vec![0; length];
                let received = posix.recvmsg(live, &mut [IoSliceMut::new(&mut buffer)], flags)?;
                buffer.truncate(received.bytes);
                Ok((received, buffer))
            },
            move |calls, (received, buffer)| {
                calls.check_read(name, &data, &buffer, flags)?;
                if let Some(message) = message {
                    control::check(&message, calls.domain, &received)?;
                }
                Ok(Returned::Value(received.bytes as i64))
            },
        ))
    }

    /// Compares bytes that were read with those sent.
    fn check_read(
        &mut self,
        name: i64,
        data: &Expression,
        buffer: &[u8],
        flags: i32,
    ) -> Result<(), String> {
        let Some(descriptor) = self.descriptors.get_mut(&name) else {
            return Err("read from a descriptor that is not open".into());
        };
        let first = descriptor.read;
        if flags & libc::MSG_PEEK == 0 {
            descriptor.read += buffer.len() as u64;
        }
        match data {
            Expression::Text(text, _) if !buffer.starts_with(text.as_bytes()) => {
                let read = String::from_utf8_lossy(buffer);
                Err(format!("read {read:?}, expected {data}"))
            }
            _ if flags & libc::MSG_TRUNC == 0 => {
                let same = |(byte, position): (&u8, u64)| *byte == pattern(position);
                match buffer.iter().zip(first..).position(|pair| !same(pair)) {
                    None => Ok(()),
                    Some(at) => Err(format!(
                        "byte {at} of what was read is not byte {} of what was sent",
                        first + at as u64
                    )),
                }
            }
            _ => Ok(()),
        }
    }

    fn poll(&self, list: &Expression, timeout: i32) -> Result<Job, String> {
        let Expression::List(list) = list else {
            return Err(format!("expected a list of pollfds, found {list}"));
        };
        let mut polled = Vec::new();
        for item in list {
            polled.push(PollFd {
                fd: self.live(needed(item, "fd")?)?,
                events: number(needed(item, "events")?)?,
                revents: 0,
            });
        }
        let list = list.clone();
        Ok(job(
            move |posix| {
                let count = posix.poll(&mut polled, timeout)?;
                Ok((count, polled))
            },
            move |_, (count, polled)| {
                for (item, found) in list.iter().zip(&polled) {
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
                Ok(Returned::Value(count as i64))
            },
        ))
    }

    fn epoll_wait(
        &self,
        set: &Expression,
        expected: &Expression,
        limit: &Expression,
        timeout: i32,
    ) -> Result<Job, String> {
        let (set, limit) = (self.live(set)?, number::<u32>(limit)? as usize);
        let wanted = match expected {
            Expression::Ellipsis => None,
            expected => Some(epoll_event(expected)?),
        };
        let expected = expected.clone();
        Ok(job(
            move |posix| posix.epoll_wait(set, limit, timeout),
            move |_, events| {
                let found = events.first().copied().unwrap_or((0, 0));
                if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
                    return Err(format!(
                        "epoll_wait gives events={:#x} of {}, expected {:#x} in {expected}",
                        found.0, found.1, wanted.0
                    ));
                }
                Ok(Returned::Value(events.len() as i64))
            },
        ))
    }
}

/// Compares an option's value.
fn check_option(found: &[u8], expected: &Expression, length: &Expression) -> Outcome {
    if *expected == Expression::Ellipsis {
        return Ok(Returned::Value(0));
    }
    let length = match length {
        Expression::Ellipsis => found.len(),
        length => number::<u32>(length)? as usize,
    };
    let reported = found.get(..length).unwrap_or(found);
    let wanted = option_value(expected, None)?;
    // The string may go on after the end of the expected one.
    let same = match expected {
        Expression::Text(..) => reported.starts_with(&wanted),
        _ => reported == wanted,
    };
    if same {
        return Ok(Returned::Value(0));
    }
    let shown = match (expected, reported) {
        (Expression::Text(..), reported) => format!("{:?}", String::from_utf8_lossy(reported)),
        (_, [a, b, c, d]) => format!("[{}]", i32::from_ne_bytes([*a, *b, *c, *d])),
        (_, reported) => format!("{reported:?}"),
    };
    Err(format!("getsockopt gives {shown}, expected {expected}"))
}

/// `{events=EPOLLIN, fd=4}`; the data is as in the script, not a live descriptor.
fn epoll_event(expression: &Expression) -> Result<(u32, u64), String> {
    let data = ["fd", "ptr", "u32", "u64"]
        .into_iter()
        .find_map(|name| field(expression, name))
        .ok_or_else(|| format!("expected fd, ptr, u32 or u64 in {expression}"))?;
    let events = int(needed(expression, "events")?)? as u32;
    Ok((events, integer(data)? as u64))
}
