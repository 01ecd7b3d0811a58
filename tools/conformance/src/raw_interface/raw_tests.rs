//! The interface as the tool uses it: through the table, from two threads.

use core::ffi::c_void;
use core::mem::{self, MaybeUninit};
use core::ptr;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::thread;

use tidewall_protocol::tcp::{self, Checksum, FourTuple, Link, Outgoing};
use tidewall_protocol::{InputOptions, tcp::Segment};
use tidewall_wire::ethernet::{HEADER_LEN, MacAddress};
use tidewall_wire::tcp::{Flags, Header};

use super::{Interface, initialize};

const PEER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 40_000);
const OWN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 168, 0, 1), 8080);

/// A table, freed at the end.
struct Table(Interface);

impl Table {
    fn new() -> Self {
        let mut table = MaybeUninit::uninit();
        // SAFETY: a C string, and room for the table, which is then filled in.
        unsafe {
            initialize(c"mtu=1500,interface=none".as_ptr(), table.as_mut_ptr());
            Self(table.assume_init())
        }
    }

    /// Microseconds since 1970.
    fn time(&self) -> i64 {
        let mut time: libc::timeval = unsafe_zeroed();
        // SAFETY: the table's userdata; room for a time.
        unsafe { (self.0.gettimeofday)(self.0.userdata, &mut time, ptr::null_mut()) };
        time.tv_sec * 1_000_000 + time.tv_usec
    }

    fn packet_in(&self, flags: Flags, sequence: u32, acknowledgment: u32, payload: &[u8]) {
        let packet = packet(flags, sequence, acknowledgment, payload);
        let (data, length) = (packet.as_ptr().cast(), packet.len());
        // SAFETY: the table's userdata; so many bytes.
        let result = unsafe { (self.0.netdev_send)(self.0.userdata, data, length) };
        assert_eq!(result, 0);
    }

    /// Flags, sequence number and acknowledgment of the next packet, and when it
    /// left.
    fn packet_out(&self) -> Option<(Flags, u32, u32, i64)> {
        let mut buffer = [0u8; 2048];
        let (mut length, mut at) = (buffer.len(), 0);
        let place = buffer.as_mut_ptr().cast();
        // SAFETY: the table's userdata; `length` bytes of room.
        let result =
            unsafe { (self.0.netdev_receive)(self.0.userdata, place, &mut length, &mut at) };
        assert_eq!(result, 0);
        let bytes = buffer.get(..length).filter(|bytes| !bytes.is_empty())?;
        let segment: Segment<'_> = tcp::input(bytes, 20, &InputOptions::default()).unwrap();
        assert_eq!(segment.flow.local, SocketAddr::from(PEER));
        let header = segment.header;
        Some((header.flags, header.sequence, header.acknowledgment, at))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: the table's userdata, used no more.
        unsafe { (self.0.free)(self.0.userdata) }
    }
}

fn unsafe_zeroed<T>() -> T {
    // SAFETY: only used for C structures of numbers.
    unsafe { mem::zeroed() }
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

fn wildcard() -> libc::sockaddr_in {
    let mut address: libc::sockaddr_in = unsafe_zeroed();
    address.sin_family = libc::AF_INET as u16;
    address.sin_port = OWN.port().to_be();
    address
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// A listening descriptor.
fn listener(table: &Table) -> i32 {
    let (ifc, data) = (&table.0, table.0.userdata);
    let address = wildcard();
    let length = mem::size_of_val(&address) as u32;
    // SAFETY: the table's userdata; an address and its length.
    unsafe {
        let fd = (ifc.socket)(data, libc::AF_INET, libc::SOCK_STREAM, 0);
        assert!(fd >= crate::host::FIRST_FD);
        assert_eq!((ifc.bind)(data, fd, (&raw const address).cast(), length), 0);
        assert_eq!((ifc.listen)(data, fd, 1), 0);
        fd
    }
}

#[test]
fn a_syn_is_answered_and_the_connection_accepted() {
    let table = Table::new();
    let (ifc, data) = (&table.0, table.0.userdata);
    let fd = listener(&table);
    table.packet_in(Flags::SYN, 100, 0, b"");
    let (flags, isn, acknowledgment, at) = table.packet_out().unwrap();
    assert_eq!((flags, acknowledgment), (Flags::SYN | Flags::ACK, 101));
    assert_eq!(at, table.time());
    table.packet_in(Flags::ACK, 101, isn.wrapping_add(1), b"");
    let mut peer = wildcard();
    let mut length = mem::size_of_val(&peer) as u32;
    let mut buffer = [0u8; 16];
    let place = buffer.as_mut_ptr().cast::<c_void>();
    // SAFETY: the table's userdata; places of the lengths that are named.
    unsafe {
        let accepted = (ifc.accept)(data, fd, (&raw mut peer).cast(), &mut length);
        assert!(accepted > fd);
        assert_eq!(u16::from_be(peer.sin_port), PEER.port());
        assert_eq!(length, 16);
        let nonblocking = libc::O_RDWR | libc::O_NONBLOCK;
        (ifc.fcntl)(data, accepted, libc::F_SETFL, nonblocking.into());
        assert_eq!((ifc.read)(data, accepted, place, 16), -1);
        assert_eq!(errno(), libc::EAGAIN);
        table.packet_in(Flags::ACK | Flags::PSH, 101, isn.wrapping_add(1), b"hello");
        assert_eq!((ifc.recv)(data, accepted, place, 16, 0), 5);
        assert_eq!(&buffer[..5], b"hello");
        assert_eq!((ifc.read)(data, accepted, ptr::null_mut(), 16), -1);
        assert_eq!(errno(), libc::EFAULT);
        assert_eq!((ifc.close)(data, accepted), 0);
        assert_eq!((ifc.close)(data, accepted), -1);
        assert_eq!(errno(), libc::EBADF);
        let mut info = [0u8; 300];
        let mut length = info.len() as u32;
        let place = info.as_mut_ptr().cast();
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let result = super::getsockopt(fd, level, option, place, &mut length);
        // Another test's table may be the last that was made.
        if result == 0 {
            assert_eq!(length, 280);
        }
    }
}

#[test]
fn the_clock_stands_still_for_whoever_was_woken() {
    struct Shared(Table);
    // SAFETY: the functions of the table may be called from any thread; that is
    // what the machine is for.
    unsafe impl Sync for Shared {}
    let shared = Shared(Table::new());
    let fd = listener(&shared.0);
    let begin = shared.0.time();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let shared = &shared;
            let (ifc, data) = (&shared.0.0, shared.0.0.userdata);
            // SAFETY: the table's userdata; no place for an address.
            let accepted = unsafe { (ifc.accept)(data, fd, ptr::null_mut(), ptr::null_mut()) };
            assert!(accepted > fd);
            shared.0.time()
        });
        let sleep = |microseconds| {
            let ifc = &shared.0.0;
            // SAFETY: the table's userdata.
            unsafe { (ifc.usleep)(ifc.userdata, microseconds) };
        };
        shared.0.packet_in(Flags::SYN, 100, 0, b"");
        let (_, isn, ..) = shared.0.packet_out().unwrap();
        sleep(200_000);
        shared
            .0
            .packet_in(Flags::ACK, 101, isn.wrapping_add(1), b"");
        let completed = shared.0.time();
        if !waiter.is_finished() {
            // A second passes; the waiter's does not begin before it is back.
            sleep(1_000_000);
        }
        let woken = waiter.join().unwrap();
        assert!(completed - begin >= 200_000);
        // It may have come so late that it never had to wait.
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
