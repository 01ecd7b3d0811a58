//! The worker that is a transport switch: the loop of `tidewall switch`. To measure the
//! cost of a proxy's copies alone, it makes as many copies of each payload as requested.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tidewall_switch::modules::{BlockStorage, KeyValue, Lost, Module, RoundRobin, Speed};
use tidewall_switch::{Config, Member};
use tidewall_switch_driver::{Driver, Inspect};

use super::service::until_input_ends;

/// How often it checks whether to end.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes that bridges put before a command (docs/switch.md).
const BRIDGE_HEADER: usize = 8;
/// Ports towards members.
const PORTS: std::ops::RangeInclusive<u16> = 61_000..=65_535;

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchJob {
    /// Interface of the peers, and that of the members.
    pub interfaces: [String; 2],
    /// Address to which peers connect.
    pub address: SocketAddr,
    /// The members.
    pub members: Vec<SocketAddr>,
    /// Its own address on the members' interface.
    pub local: IpAddr,
    /// Payload of a segment, bytes.
    pub segment: u16,
    /// The module that steers.
    pub module: SwitchModule,
    /// Frames per connection and direction that may be unacknowledged; `None`: the
    /// default.
    #[serde(default)]
    pub ring: Option<u16>,
    /// Copies of each payload that are made and discarded.
    pub copies: u32,
    /// Sleep whenever there is nothing to do, without the usual polling for an answer:
    /// the processor's idle time then shows the cost of work.
    pub sleeps: bool,
}

/// The module that steers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchModule {
    /// Each member in turn.
    RoundRobin,
    /// The member with the most room in its window.
    Speed,
    /// The node of a block, or the first member, which is the coordinator.
    BlockStorage,
    /// The member that holds the key of a Redis command sent by a bridge.
    KeyValue,
}

impl SwitchModule {
    fn make(self, coordinator: SocketAddr, nodes: &Arc<[SocketAddr]>) -> Box<dyn Module> {
        match self {
            SwitchModule::RoundRobin => Box::new(RoundRobin::new(Lost::Reset)),
            SwitchModule::Speed => Box::new(Speed::new(Lost::Reset)),
            SwitchModule::KeyValue => Box::new(KeyValue::new(BRIDGE_HEADER)),
            SwitchModule::BlockStorage => Box::new(BlockStorage::new(coordinator, nodes.clone())),
        }
    }
}

/// Runs until the end of the input; answers the line `memory` with the bytes of its
/// connections.
pub(super) fn run(job: &SwitchJob) -> anyhow::Result<()> {
    let usual = Config::new(job.address);
    let config = Config {
        ring: job.ring.unwrap_or(usual.ring),
        segment_size: job.segment,
        ports: PORTS,
        kernel_ends: true,
        ..usual
    };
    let module = job.module;
    let (&coordinator, nodes) = job.members.split_first().context("no members")?;
    let nodes = Arc::from(nodes);
    let mut driver = Driver::open(
        &job.interfaces,
        config,
        Box::new(move || module.make(coordinator, &nodes)),
    )?;
    for &address in &job.members {
        let local = job.local;
        driver.add_member(Member { address, local }, 1)?;
    }
    if job.sleeps {
        driver.forwarder().set_spin(Duration::ZERO);
    }
    if job.copies > 0 {
        driver.set_inspect(copier(job.copies));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let ended = stop.clone();
    let asked = Arc::new(AtomicBool::new(false));
    let asks = asked.clone();
    println!("ready");
    std::thread::spawn(move || {
        let _ = until_input_ends(|line| {
            asks.fetch_or(line == "memory", Ordering::Relaxed);
            Ok(())
        });
        ended.store(true, Ordering::Relaxed);
    });
    while !stop.load(Ordering::Relaxed) {
        match driver.turn(LOOK) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                return Err(error.into());
            }
            _ => {}
        }
        if asked.load(Ordering::Relaxed) {
            asked.store(false, Ordering::Relaxed);
            let memory: usize = driver.switch().flows().map(|flow| flow.memory).sum();
            println!("{memory}");
        }
    }
    Ok(())
}

/// Returns an inspector that copies repeatedly, each time from the last copy to another
/// location, as between a kernel and a program.
fn copier(copies: u32) -> Inspect {
    let mut buffers = vec![Vec::new(); copies as usize];
    Box::new(move |payload| {
        let mut from = payload;
        for buffer in &mut buffers {
            buffer.clear();
            from.append_to(buffer);
            from = std::hint::black_box(buffer.as_slice()).into();
        }
    })
}
