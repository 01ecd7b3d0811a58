//! The SYN limit with which Linux is compared under a SYN flood.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use aya::{Ebpf, EbpfLoader};

use tidewall_device::demux::programs;
use tidewall_device::forked::Unshared;

use crate::XdpMode;
use crate::program::{attach, xdp_named};
use crate::refusal::describe;

/// A limit of SYNs to each TCP port in front of the kernel's own stack
/// (`bpf/syn_limit.bpf.c`), with which Linux is compared under a SYN flood. It ends when
/// this is dropped.
pub struct SynLimit {
    _link: Unshared<OwnedFd>,
    _loaded: Ebpf,
}

impl fmt::Debug for SynLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SynLimit").finish_non_exhaustive()
    }
}

impl SynLimit {
    /// Windows per second in which SYNs are counted.
    const WINDOWS: u32 = 100;
    const NAME: &str = "syn_limit";

    /// Passes `per_second` SYNs to a port, in multiples of a hundred, and drops the
    /// others in the driver of an interface of the caller's network namespace.
    ///
    /// # Errors
    /// As [`crate::Program::load`] and [`crate::Program::attach`].
    pub fn attach(interface: &str, per_second: u32) -> io::Result<Self> {
        let mut loaded = Self::load(per_second)?;
        let xdp = xdp_named(&mut loaded, Self::NAME)?;
        Ok(SynLimit {
            _link: attach(xdp, interface, XdpMode::Native)?,
            _loaded: loaded,
        })
    }

    fn load(per_second: u32) -> io::Result<Ebpf> {
        let limit = per_second.div_ceil(Self::WINDOWS);
        let mut loaded = EbpfLoader::new()
            .btf(None)
            .override_global("limit", &limit, true)
            .load(programs::SYN_LIMIT)
            .map_err(|error| describe("load the limit's maps", error))?;
        xdp_named(&mut loaded, Self::NAME)?
            .load()
            .map_err(|error| describe("load the limit", error))?;
        Ok(loaded)
    }
}

#[cfg(test)]
mod tests {
    use aya::programs::TestRun;
    use aya::programs::TestRunOptions;

    use super::*;

    #[test]
    fn syns_are_limited_by_port_and_nothing_else_is() {
        const PASS: u32 = 2;
        let mut loaded = match SynLimit::load(1_000) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let test = "syns_are_limited_by_port_and_nothing_else_is";
                return tidewall_skip::missing(test, error);
            }
            loaded => loaded.unwrap(),
        };
        let mut passed = |version: u8, port: u16, flags: u8, count: u32| {
            let mut frame = [0u8; 74];
            let segment = match version {
                4 => {
                    frame[12..14].copy_from_slice(&[8, 0]);
                    (frame[14], frame[23]) = (0x45, 6);
                    34
                }
                _ => {
                    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
                    frame[20] = 6;
                    54
                }
            };
            frame[segment + 2..segment + 4].copy_from_slice(&port.to_be_bytes());
            frame[segment + 13] = flags;
            let begun = std::time::Instant::now();
            let xdp = xdp_named(&mut loaded, SynLimit::NAME).unwrap();
            let passed = (0..count)
                .filter(|_| {
                    let options = TestRunOptions {
                        data_in: Some(&frame),
                        ..TestRunOptions::new()
                    };
                    xdp.test_run(options).unwrap().return_value == PASS
                })
                .count() as u32;
            // Ten per window, of which the first and the last may be partial.
            let windows = begun.elapsed().as_millis() as u32 / 10 + 2;
            (passed, 10 * windows)
        };
        const SYN: u8 = 0x02;
        const ACK: u8 = 0x10;
        for version in [4, 6] {
            let (syns, most) = passed(version, 80 + u16::from(version), SYN, 2_000);
            assert!((10..=most).contains(&syns), "{syns} of {most}");
            assert_eq!(passed(version, 90 + u16::from(version), SYN, 10).0, 10);
            for flags in [ACK, SYN | ACK] {
                assert_eq!(passed(version, 80 + u16::from(version), flags, 100).0, 100);
            }
        }
    }
}
