//! A queue receiver's requests to a manager in another process.

use std::collections::VecDeque;
use std::io;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidewall_device::afxdp::Owner;
use tidewall_device::demux::NapiProbe;
use tidewall_device::queue::InterruptModeration;

use super::link::is_gone;
use super::{Client, is_lent};

/// How often to ask about a NAPI probe: each answer takes a switch to the manager and
/// back.
const ASK_EVERY: Duration = Duration::from_millis(1);

/// Questions about moderation that may be unanswered at one time. A manager closes the
/// connection of an application that leaves more answers unread than its socket holds,
/// some hundreds.
const UNANSWERED_MOST: usize = 64;

/// The manager, as the receivers of an application's queues see it.
#[derive(Debug)]
pub(super) struct Manager {
    client: Arc<Client>,
    moderation: Mutex<Moderated>,
    /// The pending question about a NAPI probe, and its time.
    probe: Mutex<(Option<u32>, Option<Instant>)>,
    /// The pending question about helper sockets.
    helpers: Mutex<Option<u32>>,
}

/// The last setting of the device.
#[derive(Debug)]
struct Moderated {
    /// [`Client::lent`] then.
    lent: u32,
    /// `None`: interrupts are not deferred.
    to: Option<InterruptModeration>,
    /// Questions whose answers have not arrived, in order; the last one's answer confirms
    /// the setting.
    asked: VecDeque<u32>,
    /// It could not be requested, or the manager that was asked is gone.
    failed: bool,
}

impl Moderated {
    /// The initial state. While the device is not lent its settings may not be changed.
    fn new(lent: u32) -> Self {
        let to = is_lent(lent).then_some(InterruptModeration::Enabled);
        Moderated {
            lent,
            to,
            asked: VecDeque::new(),
            failed: false,
        }
    }

    /// Takes the answers that have arrived.
    fn take_answers(&mut self, client: &Client) {
        while let Some(&question) = self.asked.front()
            && let Some(answered) = client.moderated(question)
        {
            self.asked.pop_front();
            // A manager that refused will refuse again.
            self.failed = answered.is_err_and(|error| is_gone(&error));
        }
    }
}

impl Manager {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Manager {
            moderation: Mutex::new(Moderated::new(client.lent())),
            client,
            probe: Mutex::default(),
            helpers: Mutex::default(),
        }
    }

    fn moderation(&self) -> MutexGuard<'_, Moderated> {
        let mut set = lock(&self.moderation);
        let lent = self.client.lent();
        if set.lent != lent {
            let before = std::mem::replace(&mut *set, Moderated::new(lent));
            before
                .asked
                .into_iter()
                .for_each(|it| self.client.forget(it));
        }
        set
    }
}

impl Manager {
    /// Asks without waiting. A setting that cannot be requested now stays as it is; a
    /// later call finds that.
    fn moderate(&self, set: &mut Moderated, wanted: Option<InterruptModeration>) -> bool {
        set.take_answers(&self.client);
        if set.asked.len() >= UNANSWERED_MOST {
            set.failed = true;
            return false;
        }
        let asked = self.client.moderate(wanted);
        set.failed = asked.is_err();
        if let Ok(question) = asked {
            set.to = wanted;
            set.asked.push_back(question);
        }
        !set.failed
    }
}

impl Owner for Manager {
    fn lets_poll(&self) -> bool {
        is_lent(self.client.lent())
    }

    fn set_moderation(&self, moderation: InterruptModeration) -> bool {
        let mut set = self.moderation();
        let is_set = set.to == Some(moderation) && !set.failed;
        if set.to.is_none() || is_set {
            return false;
        }
        self.moderate(&mut set, Some(moderation))
    }

    fn set_deferral(&self, deferred: bool) -> bool {
        let mut set = self.moderation();
        if !self.lets_poll() || set.to.is_some() == deferred {
            return true;
        }
        let wanted = deferred.then_some(InterruptModeration::Enabled);
        self.moderate(&mut set, wanted)
    }

    fn moderation_lags(&self) -> bool {
        let mut set = self.moderation();
        set.take_answers(&self.client);
        if !set.asked.is_empty() {
            return true;
        }
        set.failed
    }

    fn probe_napi(&self, queue: u32, port: u16, source: u16) -> io::Result<()> {
        // A question to the last manager is not one to this manager.
        let question = lock(&self.probe).0.take();
        question.into_iter().for_each(|it| self.client.forget(it));
        match self.lets_poll() {
            true => self.client.probe_napi(queue, port, source),
            false => Ok(()),
        }
    }

    fn napi_probe(&self, queue: u32) -> Option<NapiProbe> {
        if !self.lets_poll() {
            return None;
        }
        let mut probe = lock(&self.probe);
        let (question, asked) = &mut *probe;
        if let Some(number) = *question {
            let found = self.client.napi_probe(number)?;
            *question = None;
            return found.ok().flatten();
        }
        let now = Instant::now();
        if asked.is_none_or(|at| now.duration_since(at) >= ASK_EVERY) {
            *question = self.client.ask_napi_probe(queue).ok();
            *asked = Some(now);
        }
        None
    }

    fn receive_in_kernel(&self, datagram: &[u8]) -> io::Result<()> {
        // A private application could claim any sender for it.
        if self.client.joined().private != 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.client.receive_in_kernel(datagram)
    }

    fn helpers(&self) -> io::Result<[UdpSocket; 2]> {
        let mut question = lock(&self.helpers);
        let number = match *question {
            Some(number) => number,
            None => *question.insert(self.client.ask_helpers()?),
        };
        let helpers = self.client.helpers(number);
        let helpers = helpers.ok_or(io::ErrorKind::WouldBlock)?;
        *question = None;
        helpers
    }
}

/// Locks a mutex that is held for moments only.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
