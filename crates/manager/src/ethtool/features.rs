//! Features that are switched off when an XDP program is attached (`ethtool -k`). Drivers
//! and the kernel disable features that merge frames, LRO and GRO in hardware. They do
//! not enable them again when the program is gone.

use std::io;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{Device, finish_undo};
use crate::restore::{Restorer, Undo};
use tidewall_sys::ethtool::{
    FEATURES_BYTES, GET_FEATURES, GET_FEATURES_BLOCK, SET_FEATURES, SET_FEATURES_BLOCK,
};

/// Room for blocks of 32 features; the kernel has two.
const BLOCKS: usize = 8;

/// `struct ethtool_get_features_block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Block {
    /// Those that can be changed.
    available: u32,
    /// Those requested, by a user or by default.
    requested: u32,
    active: u32,
    never_changed: u32,
}

/// `struct ethtool_gfeatures`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Reading {
    command: u32,
    size: u32,
    blocks: [Block; BLOCKS],
}

/// `struct ethtool_set_features_block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
struct Wish {
    /// Those to be changed.
    valid: u32,
    requested: u32,
}

const _: () = {
    assert!(size_of::<Block>() == GET_FEATURES_BLOCK);
    assert!(size_of::<Wish>() == SET_FEATURES_BLOCK);
    assert!(size_of::<Reading>() == FEATURES_BYTES + BLOCKS * GET_FEATURES_BLOCK);
};

/// An interface's original features. Those that [`Features::changed`] finds changed are
/// requested again when this is dropped, or when the process dies. Drop it after the
/// program is detached, which may be what keeps them off.
#[derive(Debug)]
#[must_use = "dropping it puts the features back at once"]
pub struct Features {
    device: Device,
    before: Vec<Block>,
    /// The request that restores them; empty while none have changed.
    request: Vec<u8>,
    undo: Option<Undo>,
    /// The process that found them changed. A forked copy must not restore them.
    owner: u32,
}

impl Features {
    /// Remembers the features of `interface`.
    ///
    /// # Errors
    /// `NotFound` for no such interface; `InvalidInput` for what cannot be an
    /// interface name.
    pub fn remember(interface: &str) -> io::Result<Features> {
        let device = Device::open(interface)?;
        let before = device.features()?;
        Ok(Features {
            device,
            before,
            request: Vec::new(),
            undo: None,
            owner: std::process::id(),
        })
    }

    /// Finds the features that have changed since, and registers their restoration. A
    /// crash in between leaves them.
    ///
    /// # Errors
    /// What querying the kernel and registering ([`Restorer::on_exit_write`]) report; an
    /// orderly end still restores the change.
    pub fn changed(&mut self, restorer: Option<&Restorer>) -> io::Result<()> {
        let wishes = wishes(&self.before, &self.device.features()?);
        if wishes.iter().all(|wish| wish.valid == 0) {
            return Ok(());
        }
        let header = [SET_FEATURES, wishes.len() as u32];
        self.request = [header.as_bytes(), wishes.as_bytes()].concat();
        self.undo = restorer
            .map(|restorer| restorer.on_exit_request(&self.device.name, &self.request))
            .transpose()?;
        Ok(())
    }
}

impl Drop for Features {
    fn drop(&mut self) {
        if !self.request.is_empty() && self.owner == std::process::id() {
            let undone = self.device.call_bytes(&mut self.request);
            finish_undo(self.undo.take(), &undone);
        }
    }
}

impl Device {
    fn features(&self) -> io::Result<Vec<Block>> {
        let mut reading = Reading::new_zeroed();
        reading.command = GET_FEATURES;
        reading.size = BLOCKS as u32;
        self.call(&mut reading)
            .map_err(|error| self.refused("reading its features (ethtool -k)", "", &error))?;
        let blocks = reading.blocks.get(..reading.size as usize);
        Ok(blocks.unwrap_or(&reading.blocks).to_vec())
    }
}

/// The request that restores changeable features which have changed, in the requested or
/// the active set, to their earlier request. The request makes the kernel activate what
/// is requested and not active.
fn wishes(before: &[Block], after: &[Block]) -> Vec<Wish> {
    let pairs = before.iter().zip(after);
    let wish = |(before, after): (&Block, &Block)| {
        let changed = (before.requested ^ after.requested) | (before.active ^ after.active);
        let valid = changed & before.available;
        Wish {
            valid,
            requested: before.requested & valid,
        }
    };
    pairs.map(wish).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(available: u32, requested: u32, active: u32) -> Block {
        Block {
            available,
            requested,
            active,
            never_changed: 0,
        }
    }

    #[test]
    fn what_was_switched_off_is_wanted_again() {
        const LRO: u32 = 1 << 15;
        let before = [block(LRO | 3, LRO | 1, LRO | 1), block(4, 0, 0)];
        let none = Wish {
            valid: 0,
            requested: 0,
        };
        assert_eq!(wishes(&before, &before), [none, none]);
        let lro = Wish {
            valid: LRO,
            requested: LRO,
        };
        // By a driver, which leaves it requested; by the kernel, which does not.
        for after in [block(LRO | 3, LRO | 1, 1), block(LRO | 3, 1, 1)] {
            assert_eq!(wishes(&before, &[after, before[1]]), [lro, none]);
        }
        // A feature that was switched on is switched off; one that cannot be changed is
        // left alone.
        let after = [block(LRO | 3, LRO | 3, LRO | 3), block(4, 0, 8)];
        let off = Wish {
            valid: 2,
            requested: 0,
        };
        assert_eq!(wishes(&before, &after), [off, none]);
    }
}
