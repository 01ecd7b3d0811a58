//! A socket's input in the kernel, seen through a set and through `select`.

use std::net::{Ipv4Addr, TcpStream as KernelStream, UdpSocket as KernelSocket};
use std::time::Duration;

use tidewall::descriptor::{Descriptors, Flags};
use tidewall::readiness::{DescriptorSet, EpollEvent, Events, Operation};
use tidewall::{BindOptions, ListenOptions};

use super::raw_system;
use super::support::*;

const NOW: Option<Duration> = Some(Duration::ZERO);
/// No number.
const NOBODY: [i32; 0] = [];
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));

fn readable(table: &Descriptors, fds: [i32; 2], timeout: Option<Duration>) -> Vec<i32> {
    let mut read: DescriptorSet = fds.into_iter().collect();
    let nfds = read.nfds();
    table
        .select(nfds, Some(&mut read), None, None, timeout)
        .unwrap();
    read.iter().collect()
}

pub fn what_the_kernel_has_is_reported_until_it_is_taken() {
    let stack = stack();
    let table = Descriptors::new(&stack, 64);
    let address = at(Ipv4Addr::UNSPECIFIED, SERVICE);
    let options = ListenOptions::default();
    let listener = table.listen(address, options, Flags::NONE).unwrap();
    let socket = table
        .bind(address, BindOptions::default(), Flags::NONE)
        .unwrap();
    let both = [listener, socket];
    let client = KernelSocket::bind(at(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let set = table.epoll_create1(Flags::NONE).unwrap();
    let control = |operation, fd, events| {
        let data = fd as u64;
        let event = Some(EpollEvent { events, data });
        table.epoll_ctl(set, operation, fd, event).unwrap();
    };
    let wait = |timeout| {
        let mut events = [EpollEvent::default(); 4];
        let count = table.epoll_wait(set, &mut events, timeout).unwrap();
        let mut reported: Vec<i32> = events.iter().take(count).map(|it| it.data as i32).collect();
        reported.sort_unstable();
        reported
    };
    for fd in both {
        control(Operation::Add, fd, Events::IN | Events::ONESHOT);
    }
    for _ in 0..5 {
        assert_eq!(readable(&table, both, NOW), NOBODY);
        let _stream = KernelStream::connect(at(Ipv4Addr::LOCALHOST, SERVICE)).unwrap();
        client
            .send_to(b"x", at(Ipv4Addr::LOCALHOST, SERVICE))
            .unwrap();
        for _ in 0..3 {
            assert_eq!(readable(&table, both, TIMEOUT), both);
        }
        assert_eq!(wait(TIMEOUT), both);
        // Input that was reported keeps no thread awake.
        let before = raw_system::processor_time();
        assert_eq!(wait(Some(Duration::from_millis(200))), NOBODY);
        let used = raw_system::processor_time() - before;
        assert!(used < Duration::from_millis(60), "{used:?} of 200 ms");
        for fd in both {
            control(Operation::Modify, fd, Events::IN | Events::ONESHOT);
        }
        assert_eq!(wait(TIMEOUT), both);
        // One of each was there, and nothing is afterwards: neither would wait.
        let (accepted, _) = table.accept4(listener, Flags::NONE).unwrap();
        assert_eq!(table.read(socket, &mut [0; 8]).unwrap(), 1);
        assert_eq!(readable(&table, both, NOW), NOBODY);
        for fd in both {
            control(Operation::Modify, fd, Events::IN | Events::ONESHOT);
        }
        assert_eq!(wait(NOW), NOBODY);
        table.close(accepted).unwrap();
    }
    // Shut, it is neither's.
    table.shutdown(listener, std::net::Shutdown::Both).unwrap();
    let refused = KernelStream::connect(at(Ipv4Addr::LOCALHOST, SERVICE));
    assert_eq!(
        refused.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionRefused
    );
    let refused = in_peer(|| {
        KernelStream::connect_timeout(&at(HERE4, SERVICE), Duration::from_secs(2))
            .map(drop)
            .map_err(|error| error.kind())
    });
    assert_eq!(refused, Err(std::io::ErrorKind::ConnectionRefused));
}
