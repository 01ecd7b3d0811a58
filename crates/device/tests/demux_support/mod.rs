//! The corpus, the set-up for its frames, and a source of mutations; shared by the tests
//! of the demux.
#![allow(dead_code, reason = "each test uses a part")]

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tidewall_device::demux::layout::Class;
use tidewall_device::demux::layout::Protocol::{Tcp, Udp};
use tidewall_device::demux::{
    ChannelId, ClassLimit, CookieMode, CookieOffer, CookieParameters, Tables,
};
use tidewall_wire::atm::pseudowire::Label;
use tidewall_wire::ethernet::MacAddress;

pub mod outcome;
pub mod waits;

/// Key of the flow table in these tests.
pub const HASH_KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
/// Parameters of the cookies of these tests.
pub const COOKIES: CookieParameters = CookieParameters {
    key: *b"0123456789abcdef",
    epoch: Duration::from_nanos(123_456_789),
    mss: [1460, 1440],
    hop_limit: 64,
};
/// Channels that the set-up uses are below.
pub const CHANNELS_USED: u16 = 18;
/// Limit of a channel that soon is full.
pub const SMALL_LIMIT: u32 = 1;

/// A frame of the corpus.
#[derive(Clone, Debug)]
pub struct Sample {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// The checked-in corpus, in its order.
pub fn corpus() -> Vec<Sample> {
    let lines = include_str!("../corpus/frames.txt").lines();
    lines
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, digits) = line.split_once(' ').expect("name and bytes");
            let digits = if digits == "-" { "" } else { digits };
            let bytes = digits
                .as_bytes()
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
                .collect();
            Sample {
                name: name.to_owned(),
                bytes,
            }
        })
        .collect()
}

/// Link address of the device.
pub const LINK: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

/// Circuits that an application owns: open, without a channel, of an application without
/// tables, and with a channel that soon is full.
pub fn circuits() -> [(Label, u16); 4] {
    [(0x1_0064, 0), (0x1_0065, 0), (0x1_0066, 5), (0xf_ffff, 0)]
        .map(|(label, application)| (Label::new(label).unwrap(), application))
}

/// Share of the flow of channel 6.
pub const SHARE: u8 = 2;

/// Fills tables with the set-up that the corpus was written for.
pub fn set_up(tables: &Tables) {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let locals = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "fe80::1"].map(ip);
    tables.trusted.set_locals(&locals).unwrap();
    let channel = |index| ChannelId::new(index, 1000 + index);

    // Port 7: the common case.
    tables.trusted.own_port(Udp, None, 7, 0).unwrap();
    tables.embedded.listen(Udp, None, 7, channel(1)).unwrap();
    // Port 9: owned and listened to on one address of each family.
    for address in ["192.0.2.1", "2001:db8::1"].map(ip) {
        tables.trusted.own_port(Udp, Some(address), 9, 0).unwrap();
        tables
            .embedded
            .listen(Udp, Some(address), 9, channel(2))
            .unwrap();
    }
    // Port 11: a connected flow of each family beside a listener for IPv4 only.
    tables.trusted.own_port(Udp, None, 11, 0).unwrap();
    tables
        .embedded
        .listen(Udp, Some(ip("0.0.0.0")), 11, channel(4))
        .unwrap();
    for (local, remote) in [
        ("192.0.2.1:11", "198.51.100.1:1111"),
        ("[2001:db8::1]:11", "[2001:db8:1::9]:1111"),
    ] {
        let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
        tables
            .embedded
            .connect(Udp, local, remote, channel(3))
            .unwrap();
    }
    // Port 13: owned, without a listener.
    tables.trusted.own_port(Udp, None, 13, 0).unwrap();
    // Port 15: the channel is closed.
    tables.trusted.own_port(Udp, None, 15, 0).unwrap();
    tables.embedded.listen(Udp, None, 15, channel(7)).unwrap();
    // Port 17: an application without tables.
    tables.trusted.own_port(Udp, None, 17, 5).unwrap();
    // Port 19: a channel that soon is full.
    tables.trusted.own_port(Udp, None, 19, 0).unwrap();
    tables.embedded.listen(Udp, None, 19, channel(8)).unwrap();
    // TCP 80: any address and one connected flow, which may have a share; 81: one of two
    // addresses.
    tables.trusted.own_port(Tcp, None, 80, 0).unwrap();
    tables.embedded.listen(Tcp, None, 80, channel(5)).unwrap();
    let (local, remote) = ("[2001:db8::1]:80", "[2001:db8:1::9]:1111");
    tables
        .embedded
        .connect_sharing(
            Tcp,
            local.parse().unwrap(),
            remote.parse().unwrap(),
            channel(6),
            SHARE,
        )
        .unwrap();
    tables.trusted.own_port(Tcp, None, 81, 0).unwrap();
    tables
        .embedded
        .listen(Tcp, Some(ip("192.0.2.1")), 81, channel(9))
        .unwrap();

    // Strict ports. 90: one flow of each family; 91: cookies; 92: cookies on one
    // address; 93: cookies without options.
    let offer = CookieOffer {
        window: 65_535,
        window_scale: Some(7),
        timestamps: true,
        sack: true,
        ecn: true,
    };
    let plain = CookieOffer {
        window: 4096,
        window_scale: None,
        timestamps: false,
        sack: false,
        ecn: false,
    };
    for (port, address, offer, index) in [
        (90, None, offer, 11),
        (91, None, offer, 12),
        (92, Some(ip("192.0.2.1")), offer, 13),
        (93, None, plain, 14),
    ] {
        tables.trusted.own_port(Tcp, None, port, 0).unwrap();
        tables
            .embedded
            .listen_tcp(address, port, channel(index), &offer)
            .unwrap();
    }
    for (local, remote) in [
        ("192.0.2.1:90", "198.51.100.1:1111"),
        ("[2001:db8::1]:90", "[2001:db8:1::9]:1111"),
    ] {
        let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
        tables
            .embedded
            .connect(Tcp, local, remote, channel(15))
            .unwrap();
    }
    tables.embedded.set_cookie_parameters(&COOKIES);
    for port in [91, 92, 93] {
        tables
            .embedded
            .set_cookies(port, CookieMode::Answer)
            .unwrap();
    }
    // In the kernel its clock runs on; here it is set: unlimited.
    tables
        .trusted
        .set_class(0, Class::NoConnection, ClassLimit::NONE);

    tables.trusted.set_device(1, LINK, 1500);
    for (label, application) in circuits() {
        tables.trusted.own_circuit(label, application).unwrap();
    }
    for (place, index) in [(0, 16), (3, 17)] {
        let (label, _) = circuits()[place];
        tables.embedded.open_circuit(label, channel(index)).unwrap();
    }

    tables.embedded.set_fragment_channel(channel(10));
    for index in [1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15, 16] {
        tables.embedded.set_limit(0, index, u32::MAX);
    }
    for index in [8, 17] {
        tables.embedded.set_limit(0, index, SMALL_LIMIT);
    }
}

/// A small generator of repeatable numbers (xorshift64*).
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 32) as usize % bound.max(1)
    }
}

/// Changes a frame in one to four places, mostly in its headers.
pub fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    const EDGES: [u8; 12] = [0, 1, 4, 6, 7, 8, 0x11, 0x2c, 0x3a, 0x3c, 0x7f, 0xff];
    for _ in 0..1 + random.below(4) {
        if bytes.is_empty() {
            bytes.push(random.next() as u8);
        }
        let place = random.below(bytes.len().min(110));
        match random.below(8) {
            0 | 1 => bytes[place] ^= 1 << random.below(8),
            2 => bytes[place] = EDGES[random.below(EDGES.len())],
            3 => bytes[place] = random.next() as u8,
            // Length fields, near their correct values.
            4 => {
                let at = [16, 18, 38, 58][random.below(4)];
                if let Some(byte) = bytes.get_mut(at + 1) {
                    *byte = byte.wrapping_add(random.below(9) as u8).wrapping_sub(4);
                }
            }
            5 => bytes.truncate(bytes.len() - random.below(bytes.len())),
            6 => bytes.extend(std::iter::repeat_n(random.next() as u8, random.below(64))),
            // The end of another frame in the middle of this one.
            _ => {
                bytes.truncate(place);
                bytes.extend_from_slice(other.get(place..).unwrap_or_default());
            }
        }
    }
    bytes.truncate(2000);
}

/// An AF_XDP socket bound to nothing.
pub fn af_xdp() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(
        AddressFamily::XDP,
        SocketType::RAW,
        flags,
        None,
    )?)
}
