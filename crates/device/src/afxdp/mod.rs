//! AF_XDP: a queue of a Linux interface, received without the kernel's stack.
//!
//! [`AfXdp::open`] attaches the driver program, opens one socket a queue over
//! frame memory of its own and sets the interface's interrupt deferral so that
//! the receiver's poll is the one that runs. Dropping it, or the death of the
//! process, undoes all of it: the program's link is not pinned, the rings and
//! memory are closed on exec, and the two knobs are written back by a
//! restorer if need be.
//!
//! The path of a frame in here: driver ring → poll (`napi`) → driver program
//! ([`program`]) → receive ring (`socket`) → [`crate::queue::Receive`].

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::demux::layout::QUEUES;
use crate::demux::{EMBEDDED_APPLICATION, Tables};
use crate::ethtool::{self, Coalescing, Features, Filters, NtupleRule, Steering};
use crate::queue::{FLUSH_TIMEOUT, FLUSH_TIMEOUT_MAX, InterruptModeration, Queue};
use crate::raw::syscall;
use crate::restore::record::{self, Record};
use crate::restore::{Knob, Restorer};

mod checksums;
mod input;
mod napi;
pub mod program;
mod socket;
mod syn_limit;

pub use checksums::Checksums;
pub use napi::HELPER_PORTS;
pub use program::Program;
pub use socket::{open_transmitter, receivable};
pub use syn_limit::SynLimit;

/// How to open a device.
#[derive(Clone, Debug)]
pub struct Config {
    /// Interface name, in the caller's network namespace.
    pub interface: String,
    /// Queues of the interface, all of which are opened; 0: as many as it has.
    /// A queue left out would lose the frames of owned ports that it gets.
    pub queues: u32,
    /// Frames of memory a queue; a power of two, at least 256.
    pub frames: u32,
    /// Frames that fit into the receive ring; a power of two.
    pub receive_ring: u32,
    /// Where the driver program is to run; `None`: in the driver, or where that
    /// cannot, on hardware, generically.
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

/// Where in the kernel the driver program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpMode {
    /// In the driver, before the kernel has made a buffer of the frame.
    Native,
    /// In the kernel's receive path, after that: for drivers without XDP. The
    /// driver's own poll still runs in the receiver's context, so that a flood
    /// costs the receiver's time and not the whole host's, but each frame costs
    /// a buffer first.
    Generic,
}

impl XdpMode {
    /// Name for people.
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

/// An open device: the driver program, its tables and one [`Queue`] a queue.
pub struct AfXdp {
    /// Queues, in order. Take them; the rest of the struct keeps them working.
    pub queues: Vec<Queue>,
    /// The program; dropping it detaches.
    pub program: Program,
    // Put back when the program is gone, which may keep them off.
    _features: Option<Features>,
    /// Name of the interface's driver; empty where it does not tell.
    pub driver: String,
    /// Where the program runs.
    pub mode: XdpMode,
    /// True when the driver moves frames without copying.
    pub zero_copy: bool,
    /// Transmit queues of the interface, 0 where that is not known. What is put
    /// into the ring of a queue beyond them never leaves.
    pub transmit_queues: u32,
    /// Who computes the checksums of what is sent. Where queues that transmit
    /// differ, that of the first on which the device does not.
    pub checksums: Checksums,
    /// True when frames may carry checksums that a sender on this host left to
    /// its (virtual) device.
    pub checksum_offload_possible: bool,
    /// Knobs that could not be set, in words; the stack goes on without them.
    pub warnings: Vec<String>,
    interface: String,
    restorer: Option<Restorer>,
    // Rules go before the switch that makes them count.
    steering: Vec<Steering>,
    filters: Option<Filters>,
    _knobs: Vec<Knob>,
}

impl AfXdp {
    /// Opens the interface.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON; ENODEV; EBUSY when
    /// another program is attached or another process has the interface; EINVAL for a configuration out of range;
    /// what the kernel reports otherwise. Nothing is left behind.
    pub fn open(config: &Config) -> io::Result<Self> {
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
        let interface = syscall::interface_index(&config.interface)?;
        let mut warnings = Vec::new();
        // Before anything is mapped: its image of us is small then.
        let restorer = match guard(&config.interface, &mut warnings) {
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
        // virtio-net then receives on a queue more for each processor, where it
        // can have them.
        let queues = match queue_count(&config.interface) {
            Some(now) if present.is_some_and(|before| now > before) => now,
            _ => queues,
        };
        check_queues(&config.interface, None, queues)?;
        let transmit_queues = transmit_queue_count(&config.interface).unwrap_or(0);
        let tables = program.tables();
        let (knobs, timer) = match &restorer {
            Some(restorer) => defer_interrupts(config, restorer, &mut warnings),
            None => (Vec::new(), None),
        };
        let input = input::KernelInput::load(interface).ok().map(Arc::new);
        let mut opened_queues = Vec::new();
        let mut zero_copy = true;
        let mut checksums = None;
        for queue in 0..queues {
            let opened = socket::open(
                interface,
                queue,
                config,
                mode,
                &tables.trusted,
                timer.clone(),
                input.clone(),
            )?;
            program.set_socket(EMBEDDED_APPLICATION, queue, opened.fd())?;
            zero_copy &= opened.zero_copy();
            let sends = transmit_queues == 0 || queue < transmit_queues;
            if sends && checksums.is_none_or(Checksums::by_device) {
                checksums = Some(opened.checksums());
            }
            opened_queues.push(opened.into_queue());
        }
        Ok(AfXdp {
            queues: opened_queues,
            program,
            _features: features,
            driver: ethtool::driver(&config.interface).unwrap_or_default(),
            mode,
            zero_copy,
            transmit_queues,
            checksums: checksums.unwrap_or(Checksums::NoMetadata),
            checksum_offload_possible: !is_physical(&config.interface),
            warnings,
            interface: config.interface.clone(),
            restorer,
            steering: Vec::new(),
            filters: None,
            _knobs: knobs,
        })
    }

    /// Has the device put what comes to a local port on `queue`, by ntuple rules
    /// that go with this struct or with the process. Where the device cannot,
    /// a warning says so, and who sends must choose the queue.
    pub fn steer(&mut self, flow: NtupleRule, queue: u32) {
        let Some(restorer) = &self.restorer else {
            return;
        };
        if self.filters.is_none() {
            match Filters::enable(restorer, &self.interface) {
                Ok(filters) => {
                    self.warnings.extend_from_slice(filters.warnings());
                    self.filters = Some(filters);
                }
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

    /// The process that puts things back; none where it could not be started.
    pub fn restorer(&self) -> Option<&Restorer> {
        self.restorer.as_ref()
    }

    /// The demux tables.
    pub fn tables(&self) -> Tables {
        self.program.tables()
    }
}

/// Starts the restorer, with a record in case that both are killed; undoes first
/// what such a kill has left.
fn guard(interface: &str, warnings: &mut Vec<String>) -> io::Result<Restorer> {
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

/// Refuses a number of queues that is not the device's (`present`, where known)
/// or too large.
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

/// Makes the device wait for the receiver's poll: the interrupt is deferred
/// once, until the timer after the last poll, unless [`FlushTimer::set_deferral`]
/// says otherwise. Both knobs are put back at the end.
fn defer_interrupts(
    config: &Config,
    restorer: &Restorer,
    warnings: &mut Vec<String>,
) -> (Vec<Knob>, Option<FlushTimer>) {
    let mut knobs = Vec::new();
    for (name, value) in [
        ("napi_defer_hard_irqs", DEFERRED),
        ("gro_flush_timeout", nanoseconds(FLUSH_TIMEOUT)),
    ] {
        let path = format!("/sys/class/net/{}/{name}", config.interface);
        match Knob::set(restorer, &path, &value.to_string()) {
            Ok(knob) => knobs.push(knob),
            Err(error) => {
                warnings.push(format!("{path} not set: {error}"));
                return (knobs, None);
            }
        }
    }
    let mut timer = FlushTimer::open(&config.interface, &knobs);
    if is_physical(&config.interface) {
        // Hardware moderates its interrupts itself, ahead of the deferral.
        let taken = Coalescing::take(restorer, &config.interface)
            .and_then(|coalescing| coalescing.set(Duration::ZERO).map(|_| coalescing));
        match taken {
            Ok(coalescing) => {
                warnings.extend_from_slice(coalescing.warnings());
                if let Some(timer) = &mut timer {
                    timer.coalescing = Some(Arc::new(coalescing));
                }
            }
            Err(error) => warnings.push(error.to_string()),
        }
    }
    (knobs, timer)
}

/// Nanoseconds of [`InterruptModeration::BusyPoll`]: over the longest scheduler tick in use but
/// one (HZ=250).
const LONG: u64 = 5_000_000;

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// `napi_defer_hard_irqs` while interrupts are deferred: after a poll that found
/// work, until the timer has expired.
const DEFERRED: u64 = 1;

/// The device's `gro_flush_timeout` and `napi_defer_hard_irqs`, for switching while it
/// runs. The knobs that restore them are held elsewhere.
#[derive(Clone, Debug)]
struct FlushTimer {
    shared: Arc<FlushTimerShared>,
    /// A card's own interrupt moderation, which follows.
    coalescing: Option<Arc<Coalescing>>,
}

#[derive(Debug)]
struct FlushTimerShared {
    defer: File,
    timeout: File,
    /// What both were before, for while nothing is deferred.
    before: [String; 2],
    /// What the timeout is set to, ns, or [`NOT_DEFERRED`]. Changes under `lock`.
    value: AtomicU64,
    lock: Mutex<()>,
}

/// See [`FlushTimerShared::value`].
const NOT_DEFERRED: u64 = u64::MAX;

impl FlushTimer {
    /// `knobs`: of `napi_defer_hard_irqs` and `gro_flush_timeout`.
    fn open(interface: &str, knobs: &[Knob]) -> Option<Self> {
        let open = |name| {
            let path = format!("/sys/class/net/{interface}/{name}");
            File::options().write(true).open(path).ok()
        };
        let [defer, timeout] = knobs else { return None };
        Some(FlushTimer {
            shared: Arc::new(FlushTimerShared {
                defer: open("napi_defer_hard_irqs")?,
                timeout: open("gro_flush_timeout")?,
                before: [defer.old().to_owned(), timeout.old().to_owned()],
                value: nanoseconds(FLUSH_TIMEOUT).into(),
                lock: Mutex::new(()),
            }),
            coalescing: None,
        })
    }

    fn set(&self, moderation: InterruptModeration) -> bool {
        let value = match moderation {
            InterruptModeration::BusyPoll => LONG,
            InterruptModeration::DeferFor(Duration::ZERO) => nanoseconds(FLUSH_TIMEOUT),
            InterruptModeration::DeferFor(time) => nanoseconds(time.min(FLUSH_TIMEOUT_MAX)),
        };
        let shared = &*self.shared;
        let is_to_change =
            || ![value, NOT_DEFERRED].contains(&shared.value.load(Ordering::Relaxed));
        if !is_to_change() {
            return false;
        }
        let lock = shared.lock();
        if !is_to_change() {
            return false;
        }
        shared.value.store(value, Ordering::Relaxed);
        // A device that is gone needs no timer.
        let _ = shared.timeout.write_at(value.to_string().as_bytes(), 0);
        drop(lock);
        // A card that polls all the time does not interrupt, whatever it is told,
        // and telling it is slow.
        if let (Some(card), InterruptModeration::DeferFor(time)) = (&self.coalescing, moderation) {
            let _ = card.set(time.min(FLUSH_TIMEOUT_MAX));
        }
        true
    }

    /// A card's own moderation, which is off, has no other in its place.
    fn set_deferral(&self, deferred: bool) {
        let shared = &*self.shared;
        let lock = shared.lock();
        let is_deferred = shared.value.load(Ordering::Relaxed) != NOT_DEFERRED;
        if deferred == is_deferred || self.coalescing.is_some() {
            return;
        }
        let (value, defer, timeout) = if deferred {
            let value = nanoseconds(FLUSH_TIMEOUT);
            (value, DEFERRED.to_string(), value.to_string())
        } else {
            let [defer, timeout] = shared.before.clone();
            (NOT_DEFERRED, defer, timeout)
        };
        shared.value.store(value, Ordering::Relaxed);
        // As above.
        let _ = shared.timeout.write_at(timeout.as_bytes(), 0);
        let _ = shared.defer.write_at(defer.as_bytes(), 0);
        drop(lock);
    }
}

impl FlushTimerShared {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receive queues of an interface, `None` where sysfs does not tell.
pub fn queue_count(interface: &str) -> Option<u32> {
    queues_named(interface, "rx-")
}

/// Transmit queues of an interface, `None` where sysfs does not tell.
pub fn transmit_queue_count(interface: &str) -> Option<u32> {
    queues_named(interface, "tx-")
}

fn queues_named(interface: &str, prefix: &str) -> Option<u32> {
    let entries = std::fs::read_dir(format!("/sys/class/net/{interface}/queues")).ok()?;
    let count = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .count();
    u32::try_from(count).ok().filter(|&count| count > 0)
}

/// True for hardware, that of a virtual machine included.
fn is_physical(interface: &str) -> bool {
    std::path::Path::new(&format!("/sys/class/net/{interface}/device")).exists()
}
