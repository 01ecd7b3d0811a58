//! How stacks end, and what they leave.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as KernelSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tidewall::control::{self, Trace};
use tidewall::snapshot::StackSnapshot;
use tidewall::tuning::Architecture;
use tidewall::{EmbeddedConfig, Stack, TcpListener, TcpStream, UdpSocket};
use tidewall_device::queue::POLL_MAX;

use super::kernel::{flood, peer_index};
use super::raw_system::{self, Packets};
use super::support::*;

const KNOBS: [&str; 2] = ["napi_defer_hard_irqs", "gro_flush_timeout"];

fn knobs() -> Vec<String> {
    KNOBS
        .iter()
        .map(|name| std::fs::read_to_string(format!("/sys/class/net/{HERE}/{name}")).unwrap())
        .collect()
}

fn attached() -> bool {
    shell(&format!("ip link show {HERE}")).contains("xdp")
}

pub fn own_until_killed() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    println!("\nready");
    let _ = std::io::stdin().read(&mut [0]);
    echo.finish();
}

pub fn a_killed_owner_leaves_nothing_behind() {
    let before = knobs();
    for _ in 0..3 {
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "owner", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
        assert!(
            lines.any(|line| line.unwrap() == "ready"),
            "the owner did not start"
        );
        assert!(attached());
        let client = peer_socket(PEER4);
        for n in 0..5u8 {
            ask(&client, at(HERE4, SERVICE), &[n; 8]);
        }
        // Interrupts are deferred only while frames come.
        let deferred = wait_until(|| {
            ask(&client, at(HERE4, SERVICE), b"deferred");
            knobs() != before
        });
        assert!(deferred, "{before:?} are as they were");
        owner.kill().unwrap();
        owner.wait().unwrap();
        // At once, while its queue may still be busy.
        let next = stack();
        let echo = Echo::start(&next, SERVICE);
        for n in 0..5u8 {
            ask(&client, at(HERE4, SERVICE), &[n; 8]);
        }
        echo.finish();
        drop(next);
        assert!(wait_until(|| !attached()), "the program is still attached");
        assert!(
            wait_until(|| knobs() == before),
            "{:?} instead of {before:?}",
            knobs()
        );
    }
}

pub fn stacks_can_follow_each_other_at_once() {
    let before = knobs();
    let client = peer_socket(PEER4);
    for n in 0..4u8 {
        let stack = stack();
        let busy = Stack::embedded(config()).map(drop).unwrap_err();
        assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy, "{busy}");
        let echo = Echo::start(&stack, SERVICE);
        ask(&client, at(HERE4, SERVICE), &[n; 8]);
        echo.finish();
    }
    assert!(!attached());
    assert_eq!(knobs(), before);
    let missing = EmbeddedConfig::new("tw-none");
    assert!(Stack::embedded(missing).is_err());
    for queues in [1, 3] {
        let error = Stack::embedded(config().queues(queues))
            .map(drop)
            .unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("2 receive queues"), "{error}");
    }
    assert_eq!(knobs(), before);
}

pub fn an_interface_that_goes_down_comes_back() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let client = peer_socket(PEER4);
    for n in 0..5u8 {
        ask(&client, at(HERE4, SERVICE), &[n; 8]);
    }
    client
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    shell(&format!("ip -n {} link set {PEER} down", peer_namespace()));
    shell(&format!("ip -n {} link set {PEER} up", peer_namespace()));
    assert!(
        wait_until(|| client.send_to(b"up?", at(HERE4, SERVICE)).is_ok()
            && client.recv(&mut [0; 8]).is_ok()),
        "no answer after the link came back"
    );
    echo.finish();
}

/// Frames that the stack's own polls had the driver process.
fn driven(stack: &Stack) -> u64 {
    let snapshot = stack.snapshot();
    snapshot.queues.iter().map(|queue| queue.driven).sum()
}

/// Sends until `condition` holds, without waiting for answers. The receiver does not sleep,
/// so the load persists and the device is polled.
fn sends_until(stack: &Stack, address: Ipv4Addr, condition: impl Fn() -> bool) -> bool {
    let socket = bind(stack, at(Ipv6Addr::UNSPECIFIED, SERVICE));
    socket.set_nonblocking(true).unwrap();
    let sender = Going::in_peer(
        || KernelSocket::bind(at(PEER4, 0)).unwrap(),
        move |client| drop(client.send_to(b"here", at(address, SERVICE))),
    );
    let mut buffer = [0; 64];
    let holds = wait_until(|| {
        for _ in 0..POLL_MAX {
            let _ = socket.recv_from(&mut buffer);
        }
        condition()
    });
    drop(sender.finish());
    holds
}

/// NAPI ids that polls use.
fn napi(stack: &Stack) -> Vec<u32> {
    let queues = stack.snapshot().queues;
    let ids = queues.iter().flat_map(|queue| queue.napi);
    ids.filter(|&id| id != 0).collect()
}

pub fn interrupts_are_deferred_while_frames_come() {
    let set = |values: [&str; 2]| {
        for (knob, value) in KNOBS.into_iter().zip(values) {
            shell(&format!("echo {value} > /sys/class/net/{HERE}/{knob}"));
        }
    };
    let knobs = || KNOBS.map(|knob| shell(&format!("cat /sys/class/net/{HERE}/{knob}")));
    set(["3", "7000"]);
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let peer = peer_socket(PEER4);
    for _ in 0..2 {
        // As before the stack, for what the kernel receives.
        let is_kernels = || knobs() == ["3\n", "7000\n"];
        assert!(wait_until(is_kernels), "{:?}", knobs());
        assert!(!stack.snapshot().deferred);
        ask(&peer, at(HERE4, SERVICE), b"hello");
        let is_deferred = || stack.snapshot().deferred && knobs()[0] == "1\n";
        assert!(
            wait_until(|| {
                ask(&peer, at(HERE4, SERVICE), b"hello");
                is_deferred()
            }),
            "{:?}",
            knobs()
        );
    }
    echo.finish();
    drop(stack);
    assert_eq!(knobs(), ["3\n", "7000\n"]);
    set(["0", "0"]);
}

/// Frames beyond the kernel's rates do not unmask the interrupt: the driver would be polled
/// in softirq for each frame of the flood.
pub fn interrupts_stay_deferred_beside_a_flood_at_the_kernel() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let peer = peer_socket(PEER4);
    peer.set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let flood = flood(SERVICE + 1, Duration::from_secs(1));
    let (mut looks, mut deferred) = (0, 0);
    let mut began = false;
    while !flood.is_finished() {
        // Far less often than the kernel gets a frame.
        ask_once(&peer, at(HERE4, SERVICE), b"hello");
        std::thread::sleep(Duration::from_millis(10));
        let is_deferred = stack.snapshot().deferred;
        began |= is_deferred;
        if began {
            looks += 1;
            deferred += u32::from(is_deferred);
        }
    }
    flood.join().unwrap();
    let (passed, dropped) = stack.snapshot().queues[0].kernel["udp"];
    echo.finish();
    assert!(dropped > 2 * passed, "{dropped} beside {passed}: no flood");
    assert!(looks > 10 && deferred == looks, "{deferred} of {looks}");
}

pub fn its_own_interface_goes_down_and_up_and_is_polled_again() {
    for architecture in [
        Architecture::Tidewall,
        Architecture::Softirq,
        Architecture::Bsd,
    ] {
        goes_down_and_up(&stack_with(config().architecture(architecture)));
    }
}

fn goes_down_and_up(stack: &Stack) {
    // The threads of a host are woken by interrupts that have done the work.
    let polls = stack.snapshot().architecture == Architecture::Tidewall.name();
    for round in 0..3 {
        let (ids, before) = (napi(stack), driven(stack));
        if round > 0 {
            shell(&format!("ip link set {HERE} down; ip link set {HERE} up"));
        }
        let is_polled = || {
            let now = napi(stack);
            let anew = !now.is_empty() && now.iter().all(|id| !ids.contains(id));
            anew && (!polls || driven(stack) > before + 100)
        };
        assert!(
            sends_until(stack, HERE4, is_polled),
            "{ids:?}, {before} frames driven: {:?}",
            stack.snapshot()
        );
    }
    assert_eq!(stack.warnings(), [] as [String; 0]);
}

/// Datagrams to an address later added reach channels, not the kernel's socket.
fn is_delivered(stack: &Stack, address: &str) -> bool {
    let delivered = || {
        let snapshot = stack.snapshot();
        snapshot
            .queues
            .iter()
            .map(|queue| queue.delivered)
            .sum::<u64>()
    };
    let before = delivered();
    sends_until(stack, address.parse().unwrap(), || {
        delivered() > before + 20
    })
}

pub fn addresses_added_later_are_its_own() {
    let stack = stack();
    assert!(is_delivered(&stack, "10.77.0.1"));
    for (interface, address) in [(HERE, "10.77.0.3/24"), ("lo", "10.77.0.4/32")] {
        shell(&format!("ip addr add {address} dev {interface}"));
        assert!(
            is_delivered(&stack, address.split('/').next().unwrap()),
            "{address} is the kernel's"
        );
    }
    let many: String = (1..=200)
        .map(|n| format!("addr add 10.78.0.{n}/32 dev lo\n"))
        .collect();
    shell(&format!("printf '{many}' | ip -batch -"));
    shell(&format!(
        "ip -n {} route add 10.78.0.0/24 via 10.77.0.1",
        peer_namespace()
    ));
    assert!(is_delivered(&stack, "10.78.0.200"));
    assert_eq!(stack.warnings(), [] as [String; 0]);
}

pub fn its_mtu_is_followed() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let client = peer_socket(PEER4);
    ask(&client, at(HERE4, SERVICE), &[1; 1000]);
    let by_itself = || {
        let snapshot = stack.snapshot();
        snapshot
            .queues
            .iter()
            .map(|queue| queue.transmitted)
            .sum::<u64>()
    };
    let both = |mtu: u32| {
        let namespace = peer_namespace();
        shell(&format!(
            "ip link set {HERE} mtu {mtu}; ip -n {namespace} link set {PEER} mtu {mtu}"
        ));
    };
    both(600);
    // Too long for a frame now: the kernel's socket sends it, in fragments.
    assert!(wait_until(|| {
        let before = by_itself();
        ask(&client, at(HERE4, SERVICE), &[2; 1000]);
        by_itself() == before
    }));
    both(1500);
    assert!(wait_until(|| {
        let before = by_itself();
        ask(&client, at(HERE4, SERVICE), &[2; 1000]);
        by_itself() > before
    }));
    echo.finish();
}

pub fn its_link_address_is_followed() {
    const NEW: [u8; 6] = [0x02, 0x77, 0x77, 0, 0, 1];
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let client = peer_socket(PEER4);
    ask(&client, at(HERE4, SERVICE), &[1; 8]);
    let index = peer_index();
    let packets = in_peer(move || Packets::open(index).unwrap());
    let namespace = peer_namespace();
    shell(&format!(
        "ip link set {HERE} address 02:77:77:00:00:01; ip -n {namespace} neigh flush dev {PEER}"
    ));
    assert!(wait_until(|| {
        ask(&client, at(HERE4, SERVICE), &[2; 8]);
        // The answer: IPv4, UDP, from the service's port.
        let answers = |frame: &Vec<u8>| {
            frame[12..14] == [8, 0] && frame[23] == 17 && frame[34..36] == SERVICE.to_be_bytes()
        };
        let last = std::iter::from_fn(|| packets.receive())
            .filter(answers)
            .last();
        last.is_some_and(|frame| frame[6..12] == NEW)
    }));
    echo.finish();
}

pub fn a_deleted_interface_leaves_sockets_to_the_kernel() {
    let stack = stack();
    let service = UdpSocket::bind(&stack, at(Ipv4Addr::UNSPECIFIED, SERVICE)).unwrap();
    let listener = TcpListener::bind(&stack, at(Ipv4Addr::UNSPECIFIED, SERVICE)).unwrap();
    let echoing = std::thread::spawn(move || {
        let mut buffer = [0; 8];
        for _ in 0..2 {
            let (length, from) = service.recv_from(&mut buffer).unwrap();
            service.send_to(&buffer[..length], from).unwrap();
        }
    });
    let (connected, rest) = std::sync::mpsc::channel();
    let accepting = std::thread::spawn(move || {
        for _ in 0..3 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"hello").unwrap();
            connected.send(stream).unwrap();
        }
    });
    let greeted = |server: SocketAddr| {
        let connect = move || std::net::TcpStream::connect(server).unwrap();
        let mut stream = match server.ip().is_loopback() {
            true => connect(),
            false => in_peer(connect),
        };
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let mut greeting = [0; 5];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"hello");
        stream
    };
    let here = at(HERE4, SERVICE);
    let _peer = greeted(here);
    let mut before: TcpStream = rest.recv().unwrap();
    static GONE: Mutex<String> = Mutex::new(String::new());
    stack.when_interface_is_gone(|name| GONE.lock().unwrap().push_str(name));
    shell(&format!("ip link del {HERE}"));
    // Its connections end, as if their peer were silent.
    let ended = before.read(&mut [0; 8]).unwrap_err();
    assert_eq!(ended.raw_os_error(), Some(libc::ETIMEDOUT));
    assert!(stack.interface_is_gone());
    assert_eq!(*GONE.lock().unwrap(), HERE);
    // Loopback continues, and no thread is busy.
    let loopback = at(Ipv4Addr::LOCALHOST, SERVICE);
    greeted(loopback);
    let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    ask(&client, loopback, &[1; 8]);
    let (begin, used) = (Instant::now(), raw_system::processor_time());
    std::thread::sleep(Duration::from_secs(1));
    let used = raw_system::processor_time() - used;
    println!(
        "busy {used:?} of {:?} without the interface",
        begin.elapsed()
    );
    assert!(used < begin.elapsed() / 10, "{used:?}");
    // And so does the next interface, at once.
    let namespace = peer_namespace();
    shell(&format!(
        "ip link add {HERE} type veth peer name {PEER} netns {namespace}
         ip addr add {HERE4}/24 dev {HERE}; ip -n {namespace} addr add {PEER4}/24 dev {PEER}
         ip link set {HERE} up; ip -n {namespace} link set {PEER} up"
    ));
    greeted(here);
    let client = peer_socket(PEER4);
    ask(&client, here, &[2; 8]);
    echoing.join().unwrap();
    accepting.join().unwrap();
    assert!(
        stack.warnings()[0].contains("no more"),
        "{:?}",
        stack.warnings()
    );
}

pub fn strangers_do_not_reach_the_helpers() {
    let ports = tidewall_device::afxdp::HELPER_PORTS;
    let blast = || {
        let client = peer_socket(PEER4);
        for port in ports.clone() {
            for _ in 0..4 {
                let _ = client.send_to(b"I am the probe", at(HERE4, port));
            }
        }
    };
    let stack = stack();
    let kernel_delivered = || stack.snapshot().counters.kernel_delivered;
    // Before the first owned datagram, between the probes, and after them.
    blast();
    assert!(sends_until(&stack, HERE4, || kernel_delivered() == 1
        || driven(&stack) > 0));
    blast();
    let all = || {
        blast();
        kernel_delivered() == 2 && driven(&stack) > 2_000
    };
    assert!(sends_until(&stack, HERE4, all), "no poll");
    assert_eq!(
        kernel_delivered(),
        2,
        "two probes, and nobody else's datagrams"
    );
    let snapshot = stack.snapshot();
    assert_eq!(snapshot.counters.no_socket, 0, "{snapshot:?}");
    // Nothing waits in a helper, where the next poll would take it.
    for table in ["udp", "udp6"] {
        let sockets = std::fs::read_to_string(format!("/proc/self/net/{table}")).unwrap();
        for line in sockets.lines().skip(1) {
            let field = |n: usize| line.split_whitespace().nth(n).unwrap();
            let port = field(1).rsplit_once(':').unwrap().1;
            let port = u16::from_str_radix(port, 16).unwrap();
            if ports.contains(&port) {
                assert_eq!(field(4), "00000000:00000000", "{line}");
            }
        }
    }
}

/// As by a firewall, the kernel drops what comes in: here, since it would answer
/// by another way (strict source validation).
pub fn probes_that_the_kernel_drops_are_warned_of() {
    let strange = "10.79.0.1";
    let namespace = peer_namespace();
    shell(&format!(
        "for each in all {HERE}; do echo 1 >/proc/sys/net/ipv4/conf/$each/rp_filter; done
         ip route add blackhole {strange}/32
         ip -n {namespace} addr add {strange}/32 dev {PEER}
         ip -n {namespace} neigh replace {HERE4} dev {PEER} \
            lladdr $(cat /sys/class/net/{HERE}/address)"
    ));
    let stack = stack();
    let service = bind(&stack, at(HERE4, SERVICE));
    let client = peer_socket(strange.parse::<Ipv4Addr>().unwrap());
    service.set_nonblocking(true).unwrap();
    // How many were sent until then, and how many of them were lost.
    let send = |condition: &dyn Fn() -> bool| {
        let (mut sent, mut came) = (0, 0);
        let mut exchange = |more| {
            sent += i32::from(more && client.send_to(b"here", at(HERE4, SERVICE)).is_ok());
            while service.recv_from(&mut [0; 8]).is_ok() {
                came += 1;
            }
            came == sent
        };
        let done = wait_until(|| {
            for _ in 0..16 {
                exchange(true);
            }
            condition()
        });
        assert!(done, "{:?}", stack.snapshot());
        let end = Instant::now() + Duration::from_secs(10);
        while !exchange(false) && Instant::now() < end {}
        (sent, sent - came)
    };
    let warned = || {
        let warnings = stack.warnings();
        warnings
            .iter()
            .any(|warning| warning.contains("61000-61063"))
    };
    let (sent, lost) = send(&warned);
    assert_eq!(driven(&stack), 0);
    assert_eq!(lost, 0, "of {sent}");
    // As if its cause were gone: the next probe comes through.
    shell(&format!(
        "for each in all {HERE}; do echo 0 >/proc/sys/net/ipv4/conf/$each/rp_filter; done"
    ));
    let (_, lost) = send(&|| napi(&stack).len() == 2);
    assert_eq!(lost, 0, "{:?}", stack.snapshot());
    assert_eq!(stack.warnings(), [] as [String; 0]);
}

/// As a cleaner of /run does, or systemd at the end of its RuntimeDirectory.
pub fn a_stack_whose_socket_was_removed_ends() {
    let stack = stack_with(config().control(true));
    fs::remove_file(own_socket()).unwrap();
    let (ended, has_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(stack);
        let _ = ended.send(());
    });
    has_ended.recv_timeout(Duration::from_secs(10)).unwrap();
}

/// The control socket of this process's stack.
fn own_socket() -> PathBuf {
    let mine = format!("/{}.", std::process::id());
    let mut live = control::live().unwrap().into_iter();
    live.find(|path| path.to_string_lossy().contains(&mine))
        .unwrap()
}

pub fn a_live_stack_answers_stat_and_trace() {
    let stack = stack_with(config().control(true));
    let echo = Echo::start(&stack, SERVICE);
    let client = peer_socket(PEER4);
    for n in 0..5u8 {
        ask(&client, at(HERE4, SERVICE), &[n; 8]);
    }
    let path = own_socket();
    let snapshot: StackSnapshot =
        serde_json::from_str(&control::ask(&path, "stat").unwrap()).unwrap();
    assert_eq!(snapshot.interface, HERE);
    assert_eq!(snapshot.sockets.len(), 1);
    assert!(snapshot.sockets[0].received >= 5);
    let tracer = {
        let path = path.clone();
        std::thread::spawn(move || control::ask(&path, "trace 4").unwrap())
    };
    std::thread::sleep(Duration::from_millis(100));
    for n in 0..6u8 {
        ask(&client, at(HERE4, SERVICE), &[n; 8]);
    }
    let trace: Trace = serde_json::from_str(&tracer.join().unwrap()).unwrap();
    assert_eq!(trace.frames.len(), 4, "{trace:?}");
    let ours: Vec<_> = trace
        .frames
        .iter()
        .filter(|frame| frame.verdict == "redirect")
        .collect();
    assert!(!ours.is_empty(), "{trace:?}");
    for frame in &ours {
        assert_eq!((frame.cause.as_str(), frame.bytes.len()), ("channel", 50));
        assert!(
            trace
                .lines
                .iter()
                .any(|line| line.frame == frame.frame && line.stage == "delivered"),
            "{trace:?}"
        );
    }
    echo.finish();
    drop(stack);
    assert!(!path.exists());
}
