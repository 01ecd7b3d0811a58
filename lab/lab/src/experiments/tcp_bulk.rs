//! One TCP connection as fast as it goes, on Tidewall and on Linux in the same bed.
//!
//! The bed decides most of the figure, so there are several. The receiver's work is
//! steered to the receiver's processor (RPS), where Linux is steadily at its best; or
//! both ends share one processor. The device splits long segments, or the kernel has to.
//! The other end is Linux. Both sides use cubic, without Nagle: only the stack collects
//! small writes.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context, bail};

use super::cases::{Case, rounds};
use super::{Experiment, Run, USUAL, ratio};
use crate::bench::Bench;
use crate::result::{Claim, Series, find};
use crate::sweep::Sample;
use crate::system::System;
use crate::testbed::{CLIENT_INTERFACE, SERVER, SERVER_INTERFACE, Testbed, cpu_mask};
use crate::worker::flows::{
    Figures, FlowClient, FlowHost, FlowJob, FlowOutcome, FlowServer, FlowSpec, Transfer, Way,
};
use crate::worker::{Child, Job, Place};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "tcp-bulk",
    paper: "no paper",
    about: "one TCP connection as fast as it goes: long segments, small writes, one processor",
    x: "bytes a write",
    y: "Gbit/s of payload",
    senders: &["one kernel TCP connection"],
    measure,
    claims,
    ..USUAL
};

const PORT: u16 = 5001;
/// The tap, and the addresses of its two ends.
const TAP: &str = "tw-t";
const TAP_KERNEL: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const TAP_STACK: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const CONGESTION: &str = "cubic";
const WINDOW: Duration = Duration::from_millis(600);
/// How much longer than that a transfer may take.
const TIMEOUT: Duration = Duration::from_secs(20);

const KIB: usize = 1 << 10;

/// The conditions of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    name: &'static str,
    way: Way,
    /// Bytes per write.
    write: usize,
    /// The sender's device splits long segments.
    cuts: bool,
    /// Both ends run on one processor.
    together: bool,
    /// Bytes of the longest IP packet.
    mtu: u16,
}

const SENDS: Setting = Setting {
    name: "sends, 64 KiB a write",
    way: Way::Fetch,
    write: 64 * KIB,
    cuts: true,
    together: false,
    mtu: 1500,
};
const SENDS_8: Setting = Setting {
    name: "sends, 8 KiB a write",
    write: 8 * KIB,
    ..SENDS
};
const SENDS_1: Setting = Setting {
    name: "sends, 1 KiB a write",
    write: KIB,
    ..SENDS
};
const SENDS_UNCUT: Setting = Setting {
    name: "sends, 64 KiB a write, the device does not cut",
    cuts: false,
    ..SENDS
};
const SENDS_TOGETHER: Setting = Setting {
    name: "sends, 64 KiB a write, both ends on one processor",
    together: true,
    ..SENDS
};
const RECEIVES: Setting = Setting {
    name: "receives, the sender cuts",
    way: Way::Give,
    cuts: false,
    ..SENDS
};
const SENDS_JUMBO: Setting = Setting {
    name: "sends, 64 KiB a write, MTU 9,000",
    mtu: 9000,
    ..SENDS
};
const RECEIVES_JUMBO: Setting = Setting {
    name: "receives, the sender cuts, MTU 9,000",
    mtu: 9000,
    ..RECEIVES
};
/// The settings, each with its claim and the claim's bound.
const SETTINGS: [(Setting, &str, f64); 8] = [
    (SENDS, "send-64k", 0.8),
    (SENDS_8, "send-8k", 0.95),
    (SENDS_1, "send-1k", 2.5),
    (SENDS_UNCUT, "send-64k-uncut", 0.9),
    (SENDS_TOGETHER, "send-64k-together", 0.65),
    (RECEIVES, "receive", 0.65),
    (SENDS_JUMBO, "send-jumbo", 0.65),
    (RECEIVES_JUMBO, "receive-jumbo", 0.5),
];

/// The server's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    /// Tidewall on the interface, by AF_XDP and long segments.
    Tidewall,
    /// Tidewall at the far end of a tap.
    Tap,
    Linux,
    /// Without steering: the receiver's work runs on the sender's processor.
    LinuxPlain,
}

impl Server {
    const ALL: [Server; 4] = [
        Server::Linux,
        Server::Tidewall,
        Server::LinuxPlain,
        Server::Tap,
    ];

    fn name(self) -> &'static str {
        match self {
            Server::Tidewall => "tidewall",
            Server::Tap => "tidewall-tap",
            Server::Linux => "linux-rps",
            Server::LinuxPlain => "linux-plain",
        }
    }

    fn system(self) -> System {
        match self {
            Server::Tidewall | Server::Tap => System::Tidewall,
            Server::Linux => System::LinuxRps,
            Server::LinuxPlain => System::LinuxPlain,
        }
    }

    /// Returns whether it is measured there. On one processor steering changes nothing.
    fn is_for(self, setting: &Setting) -> bool {
        match self {
            Server::Tidewall | Server::Linux => true,
            Server::Tap => *setting == SENDS,
            Server::LinuxPlain => [SENDS, SENDS_UNCUT, RECEIVES].contains(setting),
        }
    }
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let cases: Vec<Case<(Server, Setting)>> = SETTINGS
        .iter()
        .flat_map(|(setting, ..)| Server::ALL.map(|server| (server, *setting)))
        .filter(|(server, setting)| server.is_for(setting))
        .map(|(server, setting)| Case {
            system: server.name(),
            setting: setting.name,
            x: setting.write as f64,
            what: (server, setting),
        })
        .collect();
    run.systems.extend(Server::ALL.map(Server::system));
    rounds(run, &cases, run.options.within(8, 120), |bench, case| {
        transfer(bench, case.what)
    })?;
    run.note(
        "tidewall is a stack on the server's veth. tidewall-tap is one at the far end of a tap in \
         the client's namespace. linux-rps and linux-plain are the same program on kernel \
         sockets. The receiver's work is steered to the receiver's processor, but for \
         linux-plain, where it is on the sender's. Congestion control is cubic at both ends, \
         TCP_NODELAY is set, GRO is off. \"reordering seen\" and \"retransmitted\" are the \
         sender's.",
    );
    Ok(())
}

/// Sets both interfaces up, and undoes the test bed's settings for experiments in
/// packets.
fn set_up(testbed: &Testbed, server: Server, setting: &Setting) -> anyhow::Result<()> {
    let config = testbed.config();
    let steer = |cpu, steers: bool| match steers && server != Server::LinuxPlain {
        true => cpu_mask(cpu),
        false => "0".to_owned(),
    };
    let commands = |interface: &str, cuts: bool, steer: &str| {
        let cut = if cuts { "on" } else { "off" };
        format!(
            "ip link set {interface} mtu {mtu}; \
             ethtool -K {interface} tx on sg on gso on tso {cut} gro off; \
             cd /sys/class/net/{interface}; \
             echo 0 > napi_defer_hard_irqs; echo 0 > gro_flush_timeout; \
             for queue in queues/rx-*; do echo {steer} > $queue/rps_cpus; done",
            mtu = setting.mtu,
        )
    };
    let sends = setting.way == Way::Fetch;
    let client_cpu = if setting.together {
        config.server_cpu
    } else {
        config.client_cpu
    };
    let client = commands(
        CLIENT_INTERFACE,
        sends || setting.cuts,
        &steer(client_cpu, sends),
    );
    testbed.in_client(&["sh", "-ec", &client])?;
    // A stack receives on the processor on which it polls.
    let steers = !sends && server == Server::Linux;
    let server = commands(
        SERVER_INTERFACE,
        !sends || setting.cuts,
        &steer(config.server_cpu, steers),
    );
    testbed.in_server(&["sh", "-ec", &server])?;
    Ok(())
}

/// Measures gigabits/s of payload from the first bytes on.
fn transfer(bench: &mut Bench, (server, setting): (Server, Setting)) -> anyhow::Result<Sample> {
    let testbed = &mut bench.testbed;
    testbed.set_mode(server.system().mode())?;
    testbed.forget_mode();
    set_up(testbed, server, &setting)?;
    let config = testbed.config();
    let (host, address, namespace) = match server {
        Server::Linux | Server::LinuxPlain => {
            let congestion = CONGESTION.to_owned();
            (FlowHost::Linux { congestion }, SERVER.0, testbed.server())
        }
        Server::Tidewall => {
            let host = FlowHost::Tidewall {
                interface: SERVER_INTERFACE.to_owned(),
                cpu: config.server_cpu,
            };
            (host, SERVER.0, testbed.server())
        }
        Server::Tap => {
            let interface = TAP.to_owned();
            (FlowHost::Tap { interface }, TAP_STACK, testbed.client())
        }
    };
    let address = SocketAddrV4::new(address, PORT);
    let place = Place {
        namespace,
        cpu: config.server_cpu,
    };
    let job = FlowJob::Server(FlowServer {
        address,
        host,
        write: Some(setting.write),
    });
    let mut child = Child::start_ready(place, &Job::Flow(job, false), server.name())?;
    if server == Server::Tap {
        let address = format!("{TAP_KERNEL}/24");
        testbed.in_client(&["ip", "address", "add", &address, "dev", TAP])?;
    }
    let flow = FlowSpec {
        server: address,
        port: 0,
        way: setting.way,
        after_ms: 0,
        duration_ms: WINDOW.as_millis() as u64,
    };
    let place = Place {
        namespace: testbed.client(),
        cpu: match setting.together {
            true => config.server_cpu,
            false => config.client_cpu,
        },
    };
    let client = FlowJob::Flows(FlowClient {
        flows: vec![flow],
        congestion: CONGESTION.to_owned(),
    });
    let flows: Vec<FlowOutcome> = Child::run(
        place,
        &Job::Flow(client, false),
        "the client",
        WINDOW + TIMEOUT,
    )?;
    let flow = flows.first().context("no flow")?;
    if let Some(why) = &flow.failed {
        bail!("{}: {why}", server.name());
    }
    let transfers: Vec<Transfer> = child.ask_for("transfers", TIMEOUT)?;
    let transfer = transfers
        .first()
        .context("the server knows of no transfer")?;
    let (bytes, nanoseconds, sender) = match setting.way {
        Way::Fetch => (flow.bytes, flow.nanoseconds, &transfer.figures),
        Way::Give => (transfer.bytes, transfer.nanoseconds, &flow.figures),
    };
    Ok(Sample {
        x: setting.write as f64,
        y: bytes as f64 * 8.0 / nanoseconds.max(1) as f64,
        values: values(sender),
        ..Sample::default()
    })
}

/// Returns figures of the sender that reveal a disturbed transfer.
fn values(sender: &Figures) -> Figures {
    let shown = ["retransmitted", "reordering seen", "segments sent"];
    let shown = |(name, _): &(&String, &f64)| shown.contains(&name.as_str());
    let owned = |(name, value): (&String, &f64)| (name.clone(), *value);
    sender.iter().filter(shown).map(owned).collect()
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let of = |server: Server, setting: &Setting| {
        find(series, server.name(), Some(setting.name))
            .and_then(Series::last)
            .map(|point| point.y)
    };
    let mut claims: Vec<Claim> = SETTINGS
        .iter()
        .map(|(setting, id, bound)| {
            Claim::at_least(
                *id,
                format!("{}: Tidewall over Linux, steered", setting.name),
                ratio(of(Server::Tidewall, setting), of(Server::Linux, setting)),
                *bound,
            )
        })
        .collect();
    claims.push(Claim::new(
        "send-64k-plain",
        format!("{}: Tidewall over Linux, not steered", SENDS.name),
        ratio(of(Server::Tidewall, &SENDS), of(Server::LinuxPlain, &SENDS)),
    ));
    claims.push(Claim::new(
        "send-64k-tap",
        format!("{}: Tidewall over a tap over Linux, steered", SENDS.name),
        ratio(of(Server::Tap, &SENDS), of(Server::Linux, &SENDS)),
    ));
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_compare_with_linux_in_the_same_setting() {
        let x = SENDS.write as f64;
        let series = [
            curve("tidewall", Some(SENDS.name), &[(x, 9.0)]),
            curve("linux-rps", Some(SENDS.name), &[(x, 10.0)]),
            curve("linux-plain", Some(SENDS.name), &[(x, 4.5)]),
            curve("tidewall", Some(RECEIVES.name), &[(x, 10.0)]),
        ];
        let claims = claims(&series);
        let claim = |id: &str| claims.iter().find(|claim| claim.id == id).unwrap();
        assert_eq!(claim("send-64k").measured, Some(0.9));
        assert_eq!(claim("send-64k-plain").measured, Some(2.0));
        assert_eq!(claim("receive").measured, None);
    }

    #[test]
    fn settings_have_names_of_their_own() {
        for (at, (setting, id, _)) in SETTINGS.iter().enumerate() {
            let others = &SETTINGS[at + 1..];
            let same =
                |other: &&(Setting, &str, f64)| other.0.name == setting.name || other.1 == *id;
            assert!(!others.iter().any(|other| same(&other)));
        }
    }
}
