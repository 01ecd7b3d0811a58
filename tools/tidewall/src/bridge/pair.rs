//! Two connections that a bridge joins: one of frames, one of bytes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};
use tidewall_acp::{FrameReader, FrameStream, FrameWriter};

use super::client::Client;
use super::member::Member;
use super::queue::{Messages, QUEUE_MAX, Queue};

/// Rounds of reading and sending before another pair has its turn.
const ROUNDS: usize = 16;
/// Frames of a round.
const FRAMES: usize = 512;

#[derive(Debug)]
enum Role {
    Client(Client),
    Member(Member),
}

/// What is to be done with a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It waits for one of its sockets.
    Wait,
    /// It has more to do at once.
    Again,
    /// It is over.
    Over,
}

/// The two ends of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Frames,
    Bytes,
}

/// Which is the one that was connected from here.
const fn connected_end(role: &Role) -> End {
    match role {
        Role::Client(_) => End::Frames,
        Role::Member(_) => End::Bytes,
    }
}

/// Two nonblocking connections, one of which may not stand yet.
#[derive(Debug)]
pub struct Pair {
    reader: FrameReader<TcpStream>,
    writer: FrameWriter,
    plain: File,
    role: Role,
    /// Frames to be sent, with their headers.
    frames: Queue,
    /// Bytes to be sent.
    bytes: Queue,
    connecting: bool,
    /// Its last read did not say that there is nothing.
    readable: [bool; 2],
    /// It has said all that it will.
    ended: [bool; 2],
    shut: bool,
    /// Why no frame comes any more, once what came before is sent.
    failed: Option<String>,
}

impl Pair {
    /// Of a client (whose frames' connection is being made), or a member (whose
    /// server's is).
    pub fn new(
        frames: TcpStream,
        plain: File,
        client: bool,
        messages: Messages,
    ) -> io::Result<Self> {
        let (reader, writer) = FrameStream::new(frames)?.split();
        let role = if client {
            Role::Client(Client::new(messages, 0))
        } else {
            Role::Member(Member::new(messages, writer.frame_max()?))
        };
        Ok(Self {
            reader,
            writer,
            plain,
            role,
            frames: Queue::default(),
            bytes: Queue::default(),
            connecting: true,
            readable: [true; 2],
            ended: [false; 2],
            shut: false,
            failed: None,
        })
    }

    /// The socket of an end.
    pub fn socket(&self, end: End) -> BorrowedFd<'_> {
        match end {
            End::Frames => self.reader.get_ref().as_fd(),
            End::Bytes => self.plain.as_fd(),
        }
    }

    /// The kernel says that something happened there: that it can be read, written.
    pub fn event(&mut self, end: End, readable: bool, writable: bool) -> Result<(), String> {
        if readable {
            self.readable[end as usize] = true;
        }
        if self.connecting && writable && end == connected_end(&self.role) {
            match sockopt::socket_error(self.socket(end)) {
                Ok(Ok(())) => {}
                Ok(Err(error)) | Err(error) => {
                    return Err(format!("connecting: {}", io::Error::from(error)));
                }
            }
            // A socket that was never asked to connect is writable, too.
            if rustix::net::getpeername(self.socket(end)).is_ok() {
                self.connecting = false;
                if let Role::Client(client) = &mut self.role {
                    client.set_frame_max(self.writer.frame_max().map_err(said("segments"))?);
                }
            }
        }
        Ok(())
    }

    /// Reads and sends what there is, within bounds.
    pub fn turn(&mut self) -> Result<Next, String> {
        if self.connecting {
            return Ok(Next::Wait);
        }
        for _ in 0..ROUNDS {
            // What limits kept back may go on now, and is sent at once.
            if let Role::Client(client) = &mut self.role {
                client.resume(&mut self.frames, &mut self.bytes)?;
            }
            let mut moved = self.send()?;
            moved |= self.receive_frames()?;
            moved |= self.read_bytes()?;
            if self.is_over()? {
                return Ok(Next::Over);
            }
            if !moved {
                return Ok(Next::Wait);
            }
        }
        Ok(Next::Again)
    }

    /// Sends what waits; true if any of it went.
    fn send(&mut self) -> Result<bool, String> {
        let mut moved = false;
        while !self.frames.is_empty() {
            match self.writer.send_frames(self.frames.as_slice()) {
                Ok(length) => self.frames.consume(length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(said("sending frames")(error)),
            }
            moved = true;
        }
        match self.writer.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                return Err(said("sending frames")(error));
            }
            _ => {}
        }
        while !self.bytes.is_empty() {
            match self.plain.write(self.bytes.as_slice()) {
                Ok(length) => self.bytes.consume(length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(said("sending")(error)),
            }
            moved = true;
        }
        Ok(moved)
    }

    fn receive_frames(&mut self) -> Result<bool, String> {
        let mut moved = false;
        for _ in 0..FRAMES {
            let wanted = match &self.role {
                Role::Client(_) => true,
                Role::Member(member) => member.wants_frames(),
            };
            let end = End::Frames as usize;
            if !wanted || !self.readable[end] || self.ended[end] || self.bytes.len() >= QUEUE_MAX {
                break;
            }
            match self.reader.receive() {
                Ok(Some(payload)) => match &mut self.role {
                    Role::Client(client) => client.frame(payload, &mut self.bytes)?,
                    Role::Member(member) => member.frame(payload, &mut self.bytes)?,
                },
                Ok(None) => self.ended[end] = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable[end] = false;
                    break;
                }
                Err(error) => {
                    self.ended[end] = true;
                    self.failed = Some(said("receiving frames")(error));
                }
            }
            moved = true;
        }
        Ok(moved)
    }

    fn read_bytes(&mut self) -> Result<bool, String> {
        let end = End::Bytes as usize;
        let wanted = match &self.role {
            Role::Client(client) => client.wants_bytes(),
            Role::Member(_) => true,
        };
        if !wanted || !self.readable[end] || self.ended[end] || self.frames.len() >= QUEUE_MAX {
            return Ok(false);
        }
        let mut buffer = [0; 64 << 10];
        let read = match self.plain.read(&mut buffer) {
            Ok(length) => buffer.get(..length).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable[end] = false;
                return Ok(false);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(said("receiving")(error)),
        };
        if read.is_empty() {
            self.ended[end] = true;
            if let Role::Client(client) = &mut self.role {
                client.end();
            }
            return Ok(true);
        }
        match &mut self.role {
            Role::Client(client) => client.bytes(read, &mut self.frames, &mut self.bytes)?,
            Role::Member(member) => member.bytes(read, &mut self.frames)?,
        }
        Ok(true)
    }

    /// Whether all that was asked has been answered and both sides know.
    fn is_over(&mut self) -> Result<bool, String> {
        let [frames_ended, bytes_ended] = self.ended;
        let sent = self.frames.is_empty() && !self.writer.has_rest();
        if self.bytes.is_empty()
            && let Some(what) = self.failed.take()
        {
            return Err(what);
        }
        match &self.role {
            Role::Client(client) => {
                if client.is_done() {
                    return Ok(self.bytes.is_empty());
                }
                if frames_ended && self.bytes.is_empty() {
                    return Err("members ended the connection".to_owned());
                }
                Ok(false)
            }
            Role::Member(member) => {
                if bytes_ended {
                    if frames_ended && member.is_idle() {
                        return Ok(sent);
                    }
                    return Err("the server ended the connection".to_owned());
                }
                if frames_ended && self.bytes.is_empty() && !self.shut {
                    self.shut = true;
                    shutdown(&self.plain, Shutdown::Write)
                        .map_err(|error| format!("ending: {error}"))?;
                }
                Ok(false)
            }
        }
    }

    /// Has the switch learn, when this is dropped, that it did not end in order: a FIN
    /// of a member would say that its replies are whole.
    pub fn reset(&self) {
        // One that is reset already needs nothing.
        let _ = sockopt::set_socket_linger(self.reader.get_ref(), Some(Duration::ZERO));
    }
}

fn said(what: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("{what}: {error}")
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    use super::super::queue::Header;
    use super::*;

    /// Two ends of a connection over loopback.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        far.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        near.set_nonblocking(true).unwrap();
        (near, far)
    }

    /// What was kept back goes out in the turn in which replies have made room for it:
    /// no event would bring another turn.
    #[test]
    fn what_limits_kept_back_is_sent_when_replies_come() {
        const COMMANDS: usize = 1500;
        let (near, switch) = connection();
        let (plain, mut program) = connection();
        let plain = File::from(OwnedFd::from(plain));
        let mut pair = Pair::new(near, plain, true, Messages::Resp).unwrap();
        pair.event(End::Frames, false, true).unwrap();
        program.write_all(&b"GET a\r\n".repeat(COMMANDS)).unwrap();
        while pair.turn().unwrap() == Next::Again {}
        let (mut reader, mut writer) = FrameStream::new(switch).unwrap().split();
        let asked = |reader: &mut FrameReader<TcpStream>| {
            let payload = reader.receive().unwrap().unwrap();
            Header::parse(payload).unwrap().0.id
        };
        let reply = |id| {
            [
                &Header {
                    id,
                    last: true,
                    route: 0,
                }
                .bytes()[..],
                b"$-1\r\n",
            ]
            .concat()
        };
        // As many as may be unanswered.
        let first: Vec<_> = (0..1024).map(|_| asked(&mut reader)).collect();
        assert_eq!(first, (0..1024).collect::<Vec<_>>());
        writer.send(&reply(0)).unwrap();
        pair.event(End::Frames, true, false).unwrap();
        while pair.turn().unwrap() == Next::Again {}
        assert_eq!(asked(&mut reader), 1024);
        let mut answer = [0; 5];
        program.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"$-1\r\n");
    }
}
