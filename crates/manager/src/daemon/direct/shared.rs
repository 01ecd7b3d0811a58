//! A device that private applications share: an application that is alone polls it,
//! otherwise a kernel thread does.

use std::io;
use std::time::Duration;

use tidewall_device::afxdp::Made;
use tidewall_device::demux::layout::DEPARTURES;

use super::{DirectDevice, Private, Slots, private, queues};
use crate::XdpMode;
use crate::daemon::Payer;
use crate::daemon::handed::Id;
use crate::domains::stock::StockCounters;
use crate::domains::threaded;
use crate::protocol::{JOIN_WITHOUT_QUEUES, Join, Status};

/// How long a device stays polled by threads after its last private application: a
/// successor mostly joins at once.
pub const LINGER: Duration = Duration::from_secs(5);

/// Delay between a Join and the refilling of what it took. Refilling takes the processor
/// for some 15 ms that a program needs for its start. A Join before that time makes its
/// own at once.
const REFILL_AFTER: Duration = Duration::from_millis(200);

/// How long a private application must be alone before it is lent the device, which
/// interrupts until then. An application that ends sooner changes none of its settings.
const LEND_AFTER: Duration = Duration::from_millis(100);

/// Maximum number of helper sockets per queue for an application that is lent the device.
pub(super) const HELPERS_LENT: usize = 16;

/// How a device with private applications is to be polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polling {
    /// By this application, which is alone.
    Lent(u16),
    /// By a kernel thread for each queue.
    Threads,
    /// There is no private application.
    AsBefore,
}

impl DirectDevice {
    /// Offers private mode: from now on a thread prepares pairs.
    ///
    /// # Errors
    /// Unsupported where the program runs generically, or the kernel refused what private
    /// mode needs; what making pairs reports.
    pub fn offer_private(&mut self) -> io::Result<()> {
        if self.mode != XdpMode::Native {
            let text = "private mode needs the driver program in the driver: frames lose their \
                        metadata otherwise";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        if self.private.is_none() {
            let (_, mtu) = self.link();
            self.private = Some(Private::open(&self.program, &self.interface, mtu)?);
        }
        Ok(())
    }

    /// Does the parts of a Join that need not precede its answer. It refills what was
    /// taken. It makes the device defer interrupts, also for an application whose manager
    /// died before.
    fn follow_up(&mut self, now: Duration) -> io::Result<()> {
        if std::mem::take(&mut self.taken) {
            self.private.iter().for_each(Private::refill);
            self.refill_at.get_or_insert(now + REFILL_AFTER);
        }
        if self.refill_at.take_if(|at| *at <= now).is_some() {
            self.queues.refill();
            self.slots.iter().for_each(Slots::refill);
        }
        if self.queues.are_used()
            && self.lent.is_none()
            && queues::noted(&self.own).is_none()
            && let Some(before) = self.queues.settings()
        {
            self.note(|own| queues::note(own, Some(before)))?;
            self.queues.defer(before);
        }
        Ok(())
    }

    /// Time at which [`DirectDevice::tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        let switch_at = self.switch_at.map(|(_, at)| at);
        let close_at = self.kept.is_closing().then_some(Duration::ZERO);
        let all = [switch_at, self.refill_at, close_at, self.polls.deadline()];
        all.into_iter().flatten().min()
    }

    /// Makes the private application that is alone poll the device. As soon as there are
    /// more, threads poll it, and until [`LINGER`] after that. Must not be on the path of
    /// a request: each switch starts or ends kernel threads. Call it after every change
    /// of applications; `now` is any clock's time.
    ///
    /// # Errors
    /// Those of switching. It is retried after [`LINGER`], or when the interface has
    /// changed.
    pub fn tick(&mut self, now: Duration) -> io::Result<()> {
        self.kept.close_some();
        self.follow_up(now)?;
        let wanted = self.wanted_polling();
        let lingers = private::noted(&self.own).is_some();
        let (is_due, after) = match wanted {
            Polling::Threads => (!self.polled, Duration::ZERO),
            Polling::Lent(_) if self.lent.is_some() => (false, Duration::ZERO),
            Polling::Lent(_) if lingers => (true, LINGER),
            // An earlier process had lent it.
            Polling::Lent(_) if queues::noted(&self.own).is_some() => (true, Duration::ZERO),
            Polling::Lent(_) => (true, LEND_AFTER),
            Polling::AsBefore => (lingers, LINGER),
        };
        if !is_due {
            self.switch_at = None;
            return Ok(());
        }
        let pending = self.switch_at.filter(|(to, _)| *to == wanted);
        let at = pending.map_or(now + after, |(_, at)| at);
        self.switch_at = Some((wanted, at));
        if now < at {
            return Ok(());
        }
        // Unless it succeeds.
        self.switch_at = Some((wanted, now + LINGER));
        match wanted {
            Polling::Threads => {
                if queues::noted(&self.own).is_some() {
                    self.queues.take_back()?;
                }
                if self.lent.is_some() {
                    // Left from a Join that did not complete.
                    self.forget_lent();
                }
                if private::noted(&self.own).is_none() {
                    let before = threaded::read(&self.interface, self.index)?;
                    self.note(|own| private::note(own, Some(before)))?;
                }
                threaded::set(&self.interface, self.index)?;
                let tables = self.program.trusted();
                self.polls.begin(&self.interface, self.index, tables, now);
            }
            Polling::Lent(application) => {
                self.put_back_polling()?;
                self.end_polls();
                self.polled = false;
                if queues::noted(&self.own).is_none()
                    && let Some(before) = self.queues.settings()
                {
                    self.note(|own| queues::note(own, Some(before)))?;
                }
                self.queues.lend(application, queues::noted(&self.own));
                self.lends = self.lends.wrapping_add(1);
                self.lent = Some(application);
            }
            Polling::AsBefore => {
                self.put_back_polling()?;
                self.end_polls();
            }
        }
        self.polled = wanted == Polling::Threads;
        self.switch_at = None;
        Ok(())
    }

    fn end_polls(&mut self) {
        let queues = self.queue_count();
        self.polls.end(self.program.trusted(), queues);
    }

    /// Whether [`DirectDevice::charge`] has something to do.
    pub(in crate::daemon) fn is_charging_due(&self, now: Duration) -> bool {
        self.polls.deadline().is_some_and(|at| at <= now)
    }

    /// Charges applications for the time of the threads that poll the device, and bounds
    /// the frames that pass to them.
    pub(in crate::daemon) fn charge(&mut self, payers: &[Payer], now: Duration) {
        let queues = self.queue_count();
        let tables = self.program.trusted();
        self.polls.look(tables, queues, payers, now);
    }

    fn wanted_polling(&self) -> Polling {
        let Some(private) = self.private.as_ref().filter(|private| private.is_used()) else {
            return Polling::AsBefore;
        };
        match private.only_user() {
            // An application without queues has ports, whose frames another's probe could
            // be made of.
            Some(application) if self.present.len() == 1 => Polling::Lent(application),
            _ => Polling::Threads,
        }
    }

    /// The private application that may poll the device, and how often it was lent. An
    /// application that is lent it again finds none of its earlier settings.
    pub fn lent(&self) -> Option<(u16, u32)> {
        self.lent.map(|application| (application, self.lends))
    }

    /// Takes the device back from the application that polls it, before another
    /// application uses it to receive frames. From now on its polls leave nothing masked,
    /// whether it knows or not.
    pub(super) fn take_back(&mut self) -> io::Result<()> {
        if self.lent.is_none() {
            return Ok(());
        }
        self.queues.take_back()?;
        self.forget_lent();
        Ok(())
    }

    pub(super) fn forget_lent(&mut self) {
        self.lent = None;
        for queue in 0..self.queue_count() {
            self.program.trusted().probe_napi(queue, 0, 0);
        }
    }

    /// Frames that a private application sent, by outcome ([`Sent`]).
    ///
    /// # Errors
    /// Those the kernel reports.
    ///
    /// [`Sent`]: tidewall_device::demux::layout::Sent
    pub fn departures(&self, application: u16) -> io::Result<[u64; DEPARTURES]> {
        self.program.departures(application)
    }

    /// The same for all applications that have sent frames.
    pub(in crate::daemon) fn all_departures(
        &self,
        applications: impl Iterator<Item = Status>,
    ) -> Vec<(u32, [u64; DEPARTURES])> {
        applications
            .filter_map(|of| {
                let counts = self.departures(of.application as u16).ok()?;
                let has_sent = counts.iter().any(|&count| count > 0);
                has_sent.then_some((of.application, counts))
            })
            .collect()
    }

    /// Counters of the stock of private pairs; `None` without private mode.
    pub fn stock(&self) -> Option<StockCounters> {
        self.private.as_ref().map(Private::counters)
    }

    /// Makes what a private application requested.
    pub(super) fn make_private(
        &mut self,
        application: u16,
        join: &Join,
        id: Id,
    ) -> io::Result<Vec<Made>> {
        self.take_back()?;
        if join.flags & JOIN_WITHOUT_QUEUES != 0 {
            return Ok(Vec::new());
        }
        if self.queues.are_used() {
            return Err(busy(&self.interface));
        }
        let Some(private) = &mut self.private else {
            let text = "no private mode here: tidewalld --private";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        };
        let share = self.handed.share(id);
        private.make(&mut self.program, application, join, &share)
    }
}

/// Error for a device already in the other mode: queues that their application polls, or
/// queues that a thread polls.
pub(super) fn busy(interface: &str) -> io::Error {
    let text = format!(
        "{interface} is used in the other mode: either one trusted application has its queues, \
         or private ones share them"
    );
    io::Error::new(io::ErrorKind::ResourceBusy, text)
}
