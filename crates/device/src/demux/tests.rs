//! Tests of the tables and of what the corpus cannot show.

use std::net::{IpAddr, SocketAddr};

use super::layout::Protocol::{Tcp, Udp};
use super::layout::{
    APPLICATIONS, CHANNELS, Class, Counter, FRAGMENTS, Kind, LISTEN_CONNECTED, LISTEN_LOCAL,
    LOCALS, OWNERS, QUEUES, QUIET,
};
use super::*;

const LOCAL: &str = "192.0.2.1";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn end(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Tables of a host with one address.
fn tables() -> Tables {
    let tables = Tables::in_memory().unwrap();
    tables.trusted.set_locals(&[ip(LOCAL)]).unwrap();
    tables
}

/// A UDP datagram in an Ethernet frame.
fn datagram(source: &str, destination: &str) -> Vec<u8> {
    let (source, destination) = (end(source), end(destination));
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    match source.is_ipv4() {
        true => frame.extend([8, 0, 0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0]),
        false => frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 12, 17, 64]),
    }
    for address in [source.ip(), destination.ip()] {
        match address {
            IpAddr::V4(address) => frame.extend(address.octets()),
            IpAddr::V6(address) => frame.extend(address.octets()),
        }
    }
    frame.extend(source.port().to_be_bytes());
    frame.extend(destination.port().to_be_bytes());
    frame.extend([0, 12, 0, 0]);
    frame.extend(b"data");
    frame
}

fn drive_to(tables: &Tables, source: &str, destination: &str) -> Verdict {
    drive(tables, 0, &mut datagram(source, destination), 0)
}

fn channel_of(verdict: Verdict) -> u16 {
    match verdict {
        Verdict::Channel(metadata) => metadata.channel_id().index(),
        other => panic!("{other:?}"),
    }
}

/// Opens a channel without a limit.
fn open(tables: &Tables, index: u16) -> ChannelId {
    tables.embedded.set_limit(0, index, u32::MAX);
    ChannelId::new(index, 1)
}

#[test]
fn a_port_is_the_kernels_until_owned_and_again_after() {
    let tables = tables();
    let one = open(&tables, 1);
    let unowned = Verdict::Kernel { class: Class::Udp };
    assert_eq!(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7"), unowned);
    tables.trusted.own_port(Udp, None, 7, 0).unwrap();
    // Owned, but without a listener yet.
    assert_eq!(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7"), unowned);
    tables.embedded.listen(Udp, None, 7, one).unwrap();
    assert_eq!(
        channel_of(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7")),
        1
    );
    tables.embedded.unlisten(Udp, None, 7);
    assert_eq!(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7"), unowned);
    tables.embedded.listen(Udp, None, 7, one).unwrap();
    tables.trusted.disown_port(Udp, None, 7).unwrap();
    assert_eq!(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7"), unowned);
    assert_eq!(tables.trusted.counter(0, Counter::Unowned), 4);
    assert_eq!(
        tables.trusted.class(0, Class::Udp),
        ClassCounts {
            passed: 4,
            dropped: 0
        }
    );
}

#[test]
fn an_unspecified_address_listens_for_its_own_family() {
    let tables = tables();
    let six = "2001:db8::1";
    tables.trusted.set_locals(&[ip(LOCAL), ip(six)]).unwrap();
    let (four, both) = (open(&tables, 1), open(&tables, 2));
    tables.trusted.own_port(Udp, None, 7, 0).unwrap();
    tables.embedded.listen(Udp, None, 7, both).unwrap();
    tables
        .embedded
        .listen(Udp, Some(ip("0.0.0.0")), 7, four)
        .unwrap();
    assert_eq!(
        channel_of(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7")),
        1
    );
    let any = |address: usize| {
        let listener = &tables.application().listeners[usize::from(7u16.to_be())];
        listener.channel[address].load(std::sync::atomic::Ordering::Relaxed)
    };
    assert_eq!([any(0), any(1)], [four.value(), both.value()]);
    tables.embedded.unlisten(Udp, Some(ip("::")), 7);
    assert_eq!([any(0), any(1)], [four.value(), 0]);
}

#[test]
fn one_address_comes_before_all_and_flags_go_with_the_last_entry() {
    let tables = tables();
    tables
        .trusted
        .set_locals(&[ip(LOCAL), ip("192.0.2.2")])
        .unwrap();
    let (any, local, connected) = (open(&tables, 1), open(&tables, 2), open(&tables, 3));
    // Unspecified means any.
    tables
        .trusted
        .own_port(Udp, Some(ip("0.0.0.0")), 7, 0)
        .unwrap();
    tables
        .embedded
        .listen(Udp, Some(ip("0.0.0.0")), 7, any)
        .unwrap();
    tables
        .embedded
        .listen(Udp, Some(ip(LOCAL)), 7, local)
        .unwrap();
    tables
        .embedded
        .connect(Udp, end("192.0.2.1:7"), end("198.51.100.1:9"), connected)
        .unwrap();
    let flags = || {
        tables.application().listeners[usize::from(7u16.to_be())]
            .flags
            .load(std::sync::atomic::Ordering::Relaxed)
    };
    assert_eq!(flags(), LISTEN_LOCAL | LISTEN_CONNECTED);
    assert_eq!(
        channel_of(drive_to(&tables, "198.51.100.1:9", "192.0.2.2:7")),
        1
    );
    assert_eq!(
        channel_of(drive_to(&tables, "198.51.100.1:8", "192.0.2.1:7")),
        2
    );
    assert_eq!(
        channel_of(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7")),
        3
    );
    // Entering a flow again replaces its channel and counts once.
    tables
        .embedded
        .connect(Udp, end("192.0.2.1:7"), end("198.51.100.1:9"), any)
        .unwrap();
    assert_eq!(
        channel_of(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7")),
        1
    );
    tables
        .embedded
        .disconnect(Udp, end("192.0.2.1:7"), end("198.51.100.1:9"));
    assert_eq!(flags(), LISTEN_LOCAL);
    tables
        .embedded
        .disconnect(Udp, end("192.0.2.1:7"), end("198.51.100.1:9"));
    tables.embedded.unlisten(Udp, Some(ip(LOCAL)), 7);
    assert_eq!(flags(), 0);
    assert_eq!(
        channel_of(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7")),
        1
    );
}

#[test]
fn an_owner_of_one_address_owns_no_other() {
    let tables = tables();
    tables
        .trusted
        .set_locals(&[ip(LOCAL), ip("192.0.2.2")])
        .unwrap();
    tables
        .embedded
        .listen(Udp, None, 7, open(&tables, 1))
        .unwrap();
    tables.trusted.own_port(Udp, Some(ip(LOCAL)), 7, 0).unwrap();
    tables.trusted.own_port(Udp, Some(ip(LOCAL)), 7, 0).unwrap();
    assert_eq!(
        channel_of(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7")),
        1
    );
    let unowned = Verdict::Kernel { class: Class::Udp };
    assert_eq!(drive_to(&tables, "198.51.100.1:9", "192.0.2.2:7"), unowned);
    tables
        .trusted
        .disown_port(Udp, Some(ip("192.0.2.2")), 7)
        .unwrap();
    assert_eq!(
        channel_of(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7")),
        1
    );
    tables.trusted.disown_port(Udp, Some(ip(LOCAL)), 7).unwrap();
    assert_eq!(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7"), unowned);
    assert_eq!(
        tables.device().ports[usize::from(7u16.to_be())].load(std::sync::atomic::Ordering::Relaxed),
        0
    );
}

#[test]
fn an_owner_of_one_family_owns_no_other() {
    let tables = tables();
    let addresses = [ip(LOCAL), ip("2001:db8::1")];
    tables.trusted.set_locals(&addresses).unwrap();
    let channel = open(&tables, 1);
    tables.embedded.listen(Udp, None, 7, channel).unwrap();
    let frames = [
        ("198.51.100.1:9", "192.0.2.1:7"),
        ("[2001:db8::9]:9", "[2001:db8::1]:7"),
    ];
    let owned =
        || frames.map(|(from, to)| matches!(drive_to(&tables, from, to), Verdict::Channel(_)));
    let any = |family: usize| Some(super::ANY[family]);
    tables.trusted.own_port(Udp, any(1), 7, 0).unwrap();
    assert_eq!(owned(), [false, true]);
    tables.trusted.own_port(Udp, any(0), 7, 0).unwrap();
    assert_eq!(owned(), [true, true]);
    tables.trusted.disown_port(Udp, any(1), 7).unwrap();
    assert_eq!(owned(), [true, false]);
    // Another application may have the other family.
    tables.trusted.own_port(Udp, any(1), 7, 5).unwrap();
    let ports = tables.trusted.owned_ports().unwrap();
    assert_eq!(
        ports,
        [(Udp, super::ANY[0], 7, 0), (Udp, super::ANY[1], 7, 5)]
    );
    tables.trusted.disown_port(Udp, None, 7).unwrap();
    assert_eq!(owned(), [false, false]);
    assert!(tables.trusted.owned_ports().unwrap().is_empty());
}

#[test]
fn a_channel_admits_up_to_its_limit_and_again_after_credit() {
    let tables = tables();
    tables.trusted.own_port(Udp, None, 7, 0).unwrap();
    tables
        .embedded
        .listen(Udp, None, 7, ChannelId::new(1, 1))
        .unwrap();
    let closed = Verdict::Drop {
        counter: Counter::ChannelClosed,
    };
    assert_eq!(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7"), closed);
    tables.embedded.set_limit(0, 1, 2);
    for credit in [1, 2] {
        let verdict = drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7");
        let Verdict::Channel(metadata) = verdict else {
            panic!("{verdict:?}")
        };
        assert_eq!(
            (metadata.credit, metadata.kind()),
            (credit, Some(Kind::Datagram))
        );
        assert_eq!(
            (metadata.network, metadata.transport, metadata.end),
            (14, 34, 46)
        );
    }
    let full = Verdict::Drop {
        counter: Counter::ChannelFull,
    };
    assert_eq!(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7"), full);
    assert_eq!(
        (
            tables.embedded.head(0, 1),
            tables.embedded.tail(0, 1),
            tables.embedded.dropped(0, 1)
        ),
        (2, 0, 1)
    );
    tables.embedded.tail_add(0, 1, 1);
    assert_eq!(
        channel_of(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7")),
        1
    );
    assert_eq!(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7"), full);
    // Another queue has an account of its own.
    tables.embedded.set_limit(1, 1, 1);
    let verdict = drive(
        &tables,
        1,
        &mut datagram("198.51.100.1:9", "192.0.2.1:7"),
        0,
    );
    assert_eq!(channel_of(verdict), 1);
    assert_eq!(
        (tables.embedded.head(0, 1), tables.embedded.head(1, 1)),
        (3, 1)
    );
}

#[test]
fn full_tables_say_so_and_keep_what_they_had() {
    let tables = tables();
    let many: Vec<IpAddr> = (0..=LOCALS as u32)
        .map(|n| IpAddr::V4((n + 1).into()))
        .collect();
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    assert_eq!(errno(tables.trusted.set_locals(&many)), Some(libc::ENOBUFS));
    tables.trusted.own_port(Udp, None, 7, 0).unwrap();
    tables
        .embedded
        .listen(Udp, None, 7, open(&tables, 1))
        .unwrap();
    assert_eq!(
        channel_of(drive_to(&tables, "198.51.100.1:9", "192.0.2.1:7")),
        1
    );

    // As many flows as fit, then two buckets are full; all entered are found.
    let local = end("192.0.2.1:7");
    open(&tables, 2);
    let mut entered = Vec::new();
    let remotes = (0..16u8).flat_map(|host| {
        (1..=u16::MAX).map(move |port| SocketAddr::new([198, 51, 100, host].into(), port))
    });
    let start = std::time::Instant::now();
    let full = remotes.into_iter().find_map(|remote| {
        match tables
            .embedded
            .connect(Udp, local, remote, ChannelId::new(2, remote.port()))
        {
            Ok(()) => {
                entered.push(remote);
                None
            }
            Err(error) => Some(error.raw_os_error()),
        }
    });
    let each = |count: usize| start.elapsed() / count.max(1) as u32;
    println!("{} flows, {:?} each", entered.len(), each(entered.len()));
    assert_eq!(full, Some(Some(libc::ENOBUFS)));
    assert!(entered.len() > 150_000, "{} flows", entered.len());
    for &remote in &entered {
        let (source, destination) = (remote.to_string(), local.to_string());
        let found = match drive_to(&tables, &source, &destination) {
            Verdict::Channel(metadata) => metadata.channel_id(),
            other => panic!("{other:?}"),
        };
        assert_eq!(found, ChannelId::new(2, remote.port()));
        tables.embedded.disconnect(Udp, local, remote);
        // Now it is the listener's.
        assert_eq!(channel_of(drive_to(&tables, &source, &destination)), 1);
    }

    for number in 0..OWNERS as u32 {
        tables
            .trusted
            .own_port(Udp, Some(IpAddr::V4(number.wrapping_add(1).into())), 9, 0)
            .unwrap();
    }
    assert_eq!(
        errno(tables.trusted.own_port(Udp, Some(ip("9.9.9.9")), 9, 0)),
        Some(libc::ENOBUFS)
    );
}

#[test]
fn mistakes_are_refused() {
    let tables = tables();
    let invalid = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    };
    let one = ChannelId::new(1, 1);
    invalid(tables.trusted.own_port(Udp, None, 0, 0));
    invalid(tables.trusted.own_port(Udp, None, 7, APPLICATIONS as u16));
    invalid(tables.embedded.listen(Udp, None, 0, one));
    invalid(tables.embedded.listen(Udp, None, 7, ChannelId::NONE));
    invalid(
        tables
            .embedded
            .listen(Tcp, Some(ip(LOCAL)), 7, ChannelId::new(CHANNELS as u16, 1)),
    );
    invalid(
        tables
            .embedded
            .connect(Udp, end("192.0.2.1:7"), end("[::1]:7"), one),
    );
    invalid(
        tables
            .embedded
            .connect(Udp, end("192.0.2.1:7"), end("192.0.2.9:0"), one),
    );
    invalid(
        tables
            .embedded
            .connect(Udp, end("192.0.2.1:0"), end("192.0.2.9:7"), one),
    );
    // Out of range: reads 0, writes nothing.
    tables.embedded.set_limit(QUEUES as u32, 1, 1);
    tables.embedded.set_limit(0, 0, 1);
    tables.embedded.tail_add(0, CHANNELS as u16, 1);
    tables.trusted.probe_napi(QUEUES as u32, 1, 1);
    assert_eq!(
        (
            tables.embedded.limit(QUEUES as u32, 1),
            tables.embedded.limit(0, 0)
        ),
        (0, 0)
    );
    assert_eq!(tables.trusted.napi_probe(QUEUES as u32), None);
    let verdict = drive(&tables, QUEUES as u32, &mut [], 0);
    assert_eq!(
        verdict,
        Verdict::Kernel {
            class: Class::Other
        }
    );
}

#[test]
fn recent_fragments_outlive_old_ones() {
    let tables = tables();
    let key = |number: usize| {
        let mut key = [0; 40];
        key[..8].copy_from_slice(&number.to_ne_bytes());
        key
    };
    for number in 0..FRAGMENTS {
        tables.trusted.decide_fragments(key(number), 1);
    }
    // Used lately, so not the oldest.
    assert_eq!(tables.trusted.fragment_decision(&key(0)), Some(1));
    tables.trusted.decide_fragments(key(FRAGMENTS), 0);
    assert_eq!(tables.trusted.fragment_decision(&key(0)), Some(1));
    assert_eq!(tables.trusted.fragment_decision(&key(1)), None);
    assert_eq!(tables.trusted.fragment_decision(&key(FRAGMENTS)), Some(0));
    tables.trusted.forget_fragments();
    assert_eq!(tables.trusted.fragment_decision(&key(0)), None);
}

/// A SYN with Linux's options in front of nothing else.
fn syn(source: &str, destination: &str) -> Vec<u8> {
    let mut frame = datagram(source, destination);
    frame.truncate(38);
    frame[17] = 52;
    frame[23] = 6;
    frame.extend([0, 0, 0, 9, 0, 0, 0, 0, 0x80, 2, 0xfa, 0xf0, 0, 0, 0, 0]);
    frame.extend([2, 4, 5, 0xb4, 1, 1, 4, 2, 1, 3, 3, 7]);
    frame
}

const OFFER: CookieOffer = CookieOffer {
    window: 65_535,
    window_scale: Some(7),
    timestamps: true,
    sack: true,
    ecn: true,
};
const COOKIES: CookieParameters = CookieParameters {
    key: [7; 16],
    epoch: std::time::Duration::ZERO,
    mss: [1460, 1440],
    hop_limit: 64,
};

#[test]
fn a_strict_port_is_so_until_its_last_listener_goes() {
    // Late enough for the bucket of resets to be full.
    const NOW: u64 = 10_000_000_000;
    let tables = tables();
    tables.trusted.own_port(Tcp, None, 80, 0).unwrap();
    let (any, local) = (open(&tables, 1), open(&tables, 2));
    tables.embedded.listen_tcp(None, 80, any, &OFFER).unwrap();
    tables
        .embedded
        .listen_tcp(Some(ip(LOCAL)), 80, local, &OFFER)
        .unwrap();
    let (peer, here) = ("198.51.100.1:9", "192.0.2.1:80");
    let mut ack = syn(peer, here);
    ack[47] = 0x10;
    let refused = Verdict::Kernel {
        class: Class::NoConnection,
    };
    assert_eq!(channel_of(drive(&tables, 0, &mut syn(peer, here), NOW)), 2);
    assert_eq!(drive(&tables, 0, &mut ack, NOW), refused);
    tables.embedded.unlisten_tcp(Some(ip(LOCAL)), 80);
    assert_eq!(channel_of(drive(&tables, 0, &mut syn(peer, here), NOW)), 1);
    assert_eq!(drive(&tables, 0, &mut ack, NOW), refused);
    // A flow has its channel; without it a listener on nothing is the kernel's.
    let flow = open(&tables, 3);
    tables
        .embedded
        .connect(Tcp, end(here), end(peer), flow)
        .unwrap();
    assert_eq!(channel_of(drive(&tables, 0, &mut ack, NOW)), 3);
    tables.embedded.unlisten_tcp(None, 80);
    assert_eq!(channel_of(drive(&tables, 0, &mut ack, NOW)), 3);
    tables.embedded.disconnect(Tcp, end(here), end(peer));
    assert!(matches!(
        drive(&tables, 0, &mut ack, NOW),
        Verdict::Kernel {
            class: Class::Established
        }
    ));
}

#[test]
fn one_flow_does_not_fill_a_channel_that_many_share() {
    let tables = tables();
    tables.trusted.own_port(Tcp, None, 80, 0).unwrap();
    tables
        .embedded
        .listen_tcp(None, 80, open(&tables, 5), &OFFER)
        .unwrap();
    tables.embedded.set_limit(0, 7, 8);
    tables.embedded.set_share(1, 2);
    let here = "192.0.2.1:80";
    let peers = ["198.51.100.1:9", "198.51.100.2:9"];
    for peer in peers {
        let shared = ChannelId::new(7, 1);
        tables
            .embedded
            .connect_sharing(Tcp, end(here), end(peer), shared, 1)
            .unwrap();
    }
    let from = |peer| match drive(&tables, 0, &mut syn(peer, here), 0) {
        Verdict::Channel(metadata) => Ok(metadata.channel_id().index()),
        Verdict::Drop { counter } => Err(counter),
        other => panic!("{other:?}"),
    };
    for _ in 0..2 {
        assert_eq!([from(peers[0]), from(peers[0])], [Ok(7); 2]);
        assert_eq!([from(peers[0]); 3], [Err(Counter::OverShare); 3]);
        // The other flows still have their shares.
        assert_eq!(from(peers[1]), Ok(7));
        tables.embedded.renew_shares(1);
    }
    assert_eq!(tables.trusted.counter(0, Counter::OverShare), 2);
    assert_eq!(tables.embedded.dropped(0, 7), 2);
    // Nor do all flows together get more than the channel holds.
    assert_eq!([from(peers[0]), from(peers[0])], [Ok(7); 2]);
    assert_eq!(from(peers[1]), Err(Counter::ChannelFull));
}

#[test]
fn a_flow_of_a_channel_is_found_where_another_has_no_room() {
    let tables = tables();
    let local = end("192.0.2.1:80");
    let [waiting, used] = [3, 9].map(|index| ChannelId::new(index, 1));
    let remotes =
        |last: u8| (1..=u16::MAX).map(move |port| SocketAddr::new([9, 9, 9, last].into(), port));
    // More than fit.
    let mut entered = 0;
    for remote in (0..5).flat_map(remotes) {
        entered += usize::from(tables.embedded.connect(Tcp, local, remote, waiting).is_ok());
    }
    assert_eq!(tables.embedded.flows(), entered);
    for remote in remotes(7).step_by(64) {
        while tables.embedded.connect(Tcp, local, remote, used).is_err() {
            assert_eq!(
                tables
                    .embedded
                    .replaceable(Tcp, local, remote, ChannelId::new(8, 1)),
                None
            );
            let (here, there) = tables
                .embedded
                .replaceable(Tcp, local, remote, waiting)
                .unwrap();
            assert_eq!(here, local);
            tables.embedded.disconnect(Tcp, here, there);
            entered -= 1;
        }
        entered += 1;
    }
    assert_eq!(tables.embedded.flows(), entered);
}

#[test]
fn cookies_need_a_key_and_go_out_only_when_asked_for() {
    let tables = tables();
    tables.trusted.own_port(Tcp, None, 80, 0).unwrap();
    let one = open(&tables, 1);
    tables.embedded.listen_tcp(None, 80, one, &OFFER).unwrap();
    let refused = tables
        .embedded
        .set_cookies(80, CookieMode::Answer)
        .unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    let wide = CookieOffer {
        window_scale: Some(15),
        ..OFFER
    };
    assert!(tables.embedded.listen_tcp(None, 80, one, &wide).is_err());
    tables.embedded.set_cookie_parameters(&COOKIES);
    assert!(tables.embedded.set_cookies(0, CookieMode::Answer).is_err());
    let answered = || {
        let verdict = drive(&tables, 0, &mut syn("198.51.100.1:9", "192.0.2.1:80"), 0);
        matches!(verdict, Verdict::Answered(_))
    };
    for (mode, expected) in [
        (CookieMode::Answer, true),
        (CookieMode::Take, false),
        (CookieMode::Answer, true),
        (CookieMode::Off, false),
    ] {
        tables.embedded.set_cookies(80, mode).unwrap();
        assert_eq!(answered(), expected, "{mode:?}");
    }
    // Listening again changes the offer and keeps the mode.
    tables.embedded.set_cookies(80, CookieMode::Answer).unwrap();
    tables.embedded.listen_tcp(None, 80, one, &OFFER).unwrap();
    assert!(answered());
}

#[test]
fn an_application_is_full_whatever_room_its_channels_have() {
    let tables = tables();
    let channels = 1..=9;
    for port in channels.clone() {
        let channel = open(&tables, port);
        tables.trusted.own_port(Udp, None, port, 0).unwrap();
        tables.embedded.listen(Udp, None, port, channel).unwrap();
    }
    let to = |port: u16| drive_to(&tables, "198.51.100.1:9", &format!("192.0.2.1:{port}"));
    let full = Verdict::Drop {
        counter: Counter::ApplicationFull,
    };
    let flood = |ports: std::ops::RangeInclusive<u16>| {
        for port in (0..1000).flat_map(|_| ports.clone()) {
            let verdict = to(port);
            assert!(verdict == full || channel_of(verdict) == port);
        }
    };
    tables.embedded.set_given(0, 1000);
    tables.embedded.set_spare(0, 50);
    flood(1..=8);
    assert_eq!(tables.embedded.total_head(0), 950);
    assert_eq!(tables.trusted.counter(0, Counter::ApplicationFull), 7050);
    assert!(tables.embedded.dropped(0, 8) > 0);
    assert_eq!(tables.embedded.total_dropped(0), 7050);
    // The last frames are for a channel that holds few.
    for _ in 0..QUIET {
        assert_eq!(channel_of(to(9)), 9);
    }
    assert_eq!(to(9), full);
    tables.embedded.tail_add(0, 9, 1);
    assert_eq!(channel_of(to(9)), 9);
    // Frames that others return are not the device's yet.
    tables.embedded.tail_add(0, 1, 10);
    assert_eq!(to(1), full);
    tables.embedded.set_given(0, 1010);
    assert_eq!(channel_of(to(1)), 1);
    assert_eq!(to(1), full);
    // A channel that is itself full is counted as such.
    tables.embedded.set_limit(0, 1, 2);
    let full = Verdict::Drop {
        counter: Counter::ChannelFull,
    };
    let before = tables.embedded.total_dropped(0);
    assert_eq!(to(1), full);
    assert_eq!(tables.embedded.total_dropped(0), before + 1);
}
