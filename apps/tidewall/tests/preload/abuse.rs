//! Misbehaving programs: they run out of descriptors, close those of others, make many
//! children. The result is the same on both stacks.

use std::process::Stdio;

use super::Preloaded;
use super::common::host::{Host, library};
use super::common::{Running, text};

/// Serves with one descriptor at a time, all that its limit leaves.
const EXHAUSTED: &str = r#"
import errno, os, resource, select, socket, subprocess, sys, time, ctypes
libc = ctypes.CDLL(None, use_errno=True)
port = int(sys.argv[1])
said, inherited = [], {int(it) for it in os.listdir('/proc/self/fd')}
def attempt(call, *arguments):
    try: made = call(*arguments)
    except OSError as error: return errno.errorcode[error.errno]
    if hasattr(made, 'close'): made.close()
    return 'ok'
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('0.0.0.0', port))
listener.listen(16)
said.append(attempt(lambda: listener.settimeout(0) or listener.accept()))
listener.setblocking(True)
# Of the numbers that are open here, the program closes what it does not know.
own = {0, 1, 2, listener.fileno(), *inherited}
listed = os.open('/proc/self/fd', os.O_RDONLY)
said.append([number for number in range(3, 2000)
    if number not in own | {listed} and libc.close(number) == 0])
os.close(listed)
def wait(): assert select.select([listener], [], [], 60)[0], 'nobody comes'
wait()
control, _ = listener.accept()
def ask(count):
    control.sendall(b'%d' % count)
    wait()
    time.sleep(0.3)
epoll, poll = select.epoll(), select.poll()
epoll.register(listener, select.EPOLLIN)
poll.register(listener, select.POLLIN)
def ready():
    found = [list(it.poll(0)) for it in (epoll, poll)], select.select([listener], [], [], 0)[0]
    return len(found[0][0]), len(found[0][1]), len(found[1])
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
def fill():
    taken = []
    while True:
        try: taken.append(os.dup(0))
        except OSError as error:
            said.append(errno.errorcode[error.errno])
            return taken
taken = fill()
# With nobody there the answer is the same, whether the call would wait or not.
for blocking in True, False:
    listener.setblocking(blocking)
    said.append(attempt(listener.accept))
said.append([attempt(socket.socket, family) for family in (socket.AF_INET, socket.AF_UNIX)])
said.append([attempt(os.dup, it.fileno()) for it in (listener, control)])
ask(5)
for served in range(6):
    said.append([ready(), attempt(listener.accept), ready()])
    os.close(taken.pop())
    try: made, _ = listener.accept()
    except BlockingIOError:
        said.append('no more')
        break
    said.append([attempt(listener.accept), made.recv(100).decode()])
    made.sendall(b'served')
    made.close()
    taken += fill()
# By the loopback, with none and with one number.
local = socket.socket()
local.setblocking(False)
try: local.connect(('127.0.0.1', port))
except BlockingIOError: pass
local.send(b'local')
wait()
said.append([ready(), attempt(listener.accept), ready()])
os.close(taken.pop())
made, _ = listener.accept()
said.append([attempt(listener.accept), made.recv(100).decode()])
made.close()
for number in taken: os.close(number)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
local.close()
ask(1)
made, _ = listener.accept()
# Many children, of each kind, that live for a moment and close what they like.
count = lambda: len(os.listdir('/proc/self/fd'))
before = count()
for round in range(40):
    children = []
    for how in range(4):
        child = os.fork() if how < 3 else os.posix_spawn('/bin/true', ['true'], {})
        if child == 0:
            if how == 0: os.closerange(0, 1000)
            if how == 1: os.execv('/bin/true', ['true'])
            os._exit(0)
        children.append(child)
    said.append([os.waitpid(child, 0)[1] for child in children])
assert subprocess.run(['true']).returncode == 0
said.append(count() - before)
said.append(made.recv(100).decode())
made.sendall(b'served')
made.close()
control.sendall(('\n'.join(map(str, said)) + '\n').encode())
control.close()
"#;

/// Its clients; prints the program's output.
const CLIENTS: &str = r#"
import socket, sys, time
port = int(sys.argv[1])
def connect():
    while True:
        try: made = socket.create_connection(('10.99.0.2', port), 10)
        except ConnectionRefusedError: time.sleep(0.05)
        else: break
    made.settimeout(30)
    return made
control = connect()
for step in range(2):
    count = int(control.recv(1))
    made = []
    for number in range(count):
        made.append(connect())
        made[-1].sendall(b'client %d' % number)
    # All of them are served, whatever the program has run out of.
    for it in made: assert it.recv(100) == b'served' and it.recv(1) == b''
report = b''
while part := control.recv(4000): report += part
print(report.decode())
"#;

#[test]
fn a_program_without_numbers_loses_no_connection() {
    let test = "a_program_without_numbers_loses_no_connection";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pa") else {
        return;
    };
    // It may have to be built, for longer than a program waits for its clients.
    library();
    let mut linux = host.command("python3", &["-c", EXHAUSTED, "8170"]);
    let _linux = Running(linux.stdout(Stdio::null()).spawn().unwrap());
    let server = Preloaded::start(host, &["python3", "-c", EXHAUSTED, "8180"]);
    let [expected, said] = ["8170", "8180"].map(|port| {
        let output = server.peer("python3", &["-c", CLIENTS, port]);
        [text(&output.stdout), text(&output.stderr)].concat()
    });
    for (linux, own) in expected.lines().zip(said.lines()) {
        assert_eq!(linux, own, "Linux left, Tidewall right");
    }
    assert_eq!(expected, said);
    assert!(said.lines().count() > 50, "{said}");
    assert!(server.has(["promoted", "listener", "0.0.0.0:8180"]));
}

/// Opens files while its stack is made, and closes a listener, whose descriptors are
/// reused: reports which of them it cannot close.
const GIVEN_AGAIN: &str = r#"
import errno, os, socket, threading
refused, over = set(), False
def take(count):
    taken = [os.open('/dev/null', os.O_RDONLY) for _ in range(count)]
    for number in taken:
        try: os.close(number)
        except OSError as error: refused.add((number, errno.errorcode[error.errno]))
def repeat():
    while not over: take(4)
def listen():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(('0.0.0.0', 8181))
    listener.listen(8)
    return listener
thread = threading.Thread(target=repeat)
thread.start()
first = listen()
first.setblocking(False)
try: first.accept()
except BlockingIOError: pass
over = True
thread.join()
first.close()
take(100)
connection, _ = listen().accept()
connection.sendall(repr(refused).encode())
"#;

#[test]
fn a_program_can_close_each_number_that_it_is_given() {
    let test = "a_program_can_close_each_number_that_it_is_given";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pt") else {
        return;
    };
    let server = Preloaded::start(host, &["python3", "-c", GIVEN_AGAIN]);
    let client =
        "import socket; print(socket.create_connection(('10.99.0.2', 8181), 10).recv(1000))";
    assert_eq!(server.answered("python3", &["-c", client]), "b'set()'\n");
    assert!(server.has(["promoted", "listener", "0.0.0.0:8181"]));
}
