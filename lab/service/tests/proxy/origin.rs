//! Origins that follow a script, on threads and blocking sockets.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::common::{self, LOCAL};

/// An origin's treatment of a request: receives its head and the connection, and returns
/// whether the connection persists.
pub type Handler = dyn Fn(&Asked<'_>, &mut TcpStream) -> bool + Send + Sync;

/// A request as an origin sees it.
pub struct Asked<'a> {
    pub head: &'a str,
}

impl Asked<'_> {
    pub fn field(&self, name: &str) -> Option<&str> {
        common::field(self.head, name)
    }

    pub fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }
}

/// An origin that runs until it is dropped.
pub struct Origin {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Origin {
    pub fn new(
        handler: impl Fn(&Asked<'_>, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((LOCAL, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let origin = Origin {
            address,
            stop: Arc::default(),
            connections: Arc::default(),
            heads: Arc::default(),
        };
        let handler: Arc<Handler> = Arc::new(handler);
        let (stop, connections, heads) = (
            origin.stop.clone(),
            origin.connections.clone(),
            origin.heads.clone(),
        );
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { return };
                connections.fetch_add(1, Ordering::Relaxed);
                let (handler, heads) = (handler.clone(), heads.clone());
                thread::spawn(move || converse(stream, &handler, &heads));
            }
        });
        origin
    }

    /// Creates one that answers each request with `reply`, in full.
    pub fn saying(reply: impl Into<Vec<u8>>) -> Self {
        let reply = reply.into();
        Origin::new(move |_, stream| stream.write_all(&reply).is_ok())
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the heads received.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

fn converse(mut stream: TcpStream, handler: &Arc<Handler>, heads: &Mutex<Vec<String>>) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
    let _ = stream.set_nodelay(true);
    loop {
        let Ok(head) = common::read_to(&mut stream, b"\r\n\r\n") else {
            return;
        };
        let head = String::from_utf8(head).unwrap();
        heads.lock().unwrap().push(head.clone());
        let asked = Asked { head: &head };
        if !handler(&asked, &mut stream) {
            return;
        }
    }
}

/// Returns a response with a length.
pub fn reply(status: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let mut reply = format!(
        "HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    reply.extend_from_slice(body);
    reply
}
