//! A Linux client connects through a cookie that the driver program sent, over
//! IPv4 and IPv6: veth, two namespaces, the real kernel on the other end.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tidewall_device::demux::layout::{Class, Counter, Protocol};
use tidewall_device::demux::{ChannelId, CookieMode, CookieOffer, CookieParameters};
use tidewall_device::queue::Interrupt;
use tidewall_manager::{AfXdp, Config as DeviceConfig, Program, XdpMode};
use tidewall_protocol::InputOptions;
use tidewall_protocol::tcp::{self, Config, Cookies, Handshake};

const PORT: u16 = 8080;
const SERVERS: [&str; 2] = ["10.78.0.1:8080", "[fd78::1]:8080"];
const GREETING: &[u8] = b"hello through the flood";
/// A test that takes longer has hung.
const LIMIT: Duration = Duration::from_secs(20);

/// The peer's namespace belongs to a process, and ends with it and this shell.
const SCRIPT: &str = r#"
unshare --net sleep 40 & peer=$!
trap 'kill $peer' EXIT
for i in $(seq 200); do
  [ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/$$/ns/net)" ] && break; sleep 0.01
done
ip link add twa type veth peer name twb || exit 1
ip link set twb netns $peer || exit 1
ip addr add 10.78.0.1/24 dev twa && ip addr add fd78::1/64 dev twa nodad && ip link set twa up
nsenter -t $peer -n sh -ec '
  ip link set lo up
  ip addr add 10.78.0.2/24 dev twb; ip addr add fd78::2/64 dev twb nodad
  ip link set twb up' || exit 1
PEER=$peer REDIRECT=0 "$SELF" --exact --ignored --nocapture answers_and_takes
nsenter -t $peer -n ethtool -K twb gro on || exit 1
PEER=$peer REDIRECT=1 "$SELF" --exact --ignored --nocapture answers_and_takes
"#;

#[test]
fn a_linux_client_connects_by_a_cookie_of_the_driver() {
    let name = "a_linux_client_connects_by_a_cookie_of_the_driver";
    if let Err(error) = Program::load() {
        let kind = error.kind();
        assert_eq!(kind, std::io::ErrorKind::PermissionDenied, "{error}");
        let what = format!("CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN ({error})");
        tidewall_skip::missing(name, what);
        return;
    }
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", SCRIPT])
        .env("SELF", std::env::current_exe().unwrap())
        .output()
        .expect("unshare, of util-linux");
    let said = String::from_utf8_lossy(&output.stdout);
    let all = format!("{said}\n{}", String::from_utf8_lossy(&output.stderr));
    if all.contains("unshare failed: Operation not permitted") {
        tidewall_skip::missing(name, "CAP_SYS_ADMIN");
        return;
    }
    // To a peer with an XDP program, and to one with GRO.
    assert_eq!(said.matches("TAKEN").count(), 2, "{all}");
}

/// Whether the driver answers by XDP_REDIRECT.
fn redirects() -> bool {
    std::env::var("REDIRECT").is_ok_and(|value| value == "1")
}

/// Another for each way. The first run's client continues to send what was never
/// acknowledged, which the second must not take for its own.
fn key() -> [u8; 16] {
    [1 + u8::from(redirects()); 16]
}

fn monotonic() -> Duration {
    // The kernel's own record of CLOCK_MONOTONIC, except for suspended time.
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
    Duration::from_secs_f64(seconds)
}

#[test]
#[ignore = "a part of a_linux_client_connects_by_a_cookie_of_the_driver"]
fn answers_and_takes() {
    let mut device = AfXdp::open(&DeviceConfig::new("twa")).unwrap();
    let tables = device.tables();
    let config = Config::default();
    let locals = SERVERS.map(|server| server.parse::<SocketAddr>().unwrap().ip());
    tables.trusted.set_locals(&locals).unwrap();
    tables
        .trusted
        .own_port(Protocol::Tcp, None, PORT, 0)
        .unwrap();
    let channel = ChannelId::new(1, 1);
    let offer = CookieOffer {
        window: config.syn_window(),
        window_scale: Some(config.window_scale()),
        timestamps: true,
        sack: true,
        ecn: true,
    };
    tables.embedded.set_cookie_parameters(&CookieParameters {
        key: key(),
        epoch: Duration::ZERO,
        mss: [1460, 1440],
        hop_limit: 64,
    });
    tables.embedded.set_cookie_redirect(redirects());
    tables
        .embedded
        .listen_tcp(None, PORT, channel, &offer)
        .unwrap();
    tables
        .embedded
        .set_cookies(PORT, CookieMode::Answer)
        .unwrap();
    for queue in 0..device.queues.len() as u32 {
        tables.embedded.set_limit(queue, channel.index(), 64);
        // All acknowledgments are for this test: none is to be a NAPI probe.
        tables.trusted.probe_napi(queue, 0, 0);
    }
    for queue in &mut device.queues {
        queue.receive.fill(&mut queue.frames);
    }

    let mut client = Command::new("nsenter")
        .args(["-t", &std::env::var("PEER").unwrap(), "-n"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "connects"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let cookies = Cookies::new(&config, key());
    let mut taken: Vec<Handshake> = Vec::new();
    let mut greeted = 0;
    let start = Instant::now();
    let mut batch = Vec::new();
    while greeted < SERVERS.len() && start.elapsed() < LIMIT {
        for queue in &mut device.queues {
            queue.receive.poll(Interrupt::Masked).unwrap();
            queue.receive.receive(&mut batch, 64);
            for received in batch.drain(..) {
                let bytes = queue.memory.packet(&received.frame);
                assert_eq!(received.metadata.channel_id(), channel);
                let network = usize::from(received.metadata.network);
                let transport = usize::from(received.metadata.transport) - network;
                let options = InputOptions {
                    checksum_offload_possible: true,
                    verified: false,
                };
                let segment = tcp::input(&bytes[network..], transport, &options).unwrap();
                let handshake = cookies.check(&segment, monotonic());
                let handshake = handshake.expect("nothing else comes to the listener");
                if segment.payload.is_empty() {
                    taken.push(handshake);
                } else {
                    assert_eq!(segment.payload, GREETING);
                    greeted += 1;
                }
            }
        }
    }
    let mut said = String::new();
    client
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(client.wait().unwrap().success(), "{said}");
    assert_eq!(said.matches("CONNECTED").count(), SERVERS.len(), "{said}");
    for (handshake, mss) in taken.iter().zip([1460, 1440]) {
        assert_eq!(handshake.mss, mss, "{handshake:?}");
        assert!(handshake.sack && handshake.timestamps.is_some());
        assert!(handshake.window_scale.is_some(), "{handshake:?}");
    }
    assert_eq!(taken.len(), SERVERS.len());
    let count = |counter| -> u64 {
        (0..device.queues.len() as u32)
            .map(|queue| tables.trusted.counter(queue, counter))
            .sum()
    };
    assert!(count(Counter::CookieSent) >= 2);
    assert!(count(Counter::CookieValid) >= 4);
    // The client's resets, when it ends, belong to no connection and are dropped.
    let class = tables.trusted.class(0, Class::NoConnection);
    println!(
        "TAKEN, {} of no connection, {class:?}",
        count(Counter::NoConnection)
    );
}

#[test]
#[ignore = "a part of a_linux_client_connects_by_a_cookie_of_the_driver"]
fn connects() {
    // Without a program here veth does not wake its receiver for what the other end's
    // program sends back. This one has no tables: all frames go to the kernel.
    let _program = (!redirects()).then(|| {
        let mut program = Program::load().unwrap();
        program.attach("twb", XdpMode::Native).unwrap();
        program
    });
    for server in SERVERS {
        let server = server.parse().unwrap();
        let mut stream = TcpStream::connect_timeout(&server, Duration::from_secs(10)).unwrap();
        stream.write_all(GREETING).unwrap();
        println!("CONNECTED");
        // Not answered, since no process makes connections of the handshakes here: a
        // reset replaces waiting for the answer.
        drop(stream);
    }
}
