//! Options of connections that programs set and read back, on both stacks.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::common::Running;
use super::common::bed::Bed;
use super::common::host::Host;
use super::{HERE, Preloaded};

/// Reports to each client the options that it reads and sets on its connection, whose
/// listener has set some.
const SERVER: &str = r#"
import errno, socket, sys
listener = socket.socket()
listener.setsockopt(1, 2, 1)
for level, name, value in [(1, 12, 3), (1, 10, 1), (0, 2, 33)]: listener.setsockopt(level, name, value)
listener.bind(('0.0.0.0', int(sys.argv[1])))
listener.listen(8)
listener.settimeout(0)
try: listener.accept()
except BlockingIOError: pass
listener.settimeout(None)
def attempt(call, *arguments):
    try: return call(*arguments)
    except OSError as error: return errno.errorcode[error.errno]
# SO_BROADCAST, SO_OOBINLINE, SO_PRIORITY, SO_REUSEPORT, SO_RCVLOWAT; IP_TOS, IP_TTL, IP_PKTINFO,
# IP_RECVTTL, IP_RECVTOS.
options = [(1, name) for name in (6, 10, 12, 15, 18)] + [(0, name) for name in (1, 2, 8, 12, 13)]
while True:
    connection, _ = listener.accept()
    said = []
    for which in options:
        for value in (None, 1, 0, 5 if which != (1, 18) else 1, 64):
            if value == 64 and which != (0, 2): continue
            done = None if value is None else attempt(connection.setsockopt, *which, value)
            said.append(f'{which} {value} {done} {attempt(connection.getsockopt, *which)}')
    connection.sendall('\n'.join(said).encode())
    connection.close()
"#;

const CLIENT: &str = r#"
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
print(peer.makefile().read())
"#;

#[test]
fn options_of_connections_are_those_of_linux() {
    let test = "options_of_connections_are_those_of_linux";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "po") else {
        return;
    };
    let mut linux = host.command("python3", &["-c", SERVER, "8170"]);
    let _linux = Running(linux.stdout(Stdio::null()).spawn().unwrap());
    let server = Preloaded::start(host, &["python3", "-c", SERVER, "8180"]);
    // Earlier connections are the kernel's.
    until(&server, ["promoted", "listener", "0.0.0.0:8180"]);
    let [expected, said] =
        ["8170", "8180"].map(|port| server.answered("python3", &["-c", CLIENT, HERE, port]));
    for (linux, own) in expected.lines().zip(said.lines()) {
        assert_eq!(linux, own, "Linux left, Tidewall right");
    }
    assert_eq!(expected, said);
    assert!(said.lines().count() > 40, "{said}");
}

fn until(server: &Preloaded, record: [&str; 3]) {
    let end = Instant::now() + Duration::from_secs(20);
    while !server.has(record) {
        assert!(Instant::now() < end, "no {record:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Requests that would never be honoured later are rejected at once.
const REFUSED: &str = r#"
import errno, fcntl, os, socket, struct, termios
def listening(port, asynchronous):
    made = socket.create_server(('0.0.0.0', port))
    if asynchronous: fcntl.fcntl(made, fcntl.F_SETFL, os.O_ASYNC)
    return made
listeners = listening(8190, False), listening(8191, True)
for listener in listeners:
    flags = fcntl.fcntl(listener, fcntl.F_GETFL)
    fcntl.fcntl(listener, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    try: listener.accept()
    except BlockingIOError: pass
    fcntl.fcntl(listener, fcntl.F_SETFL, flags)
def attempt(call, *arguments):
    try: return call(*arguments)
    except OSError as error: return errno.errorcode[error.errno]
near, far = socket.socketpair()
def send(number):
    sent = attempt(socket.send_fds, near, [b'x'], [number])
    if sent == 1: [os.close(fd) for fd in socket.recv_fds(far, 1, 1)[1]]
    return sent
while True:
    for listener in listeners:
        connection, _ = listener.accept()
        flags = attempt(fcntl.fcntl, connection, fcntl.F_SETFL, os.O_ASYNC)
        asked = [attempt(fcntl.ioctl, connection, termios.FIOASYNC, struct.pack('i', on)) for on in (0, 1)]
        words = [send(connection.fileno()), send(listener.fileno()), flags]
        words += [it if type(it) is str else 'done' for it in asked]
        connection.sendall(' '.join(map(str, words)).encode())
        connection.close()
"#;

#[test]
fn what_would_not_happen_is_refused() {
    let test = "what_would_not_happen_is_refused";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pn") else {
        return;
    };
    let server = Preloaded::start(host, &["python3", "-c", REFUSED]);
    until(&server, ["promoted", "listener", "0.0.0.0:8190"]);
    until(&server, ["kernel", "listener", "0.0.0.0:8191"]);
    let said = ["8190", "8191"].map(|port| server.answered("python3", &["-c", CLIENT, HERE, port]));
    assert_eq!(said[0].trim(), "ENOTSUP 1 EINVAL done ENOTTY");
    assert_eq!(said[1].trim(), "1 1 0 done done");
}

/// Reports to each client the bytes before the end, and sends an urgent byte among
/// others.
const URGENT: &str = r#"
import errno, socket
listener = socket.create_server(('0.0.0.0', 8270))
listener.setblocking(False)
try: listener.accept()
except BlockingIOError: pass
listener.setblocking(True)
while True:
    connection, _ = listener.accept()
    got = b''
    while part := connection.recv(100): got += part
    try: connection.recv(1, socket.MSG_OOB)
    except OSError as error: got += errno.errorcode[error.errno].encode()
    connection.send(b'AB')
    connection.send(b'!', socket.MSG_OOB)
    connection.sendall(b'CD ' + got)
    connection.close()
"#;

const URGENT_PEER: &str = r#"
import errno, socket, sys, time
peer = socket.create_connection((sys.argv[1], 8270), 10)
peer.send(b'xy')
peer.send(b'U', socket.MSG_OOB)
time.sleep(0.2)
peer.send(b'z')
peer.shutdown(socket.SHUT_WR)
said = peer.makefile().read()
try: peer.recv(1, socket.MSG_OOB)
except OSError as error: said += ' ' + errno.errorcode[error.errno]
print(said)
"#;

#[test]
fn urgent_data_is_in_line() {
    let test = "urgent_data_is_in_line";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pu") else {
        return;
    };
    let server = Preloaded::start(host, &["python3", "-c", URGENT]);
    until(&server, ["promoted", "listener", "0.0.0.0:8270"]);
    let said = server.answered("python3", &["-c", URGENT_PEER, HERE]);
    assert_eq!(said.trim(), "AB!CD xyUzEINVAL EINVAL");
}

/// Sets each option before the stack has the socket, and reports the values read
/// afterwards: from the listener, from accepted sockets, and from connecting ones.
const CARRIED: &str = r#"
import errno, socket, struct, sys
first = int(sys.argv[1])
options = [tuple(map(int, it.split(':'))) for it in sys.argv[2].split(',')]
SOCKET, IP, TCP, IPV6 = 1, 0, 6, 41
values = {
    (SOCKET, 13): struct.pack('ii', 1, 7), (SOCKET, 20): struct.pack('@ll', 3, 0),
    (SOCKET, 21): struct.pack('@ll', 4, 0), (TCP, 13): b'reno', (TCP, 33): bytes(range(16)),
    (SOCKET, 7): 50000, (SOCKET, 8): 50000, (SOCKET, 32): 50000, (SOCKET, 33): 50000,
    (SOCKET, 37): 24, (SOCKET, 47): 1000000, (SOCKET, 12): 5, (TCP, 2): 1000, (TCP, 4): 77,
    (TCP, 5): 7, (TCP, 6): 3, (TCP, 7): 3, (TCP, 8): 20, (TCP, 12): 0, (TCP, 18): 5000, (TCP, 23): 16,
    (TCP, 25): 16384, (TCP, 10): 30000, (IP, 1): 16, (IP, 2): 33, (IPV6, 67): 16, (IPV6, 16): 33,
    (SOCKET, 49): 0, (IP, 10): 2, (IPV6, 23): 2,
}
def attempt(call, *arguments):
    try: return call(*arguments)
    except OSError as error: return errno.errorcode[error.errno]
def read(it, which):
    value = attempt(it.getsockopt, *which, 64)
    return value.hex() if type(value) is bytes else value
def made(which):
    it = socket.socket(socket.AF_INET6 if which[0] == IPV6 else socket.AF_INET)
    return it, attempt(it.setsockopt, *which, values.get(which, 1))
listeners = []
for place, which in enumerate(options + [(SOCKET, 2)]):
    it, done = made(which)
    if which != (SOCKET, 2): attempt(it.setsockopt, SOCKET, 2, 1)
    it.bind(('', first + place))
    it.listen(8)
    it.setblocking(False)
    try: it.accept()
    except BlockingIOError: pass
    it.setblocking(True)
    listeners.append((which, done, it))
reports = listeners.pop()[2]
said, kept = [], []
for which, done, it in listeners:
    # One that takes IPv6 alone hears of no client here.
    accepted = it.accept()[0] if which != (IPV6, 26) else it
    connected, also = made(which)
    peer = ('::ffff:10.99.0.1' if which[0] == IPV6 else '10.99.0.1', 8400)
    how = attempt(connected.connect, peer)
    if which == (TCP, 30): connected.send(b'x')
    sides = ('listens', it), ('accepted', accepted), ('connects', connected)
    # The processor that a connection's packets come to is any (SO_INCOMING_CPU).
    if which == (SOCKET, 49): sides = sides[:1]
    words = [f'{name} {read(made, which)}' for name, made in sides]
    said.append(f'{which}: {done} {also} {how}, ' + ', '.join(words))
    kept += accepted, connected
while True:
    connection, _ = reports.accept()
    connection.sendall('\n'.join(said).encode())
    connection.close()
"#;

const CARRIED_PEER: &str = r#"
import socket, sys
first, last = map(int, sys.argv[2:])
# The last to listen says what is read; of those before it one takes IPv6 alone.
report = socket.create_connection((sys.argv[1], last), 30)
kept = []
for port in range(first, last):
    try: kept.append(socket.create_connection((sys.argv[1], port), 10))
    except ConnectionRefusedError: pass
print(report.makefile().read())
"#;

#[test]
fn options_that_are_set_before_the_stack_has_a_socket_are_carried_over() {
    let test = "options_that_are_set_before_the_stack_has_a_socket_are_carried_over";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pq") else {
        return;
    };
    let options: Vec<(i32, i32)> = tidewall_posix::stream_options().collect();
    let last = options.len() as u16;
    let words: Vec<_> = options
        .iter()
        .map(|it| format!("{}:{}", it.0, it.1))
        .collect();
    let words = words.join(",");
    let sink = "import socket
it = socket.create_server(('10.99.0.1', 8400), backlog=64)
kept = []
while True: kept.append(it.accept())";
    let _sink = Running(
        Bed::other(&host.bed.client, "python3", &["-c", sink])
            .spawn()
            .unwrap(),
    );
    let mut linux = host.command("python3", &["-c", CARRIED, "8500", &words]);
    let _linux = Running(linux.spawn().unwrap());
    let server = Preloaded::start(host, &["python3", "-c", CARRIED, "8600", &words]);
    until(
        &server,
        ["promoted", "listener", &format!("0.0.0.0:{}", 8600 + last)],
    );
    let said = [8500, 8600].map(|first| {
        let (first, last) = (first.to_string(), (first + last).to_string());
        server.answered("python3", &["-c", CARRIED_PEER, HERE, &first, &last])
    });
    let lines = said[0].lines().zip(said[1].lines());
    let differ: Vec<_> = lines.filter(|(linux, own)| linux != own).collect();
    assert!(differ.is_empty(), "Linux, Tidewall: {differ:#?}");
    assert_eq!(said[0], said[1]);
    assert_eq!(said[0].lines().count(), options.len(), "{}", said[0]);
}
