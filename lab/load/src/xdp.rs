//! The generator's kernel programs, `bpf/load.bpf.c`.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::thread;

use aya::programs::xdp::XdpMode;
use aya::programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use tidewall_device::demux::programs::LOAD;

use crate::neighbour;
use crate::prefix::Prefix;
use crate::raw_namespace::unshare_network;
use crate::template::Places;

/// The loopback interface is the first one of every namespace.
const LOOPBACK_INDEX: u32 = 1;
/// Frames handed to the interface at once; the kernel allows 256.
const BATCH: u32 = 64;

/// The bits of the source address that differ from frame to frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scatter {
    /// The offsets of the varying words in the frame.
    pub(crate) places: Places,
    /// Mask of the address's last four bytes. The frames passed in have zeros there.
    pub(crate) mask: u32,
}

/// A loaded program that redirects every frame to one interface.
pub(crate) struct Redirect {
    loaded: Ebpf,
    /// Keeps the program in the kernel's XDP dispatcher, see [`register`].
    _namespace: File,
}

impl Redirect {
    const NAME: &str = "redirect";

    /// Loads the program for the interface of this index in the caller's
    /// namespace.
    pub(crate) fn new(interface: u32, scatter: Option<Scatter>) -> io::Result<Self> {
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        loader.override_global("redirect_interface", &interface, true);
        let values = match scatter {
            Some(Scatter { places, mask }) => {
                let ip_checksum = places.ip_checksum.unwrap_or(0);
                let offsets = [
                    places.address_end - 4,
                    ip_checksum,
                    places.transport_checksum,
                ];
                let [address, ip, transport] = offsets.map(|at| at as u32);
                [
                    u32::from_ne_bytes(mask.to_be_bytes()),
                    address,
                    ip,
                    transport,
                ]
            }
            None => [0; 4],
        };
        for (name, value) in [
            "scatter_mask",
            "scatter_address",
            "scatter_ip_checksum",
            "scatter_transport_checksum",
        ]
        .into_iter()
        .zip(&values)
        {
            loader.override_global(name, value, true);
        }
        let mut loaded = loader.load(LOAD).map_err(system_error)?;
        let namespace = register(load(&mut loaded, Self::NAME)?)?;
        Ok(Redirect {
            loaded,
            _namespace: namespace,
        })
    }

    /// Sends `frame` `count` times, in the kernel, as `xdp_frame`s.
    pub(crate) fn send(&self, frame: &[u8], count: u32) -> io::Result<()> {
        let program = self.loaded.program(Self::NAME);
        let program: &Xdp = program
            .ok_or(io::ErrorKind::NotFound)?
            .try_into()
            .map_err(system_error)?;
        let options = TestRunOptions {
            data_in: Some(frame),
            repeat: count,
            attrs: TestRunAttrs::new().xdp_live_frames(count.min(BATCH)),
            ..TestRunOptions::new()
        };
        program.test_run(options).map(|_| ()).map_err(system_error)
    }
}

/// Attaches the program to `lo` of a new, empty namespace, where no packet ever passes.
/// The thread that creates the namespace then ends. Returns the namespace.
///
/// Each test run enters its program into the XDP dispatcher and removes it again. Both
/// rewrite the dispatcher's code and wait for an RCU grace period, 1.5 to 24 ms together.
/// A program attached anywhere is in the dispatcher already, and its test runs only count
/// references: they take about 10 µs.
fn register(program: &mut Xdp) -> io::Result<File> {
    let attach = || -> io::Result<File> {
        unshare_network()?;
        let namespace = File::open("/proc/thread-self/ns/net")?;
        program
            .attach_to_if_index(LOOPBACK_INDEX, XdpMode::Skb)
            .map_err(system_error)?;
        Ok(namespace)
    };
    thread::scope(|scope| {
        thread::Builder::new()
            .name("tw-load-register".into())
            .spawn_scoped(scope, attach)?
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the registering thread ended early")))
    })
}

/// An XDP program on an interface that drops the packets addressed to the sources of a
/// flood. A real attacker never receives the answers to spoofed addresses. A generator
/// that receives them all loses those of its own clients in between. Detached on drop.
pub struct XdpSink {
    _loaded: Ebpf,
}

impl fmt::Debug for XdpSink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("XdpSink").finish_non_exhaustive()
    }
}

impl XdpSink {
    /// Attaches it in the calling thread's namespace, in the driver, where it costs
    /// least. Needs CAP_BPF and CAP_NET_ADMIN. A veth with GRO and deferred interrupts
    /// must be at rest: one that is between two polls forgets to poll again.
    ///
    /// # Errors
    /// `PermissionDenied` for an interface that is not a veth in its own namespace; EBUSY
    /// if another program is attached; otherwise the kernel's error.
    pub fn attach(interface: &str, destination: &Prefix) -> io::Result<Self> {
        let link = neighbour::link(interface)?;
        neighbour::permit(&link, neighbour::in_own_namespace(), false, false)?;
        let attach = || -> io::Result<Ebpf> {
            let mut loaded = load_sink(destination)?;
            load(&mut loaded, "sink")?
                .attach_to_if_index(link.index, XdpMode::Driver)
                .map_err(system_error)?;
            Ok(loaded)
        };
        let loaded = attach().map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("no XDP program on {interface}: {error}"),
            )
        })?;
        Ok(XdpSink { _loaded: loaded })
    }
}

/// Loads the object with its drop rule: Ethernet packets whose destination lies in the
/// prefix.
fn load_sink(prefix: &Prefix) -> io::Result<Ebpf> {
    let (offset, address, bits, ethertype) = match prefix.address() {
        IpAddr::V4(address) => (30u32, u128::from(address.to_bits()) << 96, 32u32, 0x0800u16),
        IpAddr::V6(address) => (38, address.to_bits(), 128, 0x86dd),
    };
    let length = u32::from(prefix.length()).min(bits);
    let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
    let words = |of: u128| {
        let word = |number: u32| (of >> (96 - 32 * number)) as u32;
        [0, 1, 2, 3].map(|number| u32::from_ne_bytes(word(number).to_be_bytes()))
    };
    let (address, mask) = (words(address & mask), words(mask));
    let ethertype = u32::from(u16::from_ne_bytes(ethertype.to_be_bytes()));
    EbpfLoader::new()
        .btf(None)
        .override_global("sink_type", &ethertype, true)
        .override_global("sink_offset", &offset, true)
        .override_global("sink_length", &(bits / 8), true)
        .override_global("sink_address", &address, true)
        .override_global("sink_mask", &mask, true)
        .load(LOAD)
        .map_err(system_error)
}

/// Loads one program of the object.
fn load<'a>(loaded: &'a mut Ebpf, name: &str) -> io::Result<&'a mut Xdp> {
    let program = loaded.program_mut(name).ok_or(io::ErrorKind::NotFound)?;
    let program: &mut Xdp = program.try_into().map_err(system_error)?;
    program.load().map_err(system_error)?;
    Ok(program)
}

/// Returns the system's error behind one of aya's, since callers check its errno.
fn system_error(error: impl Error + Send + Sync + 'static) -> io::Error {
    let mut source: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(cause) = source {
        let found = cause.downcast_ref::<io::Error>();
        if let Some(number) = found.and_then(io::Error::raw_os_error) {
            return io::Error::from_raw_os_error(number);
        }
        source = cause.source();
    }
    io::Error::other(error)
}
