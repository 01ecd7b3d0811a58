//! Programs that confine themselves under `tidewall run` (docs/preload.md). Needs root;
//! skipped without.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::Place;
use common::host::{Host, library};
use common::preloaded::Preloaded;

/// The action of a filter: for the named calls, and for all others.
const ALLOWS: [&str; 2] = ["SECCOMP_RET_ALLOW", "SECCOMP_RET_KILL_PROCESS"];
const KILLS: [&str; 2] = ["SECCOMP_RET_KILL_PROCESS", "SECCOMP_RET_ALLOW"];
const FAILS: [&str; 2] = ["SECCOMP_RET_ERRNO | 1", "SECCOMP_RET_ALLOW"];

/// Reads the server's report on itself, and has 100,000 bytes and three datagrams echoed.
const CLIENT: &str = "import socket
peer = socket.create_connection(('10.99.0.2', 8140), 10)
said = b''
while not said.endswith(b'\\n'):
    part = peer.recv(1)
    assert part, said
    said += part
sent = bytes(range(250)) * 400
peer.sendall(sent)
got = b''
while len(got) < len(sent): got += peer.recv(100000)
assert got == sent
peer.shutdown(socket.SHUT_WR)
assert peer.recv(1) == b''
asks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asks.settimeout(5)
asks.connect(('10.99.0.2', 8140))
for it in b'one', b'two', b'three':
    asks.send(it)
    assert asks.recv(100) == it
print(said.decode(), end='')";

/// A program that confines itself.
struct Confined {
    when: &'static str,
    how: &'static str,
    actions: [&'static str; 2],
    calls: Vec<String>,
}

impl Confined {
    fn new(
        when: &'static str,
        how: &'static str,
        actions: [&'static str; 2],
        calls: &[&str],
    ) -> Self {
        let calls = calls.iter().map(|&call| call.to_owned()).collect();
        Confined {
            when,
            how,
            actions,
            calls,
        }
    }

    /// Runs it, and has two clients served, one after the other. Returns the result of
    /// installing the filter, as `RESULT ERRNO`; whether the listener is the stack's; and
    /// each line's verdict, kind and reason from the report.
    fn serve(&self, test: &str) -> Option<(String, bool, Vec<[String; 3]>)> {
        if !tidewall_skip::has_programs(test, &["cc", "python3"]) {
            return None;
        }
        let host = Host::or_skip(test, "cf")?;
        let place = Place::new(test);
        let calls: Vec<_> = self.calls.iter().map(|it| format!("SYS_{it}")).collect();
        let [these, others] = self.actions;
        let source = include_str!("confined/confined.c").replace("CALLS", &calls.join(", "));
        let source = source.replace("THESE", these).replace("OTHERS", others);
        let program = place.compiled("confined", &source);
        let empty = place.name("empty");
        fs::create_dir(&empty).unwrap();
        let library = library();
        let words = [
            &*program,
            self.when,
            self.how,
            &empty,
            library.to_str().unwrap(),
        ];
        let without = ["env", "-u", "LD_PRELOAD"];
        let words = match self.when {
            "before" => [&without[..], &words].concat(),
            _ => words.to_vec(),
        };
        let server = Preloaded::start(host, &words);
        // Earlier connections are the kernel's.
        let decided = |[verdict, what, _, _]: &[String; 4]| {
            matches!(&**verdict, "kernel" | "no-stack")
                || verdict == "promoted" && what == "datagrams"
        };
        let end = Instant::now() + Duration::from_secs(20);
        while !server.records().iter().any(decided) {
            assert!(Instant::now() < end, "{:?}", server.records());
            std::thread::sleep(Duration::from_millis(20));
        }
        let first = server.answered("python3", &["-c", CLIENT]);
        assert_eq!(server.answered("python3", &["-c", CLIENT]), first);
        let (result, owned) = first.trim().rsplit_once(' ').unwrap();
        let records = server.records().into_iter();
        let records = records.map(|[verdict, what, _, why]| [verdict, what, why]);
        Some((result.to_owned(), owned == "1", records.collect()))
    }
}

/// Checks each case: its program, the result of installing, whether the stack has the
/// sockets, and the report's lines beside `stack` and `promoted`.
fn check(test: &str, cases: &[(Confined, &str, bool, &[[&str; 3]])]) {
    for (confined, installed, owned, said) in cases {
        println!("{}, {}, {:?}", confined.when, confined.how, confined.calls);
        let Some(answer) = confined.serve(test) else {
            return;
        };
        let what = [confined.when, confined.how, confined.actions[0]];
        let mut records = answer.2;
        records.retain(|[verdict, _, _]| verdict != "stack" && verdict != "promoted");
        let found = (&*answer.0, answer.1);
        assert_eq!(found, (*installed, *owned), "{what:?}: {records:?}");
        assert_eq!(records, *said, "{what:?}");
    }
}

const REFUSES_PPOLL: &str = "the program's filter of system calls refuses ppoll(2)";
const REFUSES_SOCKET: &str = "the program's filter of system calls refuses socket(2)";
const EINVAL: &str = "-1 22";
/// Calls that the stack stops using once one of them is refused.
const PRIORITIES: [&str; 4] = ["gettid", "sched_getattr", "sched_setattr", "sched_yield"];

/// The calls that a filter must allow according to docs/preload.md.
fn documented() -> Vec<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/preload.md");
    let document = fs::read_to_string(root).unwrap();
    let line = document
        .lines()
        .find(|line| line.starts_with("- *Always*: "));
    let line = line.expect("a line of calls");
    let words: Vec<_> = line
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect();
    assert!(words.len() > 30, "{words:?}");
    words
}

#[test]
fn filters_that_allow_what_the_stack_calls_are_in_force() {
    let refuses_socket = ["kernel", "later sockets", REFUSES_SOCKET];
    let documented = Confined {
        when: "waiting",
        how: "prctl",
        actions: ALLOWS,
        calls: documented(),
    };
    let cases: [(_, _, _, &[_]); 7] = [
        // Long segments are not sent.
        (
            Confined::new("first", "prctl,packet", KILLS, &["ptrace"]),
            "0 0",
            true,
            &[],
        ),
        (
            Confined::new("waiting", "seccomp,tsync", KILLS, &["ptrace", "mount"]),
            "0 0",
            true,
            &[],
        ),
        // Priorities are no longer followed.
        (
            Confined::new("ours", "seccomp,tsync", KILLS, &PRIORITIES),
            "0 0",
            true,
            &[],
        ),
        // Only what is documented, or the program ends.
        (documented, "0 0", true, &[refuses_socket]),
        // No stack could be made any more.
        (
            Confined::new("first", "prctl", KILLS, &["openat", "clone3", "clone"]),
            "0 0",
            true,
            &[],
        ),
        (
            Confined::new("ours", "prctl,thread", KILLS, &["socket"]),
            "0 0",
            true,
            &[refuses_socket],
        ),
        // Without /proc, which lists open descriptors, their limit is not queried.
        (
            Confined::new("waiting", "chroot,prctl", KILLS, &["prlimit64"]),
            "0 0",
            true,
            &[],
        ),
    ];
    check(
        "filters_that_allow_what_the_stack_calls_are_in_force",
        &cases,
    );
}

#[test]
fn filters_that_refuse_it_leave_sockets_to_the_kernel() {
    let kernel = |what| ["kernel", what, REFUSES_PPOLL];
    let waiting = [
        kernel("listener"),
        kernel("datagrams"),
        kernel("later sockets"),
    ];
    let cases: [(_, _, _, &[_]); 4] = [
        (
            Confined::new("first", "seccomp", FAILS, &["ppoll"]),
            "0 0",
            false,
            &waiting[2..],
        ),
        (
            Confined::new("waiting", "prctl", KILLS, &["ppoll"]),
            "0 0",
            false,
            &waiting,
        ),
        (
            Confined::new("waiting", "seccomp,tsync,thread", KILLS, &["ppoll"]),
            "0 0",
            false,
            &waiting,
        ),
        (
            Confined::new("waiting", "strict,thread", KILLS, &["ppoll"]),
            "0 0",
            false,
            &waiting,
        ),
    ];
    check("filters_that_refuse_it_leave_sockets_to_the_kernel", &cases);
}

#[test]
fn filters_that_would_break_the_stack_s_sockets_are_refused() {
    let refused = |why| ["no-filter", "", why];
    let (ppoll, socket) = ([refused(REFUSES_PPOLL)], [refused(REFUSES_SOCKET)]);
    let cases: [(_, _, _, &[_]); 4] = [
        (
            Confined::new("ours", "prctl", KILLS, &["ppoll"]),
            EINVAL,
            true,
            &ppoll,
        ),
        (
            Confined::new("ours", "seccomp", FAILS, &["ppoll"]),
            EINVAL,
            true,
            &ppoll,
        ),
        (
            Confined::new("ours", "strict", KILLS, &["ppoll"]),
            EINVAL,
            true,
            &ppoll,
        ),
        // The stack's own threads are under it, too.
        (
            Confined::new("ours", "seccomp,tsync,thread", KILLS, &["socket"]),
            EINVAL,
            true,
            &socket,
        ),
    ];
    check(
        "filters_that_would_break_the_stack_s_sockets_are_refused",
        &cases,
    );
}

/// Under a filter that no process can read.
#[test]
fn filters_that_were_there_before_are_tried() {
    let new = |actions, call| Confined::new("before", "prctl", actions, &[call]);
    let why = "a filter of system calls, older than the program, refuses";
    let (ppoll, files) = (format!("{why} ppoll(2)"), format!("{why} getdents64(2)"));
    let refused = |why| [["no-stack", "", why]];
    let (ppoll, files) = (refused(&*ppoll), refused(&*files));
    let packet = |actions| Confined::new("before", "prctl,packet", actions, &["ptrace"]);
    let cases: [(_, _, _, &[_]); 8] = [
        (packet(KILLS), "0 0", true, &[]),
        (packet(FAILS), "0 0", true, &[]),
        (new(KILLS, "ptrace"), "0 0", true, &[]),
        (new(KILLS, "sched_getattr"), "0 0", true, &[]),
        (new(FAILS, "sched_setattr"), "0 0", true, &[]),
        (new(FAILS, "ppoll"), "0 0", false, &ppoll),
        (new(KILLS, "ppoll"), "0 0", false, &ppoll),
        (new(KILLS, "getdents64"), "0 0", false, &files),
    ];
    check("filters_that_were_there_before_are_tried", &cases);
}

#[test]
fn other_users_roots_capabilities_and_limits() {
    let new = |when, how| Confined::new(when, how, KILLS, &["ptrace"]);
    let no_manager = [
        ["no-stack", "", "No such file or directory (os error 2)"],
        ["kernel", "listener", "there is no stack"],
        ["kernel", "datagrams", "there is no stack"],
    ];
    let cases: [(_, _, _, &[_]); 10] = [
        (new("first", "chroot"), "0 0", false, &no_manager),
        (new("waiting", "chroot"), "0 0", true, &[]),
        (new("ours", "chroot"), "0 0", true, &[]),
        (new("waiting", "limit"), "0 0", true, &[]),
        (new("first", "nobody"), "0 0", true, &[]),
        (new("waiting", "nobody"), "0 0", true, &[]),
        (new("ours", "nobody"), "0 0", true, &[]),
        (new("first", "capabilities"), "0 0", true, &[]),
        (new("waiting", "capabilities"), "0 0", true, &[]),
        (new("ours", "capabilities"), "0 0", true, &[]),
    ];
    check("other_users_roots_capabilities_and_limits", &cases);
}
