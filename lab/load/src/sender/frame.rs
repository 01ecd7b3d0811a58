//! XDP test runs with live frames: the peer of a veth receives an `xdp_frame` with no skb
//! around it, as from a driver.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tidewall_sys::netlink::{Netdev, XDP_NDO_XMIT};

use super::{Sender, Sent, Sources, template};
use crate::circuit;
use crate::neighbour::{LinkKind, Path};
use crate::spec::{BlastSpec, Content, SourceOrder, invalid};
use crate::template::Template;
use crate::xdp::{Redirect, Scatter};

/// Runs the redirecting program once per packet, and a burst with one system call. The
/// program itself scatters the sources of SYN segments, frame by frame.
pub(super) struct FrameSender {
    program: Redirect,
    bytes: Vec<u8>,
    /// Rewrites the source, if it differs between bursts.
    sources: Option<(Template, Sources)>,
    /// Bits of the address's last four bytes that the program sets.
    scattered: u32,
}

impl FrameSender {
    pub(super) fn open(spec: &BlastSpec, path: &Path) -> io::Result<Self> {
        check_peer(path)?;
        let sources = Sources::new(spec, path);
        if let Content::Pdus | Content::Cells = spec.content {
            let mut frames = circuit::frames(spec, path)?;
            let bytes = frames.pop().filter(|_| frames.is_empty());
            let bytes = bytes.ok_or_else(|| {
                invalid("a PDU of several frames does not leave as XDP frames: use the skb sender")
            })?;
            return Ok(FrameSender {
                program: redirect(path, None)?,
                bytes,
                sources: None,
                scattered: 0,
            });
        }
        let template = template(spec, path, &sources)?;
        let by_frame = spec.content == Content::Syn && spec.order == SourceOrder::Scattered;
        let scatter = spec.spoof.filter(|_| by_frame).map(|prefix| Scatter {
            places: template.places(),
            mask: prefix.low_mask(),
        });
        Ok(FrameSender {
            program: redirect(path, scatter)?,
            bytes: template.frame().to_vec(),
            sources: (spec.spoof.is_some() || spec.flows > 1).then_some((template, sources)),
            scattered: scatter.map_or(0, |scatter| scatter.mask),
        })
    }
}

fn redirect(path: &Path, scatter: Option<Scatter>) -> io::Result<Redirect> {
    Redirect::new(path.link.index, scatter).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!(
                "cannot prepare XDP frames: {error} (it needs CAP_BPF, CAP_NET_ADMIN and \
                 CAP_SYS_ADMIN)"
            ),
        )
    })
}

/// Returns the address with these bits of its last four bytes cleared.
fn without(address: IpAddr, bits: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & !bits).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(bits)).into(),
    }
}

/// Checks the peer: redirection to an interface that transmits no XDP frames would fail
/// silently.
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
        // Linux before 6.3 does not report it; the interface's counters will.
        Err(_) => Ok(()),
    }
}

impl Sender for FrameSender {
    fn send(&mut self, count: u32) -> io::Result<Sent> {
        if let Some((template, sources)) = &mut self.sources {
            let source = sources.next();
            let address = without(source.ip(), self.scattered);
            template.set_source(&mut self.bytes, address, source.port());
        }
        match self.program.send(&self.bytes, count) {
            Ok(()) => Ok(Sent {
                sent: count.into(),
                ring_full: 0,
            }),
            // The pool of frames could not be allocated.
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
