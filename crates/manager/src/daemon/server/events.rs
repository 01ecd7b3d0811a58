//! The log entries.

use std::fmt::Display;
use std::io;

use tidewall_device::demux::layout::Sent;

use super::Server;
use crate::connection::Credentials;
use crate::daemon::direct::Parts;
use crate::daemon::log::Level;
use crate::daemon::manager::{ClientId, Reply};
use crate::protocol::{Answer, Counters, Joined, as_text};

impl Server {
    pub(super) fn warn(&mut self, event: &str, error: &io::Error) {
        self.log.write(Level::Warning, event, &[("error", error)]);
    }

    /// Reports the end of the loop.
    pub fn log_end(&mut self, ended: &io::Result<()>) {
        match ended {
            Ok(()) => self.log.write(Level::Info, "stopped", &[]),
            Err(error) => self.log.write(Level::Error, "failed", &[("error", error)]),
        }
    }

    /// Logs, by cause, frames that an ending private application sent without permission.
    pub(super) fn log_departures(&mut self, application: Option<u16>) {
        let Some(number) = application else {
            return;
        };
        let Ok(counts) = self.device.departures(number) else {
            return;
        };
        let refused: Vec<(&str, u64)> = Sent::ALL
            .into_iter()
            .zip(counts)
            .filter(|(cause, count)| *cause != Sent::Passed && *count > 0)
            .map(|(cause, count)| (cause.name(), count))
            .collect();
        if refused.is_empty() {
            return;
        }
        let mut values: Vec<(&str, &dyn Display)> = vec![("application", &number)];
        values.extend(refused.iter().map(|(name, count)| (*name, count as _)));
        self.log.write(Level::Warning, "frames-refused", &values);
    }

    pub(super) fn log_ended(&mut self, application: Option<u16>) {
        if let Some(number) = application {
            let values: [(&str, &dyn Display); 1] = [("application", &number)];
            self.log.write(Level::Info, "ended", &values);
        }
    }

    pub(super) fn log_reply(&mut self, client: ClientId, reply: &Reply<Parts>) {
        let Some(peer) = self.manager.credentials_of(client) else {
            return;
        };
        match reply {
            Reply::Joined(joined, _) => self.log_application("joined", peer, joined),
            Reply::Answer(Answer::Joined(joined), _) => {
                self.log_application("presented", peer, joined);
            }
            Reply::Answer(answer, _) => self.log_refused(peer, answer),
            Reply::Left | Reply::Attached(_) => {}
        }
    }

    pub(super) fn log_application(&mut self, event: &str, peer: Credentials, joined: &Joined) {
        let values: [(&str, &dyn Display); 4] = [
            ("application", &joined.application),
            ("user", &peer.uid),
            ("process", &peer.pid),
            ("queues", &joined.queues),
        ];
        self.log.write(Level::Info, event, &values);
    }

    /// Logs an answer that is a refusal.
    pub(super) fn log_refused(&mut self, peer: Credentials, answer: &Answer) {
        if let Answer::Error(failure) = answer {
            let text = as_text(&failure.text);
            let values: [(&str, &dyn Display); 4] = [
                ("user", &peer.uid),
                ("process", &peer.pid),
                ("errno", &failure.errno),
                ("text", &text),
            ];
            self.log.write_refused(&values);
        }
    }

    /// Logs the outcome of work that was due.
    pub(super) fn log_tick(&mut self, before: &Counters) {
        let now = self.manager.counters();
        if now.cleared > before.cleared {
            let count = now.cleared - before.cleared;
            let values: [(&str, &dyn Display); 1] = [("applications", &count)];
            self.log.write(Level::Info, "cleared", &values);
        }
        if now.retried > before.retried {
            self.log.write(Level::Warning, "tried-again", &[]);
        }
    }
}
