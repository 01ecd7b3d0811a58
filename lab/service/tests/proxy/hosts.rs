//! The same stories on the other hosts of Linux.

use std::net::{Shutdown, TcpListener};

use tidewall_service::linux_sockets::LinuxSockets;
use tidewall_service::{PollHost, SelectHost};

use super::common::story::{self, Client, Stage};
use super::forwarding::{answers_large_and_small, curl_through};
use super::trouble::finishes;
use super::*;

fn select() -> SelectHost<LinuxSockets> {
    SelectHost::new(LinuxSockets::new())
}

fn poll() -> PollHost<LinuxSockets> {
    PollHost::new(LinuxSockets::new())
}

impl Client for TcpStream {
    fn end(&mut self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    let timeout = Some(Duration::from_secs(10));
    stream.set_read_timeout(timeout).unwrap();
    stream
}

#[test]
fn curl_goes_through_with_select() {
    curl_through(select);
}

#[test]
fn curl_goes_through_with_poll() {
    curl_through(poll);
}

#[test]
fn answers_of_any_size_with_each_host() {
    answers_large_and_small(epoll);
    answers_large_and_small(select);
    answers_large_and_small(poll);
}

/// More connections than an `fd_set` of the C library holds, all idle, and one that is
/// not.
fn cold<H: StreamHost>(host: impl FnOnce() -> H + Send) {
    let stage = Stage {
        web: LOCAL,
        proxy: LOCAL,
        cold: 1200,
    };
    story::among_idle_clients(stage, epoll, host, connect);
}

#[test]
fn more_than_1024_descriptors_with_epoll() {
    cold(epoll);
}

#[test]
fn more_than_1024_descriptors_with_select() {
    cold(select);
}

#[test]
fn more_than_1024_descriptors_with_poll() {
    cold(poll);
}

#[test]
fn an_absent_origin_is_noticed_with_each_host() {
    let nobody = TcpListener::bind((LOCAL, 0)).unwrap().local_addr().unwrap();
    story::an_absent_origin(LOCAL, nobody, epoll, connect);
    story::an_absent_origin(LOCAL, nobody, select, connect);
    story::an_absent_origin(LOCAL, nobody, poll, connect);
}

#[test]
fn answers_at_hand_are_finished_before_each_host_stops() {
    finishes(select);
    finishes(poll);
}
