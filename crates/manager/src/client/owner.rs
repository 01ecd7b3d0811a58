//! What the receiver of a queue asks of a manager in another process.

use std::io;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidewall_device::afxdp::Owner;
use tidewall_device::demux::NapiProbe;
use tidewall_device::queue::InterruptModeration;

use super::{Client, is_lent};

/// How often it is asked what has become of a NAPI probe: each answer takes a switch to
/// the manager and back.
const ASK_EVERY: Duration = Duration::from_millis(1);

/// The manager, as the receivers of an application's queues see it.
#[derive(Debug)]
pub(super) struct Manager {
    client: Arc<Client>,
    moderation: Mutex<Moderated>,
    /// When it was asked for a probe last.
    asked: Mutex<Option<Instant>>,
}

/// How the device was set last.
#[derive(Debug)]
struct Moderated {
    /// [`Client::lent`] then.
    lent: u32,
    /// `None`: interrupts are not deferred.
    to: Option<InterruptModeration>,
}

impl Moderated {
    /// As it begins. While the device is not lent its settings are nobody's to change.
    fn new(lent: u32) -> Self {
        let to = is_lent(lent).then_some(InterruptModeration::Enabled);
        Moderated { lent, to }
    }
}

impl Manager {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Manager {
            moderation: Mutex::new(Moderated::new(client.lent())),
            client,
            asked: Mutex::default(),
        }
    }

    fn moderation(&self) -> MutexGuard<'_, Moderated> {
        let mut set = self
            .moderation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let lent = self.client.lent();
        if set.lent != lent {
            *set = Moderated::new(lent);
        }
        set
    }
}

impl Owner for Manager {
    fn lets_poll(&self) -> bool {
        is_lent(self.client.lent())
    }

    fn set_moderation(&self, moderation: InterruptModeration) -> bool {
        let mut set = self.moderation();
        if set.to.is_none() || set.to == Some(moderation) {
            return false;
        }
        // Without a manager it stays as it is, which the next call finds.
        let done = self.client.moderate(Some(moderation)).is_ok();
        if done {
            set.to = Some(moderation);
        }
        done
    }

    fn set_deferral(&self, deferred: bool) -> bool {
        let mut set = self.moderation();
        if !self.lets_poll() || set.to.is_some() == deferred {
            return true;
        }
        let wanted = deferred.then_some(InterruptModeration::Enabled);
        let done = self.client.moderate(wanted).is_ok();
        if done {
            set.to = wanted;
        }
        done
    }

    fn probe_napi(&self, queue: u32, port: u16, source: u16) -> io::Result<()> {
        match self.lets_poll() {
            true => self.client.probe_napi(queue, port, source),
            false => Ok(()),
        }
    }

    fn napi_probe(&self, queue: u32) -> Option<NapiProbe> {
        if !self.lets_poll() {
            return None;
        }
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if asked.is_some_and(|at| now.duration_since(at) < ASK_EVERY) {
            return None;
        }
        *asked = Some(now);
        self.client.napi_probe(queue).ok().flatten()
    }

    fn receive_in_kernel(&self, datagram: &[u8]) -> io::Result<()> {
        // A private application could say that it had come from anybody.
        if self.client.joined().private != 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.client.receive_in_kernel(datagram)
    }

    fn helpers(&self) -> io::Result<[UdpSocket; 2]> {
        self.client.helpers()
    }
}
