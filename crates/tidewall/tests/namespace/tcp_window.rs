//! Peers with little room.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream as KernelStream};
use std::time::{Duration, Instant};

use tidewall::TcpListener;

use super::support::*;

const TOTAL: usize = 100_000;
/// How long silly-window avoidance holds data back.
const PAUSE: Duration = Duration::from_millis(200);

/// As found by a real peer: segments as long as its window were followed by less
/// window, for which 200 ms were waited.
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
        let (mut total, mut pauses) = (0, Vec::new());
        let mut last = Instant::now();
        loop {
            let length = stream.read(&mut [0; 4000]).unwrap();
            pauses.push(last.elapsed());
            last = Instant::now();
            total += length;
            if length == 0 {
                pauses.sort();
                return (total, pauses);
            }
        }
    });
    let (mut stream, _) = listener.accept().unwrap();
    let began = Instant::now();
    stream.write_all(&[7; TOTAL]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let (total, pauses) = client.join().unwrap();
    assert_eq!(total, TOTAL);
    let longest = pauses.last().copied().unwrap_or_default();
    let info = stream.info().unwrap();
    println!(
        "{} reads in {:?}, longest pause {longest:?}",
        pauses.len(),
        began.elapsed()
    );
    assert!(longest < PAUSE, "{longest:?}: {info:?}");
}
