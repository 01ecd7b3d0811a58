//! Workers that move bytes over one TCP connection as fast as they can.
//!
//! The application is the same on both stacks: a loop of reads or writes of
//! [`CHUNK`] bytes. The client says in one byte which way the bytes go; who
//! receives counts them, from a little after the first until the sender closes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tidewall_socket::{Stack, TapConfig};

use super::service::until_input_ends;

/// Bytes of one read or write.
pub(crate) const CHUNK: usize = 256 << 10;
/// Time before counting begins: slow start is over then.
const WARM_UP: Duration = Duration::from_millis(200);
/// An end that is silent for so long is gone.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// The client; the server counts.
    ToServer,
    /// The server; the client counts.
    ToClient,
}

impl Direction {
    fn byte(self) -> u8 {
        match self {
            Direction::ToServer => b'>',
            Direction::ToClient => b'<',
        }
    }

    fn of(byte: u8) -> anyhow::Result<Self> {
        Ok(match byte {
            b'>' => Direction::ToServer,
            b'<' => Direction::ToClient,
            _ => bail!("{byte} is no direction"),
        })
    }
}

/// One end of a bulk transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BulkJob {
    /// Serves on a kernel socket until the standard input ends.
    LinuxServer {
        /// Where to listen.
        address: SocketAddr,
    },
    /// Serves on a stack at the far end of a tap until the standard input ends.
    TapServer {
        /// Name of the interface to make.
        interface: String,
        /// Address of the stack.
        address: Ipv4Addr,
        /// Port to listen on.
        port: u16,
    },
    /// Makes one transfer by a kernel socket and prints a [`BulkOutcome`].
    Client {
        /// The server.
        server: SocketAddr,
        /// Who sends.
        direction: Direction,
        /// How long to count.
        duration: Duration,
    },
}

/// What was received in the time that was counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BulkOutcome {
    /// Bytes.
    pub bytes: u64,
    /// Time.
    pub nanoseconds: u64,
}

impl BulkOutcome {
    /// Gigabits of payload a second.
    pub fn gigabits(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.nanoseconds.max(1) as f64
    }

    fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.bytes.to_be_bytes());
        bytes[8..].copy_from_slice(&self.nanoseconds.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; 16]) -> Self {
        let value = u128::from_be_bytes(bytes);
        BulkOutcome {
            bytes: (value >> 64) as u64,
            nanoseconds: value as u64,
        }
    }
}

pub(super) fn run(job: &BulkJob) -> anyhow::Result<()> {
    match job {
        BulkJob::LinuxServer { address } => {
            let listener = std::net::TcpListener::bind(address)?;
            println!("ready");
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let _ = stream.set_read_timeout(Some(TIMEOUT));
                    report(serve(&stream, || {
                        stream.shutdown(std::net::Shutdown::Write)
                    }));
                }
            });
            until_input_ends(|_| Ok(()))
        }
        BulkJob::TapServer {
            interface,
            address,
            port,
        } => {
            let stack = Stack::tap(TapConfig {
                name: interface.clone(),
                addresses: vec![(*address).into()],
                ..TapConfig::default()
            })?;
            let address = SocketAddr::from((*address, *port));
            let listener = tidewall_socket::TcpListener::bind(&stack, address)?;
            println!("ready");
            std::thread::spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    let _ = stream.set_read_timeout(Some(TIMEOUT));
                    report(serve(&stream, || {
                        stream.shutdown(std::net::Shutdown::Write)
                    }));
                }
            });
            until_input_ends(|_| Ok(()))
        }
        BulkJob::Client {
            server,
            direction,
            duration,
        } => {
            let stream = std::net::TcpStream::connect_timeout(server, TIMEOUT)
                .with_context(|| format!("cannot connect to {server}"))?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            let mut request = [0; 9];
            request[0] = direction.byte();
            let milliseconds = duration.as_millis() as u64;
            request[1..].copy_from_slice(&milliseconds.to_be_bytes());
            (&stream).write_all(&request)?;
            let outcome = match direction {
                Direction::ToServer => {
                    send(&stream, *duration)?;
                    stream.shutdown(std::net::Shutdown::Write)?;
                    let mut bytes = [0; 16];
                    (&stream).read_exact(&mut bytes)?;
                    BulkOutcome::from_bytes(bytes)
                }
                Direction::ToClient => receive(&stream)?,
            };
            println!("{}", serde_json::to_string(&outcome)?);
            Ok(())
        }
    }
}

fn report(result: anyhow::Result<()>) {
    if let Err(error) = result {
        eprintln!("a transfer failed: {error:#}");
    }
}

/// What the server does with a connection, on either stack.
fn serve<S>(stream: &S, close: impl FnOnce() -> std::io::Result<()>) -> anyhow::Result<()>
where
    for<'a> &'a S: Read + Write,
{
    let mut request = [0; 9];
    let mut connection = stream;
    connection.read_exact(&mut request)?;
    let [direction, milliseconds @ ..] = request;
    let duration = Duration::from_millis(u64::from_be_bytes(milliseconds));
    match Direction::of(direction)? {
        Direction::ToServer => {
            let outcome = receive(stream)?;
            connection.write_all(&outcome.to_bytes())?;
            close()?;
        }
        Direction::ToClient => {
            send(stream, duration.min(TIMEOUT))?;
            close()?;
        }
    }
    // The end of the client's side: nothing unread is left behind.
    while connection.read(&mut request)? > 0 {}
    Ok(())
}

/// Sends for `duration` after the warm-up.
fn send<S>(mut stream: &S, duration: Duration) -> anyhow::Result<()>
where
    for<'a> &'a S: Write,
{
    let chunk = vec![0x5a; CHUNK];
    let end = Instant::now() + WARM_UP + duration;
    while Instant::now() < end {
        stream.write_all(&chunk)?;
    }
    Ok(())
}

/// Receives to the end, and counts after the warm-up.
fn receive<S>(mut stream: &S) -> anyhow::Result<BulkOutcome>
where
    for<'a> &'a S: Read,
{
    let mut chunk = vec![0; CHUNK];
    let start = Instant::now();
    let mut begun = None;
    let mut last = start;
    let mut bytes = 0;
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => {
                last = Instant::now();
                if begun.is_some() {
                    bytes += length as u64;
                } else if last - start >= WARM_UP {
                    begun = Some(last);
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let Some(begun) = begun else {
        bail!("the transfer was over before it could be measured");
    };
    Ok(BulkOutcome {
        bytes,
        nanoseconds: (last - begun).as_nanos() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_are_counted_over_loopback() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            for _ in 0..2 {
                let (stream, _) = listener.accept().unwrap();
                serve(&stream, || stream.shutdown(std::net::Shutdown::Write)).unwrap();
            }
        });
        for direction in [Direction::ToServer, Direction::ToClient] {
            run(&BulkJob::Client {
                server,
                direction,
                duration: Duration::from_millis(50),
            })
            .unwrap();
        }
        thread.join().unwrap();
    }

    #[test]
    fn outcomes_survive_their_bytes() {
        let outcome = BulkOutcome {
            bytes: 5_000_000_000,
            nanoseconds: 2_000_000_000,
        };
        assert_eq!(BulkOutcome::from_bytes(outcome.to_bytes()), outcome);
        assert_eq!(outcome.gigabits(), 20.0);
    }
}
