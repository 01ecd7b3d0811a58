//! Circuits of applications: the signalling link, and notices about calls.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::epoll;
use tidewall_sys::monotonic;

use super::threads::Activity;
use super::{CIRCUITS, SIGNALLING, STRANGERS, Server};
use crate::connection::Connection;
use crate::daemon::Device;
use crate::daemon::circuits::{AtmConfig, SignallingLink};
use crate::daemon::manager::ClientId;
use crate::protocol::Answer;

/// Circuits of applications.
#[derive(Debug)]
pub(super) struct Atm {
    pub(super) link: SignallingLink,
    /// A PDU that waits for the next hop's link address.
    pub(super) unsent: Option<Vec<u8>>,
    /// Whether the loop waits for frames.
    listens: bool,
    /// The connections by which applications send call requests and receive notices.
    pub(super) notices: HashMap<u16, (ClientId, Arc<Connection>)>,
}

impl Server {
    /// Makes the interface an ATM one: applications may have circuits, and place and
    /// receive calls.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn set_atm(&mut self, config: AtmConfig) -> io::Result<()> {
        let link = SignallingLink::open(self.device.index(), config.next_hop)?;
        let [a, b, c, d, ..] = self.device.random()?;
        let seed = u32::from_ne_bytes([a, b, c, d]);
        self.manager.control_circuits(config, seed, monotonic());
        self.atm = Some(Atm {
            link,
            unsent: None,
            listens: false,
            notices: HashMap::new(),
        });
        Ok(())
    }

    /// Processes frames of the signalling link.
    pub(super) fn serve_signalling(&mut self) {
        let Some(atm) = &self.atm else { return };
        let (manager, device, now) = (&mut self.manager, &mut self.device, monotonic());
        (atm.link).receive(|pdu| manager.signalling_received(pdu, now, device));
    }

    /// Sends applications their notices, and the link its signalling PDUs.
    pub(super) fn follow_calls(&mut self) {
        let Some(atm) = &mut self.atm else { return };
        let mut silent = Vec::new();
        while let Some(notice) = self.manager.poll_call_notice() {
            let Some((client, connection)) = atm.notices.get(&notice.application) else {
                continue;
            };
            if let Some(threads) = &mut self.threads
                && !matches!(
                    notice.answer,
                    Answer::AtmIncoming(_) | Answer::AtmWithdrawn(_)
                )
            {
                threads.tell(notice, connection);
                continue;
            }
            let beside: Vec<_> = notice.beside.iter().map(AsFd::as_fd).collect();
            if connection.send(&notice.answer.emit(0), &beside).is_err() {
                silent.push(*client);
            }
        }
        if let Some(threads) = &mut self.threads {
            threads.keep(|application, call| self.manager.has_call(application, call));
        }
        let now = monotonic();
        loop {
            let next = atm.unsent.take();
            let Some(pdu) = next.or_else(|| self.manager.poll_signalling(now)) else {
                break;
            };
            if !atm.link.send(&pdu, now) {
                atm.unsent = Some(pdu);
                break;
            }
        }
        let listens = !self.manager.signalling_waits();
        if listens && !atm.listens {
            atm.listens = true;
            let thread = self.threads.as_ref().map(|threads| {
                let socket = atm.link.as_fd().try_clone_to_owned()?;
                threads.begin(Activity::Link(socket));
                Ok::<_, io::Error>(())
            });
            let data = epoll::EventData::new_u64(SIGNALLING);
            let socket = atm.link.as_fd();
            let watched = thread.unwrap_or_else(|| {
                let added = epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN);
                Ok(added?)
            });
            if let Err(error) = watched {
                self.warn("no-signalling", &error);
            }
        }
        // An application that does not read counts as gone.
        for client in silent {
            self.end(client);
        }
    }

    /// Creates the connection by which an application is notified of its calls.
    pub(super) fn attach(&mut self, client: ClientId) -> io::Result<Connection> {
        let application = self.manager.application_of(client);
        let atm = self.atm.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let (own, theirs) = Connection::pair()?;
        rustix::io::ioctl_fionbio(&own, true)?;
        let application = application.ok_or(io::ErrorKind::NotConnected)?;
        match &self.threads {
            Some(threads) => {
                let connection = own.as_fd().try_clone_to_owned()?;
                threads.begin(Activity::Circuits(client, connection));
            }
            None => {
                let data = epoll::EventData::new_u64(CIRCUITS | client);
                epoll::add(&self.epoll, own.as_fd(), data, epoll::EventFlags::IN)?;
            }
        }
        atm.notices.insert(application, (client, Arc::new(own)));
        Ok(theirs)
    }

    /// Takes one message from an application about its calls.
    pub(super) fn serve_circuits(&mut self, client: ClientId) {
        let application = self.manager.application_of(client);
        let atm = self.atm.as_ref();
        let notices = application.and_then(|number| atm?.notices.get(&number));
        let Some((_, connection)) = notices.filter(|(of, _)| *of == client) else {
            return;
        };
        let received = match connection.receive() {
            Ok(Some(received)) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            _ => return self.end(client),
        };
        let user = self.clients.get(&client).map_or(STRANGERS, |of| of.user);
        let passed = received.descriptors.into_iter();
        let passed: Vec<_> = passed.map(|it| self.foreign.own(user, it)).collect();
        let circuit = passed.into_iter().next();
        let (bytes, now) = (&received.bytes, monotonic());
        let said = (self.manager).said(client, bytes, circuit, now, &mut self.device);
        if let (Err(refusal), Some(peer)) = (said, self.manager.credentials_of(client)) {
            self.log_refused(peer, &refusal.answer());
        }
    }
}
