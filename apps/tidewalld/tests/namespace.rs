//! The rights that the daemon grants, tested by its clients and by raw ones.

mod support;

use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    bind, recvmsg, socket_with, sockopt,
};
use rustix::process::{Pid, Signal, kill_process};
use support::*;
use tidewall_device::demux::layout::{Counter, Protocol};
use tidewall_device::demux::{ANY, ApplicationTables};
use tidewall_manager::client::Client;
use tidewall_manager::connection::{Connection, Listener};
use tidewall_manager::places;
use tidewall_manager::protocol::*;
use tidewall_manager::view::View;
use tidewall_sys::netlink::Rtnetlink;

#[test]
fn a_daemon_is_killed_and_another_takes_over() {
    run("a_daemon_is_killed_and_another_takes_over");
}

#[test]
fn ports_are_owned_by_those_who_hold_them() {
    run("ports_are_owned_by_those_who_hold_them");
}

#[test]
fn systemd_hands_over_a_socket_and_is_notified() {
    run("systemd_hands_over_a_socket_and_is_notified");
}

#[test]
fn a_stored_socket_is_taken_up_again() {
    run("a_stored_socket_is_taken_up_again");
}

#[test]
fn applications_are_shown_to_their_users_and_all_to_root() {
    run("applications_are_shown_to_their_users_and_all_to_root");
}

#[test]
fn no_socket_outlives_its_daemon() {
    run("no_socket_outlives_its_daemon");
}

#[test]
fn neighbours_of_the_administrator_are_left_alone() {
    run_with_peer("neighbours_of_the_administrator_are_left_alone", 60);
}

#[test]
fn neighbours_stay_resolved_as_long_as_their_application() {
    run("neighbours_stay_resolved_as_long_as_their_application");
}

#[test]
fn it_is_followed_whether_the_kernel_has_a_use_for_others_frames() {
    run("it_is_followed_whether_the_kernel_has_a_use_for_others_frames");
}

#[test]
fn only_four_capabilities_are_kept() {
    if tidewall_skip::has_programs("only_four_capabilities_are_kept", &["setpriv"]) {
        run("only_four_capabilities_are_kept");
    }
}

#[test]
fn without_a_socket_nothing_is_attached() {
    run("without_a_socket_nothing_is_attached");
}

/// Returns a daemon to which systemd passes a socket, with its own path.
fn passed(listener: &impl AsFd, path: &Path) -> Command {
    let own = command();
    let arguments = own.get_args().map(|argument| match argument == socket() {
        true => path.as_os_str(),
        false => argument,
    });
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0",
            DAEMON,
        ])
        .args(arguments)
        .stdin(listener.as_fd().try_clone_to_owned().unwrap());
    command
}

/// The socket on which a daemon notifies systemd.
struct Notified {
    socket: UnixDatagram,
    path: PathBuf,
}

fn notified() -> Notified {
    let mut path = directory().into_os_string();
    path.push(".notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let time = Some(Duration::from_secs(20));
    socket.set_read_timeout(time).unwrap();
    Notified {
        socket,
        path: path.into(),
    }
}

impl Notified {
    /// Returns the next state, and the descriptors beside it.
    fn hear(&self) -> (String, Vec<OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 64];
        let mut slice = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let length = recvmsg(&self.socket, &mut slice, &mut ancillary, flags).unwrap();
        let rights = ancillary.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => rights.collect(),
            _ => Vec::new(),
        });
        let rights = rights.collect();
        let state = String::from_utf8_lossy(&bytes[..length.bytes]).into_owned();
        (state, rights)
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A datagram socket that shares its port.
fn shared(port: u16) -> UdpSocket {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None).unwrap();
    sockopt::set_socket_reuseport(&socket, true).unwrap();
    bind(&socket, &SocketAddr::from(([0, 0, 0, 0], port))).unwrap();
    UdpSocket::from(socket)
}

mod inside {
    use super::*;

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_daemon_is_killed_and_another_takes_over() {
        let reserved = std::fs::read_to_string(RESERVED).unwrap();
        let (mut daemon, said) = start();
        assert!(said.contains("program=attached mode=native"), "{said}");
        let text = refused(&mut command());
        assert!(text.contains("another manager"), "{text}");
        assert_eq!(command().arg("--remove").status().unwrap().code(), Some(2));

        let socket_of_one = UdpSocket::bind("0.0.0.0:7000").unwrap();
        let one = client();
        one.own_port(Protocol::Udp, &socket_of_one).unwrap();
        let block = one.lease(Protocol::Tcp).unwrap();
        let other = client();
        let socket_of_other = TcpListener::bind("10.77.0.1:7001").unwrap();
        other.own_port(Protocol::Tcp, &socket_of_other).unwrap();
        let both = [
            (Protocol::Tcp, [10, 77, 0, 1].into(), 7001),
            (Protocol::Udp, ANY[0], 7000),
        ];
        assert_eq!(owned(), both);

        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        // The program goes on without its daemon.
        assert!(is_attached(INTERFACE));
        assert_eq!(owned(), both);
        let tables = trusted();
        let frames = || tables.counter(0, Counter::Frames);
        let before = frames();
        let sender = UdpSocket::bind("10.78.0.1:0").unwrap();
        wait_until("frames are counted", || {
            // This makes it resolve a neighbour that does not exist.
            let _ = sender.send_to(b"anybody?", "10.78.0.9:9");
            frames() > before
        });
        // One dies with the daemon, the other survives.
        drop(other);
        drop(socket_of_other);

        let (daemon, said) = start();
        assert!(said.contains("program=\"taken over\""), "{said}");
        assert_eq!(owned(), both, "awaited");
        let counters = one.counters().unwrap();
        assert_eq!((counters.presented, counters.ports), (1, 2));
        assert_eq!(counters.blocks, 1);
        wait_until("the other is cleared away", || owned() == both[1..]);
        // The first kept its ports.
        let counters = one.counters().unwrap();
        assert_eq!(
            (counters.applications, counters.ports, counters.blocks),
            (1, 1, 1)
        );
        one.return_lease(&block);
        // The answer arrives after that is done.
        one.counters().unwrap();
        assert_eq!(std::fs::read_to_string(RESERVED).unwrap(), reserved);
        drop(one);
        wait_until("nothing is owned", || owned().is_empty());

        // Ended by a signal: everything continues, too.
        let pid = rustix::process::Pid::from_child(&daemon.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut daemon = daemon;
        assert!(daemon.0.wait().unwrap().success());
        assert!(is_attached(INTERFACE));
        assert!(command().arg("--remove").status().unwrap().success());
        assert!(!is_attached(INTERFACE));
        assert!(!pins().exists());
        assert_eq!(std::fs::read_to_string(RESERVED).unwrap(), reserved);
        // Nothing to remove is as good.
        assert!(command().arg("--remove").status().unwrap().success());
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn ports_are_owned_by_those_who_hold_them() {
        let (_daemon, _) = start();
        // An untrusted user receives nothing.
        let error = as_user(TRUSTED + 1, || {
            Client::join(&socket(), &join()).unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("--trust"), "{error}");
        // A trusted user needs no privilege for the rest.
        let application = as_user(TRUSTED, || {
            let (client, handed) = Client::join(&socket(), &join()).unwrap();
            let joined = client.joined();
            assert_eq!(as_text(&joined.name), INTERFACE);
            assert_eq!((joined.domain, joined.mode), (TRUSTED, 1));
            ApplicationTables::of_map(
                handed.tables.as_fd(),
                joined.application as u16,
                joined.hash_key,
            )
            .unwrap();
            let listener = TcpListener::bind("[::]:8080").unwrap();
            client.own_port(Protocol::Tcp, &listener).unwrap();
            // Below 1024 the kernel has rejected it already.
            let refused = TcpListener::bind("0.0.0.0:80").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
            (client, listener)
        });
        assert_eq!(owned(), ANY.map(|all| (Protocol::Tcp, all, 8080)));
        drop(application);
        wait_until("the port is the kernel's again", || owned().is_empty());

        let one = client();
        let other = client();
        let holder = shared(7000);
        let cookie = one.own_port(Protocol::Udp, &holder).unwrap();
        let conflict = UdpSocket::bind("0.0.0.0:7000").unwrap_err();
        assert_eq!(conflict.kind(), ErrorKind::AddrInUse);
        let theirs = shared(7000);
        let conflict = other.own_port(Protocol::Udp, &theirs).unwrap_err();
        assert_eq!(conflict.kind(), ErrorKind::AddrInUse, "{conflict}");
        one.disown_port(cookie);
        one.counters().unwrap();
        assert_eq!(owned(), []);
        other.own_port(Protocol::Udp, &theirs).unwrap();

        wrong_holders_are_refused();
        // Silently: its end is enough.
        drop(other);
        wait_until("it hung up", || owned().is_empty());
        // A second socket on the same port may be owned before the first's end is
        // noticed.
        let listener = TcpListener::bind("0.0.0.0:7001").unwrap();
        one.own_port(Protocol::Tcp, &listener).unwrap();
        drop(listener);
        leases_are_kept_from_the_kernel(&one);
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn systemd_hands_over_a_socket_and_is_notified() {
        let listener = Listener::bind(&socket()).unwrap();
        let notified = notified();
        // A path that the daemon must not need.
        let child = passed(&listener, Path::new("/nowhere/at/all"))
            .env("NOTIFY_SOCKET", &notified.path)
            .env("WATCHDOG_USEC", "100000")
            .spawn()
            .unwrap();
        let mut daemon = Daemon(child);
        let hear = || notified.hear().0;
        assert_eq!(hear(), "READY=1");
        assert_eq!(hear(), "WATCHDOG=1");
        assert_eq!(client().counters().unwrap().applications, 1);
        let pid = rustix::process::Pid::from_child(&daemon.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        while hear() != "STOPPING=1" {}
        assert!(daemon.0.wait().unwrap().success());
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn applications_are_shown_to_their_users_and_all_to_root() {
        let mut metrics = directory().into_os_string();
        metrics.push(".metrics");
        let metrics = PathBuf::from(metrics);
        let (_daemon, _) = start_with(command().arg("--metrics").arg(&metrics));
        let of_root = client();
        let listener = TcpListener::bind("0.0.0.0:7001").unwrap();
        of_root.own_port(Protocol::Tcp, &listener).unwrap();
        let of_user = as_user(TRUSTED, client);
        of_user.lease(Protocol::Udp).unwrap();
        let seen = |uid| {
            as_user(uid, || {
                let view = View::connect(&socket()).unwrap();
                let all = view.applications().unwrap();
                let of = |status: Status| (status.domain, status.ports, status.blocks);
                let all: Vec<_> = all.into_iter().map(of).collect();
                (all, view.queue(0).map(|of| of.queues))
            })
        };
        let (all, queues) = seen(0);
        assert_eq!(all, [(0, 1, 0), (TRUSTED, 0, 1)]);
        assert_eq!(queues.unwrap(), 1);
        let (own, queues) = seen(TRUSTED);
        assert_eq!(own, [(TRUSTED, 0, 1)]);
        assert_eq!(queues.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(seen(TRUSTED + 1).0, []);
        let view = View::connect(&socket()).unwrap();
        assert_eq!(view.queue(7).unwrap_err().kind(), ErrorKind::InvalidInput);

        let mut scraper = UnixStream::connect(&metrics).unwrap();
        scraper.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        scraper.read_to_string(&mut answer).unwrap();
        let line = format!(
            "tidewall_application_blocks{{interface=\"{INTERFACE}\",application=\"{}\",\
             user=\"{TRUSTED}\",process=\"{}\"}} 1\n",
            of_user.joined().application,
            std::process::id()
        );
        assert!(answer.contains(&line), "{answer}");
        let closed = as_user(TRUSTED, || UnixStream::connect(&metrics).map(|_| ()));
        assert_eq!(closed.unwrap_err().kind(), ErrorKind::PermissionDenied);
        std::fs::remove_file(metrics).unwrap();
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn no_socket_outlives_its_daemon() {
        let (mut daemon, _) = start();
        // It serves, and so ends by signals.
        counters();
        kill_process(Pid::from_child(&daemon.0), Signal::TERM).unwrap();
        assert!(daemon.0.wait().unwrap().success());
        assert!(!socket().exists());
        // A killed daemon leaves it, and `--remove` removes it.
        drop(start());
        assert!(socket().exists() && places::is_dead(&socket()));
        assert!(command().arg("--remove").status().unwrap().success());
        assert!(!socket().exists() && !places::is_dead(&socket()));
        // Nor does a start that fails leave one.
        let mut wrong = Command::new(DAEMON);
        wrong.args(["--interface", "tw-none", "--pins"]).arg(pins());
        let text = refused(wrong.arg("--socket").arg(socket()));
        assert!(text.contains("tw-none"), "{text}");
        assert!(!socket().exists());
        // Another daemon's socket, which has a listener, stays.
        let _other = Listener::bind(&socket()).unwrap();
        assert!(!places::is_dead(&socket()));
        assert!(command().arg("--remove").status().unwrap().success());
        assert!(socket().exists());
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn neighbours_of_the_administrator_are_left_alone() {
        let (daemon, _) = start();
        let index = tidewall_sys::interface::index(INTERFACE).unwrap();
        let mut netlink = Rtnetlink::open().unwrap();
        let [permanent, noarp] = [2, 3].map(|last| IpAddr::from([10, 77, 0, last]));
        let add = |address: IpAddr, state: &str| {
            let change = format!("lladdr 2:0:0:0:0:7 dev {INTERFACE} nud {state}");
            ip(&format!("neigh replace {address} {change}"));
        };
        add(permanent, "permanent");
        add(noarp, "noarp");
        let before = [permanent, noarp].map(|it| netlink.neighbour(index, it).unwrap());
        let ask = |connection: &Connection, request: &Request| {
            connection.send(&request.emit(1), &[]).unwrap();
            let received = connection.receive().unwrap().unwrap();
            Answer::parse(&received.bytes).unwrap().1
        };
        let applications = [(); 2].map(|()| {
            let connection = Connection::connect(&socket()).unwrap();
            wait_until("it has joined", || {
                matches!(ask(&connection, &Request::Join(join())), Answer::Joined(_))
            });
            connection
        });
        let resolve = |of: usize, address: IpAddr| {
            let address = address_bytes(address);
            let request = Request::Resolve(Address { address });
            match ask(&applications[of], &request) {
                Answer::Error(failure) => Err(failure.errno),
                _ => Ok(()),
            }
        };
        for address in [permanent, noarp] {
            resolve(0, address).unwrap();
        }
        // An entry that becomes permanent after the request.
        let later: IpAddr = [10, 77, 0, 4].into();
        resolve(0, later).unwrap();
        add(later, "permanent");
        // Not neighbours: this host's own address, for all, multicast, and behind no
        // route of the interface.
        for address in [
            [10, 77, 0, 1],
            [10, 77, 0, 255],
            [224, 0, 0, 1],
            [8, 8, 8, 8],
            [127, 0, 0, 1],
            [0, 0, 0, 0],
        ] {
            assert_eq!(resolve(0, address.into()), Err(libc::EINVAL), "{address:?}");
        }
        let multicast: IpAddr = "ff02::1".parse().unwrap();
        assert!(resolve(0, multicast).is_err());
        // A user's share, whichever application asks.
        let kept = || {
            let mut netlink = Rtnetlink::open().unwrap();
            netlink.kept_neighbours(index, 0x54).unwrap().len()
        };
        let addresses = (10..110).map(|last| IpAddr::from([10, 77, 0, last]));
        let asked = (0..).zip(addresses).map(|(at, it)| resolve(at % 2, it));
        let refused = asked.filter_map(Result::err).collect::<Vec<_>>();
        assert_eq!(kept(), 63);
        assert_eq!(refused, [libc::ENOBUFS; 37]);
        drop(applications);
        wait_until("none is kept", || kept() == 0);
        drop(daemon);
        let after = [permanent, noarp].map(|it| netlink.neighbour(index, it).unwrap());
        assert_eq!(before, after);
        assert!(netlink.neighbour(index, later).unwrap().is_static());
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn neighbours_stay_resolved_as_long_as_their_application() {
        let kept = || {
            let mut netlink = Rtnetlink::open().unwrap();
            let index = tidewall_sys::interface::index(INTERFACE).unwrap();
            netlink.kept_neighbours(index, 0x54).unwrap()
        };
        let (daemon, _) = start();
        // The entry of another program is not the manager's business.
        ip(&format!(
            "neigh add 10.77.0.7 lladdr 2:0:0:0:0:7 dev {INTERFACE}"
        ));
        let connection = Connection::connect(&socket()).unwrap();
        let ask = |connection: &Connection, request: &Request| {
            connection.send(&request.emit(1), &[]).unwrap();
            let received = connection.receive().unwrap().unwrap();
            Answer::parse(&received.bytes).unwrap().1
        };
        // A client that is too early retries.
        let join = |connection: &Connection| {
            wait_until("it has joined", || {
                matches!(ask(connection, &Request::Join(join())), Answer::Joined(_))
            });
        };
        join(&connection);
        let wanted: std::net::IpAddr = [10, 77, 0, 9].into();
        let resolve = Request::Resolve(Address {
            address: address_bytes(wanted),
        });
        assert_eq!(ask(&connection, &resolve), Answer::Done(Empty {}));
        assert_eq!(kept(), [wanted]);
        // Not by a flush, which gives up if the daemon is as fast.
        ip(&format!("neigh del {wanted} dev {INTERFACE}"));
        wait_until("a deleted neighbour is back", || kept() == [wanted]);
        ip(&format!("link set {INTERFACE} down"));
        ip(&format!("link set {INTERFACE} up"));
        wait_until("it is back with the link", || kept() == [wanted]);
        drop(connection);
        wait_until("nobody asks for it any more", || kept().is_empty());

        // The entries of a dead manager are found.
        let connection = Connection::connect(&socket()).unwrap();
        join(&connection);
        assert_eq!(ask(&connection, &resolve), Answer::Done(Empty {}));
        drop(daemon);
        assert_eq!(kept(), [wanted]);
        assert!(command().arg("--remove").status().unwrap().success());
        assert!(kept().is_empty());
    }

    /// A field of /proc/PID/status.
    fn status(process: u32, field: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let of = |line: &str| {
            Some(
                line.strip_prefix(field)?
                    .strip_prefix(':')?
                    .trim()
                    .to_owned(),
            )
        };
        status.lines().find_map(of).unwrap()
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn it_is_followed_whether_the_kernel_has_a_use_for_others_frames() {
        let (_daemon, _) = start();
        let tables = trusted();
        let has_use = || tables.map().control.kernel_uses.load(Ordering::Relaxed) != 0;
        for (begin, end) in [
            ("link set {IF} promisc on", "link set {IF} promisc off"),
            (
                "route add local 198.18.0.0/15 dev lo",
                "route del local 198.18.0.0/15 dev lo",
            ),
        ] {
            wait_until("none", || !has_use());
            ip(&begin.replace("{IF}", INTERFACE));
            wait_until(begin, has_use);
            ip(&end.replace("{IF}", INTERFACE));
        }
        wait_until("none", || !has_use());
        let setting = format!("/proc/sys/net/ipv6/conf/{INTERFACE}/forwarding");
        std::fs::write(setting, "1").unwrap();
        wait_until("it forwards", has_use);
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn only_four_capabilities_are_kept() {
        // CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON, CAP_BPF.
        let kept = [12, 13, 38, 39];
        let mut bits: u64 = kept.iter().map(|number| 1 << number).sum();
        let (daemon, _) = start();
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.0.id())).unwrap();
        let limit = |name| limits.lines().find(|line| line.starts_with(name));
        let open: Vec<&str> = limit("Max open files")
            .unwrap()
            .split_whitespace()
            .collect();
        assert_eq!(open[3], open[4]);
        let locked = limit("Max locked memory");
        if !locked.unwrap().contains("unlimited") {
            // Or CAP_IPC_LOCK, where the limit could not be raised.
            bits |= 1 << 14;
        }
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            let value = u64::from_str_radix(&status(daemon.0.id(), set), 16).unwrap();
            assert_eq!(value, bits, "{set}");
        }
        for set in ["CapInh", "CapAmb"] {
            let value = u64::from_str_radix(&status(daemon.0.id(), set), 16).unwrap();
            assert_eq!(value, 0, "{set}");
        }
        assert_eq!(status(daemon.0.id(), "NoNewPrivs"), "1");
        // They suffice.
        let client = client();
        let listener = TcpListener::bind("0.0.0.0:7001").unwrap();
        let cookie = client.own_port(Protocol::Tcp, &listener).unwrap();
        let block = client.lease(Protocol::Udp).unwrap();
        client.disown_port(cookie);
        client.return_lease(&block);
        assert_eq!(client.counters().unwrap().blocks, 0);
        drop(daemon);
        for (number, name) in kept
            .into_iter()
            .zip(["NET_ADMIN", "NET_RAW", "PERFMON", "BPF"])
        {
            let daemon = command();
            let mut without = Command::new("setpriv");
            let text = refused(
                without
                    .arg(format!("--bounding-set=-cap_{number}"))
                    .arg(DAEMON)
                    .args(daemon.get_args()),
            );
            assert!(text.contains(&format!("lacks CAP_{name}:")), "{text}");
            assert!(text.contains("run it as root"), "{text}");
        }
        // And for giving everything back.
        assert!(command().arg("--remove").status().unwrap().success());
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn without_a_socket_nothing_is_attached() {
        let mut command = Command::new(DAEMON);
        command.args(["--interface", INTERFACE]);
        command.arg("--pins").arg(pins());
        let text = refused(command.args(["--socket", "/nonexistent/socket"]));
        // A client that reads "began" may connect.
        assert!(!text.contains("event=began"), "{text}");
        assert!(!is_attached(INTERFACE));
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_stored_socket_is_taken_up_again() {
        let notified = notified();
        // Its own socket, which systemd must keep.
        let mut child = command()
            .env("NOTIFY_SOCKET", &notified.path)
            .spawn()
            .unwrap();
        let (state, descriptors) = notified.hear();
        assert_eq!(state, "FDSTORE=1\nFDNAME=tidewalld");
        let [stored]: [_; 1] = descriptors.try_into().unwrap();
        assert_eq!(notified.hear().0, "READY=1");
        child.kill().unwrap();
        child.wait().unwrap();
        // A client that connects now waits.
        let waiting = Connection::connect(&socket()).unwrap();
        let (_daemon, said) =
            start_with(passed(&stored, &socket()).env("LISTEN_FDNAMES", "tidewalld"));
        assert!(said.contains("taken over"), "{said}");
        waiting
            .send(&Request::GetCounters(Empty {}).emit(1), &[])
            .unwrap();
        assert!(waiting.receive().unwrap().is_some());
    }

    fn wrong_holders_are_refused() {
        let connection = Connection::connect(&socket()).unwrap();
        let ask = |request: Request, socket: Option<&UdpSocket>| {
            let descriptors: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
            connection.send(&request.emit(1), &descriptors).unwrap();
            let received = connection.receive().unwrap().unwrap();
            match Answer::parse(&received.bytes).unwrap().1 {
                Answer::Error(failure) => failure.errno,
                _ => 0,
            }
        };
        let own = |port, protocol| {
            Request::OwnPort(Port {
                address: address_bytes([0, 0, 0, 0].into()),
                port,
                protocol,
                pad: 0,
            })
        };
        let holder = UdpSocket::bind("0.0.0.0:7100").unwrap();
        // Descriptors may be passed only after Join.
        let too_early = ask(own(7100, 17), None);
        assert_eq!(too_early, Errno::NOTCONN.raw_os_error());
        // A client that is too early retries.
        wait_until("it has joined", || ask(Request::Join(join()), None) == 0);
        for (port, protocol) in [(7101, 17), (7100, 6), (0, 17)] {
            let errno = ask(own(port, protocol), Some(&holder));
            assert_eq!(errno, Errno::INVAL.raw_os_error(), "{port} {protocol}");
        }
        assert_eq!(ask(own(7100, 17), None), Errno::BADF.raw_os_error());
        assert!(!owned().iter().any(|of| of.2 == 7100 || of.2 == 7101));
        // Garbage is answered, and the connection stays.
        connection.send(&[0xff; MESSAGE_BYTES], &[]).unwrap();
        let received = connection.receive().unwrap().unwrap();
        let answer = Answer::parse(&received.bytes).unwrap().1;
        assert!(
            matches!(answer, Answer::Error(failure) if failure.errno == Errno::PROTO.raw_os_error())
        );
        assert_eq!(ask(own(7100, 17), Some(&holder)), 0);
    }

    fn leases_are_kept_from_the_kernel(client: &Client) {
        let block = client.lease(Protocol::Udp).unwrap();
        let reserved = std::fs::read_to_string(RESERVED).unwrap();
        let last = block.first + (block.count - 1);
        assert_eq!(reserved.trim(), format!("{}-{last}", block.first));
        // No block is leased at an existing socket.
        let taken = UdpSocket::bind(("0.0.0.0", block.first + block.count)).unwrap();
        let second = client.lease(Protocol::Udp).unwrap();
        assert_eq!(second.first, block.first + 2 * block.count);
        drop(taken);
        let ports = trusted().owned_ports().unwrap();
        let leased = ports.iter().filter(|of| of.2 >= 32_768).count();
        // On all addresses of both families.
        assert_eq!(leased, 2 * usize::from(block.count + second.count));
        // And protected from users who would bind them themselves.
        let taken = TcpListener::bind(("0.0.0.0", block.first)).map(drop);
        taken.unwrap();
        let refused = UdpSocket::bind(("0.0.0.0", block.first)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
    }
}
