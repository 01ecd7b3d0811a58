//! The smallest service: answers every datagram with itself, from the address
//! that it was sent to.
//!
//! ```sh
//! cargo run --release -p tidewall --example echo -- eth0 7
//! ```
use tidewall::{EmbeddedConfig, Stack, UdpSocket};

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: echo INTERFACE PORT";
    let (Some(interface), Some(Ok(port))) = (
        arguments.next(),
        arguments.next().map(|port| port.parse::<u16>()),
    ) else {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, usage));
    };
    let stack = Stack::embedded(EmbeddedConfig::new(interface))?;
    let socket = UdpSocket::bind(&stack, ([0, 0, 0, 0], port).into())?;
    loop {
        let mut failed = None;
        socket.recv_batch(64, |datagram| {
            if let Err(error) = socket.queue_from(datagram.payload, datagram.local, datagram.source)
            {
                failed = Some(error);
            }
        })?;
        socket.flush()?;
        if let Some(error) = failed {
            eprintln!("echo: {error}");
        }
    }
}
