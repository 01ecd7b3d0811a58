//! Bulk transfers by sockets over a tap, with Linux at the other end.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener as KernelListener};
use std::net::{SocketAddr, TcpStream as KernelStream};
use std::time::Duration;

use tidewall::{TcpListener, TcpStream};

use super::support::*;
use super::tap::{KERNEL4, KERNEL6, TAP4, TAP6, tap_stack};

const TOTAL: usize = 48 << 20;
const CHUNK: usize = 256 << 10;
const TIMEOUT: Duration = Duration::from_secs(20);

fn fill(start: usize, bytes: &mut [u8]) {
    for (n, byte) in bytes.iter_mut().enumerate() {
        let at = start + n;
        *byte = (at * 31 + at / 253) as u8;
    }
}

pub fn send_all<S>(stream: &S, total: usize)
where
    for<'a> &'a S: Write,
{
    send_all_from(stream, 0, total);
}

/// The same from a place in the stream on.
pub fn send_all_from<S>(mut stream: &S, mut sent: usize, total: usize)
where
    for<'a> &'a S: Write,
{
    let mut chunk = vec![0; CHUNK];
    while sent < total {
        let length = chunk.len().min(total - sent);
        fill(sent, &mut chunk[..length]);
        stream.write_all(&chunk[..length]).unwrap();
        sent += length;
    }
}

pub fn receive_all<S>(mut stream: &S, total: usize)
where
    for<'a> &'a S: Read,
{
    let mut chunk = vec![0; CHUNK];
    let mut expected = vec![0; CHUNK];
    let mut got = 0;
    loop {
        let length = stream.read(&mut chunk).unwrap();
        if length == 0 {
            break;
        }
        fill(got, &mut expected[..length]);
        assert!(
            chunk[..length] == expected[..length],
            "wrong bytes after {got}"
        );
        got += length;
    }
    assert_eq!(got, total);
}

fn kernel_timeouts(stream: &KernelStream) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
}

fn timeouts(stream: &TcpStream) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
}

/// As server: the kernel sends everything, then we do.
pub fn a_tap_listener_moves_bulk_data_both_ways() {
    let stack = tap_stack();
    let listener = TcpListener::bind(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
    for to in [at(TAP4, SERVICE), at(TAP6, SERVICE)] {
        let client = std::thread::spawn(move || {
            let stream = KernelStream::connect_timeout(&to, TIMEOUT).unwrap();
            kernel_timeouts(&stream);
            send_all(&stream, TOTAL);
            stream.shutdown(Shutdown::Write).unwrap();
            receive_all(&stream, TOTAL);
        });
        let (stream, _) = listener.accept().unwrap();
        timeouts(&stream);
        receive_all(&stream, TOTAL);
        let info = stream.info().unwrap();
        let long = TOTAL / 8000;
        assert!(
            (info.segments_received as usize) < long,
            "came cut: {info:?}"
        );
        let before = info.segments_sent as usize;
        send_all(&stream, TOTAL);
        stream.shutdown(Shutdown::Write).unwrap();
        client.join().unwrap();
        let info = stream.info().unwrap();
        assert!(
            (info.segments_sent as usize) < before + long,
            "left cut: {info:?}"
        );
        assert_eq!((repeated(&info), info.out_of_order), (0, 0), "{info:?}");
    }
}

/// As client, both ways at once.
pub fn a_tap_client_moves_bulk_data_both_ways_at_once() {
    let stack = tap_stack();
    for (kernel, any) in [
        (IpAddr::from(KERNEL4), IpAddr::from(Ipv4Addr::UNSPECIFIED)),
        (IpAddr::from(KERNEL6), IpAddr::from(Ipv6Addr::UNSPECIFIED)),
    ] {
        let listener = KernelListener::bind((any, 0)).unwrap();
        let to = SocketAddr::new(kernel, listener.local_addr().unwrap().port());
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            kernel_timeouts(&stream);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    send_all(&stream, TOTAL);
                    stream.shutdown(Shutdown::Write).unwrap();
                });
                receive_all(&stream, TOTAL);
            });
        });
        let stream = TcpStream::connect(&stack, to).unwrap();
        timeouts(&stream);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send_all(&stream, TOTAL);
                stream.shutdown(Shutdown::Write).unwrap();
            });
            receive_all(&stream, TOTAL);
        });
        server.join().unwrap();
        let info = stream.info().unwrap();
        assert_eq!(repeated(&info), 0, "{info:?}");
    }
}
