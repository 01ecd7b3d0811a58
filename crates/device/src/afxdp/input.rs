//! Whether the kernel lets in what a NAPI probe would be.
//!
//! A probe is an owned datagram, and lost where source validation or a firewall
//! drops it. So the kernel first gets a datagram of no value that differs from a
//! probe in nothing that these look at: BPF_PROG_TEST_RUN with live frames (Linux
//! 5.18) takes it as if the interface had received it.

use std::io;

use aya::programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use tidewall_wire::ethernet::{self, EtherType};
use tidewall_wire::udp::{Addresses, Checksum};
use tidewall_wire::{ipv4, ipv6, udp};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/pass.bpf.o"));

/// What a test datagram carries.
const CONTENT: [u8; 8] = *b"tidewall";

/// The kernel's input path behind one interface.
pub(super) struct KernelInput {
    pass: Ebpf,
    interface: u32,
}

impl KernelInput {
    /// Loads the program that passes frames.
    ///
    /// # Errors
    /// What the kernel reports.
    pub(super) fn load(interface: u32) -> io::Result<Self> {
        let mut pass = EbpfLoader::new()
            .btf(None)
            .load(OBJECT)
            .map_err(io::Error::other)?;
        let program: &mut Xdp = pass
            .program_mut("pass")
            .ok_or(io::ErrorKind::NotFound)?
            .try_into()
            .map_err(io::Error::other)?;
        program.load().map_err(io::Error::other)?;
        Ok(KernelInput { pass, interface })
    }

    /// Has the kernel take `frame` as received, most often before this returns.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN or CAP_BPF; ENODEV; what the kernel reports
    /// otherwise.
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

/// A UDP datagram from the sender of `frame` to its receiver, from port `source`
/// to port `port`. `None` for a frame that holds no IP datagram.
pub(super) fn datagram(frame: &[u8], source: u16, port: u16) -> Option<Vec<u8>> {
    let frame = ethernet::Frame::new(frame).ok()?;
    let length = udp::HEADER_LEN + CONTENT.len();
    let mut made = vec![0; ethernet::HEADER_LEN + ipv6::HEADER_LEN + length];
    let rest = ethernet::Header::of(&frame).emit(&mut made).ok()?;
    let (addresses, rest) = match frame.ethertype() {
        EtherType::IPV4 => {
            let packet = ipv4::Packet::new(frame.payload()).ok()?;
            let header = ipv4::Header {
                more_fragments: false,
                fragment_offset: ipv4::FragmentOffset::default(),
                protocol: tidewall_wire::Protocol::UDP,
                options: ipv4::Options::default(),
                ..ipv4::Header::of(&packet)
            };
            let rest = header.emit(length, rest).ok()?;
            (Addresses::V4(header.source, header.destination), rest)
        }
        EtherType::IPV6 => {
            let packet = ipv6::Packet::new(frame.payload()).ok()?;
            let header = ipv6::Header {
                next_header: tidewall_wire::Protocol::UDP,
                ..ipv6::Header::of(&packet)
            };
            let rest = header.emit(length, rest).ok()?;
            (Addresses::V6(header.source, header.destination), rest)
        }
        _ => return None,
    };
    let header = udp::Header {
        source_port: source,
        destination_port: port,
    };
    header
        .emit(addresses, &CONTENT, Checksum::Software, rest)
        .ok()?;
    let left = rest.len() - length;
    made.truncate(made.len() - left);
    Some(made)
}
