//! Options of streams, from both ways to get one, between two stacks that run in
//! real time.

use std::io::{Read, Write};
use std::time::Duration;

use tidewall::tcp::{Congestion, Keepalive};
use tidewall::{ConnectOptions, ListenOptions, StreamOptions, TcpListener, TcpStream};

use super::support::{FAR4, FAR6, at};
use super::tcp::{TIMEOUT, stacks};

const PORT: u16 = 82;

fn options() -> StreamOptions {
    StreamOptions {
        nodelay: true,
        keepalive: Some(Keepalive {
            idle: Duration::from_secs(5),
            ..Keepalive::default()
        }),
        maximum_segment: Some(1000),
        syn_retries: Some(2),
        user_timeout: Some(Duration::from_secs(9)),
        fin_timeout: Some(Duration::from_secs(7)),
        not_sent_low_water: Some(5000),
        congestion: Some(Congestion::NewReno),
        ..StreamOptions::default()
    }
}

fn has_them(stream: &TcpStream) {
    assert!(!stream.is_kernels());
    let wanted = options();
    assert!(stream.nodelay().unwrap());
    assert_eq!(stream.keepalive().unwrap(), wanted.keepalive);
    assert_eq!(stream.syn_retries().unwrap(), 2);
    assert_eq!(stream.user_timeout().unwrap(), wanted.user_timeout);
    assert_eq!(Some(stream.fin_timeout().unwrap()), wanted.fin_timeout);
    assert_eq!(stream.not_sent_low_water().unwrap(), Some(5000));
    assert_eq!(stream.congestion().unwrap(), Some(Congestion::NewReno));
    // The timestamps' twelve bytes are in it.
    assert_eq!(stream.maximum_segment().unwrap(), 988);
}

#[test]
fn streams_begin_with_what_was_asked_for() {
    let (near, far) = stacks();
    let listen = ListenOptions {
        stream: options(),
        ..ListenOptions::default()
    };
    let anywhere = at(std::net::Ipv6Addr::UNSPECIFIED, PORT);
    let listener = TcpListener::bind_with(&far, anywhere, listen).unwrap();
    for address in [at(FAR4, PORT), at(FAR6, PORT)] {
        let connect = ConnectOptions {
            stream: options(),
            ..ConnectOptions::default()
        };
        let mut client = TcpStream::connect_with(&near, address, &connect).unwrap();
        has_them(&client);
        let mut server = listener.accept().unwrap().0;
        has_them(&server);
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        client.write_all(b"hello").unwrap();
        let mut buffer = [0; 5];
        server.read_exact(&mut buffer).unwrap();
        // An option that one side alone requests is reported to the other.
        let plain = TcpStream::connect(&near, address).unwrap();
        assert_eq!(plain.maximum_segment().unwrap(), 988);
        assert_eq!(plain.congestion().unwrap(), Some(Congestion::Cubic));
        assert_eq!(plain.fin_timeout().unwrap(), near.sysctl().fin_timeout);
        drop(listener.accept().unwrap());
    }
}

#[test]
fn options_out_of_range_are_refused() {
    let (near, far) = stacks();
    let listener = TcpListener::bind(&far, at(FAR4, PORT)).unwrap();
    let refused = |stream: StreamOptions| {
        let connect = ConnectOptions {
            stream,
            ..ConnectOptions::default()
        };
        let connected = TcpStream::connect_with(&near, at(FAR4, PORT), &connect);
        let listen = ListenOptions {
            stream,
            ..ListenOptions::default()
        };
        let listened = TcpListener::bind_with(&far, at(FAR4, 83), listen);
        for error in [connected.err(), listened.err()] {
            assert_eq!(error.unwrap().raw_os_error(), Some(libc::EINVAL));
        }
    };
    for bytes in [0, 87, 32_768] {
        refused(StreamOptions {
            maximum_segment: Some(bytes),
            ..StreamOptions::default()
        });
    }
    for count in [0, 128] {
        refused(StreamOptions {
            syn_retries: Some(count),
            ..StreamOptions::default()
        });
    }
    let stream = TcpStream::connect(&near, at(FAR4, PORT)).unwrap();
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    assert_eq!(errno(stream.set_maximum_segment(87)), Some(libc::EINVAL));
    assert_eq!(errno(stream.set_syn_retries(0)), Some(libc::EINVAL));
    stream.set_maximum_segment(512).unwrap();
    stream.set_congestion(Congestion::NewReno).unwrap();
    stream.set_fin_timeout(Duration::from_secs(1000)).unwrap();
    assert_eq!(stream.maximum_segment().unwrap(), 500);
    assert_eq!(stream.congestion().unwrap(), Some(Congestion::NewReno));
    assert_eq!(stream.fin_timeout().unwrap(), Duration::from_secs(120));
    drop(listener);
}
