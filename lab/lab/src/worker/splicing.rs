//! A proxy that examines no byte. It terminates each connection and opens one to a
//! member. splice(2) moves the bytes of either to the other through a pipe, without a
//! copy. One thread, edge-triggered epoll. It ignores frames, so a connection belongs to
//! one member.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice as splice_descriptors,
};
use serde::{Deserialize, Serialize};

use super::service::until_input_ends;

/// Most bytes kept for one direction of a connection. A pipe's slot holds a page or a
/// part of one, so segments of half a page fill the default 64 KiB with 32 KiB.
const PIPE: usize = 256 << 10;
/// Moves per turn of a connection.
const ROUNDS: usize = 16;
/// The event of the listener; those of connections count from 0.
const LISTENER: u64 = u64::MAX;

/// A proxy of whole connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpliceJob {
    /// Address to which peers connect.
    pub listen: SocketAddr,
    /// Members, which receive connections in turn.
    pub members: Vec<SocketAddr>,
}

/// Runs until the end of the input.
pub(super) fn run(job: &SpliceJob) -> anyhow::Result<()> {
    let mut proxy = Proxy {
        listener: TcpListener::bind(job.listen).context(job.listen)?,
        members: job.members.clone(),
        accepted: 0,
        pairs: Vec::new(),
    };
    println!("ready");
    std::thread::spawn(move || {
        if let Err(error) = proxy.run() {
            eprintln!("{error}");
        }
    });
    until_input_ends(|_| Ok(()))
}

struct Proxy {
    listener: TcpListener,
    members: Vec<SocketAddr>,
    accepted: usize,
    /// All connections; `None` if one has ended.
    pairs: Vec<Option<Pair>>,
}

/// A peer's connection, and the one to its member.
struct Pair {
    ways: [Way; 2],
    /// It may move something before the kernel reports anything new.
    again: bool,
}

/// One direction.
struct Way {
    from: Arc<TcpStream>,
    to: Arc<TcpStream>,
    /// Its read end and its write end.
    pipe: [OwnedFd; 2],
    /// Bytes in it.
    held: usize,
    /// Its sender sends nothing more.
    ended: bool,
    /// Its receiver knows that.
    shut: bool,
}

impl Proxy {
    fn run(&mut self) -> io::Result<()> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&set, &self.listener, data, epoll::EventFlags::IN)?;
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let more = self.pairs.iter().flatten().any(|pair| pair.again);
            let at_once = Timespec::try_from(Duration::ZERO).ok().filter(|_| more);
            match epoll::wait(&set, spare_capacity(&mut events), at_once.as_ref()) {
                Err(Errno::INTR) => continue,
                other => other.map(drop)?,
            }
            let mut accepts = false;
            for event in &events {
                let place = event.data.u64();
                accepts |= place == LISTENER;
                if let Some(Some(pair)) = self.pairs.get_mut(place as usize) {
                    pair.again = true;
                }
            }
            if accepts {
                self.accept(&set)?;
            }
            for pair in &mut self.pairs {
                let ready = pair.as_mut().filter(|pair| pair.again);
                // An error ends the connection, as its end does.
                if ready.is_some_and(|pair| !pair.turn().unwrap_or(false)) {
                    *pair = None;
                }
            }
        }
    }

    fn accept(&mut self, set: &OwnedFd) -> io::Result<()> {
        let (peer, _) = self.listener.accept()?;
        let turn = self.accepted % self.members.len().max(1);
        let Some(member) = self.members.get(turn) else {
            return Ok(());
        };
        self.accepted = turn + 1;
        let [peer, member] = [peer, TcpStream::connect(member)?].map(Arc::new);
        let data = epoll::EventData::new_u64(self.pairs.len() as u64);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        for end in [&peer, &member] {
            end.set_nodelay(true)?;
            end.set_nonblocking(true)?;
            epoll::add(set, end, data, flags)?;
        }
        let ways = [
            Way::new(peer.clone(), member.clone())?,
            Way::new(member, peer)?,
        ];
        self.pairs.push(Some(Pair { ways, again: true }));
        Ok(())
    }
}

impl Pair {
    /// Moves as much as possible, within bounds; returns false if both directions have
    /// ended.
    fn turn(&mut self) -> io::Result<bool> {
        self.again = true;
        for _ in 0..ROUNDS {
            let [one, other] = &mut self.ways;
            if !(one.advance()? | other.advance()?) {
                self.again = false;
                break;
            }
        }
        Ok(!self.ways.iter().all(|way| way.shut))
    }
}

impl Way {
    fn new(from: Arc<TcpStream>, to: Arc<TcpStream>) -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        fcntl_setpipe_size(&write, PIPE)?;
        Ok(Way {
            from,
            to,
            pipe: [read, write],
            held: 0,
            ended: false,
            shut: false,
        })
    }

    /// Moves bytes into the pipe and out of it once; returns true on progress. While the
    /// receiver reads nothing, the pipe fills and nothing more is read: the sender's
    /// window closes.
    fn advance(&mut self) -> io::Result<bool> {
        let mut moved = false;
        let [read, write] = &self.pipe;
        if !self.ended
            && let Some(length) = splice(&*self.from, write, PIPE)?
        {
            self.held += length;
            self.ended = length == 0;
            moved = true;
        }
        if self.held > 0
            && let Some(length) = splice(read, &*self.to, self.held)?
        {
            self.held = self.held.saturating_sub(length);
            moved = true;
        }
        if self.ended && self.held == 0 && !self.shut {
            shutdown(&*self.to, Shutdown::Write)?;
            self.shut = true;
        }
        Ok(moved)
    }
}

/// Moves bytes; `None`: nothing to read, or no room.
fn splice(
    from: impl rustix::fd::AsFd,
    to: impl rustix::fd::AsFd,
    most: usize,
) -> io::Result<Option<usize>> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    match splice_descriptors(from, None, to, None, most, flags) {
        Ok(length) => Ok(Some(length)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// More than the proxy's pipes and the sockets' buffers hold.
    const BYTES: usize = 64 << 20;

    fn pattern(at: usize) -> u8 {
        (at % 251) as u8
    }

    /// Returns a proxy of one member, and the member's listener.
    fn proxy() -> (SocketAddr, TcpListener) {
        let [listener, member] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let mut proxy = Proxy {
            listener,
            members: vec![member.local_addr().unwrap()],
            accepted: 0,
            pairs: Vec::new(),
        };
        std::thread::spawn(move || proxy.run());
        (address, member)
    }

    #[test]
    fn every_byte_passes_behind_a_slow_reader_and_after_a_half_close() {
        let (address, member) = proxy();
        let mut peer = TcpStream::connect(address).unwrap();
        let (mut end, _) = member.accept().unwrap();
        let mut sending = peer.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            let bytes: Vec<u8> = (0..BYTES).map(pattern).collect();
            sending.write_all(&bytes).unwrap();
            sending.shutdown(std::net::Shutdown::Write).unwrap();
        });
        // Nothing is read yet: the sender cannot send everything.
        std::thread::sleep(Duration::from_millis(200));
        assert!(!sender.is_finished());
        let mut got = Vec::new();
        end.read_to_end(&mut got).unwrap();
        sender.join().unwrap();
        assert!(got.len() == BYTES && got.iter().enumerate().all(|(at, &it)| it == pattern(at)));
        // The other direction is still open.
        end.write_all(b"answer").unwrap();
        drop(end);
        let mut answer = String::new();
        peer.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
    }

    #[test]
    fn a_connection_that_breaks_ends_both_and_no_other() {
        let (address, member) = proxy();
        let [mut peer, mut other] = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        let [(end, _), (mut its_end, _)] = [(); 2].map(|()| member.accept().unwrap());
        peer.write_all(b"unread").unwrap();
        // Closed with unread bytes: RST.
        assert_eq!(end.peek(&mut [0]).unwrap(), 1);
        drop(end);
        let timeout = Some(Duration::from_secs(10));
        peer.set_read_timeout(timeout).unwrap();
        let ended = peer.read(&mut [0]).map_err(|error| error.kind());
        assert!(
            matches!(ended, Ok(0) | Err(io::ErrorKind::ConnectionReset)),
            "{ended:?}"
        );
        other.write_all(b"on").unwrap();
        let mut got = [0; 2];
        its_end.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"on");
    }
}
