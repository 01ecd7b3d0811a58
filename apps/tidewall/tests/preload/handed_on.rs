//! Listeners that another process continues to use: created before the processes that
//! serve on them, one after the other.

use super::Preloaded;
use super::common::host::Host;

/// Children that serve one connection each on their parent's listener, and close it or
/// not; then one that continues on it from where its parent began.
const ONE_AFTER_THE_OTHER: &str = r#"
import os, select, socket, sys
def listen(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(('0.0.0.0', port))
    listener.listen(8)
    return listener
def serve(listener, said):
    connection, _ = listener.accept()
    return connection, connection.sendall(said)
listener = listen(8191)
for number in range(3):
    child = os.fork()
    if child == 0:
        served, _ = serve(listener, b'%d' % number)
        listener.close()
        # Its peer is to know that the listener is closed.
        served.sendall(b'.')
        served.recv(1)
        sys.exit() if number else os._exit(0)
    os.waitpid(child, 0)
listener.close()
listener = listen(8192)
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)
served, _ = serve(listener, b'parent')
if os.fork() == 0:
    served.close()
    select.select([listener], [], [], 10)
    served, _ = serve(listener, b'child')
else:
    listener.close()
    served.sendall(b'.')
    served.recv(1)
"#;

/// Connects to each while the connection to the previous one, whose listener is closed,
/// still exists.
const CLIENTS: &str = r#"
import socket, time
def connect(port):
    while True:
        try: return socket.create_connection(('10.99.0.2', port), 10)
        except ConnectionRefusedError:
            assert port != 8191
            time.sleep(0.05)
for port, count in (8191, 3), (8192, 2):
    before = None
    for number in range(count):
        peer = connect(port)
        if before: before.close()
        said = b''
        while not said.endswith(b'.') and (part := peer.recv(10)): said += part
        print(port, said.decode())
        before = peer
    before.close()
"#;

#[test]
fn a_listener_goes_on_in_another_process() {
    let test = "a_listener_goes_on_in_another_process";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pu") else {
        return;
    };
    let server = Preloaded::start(host, &["python3", "-c", ONE_AFTER_THE_OTHER]);
    let said = server.answered("python3", &["-c", CLIENTS]);
    assert_eq!(
        said,
        "8191 0.\n8191 1.\n8191 2.\n8192 parent.\n8192 child\n"
    );
    assert!(server.has(["promoted", "listener", "0.0.0.0:8191"]));
    assert!(server.has(["promoted", "listener", "0.0.0.0:8192"]));
}
