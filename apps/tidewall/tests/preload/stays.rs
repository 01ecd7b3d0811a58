//! Sockets that cannot be the stack's, or no longer, continue on the kernel.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::Preloaded;
use super::common::host::{Host, library};
use super::common::{PROGRAM, Running};

/// Answers connections and datagrams, each once a descriptor is ready; reports the
/// control messages of a datagram, and whether the listener listens.
const SERVER: &str = r#"
import select, socket, sys
def listen(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(('0.0.0.0', port))
    listener.listen(64)
    return listener
tcp, udp = int(sys.argv[1]), int(sys.argv[2])
listener = listen(tcp)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(('0.0.0.0', udp))
waits = select.epoll() if sys.argv[3] == 'epoll' else select.poll()
waits.register(listener, select.POLLIN)
waits.register(datagrams, select.POLLIN)
while True:
    for number, events in waits.poll():
        assert events == select.POLLIN, events
        if number == listener.fileno():
            connection, _ = listener.accept()
            listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            connection.sendall(b'listens %d' % listens)
            connection.close()
        else:
            data, beside, _, peer = datagrams.recvmsg(100, 1000)
            datagrams.sendto(b'%s beside %d' % (data, len(beside)), peer)
"#;

/// Queries both; prints the answers.
const CLIENT: &str = r#"
import socket, sys
host, tcp, udp = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
peer = socket.create_connection((host, tcp), 10)
said = b''
while part := peer.recv(100): said += part
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(10)
client.sendto(b'hello', (host, udp))
print(said.decode(), client.recv(100).decode())
"#;

const HERE: &str = "10.99.0.2";

#[test]
fn what_a_manager_refuses_is_as_before() {
    let test = "what_a_manager_refuses_is_as_before";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "sa") else {
        return;
    };
    let program = ["python3", "-c", SERVER, "8211", "8212", "epoll"];
    let server = Preloaded::start_with(host, &["--ports", "8210"], &program, Stdio::inherit());
    for _ in 0..3 {
        let said = server.answered("python3", &["-c", CLIENT, HERE, "8211", "8212"]);
        assert_eq!(said, "listens 1 hello beside 0\n");
    }
    let records = server.records();
    let refused = |it: &&[String; 4]| it[0] == "kernel" && it[1] == "datagrams";
    let record = records.iter().find(refused).expect("a record");
    assert!(record[3].contains("port"), "{record:?}");
}

#[test]
fn a_listener_is_the_stacks_once_its_manager_is_there() {
    let test = "a_listener_is_the_stacks_once_its_manager_is_there";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "sh") else {
        return;
    };
    let manager = format!("/run/tidewall/{}.manager", host.bed.interface);
    let script = "mv $TIDEWALL_MANAGER $TIDEWALL_MANAGER.away && exec python3 -c \"$0\" \"$@\"";
    let program = ["sh", "-c", script, SERVER, "8261", "8262", "epoll"];
    let server = Preloaded::start(host, &program);
    let asked = || {
        let said = server.answered("python3", &["-c", CLIENT, HERE, "8261", "8262"]);
        assert!(said.starts_with("listens 1 hello"), "{said}");
    };
    asked();
    server.until_listener("kernel", "0.0.0.0:8261");
    let away = format!("{manager}.away");
    server.host.output("mv", &[&away, &manager]);
    let end = Instant::now() + Duration::from_secs(30);
    while !server.has(["promoted", "listener", "0.0.0.0:8261"]) {
        assert!(Instant::now() < end, "{:?}", server.records());
        asked();
    }
    asked();
}

/// Workers that share a listener, each with its own epoll set.
const WORKERS: &str = r#"
import os, select, socket
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('0.0.0.0', 8221))
listener.listen(64)
listener.setblocking(False)
for number in range(4):
    if os.fork() == 0:
        epoll = select.epoll()
        epoll.register(listener, select.EPOLLIN)
        while True:
            epoll.poll()
            try: connection, _ = listener.accept()
            except BlockingIOError: continue
            listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            connection.sendall(b'listens %d' % listens)
            connection.close()
os.wait()
"#;

#[test]
fn workers_of_one_listener_serve_in_private_mode() {
    let test = "workers_of_one_listener_serve_in_private_mode";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "sb") else {
        return;
    };
    let program = ["python3", "-c", WORKERS];
    let server = Preloaded::start_with(host, &["--private"], &program, Stdio::inherit());
    let client = "import socket
for _ in range(40):
    peer = socket.create_connection(('10.99.0.2', 8221), 10)
    assert peer.recv(100) == b'listens 1'
print('all')";
    assert_eq!(server.answered("python3", &["-c", client]), "all\n");
    // With each having tried.
    assert_eq!(server.answered("python3", &["-c", client]), "all\n");
}

#[test]
fn nginx_with_four_workers_serves_in_private_mode_and_after_a_reload() {
    let test = "nginx_with_four_workers_serves_in_private_mode_and_after_a_reload";
    if !tidewall_skip::has_programs(test, &["nginx", "python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "sg") else {
        return;
    };
    let directory = std::env::temp_dir().join(format!("{}.nginx", host.bed.interface));
    fs::create_dir_all(&directory).unwrap();
    let place = directory.display();
    let configuration = directory.join("nginx.conf");
    let text = format!(
        "daemon off; worker_processes 4; error_log stderr; pid {place}/pid;
         events {{ worker_connections 64; }}
         http {{
             access_log off;
             client_body_temp_path {place}/t1; proxy_temp_path {place}/t2;
             fastcgi_temp_path {place}/t3; uwsgi_temp_path {place}/t4; scgi_temp_path {place}/t5;
             server {{ listen 8251; location / {{ return 200 yes; }} }}
         }}"
    );
    fs::write(&configuration, text).unwrap();
    let program = ["nginx", "-c", configuration.to_str().unwrap()];
    let server = Preloaded::start_with(host, &["--private"], &program, Stdio::inherit());
    let client = "import urllib.request
for _ in range(100):
    assert urllib.request.urlopen('http://10.99.0.2:8251/', timeout=10).read() == b'yes'
print('all')";
    for _ in 0..2 {
        assert_eq!(server.answered("python3", &["-c", client]), "all\n");
        let master = fs::read_to_string(directory.join("pid")).unwrap();
        server.host.output("kill", &["-HUP", master.trim()]);
    }
    assert_eq!(server.answered("python3", &["-c", client]), "all\n");
    let _ = fs::remove_dir_all(&directory);
}

/// How the manager of a test ends before the interface is deleted.
#[derive(PartialEq)]
enum Manager {
    Lives,
    IsKilled,
}

/// Deletes the interface under a program that waits by `poll` or epoll, and creates it
/// again.
fn loses_its_interface(test: &str, name: &str, waits: &str, manager: &Manager) {
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, name) else {
        return;
    };
    let program = ["python3", "-c", SERVER, "8231", "8232", waits];
    let server = Preloaded::start(host, &program);
    let asked = |server: &Preloaded, host| {
        let said = server.answered("python3", &["-c", CLIENT, host, "8231", "8232"]);
        assert!(said.starts_with("listens 1 hello"), "{said}");
    };
    asked(&server, HERE);
    assert!(server.has(["promoted", "datagrams", "0.0.0.0:8232"]));
    let process = server.recording_process();
    if *manager == Manager::IsKilled {
        super::common::signal("-KILL", &server.process);
    }
    let interface = &server.host.bed.interface;
    server.host.output("ip", &["link", "del", "dev", interface]);
    let end = Instant::now() + Duration::from_secs(20);
    let lost = |it: &[String; 4]| it[0] == "kernel" && it[3].contains("is no more");
    while !server.records().iter().any(lost) {
        assert!(Instant::now() < end, "{:?}", server.records());
        std::thread::sleep(Duration::from_millis(20));
    }
    // Loopback continues, and the program does not spin.
    let ask = ["-c", CLIENT, "127.0.0.1", "8231", "8232"];
    let said = server.host.output("python3", &ask);
    assert!(said.starts_with("listens 1 hello"), "{said}");
    let (begin, used) = (Instant::now(), processor_time(&process));
    std::thread::sleep(Duration::from_secs(2));
    let share = (processor_time(&process) - used).as_secs_f64() / begin.elapsed().as_secs_f64();
    println!(
        "{:.2} % of a processor without the interface",
        share * 100.0
    );
    assert!(share < 0.05, "{share}");
    server.host.bed.join().unwrap();
    let begin = Instant::now();
    asked(&server, HERE);
    println!(
        "answered {:?} after the interface was made again",
        begin.elapsed()
    );
}

/// Returns the CPU time of a process, its threads' and the kernel's on its behalf.
fn processor_time(process: &str) -> Duration {
    let of_thread = |directory: std::io::Result<fs::DirEntry>| {
        let path = directory.unwrap().path().join("schedstat");
        let text = fs::read_to_string(path).unwrap_or_default();
        let time = text.split(' ').next().and_then(|it| it.parse().ok());
        Duration::from_nanos(time.unwrap_or(0))
    };
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.map(of_thread).sum()
}

#[test]
fn a_program_that_polls_goes_on_when_its_interface_is_made_again() {
    let test = "a_program_that_polls_goes_on_when_its_interface_is_made_again";
    loses_its_interface(test, "sc", "poll", &Manager::Lives);
}

#[test]
fn a_program_with_epoll_goes_on_when_its_interface_is_made_again() {
    let test = "a_program_with_epoll_goes_on_when_its_interface_is_made_again";
    loses_its_interface(test, "sd", "epoll", &Manager::Lives);
}

#[test]
fn a_program_whose_manager_was_killed_goes_on_when_its_interface_is_made_again() {
    let test = "a_program_whose_manager_was_killed_goes_on_when_its_interface_is_made_again";
    loses_its_interface(test, "se", "poll", &Manager::IsKilled);
}

/// Reports over its first connection the result of `listen` on a connection that it has
/// made, then on its listener, which it has shut down; it continues with that by epoll
/// and by `accept`.
const AGAIN: &str = r#"
import errno, select, socket
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('0.0.0.0', 8241))
listener.listen(8)
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)
control, _ = listener.accept()
made = socket.create_connection(('10.99.0.1', 8242))
try: made.listen(8)
except OSError as error: control.sendall(b'connection: %s\n' % errno.errorcode[error.errno].encode())
made.sendall(b'it goes on')
for _ in range(2):
    listener.shutdown(socket.SHUT_RD)
    try: listener.accept()
    except OSError as error: control.sendall(b'shut: %s\n' % errno.errorcode[error.errno].encode())
    listener.listen(8)
    control.sendall(b'again\n')
    assert epoll.poll(20) == [(listener.fileno(), select.EPOLLIN)]
    listener.accept()[0].sendall(b'first')
    listener.accept()[0].sendall(b'second')
control.sendall(b'.')
control.recv(1)
"#;

const AGAIN_CLIENT: &str = r#"
import socket
def connect(): return socket.create_connection(('10.99.0.2', 8241), 20)
listener = socket.create_server(('10.99.0.1', 8242))
control = connect().makefile('r')
made, _ = listener.accept()
print(control.readline(), end='')
print(made.recv(100).decode())
for _ in range(2):
    print(control.readline(), control.readline(), sep='', end='')
    print(connect().recv(100).decode(), connect().recv(100).decode())
assert control.read(1) == '.'
"#;

#[test]
fn a_listener_that_was_shut_down_listens_again() {
    let test = "a_listener_that_was_shut_down_listens_again";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "sf") else {
        return;
    };
    let server = Preloaded::start(host, &["python3", "-c", AGAIN]);
    let said = server.answered("python3", &["-c", AGAIN_CLIENT]);
    let round = "shut: EINVAL\nagain\nfirst second\n";
    assert_eq!(
        said,
        format!("connection: EINVAL\nit goes on\n{round}{round}")
    );
    assert!(server.has(["promoted", "connections", ""]));
}

/// Connects from ports of its own choice, which others could share until it is connected.
const CHOOSES: &str = r#"
import errno, select, socket, time
def connect(port, waits):
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(('0.0.0.0', port))
    made.setblocking(waits)
    failed = made.connect_ex(('10.99.0.1', 8261))
    if failed == errno.EINPROGRESS:
        select.select([], [made], [])
        failed = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    made.setblocking(True)
    if failed == errno.ECONNREFUSED:
        # The peer's server is not there yet.
        made.close()
        time.sleep(0.05)
        return connect(port, waits)
    said = errno.errorcode.get(failed, '') or made.recv(100).decode()
    made.sendall(said.encode())
    return made
kept = [connect(8262, True), connect(8263, False)]
for made in kept: made.recv(1)
"#;

const CHOOSES_SERVER: &str = r#"
import socket
listener = socket.create_server(('10.99.0.1', 8261))
listener.settimeout(20)
for _ in range(2):
    made, (_, port) = listener.accept()
    made.settimeout(20)
    made.sendall(b'hello')
    print(port, made.recv(100).decode())
"#;

#[test]
fn a_connection_from_a_chosen_port_that_a_manager_refuses_is_the_kernels() {
    let test = "a_connection_from_a_chosen_port_that_a_manager_refuses_is_the_kernels";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    for (name, options) in [("sh", &[][..]), ("si", &["--private"])] {
        let Some(host) = Host::or_skip(test, name) else {
            return;
        };
        let program = ["python3", "-c", CHOOSES];
        let client = Preloaded::start_with(host, options, &program, Stdio::inherit());
        let said = client.answered("python3", &["-c", CHOOSES_SERVER]);
        assert_eq!(said, "8262 hello\n8263 hello\n");
        let records = client.records();
        let why = "another user could bind a socket there";
        let is_kept = |it: &&[String; 4]| it[..2] == ["kernel", "connection"];
        let mut kept = records.iter().filter(is_kept);
        assert!(kept.any(|it| it[3].contains(why)), "{records:?}");
    }
}

/// Listens where the stack can serve, and often where it cannot.
const LOOPBACK: &str = r#"
import select, socket
waits = select.poll()
listeners = [socket.create_server(('0.0.0.0', 8271))]
listeners += [socket.create_server(('127.0.0.1', 8300 + number)) for number in range(40)]
for listener in listeners: waits.register(listener, select.POLLIN)
waits.poll()
"#;

#[test]
fn what_stays_is_shown_by_stat_top_and_doctor() {
    let test = "what_stays_is_shown_by_stat_top_and_doctor";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "st") else {
        return;
    };
    // Its records go to a file, so the run knows none.
    let server = Preloaded::start(host, &["python3", "-c", LOOPBACK]);
    server.until_listener("promoted", "0.0.0.0:8271");
    server.until_listener("kernel", "127.0.0.1:8339");
    let process = server.recording_process();
    let words = |port| {
        format!("python3 (process {process}): listener 127.0.0.1:{port} stays with the kernel: ")
    };
    let more = format!("python3 (process {process}): 8 more sockets stay with the kernel");
    for command in [
        &["stat"][..],
        &["stat", "--json"],
        &["top", "--once"],
        &["top", "--once", "--json"],
        &["doctor"],
        &["doctor", "--json"],
    ] {
        let said = server.host.output(PROGRAM, command);
        // `doctor` wraps its lines.
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        for wanted in [&words(8300), &words(8331), &more] {
            assert!(
                said.contains(wanted.trim()),
                "{command:?}: {wanted}: {said}"
            );
        }
        assert!(!said.contains(&words(8332)), "{command:?}: {said}");
        assert!(!said.contains("listener 0.0.0.0:8271 stays"), "{said}");
    }
    let other = server.host.output(PROGRAM, &["stat", "4194999", "--json"]);
    assert!(!other.contains("stays with the kernel"), "{other}");
}

#[test]
fn what_has_no_stack_is_found_by_doctor() {
    let test = "what_has_no_stack_is_found_by_doctor";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "sn") else {
        return;
    };
    // As a program of tidewalld: no run receives its records.
    let script = LOOPBACK.replace("'0.0.0.0'", "'127.0.0.1'");
    let preload = format!("LD_PRELOAD={}", library().display());
    let mut server = host.command("env", &[&preload, "python3", "-c", &script]);
    let server = Running(server.stderr(Stdio::null()).spawn().unwrap());
    let wanted = format!(
        "python3 (process {}): listener 127.0.0.1:8271 stays with the kernel: it has no stack",
        server.0.id()
    );
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let said = host.output(PROGRAM, &["doctor"]);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        if said.contains(&wanted) {
            break;
        }
        assert!(Instant::now() < end, "{said}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
