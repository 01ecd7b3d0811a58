//! The HTTP client: many connections, one thread and a single buffer. It is lighter than
//! any server it queries: a request is one write, and a response that arrives in one
//! piece is one read.

mod client;
mod response;

pub(crate) use client::Client;
pub(crate) use response::{Outcome, Response};

use std::net::SocketAddr;

use crate::spec::Reuse;

/// Builds a GET of `path` (RFC 9112 §3) that names `host`, or the destination; for a
/// proxy in the absolute form (§3.2.2).
pub(crate) fn request(
    destination: SocketAddr,
    host: Option<&str>,
    proxy: bool,
    path: &str,
    reuse: Reuse,
) -> Vec<u8> {
    let host = match host {
        Some(host) => host.to_owned(),
        None => destination.to_string(),
    };
    let origin = match proxy {
        true => format!("http://{host}"),
        false => String::new(),
    };
    let close = match reuse {
        Reuse::KeepAlive => "",
        Reuse::OneRequest => "Connection: close\r\n",
    };
    format!("GET {origin}{path} HTTP/1.1\r\nHost: {host}\r\n{close}\r\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_the_host_and_who_closes() {
        let text = |reuse| {
            let server = "[fd00::2]:8080".parse().unwrap();
            String::from_utf8(request(server, None, false, "/a", reuse)).unwrap()
        };
        assert_eq!(
            text(Reuse::KeepAlive),
            "GET /a HTTP/1.1\r\nHost: [fd00::2]:8080\r\n\r\n"
        );
        assert!(text(Reuse::OneRequest).ends_with("\r\nConnection: close\r\n\r\n"));
    }

    #[test]
    fn a_proxy_is_asked_for_the_whole_address() {
        let proxy = "10.0.0.2:3128".parse().unwrap();
        let bytes = request(proxy, Some("origin:81"), true, "/a", Reuse::KeepAlive);
        assert_eq!(
            String::from_utf8(bytes).unwrap(),
            "GET http://origin:81/a HTTP/1.1\r\nHost: origin:81\r\n\r\n"
        );
    }
}
