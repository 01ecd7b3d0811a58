//! A program that forks with a stack, and whose child lives on.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Ipv6Addr;
use std::process::{Command, Stdio};

use tidewall::readiness::EpollSet;
use tidewall::tcp::Interest;
use tidewall::{Selector, TcpListener, TcpStream, UdpSocket};

use super::raw_system;
use super::support::*;

/// The parent: it serves, forks, and is killed.
pub fn fork_and_own_until_killed() {
    raw_system::end_after(50);
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let socket = bind(&stack, at(HERE4, SERVICE + 1));
    let connected = bind(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE + 2));
    connected.connect(at(PEER4, 9)).unwrap();
    let listener = TcpListener::bind(&stack, at(HERE4, SERVICE)).unwrap();
    let service = in_peer(|| std::net::TcpListener::bind((PEER4, 0)).unwrap());
    let stream = TcpStream::connect(&stack, service.local_addr().unwrap()).unwrap();
    let selector = Selector::new(&stack).unwrap();
    selector.add(&socket, 1, Interest::READABLE).unwrap();
    let set = EpollSet::new(&stack).unwrap();
    raw_system::fork(move || {
        raw_system::end_after(40);
        let dead = |result: io::Result<()>| {
            let errno = result.unwrap_err().raw_os_error();
            assert_eq!(errno, Some(libc::EOWNERDEAD));
        };
        let mut buffer = [0; 16];
        dead(socket.recv_from(&mut buffer).map(drop));
        dead(socket.send_to(b"x", at(PEER4, 9)).map(drop));
        dead(socket.flush());
        dead(socket.set_receive_limit(5));
        dead(socket.connect(at(PEER4, 9)));
        dead(connected.send(b"x").map(drop));
        dead(UdpSocket::bind(&stack, at(HERE4, 0)).map(drop));
        dead(listener.accept().map(drop));
        dead(TcpListener::bind(&stack, at(HERE4, 0)).map(drop));
        dead(TcpStream::connect(&stack, at(PEER4, 9)).map(drop));
        let mut stream_ref = &stream;
        dead(stream_ref.read(&mut buffer).map(drop));
        dead(stream_ref.write(b"x").map(drop));
        dead(selector.wait(&mut Vec::new(), None).map(drop));
        dead(Selector::new(&stack).map(drop));
        dead(stack.wait(&[&socket], None).map(drop));
        assert!(stack.snapshot().queues.is_empty());
        assert_eq!(stack.warnings().len(), 1);
        drop((socket, connected, listener, stream, selector, set, stack));
        // Files opened now may have the descriptors of closed ones.
        let files: Vec<File> = (0..64).map(|_| File::open("/dev/null").unwrap()).collect();
        println!("\nchild {}", std::process::id());
        // Until it is killed.
        let _files = files;
        loop {
            std::thread::park();
        }
    })
    .unwrap();
    println!("\nready");
    let _ = std::io::stdin().read(&mut [0]);
    drop(echo);
}

pub fn a_child_that_lives_on_keeps_nothing_of_the_interface() {
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "parent", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let (mut ready, mut child) = (false, None);
    while !ready || child.is_none() {
        let line = lines.next().expect("the parent or its child has failed");
        let line = line.unwrap();
        ready |= line == "ready";
        child = child.or(line.strip_prefix("child ").map(str::to_owned));
    }
    // The parent's stack goes on.
    let client = peer_socket(PEER4);
    for n in 0..5u8 {
        ask(&client, at(HERE4, SERVICE), &[n; 8]);
    }
    parent.kill().unwrap();
    parent.wait().unwrap();
    let child: i32 = child.unwrap().parse().unwrap();
    let next = stack();
    let echo = Echo::start(&next, SERVICE);
    let _listener = TcpListener::bind(&next, at(HERE4, SERVICE)).unwrap();
    for n in 0..5u8 {
        ask(&client, at(HERE4, SERVICE), &[n; 8]);
    }
    echo.finish();
    let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
    assert!(
        state.contains(") S "),
        "the child has not lived on: {state}"
    );
    raw_system::kill(child).unwrap();
}
