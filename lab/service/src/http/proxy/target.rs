//! The destination of a request: the forms of RFC 9112 §3.2.

use std::net::Ipv6Addr;

use super::super::status::Status;

/// A request's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Host and port as received; empty if not named.
    pub authority: &'a str,
    /// Path and query, or `*`.
    pub path: &'a str,
}

/// Parses the target of a request to the host that it names.
///
/// # Errors
/// 400 for a target without a host, or a malformed one; 501 for another scheme
/// than http.
pub fn absolute(target: &str, options: bool) -> Result<Target<'_>, Status> {
    let Some((scheme, rest)) = target.split_once("://") else {
        return Err(Status::BAD_REQUEST);
    };
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(Status::NOT_IMPLEMENTED);
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let path = match path {
        // RFC 9112 §3.2.4: OPTIONS for the server itself.
        "" if options => "*",
        "" => "/",
        path if path.starts_with('/') => path,
        // A query without a path needs a slash in front, which the request lacks:
        // rejected rather than copied.
        _ => return Err(Status::BAD_REQUEST),
    };
    host_and_port(authority).ok_or(Status::BAD_REQUEST)?;
    Ok(Target { authority, path })
}

/// Parses the target of a request to this server, whose Host is `host`.
///
/// # Errors
/// Those of [`absolute`].
pub fn own<'a>(target: &'a str, host: &'a str, options: bool) -> Result<Target<'a>, Status> {
    if target.starts_with('/') || target == "*" && options {
        if !host.is_empty() && host_and_port(host).is_none() {
            return Err(Status::BAD_REQUEST);
        }
        return Ok(Target {
            authority: host,
            path: target,
        });
    }
    absolute(target, options)
}

/// Returns the host and the port (80 if there is none) of an authority; `None` for a
/// malformed one, or one with a user name (RFC 9110 §4.2.4).
pub fn host_and_port(authority: &str) -> Option<(&str, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, port)
        }
        None => {
            let end = authority.find(':').unwrap_or(authority.len());
            let (host, port) = authority.split_at(end);
            let good =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            if host.is_empty() || host.len() > 253 || !host.bytes().all(good) {
                return None;
            }
            (host, port)
        }
    };
    let port = match port.strip_prefix(':') {
        // An empty port is the default one (RFC 3986 §3.2.3).
        Some("") => 80,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
        Some(_) => return None,
        None if port.is_empty() => 80,
        None => return None,
    };
    (port > 0).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_targets() {
        for (text, authority, path) in [
            ("http://a.example/b?c", "a.example", "/b?c"),
            ("HTTP://A:8080", "A:8080", "/"),
            ("http://[::1]:81/", "[::1]:81", "/"),
            ("http://10.0.0.1:/x://y", "10.0.0.1:", "/x://y"),
        ] {
            assert_eq!(
                absolute(text, false),
                Ok(Target { authority, path }),
                "{text}"
            );
        }
        let server = absolute("http://a", true).unwrap();
        assert_eq!(server.path, "*");
        for (text, status) in [
            ("/", 400),
            ("*", 400),
            ("a:80", 400),
            ("https://a/", 501),
            ("http:///x", 400),
            ("http://u@a/", 400),
            ("http://a:0/", 400),
            ("http://a:65536/", 400),
            ("http://a:+80/", 400),
            ("http://[::1/", 400),
            ("http://[::1]x/", 400),
            ("http://a?b", 400),
            ("http://a b/", 400),
        ] {
            assert_eq!(absolute(text, false), Err(Status(status)), "{text}");
        }
    }

    #[test]
    fn own_targets() {
        let target = own("/a", "h:81", false).unwrap();
        assert_eq!((target.authority, target.path), ("h:81", "/a"));
        let target = own("http://b/c", "h", false).unwrap();
        assert_eq!((target.authority, target.path), ("b", "/c"));
        assert!(own("*", "h", false).is_err());
        assert!(own("*", "h", true).is_ok());
        assert!(own("/a", "h/../", false).is_err());
        assert_eq!(own("/a", "", false).unwrap().authority, "");
    }

    #[test]
    fn hosts_and_ports() {
        assert_eq!(host_and_port("a"), Some(("a", 80)));
        assert_eq!(host_and_port("[fe80::1]:8080"), Some(("fe80::1", 8080)));
    }
}
