//! A device, opened and owned by this process.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use tidewall_device::afxdp::{self, Checksums, Owner, Segmentation, Settings, SharedUmem};
use tidewall_device::demux::layout::QUEUES;
use tidewall_device::demux::{EMBEDDED_APPLICATION, NapiProbe, Tables, TrustedTables};
use tidewall_device::interface::{driver, is_physical, queue_count, transmit_queue_count};
use tidewall_device::queue::{InterruptModeration, Queue};
use tidewall_sys::interface;

use crate::ethtool::{Features, Filters, NtupleRule, Steering};
use crate::input::KernelInput;
use crate::moderation::{FlushTimer, defer_interrupts};
use crate::program::Program;
use crate::restore::record::{self, Record};
use crate::restore::{Knob, Restorer};

/// How to open a device.
#[derive(Clone, Debug)]
pub struct Config {
    /// Interface name, in the caller's network namespace.
    pub interface: String,
    /// Queues of the interface, all of which are opened; 0: as many as it has. A queue
    /// left out would lose the frames of owned ports that it receives.
    pub queues: u32,
    /// Frames of memory per queue; a power of two, at least 256.
    pub frames: u32,
    /// Frames that fit into the receive ring; a power of two.
    pub receive_ring: u32,
    /// The mode in which the driver program is to run. `None`: in the driver; on hardware
    /// without support for that, generically.
    pub mode: Option<XdpMode>,
}

impl Config {
    /// Defaults for one queue of `interface`.
    pub fn new(interface: &str) -> Self {
        Config {
            interface: interface.to_owned(),
            queues: 0,
            frames: 8192,
            receive_ring: 2048,
            mode: None,
        }
    }
}

/// The place in the kernel at which the driver program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpMode {
    /// In the driver, before the kernel has made a buffer of the frame.
    Native,
    /// In the kernel's receive path, after that: for drivers without XDP. The driver's
    /// own poll still runs in the receiver's context, so that a flood costs the
    /// receiver's time and not the whole host's. But each frame first costs a buffer.
    Generic,
}

impl XdpMode {
    /// Human-readable name.
    pub fn name(self) -> &'static str {
        match self {
            XdpMode::Native => "native",
            XdpMode::Generic => "generic",
        }
    }
}

impl std::str::FromStr for XdpMode {
    type Err = String;

    /// By [`XdpMode::name`].
    fn from_str(name: &str) -> Result<Self, String> {
        [XdpMode::Native, XdpMode::Generic]
            .into_iter()
            .find(|mode| mode.name() == name)
            .ok_or_else(|| "native or generic".to_owned())
    }
}

/// An open device: the driver program, its tables and one [`Queue`] per queue.
pub struct AfXdp {
    /// Queues, in order. Take them; the rest of the struct keeps them working.
    pub queues: Vec<Queue>,
    /// The program; dropping it detaches.
    pub program: Program,
    // Restored when the program is gone, which may keep them off.
    _features: Option<Features>,
    /// Name of the interface's driver; empty if it does not report one.
    pub driver: String,
    /// The mode in which the program runs.
    pub mode: XdpMode,
    /// True when the driver moves frames without copying.
    pub zero_copy: bool,
    /// Transmit queues of the interface, 0 if not known. Frames put into the ring of a
    /// queue beyond them never leave.
    pub transmit_queues: u32,
    /// The party that computes the checksums of sent frames. If transmitting queues
    /// differ, that of the first on which the device does not.
    pub checksums: Checksums,
    /// The party that splits long TCP segments; the stack if it does so on any queue.
    pub segmentation: Segmentation,
    /// True when frames may carry checksums that a sender on this host left to
    /// its (virtual) device.
    pub checksum_offload_possible: bool,
    /// Settings that could not be changed, described in words; the stack works without
    /// them.
    pub warnings: Vec<String>,
    interface: String,
    restorer: Option<Restorer>,
    // Rules are removed before the switch that enables them.
    steering: Vec<Steering>,
    filters: Option<Filters>,
    _knobs: Vec<Knob>,
}

impl AfXdp {
    /// Opens the interface, each queue over its own frame memory.
    ///
    /// # Errors
    /// As [`AfXdp::open_on`].
    pub fn open(config: &Config) -> io::Result<Self> {
        Self::open_on(config, None)
    }

    /// Opens the interface, its queues on parts of `umem` if there is one.
    ///
    /// # Errors
    /// Nothing is left behind.
    ///
    /// - EPERM: without CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON
    /// - ENODEV
    /// - EBUSY: another program is attached or another process has the interface
    /// - EINVAL: a configuration out of range
    /// - otherwise what the kernel reports
    pub fn open_on(config: &Config, mut umem: Option<&mut SharedUmem>) -> io::Result<Self> {
        let invalid =
            |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what.to_owned()));
        if !config.frames.is_power_of_two() || config.frames < 256 {
            return invalid("frames must be a power of two, at least 256");
        }
        if !config.receive_ring.is_power_of_two() {
            return invalid("receive_ring must be a power of two");
        }
        let present = queue_count(&config.interface);
        let queues = if config.queues == 0 {
            present.unwrap_or(1)
        } else {
            config.queues
        };
        check_queues(&config.interface, present, queues)?;
        let index = interface::index(&config.interface)?;
        let mut warnings = Vec::new();
        // Before anything is mapped: its image of this process is small then.
        let restorer = match start_restorer(&config.interface, &mut warnings) {
            Ok(restorer) => Some(restorer),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Err(error),
            Err(error) => {
                warnings.push(format!(
                    "no restorer ({error}): interrupt deferral left as it is"
                ));
                None
            }
        };
        let mut features = Features::remember(&config.interface).ok();
        // Dropped before them, as in the result.
        let mut program = Program::load()?;
        let attached = match config.mode {
            Some(mode) => program.attach(&config.interface, mode).map(|()| mode),
            None => program.attach_where_possible(&config.interface),
        };
        if let Some(Err(error)) = features
            .as_mut()
            .map(|features| features.changed(restorer.as_ref()))
        {
            warnings.push(format!(
                "features may not be put back after a crash: {error}"
            ));
        }
        let mode = attached?;
        // virtio-net then receives on one more queue per processor, where it can have
        // them.
        let queues = match queue_count(&config.interface) {
            Some(now) if present.is_some_and(|before| now > before) => now,
            _ => queues,
        };
        check_queues(&config.interface, None, queues)?;
        let transmit_queues = transmit_queue_count(&config.interface).unwrap_or(0);
        let tables = program.tables();
        let (knobs, timer) = match &restorer {
            Some(restorer) => defer_interrupts(&config.interface, restorer, &mut warnings),
            None => (Vec::new(), None),
        };
        let owner = Arc::new(EmbeddedOwner {
            tables: tables.trusted.clone(),
            timer,
            input: KernelInput::load(index).ok(),
        });
        let settings = Settings {
            interface: &config.interface,
            frames: config.frames,
            receive_ring: config.receive_ring,
            copy: mode == XdpMode::Generic,
            trusted: true,
            wait: true,
        };
        let mut opened_queues = Vec::new();
        let mut zero_copy = true;
        let (mut checksums, mut segmentation) = (None, None);
        for queue in 0..queues {
            let counters = tables.trusted.counters(queue);
            let opened = afxdp::open(
                &settings,
                queue,
                counters,
                owner.clone(),
                umem.as_deref_mut(),
            )?;
            program.set_socket(EMBEDDED_APPLICATION, queue, opened.fd())?;
            if let Some(waiting) = opened.waiting_fd() {
                program.set_waiting_socket(EMBEDDED_APPLICATION, queue, waiting)?;
            }
            zero_copy &= opened.zero_copy();
            let sends = transmit_queues == 0 || queue < transmit_queues;
            if sends && checksums.is_none_or(Checksums::by_device) {
                checksums = Some(opened.checksums());
            }
            if segmentation.is_none_or(Segmentation::is_offloaded) {
                segmentation = Some(opened.segmentation());
            }
            opened_queues.push(opened.into_queue());
        }
        Ok(AfXdp {
            queues: opened_queues,
            program,
            _features: features,
            driver: driver(&config.interface).unwrap_or_default(),
            mode,
            zero_copy,
            transmit_queues,
            checksums: checksums.unwrap_or(Checksums::NoMetadata),
            segmentation: segmentation.unwrap_or(Segmentation::Untrusted),
            checksum_offload_possible: !is_physical(&config.interface),
            warnings,
            interface: config.interface.clone(),
            restorer,
            steering: Vec::new(),
            filters: None,
            _knobs: knobs,
        })
    }

    /// Steers frames for a local port to `queue`, by n-tuple rules that end with this
    /// struct or with the process. If the device cannot, a warning reports it, and the
    /// sender must choose the queue.
    pub fn steer(&mut self, flow: NtupleRule, queue: u32) {
        let Some(restorer) = &self.restorer else {
            return;
        };
        if self.filters.is_none() {
            match Filters::enable(restorer, &self.interface) {
                Ok(filters) => self.filters = Some(filters),
                Err(error) => return self.warn(error.to_string()),
            }
        }
        match Steering::add(restorer, &self.interface, flow, queue) {
            Ok(steering) => {
                self.warnings.extend_from_slice(steering.warnings());
                self.steering.push(steering);
            }
            Err(error) => self.warn(error.to_string()),
        }
    }

    fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// The process that restores everything; none where it could not be started.
    pub fn restorer(&self) -> Option<&Restorer> {
        self.restorer.as_ref()
    }

    /// The demux tables.
    pub fn tables(&self) -> Tables {
        self.program.tables()
    }
}

/// The owner as the queues' receivers see it, in their own process.
struct EmbeddedOwner {
    tables: Arc<TrustedTables>,
    timer: Option<FlushTimer>,
    /// `None` where the kernel does not support it.
    input: Option<KernelInput>,
}

impl Owner for EmbeddedOwner {
    fn set_moderation(&self, moderation: InterruptModeration) -> bool {
        self.timer
            .as_ref()
            .is_some_and(|timer| timer.set(moderation))
    }

    fn set_deferral(&self, deferred: bool) -> bool {
        if let Some(timer) = &self.timer {
            timer.set_deferral(deferred);
        }
        true
    }

    fn probe_napi(&self, queue: u32, port: u16, source: u16) -> io::Result<()> {
        self.tables.probe_napi(queue, port, source);
        Ok(())
    }

    fn napi_probe(&self, queue: u32) -> Option<NapiProbe> {
        self.tables.napi_probe(queue)
    }

    fn receive_in_kernel(&self, datagram: &[u8]) -> io::Result<()> {
        let input = self.input.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        input.receive(datagram)
    }

    fn helpers(&self) -> io::Result<[UdpSocket; 2]> {
        afxdp::helpers()
    }
}

/// Starts the restorer, with a record in case both are killed. First undoes what such a
/// kill has left.
fn start_restorer(interface: &str, warnings: &mut Vec<String>) -> io::Result<Restorer> {
    match Record::of(interface) {
        Ok((record, undone)) => {
            let left = |step| format!("an earlier process had left it to be done: {step}");
            warnings.extend(undone.into_iter().map(left));
            Restorer::start_recorded(record)
        }
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(error),
        Err(error) => {
            warnings.push(format!(
                "no record in {} ({error}): a kill of the whole cgroup would leave settings of \
                 {interface} changed",
                record::DIRECTORY
            ));
            Restorer::start()
        }
    }
}

/// Rejects a number of queues that is not the device's (`present`, if known) or too
/// large.
fn check_queues(name: &str, present: Option<u32>, queues: u32) -> io::Result<()> {
    if queues <= QUEUES as u32 && present.is_none_or(|present| queues == present) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "{name} has {} receive queues, {queues} asked for; all must be taken, \
             and at most {QUEUES} can be (see: ethtool -L {name} combined {QUEUES})",
            present.unwrap_or(queues),
        ),
    ))
}
