//! Options of connections that programs set and read back, on both stacks.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::common::Running;
use super::common::host::Host;
use super::{HERE, Preloaded};

/// Tells each client what it reads and sets of its connection, whose listener has set some.
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
    // What connects before that is the kernel's.
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

/// What nobody would do for it later is refused when it is asked for.
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
