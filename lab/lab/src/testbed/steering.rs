//! A test bed whose device steers: the client's end of the veth selects the server's
//! receive queue, as a card would (`bpf/adaptor.bpf.c`).

use std::fs;

use anyhow::Context;
use tidewall_device::demux::programs;

use super::{CLIENT_INTERFACE, SERVER_INTERFACE, Testbed};
use crate::worker::scratch;

impl Testbed {
    /// Adds a second queue to the device and makes the client's end steer, or undoes
    /// both. The device must be unused. A test bed that is not steerable stays as it is.
    ///
    /// # Errors
    /// The errors of `ethtool` or `tc`; a test bed that is to steer and cannot.
    pub(crate) fn set_steering(&mut self, steers: bool) -> anyhow::Result<()> {
        anyhow::ensure!(
            !steers || self.config.steerable,
            "this experiment's test bed does not steer"
        );
        if steers == self.steers {
            return Ok(());
        }
        // The device's poll is bound again with its queues.
        self.forget_mode();
        self.set_queues(1 + u32::from(steers))?;
        if steers {
            let object = scratch("adaptor");
            fs::write(&object, programs::ADAPTOR).context("the program that steers")?;
            let attached = self.in_client_shell(&format!(
                "tc qdisc add dev {CLIENT_INTERFACE} clsact; \
                 tc filter add dev {CLIENT_INTERFACE} egress bpf da obj {} sec tc",
                object.display()
            ));
            let _ = fs::remove_file(&object);
            attached?;
        } else {
            self.in_client_shell(&format!("tc qdisc del dev {CLIENT_INTERFACE} clsact"))?;
        }
        self.steers = steers;
        Ok(())
    }

    pub(super) fn set_queues(&self, queues: u32) -> anyhow::Result<()> {
        self.in_client_shell(&format!(
            "ethtool -L {CLIENT_INTERFACE} rx {queues} tx {queues}"
        ))?;
        self.in_server_shell(&format!(
            "ethtool -L {SERVER_INTERFACE} rx {queues} tx {queues}"
        ))
    }
}
