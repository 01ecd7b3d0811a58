//! The number of an interface's queues (`ethtool -l`).

use std::io;

use zerocopy::FromZeros;

use super::Device;
use super::layout::ChannelCounts;
use tidewall_sys::ethtool::GET_CHANNELS;

/// Queues of an interface as its driver counts them. Changing them is left to
/// the administrator (`ethtool -L`): many drivers take the link down for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Channels {
    /// Queues that only receive.
    pub receive_only: u32,
    /// Queues that only transmit.
    pub transmit_only: u32,
    /// Queues that do both with one interrupt.
    pub combined: u32,
    /// Maximum number of receive queues that could be configured, of either kind.
    pub receive_limit: u32,
    /// Maximum number of combined queues among those.
    pub combined_limit: u32,
}

impl Channels {
    /// Queries the driver of `interface`.
    ///
    /// # Errors
    /// `Unsupported` where the driver does not report them (the loopback device);
    /// `NotFound` for no such interface; `InvalidInput` for what cannot be an interface
    /// name.
    pub fn read(interface: &str) -> io::Result<Channels> {
        Self::of(&Device::open(interface)?)
    }

    pub(super) fn of(device: &Device) -> io::Result<Channels> {
        let mut counts = ChannelCounts::new_zeroed();
        counts.command = GET_CHANNELS;
        device
            .call(&mut counts)
            .map_err(|error| device.refused("reading its queues (ethtool -l)", "", &error))?;
        Ok(Channels {
            receive_only: counts.rx,
            transmit_only: counts.tx,
            combined: counts.combined,
            receive_limit: counts.max_rx.saturating_add(counts.max_combined),
            combined_limit: counts.max_combined,
        })
    }

    /// Receive queues, numbered from 0.
    pub fn receive(&self) -> u32 {
        self.receive_only.saturating_add(self.combined)
    }

    /// Transmit queues, numbered from 0.
    pub fn transmit(&self) -> u32 {
        self.transmit_only.saturating_add(self.combined)
    }
}
