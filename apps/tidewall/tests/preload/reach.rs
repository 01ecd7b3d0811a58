//! Programs between Tidewall and the kernel: peers by link-local addresses beside a second
//! interface, and a ring of io_uring.

use super::common::Place;
use super::common::host::Host;
use super::{HERE, Preloaded, text};

/// Answers datagrams and connections with the scope of the sender.
const SCOPES: &str = r#"
import socket, threading
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.bind(('::', 8290))
tcp = socket.create_server(('::', 8291), family=socket.AF_INET6)
def serve():
    while True:
        connection, peer = tcp.accept()
        connection.recv(1)
        connection.sendall(b'%d %d' % (peer[3], connection.getpeername()[3]))
        connection.close()
threading.Thread(target=serve, daemon=True).start()
while True:
    _, peer = udp.recvfrom(100)
    udp.sendto(b'%d' % peer[3], peer)
"#;

const SCOPES_CLIENT: &str = r#"
import socket, sys
host, scope = sys.argv[1], socket.if_nametoindex(sys.argv[2])
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.settimeout(2)
said = []
for _ in range(5):
    udp.sendto(b'x', (host, 8290, 0, scope))
    said.append(udp.recv(100).decode())
for _ in range(2):
    tcp = socket.socket(socket.AF_INET6)
    tcp.settimeout(5)
    tcp.connect((host, 8291, 0, scope))
    tcp.sendall(b'x')
    said += tcp.makefile().read().split()
print(*said)
"#;

#[test]
fn link_local_peers_are_answered_beside_another_interface() {
    let test = "link_local_peers_are_answered_beside_another_interface";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "rl") else {
        return;
    };
    let interface = host.bed.interface.clone();
    let peer = interface.replacen("twcs", "twcc", 1);
    // Its link-local route is there as well, and older or newer than the other.
    let second =
        "for it in twfirst twsecond; do ip link add $it type dummy; ip link set $it up; done";
    host.output("sh", &["-c", second]);
    let index = format!("/sys/class/net/{interface}/ifindex");
    let index = host.output("cat", &[&index]).trim().to_owned();
    let show = [
        "-6", "-o", "addr", "show", "dev", &interface, "scope", "link",
    ];
    let shown = host.output("ip", &show);
    let address = shown
        .split_whitespace()
        .nth(3)
        .expect("a link-local address");
    let address = address.split('/').next().unwrap().to_owned();
    let server = Preloaded::start(host, &["python3", "-c", SCOPES]);
    let said = server.answered("python3", &["-c", SCOPES_CLIENT, &address, &peer]);
    assert_eq!(
        said.trim(),
        [index.as_str(); 9].join(" "),
        "UDP five times, TCP"
    );
    assert!(server.has(["promoted", "datagrams", "[::]:8290"]));
    assert!(server.has(["promoted", "listener", "[::]:8291"]));
}

/// Serves one connection by a ring that it makes behind the library's back, and reports
/// what the library's `syscall` returns for the same.
const RING: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static long direct(long call, long a, long b, long c, long d)
{
	long result;
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = 0, r9 __asm__("r9") = 0;

	__asm__ volatile("syscall" : "=a"(result) : "a"(call), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

int main(void)
{
	struct io_uring_params how = { 0 };
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(8280) };
	char buffer[100], said[200];
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1, connection, ring;
	long made = syscall(SYS_io_uring_setup, 4, &how), refused = errno;

	memset(&how, 0, sizeof how);
	ring = direct(SYS_io_uring_setup, 4, (long)&how, 0, 0);
	if (ring < 0)
		return 77;
	char *submitted = mmap(NULL, how.sq_off.array + how.sq_entries * 4, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
	char *completed = mmap(NULL, how.cq_off.cqes + how.cq_entries * sizeof(struct io_uring_cqe),
			       PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_CQ_RING);
	struct io_uring_sqe *entry = mmap(NULL, how.sq_entries * sizeof *entry, PROT_READ | PROT_WRITE,
					  MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (void *)&here, sizeof here) || listen(listener, 8))
		return 1;
	connection = accept(listener, NULL, NULL);
	memset(entry, 0, sizeof *entry);
	entry->opcode = IORING_OP_RECV;
	entry->fd = connection;
	entry->addr = (unsigned long)buffer;
	entry->len = sizeof buffer;
	*(unsigned *)(submitted + how.sq_off.array) = 0;
	__atomic_store_n((unsigned *)(submitted + how.sq_off.tail), 1, __ATOMIC_RELEASE);
	direct(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS);
	int got = ((struct io_uring_cqe *)(completed + how.cq_off.cqes))->res;
	int length = snprintf(said, sizeof said, "%ld %s, received %d %.*s", made, strerrorname_np(refused), got,
			      got > 0 ? got : 0, buffer);
	return write(connection, said, length) != length;
}
"#;

#[test]
fn a_ring_of_the_program_keeps_its_sockets_with_the_kernel() {
    let test = "a_ring_of_the_program_keeps_its_sockets_with_the_kernel";
    if !tidewall_skip::has_programs(test, &["cc", "python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "rr") else {
        return;
    };
    let place = Place::new(test);
    let program = place.compiled("ring", RING);
    let mut server = Preloaded::start(host, &[&program]);
    let client = "import socket, sys
peer = socket.create_connection((sys.argv[1], 8280), 10)
peer.sendall(b'abc')
print(peer.makefile().read())";
    let output = loop {
        if server
            .process
            .0
            .try_wait()
            .unwrap()
            .and_then(|it| it.code())
            == Some(77)
        {
            return tidewall_skip::missing(test, "io_uring");
        }
        let output = server.peer("python3", &["-c", client, HERE]);
        if output.status.success() {
            break text(&output.stdout);
        }
    };
    assert_eq!(output.trim(), "-1 ENOSYS, received 3 abc");
    let why = "the program has an io_uring, which does not reach the stack's sockets";
    let records = server.records();
    assert!(records.iter().any(|it| it[3] == why), "{records:?}");
    assert!(!records.iter().any(|it| it[0] == "promoted"), "{records:?}");
}
