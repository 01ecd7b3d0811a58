//! Services on Linux sockets over loopback, from their first line to their
//! totals.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use common::{PROGRAM, Place, Service, program, signal, tcp_port, udp_port};

/// Starts a service on Linux sockets at a port of the loopback address.
fn serve(port: u16, arguments: &[&str]) -> Service {
    let port = port.to_string();
    let here = ["--on", "linux", "--address", "127.0.0.1", "--port", &port];
    Service::start(program(&[&["serve"], arguments, &here].concat()))
}

/// Requests `/` over its own connection; runs `meanwhile` until it is answered.
fn fetch(port: u16, meanwhile: impl FnOnce()) -> String {
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let timeout = Some(Duration::from_secs(10));
    client.set_read_timeout(timeout).unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    meanwhile();
    let mut response = String::new();
    client.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    response
}

#[test]
fn datagrams_are_served_to_a_clean_end() {
    let port = udp_port();
    let service = serve(port, &["echo"]);
    let expected = format!("echo on 127.0.0.1:{port}/udp, Linux sockets");
    assert!(service.first.starts_with(&expected), "{}", service.first);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let timeout = Some(Duration::from_secs(5));
    client.set_read_timeout(timeout).unwrap();
    client.send_to(b"hello", ("127.0.0.1", port)).unwrap();
    let mut reply = [0; 16];
    let (length, _) = client.recv_from(&mut reply).unwrap();
    assert_eq!(&reply[..length], b"hello");
    let totals = service.end();
    assert!(
        totals.starts_with("received 1 datagrams (5 bytes), replied 1, 0 errors in "),
        "{totals}"
    );
}

#[test]
fn an_interrupt_counts_from_the_first_line_on() {
    // As a shell without job control starts background jobs.
    const IGNORING: &str = "trap '' INT; exec \"$0\" serve echo --on linux --port \"$1\"";
    for _ in 0..20 {
        let mut shell = Command::new("sh");
        shell.args(["-c", IGNORING, PROGRAM, &udp_port().to_string()]);
        let service = Service::start(shell);
        signal("-INT", &service.process);
        let totals = service.ended();
        assert!(totals.starts_with("received 0 datagrams"), "{totals}");
    }
}

#[test]
fn a_web_server_serves_to_a_clean_end() {
    let place = Place::new("http").with("index.html", "<p>hello");
    let (root, log) = (place.name(""), place.name("log"));
    let port = tcp_port();
    let service = serve(port, &["http", &root, "--log", &log]);
    let expected =
        format!("http on 127.0.0.1:{port}/tcp, files of {root}, Linux sockets; process ");
    assert!(service.first.starts_with(&expected), "{}", service.first);
    let response = fetch(port, || {});
    assert!(response.ends_with("\r\n\r\n<p>hello"), "{response}");
    let totals = service.end();
    let expected = format!(
        "answered 1 requests ({} bytes) over 1 connections, 0 errors in ",
        response.len()
    );
    assert!(totals.starts_with(&expected), "{totals}");
    let line = fs::read_to_string(&log).unwrap();
    assert!(line.ends_with("\"GET / HTTP/1.1\" 200 8\n"), "{line}");
}

#[test]
fn a_proxy_passes_on_to_a_clean_end() {
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = origin.local_addr().unwrap().to_string();
    let port = tcp_port();
    let select = ["--events", "select", "--profile"];
    let service = serve(port, &[&["proxy", "--origin", &at], &select[..]].concat());
    let expected =
        format!("proxy on 127.0.0.1:{port}/tcp, for {at}, Linux sockets with select; process ");
    assert!(service.first.starts_with(&expected), "{}", service.first);
    let response = fetch(port, || {
        let (mut asked, _) = origin.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            asked.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        asked
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            .unwrap();
    });
    assert!(response.ends_with("\r\n\r\nhello"), "{response}");
    let totals = service.end();
    assert!(
        totals.starts_with("answered 1 requests ("),
        "the totals come last: {totals}"
    );
    assert!(
        totals.contains(" over 1 connections; 1 upstream connections ("),
        "{totals}"
    );
}

#[test]
fn a_proxy_for_whatever_is_asked_is_not_everybodys() {
    let port = tcp_port().to_string();
    let here = ["serve", "proxy", "--on", "linux", "--port", &port];
    for (options, address) in [
        (&[][..], "127.0.0.1"),
        (&["--address", "0.0.0.0"], "0.0.0.0"),
        (&["--allow-client", "127.0.0.0/8"], "0.0.0.0"),
        (&["--origin", "127.0.0.1:9"], "0.0.0.0"),
    ] {
        let service = Service::start(program(&[&here, options].concat()));
        let expected = format!("proxy on {address}:{port}/tcp, ");
        assert!(service.first.starts_with(&expected), "{}", service.first);
        service.end();
    }
}

#[test]
fn a_log_that_takes_nothing_does_not_stop_the_server() {
    let place = Place::new("stuck").with("index.html", "<p>hello");
    let (root, log) = (place.name(""), place.name("pipe"));
    let made = Command::new("mkfifo").arg(&log).status().unwrap();
    assert!(made.success());
    // A reader has it open, and reads nothing.
    let reader = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&log);
    let _reader = reader.unwrap();
    let port = tcp_port();
    let service = serve(port, &["http", &root, "--log", &log]);
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    // More than a pipe and the buffers in front of it hold.
    let target = "x".repeat(4000);
    let request = format!("GET /{target} HTTP/1.1\r\nHost: x\r\n\r\n");
    for _ in 0..1500 {
        client.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"Not Found\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
    }
    drop(client);
    let totals = service.end();
    assert!(totals.starts_with("answered 1,500 requests"), "{totals}");
    assert!(totals.contains(" lines of the access log lost"), "{totals}");
}
