//! Blocks of outgoing ports, and their lessees.

use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

use tidewall_device::demux::layout::Protocol;

use super::refusal::refused;
use super::{ClientId, Domain, Manager, PROTOCOLS, Refusal};
use crate::daemon::Device;
use crate::daemon::ports::PortKey;
use crate::protocol::{Answer, BLOCK_PORTS, Block, Blocks, Empty, Transport, transport};

/// Blocks that are tried for one lease, each by binding its ports.
const LEASE_TRIES: usize = 8;
/// Ports that are bound in vain for one lease before the next client has its turn. The
/// next lease continues with other blocks.
const LEASE_BINDS: u16 = 4 * BLOCK_PORTS;
/// Blocks of a protocol.
pub(super) const BLOCKS: usize = 65_536 / BLOCK_PORTS as usize;

/// Index of a protocol in state kept for both.
fn place(protocol: Protocol) -> usize {
    usize::from(protocol == Protocol::Tcp)
}

fn block_of(port: u16) -> usize {
    usize::from(port / BLOCK_PORTS)
}

fn bit(block: usize) -> (usize, u64) {
    (block / 64, 1 << (block % 64))
}

pub(super) fn contains(blocks: &Blocks, block: usize) -> bool {
    let (word, bit) = bit(block);
    blocks.get(word).is_some_and(|word| word & bit != 0)
}

fn set(blocks: &mut Blocks, block: usize, value: bool) {
    let (word, bit) = bit(block);
    if let Some(word) = blocks.get_mut(word) {
        *word = if value { *word | bit } else { *word & !bit };
    }
}

pub(super) fn count(blocks: &[Blocks; 2]) -> usize {
    let words = blocks.iter().flatten();
    words.map(|word| word.count_ones() as usize).sum()
}

impl Manager {
    pub(super) fn lease<D: Device>(
        &mut self,
        client: ClientId,
        of: &Transport,
        now: Duration,
        device: &mut D,
    ) -> Result<Answer, Refusal> {
        let number = self.joined(client)?;
        let Some(protocol) = transport(of.protocol) else {
            return refused(libc::EPROTONOSUPPORT, "neither TCP nor UDP");
        };
        let domain = self.application(number).map(|of| of.domain);
        let applications = self.applications.iter().flatten();
        let leased: usize = applications
            .filter(|other| Some(other.domain) == domain)
            .map(|other| count(&other.entry.leases))
            .sum();
        if leased >= self.limits.blocks_of_domain {
            return refused(
                libc::ENOBUFS,
                "too many blocks of ports of this user or unit",
            );
        }
        if !self.has_share(domain, protocol) {
            let text = "the blocks of ports that are left are other users'";
            return refused(libc::ENOBUFS, text);
        }
        let mut in_vain = 0;
        for block in self.lease_candidates(protocol) {
            let Some(ports) = self.ports_of(block).filter(|_| in_vain < LEASE_BINDS) else {
                continue;
            };
            self.next_block = block + 1;
            let mut all = self.all_blocks();
            set(&mut all, block, true);
            let held = device
                .reserve(&all)
                .and_then(|()| device.hold_block(protocol, ports.clone()));
            let granted = match held {
                Ok(None) => self.grant(number, protocol, block, now, device),
                Ok(Some(other)) => {
                    in_vain += other - ports.start() + 1;
                    device.release_block(protocol, ports);
                    // The block is not leased: this call records that, or the next
                    // block's does.
                    self.reserve_leased(now, device);
                    continue;
                }
                // Another manager, or the administrator, has reserved a port of it.
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => continue,
                Err(error) => Err(error),
            };
            if let Err(error) = granted {
                device.release_block(protocol, ports);
                self.reserve_leased(now, device);
                return Err(error.into());
            }
            return Ok(Answer::Leased(Block {
                first: *ports.start(),
                count: ports.end() - ports.start() + 1,
                protocol: protocol as u8,
                pad: [0; 3],
            }));
        }
        refused(libc::EADDRNOTAVAIL, "no block of ports is free")
    }

    /// Whether a domain may lease one more block of a protocol. It has at most as many as
    /// are left, and the last eighth of all is for domains that have none.
    fn has_share(&self, domain: Option<Domain>, protocol: Protocol) -> bool {
        let range = &self.limits.lease_ports;
        let owners = &self.blocks[place(protocol)];
        let all = owners.get(block_of(*range.start())..=block_of(*range.end()));
        let all = all.unwrap_or_default();
        let domain_of = |number: u16| self.application(number).map(|of| of.domain);
        let own = all.iter().flatten();
        let own = own.filter(|&&owner| domain_of(owner) == domain).count();
        let left = all.iter().filter(|owner| owner.is_none()).count();
        // A program's manager serves no other domain.
        own == 0 || self.limits.program.is_some() || (own <= left && left > all.len() / 8)
    }

    /// Owns a block's ports and records the lease, or does neither.
    fn grant<D: Device>(
        &mut self,
        number: u16,
        protocol: Protocol,
        block: usize,
        now: Duration,
        device: &mut D,
    ) -> io::Result<()> {
        let mut owned = Vec::new();
        let mut done = Ok(());
        for key in self.keys_of(protocol, block) {
            done = device.own_port(&key, number);
            // The one that failed may have completed half.
            owned.push(key);
            if done.is_err() {
                break;
            }
        }
        let done = done.and_then(|()| self.record_lease(number, protocol, block, true, device));
        if done.is_err() {
            for key in owned {
                self.disown(key, number, now, device);
            }
        }
        done
    }

    pub(super) fn return_lease<D: Device>(
        &mut self,
        client: ClientId,
        block: &Block,
        now: Duration,
        device: &mut D,
    ) -> Result<Answer, Refusal> {
        let number = self.joined(client)?;
        let index = block_of(block.first);
        let ours = transport(block.protocol).filter(|&protocol| {
            self.blocks[place(protocol)].get(index).copied().flatten() == Some(number)
        });
        let Some(protocol) = ours else {
            return refused(libc::EINVAL, "the application has no such block");
        };
        self.record_lease(number, protocol, index, false, device)?;
        for key in self.keys_of(protocol, index) {
            if self.ports.get(&key).is_none() {
                self.disown(key, number, now, device);
            }
        }
        if let Some(ports) = self.ports_of(index) {
            device.release_block(protocol, ports);
        }
        self.reserve_leased(now, device);
        Ok(Answer::Done(Empty {}))
    }

    fn record_lease<D: Device>(
        &mut self,
        number: u16,
        protocol: Protocol,
        block: usize,
        leased: bool,
        device: &mut D,
    ) -> io::Result<()> {
        let Some(application) = self.application_mut(number) else {
            return Ok(());
        };
        let mut entry = application.entry.clone();
        set(&mut entry.leases[place(protocol)], block, leased);
        device.record(number, &entry)?;
        application.entry = entry;
        if let Some(owner) = self.blocks[place(protocol)].get_mut(block) {
            *owner = leased.then_some(number);
        }
        Ok(())
    }

    /// Binds sockets to the ports of blocks that an earlier run leased. A port that
    /// another socket has taken meanwhile belongs to the kernel.
    pub(super) fn hold_recovered<D: Device>(&mut self, now: Duration, device: &mut D) {
        let owners = PROTOCOLS.into_iter().zip(&self.blocks);
        let leased = owners.flat_map(|(protocol, owners)| {
            let blocks = (0..).zip(owners).filter(|(_, owner)| owner.is_some());
            blocks.map(move |(block, _)| (protocol, block))
        });
        for (protocol, block) in leased.collect::<Vec<_>>() {
            let mut rest = self.ports_of(block);
            while let Some(ports) = rest.take() {
                let last = *ports.end();
                match device.hold_block(protocol, ports) {
                    Ok(None) => {}
                    Ok(Some(other)) => {
                        for key in PortKey::on_all(protocol, other) {
                            if device.disown_port(&key).is_err() {
                                self.retry(now);
                            }
                        }
                        rest = (other < last).then(|| other + 1..=last);
                    }
                    Err(_) => self.retry(now),
                }
            }
        }
    }

    /// Blocks that might be leased, least recently leased first.
    fn lease_candidates(&self, protocol: Protocol) -> Vec<usize> {
        let range = &self.limits.lease_ports;
        let (first, last) = (block_of(*range.start()), block_of(*range.end()));
        let mut used = [0; 4];
        for (key, _) in self
            .ports
            .iter()
            .filter(|(key, _)| key.protocol == protocol)
        {
            set(&mut used, block_of(key.port), true);
        }
        let start = self.next_block.clamp(first, last);
        (start..=last)
            .chain(first..start)
            .filter(|&block| {
                let owner = self.blocks[place(protocol)].get(block);
                owner.copied().flatten().is_none() && !contains(&used, block)
            })
            .take(LEASE_TRIES)
            .collect()
    }

    /// Ports of a block that may be leased.
    pub(super) fn ports_of(&self, block: usize) -> Option<RangeInclusive<u16>> {
        let range = &self.limits.lease_ports;
        let first = u16::try_from(block).ok()?.checked_mul(BLOCK_PORTS)?;
        let last = first + (BLOCK_PORTS - 1);
        let ports = (*range.start()).max(first).max(1)..=(*range.end()).min(last);
        (!ports.is_empty()).then_some(ports)
    }

    /// The same ports, on all addresses of each family.
    pub(super) fn keys_of(&self, protocol: Protocol, block: usize) -> Vec<PortKey> {
        let ports = self.ports_of(block).into_iter().flatten();
        ports
            .flat_map(|port| PortKey::on_all(protocol, port))
            .collect()
    }

    pub(super) fn all_blocks(&self) -> Blocks {
        let mut all = [0; 4];
        for application in self.applications.iter().flatten() {
            for blocks in &application.entry.leases {
                for (word, of) in all.iter_mut().zip(blocks) {
                    *word |= of;
                }
            }
        }
        all
    }

    pub(super) fn reserve_leased<D: Device>(&mut self, now: Duration, device: &mut D) {
        if device.reserve(&self.all_blocks()).is_err() {
            self.retry(now);
        }
    }

    pub(super) fn block_owner(&self, key: &PortKey) -> Option<u16> {
        let owners = &self.blocks[place(key.protocol)];
        let owner = owners.get(block_of(key.port)).copied().flatten();
        // A part of the block may be outside the lease range.
        owner.filter(|_| self.limits.lease_ports.contains(&key.port))
    }

    /// True for a port that an application owns without a holder.
    pub(super) fn is_leased_to(&self, key: &PortKey, application: u16) -> bool {
        key.is_on_all() && self.block_owner(key) == Some(application)
    }
}
