//! Two engines, a link between them that may be hostile, and a clock that jumps
//! from event to event.

use std::collections::BTreeMap;
use std::time::Duration;

use tidewall_protocol::tcp::{
    Config, Connection, Ecn, Errno, FastOpenPeer, FastOpenServer, FourTuple, Handshake, Listener,
    Outgoing, Reaction, Secrets, Segment, Shutdown, State, Time, Timestamps, timestamp,
};
use tidewall_wire::tcp::{Flags, Header, Options};

use crate::frames::Frames;
pub use crate::random::Random;

/// A segment on the wire.
#[derive(Clone, Debug)]
pub struct Frame {
    pub header: Header,
    pub payload: Vec<u8>,
    pub traffic_class: u8,
}

/// Cuts a burst that offloading left whole, as a device does.
pub fn cut(outgoing: &Outgoing<'_>) -> Vec<Frame> {
    let payload = outgoing.payload.concat();
    let size = usize::from(outgoing.segment_size).max(1);
    if payload.len() <= size {
        return vec![Frame {
            header: outgoing.header,
            payload,
            traffic_class: outgoing.traffic_class,
        }];
    }
    let count = payload.len().div_ceil(size);
    payload
        .chunks(size)
        .enumerate()
        .map(|(index, chunk)| {
            let mut header = outgoing.header;
            header.sequence = header.sequence.wrapping_add((index * size) as u32);
            if index + 1 < count {
                header.flags = Flags(header.flags.0 & !(Flags::PSH.0 | Flags::FIN.0));
            }
            Frame {
                header,
                payload: chunk.to_vec(),
                traffic_class: outgoing.traffic_class,
            }
        })
        .collect()
}

/// Behaviour of the link, in percent and time.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub loss: u8,
    pub duplication: u8,
    /// Chance of an extra delay of up to `jitter`, which causes overtaking.
    pub reorder: u8,
    pub delay: Duration,
    pub jitter: Duration,
    /// Segments with more payload vanish (a path MTU).
    pub payload_max: usize,
}

pub const FAIR: Weather = Weather {
    loss: 0,
    duplication: 0,
    reorder: 0,
    delay: Duration::from_millis(10),
    jitter: Duration::from_millis(30),
    payload_max: usize::MAX,
};

/// One host and the application above it.
pub struct Host {
    pub config: Config,
    pub connection: Option<Connection>,
    /// A half-open handshake, and the SYN-ACK to send again.
    handshake: Option<(Handshake, Frame, Time)>,
    pub to_send: Vec<u8>,
    pub sent: usize,
    pub received: Vec<u8>,
    /// Frames instead of bytes, if the connection carries frames.
    pub frames: Option<Frames>,
    /// Bytes per read of the application, and how long it then sleeps.
    pub read_at_once: usize,
    pub read_pause: Duration,
    pub read_next: Time,
    /// Whether FIN follows the data.
    pub closes: bool,
    pub closed: bool,
    pub ended: bool,
    pub error: Option<Errno>,
    pub segments: usize,
}

impl Host {
    pub fn new(config: Config, to_send: Vec<u8>) -> Self {
        Self {
            config,
            connection: None,
            handshake: None,
            to_send,
            sent: 0,
            received: Vec::new(),
            frames: None,
            read_at_once: usize::MAX,
            read_pause: Duration::ZERO,
            read_next: Duration::ZERO,
            closes: true,
            closed: false,
            ended: false,
            error: None,
            segments: 0,
        }
    }

    pub fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("connected")
    }

    /// Whether everything is sent and received, or has failed.
    pub fn is_done(&self) -> bool {
        self.error.is_some() || self.ended && self.closed
    }

    fn act(&mut self, now: Time) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        while now >= self.read_next && !self.ended && self.error.is_none() {
            let mut buffer = vec![0; self.read_at_once.min(1 << 16)];
            let read = match &mut self.frames {
                None => connection
                    .read(&mut buffer)
                    .map(|read| (read > 0).then_some(read)),
                Some(_) => {
                    let readable = connection.readable();
                    let read = connection.read_frame(&mut buffer);
                    assert_eq!(readable, read != Err(Errno::AGAIN), "readiness");
                    read
                }
            };
            match read {
                Ok(None) => self.ended = true,
                Ok(Some(length)) => {
                    match &mut self.frames {
                        None => self.received.extend(&buffer[..length]),
                        Some(frames) => frames.received.push(buffer[..length].to_vec()),
                    }
                    self.read_next = now + self.read_pause;
                }
                Err(Errno::AGAIN) => break,
                Err(error) => self.error = Some(error),
            }
        }
        let mut all = true;
        if let Some(frames) = &mut self.frames
            && self.error.is_none()
        {
            match frames.send(connection) {
                Ok(sent) => all = sent,
                Err(error) => self.error = Some(error),
            }
        }
        while self.sent < self.to_send.len() && self.error.is_none() {
            match connection.write(&self.to_send[self.sent..]) {
                Ok(length) => self.sent += length,
                Err(Errno::AGAIN) => break,
                Err(error) => self.error = Some(error),
            }
        }
        if self.sent == self.to_send.len()
            && all
            && self.closes
            && !self.closed
            && matches!(connection.state(), State::Established | State::CloseWait)
        {
            connection.shutdown(Shutdown::Write, now).unwrap();
            self.closed = true;
        }
    }

    fn next_timeout(&self, now: Time) -> Option<Time> {
        let connection = self.connection.as_ref();
        let timer = connection.and_then(Connection::next_timeout);
        let again = self.handshake.as_ref().map(|handshake| handshake.2);
        let reads = connection.is_some_and(|connection| connection.readable() && !self.ended);
        let read = (reads && self.read_next > now).then_some(self.read_next);
        [timer, again, read].into_iter().flatten().min()
    }
}

/// The link with both hosts.
pub struct Link {
    pub now: Time,
    pub began: Time,
    pub hosts: [Host; 2],
    pub weather: [Weather; 2],
    pub random: Random,
    /// Ordered by arrival, then sequence; with the destination host.
    queue: BTreeMap<(Time, u64), (usize, Frame)>,
    order: u64,
    flow: FourTuple,
    last_acknowledged: [Option<u32>; 2],
    /// Chance in percent that a markable segment arrives with congestion experienced, by
    /// sending host.
    pub marks: [u8; 2],
    /// Whether hosts are frozen and thawed now and then.
    pub freezes: bool,
    /// Fates of segments of host 0 that begin at an offset of its data: offset, number of
    /// times, and the delay or loss.
    pub fates: Vec<(u32, u32, Option<Duration>)>,
    isn: u32,
    /// For each host, how many of the first SYNs are lost.
    pub lost_syns: [u32; 2],
    /// The listener of host 1, unless handshakes are written by hand.
    listener: Option<Listener>,
    /// Every frame that was sent, with its sender, when wanted.
    pub trace: Option<Vec<(Time, usize, Frame)>>,
}

pub fn flow(v6: bool) -> FourTuple {
    if v6 {
        FourTuple {
            local: "[2001:db8::1]:40000".parse().unwrap(),
            remote: "[2001:db8::2]:80".parse().unwrap(),
        }
    } else {
        FourTuple {
            local: "192.0.2.1:40000".parse().unwrap(),
            remote: "192.0.2.2:80".parse().unwrap(),
        }
    }
}

pub fn reversed(flow: FourTuple) -> FourTuple {
    FourTuple {
        local: flow.remote,
        remote: flow.local,
    }
}

impl Link {
    /// Host 0 connects to host 1.
    pub fn new(hosts: [Host; 2], weather: Weather, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let now = Duration::from_micros(1_000_000 + random.below(1 << 40));
        let flow = flow(false);
        let mut link = Self {
            now,
            began: now,
            hosts,
            weather: [weather; 2],
            random,
            queue: BTreeMap::new(),
            order: 0,
            flow,
            last_acknowledged: [None; 2],
            marks: [0; 2],
            freezes: false,
            fates: Vec::new(),
            isn: 0,
            lost_syns: [0; 2],
            listener: None,
            trace: None,
        };
        let isn = link.random.next() as u32;
        let offset = link.random.next() as u32;
        let config = link.hosts[0].config;
        link.hosts[0].connection = Some(Connection::connect(flow, isn, offset, &config, now));
        link
    }

    /// Host 0 connects to host 1, which listens, with Fast Open.
    pub fn fast(
        hosts: [Host; 2],
        weather: Weather,
        seed: u64,
        peer: &FastOpenPeer,
        server: Option<FastOpenServer>,
    ) -> Self {
        let mut link = Self::new(hosts, weather, seed);
        let (isn, offset) = (link.random.next() as u32, link.random.next() as u32);
        let config = link.hosts[0].config;
        let fast = Connection::connect_fast(link.flow, isn, offset, &config, peer, false, link.now);
        link.hosts[0].connection = Some(fast);
        link.listens(server)
    }

    /// Host 0 connects to host 1, which listens.
    pub fn listening(hosts: [Host; 2], weather: Weather, seed: u64) -> Self {
        Self::new(hosts, weather, seed).listens(None)
    }

    fn listens(mut self, server: Option<FastOpenServer>) -> Self {
        let secrets = Secrets {
            sequence: [1; 16],
            cookie: [2; 16],
        };
        let mut listener = Listener::new(&self.hosts[1].config, 16, secrets);
        listener.set_fast_open(server);
        self.listener = Some(listener);
        self
    }

    /// Runs a listener operation, and sends its segments.
    fn listen(
        &mut self,
        act: impl FnOnce(&mut Listener, &mut dyn FnMut(&FourTuple, &Outgoing<'static>)) -> Reaction,
    ) -> Reaction {
        let Some(mut listener) = self.listener.take() else {
            return Reaction::Nothing;
        };
        let mut frames = Vec::new();
        let reaction = act(&mut listener, &mut |_, outgoing| {
            frames.extend(cut(outgoing));
        });
        self.listener = Some(listener);
        for frame in frames {
            self.transmit(1, frame);
        }
        reaction
    }

    /// Both hosts connect to each other at once.
    pub fn simultaneous(hosts: [Host; 2], weather: Weather, seed: u64) -> Self {
        let mut link = Self::new(hosts, weather, seed);
        let (isn, offset) = (link.random.next() as u32, link.random.next() as u32);
        let config = link.hosts[1].config;
        let flow = reversed(link.flow);
        link.hosts[1].connection = Some(Connection::connect(flow, isn, offset, &config, link.now));
        link
    }

    fn transmit(&mut self, from: usize, mut frame: Frame) {
        let weather = self.weather[from];
        if let Some(trace) = &mut self.trace {
            trace.push((self.now, from, frame.clone()));
        }
        if frame.payload.len() > weather.payload_max {
            return;
        }
        if frame.header.flags.contains(Flags::SYN) && self.lost_syns[from] > 0 {
            self.lost_syns[from] -= 1;
            return;
        }
        let mut late = Duration::ZERO;
        if from == 0 && frame.header.flags.contains(Flags::SYN) {
            self.isn = frame.header.sequence;
        } else if from == 0 && !frame.payload.is_empty() {
            let offset = frame.header.sequence.wrapping_sub(self.isn.wrapping_add(1));
            let fate = self
                .fates
                .iter_mut()
                .find(|fate| fate.0 == offset && fate.1 > 0);
            if let Some((_, times, delay)) = fate {
                *times -= 1;
                match delay {
                    Some(delay) => late = *delay,
                    None => return,
                }
            }
        }
        if frame.traffic_class & 3 == 2 && self.random.percent(self.marks[from]) {
            frame.traffic_class |= 3;
        }
        let copies = 1 + u8::from(self.random.percent(weather.duplication));
        for _ in 0..copies {
            if self.random.percent(weather.loss) {
                continue;
            }
            let mut arrival = self.now + weather.delay + late;
            if self.random.percent(weather.reorder) {
                let jitter = weather.jitter.as_micros() as u64;
                arrival += Duration::from_micros(self.random.below(jitter));
            }
            self.order += 1;
            self.queue
                .insert((arrival, self.order), (1 - from, frame.clone()));
        }
    }

    fn deliver(&mut self, to: usize, frame: &Frame) {
        let now = self.now;
        let flow = if to == 0 {
            self.flow
        } else {
            reversed(self.flow)
        };
        let segment = Segment {
            flow,
            header: frame.header,
            payload: &frame.payload,
            traffic_class: frame.traffic_class,
        };
        if frame.header.flags.contains(Flags::ACK) {
            self.last_acknowledged[to] = Some(frame.header.acknowledgment);
        }
        let host = &mut self.hosts[to];
        host.segments += 1;
        if let Some(connection) = &mut host.connection {
            connection.input(&segment, now);
            return;
        }
        if to == 1 && self.listener.is_some() {
            let reaction = self.listen(|listener, send| listener.input(&segment, now, send));
            if let Reaction::Established(handshake) = reaction {
                let host = &mut self.hosts[to];
                let mut connection = Connection::accept(&handshake, &host.config, now);
                connection.input(&segment, now);
                host.connection = Some(connection);
            }
            return;
        }
        if let Some((handshake, answer, _)) = &host.handshake {
            let header = &frame.header;
            if header.flags.contains(Flags::SYN) {
                let answer = answer.clone();
                self.transmit(to, answer);
            } else if header.flags.contains(Flags::ACK)
                && !header.flags.contains(Flags::RST)
                && header.acknowledgment == handshake.local_isn.wrapping_add(1)
            {
                let handshake = Handshake {
                    window: header.window,
                    ..*handshake
                };
                let mut connection = Connection::accept(&handshake, &host.config, now);
                connection.input(&segment, now);
                host.connection = Some(connection);
                host.handshake = None;
            }
        } else if frame.header.flags.contains(Flags::SYN)
            && !frame.header.flags.contains(Flags::ACK)
        {
            let isn = self.random.next() as u32;
            let offset = self.random.next() as u32;
            let host = &mut self.hosts[to];
            let (handshake, answer) = answer_syn(&segment, &host.config, isn, offset, now);
            host.handshake = Some((handshake, answer.clone(), now + Duration::from_secs(1)));
            self.transmit(to, answer);
        }
    }

    /// The first sequence number that a host has in flight, by its acknowledgments.
    pub fn first_in_flight(&mut self, host: usize) -> u32 {
        // The last acknowledgment among the sent segments is authoritative.
        let last = self.last_acknowledged[host];
        last.expect("the peer has acknowledged something")
    }

    /// Freezes and thaws a host, as if handed over to another process.
    fn refreeze(&mut self, host: usize) {
        let now = self.now;
        if let Some(connection) = &mut self.hosts[host].connection {
            let frozen = connection.freeze(now);
            let thawed = Connection::thaw(&frozen, now).expect("it was just frozen");
            assert_eq!(thawed.freeze(now), frozen, "nothing is lost");
            *connection = thawed;
        }
    }

    /// Makes both hosts act and send.
    pub fn flush(&mut self) {
        for from in 0..2 {
            let now = self.now;
            self.hosts[from].act(now);
            if self.freezes && self.random.percent(10) {
                self.refreeze(from);
            }
            let mut frames = Vec::new();
            if let Some(connection) = &mut self.hosts[from].connection
                && connection.wants_output()
            {
                connection.output(now, &mut |outgoing| {
                    frames.extend(cut(outgoing));
                    assert!(
                        frames.len() < 100_000,
                        "it sends for ever: {:?}",
                        frames.last()
                    );
                    true
                });
                assert!(!connection.wants_output(), "all was sent, and more wanted");
            }
            for frame in frames {
                self.transmit(from, frame);
            }
        }
    }

    fn next_event(&self) -> Option<Time> {
        let arrival = self.queue.keys().next().map(|key| key.0);
        let timers = self.hosts.iter().map(|host| host.next_timeout(self.now));
        let listener = self.listener.as_ref().and_then(Listener::next_timeout);
        timers.chain([arrival, listener]).flatten().min()
    }

    /// Advances to the next event; returns false when there is none.
    pub fn step(&mut self) -> bool {
        self.flush();
        let Some(next) = self.next_event() else {
            return false;
        };
        self.now = self.now.max(next);
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, frame) = entry.remove();
            self.deliver(to, &frame);
        }
        let now = self.now;
        self.listen(|listener, send| {
            listener.timeout(now, &mut |flow, out, _| send(flow, out), &mut |_| {});
            Reaction::Nothing
        });
        for from in 0..2 {
            let host = &mut self.hosts[from];
            if let Some(connection) = &mut host.connection
                && connection.next_timeout().is_some_and(|at| at <= now)
            {
                connection.timeout(now);
            }
            if let Some((_, answer, again)) = &mut host.handshake
                && *again <= now
            {
                *again = now + Duration::from_secs(1);
                let answer = answer.clone();
                self.transmit(from, answer);
            }
        }
        true
    }

    /// Runs until both hosts are done; panics after `limit`, since nothing may hang.
    pub fn run(&mut self, limit: Duration) {
        let done = self.run_unless_cut_off(limit);
        assert!(done, "nothing left to happen: {}", self.describe());
    }

    /// The same, but returns false when the link has lost too much. Then a host has sent
    /// the same bytes in vain as often as it may, which leaves the other waiting.
    pub fn run_unless_cut_off(&mut self, limit: Duration) -> bool {
        let end = self.now + limit;
        while !self.hosts.iter().all(Host::is_done) {
            let more = self.step();
            if !more && !self.hosts.iter().all(Host::is_done) {
                let cut_off = self.hosts.iter().any(|host| {
                    host.connection.as_ref().is_some_and(|connection| {
                        connection.state() == State::Closed
                            && connection.info().retries >= host.config.retries
                    })
                });
                assert!(cut_off, "nothing left to happen: {}", self.describe());
                return false;
            }
            assert!(self.now < end, "it hangs: {}", self.describe());
        }
        true
    }

    /// Runs for a time.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.flush();
            match self.next_event() {
                Some(next) if next <= end => {
                    self.step();
                }
                _ => self.now = end,
            }
        }
        self.flush();
    }

    pub fn describe(&self) -> String {
        let describe = |host: &Host| {
            format!(
                "sent {} of {}, received {}, error {:?}, {:?}",
                host.sent,
                host.to_send.len(),
                host.received.len(),
                host.error,
                host.connection.as_ref().map(Connection::info)
            )
        };
        format!(
            "\n{}\n{}",
            describe(&self.hosts[0]),
            describe(&self.hosts[1])
        )
    }

    /// Each host received the other's data, or the beginning of it if either reports an
    /// error.
    pub fn assert_delivered(&self) {
        let failed = self.hosts.iter().any(|host| host.error.is_some());
        for (from, to) in [(0, 1), (1, 0)] {
            if let (Some(from), Some(to)) = (&self.hosts[from].frames, &self.hosts[to].frames) {
                let (sent, received) = (&from.to_send, &to.received);
                let whole = if failed { received.len() } else { sent.len() };
                assert!(sent.get(..whole) == Some(received), "{}", self.describe());
                continue;
            }
            let (sent, received) = (&self.hosts[from].to_send, &self.hosts[to].received);
            if failed {
                assert!(sent.starts_with(received), "{}", self.describe());
            } else {
                assert!(sent == received, "{}", self.describe());
            }
        }
    }
}

/// The SYN-ACK of a passive opener, and the state that it keeps.
pub fn answer_syn(
    segment: &Segment<'_>,
    config: &Config,
    isn: u32,
    offset: u32,
    now: Time,
) -> (Handshake, Frame) {
    let options = &segment.header.options;
    let timestamps = options.timestamps.filter(|_| config.timestamps);
    let scale = options.window_scale.filter(|_| config.window_scaling);
    let handshake = Handshake {
        flow: segment.flow,
        local_isn: isn,
        remote_isn: segment.header.sequence,
        mss: options.maximum_segment_size.unwrap_or(536),
        window_scale: scale,
        local_window_scale: config.window_scale(),
        sack: options.sack_permitted && config.sack,
        ecn: config.ecn != Ecn::Off && segment.header.flags.contains(Flags::ECE | Flags::CWR),
        timestamps,
        timestamp_offset: offset,
        window: 0,
        round_trip: None,
        fast_open: None,
    };
    let header = Header {
        source_port: segment.flow.local.port(),
        destination_port: segment.flow.remote.port(),
        sequence: isn,
        acknowledgment: segment.header.sequence.wrapping_add(1),
        flags: if handshake.ecn {
            Flags::SYN | Flags::ACK | Flags::ECE
        } else {
            Flags::SYN | Flags::ACK
        },
        window: config.syn_window(),
        urgent: 0,
        options: Options {
            maximum_segment_size: Some(config.mss),
            window_scale: scale.map(|_| config.window_scale()),
            sack_permitted: handshake.sack,
            timestamps: timestamps.map(|peer| Timestamps {
                value: timestamp(now, offset),
                echo: peer.value,
            }),
            ..Options::default()
        },
    };
    let frame = Frame {
        header,
        payload: Vec::new(),
        traffic_class: 0,
    };
    (handshake, frame)
}

/// Bytes that differ from position to position.
pub fn pattern(length: usize, salt: u8) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u8) ^ ((at >> 8) as u8).wrapping_mul(31) ^ ((at >> 16) as u8) ^ salt)
        .collect()
}
