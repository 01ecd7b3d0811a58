//! The queues of a device: made for one application at a time. The manager then carries
//! out its privileged operations.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tidewall_device::afxdp::{self, Made, Prepared, Settings};
use tidewall_device::demux::TrustedTables;
use tidewall_device::demux::layout::QUEUES;
use tidewall_device::queue::InterruptModeration;
use zerocopy::FromZeros;

use super::closing::close_elsewhere;
use super::journal::Entry;
use super::order::Order;
use crate::domains::stock::{Maker, Stock};
use crate::input::KernelInput;
use crate::moderation::{FlushTimer, KNOBS};
use crate::protocol::{
    Answer, Empty, JOIN_WITHOUT_QUEUES, Join, MODERATION_BUSY_POLL, MODERATION_DEFER,
    MODERATION_ENABLED, MODERATION_NONE, Moderation, Probed, Request,
};
use crate::{Config, XdpMode};

/// Numbers of frames and ring entries that an application may request.
const SIZES: std::ops::RangeInclusive<u32> = 256..=65_536;

/// Number of frames and receive ring entries of an application.
///
/// # Errors
/// EINVAL if it requested a value out of range.
pub(super) fn sizes(join: &Join, interface: &str) -> io::Result<(u32, u32)> {
    let usual = Config::new(interface);
    let size = |asked, usual| match asked {
        0 => Ok(usual),
        asked if SIZES.contains(&asked) && u32::is_power_of_two(asked) => Ok(asked),
        _ => Err(invalid(format!(
            "frames and places of rings are powers of two, {} to {}",
            SIZES.start(),
            SIZES.end()
        ))),
    };
    Ok((
        size(join.frames, usual.frames)?,
        size(join.receive_ring, usual.receive_ring)?,
    ))
}

/// See the module's documentation.
pub(super) struct Queues {
    interface: String,
    /// The application that has them.
    application: Option<u16>,
    /// The prepared queues for the next application, and their number; set from the first
    /// application on.
    stock: Option<(u32, Stock<Prepared>)>,
    /// Queues of another size.
    order: Order<(u32, u32), Prepared>,
    /// The second of each queue's two sockets, beside its user's copy. The kernel closes
    /// the sockets of an exiting process one by one, and waits for RCU each time; with
    /// this copy it waits for both at once.
    held: Vec<OwnedFd>,
    /// Ports of helper sockets handed over since.
    given: HashSet<u16>,
    /// Set while an application has them and they defer interrupts.
    timer: Option<FlushTimer>,
    input: Option<KernelInput>,
}

impl fmt::Debug for Queues {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Queues")
            .field("application", &self.application)
            .finish_non_exhaustive()
    }
}

/// The device's deferral settings before an application had queues of it; `None` where
/// they cannot be read.
pub(super) type Before = [u64; 2];

impl Queues {
    /// The queues of an interface, which `application` may already have, with the
    /// settings recorded at that time.
    pub(super) fn new(
        interface: &str,
        index: u32,
        application: Option<u16>,
        before: Option<Before>,
    ) -> Self {
        Queues {
            interface: interface.to_owned(),
            application,
            stock: None,
            order: Order::NONE,
            held: Vec::new(),
            given: HashSet::new(),
            timer: before
                .and_then(|before| FlushTimer::open(interface, before.map(|it| it.to_string()))),
            input: KernelInput::load(index).ok(),
        }
    }

    /// Records the interface's new name.
    pub(super) fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.interface);
        // It makes queues by the name.
        self.stock = None;
    }

    /// How the device now defers interrupts.
    pub(super) fn settings(&self) -> Option<Before> {
        let read = |name: &str| {
            let text = fs::read_to_string(path(&self.interface, name)).ok()?;
            text.trim().parse().ok()
        };
        let [defer, timeout] = KNOBS.map(read);
        Some([defer?, timeout?])
    }

    /// Makes what an application has requested, on an interface that has `queues` queues
    /// and this MTU in bytes. [`Queues::refill`] replaces what is taken from the stock.
    ///
    /// # Errors
    /// EINVAL for a number other than all, and sizes out of range; EBUSY while another
    /// application has them, and for a moment after; as [`afxdp::make`].
    pub(super) fn make(
        &mut self,
        application: u16,
        join: &Join,
        mode: XdpMode,
        (queues, mtu): (u32, u32),
    ) -> io::Result<Vec<Made>> {
        if join.flags & JOIN_WITHOUT_QUEUES != 0 {
            return Ok(Vec::new());
        }
        let (frames, receive_ring) = sizes(join, &self.interface)?;
        let interface = self.interface.clone();
        let settings = Settings {
            interface: &interface,
            frames,
            receive_ring,
            copy: mode == XdpMode::Generic,
            wait: false,
            trusted: true,
        };
        if join.queues != 0 && join.queues != queues {
            return Err(invalid(format!(
                "{} has {queues} receive queues, and an application has all",
                self.interface
            )));
        }
        if queues > QUEUES as u32 {
            return Err(invalid(format!(
                "{0} has {queues} receive queues, at most {QUEUES} can be taken \
                 (see: ethtool -L {0} combined {QUEUES})",
                self.interface
            )));
        }
        if self.application.is_some_and(|other| other != application) {
            let text = format!("another application has the queues of {}", self.interface);
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        self.application = Some(application);
        let size = (frames, receive_ring);
        let is_usual = size == sizes(&Join::new_zeroed(), &self.interface)?;
        let ready = match is_usual {
            true => {
                let stock = self.stock(queues)?;
                let ready = stock.take_several(queues as usize);
                ready.ok_or_else(|| stock.not_ready("queues"))?
            }
            false => {
                let count = queues as usize;
                let interface = interface.clone();
                let maker = QueueMaker {
                    interface,
                    sizes: size,
                };
                let start = || Stock::start(count, maker);
                self.order.take(size, count, "queues", start)?
            }
        };
        let (mut made, mut left) = (Vec::new(), Vec::new());
        let mut failed = None;
        for (queue, prepared) in (0..).zip(ready) {
            if failed.is_some() {
                left.push(prepared);
                continue;
            }
            match prepared.make(&settings, queue, mtu) {
                Ok(one) => made.push(one),
                Err((error, unbound)) => {
                    failed = Some(error);
                    left.extend(unbound);
                }
            }
        }
        for prepared in left {
            match (&self.stock, is_usual) {
                (Some((_, stock)), true) => stock.put_back(prepared),
                _ => self.order.put_back(prepared),
            }
        }
        if failed.is_none() {
            self.order.clear();
        }
        self.all_or_none(made, failed)
    }

    /// The stock of the usual sizes that a thread makes, for this many queues.
    ///
    /// # Errors
    /// EAGAIN where no thread can be started.
    pub(super) fn stock(&mut self, queues: u32) -> io::Result<&Stock<Prepared>> {
        if self.stock.as_ref().is_none_or(|(of, _)| *of != queues) {
            let maker = QueueMaker {
                interface: self.interface.clone(),
                sizes: sizes(&Join::new_zeroed(), &self.interface)?,
            };
            self.stock = Some((queues, Stock::start(queues as usize, maker)?));
        }
        match &self.stock {
            Some((_, stock)) => Ok(stock),
            None => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }

    /// Makes a thread refill the stock.
    pub(super) fn refill(&self) {
        if let Some((_, stock)) = &self.stock {
            stock.refill();
        }
    }

    /// All queues of the device, whose second sockets are held from now on.
    fn all_or_none(&mut self, made: Vec<Made>, failed: Option<io::Error>) -> io::Result<Vec<Made>> {
        if let Some(error) = failed {
            close_elsewhere(made);
            return Err(error);
        }
        let second = made.iter().filter_map(Made::waiting_socket);
        // If no descriptor is left for one, its user's exit takes longer.
        self.held = second.flat_map(|one| one.try_clone_to_owned()).collect();
        Ok(made)
    }

    /// Makes the device, whose original settings are `before`, defer interrupts. If they
    /// cannot be set, interrupts are not deferred.
    pub(super) fn defer(&mut self, before: Before) {
        let set = |name: &str, value: &str| fs::write(path(&self.interface, name), value);
        let [defer, timeout] = KNOBS;
        if set(defer, "1").and_then(|()| set(timeout, "0")).is_ok() {
            self.timer = FlushTimer::open(&self.interface, before.map(|it| it.to_string()));
        }
    }

    /// Lends the device to a private application: it defers interrupts for the
    /// application; `before` are its original settings. Continues what an earlier process
    /// had begun.
    pub(super) fn lend(&mut self, application: u16, before: Option<Before>) {
        self.application = Some(application);
        let is_deferred = self.settings().is_some_and(|[defer, _]| defer == 1);
        if let Some(before) = before
            && !(is_deferred && self.timer.is_some())
        {
            self.defer(before);
        }
    }

    /// Ends the lending: interrupts are not deferred, so that a poll which prefers to
    /// leave it masked (SO_PREFER_BUSY_POLL) does not.
    ///
    /// # Errors
    /// Those of writing the settings.
    pub(super) fn take_back(&mut self) -> io::Result<()> {
        self.write([0; 2])?;
        self.given.clear();
        self.timer = None;
        self.application = None;
        Ok(())
    }

    /// Number of helper sockets handed over, beyond a queue's own.
    pub(super) fn given(&self) -> usize {
        self.given.len()
    }

    /// True for the port of one of these.
    pub(super) fn has_given(&self, port: u16) -> bool {
        self.given.contains(&port)
    }

    /// True if an application has them.
    pub(super) fn are_used(&self) -> bool {
        self.application.is_some()
    }

    /// True if this application has them; false if none has.
    pub(super) fn are_of(&self, application: u16) -> bool {
        self.application.is_none_or(|of| of == application)
    }

    /// Releases the queues and restores the device's settings.
    ///
    /// # Errors
    /// Those of writing the settings.
    pub(super) fn release(&mut self, before: Option<Before>) -> io::Result<()> {
        if let Some(before) = before {
            self.write(before)?;
        }
        self.given.clear();
        self.timer = None;
        self.application = None;
        if !self.held.is_empty() {
            close_elsewhere(std::mem::take(&mut self.held));
        }
        Ok(())
    }

    fn write(&self, settings: Before) -> io::Result<()> {
        // The timeout first: it ends current deferrals.
        for (name, value) in KNOBS.into_iter().zip(settings).rev() {
            match fs::write(path(&self.interface, name), value.to_string()) {
                // The interface is gone, or another has its name.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Answers requests about queues.
    ///
    /// # Errors
    /// EINVAL for queues that the application does not have; EOPNOTSUPP; what the kernel
    /// reports.
    pub(super) fn request(
        &mut self,
        application: u16,
        request: &Request,
        tables: &TrustedTables,
    ) -> io::Result<(Answer, Vec<OwnedFd>)> {
        if self.application != Some(application) {
            return Err(invalid("the application has no queues".to_owned()));
        }
        let mut descriptors = Vec::new();
        let mut answer = Answer::Done(Empty {});
        match request {
            Request::Moderation(moderation) => self.moderate(moderation)?,
            Request::Probe(probe) => tables.probe_napi(probe.queue, probe.port, probe.source),
            Request::GetProbe(of) => answer = Answer::Probed(probed(tables, of.queue)),
            Request::Input(input) => {
                let bytes = input.bytes.get(..input.length as usize);
                let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
                let input = self.input.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                input.receive(bytes)?;
            }
            Request::GetHelpers(_) => {
                let helpers = afxdp::helpers()?;
                for helper in &helpers {
                    self.given.insert(helper.local_addr()?.port());
                }
                descriptors.extend(helpers.map(OwnedFd::from));
                answer = Answer::Helpers(Empty {});
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok((answer, descriptors))
    }

    fn moderate(&self, moderation: &Moderation) -> io::Result<()> {
        let interval = Duration::from_nanos(moderation.interval);
        let moderation = match moderation.mode {
            MODERATION_ENABLED => Some(InterruptModeration::Enabled),
            MODERATION_DEFER => Some(InterruptModeration::DeferFor(interval)),
            MODERATION_BUSY_POLL => Some(InterruptModeration::BusyPoll),
            MODERATION_NONE => None,
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let timer = self.timer.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        timer.set_deferral(moderation.is_some());
        if let Some(moderation) = moderation {
            timer.set(moderation);
        }
        Ok(())
    }
}

/// Makes the parts of a queue for its next user.
struct QueueMaker {
    interface: String,
    sizes: (u32, u32),
}

impl Maker for QueueMaker {
    type Item = Prepared;

    fn make(&mut self) -> io::Result<Prepared> {
        let (frames, receive_ring) = self.sizes;
        let settings = Settings {
            interface: &self.interface,
            frames,
            receive_ring,
            copy: false,
            wait: false,
            trusted: true,
        };
        Prepared::new(&settings)
    }

    fn rest(&mut self, used: Vec<Prepared>) -> (Vec<Prepared>, Vec<Prepared>) {
        (Vec::new(), used)
    }

    /// They are closed after it.
    fn take_away(&mut self, _: &[Prepared]) -> io::Result<()> {
        Ok(())
    }
}

fn path(interface: &str, name: &str) -> String {
    format!("/sys/class/net/{interface}/{name}")
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn probed(tables: &TrustedTables, queue: u32) -> Probed {
    let probe = tables.napi_probe(queue);
    let segment = probe.is_some_and(|probe| probe.sequence.is_some());
    Probed {
        found: probe.is_some().into(),
        segment: segment.into(),
        neighbour: probe.map_or([0; 6], |probe| probe.neighbour.0),
        port: probe.map_or(0, |probe| probe.port),
        source: probe.map_or(0, |probe| probe.source),
        sequence: probe.and_then(|probe| probe.sequence).unwrap_or(0),
    }
}

/// The earlier settings, from the manager's own journal entry.
pub(super) fn noted(entry: &Entry) -> Option<Before> {
    (entry.deferral_noted != 0).then_some([entry.defer_hard_irqs, entry.flush_timeout])
}

/// Records them in the manager's own journal entry.
pub(super) fn note(entry: &mut Entry, before: Option<Before>) {
    let [defer, timeout] = before.unwrap_or_default();
    entry.deferral_noted = before.is_some().into();
    (entry.defer_hard_irqs, entry.flush_timeout) = (defer, timeout);
}
