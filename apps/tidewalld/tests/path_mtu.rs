//! A path whose MTU is below the interface's: a router, and a client behind it, with an
//! application in direct mode and a private one.

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::io::Errno;
use support::application::{Application, drop_privileges};
use support::*;
use tidewall::{EmbeddedConfig, Stack};

const HERE: [&str; 2] = ["10.77.0.1", "fd77::1"];
const ADDRESS: [&str; 2] = ["10.79.0.2", "fd79::2"];
/// Port of the echo, for datagrams and for bytes.
const PORT: u16 = 7007;
/// MTU of the path, and a payload that exceeds it.
const MTU: usize = 1300;
const LONG: usize = 1400;
/// A payload that exceeds the interface's MTU.
const LONGER: usize = 1600;
/// Sent instead of an answer that is rejected with EMSGSIZE.
const REFUSED: &[u8] = b"too long";
const ROUNDS: u32 = 20;

#[test]
fn errors_of_routers_reach_an_application_in_direct_mode() {
    run_with_peer("errors_of_routers_reach_an_application_in_direct_mode", 60);
}

#[test]
fn errors_of_routers_reach_a_private_application() {
    run_with_peer("errors_of_routers_reach_a_private_application", 60);
}

/// A namespace behind the peer, which ends with its process.
struct Client(Child);

impl Client {
    /// Makes the peer a router to it, over a link of that MTU. The client announces that
    /// it accepts segments of our full length.
    fn behind_a_router() -> Self {
        let mut unshare = Command::new("unshare");
        let client = Client(unshare.args(["--net", "sleep", "600"]).spawn().unwrap());
        let process = client.0.id();
        let (mine, its) = (namespace(std::process::id()), || namespace(process));
        wait_until("it has a namespace", || its() != mine);
        at_peer(|| {
            shell(&format!(
                "echo 1 >/proc/sys/net/ipv4/ip_forward
                 echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
                 ip -6 addr add fd77::2/64 dev tw-peer nodad
                 ip link add tw-far type veth peer name tw-client netns {process}
                 ip addr add 10.79.0.1/24 dev tw-far
                 ip -6 addr add fd79::1/64 dev tw-far nodad
                 ip link set tw-far mtu {MTU} up"
            ));
        });
        within(&process.to_string(), || {
            shell(&format!(
                "ip addr add {}/24 dev tw-client
                 ip -6 addr add {}/64 dev tw-client nodad
                 ip link set tw-client mtu {MTU} up
                 ip route add default via 10.79.0.1 advmss 1460
                 ip -6 route add default via fd79::1 advmss 1440",
                ADDRESS[0], ADDRESS[1]
            ));
        });
        shell(&format!(
            "ip -6 addr add fd77::1/64 dev {INTERFACE} nodad
             ip route add 10.79.0.0/24 via 10.77.0.2
             ip -6 route add fd79::/64 via fd77::2"
        ));
        client
    }

    /// Runs in its namespace.
    fn at<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        within(&self.0.id().to_string(), body)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn namespace(process: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

fn shell(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status();
    assert!(status.unwrap().success(), "{script}");
}

fn ask(socket: &UdpSocket, payload: &[u8]) -> bool {
    let mut buffer = [0; 2048];
    socket.send(payload).unwrap();
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) if buffer[..length] == *payload => return true,
            // From an earlier request.
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

/// Datagrams and segments that are longer than the path allows.
fn longer_than_the_path_allows(client: &Client, family: usize) {
    let to: SocketAddr = (HERE[family].parse::<IpAddr>().unwrap(), PORT).into();
    let bind = || UdpSocket::bind((ADDRESS[family], 0)).unwrap();
    let socket = client.at(bind);
    socket
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    socket.connect(to).unwrap();
    wait_until("neighbours are known", || ask(&socket, b"short"));
    // The client's kernel fragments the question; the first answers are lost.
    let mut buffer = [0; 2048];
    if to.is_ipv4() {
        wait_until("a long answer arrives", || ask(&socket, &[1; LONG]));
    } else {
        // Exceeds the path's MTU, but not the interface's.
        wait_until("it is refused", || {
            socket.send(&[1; LONG]).unwrap();
            let received = socket.recv(&mut buffer);
            received.is_ok_and(|length| &buffer[..length] == REFUSED)
        });
    }
    let long = if to.is_ipv4() { LONG } else { LONGER };
    for round in 0..ROUNDS {
        let answered = (0..3).any(|_| ask(&socket, &vec![2; long]));
        assert!(answered, "{to}, round {round}");
    }

    let mut stream = client.at(|| TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap());
    let limit = Some(Duration::from_secs(10));
    stream.set_read_timeout(limit).unwrap();
    let sent: Vec<u8> = (0..200_000u32).map(|at| at as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| writer.write_all(&sent).unwrap());
        let mut received = vec![0; sent.len()];
        stream.read_exact(&mut received).unwrap();
        assert!(received == sent);
    });
}

fn serve_and_ask(user: u32) {
    let client = Client::behind_a_router();
    let (_daemon, _) = start_with(command().args(["--private", "any", "--ports", "1-65535"]));
    let _application = Application::start(&[("TW_USER", user.to_string())]);
    for family in 0..HERE.len() {
        longer_than_the_path_allows(&client, family);
    }
}

mod inside {
    use super::*;

    #[test]
    #[ignore = "started by the test of this name"]
    fn errors_of_routers_reach_an_application_in_direct_mode() {
        serve_and_ask(TRUSTED);
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn errors_of_routers_reach_a_private_application() {
        serve_and_ask(TRUSTED + 1);
    }

    /// Echoes datagrams, and the bytes of connections.
    #[test]
    #[ignore = "a process of the other tests"]
    fn serve() {
        drop_privileges(std::env::var("TW_USER").unwrap().parse().unwrap());
        let stack = Stack::managed(&socket(), EmbeddedConfig::new("")).unwrap();
        let local = SocketAddr::new(IpAddr::from([0u16; 8]), PORT);
        let datagrams = tidewall::UdpSocket::bind(&stack, local).unwrap();
        let listener = tidewall::TcpListener::bind(&stack, local).unwrap();
        println!("serves");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = [0; 2048];
                loop {
                    let (length, from) = datagrams.recv_from(&mut buffer).unwrap();
                    let sent = datagrams.send_to(&buffer[..length], from);
                    let errno = sent.err().and_then(|error| Errno::from_io_error(&error));
                    if errno == Some(Errno::MSGSIZE) {
                        datagrams.send_to(REFUSED, from).unwrap();
                    }
                }
            });
            loop {
                let (mut stream, _) = listener.accept().unwrap();
                scope.spawn(move || {
                    let mut buffer = vec![0; 65_536];
                    while let Ok(length @ 1..) = stream.read(&mut buffer) {
                        stream.write_all(&buffer[..length]).unwrap();
                    }
                });
            }
        });
    }
}
