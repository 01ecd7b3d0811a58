//! Children of programs that have connections, by `libtidewall.so` (docs/preload.md). Needs
//! root; skipped without.

mod common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::Place;
use common::host::{Host, library};
use common::preloaded::Preloaded;
use common::text;

/// The same with Python's kinds of children.
const PYTHON: &str = r#"
import os, socket, subprocess, threading
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('0.0.0.0', 8150))
listener.listen(8)
# What comes before anybody attends to it is the kernel's.
listener.settimeout(0)
try: listener.accept()
except BlockingIOError: pass
listener.settimeout(None)
data, control = (listener.accept()[0] for _ in range(2))
def echo():
    while got := data.recv(4096): data.sendall(got)
threading.Thread(target=echo).start()
os.set_inheritable(data.fileno(), True)
child = ['python3', '-c', '''
import errno, os, sys
try: os.write(int(sys.argv[1]), b'x')
except OSError as error: print(errno.errorcode[error.errno])
''', str(data.fileno())]
bare = {'PATH': os.environ['PATH']}
run = lambda **how: subprocess.run(child, capture_output=True, env=bare, **how).stdout
def spawned():
    reader, writer = os.pipe()
    child = os.posix_spawn('/bin/echo', ['echo', 'spawned'], bare,
        file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)])
    os.close(writer)
    with open(reader, 'rb') as said: words = said.read()
    return words, os.waitpid(child, 0)[1]
ways = {
    'closed': lambda: run(),
    'kept': lambda: run(close_fds=False),
    'passed': lambda: run(pass_fds=[data.fileno()]),
    'prepared': lambda: run(preexec_fn=lambda: os.closerange(3, 1000)),
    'spawned': spawned,
    'system': lambda: os.system('exit 3'),
    'popen': lambda: os.popen('echo it').read(),
}
for name, way in ways.items():
    control.sendall(f'{name}: {({way() for _ in range(25)})}\n'.encode())
control.close()
"#;

/// Has its messages echoed until the server has sent its whole report on the other
/// connection.
const CLIENT: &str = "import select, socket, time
data, control = (socket.create_connection(('10.99.0.2', 8150), 10) for _ in range(2))
echoed, said, slowest = 0, b'', 0
while True:
    sent = b'%08d' % echoed * 100
    begun = time.monotonic()
    data.sendall(sent)
    got = b''
    while len(got) < len(sent):
        part = data.recv(len(sent) - len(got))
        assert part, (echoed, said)
        got += part
    assert got == sent, (echoed, got)
    slowest = max(slowest, time.monotonic() - begun)
    echoed += 1
    if select.select([control], [], [], 0)[0]:
        part = control.recv(4096)
        said += part
        if not part or said.count(b'\\n') == LINES: break
data.shutdown(socket.SHUT_WR)
assert data.recv(1) == b''
assert echoed > 100, echoed
print(said.decode(), end='')";

/// Makes a program serve the client; returns its report.
fn said(test: &str, name: &str, program: &[&str], lines: &str) -> Option<String> {
    let host = Host::or_skip(test, name)?;
    let server = Preloaded::start(host, program);
    let client = CLIENT.replace("LINES", lines);
    let end = Instant::now() + Duration::from_secs(20);
    while !server.has(["promoted", "listener", "0.0.0.0:8150"]) {
        assert!(Instant::now() < end, "{:?}", server.records());
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = server.peer("python3", &["-c", &client]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    Some(text(&output.stdout))
}

#[test]
fn children_leave_connections_alone() {
    let test = "children_leave_connections_alone";
    if !tidewall_skip::has_programs(test, &["cc", "python3"]) {
        return;
    }
    let place = Place::new(test);
    let program = place.compiled("children", include_str!("children/children.c"));
    let Some(said) = said(test, "ch", &[&program], "17") else {
        return;
    };
    assert_eq!(said.lines().count(), 17, "{said}");
    for line in said.lines() {
        assert!(line.ends_with(": 0 of 100 wrong, 0"), "{said}");
    }
}

/// A lock held by another thread at that moment does not stay locked in the child.
#[test]
fn children_find_no_lock_held() {
    let test = "children_find_no_lock_held";
    if !tidewall_skip::has_programs(test, &["cc"]) {
        return;
    }
    let place = Place::new(test);
    let program = place.compiled("children", include_str!("children/children.c"));
    let Some(host) = Host::or_skip(test, "cl") else {
        return;
    };
    let preload = format!("LD_PRELOAD={}", library().display());
    let mut run = host.run(&[], &["env", &preload, &program, "early"]);
    let output = run.stdin(Stdio::null()).output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(text(&output.stdout), "0 wrong\n", "{errors}");
    // Its hundreds of sockets stay with the kernel for one reason, which each process
    // reports once.
    assert!(errors.lines().count() <= 64, "{errors}");
}

#[test]
fn children_of_python_do_so_too() {
    let test = "children_of_python_do_so_too";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(said) = said(test, "cp", &["python3", "-c", PYTHON], "7") else {
        return;
    };
    let expected = "closed: {b'EBADF\\n'}
kept: {b'ENOTCONN\\n'}
passed: {b'ENOTCONN\\n'}
prepared: {b'EBADF\\n'}
spawned: {(b'spawned\\n', 0)}
system: {768}
popen: {'it\\n'}
";
    assert_eq!(said, expected);
}
