//! Whether members answer: a thread that connects to each, through the kernel.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use super::config::Health;

/// A member has died, or lives again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub member: SocketAddr,
    pub alive: bool,
}

/// Ends its thread when it is dropped, within one check.
pub struct Checks {
    members: Arc<Mutex<Vec<SocketAddr>>>,
    changes: Receiver<Change>,
}

impl Checks {
    /// Begins to check members, which count as alive.
    ///
    /// # Errors
    /// What making a thread reports.
    pub fn begin(health: Health, members: Vec<SocketAddr>) -> std::io::Result<Self> {
        let members = Arc::new(Mutex::new(members));
        let (sender, changes) = channel();
        let checked = Arc::downgrade(&members);
        std::thread::Builder::new()
            .name("tw-health".to_owned())
            .spawn(move || check(health, &checked, &sender))?;
        Ok(Checks { members, changes })
    }

    /// From now on these are checked; who was not before counts as alive.
    pub fn set_members(&self, members: Vec<SocketAddr>) {
        *self.members.lock().unwrap_or_else(PoisonError::into_inner) = members;
    }

    /// What has changed since the last call.
    pub fn changes(&self) -> impl Iterator<Item = Change> {
        self.changes.try_iter()
    }
}

fn check(health: Health, members: &Weak<Mutex<Vec<SocketAddr>>>, sender: &Sender<Change>) {
    let mut failures: Vec<(SocketAddr, u32)> = Vec::new();
    loop {
        let Some(members) = members.upgrade() else {
            return;
        };
        let members = members
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        failures.retain(|(member, _)| members.contains(member));
        let begun = Instant::now();
        for member in members {
            let answers = TcpStream::connect_timeout(&member, health.interval).is_ok();
            let place = failures.iter().position(|it| it.0 == member);
            let place = place.unwrap_or_else(|| {
                failures.push((member, 0));
                failures.len() - 1
            });
            let Some((_, failed)) = failures.get_mut(place) else {
                continue;
            };
            let before = *failed;
            *failed = if answers { 0 } else { before.saturating_add(1) };
            let was_alive = before < health.failures;
            let alive = *failed < health.failures;
            if alive != was_alive && sender.send(Change { member, alive }).is_err() {
                return;
            }
        }
        std::thread::sleep(health.interval.saturating_sub(begun.elapsed()));
    }
}
