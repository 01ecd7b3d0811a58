//! Ports, and the sockets that hold them.

use std::net::IpAddr;
use std::time::Duration;

use super::refusal::refused;
use super::{ClientId, Domain, Manager, Refusal, State};
use crate::daemon::Device;
use crate::daemon::ports::{HolderFacts, PortKey, Ports};
use crate::protocol::{Answer, Empty, Holder, Port, address, transport};

impl Manager {
    pub(super) fn own_port<D: Device>(
        &mut self,
        client: ClientId,
        port: &Port,
        holder: Option<&HolderFacts>,
        now: Duration,
        device: &mut D,
    ) -> Result<Answer, Refusal> {
        let number = self.joined(client)?;
        let Some(holder) = holder else {
            let text = "one descriptor goes beside it: the TCP or UDP socket that is bound there";
            return refused(libc::EBADF, text);
        };
        if !holder.here {
            let text = "the socket is in another network namespace than the manager";
            return refused(libc::EADDRNOTAVAIL, text);
        }
        let local = holder.local;
        let asked: IpAddr = address(port.address);
        if port.port == 0
            || port.port != local.port()
            || asked != local.ip().to_canonical()
            || transport(port.protocol) != Some(holder.protocol)
        {
            let text = format!("the socket is bound to {:?} {local}", holder.protocol);
            return refused(libc::EINVAL, text);
        }
        let granted = self.limits.ports.as_ref();
        if !self.limits.lease_ports.contains(&port.port)
            && granted.is_some_and(|granted| granted.iter().all(|of| !of.contains(&port.port)))
        {
            let text = format!("port {} is not among those of --ports", port.port);
            return refused(libc::EACCES, text);
        }
        let key = PortKey::of(holder.protocol, local);
        let owned = Answer::Owned(Holder {
            cookie: holder.cookie,
        });
        match self.ports.held_by(holder.cookie) {
            Some((held, of)) if held == key && of.application == number => return Ok(owned),
            Some((_, of)) if self.state(of.application) == Some(State::Live) => {
                let text = "the socket holds another port, or another application's";
                return refused(libc::EADDRINUSE, text);
            }
            _ => {}
        }
        if let Some(owner) = self.ports.get(&key)
            && owner.application != number
        {
            let abandoned = match self.state(owner.application) {
                Some(State::Live) => owner.holders == 0 && self.present_until.is_none(),
                Some(State::Awaited) => false,
                Some(State::Clearing) | None => true,
            };
            if !abandoned && !Ports::displaces(&owner, holder) {
                return refused(libc::EADDRINUSE, "another application has the port");
            }
        }
        if key.address.is_none() && self.block_owner(&key).is_some_and(|owner| owner != number) {
            let text = "the port is in a block that another application has leased";
            return refused(libc::EADDRINUSE, text);
        }
        let domain = self.application(number).map(|of| of.domain);
        if self.holders_of(domain) >= self.limits.holders_of_domain {
            return refused(libc::ENOBUFS, "too many ports of this user or unit");
        }
        if let Err(error) = device.own_port(&key, number) {
            // Which may have come half way.
            let ours = self.ports.get(&key);
            if !ours.is_some_and(|of| of.application == number && of.holders > 0) {
                self.ports.insert_unheld(key, number);
                self.retry(now);
            }
            return Err(error.into());
        }
        self.ports.hold(key, number, holder);
        Ok(owned)
    }

    pub(super) fn let_go<D: Device>(
        &mut self,
        client: ClientId,
        cookie: u64,
        now: Duration,
        device: &mut D,
    ) -> Result<Answer, Refusal> {
        let number = self.joined(client)?;
        match self.ports.held_by(cookie) {
            Some((key, owned)) if owned.application == number && self.ports.let_go(cookie) == 0 => {
                self.disown(key, number, now, device);
            }
            // Others hold it, or this one was displaced.
            _ => {}
        }
        Ok(Answer::Done(Empty {}))
    }

    /// Disowns a port that no socket of the application holds, unless it is leased.
    pub(super) fn disown<D: Device>(
        &mut self,
        key: PortKey,
        number: u16,
        now: Duration,
        device: &mut D,
    ) {
        if self.is_leased_to(&key, number) || device.disown_port(&key).is_ok() {
            self.ports.remove(&key);
        } else {
            self.ports.insert_unheld(key, number);
            self.retry(now);
        }
    }

    pub(super) fn disown_unheld<D: Device>(&mut self, now: Duration, device: &mut D) {
        let unheld: Vec<_> = self
            .ports
            .iter()
            .filter(|(_, owned)| owned.holders == 0)
            .collect();
        for (key, owned) in unheld {
            self.disown(key, owned.application, now, device);
        }
    }

    fn holders_of(&self, domain: Option<Domain>) -> usize {
        let domain_of = |number| self.application(number).map(|of| of.domain);
        let ports = self.ports.iter().map(|(_, owned)| owned);
        ports
            .filter(|owned| domain_of(owned.application) == domain)
            .map(|owned| owned.holders as usize)
            .sum()
    }
}
