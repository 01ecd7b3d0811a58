//! The life of the driver program's attachment, in a namespace of its own.

use std::io::{Read, stdin};
use std::process::Command;

use tidewall_manager::{Program, XdpMode};

/// Makes a veth pair, attaches in a child, kills the child, and reports what it sees. The
/// namespace and the pair end with the shell.
const SCRIPT: &str = r#"
ip link add twa type veth peer name twb || exit 1
ip link set twa up && ip link set twb up || exit 1
shows() { ip link show dev twa | grep -q 'prog/xdp id'; }
mkfifo "$FIFO" || exit 1
"$SELF" --exact --ignored --nocapture attaches_and_waits < "$FIFO" & child=$!
exec 3> "$FIFO"
for i in $(seq 200); do shows && break; sleep 0.02; done
shows && echo ATTACHED
"$SELF" --exact --ignored --nocapture is_refused
kill -9 $child
wait $child 2> /dev/null
for i in $(seq 200); do shows || break; sleep 0.02; done
shows || echo DETACHED
"$SELF" --exact --ignored --nocapture detaches_when_dropped < /dev/null
shows || echo DROPPED
"#;

#[test]
fn the_program_leaves_with_its_owner() {
    let name = "the_program_leaves_with_its_owner";
    if let Err(error) = Program::load() {
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::PermissionDenied,
            "{error}"
        );
        let what = format!("CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN ({error})");
        tidewall_skip::missing(name, what);
        return;
    }
    let fifo = std::env::temp_dir().join(format!("tw-demux-{}", std::process::id()));
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", SCRIPT])
        .env("SELF", std::env::current_exe().unwrap())
        .env("FIFO", &fifo)
        .output()
        .expect("unshare, of util-linux");
    // Also runs when the script failed half way.
    drop(std::fs::remove_file(&fifo));
    let said = String::from_utf8_lossy(&output.stdout);
    let all = format!("{said}\n{}", String::from_utf8_lossy(&output.stderr));
    if all.contains("unshare failed: Operation not permitted") {
        tidewall_skip::missing(name, "CAP_SYS_ADMIN");
        return;
    }
    for line in ["ATTACHED", "REFUSED", "DETACHED", "HELD", "DROPPED"] {
        assert!(said.contains(line), "no {line} in:\n{all}");
    }
}

#[test]
#[ignore = "a part of the_program_leaves_with_its_owner"]
fn attaches_and_waits() {
    let mut program = Program::load().unwrap();
    program.attach("twa", XdpMode::Native).unwrap();
    // Until killed: the other end of this pipe stays open.
    let mut end = Vec::new();
    assert_eq!(stdin().read_to_end(&mut end).unwrap(), 0);
}

#[test]
#[ignore = "a part of the_program_leaves_with_its_owner"]
fn is_refused() {
    let mut program = Program::load().unwrap();
    let refused = |program: &mut Program, interface| {
        let error = program.attach(interface, XdpMode::Native).unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, text) = refused(&mut program, "twa");
    assert_eq!(kind, std::io::ErrorKind::ResourceBusy, "{text}");
    assert!(text.contains("another XDP program"), "{text}");
    let (kind, text) = refused(&mut program, "lo");
    assert!(text.contains("no native XDP"), "{kind:?} {text}");
    let (kind, text) = refused(&mut program, "tw-absent");
    assert_eq!(kind, std::io::ErrorKind::NotFound, "{text}");
    let (kind, _) = refused(&mut program, "tw\0a");
    assert_eq!(kind, std::io::ErrorKind::InvalidInput);
    println!("REFUSED");
}

#[test]
#[ignore = "a part of the_program_leaves_with_its_owner"]
fn detaches_when_dropped() {
    let shows = || {
        let output = Command::new("ip")
            .args(["link", "show", "dev", "twa"])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).contains("prog/xdp id")
    };
    let mut program = Program::load().unwrap();
    program.attach("twa", XdpMode::Native).unwrap();
    // Attaching again replaces.
    program.attach("twa", XdpMode::Native).unwrap();
    assert!(shows());
    drop(program);
    println!("HELD");
}
