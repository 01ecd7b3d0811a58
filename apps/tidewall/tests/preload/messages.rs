//! Control messages of datagrams: those that a program receives and may send, on both
//! stacks.

use std::process::Stdio;

use super::common::Running;
use super::common::host::Host;
use super::common::text;
use super::{HERE, Preloaded};

/// Two sockets, of IPv4 and of both families, that answer each datagram with how it was
/// received. A datagram may request an option, and set the room and the source of the
/// next one.
const SERVER: &str = r#"
import errno, json, select, socket, sys
port = int(sys.argv[1])
room, size, early = {}, {}, [(0, 8, 1)]
def bound(family, address, port, options):
    made = socket.socket(family, socket.SOCK_DGRAM)
    for level, name, value in options: made.setsockopt(level, name, value)
    made.bind((address, port))
    return made
sockets = [bound(socket.AF_INET, '0.0.0.0', port, early), bound(socket.AF_INET6, '::', port + 1, [])]
poll = select.poll()
every = {it.fileno(): it for it in sockets}
for it in every: poll.register(it, select.POLLIN)
def attempt(call, *arguments):
    try: return call(*arguments)
    except OSError as error: return errno.errorcode[error.errno]
while True:
    for number, _ in poll.poll():
        made = every[number]
        asked, control, flags, peer = made.recvmsg(size.get(number, 1000), room.get(number, 1000))
        said = [len(asked), flags, [(a, b, c.hex()) for a, b, c in control]]
        try: wishes = json.loads(asked)
        except ValueError: wishes = {}
        room[number], size[number] = wishes.get('room', 1000), wishes.get('size', 1000)
        for level, name, value in wishes.get('set', []):
            said.append(attempt(made.setsockopt, level, name, value))
            said.append(attempt(made.getsockopt, level, name))
        sends = [(a, b, bytes.fromhex(c)) for a, b, c in wishes.get('send', [])]
        if wishes.get('back'):
            # The answer leaves by no interface of its choice from the address that was asked.
            for level, kind, data in control:
                if (level, kind) == (0, 8): sends.append((0, 8, bytes(4) + data[4:8] + bytes(4)))
                if (level, kind) == (41, 50): sends.append((41, 50, data[:16] + bytes(4)))
        answer = json.dumps(said).encode()
        sent = attempt(made.sendmsg, [answer[:3], answer[3:]], sends, 0, peer)
        if isinstance(sent, str): made.sendto(sent.encode() + answer, peer)
"#;

/// Sends requests, and prints each answer and its source address.
const CLIENT: &str = r#"
import json, socket, struct, sys
port = int(sys.argv[1])
ttl, tos, info4, ttl4, tos4, info6, hops6, class6 = 12, 13, 8, 2, 1, 49, 51, 66
def ask(to, **wishes):
    family = socket.AF_INET6 if ':' in to else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.settimeout(10)
    if family == socket.AF_INET:
        made.setsockopt(0, ttl4, 9)
        made.setsockopt(0, tos4, 0x48)
    else:
        made.setsockopt(41, 16, 9)
        made.setsockopt(41, 67, 0x48)
    made.setsockopt(0, ttl, 1)
    made.setsockopt(0, tos, 1)
    made.sendto(json.dumps(wishes).encode(), (to, port + wishes.get('socket', 0)))
    answer, control, _, by = made.recvmsg(1000, 100)
    print(to, wishes, answer.decode(), control, by[0])
def source(address, interface=0, length=12):
    data = struct.pack('=I4s4s', interface, socket.inet_aton(address), bytes(4))
    return 0, 8, data[:length].hex()
def source6(address, interface=0):
    data = socket.inet_pton(socket.AF_INET6, address) + struct.pack('=I', interface)
    return 41, 50, data.hex()
def number(level, kind, value):
    return level, kind, struct.pack('=i', value).hex()
four, other, six, foreign = '10.99.0.2', '10.99.0.3', 'fd99::2', '10.99.0.77'
for to in four, other:
    ask(to)
    ask(to, back=1)
    ask(to, set=[(0, ttl, 1), (0, tos, 1), (41, hops6, 1), (0, info4, 0)])
    ask(to, set=[(0, info4, 5)], back=1)
    ask(to, back=1)
    for room in 0, 15, 16, 20, 28, 32, 47, 48, 52, 56, 68, 71, 72, 73:
        ask(to, room=room)
        ask(to, size=room)
    ask(to, set=[(0, ttl, 0), (0, tos, 0)])
    sends = (source(four), source(other), source('0.0.0.0'), source(foreign), source('127.0.0.1'),
        source('224.0.0.1'), source(four, 9999), source(four, length=8), source6(six),
        number(0, ttl4, 33), number(0, ttl4, 0), number(0, ttl4, 256), number(0, tos4, 0x88),
        number(0, 99, 1), number(6, 1, 1))
    for send in sends: ask(to, send=[send])
    ask(to, send=[source(other), number(0, ttl4, 44)])
    ask(to, send=[number(0, ttl4, 44), source(other)])
for to in four, other, six:
    wants = dict(socket=1)
    ask(to, **wants)
    ask(to, **wants, set=[(41, info6, 1), (41, hops6, 1), (41, class6, 1)])
    ask(to, **wants, back=1)
    ask(to, **wants, back=1, set=[(0, ttl, 1), (0, info4, 1)])
    ask(to, **wants, back=1)
    for room in 20, 40, 76: ask(to, **wants, room=room)
    for send in source6('::ffff:' + other), source(other), source6('fd99::3'), source6('::'):
        ask(to, **wants, send=[send])
    ask(to, **wants, send=[number(41, 52, 33)])
    ask(to, **wants, set=[(0, ttl, 0), (0, info4, 0), (41, info6, 0), (41, hops6, 0)])
    ask(to, **wants)
"#;

#[test]
fn control_messages_are_those_of_linux() {
    let test = "control_messages_are_those_of_linux";
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pm") else {
        return;
    };
    let add = |namespace: &str, device: &str, address: &str| {
        let how = [
            "-n", namespace, "addr", "add", address, "dev", device, "nodad",
        ];
        let added = std::process::Command::new("ip").args(how).output();
        assert!(added.unwrap().status.success(), "{address}");
    };
    let bed = &host.bed;
    let other = bed.interface.replace("twcs", "twcc");
    for address in ["10.99.0.3/24", "fd99::2/64", "fd99::3/64"] {
        add(&bed.server, &bed.interface, address);
    }
    add(&bed.client, &other, "fd99::1/64");
    let mut linux = host.command("python3", &["-c", SERVER, "8150"]);
    let _linux = Running(linux.stdout(Stdio::null()).spawn().unwrap());
    let server = Preloaded::start(host, &["python3", "-c", SERVER, "8160"]);
    let ready = format!(
        "import socket; it = socket.socket(type=socket.SOCK_DGRAM); it.settimeout(0.2)
it.sendto(b'{{}}', ('{HERE}', PORT)); it.recv(1000)"
    );
    let [expected, said] = ["8150", "8160"].map(|port| {
        server.answered("python3", &["-c", &ready.replace("PORT", port)]);
        let output = server.peer("python3", &["-c", CLIENT, port]);
        [text(&output.stdout), text(&output.stderr)].concat()
    });
    for (linux, own) in expected.lines().zip(said.lines()) {
        assert_eq!(linux, own, "Linux left, Tidewall right");
    }
    assert_eq!(expected, said);
    assert!(said.lines().count() > 100, "{said}");
    for address in ["0.0.0.0:8160", "[::]:8161"] {
        assert!(server.has(["promoted", "datagrams", address]));
    }
}
