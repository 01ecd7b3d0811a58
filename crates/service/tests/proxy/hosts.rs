//! The same stories on the other hosts of Linux.

use tidewall_service::http::proxy::Spec;
use tidewall_service::linux_sockets::LinuxSockets;
use tidewall_service::{PollHost, SelectHost};

use super::forwarding::{answers_large_and_small, curl_through};
use super::origin::{Origin, reply};
use super::trouble::finishes;
use super::*;

fn select() -> SelectHost<LinuxSockets> {
    SelectHost::new(LinuxSockets::new())
}

fn poll() -> PollHost<LinuxSockets> {
    PollHost::new(LinuxSockets::new())
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

/// More connections than an `fd_set` of the C library holds, all idle, and one
/// that is not.
fn cold<H: StreamHost>(host: impl FnOnce() -> H + Send) {
    const COLD: usize = 1200;
    let origin = Origin::saying(reply("200 OK", "ETag: \"e\"\r\n", b"warm"));
    proxying_on(host, &Spec::new(0, Some(origin.address)), |proxy| {
        let idle: Vec<TcpStream> = (0..COLD).map(|_| proxy.connect()).collect();
        proxy.until("accepted", |_, reader| reader.read()[0].open == COLD as u64);
        let mut stream = proxy.connect();
        for _ in 0..50 {
            assert_eq!(get(&mut stream, "/", "").body, b"warm");
        }
        drop(idle);
        proxy.until("closed", |_, reader| reader.read()[0].open == 1);
        assert_eq!(get(&mut stream, "/", "").body, b"warm");
    });
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
    fn story<H: StreamHost>(host: impl FnOnce() -> H + Send) {
        let address = std::net::TcpListener::bind((LOCAL, 0))
            .unwrap()
            .local_addr()
            .unwrap();
        proxying_on(host, &Spec::new(0, Some(address)), |proxy| {
            let mut stream = proxy.connect();
            assert_eq!(get(&mut stream, "/", "").status, 502);
        });
    }
    story(select);
    story(poll);
}

#[test]
fn answers_at_hand_are_finished_before_each_host_stops() {
    finishes(select);
    finishes(poll);
}
