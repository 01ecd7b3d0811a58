//! Unmodified programs, with `libtidewall.so` instead of the C library's socket calls
//! (docs/preload.md). Needs root; skipped without.

mod abuse;
#[path = "../common/mod.rs"]
mod common;
mod edges;
mod handed_on;
mod messages;
mod names;
mod options;
mod order;
mod reach;
mod stays;

use std::time::{Duration, Instant};

use common::bed::Bed;
use common::host::Host;
use common::preloaded::Preloaded;
use common::{Running, text};

const HERE: &str = "10.99.0.2";

/// Serves one connection, across everything that a process does to itself.
const BEHAVIOUR: &str = r#"
import errno, os, signal, socket, subprocess
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('0.0.0.0', 8090))
listener.listen(8)
listener.settimeout(0)
try: listener.accept()
except BlockingIOError: pass
listener.settimeout(None)
connection, _ = listener.accept()
connection.sendall(b'hello')
# A child can do nothing by the connection, and closes nothing of it.
child = os.fork()
if child == 0:
    try: os.write(connection.fileno(), b'from the child')
    except OSError as error: code = error.errno
    connection.close()
    listener.close()
    os._exit(0 if code == errno.ENOTCONN else 1)
assert os.waitpid(child, 0)[1] == 0
connection.sendall(b'after fork')
assert subprocess.run(['echo', 'it'], capture_output=True).stdout == b'it\n'
closing = subprocess.run(['true'], preexec_fn=lambda: os.closerange(3, 1000))
assert closing.returncode == 0
connection.sendall(b'after spawn')
def handler(*_): connection.sendall(b'from handler')
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.1)
assert connection.recv(100) == b'reply'
"#;

#[test]
fn processes_signals_and_ends_are_as_ever() {
    let test = "processes_signals_and_ends_are_as_ever";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pb") else {
        return;
    };
    let server = Preloaded::start(host, &["python3", "-c", BEHAVIOUR]);
    let end = Instant::now() + Duration::from_secs(20);
    while !server.has(["promoted", "listener", "0.0.0.0:8090"]) {
        assert!(Instant::now() < end, "{:?}", server.records());
        std::thread::sleep(Duration::from_millis(20));
    }
    let client = "import socket; peer = socket.create_connection(('10.99.0.2', 8090), 10)
said = b''
while not said.endswith(b'handler'):
    part = peer.recv(100)
    assert part, said
    said += part
peer.sendall(b'reply')
assert peer.recv(100) == b''
print(said.decode())";
    let output = server.peer("python3", &["-c", client]);
    let said = [text(&output.stdout), text(&output.stderr)].concat();
    assert_eq!(said, "helloafter forkafter spawnfrom handler\n");
}

/// Reports over its first connection the results of calls interrupted by a signal, whose
/// handler restarts calls or does not, and the result of sending once the peer has reset
/// the third.
const SIGNALS: &str = r#"
import ctypes, errno, os, signal, socket, struct, time
libc = ctypes.CDLL(None, use_errno=True)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('0.0.0.0', 8130))
listener.listen(8)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(('0.0.0.0', 8131))
# Each says which it is: of connections that came at once any may be the first.
accepted = [listener.accept()[0] for _ in range(3)]
control, data, lost = sorted(accepted, key=lambda it: it.recv(1))
buffer = ctypes.create_string_buffer(64)
epoll = libc.epoll_create1(0)
libc.epoll_ctl(epoll, 1, data.fileno(), struct.pack('=IQ', 1, 0))
asked = struct.pack('=iHH', data.fileno(), 1, 0)
calls = {
    'recv': lambda: libc.recv(data.fileno(), buffer, 64, 0),
    'read': lambda: libc.read(data.fileno(), buffer, 64),
    'epoll_wait': lambda: libc.epoll_wait(epoll, buffer, 1, 5000),
    'poll': lambda: libc.poll(ctypes.create_string_buffer(asked), 1, 5000),
    'recv within a time': lambda: libc.recv(data.fileno(), buffer, 64, 0),
    'accept': lambda: libc.accept(listener.fileno(), None, None),
    'accept within a time': lambda: libc.accept(listener.fileno(), None, None),
    'datagram': lambda: libc.recv(datagrams.fileno(), buffer, 64, 0),
    'datagram within a time': lambda: libc.recv(datagrams.fileno(), buffer, 64, 0),
}
handled, said = [], []
limited = data, listener, datagrams
def limit(seconds, micros):
    for it in limited:
        it.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('@ll', seconds, micros))
for which in signal.SIGALRM, signal.SIGPIPE:
    signal.signal(which, lambda number, _: handled.append(number))
def returned(what, value):
    code = errno.errorcode[ctypes.get_errno()] if value < 0 else 'ok'
    said.append(f'{what}: {code}, {len(handled)} handled')
    handled.clear()
for restarts in True, False:
    signal.siginterrupt(signal.SIGALRM, not restarts)
    for name, call in calls.items():
        limit(5 if name.endswith('within a time') else 0, 0)
        # The peer does its part after the signal.
        control.sendall(name[0].encode())
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        value = call()
        returned(f'{name}, {restarts}', value)
        if name[0] == 'a': os.close(value) if value >= 0 else listener.accept()[0].close()
        elif name[0] == 'd': value > 0 or datagrams.recv(64)
        elif not (value > 0 and name.startswith('re')): data.recv(64)
limit(0, 100000)
for it in limited:
    said.append(str(struct.unpack('@ll', it.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))))
returned('accept too long', libc.accept(listener.fileno(), None, None))
for it in data, datagrams: returned('recv too long', libc.recv(it.fileno(), buffer, 64, 0))
control.sendall(b'l')
time.sleep(0.5)
for flags in 0, 0, socket.MSG_NOSIGNAL, 0:
    returned(f'send {flags}', libc.send(lost.fileno(), b'x', 1, flags))
control.sendall('\n'.join(said).encode())
"#;

/// Its peer.
const SIGNALLED: &str = r#"
import socket, struct, sys, time
connect = lambda: socket.create_connection((sys.argv[1], 8130), 20)
control, data, lost = (connect() for _ in range(3))
for which, it in enumerate((control, data, lost)): it.sendall(b'%d' % which)
said = b''
while len(said) < 2 or said[-1:] != b'l':
    try: part = control.recv(1)
    except TimeoutError: raise AssertionError(f'{sys.argv}: {said}')
    assert part, said
    said += part
    if part == b'l':
        lost.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        lost.close()
        break
    time.sleep(0.3)
    if part == b'a': connect().close()
    elif part == b'd': socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', (sys.argv[1], 8131))
    else: data.sendall(b'x')
report = b''
while part := control.recv(1000): report += part
print(report.decode())
"#;

#[test]
fn signals_interrupt_calls_and_break_pipes_as_on_linux() {
    let test = "signals_interrupt_calls_and_break_pipes_as_on_linux";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pi") else {
        return;
    };
    let program = ["python3", "-c", SIGNALS];
    let server = Preloaded::start(host, &program);
    let linux = Bed::other(&server.host.bed.client, program[0], &program[1..]).spawn();
    let _linux = Running(linux.unwrap());
    let ask = |address| server.answered("python3", &["-c", SIGNALLED, address]);
    let [expected, said] = ["127.0.0.1", HERE].map(ask);
    assert_eq!(said, expected);
    assert!(said.lines().count() > 15, "{said}");
    assert!(server.has(["promoted", "listener", "0.0.0.0:8130"]));
    assert!(server.has(["promoted", "datagrams", "0.0.0.0:8131"]));
}

/// Waits by epoll(7) and by poll(2) in turn, for a listener that is the stack's and one
/// that is not.
const WAITER: &str = r#"
import select, socket
def listening(*address):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(8)
    listener.setblocking(False)
    return listener
both = {it.fileno(): it for it in (listening('0.0.0.0', 8091), listening('127.0.0.1', 8092))}
waits = select.epoll(), select.poll()
for number in both:
    for wait in waits: wait.register(number, select.POLLIN)
while True:
    for wait in waits:
        served = False
        while not served:
            for number, _ in wait.poll():
                try: connection, _ = both[number].accept()
                except OSError: continue
                connection.sendall(b'here')
                connection.close()
                served = True
"#;

/// Threads go to sleep before the stack has anything to sleep on. They sleep in a set
/// that gets a listener, in one whose datagram socket is bound later, in a set that
/// contains one, and in poll(2) and select(2) of a set.
const SLEEPERS: &str = r#"
import select, socket, threading, time
def datagrams():
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made
def bind(made, port):
    made.bind(('0.0.0.0', port))
    try: made.recv(1)
    except BlockingIOError: pass
def answer(made):
    asked, peer = made.recvfrom(100)
    made.sendto(asked, peer)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('0.0.0.0', 8100))
listener.listen(8)
listener.setblocking(False)
def accept():
    connection, _ = listener.accept()
    connection.sendall(b'tcp')
    connection.close()
bound, first, second, third = (datagrams() for _ in range(4))
plain, later, inner, polled, selected = (select.epoll() for _ in range(5))
outer = select.epoll()
outer.register(inner, select.EPOLLIN)
later.register(bound, select.EPOLLIN)
poll = select.poll()
poll.register(polled, select.POLLIN)
def hear(wait, *sets):
    for it in sets: assert it.poll(10), 'nothing'
    wait()
def polls():
    assert poll.poll(10_000), 'nothing polled'
    hear(lambda: answer(second), polled)
def selects():
    assert select.select([selected], [], [], 10)[0], 'nothing selected'
    hear(lambda: answer(third), selected)
# Two sleep in one set: both are woken, and each serves one.
threads = [threading.Thread(target=hear, args=it) for it in (
    (accept, plain), (accept, plain), (lambda: answer(bound), later),
    (lambda: answer(first), outer, inner))]
threads += [threading.Thread(target=it) for it in (polls, selects)]
for it in threads: it.start()
time.sleep(0.5)
plain.register(listener, select.EPOLLIN | select.EPOLLONESHOT)
for number, made in enumerate((bound, first, second, third)): bind(made, 8101 + number)
for it, made in ((inner, first), (polled, second), (selected, third)):
    it.register(made, select.EPOLLIN)
while sum(it.is_alive() for it in threads[:2]) == 2: time.sleep(0.01)
plain.modify(listener, select.EPOLLIN | select.EPOLLONESHOT)
for it in threads: it.join()
# Nothing is left in a set of what has woken who slept there.
for it in plain, later, inner, outer, polled, selected: assert not it.poll(0), 'left'
bind(datagrams(), 8110)
time.sleep(60)
"#;

#[test]
fn who_sleeps_in_the_kernel_hears_of_what_becomes_ours() {
    let test = "who_sleeps_in_the_kernel_hears_of_what_becomes_ours";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "ps") else {
        return;
    };
    let server = Preloaded::start(host, &["python3", "-c", SLEEPERS]);
    let until = |wanted: [&str; 3]| {
        let end = Instant::now() + Duration::from_secs(20);
        while !server.has(wanted) {
            assert!(Instant::now() < end, "{:?}", server.records());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for port in 8101..8105 {
        until(["promoted", "datagrams", &format!("0.0.0.0:{port}")]);
    }
    let client = "import socket
for _ in range(2):
    peer = socket.create_connection(('10.99.0.2', 8100), 10)
    print(peer.recv(100).decode())
for port in range(8101, 8105):
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.settimeout(10)
    peer.connect(('10.99.0.2', port))
    peer.send(b'udp')
    print(peer.recv(100).decode())";
    let output = server.peer("python3", &["-c", client]);
    let said = [text(&output.stdout), text(&output.stderr)].concat();
    assert_eq!(said, "tcp\ntcp\nudp\nudp\nudp\nudp\n");
    until(["promoted", "datagrams", "0.0.0.0:8110"]);
}

/// Two sockets of one port, one that requests control messages, and one that requests
/// them too late.
const SHARED: &str = r#"
import errno, select, socket, struct
def bound(port, *options):
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    for level, name in options: made.setsockopt(level, name, 1)
    made.bind(('0.0.0.0', port))
    return made
reuse = socket.SOL_SOCKET, socket.SO_REUSEPORT
messages = socket.SOL_SOCKET, 35 # SO_TIMESTAMPNS
every = [bound(8120, reuse), bound(8120, reuse), bound(8121, messages), bound(8122, reuse)]
poll = select.poll()
for it in every: poll.register(it, select.POLLIN)
assert not poll.poll(0)
def listening(port, *options):
    made = socket.socket()
    for option in options: made.setsockopt(*option)
    made.bind(('0.0.0.0', port))
    made.listen(8)
    made.setblocking(False)
    poll.register(made, select.POLLIN)
    return made
signature = struct.pack('=HH4s120xBBHI80s', 2, 0, bytes((10, 99, 0, 7)), 0, 0, 3, 0, b'key')
listeners = [listening(8123, (1, 36, 7)), listening(8124, (6, 14, signature)),
    listening(8125, (1, 25, b'lo')), listening(8126)]
assert not poll.poll(0)
try: listeners[3].setsockopt(6, 14, signature)
except OSError as error: assert error.errno == errno.ENOPROTOOPT
else: assert False, 'it has said that it signs'
marked = socket.socket()
marked.setblocking(False)
marked.setsockopt(1, 36, 7)
assert marked.connect_ex(('10.99.0.1', 9)) == errno.EINPROGRESS
try: every[3].setsockopt(*messages, 1)
except OSError as error: assert error.errno == errno.ENOPROTOOPT
else: assert False, 'it has said that messages come'
every[3].setsockopt(*messages, 0)
assert every[3].getsockopt(*messages) == 0
while True:
    for number, _ in poll.poll():
        made = next(it for it in every if it.fileno() == number)
        asked, control, _, peer = made.recvmsg(100, 100)
        made.sendto(asked + str(len(control)).encode(), peer)
"#;

#[test]
fn what_the_stack_would_serve_by_half_stays_the_kernels() {
    let test = "what_the_stack_would_serve_by_half_stays_the_kernels";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pg") else {
        return;
    };
    let server = Preloaded::start(host, &["python3", "-c", SHARED]);
    let end = Instant::now() + Duration::from_secs(20);
    while !server.has(["kernel", "connection", "10.99.0.1:9"]) {
        assert!(Instant::now() < end, "{:?}", server.records());
        std::thread::sleep(Duration::from_millis(20));
    }
    for port in [8120, 8121] {
        assert!(server.has(["kernel", "datagrams", &format!("0.0.0.0:{port}")]));
    }
    for which in [
        ["kernel", "listener", "0.0.0.0:8123"],
        ["kernel", "connections", "0.0.0.0:0"],
        ["kernel", "listener", "0.0.0.0:8125"],
        ["promoted", "listener", "0.0.0.0:8126"],
        ["promoted", "datagrams", "0.0.0.0:8122"],
    ] {
        assert!(server.has(which), "{which:?} {:?}", server.records());
    }
    let client = "import socket
for port in [8120] * 16 + [8121, 8122]:
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.settimeout(10)
    peer.connect(('10.99.0.2', port))
    peer.send(b'messages: ')
    print(peer.recv(100).decode())";
    let output = server.peer("python3", &["-c", client]);
    let said = [text(&output.stdout), text(&output.stderr)].concat();
    let wanted = [&["messages: 0"; 16][..], &["messages: 1", "messages: 0"]].concat();
    assert_eq!(said.lines().collect::<Vec<_>>(), wanted);
}

/// Three listeners of one port, one of which is closed on request.
const SHARERS: &str = r#"
import select, socket
def listening():
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(('0.0.0.0', 8130))
    made.listen(64)
    made.setblocking(False)
    return made
every = [listening() for _ in range(3)]
epoll = select.epoll()
for it in every: epoll.register(it, select.EPOLLIN)
while True:
    for number, _ in epoll.poll():
        at = next(at for at, it in enumerate(every) if it.fileno() == number)
        made, _ = every[at].accept()
        asked = made.recv(100)
        made.sendall(b'%d' % at)
        made.close()
        if asked == b'close': every[at].close()
"#;

#[test]
fn listeners_that_share_a_port_have_each_its_part() {
    let test = "listeners_that_share_a_port_have_each_its_part";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pq") else {
        return;
    };
    let server = Preloaded::start(host, &["python3", "-c", SHARERS]);
    let end = Instant::now() + Duration::from_secs(20);
    while !server.has(["promoted", "listener", "0.0.0.0:8130"]) {
        assert!(Instant::now() < end, "{:?}", server.records());
        std::thread::sleep(Duration::from_millis(20));
    }
    let client = "import socket
def ask(word):
    peer = socket.create_connection(('10.99.0.2', 8130), 10)
    peer.sendall(word)
    return int(peer.recv(100))
assert {ask(b'which') for _ in range(80)} == {0, 1, 2}
left = {0, 1, 2} - {ask(b'close')}
assert {ask(b'which') for _ in range(60)} == left
assert {ask(b'close'), ask(b'close')} == left
try: ask(b'which')
except ConnectionRefusedError: print('refused')";
    assert_eq!(server.answered("python3", &["-c", client]), "refused\n");
    assert!(server.accepted() >= 143, "{}", server.accepted());
    assert!(!server.records().iter().any(|it| it[0] == "kernel"));
}

#[test]
fn sockets_of_the_kernels_go_on_without_the_interface() {
    let test = "sockets_of_the_kernels_go_on_without_the_interface";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pd") else {
        return;
    };
    let server = Preloaded::start(host, &["python3", "-c", WAITER]);
    let client = "import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
print(peer.recv(100).decode())";
    assert_eq!(
        server.answered("python3", &["-c", client, HERE, "8091"]),
        "here\n"
    );
    assert!(server.has(["promoted", "listener", "0.0.0.0:8091"]));
    let interface = &server.host.bed.interface;
    server.host.output("ip", &["link", "delete", interface]);
    for _ in 0..4 {
        let said = server.host.output(
            "timeout",
            &["20", "python3", "-c", client, "127.0.0.1", "8092"],
        );
        assert_eq!(said, "here\n");
    }
}

#[test]
fn redis_answers_by_the_stack() {
    let test = "redis_answers_by_the_stack";
    if !tidewall_skip::has_programs(test, &["redis-server", "redis-cli", "redis-benchmark"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pr") else {
        return;
    };
    let server = [
        "redis-server",
        "--save",
        "",
        "--protected-mode",
        "no",
        "--bind",
        "0.0.0.0",
    ];
    let redis = Preloaded::start(host, &server);
    assert_eq!(redis.answered("redis-cli", &["-h", HERE, "ping"]), "PONG\n");
    assert!(redis.has(["promoted", "listener", "0.0.0.0:6379"]));
    let value = "v".repeat(100_000);
    let set = redis.answered("redis-cli", &["-h", HERE, "set", "key", &value]);
    assert_eq!(set, "OK\n");
    let got = redis.answered("redis-cli", &["-h", HERE, "get", "key"]);
    assert_eq!(got.trim(), value);
    // A child that saves inherits every connection, and ends none.
    let save = redis.answered("redis-cli", &["-h", HERE, "bgsave"]);
    assert!(save.contains("saving started"), "{save}");
    let benchmark = ["-h", HERE, "-c", "20", "-n", "4000", "-q", "-t", "get,set"];
    let said = redis.answered("redis-benchmark", &benchmark);
    assert!(said.contains("GET: ") && said.contains("SET: "), "{said}");
    // Four commands and twice twenty clients, at least.
    let accepted = redis.accepted();
    assert!(accepted >= 44, "{accepted}");
    // Over loopback it is the kernel's.
    let local = redis.host.output("redis-cli", &["ping"]);
    assert_eq!(local, "PONG\n");
    assert_eq!(redis.accepted(), accepted);
}
