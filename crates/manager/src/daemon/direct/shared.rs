//! A device that private applications share, and a thread of the kernel's polls.

use std::io;
use std::time::Duration;

use tidewall_device::afxdp::Made;
use tidewall_device::demux::layout::DEPARTURES;

use super::{DirectDevice, Private, private};
use crate::XdpMode;
use crate::domains::stock::StockCounters;
use crate::domains::threaded;
use crate::protocol::{JOIN_WITHOUT_QUEUES, Join, Status};

/// How long a device stays polled by threads after its last private application: a
/// successor mostly comes at once.
pub const LINGER: Duration = Duration::from_secs(5);

impl DirectDevice {
    /// Offers private mode: pairs are made ready from now on, by a thread.
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

    /// When [`DirectDevice::tick`] has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        self.switch_at
    }

    /// Has threads poll the device as soon as a private application is there, and no more
    /// when the last has been gone for [`LINGER`]. Not on the path of a request: each
    /// starts or ends threads of the kernel's. To be called after anything that changes
    /// applications; `now` is any clock's time.
    ///
    /// # Errors
    /// What switching reports. It is tried again after [`LINGER`], or when the interface has
    /// changed.
    pub fn tick(&mut self, now: Duration) -> io::Result<()> {
        let is_used = self.private.as_ref().is_some_and(Private::is_used);
        let (is_due, after) = match is_used {
            true => (!self.polled, Duration::ZERO),
            false => (private::noted(&self.own).is_some(), LINGER),
        };
        if !is_due {
            self.switch_at = None;
            return Ok(());
        }
        if now < *self.switch_at.get_or_insert(now + after) {
            return Ok(());
        }
        // Unless it succeeds.
        self.switch_at = Some(now + LINGER);
        if is_used {
            if private::noted(&self.own).is_none() {
                let before = threaded::read(&self.interface, self.index)?;
                self.note(|own| private::note(own, Some(before)))?;
            }
            threaded::set(&self.interface, self.index)?;
        } else {
            self.put_back_polling()?;
        }
        self.polled = is_used;
        self.switch_at = None;
        Ok(())
    }

    /// What became of the frames that a private application sent, by [`Sent`].
    ///
    /// # Errors
    /// What the kernel reports.
    ///
    /// [`Sent`]: tidewall_device::demux::layout::Sent
    pub fn departures(&self, application: u16) -> io::Result<[u64; DEPARTURES]> {
        self.program.departures(application)
    }

    /// The same of all that have sent something.
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

    /// What the stock of private pairs has counted; `None` without private mode.
    pub fn stock(&self) -> Option<StockCounters> {
        self.private.as_ref().map(Private::counters)
    }

    /// What a private application asked for. The queues are no longer polled by their
    /// receiver, but by a thread of the kernel's ([`DirectDevice::tick`]).
    pub(super) fn make_private(&mut self, application: u16, join: &Join) -> io::Result<Vec<Made>> {
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
        private.make(&mut self.program, application, join)
    }
}

/// Of queues that their application polls and those that a thread does.
pub(super) fn busy(interface: &str) -> io::Error {
    let text = format!(
        "{interface} is used in the other mode: either one trusted application has its queues, \
         or private ones share them"
    );
    io::Error::new(io::ErrorKind::ResourceBusy, text)
}
