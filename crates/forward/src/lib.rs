//! Forwards TCP segments between interfaces, in place.
//!
//! A [`Forwarder`] has one stack on each of several interfaces. All stacks share one frame
//! memory. Each stack has a channel, to which the driver program passes all segments to
//! the ports that the forwarder has claimed. One thread:
//!
//! - takes segments out of these channels ([`Forwarder::receive`]);
//! - determines the next interface and the new headers of each ([`Output`]);
//! - waits on all interfaces at once ([`Forwarder::wait`]).
//!
//! A segment whose payload goes to one destination stays in its frame, and new headers are
//! written before the payload. The checksum is updated by the words of the headers that
//! change (RFC 1624). The frame enters the transmit ring of the interface that leads to the
//! destination. Once sent, it returns to the queue that received it.
//!
//! Known connections are admitted to a separate channel ([`Output::admit`]), so that a flood
//! of SYNs at a port keeps none of their segments out. They are served first, and looked for
//! again after every few segments of strangers.
//!
//! Frames of virtual circuits arrive here, too, if their labels were claimed
//! ([`Forwarder::claim_label`], [`Arrived::labelled`]). They leave with another label, in
//! place or in a new frame (`labelled`).
//!
//! Bounds: a channel holds as many frames as its limit, and its credit returns as soon as
//! the segment was handed on. Frames on their way fill at most one transmit ring. This crate
//! knows no connections, and neither acknowledges nor retransmits.

mod arrived;
mod claims;
pub mod counter_names;
mod input;
mod labelled;
mod output;
mod status;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidewall_device::afxdp::SharedUmem;
use tidewall_device::demux::layout;
use tidewall_device::queue::{BURST, KernelDelivered};
use tidewall_receive::poller::Origins;
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::endpoint::Endpoint;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::protocol::Protocol;
use tidewall_stack::receiver::{Spin, Wait, wait_for_frames};
use tidewall_stack::snapshot::{CellSwitchSnapshot, StackSnapshot, SwitchSnapshot};
use tidewall_stack::stack::{EmbeddedConfig, Start};
use tidewall_sys::netlink::Rtnetlink;
use tidewall_wire::atm::pseudowire::Label;

use arrived::Content;
use input::{Input, Part};
use status::{Answer, Status};

pub use arrived::Arrived;
pub use labelled::Labelled;
pub use output::{Heading, Output, OutputCounters};

/// Frames that may wait in a port's channel of a queue: what four whole polls bring.
const CHANNEL_LIMIT: u32 = 512;
/// Divisor for the frames of a queue's memory that may wait in the channel of admitted
/// connections. Several windows can come at once, and each frame dropped there costs a
/// sender without SACK a round trip. Half of the memory is left to the device.
const ADMITTED_PART: u32 = 4;
/// A wait polls for as long as so many wake-ups take, or what was configured if that is
/// longer. More than one, since a sleep costs more than the wake-up: until it is polled
/// again the device interrupts the sender's processor, for each frame.
const WAKE_UPS: u32 = 4;
/// Segments that came through the kernel, while polls were unknown, and wait.
const KERNEL_DELIVERED: usize = 64;

/// Interval of the checks whether an interface that was gone exists again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The protocols of a stack whose frames are forwarded: no socket is opened on it.
fn protocols(_start: Start<'_>) -> io::Result<Vec<Arc<dyn Protocol>>> {
    Ok(vec![Arc::new(Forwarding::default())])
}

/// Forwards segments and circuits' frames between interfaces; see the crate's
/// documentation.
pub struct Forwarder {
    inputs: Vec<Input>,
    output: Output,
    /// A forwarded segment may be answered soon.
    spin: Spin,
    /// Configurations of the interfaces that can be opened again.
    configs: Vec<EmbeddedConfig>,
    /// Limits of channels.
    limits: [u32; 2],
    /// Interfaces that are opened again, each by a thread.
    opening: Vec<(usize, JoinHandle<io::Result<StackHandle>>)>,
    looked: Instant,
}

impl std::fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forwarder")
            .field("output", &self.output)
            .finish_non_exhaustive()
    }
}

impl Forwarder {
    /// Takes over the queues of these interfaces, as [`StackHandle::embedded`] does of one.
    /// The largest [`EmbeddedConfig::frames`] counts for all. Frames are copied by the
    /// kernel, also where a driver has zero-copy mode.
    ///
    /// # Errors
    /// As [`StackHandle::embedded`], with the interface's name; EINVAL also for an architecture
    /// with threads of its own.
    pub fn open(configs: Vec<EmbeddedConfig>) -> io::Result<Self> {
        let names: Vec<&str> = configs.iter().map(EmbeddedConfig::interface).collect();
        let frames = configs.iter().map(EmbeddedConfig::frames_of_queue).max();
        let frames = frames.unwrap_or(0);
        let mut umem = SharedUmem::new(&names, frames)?;
        let named = |config: EmbeddedConfig| {
            let name = config.interface().to_owned();
            StackHandle::embedded_on(config, Some(&mut umem), protocols).map_err(|error| {
                let text = error.to_string();
                match text.contains(&name) {
                    true => error,
                    false => io::Error::new(error.kind(), format!("{name}: {text}")),
                }
            })
        };
        let stacks = configs.iter().cloned().map(named);
        let forwarder = Self::over(stacks.collect::<io::Result<_>>()?, frames)?;
        Ok(Forwarder {
            configs,
            ..forwarder
        })
    }

    /// Over stacks whose queues have parts of one frame memory, of so many frames each.
    pub(crate) fn over(stacks: Vec<StackHandle>, frames: u32) -> io::Result<Self> {
        let cores = || stacks.iter().map(StackHandle::core);
        if cores().any(|core| core.receiver.architecture.has_threads()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "who forwards polls by itself: an architecture without threads is needed",
            ));
        }
        let queues = cores().flat_map(|core| &core.receiver.queues);
        let origins = Arc::new(Origins::new(queues.map(|it| it.shared.clone()).collect()));
        for queue in cores().flat_map(|core| &core.receiver.queues) {
            lock(&queue.transmitter).set_origins(origins.clone());
        }
        let polls = |core: &Core| match core.receiver.spin_time() {
            Duration::ZERO => Duration::ZERO,
            set => set.max(core.receiver.wake_up_time() * WAKE_UPS),
        };
        let spin = cores().map(|core| polls(core)).min();
        let limits = [CHANNEL_LIMIT, CHANNEL_LIMIT.max(frames / ADMITTED_PART)];
        let inputs = stacks.into_iter().map(|stack| Input::open(stack, limits));
        let inputs = inputs.collect::<io::Result<Vec<_>>>()?;
        Ok(Forwarder {
            output: Output::new(inputs.iter().map(|it| (&it.stack, it.admitted()))),
            inputs,
            spin: Spin::new(spin.unwrap_or_default()),
            configs: Vec::new(),
            limits,
            opening: Vec::new(),
            looked: Instant::now(),
        })
    }

    /// Reports whether an interface is gone. It delivers nothing then, and segments that
    /// are to leave by it count as unreachable.
    pub fn is_gone(&self, interface: usize) -> bool {
        let input = self.inputs.get(interface);
        input.is_none_or(|input| input.stack.core().netdev.check().is_err())
    }

    /// Looks for interfaces that were gone and exist again under their name, and opens each
    /// in a separate thread. Returns those that were opened since the last call. An interface
    /// that was opened again has claimed nothing. Its frames are in a separate memory, so
    /// segments from it and to it are copied.
    pub fn look_again(&mut self) -> Vec<usize> {
        let mut opened = Vec::new();
        if self.looked.elapsed() < LOOK_AGAIN {
            return opened;
        }
        self.looked = Instant::now();
        for interface in 0..self.configs.len() {
            if !self.is_gone(interface) {
                continue;
            }
            let place = self.opening.iter().position(|(it, _)| *it == interface);
            match place {
                Some(place) if self.opening.get(place).is_some_and(|it| it.1.is_finished()) => {
                    let (_, thread) = self.opening.swap_remove(place);
                    // It may go again meanwhile, or be down: it is looked for again.
                    if let Ok(Ok(stack)) = thread.join()
                        && let Ok(input) = Input::open(stack, self.limits)
                    {
                        self.output
                            .replace(interface, &input.stack, input.admitted());
                        if let Some(old) = self.inputs.get_mut(interface) {
                            *old = input;
                        }
                        opened.push(interface);
                    }
                }
                Some(_) => {}
                None => self.open_again(interface),
            }
        }
        opened
    }

    fn open_again(&mut self, interface: usize) {
        let Some(config) = self.configs.get(interface).cloned() else {
            return;
        };
        let link = Rtnetlink::open().and_then(|mut it| it.link_named(config.interface()));
        if !link.is_ok_and(|link| link.up && link.carrier) {
            return;
        }
        let thread = std::thread::Builder::new().name("tidewall-open".to_owned());
        if let Ok(thread) = thread.spawn(move || StackHandle::embedded(config, protocols)) {
            self.opening.push((interface, thread));
        }
    }

    /// The stack of each interface, in the order in which they were named: what `stat`
    /// shows of it, [`StackHandle::snapshot`] has.
    pub fn stacks(&self) -> impl Iterator<Item = &StackHandle> {
        self.inputs.iter().map(|input| &input.stack)
    }

    /// Claims everything that arrives at a TCP port of this address by an interface. A
    /// kernel socket holds the port, so no other program has it.
    ///
    /// # Errors
    /// EINVAL for an interface that does not exist; EADDRINUSE; EADDRNOTAVAIL if the
    /// address is not local; the errors of the driver's tables.
    pub fn claim(&mut self, interface: usize, address: SocketAddr) -> io::Result<()> {
        self.input(interface)?.claim(address)
    }

    /// Claims these TCP ports, from which connections are made, on one interface. All
    /// segments to them, at any address of the host, arrive here. They must lie outside the
    /// kernel's range of ephemeral ports.
    ///
    /// # Errors
    /// EINVAL for an unknown interface, for port 0, and, as a text, for ports of the
    /// kernel's range.
    pub fn claim_ports(&mut self, interface: usize, ports: RangeInclusive<u16>) -> io::Result<()> {
        self.input(interface)?.claim_ports(ports)
    }

    /// Has the frames of a virtual circuit that come by an interface come here
    /// ([`Arrived::labelled`]): those to its link address behind this label (RFC 4717).
    ///
    /// # Errors
    /// EINVAL for an unknown interface. EADDRINUSE for a label that has an owner. ENOBUFS
    /// when the driver's tables are full.
    pub fn claim_label(&mut self, interface: usize, label: Label) -> io::Result<()> {
        self.input(interface)?.claim_label(label)
    }

    /// Releases a label of [`Forwarder::claim_label`]. Without such a claim nothing happens.
    ///
    /// # Errors
    /// EINVAL for an interface that there is not; EOWNERDEAD in a forked child.
    pub fn release_label(&mut self, interface: usize, label: Label) -> io::Result<()> {
        self.input(interface)?.release_label(label)
    }

    /// Adds an address to the interface, so that the kernel answers ARP and neighbour
    /// discovery for it. The address is removed when the forwarder is dropped or the process
    /// ends, in whatever way. An address that the host has already stays.
    ///
    /// # Errors
    /// EINVAL for an unknown interface. The errors of `ip address add`.
    pub fn add_address(&mut self, interface: usize, address: IpAddr) -> io::Result<()> {
        self.input(interface)?.add_address(address)
    }

    fn input(&mut self, interface: usize) -> io::Result<&mut Input> {
        let input = self.inputs.get_mut(interface);
        input.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Passes every segment that has arrived to `each`, in order of its queue and
    /// connection, and sends the output. Segments of admitted connections precede those of
    /// strangers. Damaged segments, and frames that are none, are dropped and counted by
    /// cause. Returns the number of segments; never waits.
    pub fn receive(&mut self, mut each: impl FnMut(&mut Output, &mut Arrived<'_>)) -> usize {
        self.receive_batch(|output, arrived| {
            if let Some(arrived) = arrived {
                each(output, arrived);
            }
        })
    }

    /// As [`Forwarder::receive`], but also calls `each` with `None` before devices send. The
    /// output of that call is sent together with the output for the segments.
    pub fn receive_batch(
        &mut self,
        mut each: impl FnMut(&mut Output, Option<&mut Arrived<'_>>),
    ) -> usize {
        let mut count = 0;
        self.output.begin(Instant::now());
        loop {
            let before = count;
            count += self.take(Part::Connections, &mut each);
            if self.inputs.iter().any(Input::has_strangers) {
                // The output of connections leaves before a stranger's frame is looked at.
                if count > before {
                    each(&mut self.output, None);
                    self.output.flush();
                }
                count += self.take(Part::Strangers, &mut each);
            }
            // Segments that have arrived meanwhile share the call that makes a device send.
            let more = count > before && count < BURST as usize;
            let come = |any, input: &Input| input.has_come() || any;
            if !(more && self.inputs.iter().fold(false, come)) {
                break;
            }
        }
        if count > 0 {
            each(&mut self.output, None);
        }
        self.output.flush();
        count
    }

    /// Takes part of what each interface has, and returns how much that was.
    fn take(
        &mut self,
        part: Part,
        each: &mut impl FnMut(&mut Output, Option<&mut Arrived<'_>>),
    ) -> usize {
        let mut one = |output: &mut Output, arrived: &mut Arrived<'_>| each(output, Some(arrived));
        let inputs = self.inputs.iter_mut().enumerate();
        inputs
            .map(|(number, input)| input.receive(number, &mut self.output, part, &mut one))
            .sum()
    }

    /// Polls every interface and sorts the frames that have arrived. If there are none, sleeps
    /// until one arrives, no longer than `most`. An interface that is down or gone
    /// ([`Forwarder::is_gone`]) does not block the others.
    ///
    /// # Errors
    /// ENODEV when no interface is left. EINTR. The errors of a device.
    pub fn wait(&mut self, most: Option<Duration>) -> io::Result<()> {
        let has_input = || self.inputs.iter().any(Input::has_waiting);
        let most = if has_input() {
            Some(Duration::ZERO)
        } else {
            most
        };
        let counters = self.output.counters();
        let sent = counters.in_place + counters.copied;
        let cores: Vec<&Core> = self.stacks().map(|stack| &**stack.core()).collect();
        let wait = Wait {
            most,
            spin: self.spin.begins(sent).then_some(&self.spin),
            sending: self.output.is_sending(),
        };
        wait_for_frames(&cores, wait, has_input)
    }

    /// Has [`Forwarder::wait`] poll for so long before it sleeps, where something was sent
    /// since the last wait; zero: not at all. At first it is the time of some wake-ups, and
    /// no less than any of the stacks was configured with, unless that is zero.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = Spin::new(spin);
    }

    /// Makes the kernel resolve the next hop to an address by an interface, so that it is
    /// known when something is to be sent there.
    pub fn resolve(&mut self, interface: usize, remote: IpAddr, local: IpAddr) {
        self.output.resolve(interface, remote, local);
    }

    /// From now on `stat` of the first interface's stack waits for
    /// [`Forwarder::answer_stat`], two seconds at most.
    pub fn begin_stat(&self) {
        if let Some(input) = self.inputs.first() {
            input.endpoint.status.set_answers(true);
        }
    }

    /// Answers a pending `stat` request with the snapshot of the switch from `make`. The
    /// caller calls it regularly. Without a request it costs next to nothing.
    pub fn answer_stat(&self, make: impl FnOnce() -> SwitchSnapshot) {
        if let Some(input) = self.inputs.first() {
            input.endpoint.status.answer(|| Answer::Segments(make()));
        }
    }

    /// As [`Forwarder::answer_stat`], for a cell switch.
    pub fn answer_stat_of_cells(&self, make: impl FnOnce() -> CellSwitchSnapshot) {
        if let Some(input) = self.inputs.first() {
            input.endpoint.status.answer(|| Answer::Cells(make()));
        }
    }

    /// Returns the sending side, for output that no segment has caused.
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }
}

/// Owns the channel; what is in it waits for [`Forwarder::receive`].
#[derive(Default)]
pub(crate) struct ForwardEndpoint {
    /// Segments that came through the kernel while polls were unknown.
    kernel_delivered: Mutex<Vec<(KernelDelivered, Vec<u8>)>, rank::Leaf>,
    status: Status,
}

impl ForwardEndpoint {
    /// Returns the switch's snapshot; `None` if there is no switch.
    fn status(&self) -> Option<Answer> {
        self.status.ask()
    }

    /// Takes a segment that came through the kernel. False: it is another's.
    fn take(&self, from: KernelDelivered, bytes: &[u8]) -> bool {
        if from.protocol != layout::Protocol::Tcp {
            return false;
        }
        let mut waiting = lock(&self.kernel_delivered);
        // The senders of any excess retransmit.
        if waiting.len() < KERNEL_DELIVERED {
            waiting.push((from, bytes.to_vec()));
        }
        true
    }

    fn has_waiting(&self) -> bool {
        !lock(&self.kernel_delivered).is_empty()
    }

    fn take_all(&self) -> Vec<(KernelDelivered, Vec<u8>)> {
        std::mem::take(&mut lock(&self.kernel_delivered))
    }
}

impl Endpoint for ForwardEndpoint {
    fn on_frames(self: Arc<Self>, _core: &Core, _channel: u16) {}
}

/// The protocol that forwards the frames of a stack, once a forwarder has them.
#[derive(Default)]
pub struct Forwarding(OnceLock<Arc<ForwardEndpoint>>);

impl Protocol for Forwarding {
    fn take_kernel_delivered(&self, _core: &Core, from: KernelDelivered, payload: &[u8]) -> bool {
        self.0.get().is_some_and(|it| it.take(from, payload))
    }

    fn describe(&self, _core: &Core, snapshot: &mut StackSnapshot) {
        match self.0.get().and_then(|it| it.status()) {
            Some(Answer::Segments(switch)) => snapshot.switch = Some(switch),
            Some(Answer::Cells(switch)) => snapshot.cell_switch = Some(switch),
            None => {}
        }
    }
}
