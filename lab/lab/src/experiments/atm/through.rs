//! The second part of `atm-data`: cells through a cell switch, and TCP over circuits.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tidewall_load::{BlastSpec, Content, LoadSpec, SenderKind, StreamKind, StreamSpec};

use super::super::Run;
use super::{Case, setup};
use crate::bench::{Bench, Setup, blast, load};
use crate::interrupt;
use crate::sweep::Sample;
use crate::system::System;
use crate::testbed::{CLIENT, CLIENT_MAC_ADDRESS, SERVER, SERVER_INTERFACE};
use crate::worker::{
    Child, ForwardJob, ForwardSide, Job, LoadJob, PAIR, Place, ServiceJob, TcpKind, TcpSpec,
    run_load, scratch,
};

/// Settings, and their systems.
pub(super) const FRAMES: &str = "through one processor, 1,472 bytes in frames of 31 cells";
pub(super) const CELLS: &str = "through one processor, in packets of 28 cells";
pub(super) const TCP: &str = "TCP between kernels";
pub(super) const SWITCH: &str = "cell switch";
pub(super) const BARE: &str = "bare forwarding";
pub(super) const ATM: &str = "over ATM";
pub(super) const ATM_LARGE: &str = "over ATM, MTU 65,000";
pub(super) const ATM_IN_FRAME: &str = "over ATM, packets of a frame";
pub(super) const ETHERNET: &str = "over Ethernet";
pub(super) const ETHERNET_PLAIN: &str = "over Ethernet, no GSO or GRO";

const VCI: u16 = 109;
/// A cell-mode packet is 28 cells; a PDU of that length fills it.
const CELLS_PAYLOAD: u16 = 28 * 48 - 8;
const FRAME_CELLS: f64 = 31.0;
const PACKET_CELLS: f64 = 28.0;
const TIME: Duration = Duration::from_millis(500);
/// For the load to begin, and for rings and queues to fill.
const WARM_UP: Duration = Duration::from_millis(300);
/// The pair of interfaces between client and server that carries circuits of IP.
const LINK: [&str; 2] = ["tw-g", "tw-h"];
const PORT: u16 = 5001;
/// RFC 2225's MTU, which only a veth carries in one frame, and the largest MTU whose
/// packets fit into one Ethernet frame.
const MTU_DEFAULT: u16 = 9180;
const MTU_LARGE: u16 = 65_000;
const MTU_IN_FRAME: u16 = 1472;
/// The link's MTU for each: 192 cells, label and control word, and the largest.
const LINK_MTU: u16 = 192 * 48 + 8;
const LINK_MTU_LARGE: u16 = u16::MAX;
const LINK_MTU_ETHERNET: u16 = 1500;
/// Bytes of a write.
const CHUNK: u32 = 65_536;

/// The carrier.
#[derive(Clone, Copy, PartialEq)]
enum What {
    Switched(Content),
    Forwarded,
    Tcp(Over),
}

#[derive(Clone, Copy, PartialEq)]
enum Over {
    /// Circuits, with this MTU.
    Atm(u16),
    /// Frames of the same link. If `long`, the kernel splits long segments into them and
    /// joins them again, as it does around any card; otherwise each stands alone.
    Ethernet { long: bool },
}

pub(super) fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    setup::pair(run)?;
    link(run.bench)?;
    let case = |system, setting, what| Case {
        system,
        setting,
        x: 0.0,
        what,
    };
    let cases = [
        case(BARE, FRAMES, What::Forwarded),
        case(SWITCH, FRAMES, What::Switched(Content::Pdus)),
        case(SWITCH, CELLS, What::Switched(Content::Cells)),
        case(ETHERNET, TCP, What::Tcp(Over::Ethernet { long: true })),
        case(
            ETHERNET_PLAIN,
            TCP,
            What::Tcp(Over::Ethernet { long: false }),
        ),
        case(ATM, TCP, What::Tcp(Over::Atm(MTU_DEFAULT))),
        case(ATM_LARGE, TCP, What::Tcp(Over::Atm(MTU_LARGE))),
        case(ATM_IN_FRAME, TCP, What::Tcp(Over::Atm(MTU_IN_FRAME))),
    ];
    let plan = run.options.within(6, 45);
    super::rounds(run, &cases, plan, |bench, case| {
        let y = match case.what {
            What::Tcp(over) => tcp(bench, over)?,
            what => cells(bench, what)?,
        };
        Ok(Sample {
            x: case.x,
            y,
            ..Sample::default()
        })
    })?;
    for series in &mut run.series {
        series.y = match series.setting.as_deref() {
            Some(FRAMES | CELLS) => Some("cells/s".to_owned()),
            Some(TCP) => Some("bytes/s".to_owned()),
            _ => series.y.take(),
        };
    }
    Ok(())
}

/// Measures the cells/s that arrive behind the server's interface.
fn cells(bench: &mut Bench, what: What) -> anyhow::Result<f64> {
    let testbed = &bench.testbed;
    let config = testbed.config();
    let [(out, [a, b, c]), (end, _)] = PAIR;
    let place = Place {
        namespace: testbed.server(),
        cpu: config.server_cpu,
    };
    let file = scratch("cells");
    let (job, content, payload, cells) = match what {
        What::Switched(content) => {
            let (mode, payload, cells) = match content {
                Content::Cells => ("cell", CELLS_PAYLOAD, PACKET_CELLS),
                _ => ("frame", 1472, FRAME_CELLS),
            };
            let text = format!(
                "[[port]]\ninterface = '{SERVER_INTERFACE}'\nnext-hop = '{}'\nmode = '{mode}'\n\
                 [[port]]\ninterface = '{out}'\nnext-hop = '{a}.{b}.{c}.2'\nmode = '{mode}'\n\
                 [[circuit]]\nends = ['{SERVER_INTERFACE}/0.{VCI}', '{out}/0.{VCI}']\n",
                CLIENT.0
            );
            fs::write(&file, text)?;
            (None, content, payload, cells)
        }
        _ => {
            let mac = testbed.in_server(&["cat", &format!("/sys/class/net/{end}/address")])?;
            let mac: tidewall_wire::ethernet::MacAddress =
                mac.trim().parse().ok().context("no link address")?;
            let side = |interface: &str, address, ports, next_hop| ForwardSide {
                interface: interface.to_owned(),
                addresses: vec![address],
                ports,
                next_hop,
            };
            let sides = [
                side(
                    SERVER_INTERFACE,
                    SERVER.0.into(),
                    vec![VCI],
                    CLIENT_MAC_ADDRESS.0,
                ),
                side(out, [a, b, c, 1].into(), Vec::new(), mac.0),
            ];
            let job = Job::Forward(ForwardJob { sides });
            (Some(job), Content::Datagrams, 1472, FRAME_CELLS)
        }
    };
    let between = match job {
        Some(job) => Child::start_ready(place, &job, "what is between"),
        None => super::command(place, &format!("atm switch {}", file.display())),
    };
    let _ = fs::remove_file(&file);
    let _between = between?;
    let sender = Place {
        namespace: testbed.client(),
        cpu: config.client_cpu,
    };
    let spec = LoadSpec {
        blast: Some(BlastSpec {
            content,
            payload,
            ..blast(SenderKind::Skb, VCI, None)
        }),
        warm_up: WARM_UP,
        // Longer than the count, with which it ends.
        duration: TIME * 20,
        ..load(config)
    };
    let counter = format!("/sys/class/net/{end}/statistics/rx_packets");
    let count =
        || -> anyhow::Result<u64> { Ok(testbed.in_server(&["cat", &counter])?.trim().parse()?) };
    let job = Job::Load(Box::new(LoadJob::unwatched(spec)));
    let _blast = Child::start(sender, &job, "the blast")?;
    interrupt::check()?;
    thread::sleep(WARM_UP);
    let (at, first) = (Instant::now(), count()?);
    thread::sleep(TIME);
    let came = count()?.saturating_sub(first) as f64 / at.elapsed().as_secs_f64();
    anyhow::ensure!(came > 0.0, "nothing came through");
    Ok(came * cells)
}

/// Creates a second link between client and server, with frames as on a wire.
fn link(bench: &Bench) -> anyhow::Result<()> {
    let testbed = &bench.testbed;
    let [client, server] = LINK;
    testbed.in_client(&[
        "ip",
        "link",
        "add",
        client,
        "type",
        "veth",
        "peer",
        "name",
        server,
        "netns",
        testbed.server(),
    ])?;
    let up = |name: &str, own: u8| {
        format!(
            "ip link set {name} addrgenmode none; ip address add 10.82.0.{own}/24 dev {name}; \
             ip link set {name} up"
        )
    };
    testbed.in_client(&["sh", "-ec", &up(client, 1)])?;
    testbed.in_server_shell(&up(server, 2))
}

/// Measures bytes/s of payload.
fn tcp(bench: &mut Bench, over: Over) -> anyhow::Result<f64> {
    let testbed = &bench.testbed;
    let config = testbed.config();
    // A frame of the link is never longer than its MTU. If the kernel has long segments,
    // a card would compute the checksums, too.
    let long = if over == (Over::Ethernet { long: true }) {
        "on"
    } else {
        "off"
    };
    let mtu = match over {
        Over::Atm(MTU_IN_FRAME) => LINK_MTU_ETHERNET,
        Over::Atm(MTU_LARGE) => LINK_MTU_LARGE,
        _ => LINK_MTU,
    };
    let [client, server] = LINK.map(|name| {
        format!(
            "ip link set {name} mtu {mtu}; ethtool -K {name} tso off tx {long} gso {long} gro {long}"
        )
    });
    testbed.in_client(&["sh", "-ec", &client])?;
    testbed.in_server_shell(&server)?;
    let places = [
        (testbed.client(), config.client_cpu),
        (testbed.server(), config.server_cpu),
    ]
    .map(|(namespace, cpu)| Place { namespace, cpu });
    let mut carrying = Vec::new();
    if let Over::Atm(mtu) = over {
        for (number, place) in places.into_iter().enumerate() {
            let line = format!(
                "atm ip --interface {} --next-hop 10.82.0.{} --address 10.9.0.{}/24 --circuit \
                 0.{VCI}=10.9.0.{} --mtu {mtu}",
                LINK[number],
                2 - number,
                1 + number,
                2 - number
            );
            carrying.push(super::command(place, &line)?);
        }
    }
    let service = ServiceJob {
        setup: Setup {
            system: System::LinuxPlain,
            tcp: Some(TcpSpec::new(TcpKind::Discard, PORT)),
            ..Setup::default()
        },
        queues: 1,
        cpu: config.server_cpu,
        counters: scratch("counters"),
        watcher_cpu: None,
        managed: None,
        steering: None,
    };
    let job = Job::Service(Box::new(service));
    let _service = Child::start_ready(places[1], &job, "the receiver")?;
    interrupt::check()?;
    let to: SocketAddr = match over {
        Over::Atm(_) => ([10, 9, 0, 2], PORT).into(),
        Over::Ethernet { .. } => ([10, 82, 0, 2], PORT).into(),
    };
    let spec = LoadSpec {
        stream: Some(StreamSpec {
            sleeps: true,
            ..StreamSpec::new(to, StreamKind::Bulk, CHUNK)
        }),
        warm_up: Duration::from_millis(300),
        duration: TIME,
        ..load(config)
    };
    let outcome = run_load(places[0], LoadJob::unwatched(spec), || false, || Ok(()))?;
    let stream = outcome.report.stream.context("no stream")?;
    anyhow::ensure!(stream.bytes > 0, "nothing came");
    Ok(stream.rate)
}
