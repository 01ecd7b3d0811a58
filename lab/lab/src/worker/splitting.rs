//! Proxies for comparison with the switch. They terminate each connection, open one to
//! every member, parse frames, and forward each whole one. A peer's frames go to the
//! members in turn or by their blocks. One thread; writes block, as in the paper's proxy.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tidewall_switch::modules::block_of;
use tidewall_wire::acp::{HEADER_LEN, Header};

use super::service::until_input_ends;

/// Bytes read at once, and so the most kept for one direction of a connection.
const BUFFER: usize = 64 << 10;

/// A proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitJob {
    /// Address to which peers connect.
    pub listen: SocketAddr,
    /// Destinations of their frames.
    pub members: Vec<SocketAddr>,
    /// How it waits.
    pub waiting: SplitWaiting,
    /// Requests for blocks go to the nodes that hold them, all others to the first
    /// member, as with the switch's module for block storage.
    pub by_block: bool,
}

/// How a proxy waits for its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitWaiting {
    /// select(2): the paper's.
    Select,
    /// epoll(7).
    Epoll,
}

/// Runs until the end of the input.
pub(super) fn run(job: &SplitJob) -> anyhow::Result<()> {
    let listener = TcpListener::bind(job.listen).context(job.listen)?;
    let mut proxy = Proxy {
        listener,
        members: job.members.clone(),
        by_block: job.by_block,
        ends: Vec::new(),
        buffer: vec![0; BUFFER],
    };
    let waiting = job.waiting;
    println!("ready");
    std::thread::spawn(move || {
        let ended = match waiting {
            SplitWaiting::Select => proxy.select(),
            SplitWaiting::Epoll => proxy.epoll(),
        };
        if let Err(error) = ended {
            eprintln!("{error}");
        }
    });
    until_input_ends(|_| Ok(()))
}

struct Proxy {
    listener: TcpListener,
    members: Vec<SocketAddr>,
    by_block: bool,
    /// All connections; `None` if one has ended.
    ends: Vec<Option<End>>,
    buffer: Vec<u8>,
}

struct End {
    stream: TcpStream,
    /// Indices of the destinations of its frames, in turn.
    to: Vec<usize>,
    next: usize,
    /// The beginning of a frame.
    partial: Vec<u8>,
}

impl Proxy {
    fn select(&mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        loop {
            let streams = self.ends.iter().flatten().map(|end| end.stream.as_raw_fd());
            let all: Vec<i32> = streams.chain([self.listener.as_raw_fd()]).collect();
            let highest = all.iter().copied().max().unwrap_or(0);
            let mut set = vec![0u64; highest as usize / 64 + 1];
            for &number in &all {
                if let Some(word) = set.get_mut(number as usize / 64) {
                    *word |= 1 << (number % 64);
                }
            }
            tidewall_sys::select(highest + 1, &mut set, &mut [], &mut [], None)?;
            let is_set = |number: i32| {
                let word = set.get(number as usize / 64).copied().unwrap_or(0);
                word >> (number % 64) & 1 == 1
            };
            ready.clear();
            for (place, end) in self.ends.iter().enumerate() {
                if end.as_ref().is_some_and(|it| is_set(it.stream.as_raw_fd())) {
                    ready.push(place);
                }
            }
            for &place in &ready {
                self.forward(place);
            }
            if is_set(self.listener.as_raw_fd()) {
                self.accept()?;
            }
        }
    }

    fn epoll(&mut self) -> io::Result<()> {
        use rustix::event::epoll;
        const LISTENER: u64 = u64::MAX;
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let input = epoll::EventFlags::IN;
        epoll::add(
            &set,
            &self.listener,
            epoll::EventData::new_u64(LISTENER),
            input,
        )?;
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            match epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.map(drop)?,
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => {
                        for place in self.accept()? {
                            if let Some(Some(end)) = self.ends.get(place) {
                                let data = epoll::EventData::new_u64(place as u64);
                                epoll::add(&set, &end.stream, data, input)?;
                            }
                        }
                    }
                    place => self.forward(place as usize),
                }
            }
        }
    }

    /// Accepts a connection and opens those to the members; returns the indices of all.
    fn accept(&mut self) -> io::Result<std::ops::Range<usize>> {
        let (peer, _) = self.listener.accept()?;
        let first = self.ends.len();
        let members = first + 1..first + 1 + self.members.len();
        let mut add = |stream: TcpStream, to| -> io::Result<()> {
            stream.set_nodelay(true)?;
            self.ends.push(Some(End {
                stream,
                to,
                next: 0,
                partial: Vec::new(),
            }));
            Ok(())
        };
        add(peer, members.collect())?;
        for member in &self.members {
            add(TcpStream::connect(member)?, vec![first])?;
        }
        Ok(first..self.ends.len())
    }

    /// Reads once and forwards whole frames; closes ends that have ended.
    fn forward(&mut self, place: usize) {
        if self.try_forward(place).is_err()
            && let Some(end) = self.ends.get_mut(place)
        {
            *end = None;
        }
    }

    fn try_forward(&mut self, place: usize) -> io::Result<()> {
        let closed = || io::Error::from(io::ErrorKind::ConnectionReset);
        let mut end = self
            .ends
            .get_mut(place)
            .and_then(Option::take)
            .ok_or_else(closed)?;
        let kept = end.partial.len();
        if let Some(room) = self.buffer.get_mut(..kept) {
            room.copy_from_slice(&end.partial);
        }
        let read = end
            .stream
            .read(self.buffer.get_mut(kept..).unwrap_or_default())?;
        if read == 0 {
            return Err(closed());
        }
        let bytes = self.buffer.get(..kept + read).unwrap_or_default();
        // All frames for one end leave in one call.
        let (mut begun, mut done) = (0, 0);
        while let Some(size) = whole(bytes.get(done..).unwrap_or_default())? {
            done += size;
            if end.to.len() > 1 {
                let frame = bytes.get(begun..done).unwrap_or_default();
                if self.by_block {
                    let nodes = end.to.len() as u64 - 1;
                    let block = block_of(frame.get(HEADER_LEN..).unwrap_or_default());
                    end.next = block.map_or(0, |block| 1 + (block % nodes) as usize);
                }
                write(&self.ends, &end, Some(frame))?;
                end.next = (end.next + 1) % end.to.len();
                begun = done;
            }
        }
        if begun < done {
            write(&self.ends, &end, bytes.get(begun..done))?;
        }
        end.partial.clear();
        end.partial.extend(bytes.iter().skip(done));
        if let Some(place) = self.ends.get_mut(place) {
            *place = Some(end);
        }
        Ok(())
    }
}

/// Returns the bytes of the frame at the beginning, if it is complete.
fn whole(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    let header = Header::parse(*header).map_err(io::Error::other)?;
    Ok(Some(header.size()).filter(|&size| size <= bytes.len()))
}

fn write(ends: &[Option<End>], from: &End, bytes: Option<&[u8]>) -> io::Result<()> {
    let to = from
        .to
        .get(from.next)
        .and_then(|&place| ends.get(place)?.as_ref());
    let closed = || io::Error::from(io::ErrorKind::NotConnected);
    (&to.ok_or_else(closed)?.stream).write_all(bytes.unwrap_or_default())
}
