//! The worker that is an end of a storage service: requests for blocks and metadata, over
//! connections of frames (ACP) on the kernel's TCP, to a coordinator and nodes behind an
//! intermediary. Nothing is stored: only the path is measured.
//!
//! A request begins with the fields that the switch's module reads
//! (`tidewall_switch::modules`): operation, seven bytes for the client's use, the block's
//! number. Those seven are: 1 in the last frame of a request or reply, two bytes of zero,
//! and the request's number, which the reply repeats.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::Context;
use hdrhistogram::Histogram;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tidewall_acp::{FrameReader, FrameStream, FrameWriter};

use super::service::until_input_ends;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 8 << 10;
/// Bytes of a request's or reply's header.
const HEADER: usize = 16;
/// Bytes of a request or reply about metadata, about the size of NFS's.
const METADATA: usize = 128;
/// The histogram's longest time, ns.
const LONGEST: u64 = 60_000_000_000;

/// The job of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageJob {
    /// Its side.
    pub role: StorageRole,
    /// Most bytes of a block per frame.
    pub piece: u16,
}

/// The side of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StorageRole {
    /// Answers requests at each of these addresses.
    Nodes(Vec<SocketAddr>),
    /// Sends requests over this many connections.
    Client {
        /// Address of the service.
        server: SocketAddr,
        /// Connections.
        connections: u32,
        /// Outstanding requests of each.
        outstanding: u16,
        /// The mix of its requests.
        mix: Mix,
    },
}

/// The mix of a client's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// Seven of ten requests read a block, one writes one, and two are about metadata:
    /// files that are mostly read, like a web server's.
    Web,
    /// Only metadata.
    Metadata,
}

/// The results of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Responses {
    /// Requests completely answered so far.
    pub count: u64,
    /// Median time of those since the last question, µs.
    pub median_us: f64,
}

/// Operations, as defined by the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Metadata = 0,
    Read = 1,
    Write = 2,
}

impl Operation {
    fn of(byte: u8) -> Self {
        match byte {
            1 => Operation::Read,
            2 => Operation::Write,
            _ => Operation::Metadata,
        }
    }

    /// Returns the bytes that follow the headers of a request.
    const fn asks(self) -> usize {
        match self {
            Operation::Metadata => METADATA - HEADER,
            Operation::Read => 0,
            Operation::Write => BLOCK,
        }
    }

    /// Returns the bytes that follow the headers of a reply.
    const fn replies(self) -> usize {
        match self {
            Operation::Metadata => METADATA - HEADER,
            Operation::Read => BLOCK,
            Operation::Write => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    operation: Operation,
    last: bool,
    number: u32,
    block: u64,
}

impl Head {
    fn of(payload: &[u8]) -> Option<Self> {
        let header = payload.first_chunk::<HEADER>()?;
        let [operation, last, _, _, a, b, c, d, block @ ..] = *header;
        Some(Head {
            operation: Operation::of(operation),
            last: last == 1,
            number: u32::from_be_bytes([a, b, c, d]),
            block: u64::from_be_bytes(block),
        })
    }

    fn write(self, place: &mut [u8]) {
        if let Some(place) = place.first_chunk_mut::<HEADER>() {
            let mut header = [0; HEADER];
            header[0] = self.operation as u8;
            header[1] = self.last.into();
            header[4..8].copy_from_slice(&self.number.to_be_bytes());
            header[8..].copy_from_slice(&self.block.to_be_bytes());
            *place = header;
        }
    }

    /// Sends the header and this many bytes, in as many frames as they need.
    fn send(
        self,
        writer: &mut FrameWriter,
        buffer: &mut [u8],
        mut bytes: usize,
    ) -> std::io::Result<()> {
        let mut piece = buffer.len() - HEADER;
        loop {
            let here = bytes.min(piece);
            let last = here == bytes;
            Head { last, ..self }.write(buffer);
            match writer.send(buffer.get(..HEADER + here).unwrap_or_default()) {
                // A kernel sends no segment of more than half of the largest window that
                // it was offered. That window is small at first if several members share
                // one.
                Err(error) if error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => {
                    let fits = writer.frame_max()?.saturating_sub(HEADER);
                    if fits == 0 || fits >= here {
                        return Err(error);
                    }
                    piece = fits;
                }
                Err(error) => return Err(error),
                Ok(()) if last => return Ok(()),
                Ok(()) => bytes -= here,
            }
        }
    }
}

/// Runs until the end of the input; a client answers the line `responses` with
/// [`Responses`].
pub(super) fn run(job: &StorageJob) -> anyhow::Result<()> {
    let buffer = vec![7; HEADER + usize::from(job.piece.max(1))];
    // A histogram of nanoseconds to three figures.
    let times = Arc::new(Mutex::new(Histogram::<u64>::new_with_max(LONGEST, 3)?));
    match &job.role {
        StorageRole::Nodes(addresses) => {
            for &address in addresses {
                let listener = TcpListener::bind(address).context(address)?;
                let buffer = buffer.clone();
                thread::spawn(move || {
                    for stream in listener.incoming().flatten() {
                        let buffer = buffer.clone();
                        thread::spawn(move || answer(stream, buffer));
                    }
                });
            }
        }
        StorageRole::Client {
            server,
            connections,
            outstanding,
            mix,
        } => {
            for number in 0..u64::from(*connections) {
                let (reader, writer) = FrameStream::connect(server, None).context(*server)?.split();
                let client = Client {
                    writer,
                    buffer: buffer.clone(),
                    began: vec![Instant::now(); usize::from(*outstanding)],
                    mix: *mix,
                    random: number + 1,
                    times: times.clone(),
                };
                thread::spawn(move || client.run(reader));
            }
        }
    }
    println!("ready");
    let mut count = 0;
    until_input_ends(|line| {
        if line == "responses" {
            let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
            count += times.len();
            let responses = Responses {
                count,
                median_us: times.value_at_quantile(0.5) as f64 / 1e3,
            };
            times.reset();
            drop(times);
            println!("{}", serde_json::to_string(&responses)?);
        }
        Ok(())
    })
}

/// Answers complete requests until the connection ends.
fn answer(stream: TcpStream, mut buffer: Vec<u8>) -> std::io::Result<()> {
    let (mut reader, mut writer) = FrameStream::new(stream)?.split();
    while let Some(payload) = reader.receive()? {
        if let Some(head) = Head::of(payload).filter(|head| head.last) {
            head.send(&mut writer, &mut buffer, head.operation.replies())?;
        }
    }
    Ok(())
}

struct Client {
    writer: FrameWriter,
    buffer: Vec<u8>,
    /// When each outstanding request was sent, by its number.
    began: Vec<Instant>,
    mix: Mix,
    random: u64,
    times: Arc<Mutex<Histogram<u64>>>,
}

impl Client {
    /// Keeps its requests outstanding until the connection ends.
    fn run(mut self, mut reader: FrameReader<TcpStream>) -> std::io::Result<()> {
        for number in 0..self.began.len() {
            self.ask(number as u32)?;
        }
        while let Some(payload) = reader.receive()? {
            let Some(head) = Head::of(payload).filter(|head| head.last) else {
                continue;
            };
            let Some(began) = self.began.get(head.number as usize) else {
                continue;
            };
            let time = began.elapsed().as_nanos() as u64;
            let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
            times.saturating_record(time);
            drop(times);
            self.ask(head.number)?;
        }
        Ok(())
    }

    fn ask(&mut self, number: u32) -> std::io::Result<()> {
        let (operation, block) = self.choose();
        if let Some(began) = self.began.get_mut(number as usize) {
            *began = Instant::now();
        }
        let head = Head {
            operation,
            last: false,
            number,
            block,
        };
        head.send(&mut self.writer, &mut self.buffer, operation.asks())
    }

    /// Returns the next operation and its block (xorshift64*: the same sequence for each
    /// connection, each time).
    fn choose(&mut self) -> (Operation, u64) {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let number = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        let operation = match (self.mix, number % 10) {
            (Mix::Metadata, _) | (Mix::Web, 8..) => Operation::Metadata,
            (Mix::Web, 7) => Operation::Write,
            (Mix::Web, _) => Operation::Read,
        };
        (operation, number / 10)
    }
}

#[cfg(test)]
mod tests {
    use tidewall_switch::modules::block_of;

    use super::*;

    #[test]
    fn heads_are_what_the_module_reads() {
        let mut payload = [0; HEADER];
        let head = Head {
            operation: Operation::Write,
            last: true,
            number: 7,
            block: 1 << 40,
        };
        head.write(&mut payload);
        assert_eq!(Head::of(&payload), Some(head));
        assert_eq!(block_of(&payload), Some(1 << 40));
        let operation = Operation::Metadata;
        Head { operation, ..head }.write(&mut payload);
        assert_eq!(block_of(&payload), None);
        assert_eq!(Head::of(&payload[1..]), None);
    }

    #[test]
    fn blocks_come_in_as_many_frames_as_they_take() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let piece = 3000;
        let node = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            answer(stream, vec![7; HEADER + piece])
        });
        let (mut reader, mut writer) = FrameStream::connect(address, None).unwrap().split();
        let mut buffer = vec![7; HEADER + piece];
        for (operation, sizes) in [
            (Operation::Read, vec![piece, piece, BLOCK - 2 * piece]),
            (Operation::Write, vec![0]),
            (Operation::Metadata, vec![METADATA - HEADER]),
        ] {
            let head = Head {
                operation,
                last: false,
                number: 1,
                block: 5,
            };
            head.send(&mut writer, &mut buffer, operation.asks())
                .unwrap();
            let last = sizes.len() - 1;
            for (place, size) in sizes.into_iter().enumerate() {
                let payload = reader.receive().unwrap().unwrap();
                assert_eq!(payload.len(), HEADER + size);
                let last = place == last;
                assert_eq!(Head::of(payload), Some(Head { last, ..head }));
            }
        }
        writer
            .get_ref()
            .shutdown(std::net::Shutdown::Write)
            .unwrap();
        node.join().unwrap().unwrap();
    }
}
