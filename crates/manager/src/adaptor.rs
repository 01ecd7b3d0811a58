//! Adaptors that demultiplex: they move a port to its own receive queue.
//!
//! [`Card`] uses a real card's n-tuple rules. [`SteeringVeth`] uses a stand-in for a
//! card, in tests and the laboratory. Both restore everything when they are dropped; the
//! restorer does if the process dies first.

use std::fmt;
use std::io;
use std::process::{Command, Stdio};

use crate::ethtool::{Filters, Narrowed, NtupleRule, Steering};
use crate::restore::{Restorer, Undo};
use tidewall_device::demux::layout::Protocol;

/// A device that can put a port's frames, and no others, on its last receive queue.
pub trait Adaptor: fmt::Debug + Send {
    /// Steers a port's frames to the last receive queue, `queue`. An earlier port is
    /// moved back first.
    ///
    /// # Errors
    /// `Unsupported` where the device cannot; what it reports otherwise. Nothing has
    /// changed then.
    fn steer(&mut self, flow: NtupleRule, queue: u32) -> io::Result<()>;

    /// Moves the port back, if there is one.
    fn put_back(&mut self);
}

/// A card, through its n-tuple rules and its hash's table. Rules alone would not do: the
/// hash puts ordinary flows on each queue, and the reserved one is polled last.
#[derive(Debug)]
pub struct Card {
    interface: String,
    restorer: Restorer,
    // Rules are removed before the switch that enables them, and before other flows use
    // their queue again.
    rule: Option<Steering>,
    narrowed: Option<Narrowed>,
    filters: Option<Filters>,
}

impl Card {
    /// Creates an adaptor for an interface of the caller's network namespace. Nothing is
    /// changed yet.
    pub fn new(interface: &str, restorer: &Restorer) -> Self {
        Card {
            interface: interface.to_owned(),
            restorer: restorer.clone(),
            rule: None,
            narrowed: None,
            filters: None,
        }
    }
}

impl Adaptor for Card {
    fn steer(&mut self, flow: NtupleRule, queue: u32) -> io::Result<()> {
        self.put_back();
        let (restorer, interface) = (&self.restorer, &self.interface);
        let filters = Filters::enable(restorer, interface)?;
        let narrowed = Narrowed::without_last(restorer, interface)?;
        self.rule = Some(Steering::add(restorer, interface, flow, queue)?);
        (self.narrowed, self.filters) = (Some(narrowed), Some(filters));
        Ok(())
    }

    fn put_back(&mut self) {
        self.rule = None;
        self.narrowed = None;
        self.filters = None;
    }
}

/// A veth whose other end picks the receive queue (`bpf/adaptor.bpf.c`). The device group
/// of that end is the rule table.
#[derive(Debug)]
pub struct SteeringVeth {
    namespace: String,
    peer: String,
    restorer: Restorer,
    rule: Option<Undo>,
}

impl SteeringVeth {
    /// `peer`: the other end, in the network namespace of that name, with the program
    /// already attached.
    pub fn new(namespace: &str, peer: &str, restorer: &Restorer) -> Self {
        SteeringVeth {
            namespace: namespace.to_owned(),
            peer: peer.to_owned(),
            restorer: restorer.clone(),
            rule: None,
        }
    }

    /// The command that sets the rule table.
    fn command(&self, rule: u32) -> [String; 3] {
        let (namespace, peer) = (&self.namespace, &self.peer);
        let script = format!("ip -n {namespace} link set dev {peer} group {rule}");
        ["/bin/sh".to_owned(), "-c".to_owned(), script]
    }
}

impl Adaptor for SteeringVeth {
    fn steer(&mut self, flow: NtupleRule, queue: u32) -> io::Result<()> {
        self.put_back();
        let none = self.command(0);
        let undo = self
            .restorer
            .on_exit_run(&none.each_ref().map(String::as_str))?;
        let protocol: u32 = match flow.protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        };
        let [program, arguments @ ..] =
            self.command(queue << 24 | protocol << 16 | u32::from(flow.port));
        let mut command = Command::new(program);
        let status = command.args(arguments).stdin(Stdio::null()).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("{}: {status}", self.peer)));
        }
        self.rule = Some(undo);
        Ok(())
    }

    fn put_back(&mut self) {
        // The restorer retries where this fails.
        self.rule = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_one_number() {
        let restorer = Restorer::start().unwrap();
        let veth = SteeringVeth::new("tw-b", "tw-peer", &restorer);
        assert_eq!(
            veth.command(1 << 24 | 17 << 16 | 9)[2],
            "ip -n tw-b link set dev tw-peer group 17891337"
        );
    }
}
