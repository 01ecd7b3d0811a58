//! XDP test runs with live frames: what reaches the peer of a veth is an
//! `xdp_frame` with no skb around it, as from a driver.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tidewall_sys::netlink::{Netdev, XDP_NDO_XMIT};

use super::{Sender, Sent, Sources, template};
use crate::neighbour::{LinkKind, Path};
use crate::spec::{BlastSpec, Content, SourceOrder};
use crate::template::Template;
use crate::xdp::{Redirect, Scatter};

/// Runs the redirecting program once a packet, a burst with one system call.
/// Sources of SYN segments are scattered by the program itself, frame by frame.
pub(super) struct FrameSender {
    program: Redirect,
    template: Template,
    bytes: Vec<u8>,
    sources: Sources,
    /// True when the source differs between bursts.
    rewrite: bool,
    /// Bits of the address's last four bytes that the program sets.
    scattered: u32,
}

impl FrameSender {
    pub(super) fn open(spec: &BlastSpec, path: &Path) -> io::Result<Self> {
        check_peer(path)?;
        let sources = Sources::new(spec, path);
        let template = template(spec, path, &sources)?;
        let by_frame = spec.content == Content::Syn && spec.order == SourceOrder::Scattered;
        let scatter = spec.spoof.filter(|_| by_frame).map(|prefix| Scatter {
            places: template.places(),
            mask: prefix.low_mask(),
        });
        let program = Redirect::new(path.link.index, scatter).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!(
                    "cannot prepare XDP frames: {error} (it needs CAP_BPF, CAP_NET_ADMIN and \
                     CAP_SYS_ADMIN)"
                ),
            )
        })?;
        Ok(FrameSender {
            program,
            bytes: template.frame().to_vec(),
            template,
            sources,
            rewrite: spec.spoof.is_some() || spec.flows > 1,
            scattered: scatter.map_or(0, |scatter| scatter.mask),
        })
    }
}

/// The address with these bits of its last four bytes cleared.
fn without(address: IpAddr, bits: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & !bits).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(bits)).into(),
    }
}

/// Redirection to an interface that transmits no XDP frames would fail without
/// a word.
fn check_peer(path: &Path) -> io::Result<()> {
    let name = &path.link.name;
    let features = Netdev::open().and_then(|mut netdev| netdev.xdp_features(path.link.index));
    match features.map(|features| features & XDP_NDO_XMIT != 0) {
        Ok(true) => Ok(()),
        Ok(false) if path.link.kind == LinkKind::Veth => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "the peer of {name} takes no XDP frames: attach XDP to it, or turn on GRO there \
                 with `ethtool -K PEER gro on`"
            ),
        )),
        Ok(false) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{name} transmits no XDP frames: use the skb or the socket sender"),
        )),
        // Linux before 6.3 cannot say; the interface's counters will.
        Err(_) => Ok(()),
    }
}

impl Sender for FrameSender {
    fn send(&mut self, count: u32) -> io::Result<Sent> {
        if self.rewrite {
            let source = self.sources.next();
            let address = without(source.ip(), self.scattered);
            self.template
                .set_source(&mut self.bytes, address, source.port());
        }
        match self.program.send(&self.bytes, count) {
            Ok(()) => Ok(Sent {
                sent: count.into(),
                ring_full: 0,
            }),
            // The pool of frames could not be made.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => Ok(Sent {
                sent: 0,
                ring_full: count.into(),
            }),
            // Interrupted after some of the frames; sending all again would
            // exceed the rate.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Sent {
                sent: count.into(),
                ring_full: 0,
            }),
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!("cannot run XDP on live frames: {error} (Linux 5.18 or later can)"),
            )),
        }
    }
}
