//! The worker that is an end of connections whose segments hold whole frames (ACP,
//! docs/acp.md), over the kernel's TCP. It sends frames as fast as they are accepted, or
//! receives them, and counts the received ones.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rustix::net::{SendFlags, send};
use serde::{Deserialize, Serialize};
use tidewall_acp::{FrameReader, FrameStream};
use tidewall_wire::acp::{Builder, HEADER_LEN};

use super::service::until_input_ends;

/// The job of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameJob {
    /// The side of its connections.
    pub role: FrameRole,
    /// The segment that it sends on each, without end; `None`: nothing.
    pub gives: Option<FrameSegment>,
}

/// The side of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameRole {
    /// Accepts connections at each of these addresses, and takes this long for each
    /// frame, µs.
    Members(Vec<(SocketAddr, u64)>),
    /// Opens this many connections.
    Peer(SocketAddr, u32),
}

/// A segment of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameSegment {
    /// Number of frames in it.
    pub frames: u16,
    /// Bytes of each, its header included.
    pub size: u16,
}

impl FrameSegment {
    pub(super) fn bytes(self) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::from(self.frames) * usize::from(self.size)];
        let payload = vec![7; usize::from(self.size).saturating_sub(HEADER_LEN)];
        let mut builder = Builder::new(&mut bytes);
        for _ in 0..self.frames {
            builder.data(&payload).context("too long a frame")?;
        }
        Ok(bytes)
    }
}

/// Runs until the end of the input. Answers the line `bytes` with the bytes of frames
/// received so far, for each member's address, or for all connections of a peer.
pub(super) fn run(job: &FrameJob) -> anyhow::Result<()> {
    let segment: Arc<[u8]> = match job.gives {
        Some(segment) => segment.bytes()?.into(),
        None => Arc::new([]),
    };
    let counts: Vec<Arc<AtomicU64>> = match &job.role {
        FrameRole::Members(addresses) => {
            let listen = |&(address, microseconds): &(SocketAddr, u64)| {
                let listener = TcpListener::bind(address).context(address)?;
                let (count, segment) = (Arc::new(AtomicU64::new(0)), segment.clone());
                let counted = count.clone();
                thread::spawn(move || {
                    for stream in listener.incoming().flatten() {
                        if let Ok(stream) = FrameStream::new(stream) {
                            let slow = Duration::from_micros(microseconds);
                            begin(stream, &segment, slow, &counted);
                        }
                    }
                });
                anyhow::Ok(count)
            };
            addresses.iter().map(listen).collect::<Result<_, _>>()?
        }
        FrameRole::Peer(server, connections) => {
            let count = Arc::new(AtomicU64::new(0));
            for _ in 0..*connections {
                let stream = FrameStream::connect(server, None).context(*server)?;
                begin(stream, &segment, Duration::ZERO, &count);
            }
            vec![count]
        }
    };
    println!("ready");
    until_input_ends(|line| {
        if line == "bytes" {
            let counts: Vec<u64> = counts.iter().map(|it| it.load(Ordering::Relaxed)).collect();
            println!("{}", serde_json::to_string(&counts)?);
        }
        Ok(())
    })
}

/// Sends and receives on a connection until it ends, in separate threads.
fn begin(stream: FrameStream, segment: &Arc<[u8]>, slow: Duration, count: &Arc<AtomicU64>) {
    let (mut reader, writer) = stream.split();
    if !segment.is_empty() {
        let segment = segment.clone();
        thread::spawn(move || while give(writer.get_ref(), &segment).is_ok() {});
    }
    let count = count.clone();
    thread::spawn(move || take(&mut reader, slow, &count));
}

/// Sends a segment in one call, so that nothing is joined to it.
fn give(stream: &std::net::TcpStream, segment: &[u8]) -> std::io::Result<()> {
    let mut rest = segment;
    while !rest.is_empty() {
        let sent = send(stream, rest, SendFlags::EOR | SendFlags::NOSIGNAL)?;
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(())
}

fn take(reader: &mut FrameReader<std::net::TcpStream>, slow: Duration, count: &AtomicU64) {
    // An invalid frame ends the connection: nothing more is counted.
    while let Ok(Some(payload)) = reader.receive() {
        count.fetch_add((HEADER_LEN + payload.len()) as u64, Ordering::Relaxed);
        if !slow.is_zero() {
            thread::sleep(slow);
        }
    }
}
