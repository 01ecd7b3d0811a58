//! A stack at the far end of a tap.

use tidewall_device::tap;

use super::*;

/// Configuration of a stack on a tap: a separate host at the far end of an interface of
/// this machine. It serves bulk transfer in segments of up to 64 KiB.
///
/// The caller gives the kernel's end its addresses, as for any interface: `ip address add
/// 10.0.0.1/24 dev NAME`. It is up already, and resolves no neighbours: everything it
/// routes to NAME comes here.
#[derive(Clone, Debug, PartialEq)]
pub struct TapConfig {
    /// Name of the interface to make, 1 to 15 characters, in the caller's
    /// network namespace. It goes with the stack.
    pub name: String,
    /// Addresses of this end: what the stack's sockets can be bound to. The
    /// first of a family is the source of what is sent unbound.
    pub addresses: Vec<IpAddr>,
    /// Link address of the next hop; `None`: the kernel's end of the tap.
    pub peer: Option<MacAddress>,
    /// Longest IP packet that is not cut, 1280 to 65,000 bytes.
    pub mtu: u16,
    /// Frames of memory, 66 KiB each, half of them for receiving; 16 to 65,536.
    pub frames: u32,
    /// How long a blocking call polls before it sleeps. Costs CPU while idle.
    pub spin: Duration,
    /// Serve `tidewall stat` and `tidewall trace` for this process.
    pub control: bool,
}

impl Default for TapConfig {
    fn default() -> Self {
        let tap::Config { name, mtu, frames } = tap::Config::new("");
        TapConfig {
            name,
            addresses: Vec::new(),
            peer: None,
            mtu,
            frames,
            spin: Duration::ZERO,
            control: true,
        }
    }
}

impl StackHandle {
    /// Creates a tap, and starts a stack at its far end. The stack is a separate host.
    /// Its ports are its own too: no kernel socket holds them, and a frame for no socket
    /// of the stack gets no answer.
    ///
    /// # Errors
    /// - EINVAL for a configuration out of range or without addresses.
    /// - EBUSY when there is an interface of this name.
    /// - EPERM without CAP_NET_ADMIN.
    /// - ENOENT if the kernel has no /dev/net/tun.
    pub fn tap(config: TapConfig, protocols: Protocols) -> io::Result<Self> {
        let bad = |address: &IpAddr| address.is_unspecified() || address.is_multicast();
        if config.addresses.is_empty() || config.addresses.iter().any(bad) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a tap's stack needs addresses, of hosts",
            ));
        }
        let addresses: Vec<IpAddr> = config.addresses.iter().map(IpAddr::to_canonical).collect();
        let device = tap::Tap::open(&tap::Config {
            name: config.name.clone(),
            mtu: config.mtu,
            frames: config.frames,
        })?;
        let owner = DeviceOwner::new(&device.tables, None);
        owner.set_locals(&addresses)?;
        let parts = Parts {
            queues: vec![device.queue],
            tables: device.tables.embedded,
            mac: device.own,
            mtu: usize::from(config.mtu),
            routes: Routes::fixed(addresses, config.peer.unwrap_or(device.kernel)),
            receiving: Receiving {
                spin: Some(config.spin),
                ..Receiving::default()
            },
            input_options: InputOptions {
                checksum_offload_possible: true,
                verified: false,
            },
            has_kernel: false,
            helper: true,
            driver_answers: true,
            sysctl: host::sysctl(),
            name: config.name,
            warnings: Vec::new(),
            snapshot: None,
            owner,
            adaptor: None,
        };
        Self::assemble(
            parts,
            config.control,
            Clock::real(),
            protocols,
            (None, None),
        )
    }
}
