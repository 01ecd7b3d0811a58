//! Tests whether the kernel admits a NAPI probe.
//!
//! A probe is an owned datagram, and lost where source validation or a firewall drops it.
//! So the kernel first gets a datagram of no value that these cannot tell from a probe.
//! BPF_PROG_TEST_RUN with live frames (Linux 5.18) makes the kernel receive it as if it
//! had arrived on the interface.

use std::io;

use aya::Ebpf;
use aya::programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp};
use tidewall_device::demux::programs;

use crate::program::load;

/// The kernel's input path behind one interface.
pub(super) struct KernelInput {
    pass: Ebpf,
    interface: u32,
}

impl KernelInput {
    /// Loads the program that passes frames.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub(super) fn load(interface: u32) -> io::Result<Self> {
        let mut pass = load(programs::PASS).map_err(io::Error::other)?;
        let program: &mut Xdp = pass
            .program_mut("pass")
            .ok_or(io::ErrorKind::NotFound)?
            .try_into()
            .map_err(io::Error::other)?;
        program.load().map_err(io::Error::other)?;
        Ok(KernelInput { pass, interface })
    }

    /// Makes the kernel receive `frame`, usually before this returns.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN or CAP_BPF; ENODEV; what the kernel reports otherwise.
    pub(super) fn receive(&self, frame: &[u8]) -> io::Result<()> {
        let program: &Xdp = self
            .pass
            .program("pass")
            .ok_or(io::ErrorKind::NotFound)?
            .try_into()
            .map_err(io::Error::other)?;
        let length = u32::try_from(frame.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex,
        // rx_queue_index, egress_ifindex.
        let context: [u32; 6] = [0, length, 0, self.interface, 0, 0];
        let context: [u8; 24] = zerocopy::transmute!(context);
        program
            .test_run(TestRunOptions {
                data_in: Some(frame),
                ctx_in: Some(&context),
                attrs: TestRunAttrs::new().xdp_live_frames(1),
                ..TestRunOptions::new()
            })
            .map_err(io::Error::other)?;
        Ok(())
    }
}
