//! Health checks: a thread that connects to each member, through the kernel.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::connect;

use super::config::Health;
use crate::bridge::{begun, is_connected, tcp_socket};

/// A member has died, or is alive again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub member: SocketAddr,
    pub alive: bool,
}

/// A member, and its number of failed attempts in a row.
struct Checked {
    member: SocketAddr,
    failed: u32,
}

impl Checked {
    const fn new(member: SocketAddr) -> Self {
        Self { member, failed: 0 }
    }
}

/// Ends its thread when dropped, within one check.
pub struct Checks {
    members: Arc<Mutex<Vec<Checked>>>,
    changes: Receiver<Change>,
}

impl Checks {
    /// Begins to check members, which count as alive at first.
    ///
    /// # Errors
    /// The error of creating a thread.
    pub fn begin(health: Health, members: Vec<SocketAddr>) -> std::io::Result<Self> {
        let members = members.into_iter().map(Checked::new).collect();
        let members = Arc::new(Mutex::new(members));
        let (sender, changes) = channel();
        let checked = Arc::downgrade(&members);
        std::thread::Builder::new()
            .name("tw-health".to_owned())
            .spawn(move || check(health, &checked, &sender))?;
        Ok(Checks { members, changes })
    }

    /// Replaces the members to check; new ones count as alive.
    pub fn set_members(&self, members: Vec<SocketAddr>) {
        let mut checked = lock(&self.members);
        checked.retain(|it| members.contains(&it.member));
        for member in members {
            if !checked.iter().any(|it| it.member == member) {
                checked.push(Checked::new(member));
            }
        }
    }

    /// Returns the changes since the last call.
    pub fn changes(&self) -> impl Iterator<Item = Change> {
        self.changes.try_iter()
    }
}

fn check(health: Health, members: &Weak<Mutex<Vec<Checked>>>, sender: &Sender<Change>) {
    while let Some(checked) = members.upgrade() {
        let addresses: Vec<_> = lock(&checked).iter().map(|it| it.member).collect();
        let begun = Instant::now();
        let answering = answering(&addresses, health.interval);
        for (member, answers) in addresses.into_iter().zip(answering) {
            let mut checked = lock(&checked);
            let Some(Checked { failed, .. }) = checked.iter_mut().find(|it| it.member == member)
            else {
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
        drop(checked);
        std::thread::sleep(health.interval.saturating_sub(begun.elapsed()));
    }
}

fn lock(members: &Mutex<Vec<Checked>>) -> MutexGuard<'_, Vec<Checked>> {
    members.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns which of these answer within a time limit; all are contacted at once.
fn answering(members: &[SocketAddr], limit: Duration) -> Vec<bool> {
    /// A connection attempt, and whether it succeeded.
    struct Attempt(Option<OwnedFd>, bool);
    let begun = Instant::now();
    let attempt = |member: &SocketAddr| Attempt(begin_connecting(*member).ok(), false);
    let mut attempts: Vec<_> = members.iter().map(attempt).collect();
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        let sockets = attempts.iter().filter_map(|it| it.0.as_ref());
        let poll_for = |socket| PollFd::new(socket, PollFlags::OUT);
        let mut polled: Vec<_> = sockets.map(poll_for).collect();
        let left = Timespec::try_from(left).unwrap_or_default();
        let ended = polled.is_empty()
            || match poll(&mut polled, Some(&left)) {
                Err(Errno::INTR) => false,
                other => other.is_ok_and(|count| count == 0) || other.is_err(),
            };
        if ended {
            return attempts.into_iter().map(|it| it.1).collect();
        }
        let ready: Vec<_> = polled.iter().map(|it| !it.revents().is_empty()).collect();
        let waiting = attempts.iter_mut().filter(|it| it.0.is_some());
        for (Attempt(socket, answers), _) in waiting.zip(ready).filter(|it| it.1) {
            let socket = socket.take();
            *answers = socket.is_some_and(|it| is_connected(it.as_fd()).unwrap_or(false));
        }
    }
}

fn begin_connecting(member: SocketAddr) -> std::io::Result<OwnedFd> {
    let socket = tcp_socket(member)?;
    begun(connect(&socket, &member))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Returns a listener with a full backlog: SYNs to it are dropped.
    fn silent() -> (TcpListener, Vec<OwnedFd>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        TcpStream::connect(address)
            .map(OwnedFd::from)
            .map(|first| {
                let rest = (0..2).map(|_| begin_connecting(address).unwrap());
                (listener, [first].into_iter().chain(rest).collect())
            })
            .unwrap()
    }

    #[test]
    fn all_are_waited_for_together() {
        let silent: Vec<_> = (0..6).map(|_| silent()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = |listener: &TcpListener| listener.local_addr().unwrap();
        let mut members: Vec<_> = silent.iter().map(|it| address(&it.0)).collect();
        members.extend([address(&listener), address(&gone)]);
        drop(gone);
        let limit = Duration::from_millis(500);
        let begun = Instant::now();
        let answers = answering(&members, limit);
        assert!(begun.elapsed() >= limit && begun.elapsed() < 6 * limit);
        let expected: Vec<_> = (0..8).map(|place| place == 6).collect();
        assert_eq!(answers, expected);
    }

    #[test]
    fn what_changes_is_said_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let member = listener.local_addr().unwrap();
        let health = Health {
            interval: Duration::from_millis(20),
            failures: 2,
        };
        let checks = Checks::begin(health, vec![member]).unwrap();
        drop(listener);
        let next = || {
            checks
                .changes
                .recv_timeout(Duration::from_secs(20))
                .unwrap()
        };
        let dead = Change {
            member,
            alive: false,
        };
        assert_eq!(next(), dead);
        // Its knowledge of the remaining members stays.
        checks.set_members(vec![member]);
        let _listener = TcpListener::bind(member).unwrap();
        let alive = Change {
            member,
            alive: true,
        };
        assert_eq!(next(), alive);
    }
}
