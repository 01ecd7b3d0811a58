//! Routing tables that are read in one dump, compared with the kernel's answer per
//! destination.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

use tidewall_sys::netlink::{Routing, Rtnetlink};

/// Addresses near which destinations are drawn, and the number of their bits that are
/// kept.
const NEAR: [(&str, u32); 24] = [
    ("0.0.0.0", 0),
    ("10.0.0.0", 8),
    ("10.1.0.0", 24),
    ("10.1.0.1", 32),
    ("10.1.0.255", 32),
    ("10.2.0.0", 16),
    ("10.2.3.0", 24),
    ("10.3.0.0", 16),
    ("10.4.0.0", 16),
    ("10.5.0.0", 16),
    ("10.6.0.0", 16),
    ("10.7.0.0", 16),
    ("10.8.0.0", 16),
    ("10.9.0.0", 16),
    ("10.10.0.0", 16),
    ("10.11.0.0", 16),
    ("224.0.0.0", 4),
    ("255.255.255.255", 32),
    ("fd01::", 64),
    ("fd01::1", 128),
    ("fd02::", 32),
    ("fd03::", 32),
    ("fe80::", 64),
    ("::", 0),
];

const SETUP: &str = "
    ip link set lo up
    for name in d0 d1 d2; do
        ip link add $name type veth peer name ${name}e || exit 3
        ip link set $name up; ip link set ${name}e up
    done
    ip addr add 10.1.0.1/24 dev d0; ip addr add 10.2.0.1/16 dev d1
    ip addr add 10.2.0.7/16 dev d1; ip addr add 10.11.0.1/24 dev d2
    ip addr add fd01::1/64 dev d0 nodad || exit 3
    ip route add 10.0.0.0/8 via 10.1.0.9
    ip route add 10.2.3.0/24 via 10.1.0.8 mtu 1300 src 10.2.0.7
    ip route add blackhole 10.5.0.0/16; ip route add unreachable 10.6.0.0/16
    ip route add prohibit 10.6.128.0/17
    ip route add 10.7.0.0/16 via 10.2.0.5 metric 3; ip route add 10.7.0.0/16 via 10.1.0.5 metric 5
    ip route add 10.8.0.0/16 nexthop via 10.1.0.3 nexthop via 10.2.0.3
    ip route add 10.9.0.0/16 via 10.1.0.6 tos 0x10; ip route add 10.10.0.0/16 via 10.11.0.6
    ip route add default via 10.1.0.254
    ip rule add pref 100 lookup 77
    ip route add throw 10.3.0.0/16 table 77; ip route add 10.4.0.0/16 via 10.2.0.9 table 77
    ip -6 route add fd02::/32 via fd01::9 mtu 1290
    ip -6 route add fd03::/32 via fd01::9 metric 1; ip -6 route add fd03::/32 via fd01::8 metric 2
    ip -6 route add unreachable fd02:5::/32 2>/dev/null
    ip link set d2 down";

#[test]
fn routes_are_what_the_kernel_answers() {
    let inside = format!(
        "{SETUP}\nexec $SELF --exact routes_of_this_namespace_are_what_the_kernel_answers --ignored"
    );
    tidewall_skip::in_namespaces(
        "routes_are_what_the_kernel_answers",
        &inside,
        "virtual interfaces and IPv6",
    );
}

fn read() -> Routing {
    let mut netlink = Rtnetlink::open().unwrap();
    netlink.routing(10_000).unwrap()
}

fn shell(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success(), "{script}");
}

/// An address with the first `bits` bits of `near`; the others are random.
fn draw(near: IpAddr, bits: u32, state: &mut u128) -> IpAddr {
    *state = state
        .wrapping_mul(0xda94_2042_e4dd_58b5_da94_2042_e4dd_58b5)
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    let drawn = *state ^ *state >> 61;
    match near {
        IpAddr::V4(v4) => {
            let rest = u32::MAX.checked_shr(bits).unwrap_or(0);
            Ipv4Addr::from(v4.to_bits() & !rest | drawn as u32 & rest).into()
        }
        IpAddr::V6(v6) => {
            let rest = u128::MAX.checked_shr(bits).unwrap_or(0);
            Ipv6Addr::from(v6.to_bits() & !rest | drawn & rest).into()
        }
    }
}

#[test]
#[ignore = "the other test's part, in its namespace"]
fn routes_of_this_namespace_are_what_the_kernel_answers() {
    let mut kernel = Rtnetlink::open().unwrap();
    let routing = read();
    let mut state = 7;
    let (mut by_router, mut with_mtu, mut nowhere, mut asked) = (0, 0, 0, 0);
    for (near, bits) in NEAR {
        for _ in 0..300 {
            let destination = draw(near.parse().unwrap(), bits, &mut state);
            let Some(found) = routing.route(destination) else {
                asked += 1;
                continue;
            };
            let (found, answer) = (found.route, kernel.route(destination, None, None));
            let Ok(answer) = answer else {
                assert!(!found.unicast, "{destination}: {found:?}, but {answer:?}");
                nowhere += 1;
                continue;
            };
            assert_eq!(
                (found.unicast, found.local),
                (answer.unicast, answer.local),
                "{destination}"
            );
            if !found.unicast {
                continue;
            }
            let of = |it: &tidewall_sys::netlink::Route| (it.interface, it.gateway, it.mtu);
            assert_eq!(of(&found), of(&answer), "{destination}");
            let source = found.source.or(routing.only_source(destination));
            assert!(
                source.is_none() || source == answer.source,
                "{destination}: {source:?}, but {answer:?}"
            );
            by_router += u32::from(found.gateway.is_some());
            with_mtu += u32::from(found.mtu != usize::MAX);
        }
    }
    println!("{by_router} by a router, {with_mtu} with an MTU, {nowhere} nowhere, {asked} asked");
    assert!(by_router > 2000 && with_mtu > 300 && nowhere > 300);
    assert!(asked < 300 * NEAR.len() / 3, "{asked}");
    // With only one route to the prefix.
    let v6 = "fd02::5".parse().unwrap();
    assert_eq!(routing.only_source(v6), Some("fd01::1".parse().unwrap()));
    shell("ip addr add fd01::2/64 dev d0 nodad");
    assert_eq!(read().only_source(v6), None);
    let own: IpAddr = [10, 2, 0, 7].into();
    let peer: IpAddr = [10, 2, 0, 8].into();
    assert_eq!(
        (routing.is_local(own), routing.is_local(peer)),
        (Some(true), Some(false))
    );
    // Only the kernel can judge a rule with a selector; the other family is not affected.
    for rule in [
        "from 10.1.0.0/24",
        "fwmark 1",
        "iif lo",
        "uidrange 0-9",
        "tos 0x10",
    ] {
        let v4 = peer;
        shell(&format!("ip rule add {rule} lookup 77 pref 50"));
        let routing = read();
        assert_eq!(routing.route(v4), None, "{rule}");
        assert!(routing.route(v6).is_some());
        shell(&format!("ip rule del {rule} lookup 77 pref 50"));
        assert!(read().route(v4).is_some());
    }
    let few = Rtnetlink::open().unwrap().routing(3).map(drop);
    assert_eq!(
        few.map_err(|error| error.raw_os_error()),
        Err(Some(libc::ENOBUFS))
    );
}
