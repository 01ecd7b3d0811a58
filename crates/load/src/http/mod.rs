//! The HTTP client: many connections, one thread, no buffers of its own beside
//! one. Lighter than any server it asks: a request is one write, a response one
//! read where it comes in one piece.

mod client;
mod idle;
mod response;

pub(crate) use client::{Client, Plan};
pub(crate) use idle::Idle;

use std::net::SocketAddr;

use crate::spec::Reuse;

/// A GET of `path` (RFC 9112 §3).
fn request(destination: SocketAddr, path: &str, reuse: Reuse) -> Vec<u8> {
    let close = match reuse {
        Reuse::KeepAlive => "",
        Reuse::OneRequest => "Connection: close\r\n",
    };
    format!("GET {path} HTTP/1.1\r\nHost: {destination}\r\n{close}\r\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_the_host_and_who_closes() {
        let text = |reuse| {
            let server = "[fd00::2]:8080".parse().unwrap();
            String::from_utf8(request(server, "/a", reuse)).unwrap()
        };
        assert_eq!(
            text(Reuse::KeepAlive),
            "GET /a HTTP/1.1\r\nHost: [fd00::2]:8080\r\n\r\n"
        );
        assert!(text(Reuse::OneRequest).ends_with("\r\nConnection: close\r\n\r\n"));
    }
}
