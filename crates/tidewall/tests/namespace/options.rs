//! Initial settings of streams: the namespace's parameters, and options.

use std::io::{Read, Write};
use std::net::TcpListener as KernelListener;
use std::time::Duration;

use tidewall::tcp::{Congestion, Keepalive, Sysctl};
use tidewall::{ConnectOptions, ListenOptions, StreamOptions, TcpListener, TcpStream};

use crate::support::{HERE4, PEER4, SERVICE, at, config, in_peer, shell, stack, stack_with};

/// Connects to the peer's kernel and sees whether it agrees to SACK and timestamps.
fn agreed(stack: &tidewall::Stack, port: u16) -> [bool; 2] {
    let listener = in_peer(move || KernelListener::bind(at(PEER4, port)).unwrap());
    let mut stream = TcpStream::connect(stack, at(PEER4, port)).unwrap();
    assert!(!stream.is_kernels());
    let (mut peer, _) = listener.accept().unwrap();
    stream.write_all(b"hello").unwrap();
    peer.read_exact(&mut [0; 5]).unwrap();
    let info = stream.info().unwrap();
    [info.sack, info.timestamps]
}

pub fn streams_begin_with_what_the_namespace_says() {
    shell(
        "sysctl -qw net.ipv4.tcp_sack=0 net.ipv4.tcp_timestamps=0 net.ipv4.tcp_fin_timeout=7 \
         net.ipv4.tcp_syn_retries=3 net.ipv4.tcp_ecn=0 net.ipv4.tcp_rmem='4096 20000 40000'",
    );
    let own = stack();
    let sysctl = own.sysctl();
    assert!(!sysctl.sack && !sysctl.timestamps);
    assert_eq!(sysctl.fin_timeout, Duration::from_secs(7));
    assert_eq!((sysctl.syn_retries, sysctl.ecn), (3, 0));
    assert_eq!(sysctl.receive_memory, [4096, 20_000, 40_000]);
    assert_eq!(agreed(&own, SERVICE), [false, false]);
    drop(own);
    // Read once, when the stack starts; what the caller says goes before.
    let configured = stack_with(config().tcp(Sysctl::default()));
    assert_eq!(configured.sysctl(), Sysctl::default());
    assert_eq!(agreed(&configured, SERVICE + 1), [true, true]);
}

pub fn the_kernels_streams_have_the_same_options() {
    let stack = stack();
    let wanted = StreamOptions {
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
    };
    let listen = ListenOptions {
        stream: wanted,
        ..ListenOptions::default()
    };
    let listener = TcpListener::bind_with(&stack, at(HERE4, SERVICE), listen).unwrap();
    let connect = ConnectOptions {
        stream: wanted,
        ..ConnectOptions::default()
    };
    // On this host: both ends are the kernel's.
    let client = TcpStream::connect_with(&stack, at(HERE4, SERVICE), &connect).unwrap();
    let server = listener.accept().unwrap().0;
    for stream in [&client, &server] {
        assert!(stream.is_kernels());
        assert!(stream.nodelay().unwrap());
        assert_eq!(stream.keepalive().unwrap(), wanted.keepalive);
        assert_eq!(stream.syn_retries().unwrap(), 2);
        assert_eq!(stream.user_timeout().unwrap(), wanted.user_timeout);
        assert_eq!(Some(stream.fin_timeout().unwrap()), wanted.fin_timeout);
        assert_eq!(stream.not_sent_low_water().unwrap(), Some(5000));
        assert_eq!(stream.congestion().unwrap(), Some(Congestion::NewReno));
        assert!(stream.maximum_segment().unwrap() <= 1000);
    }
    client.set_user_timeout(None).unwrap();
    assert_eq!(client.user_timeout().unwrap(), None);
    client.set_fin_timeout(Duration::from_secs(3)).unwrap();
    assert_eq!(client.fin_timeout().unwrap(), Duration::from_secs(3));
}
