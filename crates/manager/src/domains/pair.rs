//! Virtual pairs: created, recovered and deleted.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};
use tidewall_sys::interface;
use tidewall_sys::netlink::{Rtnetlink, VethPair};

use super::programs::PairPrograms;
use super::stock::Maker;

/// How long a request may take. One that deletes hundreds of pairs waits for all
/// processors, and for other processes that change interfaces.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Groups of pairs (ip-link(8)). Those of a device are in the group with this number plus
/// the device's; those about to be deleted are in the same group with this bit set.
const GROUP: u32 = 0x7477_0000;
const ENDED: u32 = 0x8000;
/// Number of the pair that is never handed over.
const KEEPER: u32 = 0;

/// A pair that is ready for a socket on its far end: the indices of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    /// The demultiplexer's end.
    pub near: u32,
    /// The application's end.
    pub far: u32,
}

/// Makes the pairs of one device, in the network namespace that it was made in.
#[derive(Debug)]
pub struct Pairs {
    netlink: Rtnetlink,
    programs: Arc<PairPrograms>,
    device: u32,
    mtu: u32,
    /// Number in the next pair's names.
    next: u32,
}

impl Pairs {
    /// Creates what all pairs of a device share. One pair that is never handed over keeps
    /// the programs in place, so that attaching them to another does not wait. Takes over
    /// the keeper that an earlier process has left.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN; EOPNOTSUPP where the kernel has no veth; what it
    /// reports. Nothing is left then.
    pub fn open(device: u32, mtu: u32, programs: Arc<PairPrograms>) -> io::Result<Self> {
        let mut pairs = Pairs {
            netlink: Rtnetlink::with_timeout(TIMEOUT)?,
            programs,
            device,
            mtu,
            next: KEEPER + 1,
        };
        let [near, _] = pairs.names(KEEPER);
        let found = pairs.found()?;
        if let Some(last) = found.iter().filter_map(|(_, number)| *number).max() {
            pairs.next = last + 1;
        }
        if interface::index(&near).is_err() {
            pairs.make_keeper()?;
        }
        Ok(pairs)
    }

    fn make_keeper(&mut self) -> io::Result<()> {
        let Some(keeper) = self.make_numbered(KEEPER)? else {
            return Ok(());
        };
        let added = self
            .netlink
            .add_block_filter(self.block(), self.programs.sent());
        match added {
            // Others are in use, with the filter.
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => {
                self.netlink.delete_link(keeper.near)?;
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// The group of the pairs, and the block of their filter.
    fn block(&self) -> u32 {
        GROUP | self.device & (ENDED - 1)
    }

    fn ended(&self) -> u32 {
        self.block() | ENDED
    }

    fn names(&self, number: u32) -> [String; 2] {
        // 15 bytes at most: both numbers have at most five hexadecimal digits in
        // practice.
        ["b", "c"].map(|end| format!("tw{:x}{end}{number:x}", self.device))
    }

    /// Existing near ends, with the numbers in their names.
    fn found(&mut self) -> io::Result<Vec<(u32, Option<u32>)>> {
        let prefix = format!("tw{:x}b", self.device);
        let block = self.block();
        let links = self.netlink.links_of_group(block)?;
        let numbered = links.into_iter().filter_map(|link| {
            let number = link.name.strip_prefix(&prefix)?;
            Some((link.index, u32::from_str_radix(number, 16).ok()))
        });
        Ok(numbered.collect())
    }

    /// Makes a pair.
    ///
    /// # Errors
    /// Those the kernel reports. Nothing is left then.
    pub fn make(&mut self) -> io::Result<Pair> {
        loop {
            let number = self.next;
            self.next += 1;
            if let Some(pair) = self.make_numbered(number)? {
                return Ok(pair);
            }
        }
    }

    /// `None` if another maker of this device's pairs has the number.
    fn make_numbered(&mut self, number: u32) -> io::Result<Option<Pair>> {
        let [near, far] = self.names(number);
        let made = self.netlink.make_veth(&VethPair {
            names: [&near, &far],
            group: self.block(),
            mtu: self.mtu,
        });
        match made {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => return Ok(None),
            made => made?,
        }
        let finished = self.finish(&near, &far);
        if finished.is_err()
            && let Ok(near) = interface::index(&near)
        {
            // Pairs that cannot be deleted now are deleted when the device is next
            // opened.
            let _ = self.netlink.delete_link(near);
        }
        finished.map(Some)
    }

    fn finish(&mut self, near: &str, far: &str) -> io::Result<Pair> {
        let pair = Pair {
            near: interface::index(near)?,
            far: interface::index(far)?,
        };
        for end in [pair.near, pair.far] {
            match self.netlink.set_no_address_generation(end) {
                Err(error) if error.raw_os_error() != Some(libc::EAFNOSUPPORT) => {
                    return Err(error);
                }
                _ => {}
            }
        }
        self.netlink.attach_xdp(pair.far, self.programs.to_xsk())?;
        // Before anything can come out of it.
        self.netlink.add_clsact(pair.near, self.block())?;
        self.netlink.set_up(pair.near, true, false)?;
        self.netlink.set_up(pair.far, true, false)?;
        Ok(pair)
    }

    /// Sets the MTU in bytes of pairs made from now on.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.mtu = mtu;
    }

    /// Waits for one RCU grace period: until then the kernel holds a closed socket.
    ///
    /// # Errors
    /// EINVAL where the kernel cannot report its end.
    pub fn rest() -> io::Result<()> {
        Ok(membarrier(MembarrierCommand::Global)?)
    }

    /// Deletes pairs, by their near ends, at once: singly, each would wait for all
    /// processors.
    ///
    /// # Errors
    /// Those the kernel reports; pairs that are already gone count as deleted.
    pub fn delete(&mut self, near: &[u32]) -> io::Result<()> {
        let ended = self.ended();
        for &near in near {
            match self.netlink.set_group(near, ended) {
                Err(error) if error.raw_os_error() != Some(libc::ENODEV) => return Err(error),
                _ => {}
            }
        }
        self.netlink.delete_group(ended)
    }

    /// Deletes all pairs except the keeper and those in `used`, by their near ends: what
    /// an earlier process left.
    ///
    /// # Errors
    /// As [`Pairs::delete`].
    pub fn delete_unused(&mut self, used: &[u32]) -> io::Result<()> {
        let found = self.found()?;
        let unused = found
            .into_iter()
            .filter(|(near, number)| *number != Some(KEEPER) && !used.contains(near));
        let unused: Vec<u32> = unused.map(|(near, _)| near).collect();
        self.delete(&unused)
    }

    /// Deletes every pair of a device, including the keeper.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn remove_all(device: u32) -> io::Result<()> {
        let mut netlink = Rtnetlink::with_timeout(TIMEOUT)?;
        let block = GROUP | device & (ENDED - 1);
        netlink.delete_group(block)?;
        netlink.delete_group(block | ENDED)
    }
}

impl Maker for Pairs {
    type Item = Pair;

    fn make(&mut self) -> io::Result<Pair> {
        Pairs::make(self)
    }

    fn rest(&mut self, used: Vec<Pair>) -> (Vec<Pair>, Vec<Pair>) {
        match Pairs::rest() {
            Ok(()) => (used, Vec::new()),
            // If the kernel cannot report the end of a grace period, none is reused.
            Err(_) => (Vec::new(), used),
        }
    }

    fn take_away(&mut self, ended: &[Pair]) -> io::Result<()> {
        let near: Vec<u32> = ended.iter().map(|pair| pair.near).collect();
        self.delete(&near)
    }
}
