//! The order in which connections are accepted: that in which their handshakes were
//! completed.

use super::Preloaded;
use super::common::bed::Bed;
use super::common::host::Host;

/// For each control connection: begins to accept on request, then reports the ports.
/// Meanwhile it waits in the stack, sleeps outside of it, or works.
const SERVER: &str = r#"
import socket, time
listener = socket.create_server(('0.0.0.0', 8310), backlog=64)
def works(control):
    end = time.monotonic() + 0.3
    while time.monotonic() < end: pass
waits = [lambda control: control.recv(1), lambda control: time.sleep(0.3), works]
while True:
    control, _ = listener.accept()
    how, count = control.recv(2)
    control.sendall(b'g')
    waits[how](control)
    ports = [listener.accept()[1][1] for _ in range(count)]
    control.sendall(' '.join(map(str, ports)).encode())
    control.close()
"#;

/// Connects one after the other, and sends something at once or does not, or begins all
/// before one is connected.
const CLIENT: &str = r#"
import select, socket, sys
HERE = '10.99.0.2', 8310
def connect(): return socket.create_connection(HERE, 10)
def begin():
    it = socket.socket()
    it.setblocking(False)
    it.connect_ex(HERE)
    return it
wrong = []
for how in range(3):
    for sends in range(int(sys.argv[1])):
        count = 4 if how else 16
        control = connect()
        control.sendall(bytes([how, count]))
        control.recv(1)
        made = []
        for _ in range(count):
            made.append(begin() if sends == 2 else connect())
            if sends == 1: made[-1].sendall(b'x')
        for it in made: select.select([], [it], [])
        if how == 0: control.sendall(b'x')
        ports = [it.getsockname()[1] for it in made]
        said = list(map(int, control.makefile().read().split()))
        order = [ports.index(it) for it in said]
        if order != list(range(count)): wrong.append((how, sends, order))
print(wrong)
"#;

/// `when`: the listener is the stack's before the first connection, or once one was served.
///
/// Simultaneous connections over several queues have no order.
fn are_in_order(test: &str, name: &str, when: &str, queues: &str) {
    let ways = if queues == "1" { "3" } else { "2" };
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, name) else {
        return;
    };
    let own = &host.bed.interface;
    let peer = own.replacen("twcs", "twcc", 1);
    for (namespace, device) in [(&host.bed.server, own), (&host.bed.client, &peer)] {
        let set = ["-L", device, "rx", queues, "tx", queues];
        let mut set = Bed::other(namespace, "ethtool", &set);
        assert!(set.status().unwrap().success());
    }
    let server = Preloaded::start_when(host, when, &["python3", "-c", SERVER]);
    let said = server.answered("python3", &["-c", CLIENT, ways]);
    assert_eq!(said.trim(), "[]", "how the server waits, sends, order");
    server.until_listener("promoted", "0.0.0.0:8310");
}

#[test]
fn connections_are_accepted_in_the_order_of_their_handshakes() {
    let test = "connections_are_accepted_in_the_order_of_their_handshakes";
    are_in_order(test, "oa", "at-once", "1");
}

#[test]
fn connections_of_several_queues_are_accepted_in_order() {
    let test = "connections_of_several_queues_are_accepted_in_order";
    are_in_order(test, "oc", "at-once", "2");
}

#[test]
fn connections_that_the_kernel_has_already_are_accepted_first() {
    let test = "connections_that_the_kernel_has_already_are_accepted_first";
    are_in_order(test, "ob", "served", "1");
}
