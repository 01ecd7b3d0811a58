//! A stack on one end of an in-memory link, for tests and measurements.

use tidewall_device::memory::LinkPort;
use tidewall_protocol::tcp::Sysctl;

use super::*;
use crate::clock::VirtualTime;

/// Configuration of a stack on the in-memory device.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Addresses of this end.
    pub addresses: Vec<IpAddr>,
    /// Link address of this end.
    pub mac: MacAddress,
    /// Link address of the other end.
    pub peer: MacAddress,
}

impl StackHandle {
    /// Starts a stack on one end of an in-memory link: no privileges, no kernel, and the
    /// link's clock.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn in_memory(
        port: LinkPort,
        config: MemoryConfig,
        protocols: Protocols,
    ) -> io::Result<Self> {
        Self::on_link(port, config, Clock::real(), true, protocols)
    }

    /// As [`StackHandle::in_memory`], with `clock` for the protocols' own timers: time
    /// since any fixed moment. Timeouts of calls that wait are in real time all the same.
    /// Nothing happens by itself: frames and timers are processed when a thread calls.
    /// Closed connections are driven by calls about others, or not at all.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn in_memory_on_clock(
        port: LinkPort,
        config: MemoryConfig,
        clock: impl Fn() -> Duration + Send + Sync + 'static,
        protocols: Protocols,
    ) -> io::Result<Self> {
        Self::on_link(port, config, Clock::given(clock), false, protocols)
    }

    /// As [`StackHandle::in_memory`], on virtual time: timeouts of calls that wait are on
    /// that clock too.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn on_virtual_time(
        end: LinkPort,
        config: MemoryConfig,
        time: Arc<dyn VirtualTime>,
        protocols: Protocols,
    ) -> io::Result<Self> {
        Self::on_link(end, config, Clock::of(time), false, protocols)
    }

    fn on_link(
        port: LinkPort,
        config: MemoryConfig,
        clock: Clock,
        helper: bool,
        protocols: Protocols,
    ) -> io::Result<Self> {
        let owner = DeviceOwner::new(&port.tables, None);
        owner.set_locals(&config.addresses)?;
        let parts = Parts {
            queues: port.queues,
            tables: port.tables.embedded,
            mac: config.mac,
            mtu: port.mtu.into(),
            routes: Routes::fixed(config.addresses, config.peer),
            receiving: Receiving::default(),
            input_options: InputOptions {
                checksum_offload_possible: true,
                verified: false,
            },
            has_kernel: false,
            helper,
            driver_answers: true,
            sysctl: Sysctl::default(),
            name: "memory".to_owned(),
            warnings: Vec::new(),
            snapshot: None,
            owner,
            adaptor: None,
        };
        Self::assemble(parts, false, clock, protocols, (None, None))
    }
}
