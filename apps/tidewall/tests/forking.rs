//! Programs that have their clients served by other processes, by `tidewall run` with the
//! library (docs/preload.md): each client is served as on Linux. Needs root; skipped without.

mod common;

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::bed::Bed;
use common::host::{Host, library};
use common::preloaded::Preloaded;
use common::{Place, Running, signal, text};

/// Clients of each program.
const CLIENTS: usize = 24;
/// Time for a program to start or to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program that has other processes serve.
struct Program {
    name: &'static str,
    /// Programs that have to be installed.
    needs: &'static [&'static str],
    /// Shell words that start it; `$DIR` has its files.
    server: &'static str,
    ports: &'static [u16],
    /// Bytes of a question, and bytes that its answer contains.
    asks: &'static [u8],
    wants: &'static [u8],
}

const PLAIN: Program = Program {
    name: "",
    needs: &["python3"],
    server: "",
    ports: &[8201],
    asks: b"ping\n",
    wants: b"pong ping",
};

/// A program with two listeners.
const TWO: Program = Program {
    ports: &[8201, 8202],
    ..PLAIN
};

const PROGRAMS: [Program; 16] = [
    Program {
        name: "sshd",
        needs: &["sshd", "ssh-keygen"],
        server: "mount -t tmpfs tmpfs /run; mkdir -p /run/sshd; ssh-keygen -q -t ed25519 -N '' -f $DIR/key; \
                 printf 'Port 8201\\nHostKey '$DIR/key'\\nUsePAM no\\nPidFile none\\nMaxStartups 100\\n' >$DIR/sshd.conf; \
                 exec $RUN /usr/sbin/sshd -D -e -f $DIR/sshd.conf",
        asks: b"SSH-2.0-client\r\n",
        // Behind the banner: the client's process sends its offer of algorithms.
        wants: b"curve25519-sha256",
        ..PLAIN
    },
    Program {
        name: "postgres' way",
        server: "exec $RUN python3 $DIR/servers.py postmaster 8201 8202",
        ..TWO
    },
    Program {
        name: "socat fork",
        needs: &["socat"],
        server: "exec $RUN socat TCP-LISTEN:8201,reuseaddr,fork SYSTEM:'read it; echo pong $it'",
        ..PLAIN
    },
    Program {
        name: "Python ForkingTCPServer",
        server: "exec $RUN python3 $DIR/servers.py forking_tcp_server 8201",
        ..PLAIN
    },
    Program {
        name: "Python multiprocessing",
        server: "exec $RUN python3 $DIR/servers.py processes 8201",
        ..PLAIN
    },
    Program {
        name: "Perl, accept and fork",
        needs: &["perl"],
        server: "exec $RUN perl $DIR/fork.pl 8201",
        ..PLAIN
    },
    Program {
        name: "node cluster",
        needs: &["node"],
        server: "exec $RUN node $DIR/cluster.js 8201",
        ..PLAIN
    },
    Program {
        name: "inetd, wait",
        server: "exec $RUN python3 $DIR/servers.py superserver 8201",
        ..PLAIN
    },
    Program {
        name: "inetd, nowait",
        needs: &["inetd"],
        server: "printf '8201 stream tcp nowait root /bin/sh sh %s\\n' $DIR/answer.sh >$DIR/inetd.conf; \
                 exec $RUN inetd -i $DIR/inetd.conf",
        ..PLAIN
    },
    Program {
        name: "prefork, accept",
        server: "exec $RUN python3 $DIR/servers.py prefork 8201",
        ..PLAIN
    },
    Program {
        name: "Apache prefork, two Listen",
        needs: &["apache2"],
        server: "exec $RUN apache2 -d $DIR -f $DIR/apache.conf -DFOREGROUND",
        asks: b"GET /answer HTTP/1.0\r\n\r\n",
        ..TWO
    },
    Program {
        name: "prefork by turns, two listeners",
        server: "exec $RUN python3 $DIR/servers.py prefork_by_turns 8201 8202",
        ..TWO
    },
    Program {
        name: "three with SO_REUSEPORT",
        server: "exec $RUN python3 $DIR/servers.py reuseport 8201",
        ..PLAIN
    },
    Program {
        name: "its parent has served one",
        server: "exec $RUN python3 $DIR/servers.py parent_listened 8201",
        ..PLAIN
    },
    Program {
        name: "epoll, accept and fork",
        server: "exec $RUN python3 $DIR/servers.py epoll_and_fork 8201",
        ..PLAIN
    },
    Program {
        name: "dnsmasq by TCP",
        needs: &["dnsmasq"],
        server: "exec $RUN dnsmasq -k -C /dev/null -R -h -u root -p 8201 --address=/name.test/10.1.2.3",
        asks: b"\0\x1b\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x04name\x04test\0\0\x01\0\x01",
        wants: &[10, 1, 2, 3],
        ..PLAIN
    },
];

const APACHE: &str = "ServerName test
PidFile $DIR/apache.pid
ErrorLog $DIR/apache.log
Listen 8201
Listen 8202
LoadModule mpm_prefork_module /usr/lib/apache2/modules/mod_mpm_prefork.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
StartServers 3
MinSpareServers 2
DocumentRoot $DIR/www
";

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Program {
    /// Returns its files.
    fn place(&self, stack: &str) -> Place {
        let name = self.name.replace(|c: char| !c.is_ascii_alphanumeric(), "");
        let place = Place::new(&format!("forking-{name}-{stack}"));
        let directory = place.path().to_str().unwrap().to_owned();
        place
            .with("servers.py", include_str!("forking/servers.py"))
            .with("client.py", include_str!("forking/client.py"))
            .with("cluster.js", include_str!("forking/cluster.js"))
            .with("fork.pl", include_str!("forking/fork.pl"))
            .with("answer.sh", "read it; echo pong $it\n")
            .with("apache.conf", APACHE.replace("$DIR", &directory))
            .with("www/answer", "pong ping")
    }

    /// Runs it behind `run`, and its clients: returns how many were served, and standard
    /// error.
    fn served(&self, host: &Host, run: &str, stack: &str) -> (usize, String) {
        let place = self.place(stack);
        let errors = place.name("errors");
        let script = format!(
            "DIR={}; RUN='{run}'; {}",
            place.path().display(),
            self.server
        );
        // Mounts of a program disappear with it.
        let mut command = host.command("unshare", &["-m", "sh", "-c", &script]);
        let said = File::create(&errors).unwrap();
        // Apache ends its whole group.
        command.process_group(0).stdout(Stdio::null()).stderr(said);
        let process = command.spawn().unwrap();
        let process = Running(process);
        let end = Instant::now() + PATIENCE;
        while !self.listens(host) {
            let said = fs::read_to_string(&errors).unwrap();
            assert!(Instant::now() < end, "{}: {said}", self.name);
            std::thread::sleep(Duration::from_millis(50));
        }
        let ports: Vec<_> = self.ports.iter().map(u16::to_string).collect();
        let mut clients = Bed::other(
            &host.bed.client,
            "python3",
            &[
                &place.name("client.py"),
                "10.99.0.2",
                &ports.join(","),
                &CLIENTS.to_string(),
                &hexadecimal(self.asks),
                &hexadecimal(self.wants),
            ],
        );
        let output = clients.output().unwrap();
        let served = text(&output.stdout).trim().parse().unwrap();
        end_all(host, process);
        (
            served,
            fs::read_to_string(&errors).unwrap() + &text(&output.stderr),
        )
    }

    fn listens(&self, host: &Host) -> bool {
        let sockets = host.output("ss", &["-Hltn"]);
        let open = |port: &u16| sockets.contains(&format!(":{port} "));
        self.ports.iter().all(open)
    }
}

/// Ends a program, and everything it leaves.
fn end_all(host: &Host, mut process: Running) {
    signal("-TERM", &process);
    let end = Instant::now() + PATIENCE;
    while process.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    // But for the one that keeps the namespace.
    let left = "for pid in $(ip netns pids $0); do \
                [ $(cat /proc/$pid/comm) = cat ] || { kill -9 $pid; echo $pid; }; done";
    loop {
        let mut kill = Command::new("sh");
        let output = kill.args(["-c", left, &host.bed.server]).output().unwrap();
        if output.stdout.is_empty() {
            break;
        }
        assert!(Instant::now() < end, "{}", text(&output.stdout));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn programs_that_fork_serve_all_clients() {
    let test = "programs_that_fork_serve_all_clients";
    let Some(host) = Host::or_skip(test, "fk") else {
        return;
    };
    library();
    let only = std::env::var("TIDEWALL_FORKING_PROGRAM").unwrap_or_default();
    let tidewall = format!(
        "{} run --interface {} --report --",
        common::PROGRAM,
        host.bed.interface
    );
    let mut failed = Vec::new();
    for program in PROGRAMS
        .iter()
        .filter(|program| program.name.contains(&only))
    {
        if !tidewall_skip::has_programs(program.name, program.needs) {
            continue;
        }
        let (linux, _) = program.served(&host, "", "linux");
        let (served, said) = program.served(&host, &tidewall, "tidewall");
        println!(
            "{:32} clients served: Linux {linux}, Tidewall {served}",
            program.name
        );
        if linux != CLIENTS || served != linux {
            failed.push(format!("{}: {served} of {linux}: {said}", program.name));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Starts a program of `servers.py`; Tidewall takes its listener at the time `when`.
fn started(test: &str, name: &str, when: &str, kind: &str) -> Option<(Place, Preloaded)> {
    if !tidewall_skip::has_programs(test, &["python3"]) {
        return None;
    }
    let host = Host::or_skip(test, name)?;
    let place = PLAIN.place(name);
    let servers = place.name("servers.py");
    // If it goes to the background, the run still has something to wait for.
    let script = format!("python3 {servers} {kind} 8201; exec sleep 600");
    let server = Preloaded::start_when(host, when, &["sh", "-c", &script]);
    let end = Instant::now() + PATIENCE;
    while !PLAIN.listens(&server.host) {
        assert!(Instant::now() < end, "it does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    Some((place, server))
}

/// Has this many clients served.
fn serve(place: &Place, server: &Preloaded, clients: usize) {
    let client = place.name("client.py");
    let (asks, wants) = (hexadecimal(PLAIN.asks), hexadecimal(PLAIN.wants));
    let count = clients.to_string();
    let arguments = [&client, "10.99.0.2", "8201", &count, &asks, &wants];
    let output = server.peer("python3", &arguments);
    let said = text(&output.stderr);
    assert_eq!(
        text(&output.stdout).trim(),
        count,
        "{said} {:?}",
        server.records()
    );
}

const LISTENER: &str = "0.0.0.0:8201";

/// Checks that a program of `servers.py` with a single serving process is the stack's
/// after its first client.
fn is_the_stacks_after_its_first_client(test: &str, name: &str, kind: &str) {
    let Some((place, server)) = started(test, name, "", kind) else {
        return;
    };
    server.until_listener("watched", LISTENER);
    serve(&place, &server, 1);
    server.until_listener("promoted", LISTENER);
    serve(&place, &server, 24);
    assert_eq!(server.accepted(), 24);
}

#[test]
fn a_program_that_serves_by_itself_is_the_stacks_after_its_first_client() {
    let test = "a_program_that_serves_by_itself_is_the_stacks_after_its_first_client";
    is_the_stacks_after_its_first_client(test, "fa", "alone");
}

#[test]
fn a_program_in_the_background_is_the_stacks_too() {
    let test = "a_program_in_the_background_is_the_stacks_too";
    is_the_stacks_after_its_first_client(test, "fd", "daemon");
}

#[test]
fn a_child_that_accepts_has_the_connections_until_it_ends() {
    let test = "a_child_that_accepts_has_the_connections_until_it_ends";
    let Some((place, server)) = started(test, "fp", "at-once", "parent_serves_and_child") else {
        return;
    };
    server.until_listener("promoted", LISTENER);
    serve(&place, &server, 1);
    server.until_listener("kernel", LISTENER);
    serve(&place, &server, 24);
    assert_eq!(server.accepted(), 1);
    // The child is killed in the middle of its wait.
    signal_python(&server);
    server.until_listener("promoted", LISTENER);
    serve(&place, &server, 24);
    assert_eq!(server.accepted(), 25);
}

#[test]
fn a_worker_that_is_left_alone_is_the_stacks() {
    let test = "a_worker_that_is_left_alone_is_the_stacks";
    let Some((place, server)) = started(test, "fw", "", "two_workers") else {
        return;
    };
    serve(&place, &server, 24);
    server.until_listener("kernel", LISTENER);
    signal_python(&server);
    let end = Instant::now() + PATIENCE;
    while !server.has(["promoted", "listener", LISTENER]) {
        assert!(Instant::now() < end, "{:?}", server.records());
        serve(&place, &server, 1);
    }
    serve(&place, &server, 24);
    assert!(server.accepted() >= 24);
}

#[test]
fn a_process_that_joins_a_group_later_has_its_share() {
    let test = "a_process_that_joins_a_group_later_has_its_share";
    let Some((place, server)) = started(test, "fj", "", "beside") else {
        return;
    };
    serve(&place, &server, 1);
    server.until_listener("promoted", LISTENER);
    serve(&place, &server, 24);
    let alone = server.accepted();
    assert!(alone >= 24, "{alone}");
    signal_python(&server);
    // Both report it: the later one, and the earlier one.
    let reason = "another process listens at its address, too (SO_REUSEPORT)";
    let end = Instant::now() + PATIENCE;
    while server.records().iter().filter(|it| it[3] == reason).count() < 2 {
        assert!(Instant::now() < end, "{:?}", server.records());
        std::thread::sleep(Duration::from_millis(20));
    }
    let clients = "import socket
said = set()
for _ in range(60):
    peer = socket.create_connection(('10.99.0.2', 8201), 10)
    peer.sendall(b'ping')
    said.add(peer.makefile().read())
print(len(said))";
    assert_eq!(server.answered("python3", &["-c", clients]).trim(), "2");
    assert_eq!(server.accepted(), alone);
    // Once the other is gone, it is alone again.
    signal_python(&server);
    server.until_listener("promoted", LISTENER);
    serve(&place, &server, 24);
    assert_eq!(server.accepted(), alone + 24);
}

/// SIGHUP for the program itself, the oldest of its name.
fn signal_python(server: &Preloaded) {
    let script = "kill -HUP $(for pid in $(ip netns pids $0); do
                  grep -lxs python3 /proc/$pid/comm; done | head -1 | cut -d/ -f3)";
    let mut kill = Command::new("sh");
    let killed = kill.args(["-c", script, &server.host.bed.server]).status();
    assert!(killed.unwrap().success());
}

#[test]
fn a_save_in_the_background_leaves_redis_with_the_stack() {
    let test = "a_save_in_the_background_leaves_redis_with_the_stack";
    if !tidewall_skip::has_programs(test, &["redis-server", "redis-cli"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "fr") else {
        return;
    };
    let place = Place::new("forking-redis");
    let directory = place.path().to_str().unwrap();
    let words = [
        "redis-server",
        "--protected-mode",
        "no",
        "--save",
        "",
        "--dir",
        directory,
    ];
    let server = Preloaded::start_when(host, "", &words);
    server.until_listener("watched", "0.0.0.0:6379");
    let first = server.answered("redis-cli", &["-h", "10.99.0.2", "PING"]);
    assert_eq!(first.trim(), "PONG");
    server.until_listener("promoted", "0.0.0.0:6379");
    // A silent one is there when the child is made.
    let client = "import socket, time
silent = socket.create_connection(('10.99.0.2', 6379), 10)
asks = socket.create_connection(('10.99.0.2', 6379), 10).makefile('rwb', 0)
def ask(line): asks.write(line + b'\\r\\n'); return asks.readline()
assert ask(b'SET a b') == b'+OK\\r\\n'
assert ask(b'BGSAVE').startswith(b'+Background')
while True:
    ask(b'LASTSAVE')
    info = socket.create_connection(('10.99.0.2', 6379), 10)
    info.sendall(b'INFO persistence\\r\\n')
    if b'rdb_bgsave_in_progress:0' in info.recv(65536): break
    time.sleep(0.05)
for _ in range(50):
    one = socket.create_connection(('10.99.0.2', 6379), 10)
    one.sendall(b'PING\\r\\n')
    assert one.recv(64) == b'+PONG\\r\\n'
";
    let output = server.peer("python3", &["-c", client]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let records = server.records();
    assert!(!records.iter().any(|it| it[0] == "kernel"), "{records:?}");
    assert!(server.accepted() >= 52, "{records:?}");
}
