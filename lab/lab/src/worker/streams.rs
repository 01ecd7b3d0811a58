//! Echo and discard over TCP, for either stack.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use tidewall_service::{Event, Interest, STOP_WITHIN, Stream, StreamHost};

/// The listener's token.
const LISTENER: u64 = u64::MAX;
/// Bytes read at a time.
const BUFFER: usize = 64 * 1024;
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 128;

/// A connection, and its bytes for which there was no room on the way back.
struct Client<S> {
    stream: S,
    owed: Vec<u8>,
    sent: usize,
    /// It is watched for room, too.
    stuck: bool,
}

/// Serves until `stop` is set; sends received bytes back if it `echoes`.
pub(super) fn serve<H: StreamHost>(
    host: &H,
    address: SocketAddr,
    echoes: bool,
    stop: &AtomicBool,
    ready: impl FnOnce(),
) -> io::Result<()> {
    let listener = host.listen(address, BACKLOG)?;
    host.watch_listener(&listener, LISTENER)?;
    ready();
    let mut clients: HashMap<u64, Client<H::Stream>> = HashMap::new();
    let mut events: Vec<Event> = Vec::new();
    let mut buffer = vec![0; BUFFER];
    let mut next = 0;
    let interest = |stuck: bool| Interest {
        readable: !stuck,
        writable: stuck,
    };
    while !stop.load(Ordering::Relaxed) {
        host.wait(&mut events, STOP_WITHIN)?;
        for event in &events {
            if event.token == LISTENER {
                while let Some((stream, _)) = host.accept(&listener)? {
                    host.watch(&stream, next, interest(false))?;
                    let client = Client {
                        stream,
                        owed: Vec::new(),
                        sent: 0,
                        stuck: false,
                    };
                    clients.insert(next, client);
                    next += 1;
                }
                continue;
            }
            let Some(client) = clients.get_mut(&event.token) else {
                continue;
            };
            let stuck = client.stuck;
            let turned = client.turn(&mut buffer, echoes).and_then(|()| {
                if client.stuck == stuck {
                    return Ok(());
                }
                host.rewatch(&client.stream, event.token, interest(client.stuck))
            });
            if turned.is_err() {
                host.unwatch(&client.stream);
                clients.remove(&event.token);
            }
        }
    }
    Ok(())
}

impl<S: Stream> Client<S> {
    /// Reads and sends back while there are bytes to read, and room; an error means the
    /// end of the connection.
    fn turn(&mut self, buffer: &mut [u8], echoes: bool) -> io::Result<()> {
        loop {
            while let Some(owed) = self.owed.get(self.sent..).filter(|owed| !owed.is_empty()) {
                match self.stream.write(owed, false) {
                    Ok(count) => self.sent += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.stuck = true;
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
            }
            self.stuck = false;
            let count = match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            if echoes {
                self.owed.clear();
                self.owed
                    .extend_from_slice(buffer.get(..count).unwrap_or_default());
                self.sent = 0;
            }
        }
    }
}
