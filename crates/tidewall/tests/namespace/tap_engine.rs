//! The TCP engine alone against the kernel's, over a tap: no Tidewall sockets,
//! no channels, one thread.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidewall_device::demux::ChannelId;
use tidewall_device::demux::layout::Protocol;
use tidewall_device::queue::{Interrupt, LongSegment, Offload};
use tidewall_device::tap;
use tidewall_protocol::InputOptions;
use tidewall_protocol::tcp::{
    self, Checksum, Config, Connection, Errno, FourTuple, Link, Outgoing, Shutdown, State,
};
use tidewall_wire::tcp::PayloadChecksum;

use super::support::*;
use super::tap::{KERNEL4, KERNEL6, NAME, TAP4, TAP6};

const CHANNEL: ChannelId = ChannelId::new(9, 1);
/// A transfer that takes longer has hung.
const TIMEOUT: Duration = Duration::from_secs(20);
const PORT: u16 = 40_000;

/// A connection and the tap it lives on.
struct Bed {
    tap: tap::Tap,
    connection: Connection,
    start: Instant,
    longest_in: usize,
    longest_out: usize,
    /// One frame in so many is lost, each way; 0: none.
    loss: u64,
    chance: u64,
}

/// xorshift64: which frames are lost.
fn lost(chance: &mut u64, loss: u64) -> bool {
    *chance ^= *chance << 13;
    *chance ^= *chance >> 7;
    *chance ^= *chance << 17;
    loss > 0 && chance.is_multiple_of(loss)
}

impl Bed {
    fn connect(to: SocketAddr, config: &Config) -> Bed {
        let mut tap = tap::Tap::open(&tap::Config::new(NAME)).unwrap();
        shell(&format!(
            "ip addr add {KERNEL4}/24 dev {NAME}; ip addr add {KERNEL6}/64 dev {NAME} nodad"
        ));
        tap.tables
            .trusted
            .set_locals(&[TAP4.into(), TAP6.into()])
            .unwrap();
        tap.tables
            .trusted
            .own_port(Protocol::Tcp, None, PORT, 0)
            .unwrap();
        tap.tables
            .embedded
            .listen(Protocol::Tcp, None, PORT, CHANNEL)
            .unwrap();
        tap.tables.embedded.set_limit(0, CHANNEL.index(), 512);
        let half = tap.queue.frames.len() / 2;
        let mut fill = tap.queue.frames.split_off(half);
        tap.queue.receive.fill(&mut fill);
        let local: IpAddr = if to.is_ipv6() {
            TAP6.into()
        } else {
            TAP4.into()
        };
        let flow = FourTuple {
            local: SocketAddr::new(local, PORT),
            remote: to,
        };
        let config = Config {
            mss: if to.is_ipv6() { 1440 } else { 1460 },
            ..*config
        };
        Bed {
            tap,
            connection: Connection::connect(flow, 0xffff_f000, 7, &config, Duration::ZERO),
            start: Instant::now(),
            longest_in: 0,
            longest_out: 0,
            loss: 0,
            chance: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// One round: what came, what is due, what goes.
    fn round(&mut self) {
        assert!(
            self.start.elapsed() < TIMEOUT,
            "{:?}",
            self.connection.info()
        );
        let options = InputOptions {
            checksum_offload_possible: true,
            verified: false,
        };
        let Bed {
            tap,
            connection,
            start,
            chance,
            loss,
            ..
        } = self;
        let now = start.elapsed();
        let queue = &mut tap.queue;
        queue.receive.poll(Interrupt::Armed).unwrap();
        let mut batch = Vec::new();
        let taken = queue.receive.receive(&mut batch, 256);
        for received in &batch {
            if lost(chance, *loss) {
                continue;
            }
            let metadata = received.metadata;
            let bytes = &queue.memory.packet(&received.frame)
                [usize::from(metadata.network)..usize::from(metadata.end)];
            let transport = usize::from(metadata.transport - metadata.network);
            let segment = tcp::input(bytes, transport, &options).unwrap();
            self.longest_in = self.longest_in.max(segment.payload.len());
            connection.input(&segment, now);
        }
        tap.tables
            .embedded
            .tail_add(0, CHANNEL.index(), taken as u32);
        queue
            .receive
            .fill(&mut batch.into_iter().map(|received| received.frame).collect());
        if connection.next_timeout().is_some_and(|at| at <= now) {
            connection.timeout(now);
        }
        let link = Link {
            source_mac: tap.own,
            destination_mac: tap.kernel,
            hop_limit: 64,
            checksum: Checksum::Offload,
        };
        let flow = *connection.flow();
        let mut longest = 0;
        connection.output(now, &mut |outgoing: &Outgoing<'_>| {
            let offload = Offload {
                checksum_start: if flow.remote.is_ipv6() { 54 } else { 34 },
                checksum_offset: 16,
            };
            let payload = outgoing.payload_len();
            longest = longest.max(payload);
            if lost(chance, *loss) {
                return true;
            }
            if outgoing.is_long() {
                let mut room = [0; 14 + 40 + 60];
                let (header, class) = (&outgoing.header, outgoing.traffic_class);
                let sum = (payload, PayloadChecksum::Offload);
                let written = tcp::output_before(&mut room, &link, &flow, header, class, sum);
                let segment = LongSegment {
                    headers: &room[room.len() - written.unwrap()..],
                    payload: outgoing.payload,
                    offload,
                    segment_size: outgoing.segment_size,
                };
                queue.transmit.send_segments(&segment).unwrap();
                return true;
            }
            queue.transmit.reclaim(&mut queue.frames);
            let Some(mut frame) = queue.frames.pop() else {
                return false;
            };
            let headroom = queue.transmit.headroom();
            frame.set_extent(headroom, u16::MAX);
            let bytes = queue.memory.packet_mut(&mut frame);
            let length = tcp::output(bytes, &link, &flow, outgoing).unwrap();
            frame.set_extent(headroom, length as u16);
            queue.transmit.transmit(frame, Some(offload)).unwrap();
            queue.transmit.flush().unwrap();
            true
        });
        self.longest_out = self.longest_out.max(longest);
    }
}

/// Runs the peer of the connection until its end.
fn listener(
    address: IpAddr,
    run: impl FnOnce(TcpStream) + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    // Bound before the interface has its address: any.
    let any: IpAddr = if address.is_ipv6() {
        std::net::Ipv6Addr::UNSPECIFIED.into()
    } else {
        std::net::Ipv4Addr::UNSPECIFIED.into()
    };
    let listener = TcpListener::bind((any, 0)).unwrap();
    let to = SocketAddr::new(address, listener.local_addr().unwrap().port());
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        run(stream);
    });
    (to, thread)
}

fn pattern(start: usize, bytes: &mut [u8]) {
    for (n, byte) in bytes.iter_mut().enumerate() {
        let at = start + n;
        *byte = (at * 31 + at / 253) as u8;
    }
}

fn check(start: usize, bytes: &[u8]) {
    let mut expected = vec![0; bytes.len()];
    pattern(start, &mut expected);
    assert!(expected == bytes, "wrong bytes after {start}");
}

const TOTAL: usize = 24 << 20;

fn config() -> Config {
    Config {
        offload: tap::SEGMENT_MAX,
        ..Config::default()
    }
}

pub fn the_engine_sends_long_segments_to_the_kernel() {
    for address in [IpAddr::from(KERNEL4), IpAddr::from(KERNEL6)] {
        let (to, peer) = listener(address, |mut stream| {
            let mut got = 0;
            let mut buffer = vec![0; 1 << 20];
            loop {
                let length = stream.read(&mut buffer).unwrap();
                if length == 0 {
                    break;
                }
                check(got, &buffer[..length]);
                got += length;
            }
            assert_eq!(got, TOTAL);
        });
        let mut bed = Bed::connect(to, &config());
        let mut written = 0;
        let mut chunk = vec![0; 256 << 10];
        let mut closed = false;
        let begin = Instant::now();
        while bed.connection.state() != State::TimeWait {
            bed.round();
            while written < TOTAL && bed.connection.writable() {
                let length = chunk.len().min(TOTAL - written);
                pattern(written, &mut chunk[..length]);
                match bed.connection.write(&chunk[..length]) {
                    Ok(taken) => written += taken,
                    Err(Errno::AGAIN) => break,
                    Err(error) => panic!("{error:?}"),
                }
            }
            if written == TOTAL && !closed {
                closed = true;
                bed.connection
                    .shutdown(Shutdown::Write, bed.start.elapsed())
                    .unwrap();
            }
        }
        let info = bed.connection.info();
        println!("sent {TOTAL} bytes in {:?}: {info:?}", begin.elapsed());
        peer.join().unwrap();
        assert_eq!(repeated(&info), 0, "{info:?}");
        assert!(bed.longest_out > 40_000, "cut to {}", bed.longest_out);
        assert_eq!(bed.tap.counters.read().refused, 0);
    }
}

pub fn the_engine_receives_long_segments_from_the_kernel() {
    for address in [IpAddr::from(KERNEL4), IpAddr::from(KERNEL6)] {
        let (to, peer) = listener(address, |mut stream| {
            let mut chunk = vec![0; 1 << 20];
            let mut sent = 0;
            while sent < TOTAL {
                let length = chunk.len().min(TOTAL - sent);
                pattern(sent, &mut chunk[..length]);
                stream.write_all(&chunk[..length]).unwrap();
                sent += length;
            }
        });
        let mut bed = Bed::connect(to, &config());
        let mut got = 0;
        let mut buffer = vec![0; 256 << 10];
        let begin = Instant::now();
        'transfer: loop {
            bed.round();
            loop {
                match bed.connection.read(&mut buffer) {
                    Ok(0) => break 'transfer,
                    Ok(length) => {
                        check(got, &buffer[..length]);
                        got += length;
                    }
                    Err(Errno::AGAIN) => break,
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        assert_eq!(got, TOTAL);
        let info = bed.connection.info();
        println!("received {TOTAL} bytes in {:?}: {info:?}", begin.elapsed());
        let now = bed.start.elapsed();
        bed.connection.close(None, now);
        while bed.connection.state() != State::Closed {
            bed.round();
        }
        peer.join().unwrap();
        assert!(bed.longest_in > 40_000, "cut to {}", bed.longest_in);
        assert_eq!(info.out_of_order, 0, "{info:?}");
    }
}

/// Both ways at once through a link that loses one frame in `loss`, by a
/// connection that is frozen and thawed now and then.
fn exchange_with_loss(config: &Config, loss: u64, total: usize) {
    let (to, peer) = listener(KERNEL4.into(), move |mut stream| {
        let mut writer = stream.try_clone().unwrap();
        let reader = std::thread::spawn(move || {
            let mut got = 0;
            let mut buffer = vec![0; 64 << 10];
            loop {
                let length = stream.read(&mut buffer).unwrap();
                if length == 0 {
                    return got;
                }
                check(got, &buffer[..length]);
                got += length;
            }
        });
        let mut chunk = vec![0; 64 << 10];
        let mut sent = 0;
        while sent < total {
            let length = chunk.len().min(total - sent);
            pattern(sent, &mut chunk[..length]);
            writer.write_all(&chunk[..length]).unwrap();
            sent += length;
        }
        writer.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(reader.join().unwrap(), total);
    });
    let mut bed = Bed::connect(to, config);
    bed.loss = loss;
    let (mut written, mut got, mut closed, mut ended) = (0, 0, false, false);
    let mut rounds = 0u32;
    let mut chunk = vec![0; 64 << 10];
    while !matches!(bed.connection.state(), State::TimeWait | State::Closed) {
        bed.round();
        while written < total && bed.connection.writable() {
            let length = chunk.len().min(total - written);
            pattern(written, &mut chunk[..length]);
            match bed.connection.write(&chunk[..length]) {
                Ok(taken) => written += taken,
                Err(Errno::AGAIN) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
        if written == total && !closed {
            closed = true;
            let now = bed.start.elapsed();
            bed.connection.shutdown(Shutdown::Write, now).unwrap();
        }
        rounds += 1;
        if rounds.is_multiple_of(64) {
            // As if another process took over.
            let now = bed.start.elapsed();
            let frozen = bed.connection.freeze(now);
            bed.connection = Connection::thaw(&frozen, now).unwrap();
        }
        while !ended {
            match bed.connection.read(&mut chunk) {
                Ok(0) => ended = true,
                Ok(length) => {
                    check(got, &chunk[..length]);
                    got += length;
                }
                Err(Errno::AGAIN) => break,
                Err(error) => panic!("{error:?} after {got}"),
            }
        }
    }
    // The last acknowledgment may be one of those lost.
    while !peer.is_finished() {
        bed.round();
    }
    peer.join().unwrap();
    assert_eq!(got, total);
    let info = bed.connection.info();
    println!("loss 1/{loss} in {:?}: {info:?}", bed.start.elapsed());
    assert!(info.retransmissions > 0, "nothing was lost");
}

pub fn the_engine_and_the_kernel_mend_what_a_link_loses() {
    let long = config();
    let short = Config { offload: 0, ..long };
    let bare = Config {
        sack: false,
        timestamps: false,
        window_scaling: false,
        ..short
    };
    for (config, loss, total) in [
        (long, 20, 2 << 20),
        (short, 100, 4 << 20),
        (short, 15, 1 << 20),
        (bare, 100, 2 << 20),
    ] {
        exchange_with_loss(&config, loss, total);
    }
}
