//! What the receiver of a queue asks of a manager in another process.

use std::io;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidewall_device::afxdp::Owner;
use tidewall_device::demux::NapiProbe;
use tidewall_device::queue::InterruptModeration;

use super::Client;

/// How often it is asked what has become of a NAPI probe: each answer takes a switch to
/// the manager and back.
const ASK_EVERY: Duration = Duration::from_millis(1);

/// The manager, as the receivers of an application's queues see it.
#[derive(Debug)]
pub(super) struct Manager {
    client: Arc<Client>,
    /// In private mode a thread of the kernel's polls the device, whose settings are
    /// nobody's to change.
    private: bool,
    /// What the device was set to last; `None`: interrupts are not deferred.
    moderation: Mutex<Option<InterruptModeration>>,
    /// When it was asked for a probe last.
    asked: Mutex<Option<Instant>>,
}

impl Manager {
    pub(super) fn new(client: Arc<Client>) -> Self {
        let private = client.joined().private != 0;
        // As it begins.
        let moderation = (!private).then_some(InterruptModeration::Enabled);
        Manager {
            client,
            private,
            moderation: Mutex::new(moderation),
            asked: Mutex::default(),
        }
    }
}

impl Owner for Manager {
    fn set_moderation(&self, moderation: InterruptModeration) -> bool {
        let mut set = self
            .moderation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if set.is_none() || *set == Some(moderation) {
            return false;
        }
        // Without a manager it stays as it is, which the next call finds.
        let done = self.client.moderate(Some(moderation)).is_ok();
        if done {
            *set = Some(moderation);
        }
        done
    }

    fn set_deferral(&self, deferred: bool) {
        let mut set = self
            .moderation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.private || set.is_some() == deferred {
            return;
        }
        let wanted = deferred.then_some(InterruptModeration::Enabled);
        if self.client.moderate(wanted).is_ok() {
            *set = wanted;
        }
    }

    fn probe_napi(&self, queue: u32, port: u16, source: u16) {
        if self.private {
            return;
        }
        // What is not asked for does not come, which the receiver notices.
        let _ = self.client.probe_napi(queue, port, source);
    }

    fn napi_probe(&self, queue: u32) -> Option<NapiProbe> {
        if self.private {
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
        if self.private {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.client.receive_in_kernel(datagram)
    }

    fn helpers(&self) -> io::Result<[UdpSocket; 2]> {
        self.client.helpers()
    }
}
