//! The interface as the tool uses it: through the table, from two threads.

use core::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::thread;

use libc::c_int;
use tidewall_posix::raw::{Pointer, Text};
use tidewall_protocol::tcp::{self, Checksum, FourTuple, Link, Outgoing};
use tidewall_protocol::{InputOptions, tcp::Segment};
use tidewall_sys::RawAddress;
use tidewall_wire::ethernet::{HEADER_LEN, MacAddress};
use tidewall_wire::tcp::{Flags, Header};

use super::{Interface, Userdata, initialize};

const PEER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 40_000);
const OWN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 168, 0, 1), 8080);

/// Bytes for C to write to, with their initial content.
fn room<const N: usize>() -> [MaybeUninit<u8>; N] {
    [MaybeUninit::new(0); N]
}

/// The content after a call.
fn written(place: &[MaybeUninit<u8>]) -> Vec<u8> {
    // SAFETY: `room` initialized them.
    let byte = |byte: &MaybeUninit<u8>| unsafe { byte.assume_init() };
    place.iter().map(byte).collect()
}

/// A table that is freed when dropped.
struct Table(Interface);

impl Table {
    fn new() -> Self {
        let mut table = MaybeUninit::uninit();
        initialize(Text::from(c"mtu=1500,interface=none"), Some(&mut table));
        // SAFETY: the function has filled it in.
        Self(unsafe { table.assume_init() })
    }

    /// Microseconds since 1970.
    fn time(&self) -> i64 {
        let mut time = MaybeUninit::zeroed();
        let zone = Pointer::null();
        assert_eq!(
            (self.0.gettimeofday)(&self.0.userdata, Some(&mut time), zone),
            0
        );
        // SAFETY: the call has written it.
        let time: libc::timeval = unsafe { time.assume_init() };
        time.tv_sec * 1_000_000 + time.tv_usec
    }

    fn packet_in(&self, flags: Flags, sequence: u32, acknowledgment: u32, payload: &[u8]) {
        let mut packet = packet(flags, sequence, acknowledgment, payload);
        let send = self.0.netdev_send;
        let result = Pointer::lend(&mut packet, |data, length| {
            send(&self.0.userdata, data, length)
        });
        assert_eq!(result, 0);
    }

    /// Flags, sequence number and acknowledgment of the next packet, and when it
    /// left.
    fn packet_out(&self) -> Option<(Flags, u32, u32, i64)> {
        let mut buffer = room::<2048>();
        let mut at = MaybeUninit::new(0);
        let receive = self.0.netdev_receive;
        let length = Pointer::lend(&mut buffer, |place, mut length| {
            let result = receive(&self.0.userdata, place, Some(&mut length), Some(&mut at));
            assert_eq!(result, 0);
            length.get()
        });
        let bytes = written(&buffer[..length]);
        if bytes.is_empty() {
            return None;
        }
        let segment: Segment<'_> = tcp::input(&bytes, 20, &InputOptions::default()).unwrap();
        assert_eq!(segment.flow.local, SocketAddr::from(PEER));
        let header = segment.header;
        // SAFETY: it was initialized before.
        let at = unsafe { at.assume_init() };
        Some((header.flags, header.sequence, header.acknowledgment, at))
    }
}

fn packet(flags: Flags, sequence: u32, acknowledgment: u32, payload: &[u8]) -> Vec<u8> {
    let flow = FourTuple {
        local: PEER.into(),
        remote: OWN.into(),
    };
    let outgoing = Outgoing {
        header: Header {
            source_port: PEER.port(),
            destination_port: OWN.port(),
            sequence,
            acknowledgment,
            flags,
            window: 60_000,
            ..Header::default()
        },
        payload: [payload, &[]],
        segment_size: 1460,
        traffic_class: 0,
    };
    let link = Link {
        source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
        hop_limit: 64,
        checksum: Checksum::Software,
    };
    let mut frame = vec![0; 2048];
    let length = tcp::output(&mut frame, &link, &flow, &outgoing).unwrap();
    frame[HEADER_LEN..length].to_vec()
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// A listening descriptor.
fn listener(table: &Table) -> c_int {
    let (ifc, data) = (&table.0, &table.0.userdata);
    let fd = (ifc.socket)(data, libc::AF_INET, libc::SOCK_STREAM, 0);
    assert!(fd >= crate::host::FIRST_FD);
    let (mut address, _) = RawAddress::new((Ipv4Addr::UNSPECIFIED, OWN.port()).into());
    let bound = Pointer::lend(&mut address.0, |address, length| {
        (ifc.bind)(data, fd, address, length)
    });
    assert_eq!(bound, 0);
    assert_eq!((ifc.listen)(data, fd, 1), 0);
    fd
}

#[test]
fn a_syn_is_answered_and_the_connection_accepted() {
    let table = Table::new();
    let (ifc, data) = (&table.0, &table.0.userdata);
    let fd = listener(&table);
    table.packet_in(Flags::SYN, 100, 0, b"");
    let (flags, isn, acknowledgment, at) = table.packet_out().unwrap();
    assert_eq!((flags, acknowledgment), (Flags::SYN | Flags::ACK, 101));
    assert_eq!(at, table.time());
    table.packet_in(Flags::ACK, 101, isn.wrapping_add(1), b"");
    let mut peer = room::<28>();
    let (accepted, length) = Pointer::lend(&mut peer, |place, mut length| {
        let accepted = (ifc.accept)(data, fd, place, Some(&mut length));
        (accepted, length.get())
    });
    assert!(accepted > fd);
    assert_eq!(length, 16);
    assert_eq!(RawAddress::parse(&written(&peer[..16])), Some(PEER.into()));
    let nonblocking = libc::O_RDWR | libc::O_NONBLOCK;
    (ifc.fcntl)(data, accepted, libc::F_SETFL, nonblocking.into());
    let mut buffer = room::<16>();
    let nothing = Pointer::lend(&mut buffer, |place, length| {
        (ifc.read)(data, accepted, place, length)
    });
    assert_eq!(nothing, -1);
    assert_eq!(errno(), libc::EAGAIN);
    table.packet_in(Flags::ACK | Flags::PSH, 101, isn.wrapping_add(1), b"hello");
    let received = Pointer::lend(&mut buffer, |place, length| {
        (ifc.recv)(data, accepted, place, length, 0)
    });
    assert_eq!(received, 5);
    assert_eq!(written(&buffer[..5]), b"hello");
    let nowhere = Pointer::lend(&mut buffer, |_, length| {
        (ifc.read)(data, accepted, Pointer::null(), length)
    });
    assert_eq!(nowhere, -1);
    assert_eq!(errno(), libc::EFAULT);
    assert_eq!((ifc.close)(data, accepted), 0);
    assert_eq!((ifc.close)(data, accepted), -1);
    assert_eq!(errno(), libc::EBADF);
    let (result, length) = Pointer::lend(&mut room::<300>(), |place, mut length| {
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let result = super::getsockopt(fd, level, option, place, Some(&mut length));
        (result, length.get())
    });
    // The table created last may belong to another test.
    if result == 0 {
        assert_eq!(length, 280);
    }
    (ifc.free)(Some(Box::new(Userdata::clone(data))));
}

/// The tool passes the two ends of a kernel pipe to calls of the table.
#[test]
fn a_descriptor_of_the_kernels_is_read_and_written() {
    let table = Table::new();
    let (ifc, data) = (&table.0, &table.0.userdata);
    let mut ends = MaybeUninit::new([-1; 2]);
    assert_eq!((ifc.pipe)(data, Some(&mut ends)), 0);
    // SAFETY: they were initialized before.
    let [reader, writer] = unsafe { ends.assume_init() };
    let sent = Pointer::lend(&mut b"hello".to_owned(), |bytes, length| {
        (ifc.write)(data, writer, bytes, length)
    });
    assert_eq!(sent, 5);
    let mut buffer = room::<16>();
    let received = Pointer::lend(&mut buffer, |place, length| {
        (ifc.read)(data, reader, place, length)
    });
    assert_eq!(received, 5);
    assert_eq!(written(&buffer[..5]), b"hello");
    for fd in [reader, writer] {
        assert_eq!((ifc.close)(data, fd), 0);
    }
}

#[test]
fn the_clock_stands_still_for_who_was_woken() {
    let table = Table::new();
    let (ifc, data) = (&table.0, &table.0.userdata);
    let fd = listener(&table);
    let begin = table.time();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let accepted = (ifc.accept)(data, fd, Pointer::null(), None);
            assert!(accepted > fd);
            table.time()
        });
        let sleep = |microseconds| (ifc.usleep)(data, microseconds);
        table.packet_in(Flags::SYN, 100, 0, b"");
        let (_, isn, ..) = table.packet_out().unwrap();
        sleep(200_000);
        table.packet_in(Flags::ACK, 101, isn.wrapping_add(1), b"");
        let completed = table.time();
        if !waiter.is_finished() {
            // A second passes; the waiter's second does not begin before it has returned.
            sleep(1_000_000);
        }
        let woken = waiter.join().unwrap();
        assert!(completed - begin >= 200_000);
        // It may have come too late to have to wait.
        assert!(woken == completed || woken >= completed + 1_000_000);
    });
}

#[test]
fn a_packet_that_never_comes_is_no_packet() {
    let table = Table::new();
    let begin = table.time();
    assert_eq!(table.packet_out(), None);
    assert_eq!(table.time(), begin);
}
