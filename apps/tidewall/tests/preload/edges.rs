//! The edges of calls, tested by C programs that print what each returns, on both stacks.

use std::process::{Command, Stdio};

use super::common::bed::Bed;
use super::common::host::{Host, library};
use super::common::{Place, Service, text};

/// Treats each connection as its first line requests.
const PEER: &str = r#"
import ast, socket, struct, threading, time
kept = []
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.bind(('10.99.0.1', 9001))
def serve(it, what, *words):
    if what == 'echo':
        while got := it.recv(65536): it.sendall(got)
    elif what == 'hold':
        time.sleep(30)
    elif what == 'say':
        time.sleep(0.8 if words[0] == 'later' else 0)
        it.sendall(words[0].encode())
        time.sleep(30)
    elif what == 'keep':
        got = b''
        while part := it.recv(100): got += part
        kept.append(got)
    elif what == 'kept':
        time.sleep(0.5)
        it.sendall(repr(kept).encode())
        kept.clear()
    elif what == 'call':
        made = socket.create_connection(('10.99.0.2', int(words[0])))
        threading.Thread(target=serve, args=(made, *words[1:]), daemon=True).start()
        it.recv(1)
    elif what == 'datagrams':
        time.sleep(0.2)
        for i in range(int(words[1])): asking.sendto(b'd' * (10 + i), ('10.99.0.2', int(words[0])))
    elif what == 'lengths':
        made, got = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), []
        made.bind(('10.99.0.1', int(words[0])))
        made.settimeout(1)
        it.sendall(b'R')
        try:
            while True: got.append(len(made.recv(1000)))
        except TimeoutError: it.sendall(repr(got).encode())
    it.close()
def begin(it):
    line = b''
    while line[-1:] != b'\n':
        if not (more := it.recv(1)): return it.close()
        line += more
    try: serve(it, *line.decode().split())
    except ConnectionError: it.close()
listener = socket.socket()
listener.bind(('10.99.0.1', 9000))
listener.listen(64)
print('ready', flush=True)
while True: threading.Thread(target=begin, args=(listener.accept()[0],), daemon=True).start()
"#;

#[test]
fn the_edges_of_calls_are_those_of_linux() {
    let test = "the_edges_of_calls_are_those_of_linux";
    compare(test, "pe", include_str!("edges/calls.c"));
}

#[test]
fn corners_that_programs_reach_are_those_of_linux() {
    let test = "corners_that_programs_reach_are_those_of_linux";
    compare(test, "pc", include_str!("edges/corners.c"));
}

#[test]
fn ends_at_bad_moments_are_those_of_linux() {
    let test = "ends_at_bad_moments_are_those_of_linux";
    compare(test, "px", include_str!("edges/ends.c"));
}

/// Compares what each group of calls of a program returns on both stacks.
fn compare(test: &str, name: &str, source: &str) {
    if !tidewall_skip::has_programs(test, &["cc", "python3"]) {
        return;
    }
    let place = Place::new(test);
    let source = [include_str!("edges/common.h"), source].concat();
    let program = place.compiled("edges", &source);
    let Some(host) = Host::or_skip(test, name) else {
        return;
    };
    let bed = &host.bed;
    let peer = Bed::other(&bed.client, "python3", &["-c", PEER]);
    let _peer = Service::start(peer);
    let neighbour = format!(
        "ip neigh replace 10.99.0.50 lladdr 02:00:00:00:99:99 dev {} nud permanent",
        bed.interface
    );
    host.output("sh", &["-c", &neighbour]);
    let preload = format!("LD_PRELOAD={}", library().display());
    let groups = host.output(&program, &[]);
    assert!(groups.lines().count() > 4, "{groups}");
    let run = |mut command: Command, has_stack: bool| {
        let output = command.stdin(Stdio::null()).output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(errors.contains("promoted"), has_stack, "{errors}");
        format!("{}{}", text(&output.stdout), output.status)
    };
    let each = |run: &dyn Fn(&str) -> String| groups.lines().map(run).collect::<Vec<_>>();
    let linux = each(&|group| {
        run(
            host.command("timeout", &["-k5", "20", &program, group]),
            false,
        )
    });
    let own = each(&|group| {
        let environment = [
            "env",
            &preload,
            "TIDEWALL_DEBUG=1",
            "TIDEWALL_PROMOTE=at-once",
        ];
        let limited = ["timeout", "-k5", "20", &program, group];
        run(host.run(&[], &[&environment[..], &limited].concat()), true)
    });
    let mut differ = Vec::new();
    for ((group, linux), own) in groups.lines().zip(linux).zip(own) {
        assert!(linux.ends_with("exit status: 0"), "{group}: {linux}");
        if linux != own {
            println!("{group}\nLinux: {linux}\nTidewall: {own}\n");
            differ.push(group);
        }
    }
    assert!(differ.is_empty(), "{differ:?} differ from Linux's");
}
