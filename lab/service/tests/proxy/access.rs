//! The permitted clients of a forward proxy, and its permitted destinations.

use super::origin::{Origin, reply};
use super::*;

/// Returns the status of the answer to a GET through a proxy.
fn status_of(spec: &Spec, url: &str) -> u16 {
    let mut status = 0;
    proxying(spec, |proxy| {
        status = get(&mut proxy.connect(), url, "").status;
    });
    status
}

#[test]
fn the_inside_is_not_reached_by_address_or_name() {
    let origin = Origin::saying(reply("200 OK", "", b"secret"));
    let port = origin.address.port();
    for host in [
        "127.0.0.1",
        "localhost",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::]",
        "169.254.169.254",
        "10.0.0.5",
        "[fe80::1]",
        "[64:ff9b::127.0.0.1]",
    ] {
        let url = format!("http://{host}:{port}/");
        assert_eq!(status_of(&Spec::new(0, None), &url), 403, "{host}");
    }
    assert_eq!(origin.connections(), 0);
    // If the address is permitted, so is a name that leads there.
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("http://{host}:{port}/");
        assert_eq!(status_of(&forward(), &url), 200, "{host}");
    }
    // A reverse proxy connects to its configured origin.
    assert_eq!(status_of(&Spec::new(0, Some(origin.address)), "/"), 200);
}

#[test]
fn strangers_are_refused() {
    let origin = Origin::saying(reply("200 OK", "", b"x"));
    let mut spec = forward();
    for (clients, status) in [("192.0.2.0/24", 403), ("127.0.0.0/8", 200)] {
        spec.access.clients = vec![clients.parse().unwrap()];
        assert_eq!(status_of(&spec, &origin.url("/")), status, "{clients}");
    }
    assert_eq!(origin.connections(), 1);
}
