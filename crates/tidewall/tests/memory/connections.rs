//! Connections on a virtual clock: their fate when much is lost, when no
//! thread accepts, when there are too many, and when time passes.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use tidewall::tcp::{Event, Interest, ListenOptions, State};
use tidewall::{Selector, TcpListener, TcpStream};
use tidewall_device::demux::layout::Counter;
use tidewall_device::memory::{LinkConfig, Rings, Side};
use tidewall_protocol::tcp::{Checksum, FourTuple, Link, Outgoing, output};
use tidewall_wire::ethernet::MacAddress;
use tidewall_wire::tcp::{Flags, Header};

use super::support::*;

const PORT: u16 = 80;

/// A bed with a listener at the far end and a selector at each.
pub struct Meeting {
    pub bed: Bed,
    listener: TcpListener,
    near: Selector,
    far: Selector,
}

impl Meeting {
    fn with(options: ListenOptions) -> Meeting {
        Meeting::on(Bed::new(), options)
    }

    /// On a device whose ring holds what a blast brings at once.
    fn with_long_ring() -> Meeting {
        let config = LinkConfig {
            frames: 8192,
            rings: Rings {
                device: 4096,
                fill: 4096,
                receive: 4096,
                ..Rings::default()
            },
            ..LinkConfig::default()
        };
        Meeting::on(Bed::with(config), ListenOptions::default())
    }

    fn on(bed: Bed, options: ListenOptions) -> Meeting {
        let listener = TcpListener::bind_with(&bed.far, at(FAR4, PORT), options).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (near, far) = (
            Selector::new(&bed.near).unwrap(),
            Selector::new(&bed.far).unwrap(),
        );
        far.add(&listener, 0, Interest::READABLE).unwrap();
        Meeting {
            bed,
            listener,
            near,
            far,
        }
    }

    pub fn new() -> Meeting {
        Meeting::with(ListenOptions::default())
    }

    /// Lets both ends look at what has come, until nothing comes any more.
    /// Returns the tokens of near streams that were ready.
    pub fn pump(&self) -> Vec<u64> {
        let mut events: Vec<Event> = Vec::new();
        let mut ready = Vec::new();
        for _ in 0..34 {
            self.far.wait(&mut events, Some(Duration::ZERO)).unwrap();
            self.near.wait(&mut events, Some(Duration::ZERO)).unwrap();
            ready.extend(events.iter().map(|event| event.token));
        }
        ready.sort_unstable();
        ready.dedup();
        ready
    }

    /// As [`Meeting::pump`], where something is ready all the time: then the device is
    /// polled each sixteenth time, and acknowledgments wait for what is written.
    fn pump_while_ready(&self) {
        for _ in 0..3 {
            self.pump();
            self.bed.advance(Duration::from_millis(2));
        }
    }

    pub fn connect(&self, token: u64) -> TcpStream {
        let stream = TcpStream::connect_nonblocking(&self.bed.near, at(FAR4, PORT)).unwrap();
        self.near.add(&stream, token, Interest::READABLE).unwrap();
        stream
    }

    pub fn accept(&self, token: u64) -> Option<TcpStream> {
        match self.listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true).unwrap();
                self.far.add(&stream, token, Interest::READABLE).unwrap();
                Some(stream)
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                None
            }
        }
    }

    fn states(&self) -> [Vec<(String, u64)>; 2] {
        [&self.bed.near, &self.bed.far]
            .map(|stack| stack.snapshot().tcp.states.into_iter().collect())
    }
}

/// A SYN of a host that does not exist, as a frame.
fn syn(source: SocketAddr, sequence: u32) -> Vec<u8> {
    let header = Header {
        sequence,
        flags: Flags::SYN,
        ..Header::default()
    };
    segment(source, 1, header)
}

/// A segment of `source`, from the link address that ends so.
fn segment(source: SocketAddr, station: u8, header: Header) -> Vec<u8> {
    let header = Header {
        source_port: source.port(),
        destination_port: PORT,
        window: 1000,
        ..header
    };
    let link = Link {
        source_mac: MacAddress([2, 0, 0, 0, 0, station]),
        destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
        hop_limit: 64,
        checksum: Checksum::Software,
    };
    let flow = FourTuple {
        local: source,
        remote: at(FAR4, PORT),
    };
    let outgoing = Outgoing {
        header,
        payload: [&[]; 2],
        segment_size: 0,
        traffic_class: 0,
    };
    let mut frame = vec![0; 100];
    let length = output(&mut frame, &link, &flow, &outgoing).unwrap();
    frame.truncate(length);
    frame
}

fn talk(client: &TcpStream, server: &TcpStream, meeting: &Meeting) {
    (&mut &*client).write_all(b"question").unwrap();
    meeting.pump();
    let mut buffer = [0; 16];
    let mut from_client = server;
    assert_eq!(from_client.read(&mut buffer).unwrap(), 8);
    (&mut &*server).write_all(b"answer").unwrap();
    meeting.pump();
    let mut from_server = client;
    assert_eq!(from_server.read(&mut buffer).unwrap(), 6);
}

#[test]
fn who_has_connected_hears_that_the_listener_is_closed() {
    let meeting = Meeting::new();
    let mut stream = meeting.connect(1);
    let mut events = Vec::new();
    for selector in [&meeting.far, &meeting.near] {
        selector.wait(&mut events, Some(Duration::ZERO)).unwrap();
    }
    // For its own end it is connected, which the far end has not looked at yet.
    assert_eq!(meeting.states()[0], [("established".to_owned(), 1)]);
    assert_eq!(meeting.states()[1], []);
    let Meeting {
        bed: _bed,
        listener,
        near,
        far,
    } = meeting;
    far.remove(&listener).unwrap();
    drop(listener);
    near.wait(&mut events, Some(Duration::ZERO)).unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_lost_syn_is_sent_again() {
    let meeting = Meeting::new();
    meeting
        .bed
        .link
        .set_filter(Side::A, Some(Box::new(|number, _| number > 0)));
    let client = meeting.connect(1);
    meeting.pump();
    assert!(meeting.accept(1).is_none());
    meeting.bed.advance(Duration::from_millis(1001));
    meeting.pump();
    let server = meeting.accept(1).expect("the second SYN arrived");
    talk(&client, &server, &meeting);
}

#[test]
fn the_question_rides_with_its_acknowledgment_home() {
    let meeting = Meeting::new();
    let client = meeting.connect(1);
    meeting.pump();
    let server = meeting.accept(1).unwrap();
    meeting.pump();
    let tap = meeting.bed.far_tap();
    (&client).write_all(b"question").unwrap();
    let mut events = Vec::new();
    // The client's turn ends, the server's begins and ends.
    meeting
        .near
        .wait(&mut events, Some(Duration::ZERO))
        .unwrap();
    meeting.far.wait(&mut events, Some(Duration::ZERO)).unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!((&server).read(&mut [0; 16]).unwrap(), 8);
    (&server).write_all(b"answer").unwrap();
    meeting.far.wait(&mut events, Some(Duration::ZERO)).unwrap();
    // A question and an answer: no acknowledgment went alone.
    assert_eq!(tap.take().len(), 2);
}

/// An event loop may look at others before it answers, or closes.
#[test]
fn an_acknowledgment_waits_while_an_event_loop_comes_round() {
    let meeting = Meeting::new();
    let clients = [1, 2].map(|token| meeting.connect(token));
    meeting.pump();
    let servers = [1, 2].map(|token| meeting.accept(token).unwrap());
    meeting.pump();
    let tap = meeting.bed.far_tap();
    let wait = |selector: &Selector| {
        let mut events = Vec::new();
        selector.wait(&mut events, Some(Duration::ZERO)).unwrap();
        events.len()
    };
    let answers = || tap.take().iter().filter(|it| it.from == Side::B).count();
    let [client, other] = clients;
    let [server, _silent] = servers;
    drop(client);
    wait(&meeting.near);
    assert_eq!([0; 3].map(|_| wait(&meeting.far)), [1; 3]);
    assert_eq!(answers(), 0);
    assert_eq!((&server).read(&mut [0; 16]).unwrap(), 0);
    // Its FIN acknowledges the client's.
    drop(server);
    wait(&meeting.far);
    assert_eq!(answers(), 1);
    (&other).write_all(b"x").unwrap();
    wait(&meeting.near);
    assert_eq!([0; 3].map(|_| wait(&meeting.far)), [1; 3]);
    assert_eq!(answers(), 0);
    meeting.bed.advance(Duration::from_millis(3));
    wait(&meeting.far);
    assert_eq!(answers(), 1);
}

/// A server that answers all requests of a turn is away from its selector for longer than the
/// ring lasts.
#[test]
fn the_ring_does_not_overflow_while_answers_are_written() {
    let meeting = Meeting::new();
    let client = meeting.connect(1);
    meeting.pump();
    let server = meeting.accept(1).unwrap();
    meeting.pump();
    // Its channel fills up, which is its own loss.
    let _blasted = meeting.bed.service();
    let frame = datagram(at(NEAR4, 9), at(FAR4, SERVICE), b"x");
    let pass = || {
        (0..96).for_each(|_| meeting.bed.inject(&frame));
        meeting.bed.advance(Duration::from_millis(1));
    };
    let mut events = Vec::new();
    for _ in 0..16 {
        (&client).write_all(b"x").unwrap();
        meeting
            .near
            .wait(&mut events, Some(Duration::ZERO))
            .unwrap();
        pass();
        meeting.far.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events.len(), 1);
    }
    for _ in 0..16 {
        pass();
        (&server).write_all(b"x").unwrap();
    }
    let port = meeting.bed.link.port_counters(Side::B);
    assert_eq!(port.device_full, 0);
}

#[test]
fn a_full_backlog_lets_syns_die_in_the_driver() {
    let meeting = Meeting::with(ListenOptions {
        backlog: 2,
        ..ListenOptions::default()
    });
    let clients: Vec<TcpStream> = (1..=6).map(|token| meeting.connect(token)).collect();
    meeting.pump();
    assert_eq!(meeting.bed.driver(Counter::ChannelFull), 0);
    for port in 0..2000u16 {
        meeting.bed.inject(&syn(at(OTHER4, 1024 + port), 7));
        if port % 64 == 0 {
            meeting.pump();
            meeting.pump();
        }
    }
    let full = meeting.bed.driver(Counter::ChannelFull);
    assert!(full > 1000, "{full}: {:?}", meeting.bed.far.snapshot());
    let listener = meeting.bed.far.snapshot().sockets[0].clone();
    assert_eq!((listener.protocol.as_str(), listener.received), ("tcp", 2));
    // Those that had connected are there once the listener accepts.
    let mut servers = Vec::new();
    for _ in 0..50 {
        meeting.pump();
        servers.extend(meeting.accept(100 + servers.len() as u64));
        meeting.bed.advance(Duration::from_millis(300));
    }
    assert_eq!(servers.len(), clients.len());
}

/// Connections that wait for a listener, all accepted.
fn accepted(listener: &TcpListener) -> usize {
    let mut count = 0;
    while listener.accept().is_ok() {
        count += 1;
    }
    count
}

#[test]
fn listeners_that_share_an_address_have_each_its_part_of_the_connections() {
    let sharing = |backlog| ListenOptions {
        reuse_port: true,
        backlog,
        ..ListenOptions::default()
    };
    let meeting = Meeting::with(sharing(1024));
    let bind = |options| TcpListener::bind_with(&meeting.bed.far, at(FAR4, PORT), options);
    let refused = bind(ListenOptions::default()).err().unwrap();
    assert_eq!(refused.raw_os_error(), Some(libc::EADDRINUSE));
    let [full, second, third] = [1, 1024, 1024].map(|backlog| {
        let listener = bind(sharing(backlog)).unwrap();
        listener.set_nonblocking(true).unwrap();
        meeting.far.add(&listener, 1, Interest::READABLE).unwrap();
        listener
    });
    let first = &meeting.listener;
    let connect = |count: u64| -> Vec<TcpStream> {
        let connected = (1..=count).map(|token| meeting.connect(token)).collect();
        meeting.pump_while_ready();
        connected
    };
    let _connected = connect(100);
    let counts = [first, &second, &third].map(accepted);
    assert!(
        counts.iter().all(|count| (8..=50).contains(count)),
        "{counts:?}"
    );
    assert_eq!(accepted(&full), 1);
    let come = 1 + counts.iter().sum::<usize>();
    // The rest of its part comes again, one at a time, and belongs to no other.
    let mut rest = 0;
    for _ in 0..100 {
        meeting.bed.advance(Duration::from_millis(300));
        meeting.pump_while_ready();
        rest += accepted(&full);
        assert_eq!([first, &second, &third].map(accepted), [0; 3]);
    }
    assert!(rest >= 4 && come + rest <= 100, "{come}, {rest}");
    // Those that are left have all of it.
    drop((full, third));
    let _connected = connect(30);
    let counts = [first, &second].map(accepted);
    assert_eq!(counts.iter().sum::<usize>(), 30);
    second.shutdown(std::net::Shutdown::Both).unwrap();
    let _connected = connect(30);
    assert_eq!(accepted(first), 30);
}

#[test]
fn a_syn_that_a_full_listener_gets_by_another_channel_is_counted() {
    let meeting = Meeting::with(ListenOptions {
        backlog: 1,
        ..ListenOptions::default()
    });
    let client = meeting.connect(1);
    let address = client.local_addr().unwrap();
    meeting.pump_while_ready();
    let server = meeting.accept(1).unwrap();
    // The listener's end is in TIME-WAIT, whose frames are not the listener's.
    drop(server);
    meeting.pump_while_ready();
    drop(client);
    meeting.pump_while_ready();
    assert_eq!(meeting.states()[1], [("time-wait".to_owned(), 1)]);
    let _waiting = meeting.connect(2);
    meeting.pump_while_ready();
    assert_eq!(meeting.bed.far.snapshot().sockets[0].received, 1);
    assert_eq!(meeting.bed.protocol("tcp-listen-overflow"), 0);
    // One of the two is later than the connection that waits.
    for sequence in [0, 1 << 31] {
        if meeting.bed.protocol("tcp-listen-overflow") == 0 {
            meeting.bed.inject(&syn(address, sequence));
            meeting.pump_while_ready();
        }
    }
    // The other one, too, if it came behind that: TIME-WAIT is over then.
    assert!((1..=2).contains(&meeting.bed.protocol("tcp-listen-overflow")));
}

#[test]
fn a_reassembled_segment_of_no_connection_is_counted() {
    let meeting = Meeting::new();
    let mut whole = syn(at(OTHER4, 1024), 7);
    // With data, so that there is something behind the header's fragment.
    let header = whole.len() - 34;
    whole.extend([0; 8]);
    let length = whole.len() as u16 - 14;
    whole[16..18].copy_from_slice(&length.to_be_bytes());
    let sum = u16::from_be_bytes([whole[50], whole[51]]);
    let sum = tidewall_wire::checksum::update(sum, header as u16, header as u16 + 8);
    whole[50..52].copy_from_slice(&sum.to_be_bytes());
    mend_v4(&mut whole);
    for piece in fragment(&whole, 1, header.next_multiple_of(8)) {
        meeting.bed.inject(&piece.frame);
    }
    meeting.pump();
    assert_eq!(meeting.bed.fragments("reassembled"), 1);
    assert_eq!(meeting.bed.protocol("tcp-no-connection"), 1);
}

#[test]
fn who_closed_first_waits_a_minute_and_is_gone() {
    let meeting = Meeting::new();
    let client = meeting.connect(1);
    meeting.pump();
    let server = meeting.accept(1).unwrap();
    talk(&client, &server, &meeting);
    drop(client);
    meeting.pump();
    drop(server);
    meeting.pump();
    let waiting = vec![("time-wait".to_owned(), 1)];
    assert_eq!(meeting.states(), [waiting.clone(), vec![]]);
    meeting.bed.advance(Duration::from_secs(59));
    meeting.pump();
    assert_eq!(meeting.states(), [waiting, vec![]]);
    meeting.bed.advance(Duration::from_secs(2));
    meeting.pump();
    assert_eq!(meeting.states(), [vec![], vec![]]);
    let tcp = meeting.bed.near.snapshot().tcp;
    assert_eq!((tcp.with_channel, tcp.orphans), (0, 0));
}

#[test]
fn connections_without_a_channel_of_their_own_work_too() {
    const MANY: usize = 4300;
    let meeting = Meeting::new();
    let mut clients = Vec::new();
    let mut servers = Vec::new();
    while clients.len() < MANY {
        for _ in 0..50 {
            clients.push(meeting.connect(clients.len() as u64));
        }
        meeting.pump();
        while let Some(server) = meeting.accept(1_000_000 + servers.len() as u64) {
            servers.push(server);
        }
        // Not so long that a connection seems idle.
        meeting.bed.advance(Duration::from_millis(1));
    }
    meeting.pump();
    assert_eq!(servers.len(), MANY);
    let tcp = meeting.bed.far.snapshot().tcp;
    assert_eq!(tcp.states["established"], MANY as u64);
    assert!((3000..4000).contains(&tcp.with_channel), "{tcp:?}");
    for number in [0, 1, 2000, MANY - 2, MANY - 1] {
        talk(&clients[number], &servers[number], &meeting);
    }
    // A busy one without takes that of one that uses its own less.
    let taken = || meeting.bed.far.snapshot().tcp.counters["channels-taken"];
    let last = MANY - 1;
    let before = taken();
    for _ in 0..20 {
        talk(&clients[last], &servers[last], &meeting);
    }
    assert_eq!(taken(), before + 1);
    let after = meeting.bed.far.snapshot().tcp.with_channel;
    assert_eq!(after, tcp.with_channel);
    for _ in 0..20 {
        talk(&clients[last], &servers[last], &meeting);
    }
    assert_eq!(taken(), before + 1, "it has one");
    talk(&clients[0], &servers[0], &meeting);
    let resets = [&meeting.bed.near, &meeting.bed.far]
        .map(|stack| stack.snapshot().tcp.states["established"]);
    assert_eq!(resets, [MANY as u64; 2]);
}

/// Returns two connections of a server that closes first. The first is in TIME-WAIT, as its
/// client's address. The second has an answer of so many bytes on its way.
fn closing(meeting: &Meeting, bytes: usize) -> (SocketAddr, TcpStream) {
    let gone = meeting.connect(1);
    let address = gone.local_addr().unwrap();
    meeting.pump();
    drop(meeting.accept(1).unwrap());
    meeting.pump();
    drop(gone);
    meeting.pump();
    assert_eq!(meeting.states()[1], [("time-wait".to_owned(), 1)]);
    let client = meeting.connect(2);
    meeting.pump();
    let server = meeting.accept(2).unwrap();
    assert_eq!((&server).write(&vec![7; bytes]).unwrap(), bytes);
    drop(server);
    (address, client)
}

fn receive(meeting: &Meeting, mut client: &TcpStream, mut each: impl FnMut()) -> usize {
    let (mut total, mut idle) = (0, 0);
    let mut buffer = vec![0; 1 << 16];
    while idle < 20 {
        each();
        meeting.pump();
        match client.read(&mut buffer) {
            Ok(0) => return total,
            Ok(length) => (total, idle) = (total + length, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                idle += 1;
            }
        }
    }
    panic!("{total} bytes came, and no more");
}

/// One request answered and closed, and then a blast on its flow: what others are
/// still being sent goes on as if there was none.
#[test]
fn a_blast_on_a_flow_in_time_wait_is_nobody_elses_matter() {
    const BYTES: usize = 60_000;
    let meeting = Meeting::with_long_ring();
    let (address, client) = closing(&meeting, BYTES);
    let snapshot = meeting.bed.far.snapshot().tcp;
    assert_eq!((snapshot.with_channel, snapshot.orphans), (1, 1));
    let blast = segment(
        address,
        1,
        Header {
            sequence: 77,
            acknowledgment: 77,
            flags: Flags::ACK,
            ..Header::default()
        },
    );
    let got = receive(&meeting, &client, || {
        for _ in 0..2000 {
            meeting.bed.inject(&blast);
        }
    });
    assert_eq!(got, BYTES);
    assert!(meeting.bed.driver(Counter::OverShare) > 1500);
    assert_eq!(meeting.bed.driver(Counter::ChannelFull), 0);
    let tcp = meeting.bed.far.snapshot().tcp;
    let over = meeting.bed.driver(Counter::OverShare);
    assert_eq!(tcp.dropped, [("time-wait".to_owned(), over)].into());
}

/// Clients of a server that closes first come again from the same ports, many at once.
#[test]
fn clients_come_again_out_of_time_wait() {
    const MANY: usize = 100;
    let meeting = Meeting::with_long_ring();
    let mut addresses = Vec::new();
    for token in 0..MANY as u64 {
        let client = meeting.connect(1 + token);
        addresses.push(client.local_addr().unwrap());
        meeting.pump();
        drop(meeting.accept(1 + token).unwrap());
        meeting.pump();
        drop(client);
        meeting.pump();
    }
    assert_eq!(meeting.states()[1], [("time-wait".to_owned(), MANY as u64)]);
    // One of the two is later than what the last connection had.
    for sequence in [0, 1 << 31] {
        for &address in &addresses {
            meeting.bed.inject(&syn(address, sequence));
        }
        meeting.pump();
    }
    assert_eq!(meeting.bed.driver(Counter::ChannelFull), 0);
    let tcp = meeting.bed.far.snapshot().tcp;
    assert_eq!(tcp.states.get("time-wait"), None);
}

/// TIME-WAIT is the flow's: while the application still has its stream, an old
/// reset ends nothing, and the client may come again.
#[test]
fn time_wait_does_not_wait_for_the_application() {
    let meeting = Meeting::new();
    let client = meeting.connect(1);
    let address = client.local_addr().unwrap();
    meeting.pump_while_ready();
    let server = meeting.accept(1).unwrap();
    (&client).write_all(b"unread").unwrap();
    meeting.pump_while_ready();
    server.shutdown(std::net::Shutdown::Write).unwrap();
    meeting.pump_while_ready();
    assert_eq!((&client).read(&mut [0; 8]).unwrap(), 0);
    drop(client);
    meeting.pump_while_ready();
    let waiting = [("time-wait".to_owned(), 1)];
    assert_eq!(meeting.states()[1], waiting);
    let info = server.info().unwrap();
    assert_eq!((info.state, info.unread), (State::Closed, 6));
    for flags in [Flags::RST, Flags::RST | Flags::ACK] {
        for sequence in [0, 1 << 30, 1 << 31] {
            let header = Header {
                sequence,
                flags,
                ..Header::default()
            };
            meeting.bed.inject(&segment(address, 1, header));
        }
    }
    meeting.pump_while_ready();
    assert_eq!(meeting.states()[1], waiting);
    // One of the two is later than what the last connection had.
    for sequence in [0, 1 << 31] {
        meeting.bed.inject(&syn(address, sequence));
        meeting.pump_while_ready();
    }
    let tcp = meeting.bed.far.snapshot().tcp;
    assert_eq!((tcp.half_open, tcp.states.get("time-wait")), (1, None));
    let mut buffer = [0; 8];
    assert_eq!((&server).read(&mut buffer).unwrap(), 6);
    assert_eq!((&server).read(&mut buffer).unwrap(), 0);
}

#[test]
fn a_syn_ack_is_sent_again_to_the_station_that_asked() {
    let meeting = Meeting::new();
    let tap = meeting.bed.far_tap();
    let asked = [(10, 5010), (11, 5011)];
    let ask = |(station, port)| {
        let header = Header {
            flags: Flags::SYN,
            ..Header::default()
        };
        meeting
            .bed
            .inject(&segment(at(OTHER4, port), station, header));
        meeting.pump();
    };
    let answers = || {
        let mut found: Vec<_> = tap
            .take()
            .iter()
            .map(|frame| frame.bytes.clone())
            .filter(|bytes| bytes[6..12] == [2, 0, 0, 0, 0, 2])
            .map(|bytes| (bytes[5], u16::from_be_bytes([bytes[36], bytes[37]])))
            .collect();
        found.sort_unstable();
        found
    };
    asked.iter().copied().for_each(ask);
    assert_eq!(answers(), asked);
    meeting.bed.advance(Duration::from_millis(1001));
    meeting.pump();
    assert_eq!(answers(), asked);
}

/// Any number of frames on a half-open flow leaves room in the listener's channel for
/// clients that want to connect.
#[test]
fn a_blast_on_a_half_open_flow_keeps_nobody_from_connecting() {
    let meeting = Meeting::with_long_ring();
    let source = at(OTHER4, 5000);
    meeting.bed.inject(&syn(source, 7));
    meeting.pump();
    let header = Header {
        sequence: 1000,
        flags: Flags::ACK,
        ..Header::default()
    };
    for _ in 0..2000 {
        meeting.bed.inject(&segment(source, 1, header));
    }
    let _client = meeting.connect(1);
    // The application polls, but has something else to do than to accept.
    let elsewhere = nonblocking(&meeting.bed.far, anywhere(9));
    assert!(drain(&elsewhere).is_empty());
    meeting.pump();
    assert!(meeting.accept(1).is_some());
    assert!(meeting.bed.driver(Counter::OverShare) > 1000);
    assert_eq!(meeting.bed.driver(Counter::ChannelFull), 0);
}

/// A retransmission of a client that had to wait must not open another connection once its
/// connection is over. Its acknowledgment of a cookie makes a connection each time.
fn each_client_is_served_once(server_closes_first: bool) {
    const CLIENTS: u8 = 12;
    let meeting = Meeting::with(ListenOptions {
        backlog: 1,
        ..ListenOptions::default()
    });
    let connecting = (0..CLIENTS).map(|number| Some(meeting.connect(number.into())));
    let mut clients: Vec<_> = connecting.collect();
    let mut asked = [false; CLIENTS as usize];
    let (mut served, mut accepted) = (Vec::new(), 0);
    let mut servers = Vec::new();
    for step in 0..1500 {
        meeting.pump();
        meeting.bed.advance(Duration::from_millis(20));
        for (number, place) in clients.iter_mut().enumerate() {
            let Some(mut client) = place.as_ref() else {
                continue;
            };
            if !asked[number] {
                asked[number] = client.write(&[number as u8]).is_ok();
            }
            // It has its answer, or the end of its connection.
            if client.read(&mut [0]).is_ok() {
                *place = None;
            }
        }
        // So seldom that those who wait send what they have several times.
        if step % 50 == 0
            && let Some(server) = meeting.accept(u64::from(CLIENTS) + step)
        {
            accepted += 1;
            servers.push(server);
        }
        servers.retain(|mut server| {
            let mut byte = [0];
            match server.read(&mut byte) {
                Ok(1) => {
                    served.push(byte[0]);
                    server.write_all(b"y").unwrap();
                    !server_closes_first
                }
                Ok(_) => false,
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            }
        });
    }
    assert!(asked.iter().all(|&asked| asked));
    served.sort_unstable();
    assert_eq!(served, Vec::from_iter(0..CLIENTS));
    assert_eq!(accepted, CLIENTS);
}

#[test]
fn who_waited_for_room_is_served_once_where_the_server_closes_first() {
    each_client_is_served_once(true);
}

#[test]
fn who_waited_for_room_is_served_once_where_the_client_closes_first() {
    each_client_is_served_once(false);
}
