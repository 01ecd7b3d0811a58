//! Peers with little room.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream as KernelStream};
use std::time::{Duration, Instant};

use tidewall_socket::TcpListener;

use super::support::*;

const TOTAL: usize = 100_000;

/// As found by a real peer: a segment as long as the link takes fills the window.
pub fn a_peer_with_the_least_buffer_is_not_kept_waiting() {
    let peer = peer_namespace();
    shell(&format!(
        "ip link set {HERE} mtu 3506; ip -n {peer} link set {PEER} mtu 3506
         ip netns exec {peer} sysctl -qw net.ipv4.tcp_rmem='2304 2304 2304'"
    ));
    let stack = stack();
    let listener = TcpListener::bind(&stack, at(HERE4, SERVICE)).unwrap();
    let client = spawn_in_peer(|| {
        let mut stream = KernelStream::connect(at(HERE4, SERVICE)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes.len()
    });
    let (mut stream, _) = listener.accept().unwrap();
    let began = Instant::now();
    stream.write_all(&[7; TOTAL]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.join().unwrap(), TOTAL);
    let (took, info) = (began.elapsed(), stream.info().unwrap());
    println!("{TOTAL} bytes took {took:?}: {info:?}");
    println!(
        "{}",
        in_peer(|| shell("nstat -az | grep -i 'rcvq\\|prune\\|collaps\\|DelayedACK\\|TCPRcvCoal'"))
    );
    assert!(took < Duration::from_millis(200));
}
