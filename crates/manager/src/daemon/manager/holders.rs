//! Ports, and the sockets that hold them.

use std::net::IpAddr;
use std::time::Duration;

use tidewall_device::demux::layout::Protocol;

use super::refusal::refused;
use super::{ClientId, Domain, Manager, Refusal, State};
use crate::daemon::Device;
use crate::daemon::ports::{Held, HolderFacts, PortKey, Proof};
use crate::protocol::{Answer, Empty, Holder, Port, address, transport};

/// How often to examine holders of private applications. Their owners have them, too, and
/// could connect them, bind them to an interface or set SO_REUSEADDR.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often to examine ports that another user could bind now: a closed listener still
/// has connections, or an earlier run of the daemon had the holder.
const LOOK_OFTEN: Duration = Duration::from_millis(100);

/// How long examining a holder may take: its owner can delay it.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

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
        let granted = granted.filter(|_| self.limits.program.is_some() || self.is_private(number));
        if !self.limits.lease_ports.contains(&port.port)
            && granted.is_some_and(|granted| !granted.contains(port.port))
        {
            let text = format!("port {} is not among those of --ports", port.port);
            return refused(libc::EACCES, text);
        }
        let keys = holder.keys();
        let owned = Answer::Owned(Holder {
            cookie: holder.cookie,
        });
        match self.ports.held_by(holder.cookie) {
            Some(held) if held.keys == keys && held.application == number => return Ok(owned),
            Some(_) => {
                let text = "the socket holds another port, or another application's";
                return refused(libc::EADDRINUSE, text);
            }
            None => {}
        }
        for key in &keys {
            self.may_have(key, number)?;
        }
        let domain = self.application(number).map(|of| of.domain);
        if self.holders_of(domain) >= self.limits.holders_of_domain {
            return refused(libc::ENOBUFS, "too many ports of this user or unit");
        }
        if self.ports.holders().count() >= self.limits.holders {
            return refused(libc::ENOBUFS, "too many ports of all users");
        }
        let is_shareable = self.prove(number, holder, &keys)?;
        // An application that may read any frame is trusted to have the socket.
        if self.is_private(number) {
            device.keep(holder.cookie)?;
        }
        for (done, key) in keys.iter().enumerate() {
            let Err(error) = device.own_port(key, number) else {
                continue;
            };
            // The last may have completed half.
            for &key in keys.iter().take(done + 1) {
                if self.ports.get(&key).is_none() {
                    self.disown(key, number, now, device);
                }
            }
            device.release(holder.cookie);
            return Err(error.into());
        }
        self.ports.hold(Held {
            application: number,
            keys,
            facts: *holder,
            is_shareable,
            looked_at: None,
        });
        self.look_in_time(now);
        Ok(owned)
    }

    /// Whether an application may have a port that a socket holds, as far as the manager
    /// knows of others that have it.
    fn may_have(&self, key: &PortKey, number: u16) -> Result<(), Refusal> {
        if let Some(owner) = self.ports.get(key)
            && owner.application != number
        {
            let abandoned = match self.state(owner.application) {
                Some(State::Live) => owner.holders == 0 && self.present_until.is_none(),
                Some(State::Awaited) => false,
                Some(State::Clearing) | None => true,
            };
            if !abandoned {
                return refused(libc::EADDRINUSE, "another application has the port");
            }
        }
        if key.is_on_all() && self.block_owner(key).is_some_and(|owner| owner != number) {
            let text = "the port is in a block that another application has leased";
            return refused(libc::EADDRINUSE, text);
        }
        Ok(())
    }

    /// Whether the kernel permits a port to belong to its holder alone. True if it does,
    /// but another user could bind a socket there.
    fn prove(&self, number: u16, holder: &HolderFacts, keys: &[PortKey]) -> Result<bool, Refusal> {
        match holder.proof {
            Proof::Alone => Ok(false),
            // A port that is already its own, kept as long as its connections need it.
            Proof::Shareable
                if keys.iter().all(|key| {
                    let owner = self.ports.get(key);
                    owner.is_some_and(|owner| owner.application == number)
                }) =>
            {
                Ok(true)
            }
            Proof::Shareable if holder.protocol == Protocol::Udp && !self.is_private(number) => {
                Ok(true)
            }
            Proof::Shareable => refused(
                libc::EADDRINUSE,
                "another user could bind a socket there: the socket has SO_REUSEADDR and does \
                 not listen",
            ),
            // It could see no more than the port's frames anyway.
            Proof::BesideConnections(_) if !self.is_private(number) => Ok(false),
            Proof::Beside(user) | Proof::BesideConnections(user) => {
                let text = format!("a socket of user {user} has the port, too");
                refused(libc::EADDRINUSE, text)
            }
            Proof::Connected => refused(
                libc::EINVAL,
                "the socket has a peer: a port is held by one that listens, or is only bound",
            ),
            Proof::OtherDevice => refused(
                libc::EINVAL,
                "the socket is bound to another interface (SO_BINDTODEVICE)",
            ),
            Proof::Unknown(errno) => refused(
                errno,
                "the kernel did not say which other sockets have the port (sock_diag(7))",
            ),
            Proof::NotLocal => refused(
                libc::EADDRNOTAVAIL,
                "the socket is not bound to an address of this host",
            ),
        }
    }

    pub(super) fn let_go<D: Device>(
        &mut self,
        client: ClientId,
        cookie: u64,
        now: Duration,
        device: &mut D,
    ) -> Result<Answer, Refusal> {
        let number = self.joined(client)?;
        let held = self.ports.held_by(cookie);
        if held.is_some_and(|held| held.application == number) {
            self.drop_holder(cookie, now, device);
        }
        // Otherwise the kernel reported that it no longer has the port.
        Ok(Answer::Done(Empty {}))
    }

    /// Removes a socket's ports, then the copy of the socket: in between no other process
    /// can bind one there.
    fn drop_holder<D: Device>(&mut self, cookie: u64, now: Duration, device: &mut D) {
        let number = self.ports.held_by(cookie).map(|held| held.application);
        for key in self.ports.let_go(cookie) {
            self.disown(key, number.unwrap_or(u16::MAX), now, device);
        }
        device.release(cookie);
    }

    /// Closes the copies of an application's holders, whose ports are disowned next.
    pub(super) fn release_holders<D: Device>(&mut self, number: u16, device: &mut D) {
        let holders = self.ports.holders();
        let of_application = holders.filter(|(_, held)| held.application == number);
        let cookies: Vec<u64> = of_application.map(|(cookie, _)| cookie).collect();
        for cookie in cookies {
            self.ports.let_go(cookie);
            device.release(cookie);
        }
    }

    /// Handles the kernel's report that a holder has changed, for example that it no
    /// longer listens.
    pub fn holder_changed<D: Device>(&mut self, cookie: u64, now: Duration, device: &mut D) {
        self.look_again(cookie, now, device);
    }

    /// Requests the examination of holders, and of ports without one, that are due.
    pub(super) fn look_at_holders<D: Device>(&mut self, now: Duration, device: &mut D) {
        let all = self.look_at_all.take_if(|at| now >= *at).is_some();
        self.look_often = None;
        let holders = self.ports.holders();
        let due = holders.filter(|(_, held)| all || held.is_shareable);
        let due: Vec<u64> = due.map(|(cookie, _)| cookie).collect();
        for cookie in due {
            self.look_again(cookie, now, device);
        }
        for (key, number) in self.unheld_private() {
            let user = self.application(number).map_or(0, |of| of.entry.uid);
            device.look_at_port(&key, user);
        }
        self.look_in_time(now);
    }

    fn unheld_private(&self) -> impl Iterator<Item = (PortKey, u16)> {
        let unheld = self.ports.iter().filter(|(_, owned)| owned.holders == 0);
        unheld
            .map(|(key, owned)| (key, owned.application))
            .filter(|(_, number)| self.is_private(*number))
    }

    fn look_again<D: Device>(&mut self, cookie: u64, now: Duration, device: &mut D) {
        let Some(held) = self.ports.held_by(cookie) else {
            return;
        };
        let Some(application) = self.application(held.application) else {
            return;
        };
        if application.entry.private == 0 {
            return;
        }
        let user = application.entry.uid;
        match held.looked_at {
            // Its owner blocks the examination, and so proves nothing.
            Some(since) if now >= since + SEEN_WITHIN => self.drop_holder(cookie, now, device),
            Some(_) => {}
            None => {
                if let Some(held) = self.ports.held_by_mut(cookie) {
                    held.looked_at = Some(now);
                }
                device.look_at(cookie, user);
            }
        }
    }

    /// Records the examination of a holder ([`Device::look_at`]): its current facts, if
    /// it is a bound socket.
    pub fn looked_at<D: Device>(
        &mut self,
        cookie: u64,
        facts: Option<&HolderFacts>,
        now: Duration,
        device: &mut D,
    ) {
        let Some(held) = self.ports.held_by_mut(cookie) else {
            return;
        };
        held.looked_at = None;
        let facts = facts.filter(|facts| facts.is_bound_as(&held.facts));
        match facts.map(|facts| facts.proof) {
            Some(Proof::Alone) => held.is_shareable = false,
            // A listener was closed, and its connections need the port.
            Some(Proof::Shareable) if held.facts.protocol == Protocol::Tcp => {
                held.is_shareable = true;
            }
            // It is examined again when it is due.
            Some(Proof::Unknown(_)) => {}
            _ => self.drop_holder(cookie, now, device),
        }
        self.look_in_time(now);
    }

    /// Records that a port without a holder was examined ([`Device::look_at_port`]), and
    /// that another user has a socket there.
    pub fn is_anothers<D: Device>(&mut self, key: &PortKey, now: Duration, device: &mut D) {
        if let Some(owned) = self.ports.get(key)
            && owned.holders == 0
        {
            self.disown(*key, owned.application, now, device);
        }
    }

    /// Sets when holders are examined next, if there are any.
    pub(super) fn look_in_time(&mut self, now: Duration) {
        let mut private = self.ports.holders();
        let private = private.any(|(_, held)| self.is_private(held.application));
        let loose = self
            .ports
            .holders()
            .any(|(_, held)| held.is_shareable && self.is_private(held.application))
            || self.unheld_private().next().is_some();
        self.look_at_all = private.then(|| self.look_at_all.unwrap_or(now + LOOK_EVERY));
        self.look_often = loose.then(|| self.look_often.unwrap_or(now + LOOK_OFTEN));
    }

    fn is_private(&self, number: u16) -> bool {
        let application = self.application(number);
        application.is_some_and(|of| of.entry.private != 0)
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
        let holders = self.ports.holders();
        holders
            .filter(|(_, held)| domain_of(held.application) == domain)
            .count()
    }
}
