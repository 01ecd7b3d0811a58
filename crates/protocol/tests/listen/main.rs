//! The listening side of TCP: handshakes, floods, cookies, TIME-WAIT. The clients are
//! written by hand.

mod cookie;
mod fast_open;
mod flood;
mod fuzz;
mod handshake;
mod time_wait;

use core::time::Duration;
use std::net::{IpAddr, SocketAddr};

use tidewall_protocol::tcp::{
    Config, FourTuple, Listener, Outgoing, Reaction, Secrets, Segment, Timestamps,
};
use tidewall_wire::tcp::{Flags, Header, Options};

const SECRETS: Secrets = Secrets {
    sequence: *b"sequence numbers",
    cookie: *b"0123456789abcdef",
};
const SERVER: &str = "192.0.2.1:80";
const SECOND: Duration = Duration::from_secs(1);
/// Far from zero, and not at the start of a cookie's period.
const START: Duration = Duration::from_secs(100_000);

fn listener(backlog: u32) -> Listener {
    Listener::new(&Config::default(), backlog, SECRETS)
}

fn flow(remote: SocketAddr) -> FourTuple {
    let local = if remote.is_ipv4() {
        SERVER
    } else {
        "[2001:db8::1]:80"
    };
    FourTuple {
        local: local.parse().unwrap(),
        remote,
    }
}

fn client(last: u32, port: u16) -> FourTuple {
    flow(SocketAddr::new(
        IpAddr::V4((0x0a00_0000 + last).into()),
        port,
    ))
}

/// The options of a Linux client.
fn linux(clock: u32) -> Options {
    Options {
        maximum_segment_size: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps {
            value: clock,
            echo: 0,
        }),
        ..Options::default()
    }
}

fn segment(
    flow: FourTuple,
    flags: Flags,
    sequence: u32,
    acknowledgment: u32,
    options: Options,
) -> Segment<'static> {
    Segment {
        flow,
        header: Header {
            source_port: flow.remote.port(),
            destination_port: flow.local.port(),
            sequence,
            acknowledgment,
            flags,
            window: 502,
            urgent: 0,
            options,
        },
        payload: &[],
        traffic_class: 0,
    }
}

fn syn(flow: FourTuple, isn: u32) -> Segment<'static> {
    segment(flow, Flags::SYN, isn, 0, linux(7_000))
}

/// The ACK that a client sends on a SYN-ACK.
fn ack_of(flow: FourTuple, answer: &Header) -> Segment<'static> {
    let timestamps = answer.options.timestamps.map(|theirs| Timestamps {
        value: 7_100,
        echo: theirs.value,
    });
    segment(
        flow,
        Flags::ACK,
        answer.acknowledgment,
        answer.sequence.wrapping_add(1),
        Options {
            timestamps,
            ..Options::default()
        },
    )
}

/// Passes the listener a segment; also returns what it sent.
fn give(
    listener: &mut Listener,
    segment: &Segment<'_>,
    now: Duration,
) -> (Reaction, Vec<(FourTuple, Header)>) {
    let mut sent = Vec::new();
    let reaction = listener.input(segment, now, &mut |flow: &FourTuple, out: &Outgoing<'_>| {
        assert_eq!(out.header.source_port, flow.local.port());
        assert_eq!(out.header.destination_port, flow.remote.port());
        sent.push((*flow, out.header));
    });
    (reaction, sent)
}

/// The segments that the listener sends, and the flows that it drops, by its timers until
/// a time.
fn run_timers(
    listener: &mut Listener,
    until: Duration,
) -> (Vec<(Duration, Header)>, Vec<FourTuple>) {
    let (mut sent, mut forgotten) = (Vec::new(), Vec::new());
    while let Some(next) = listener.next_timeout().filter(|&next| next <= until) {
        listener.timeout(
            next,
            &mut |_, out, _| sent.push((next, out.header)),
            &mut |flow| forgotten.push(*flow),
        );
        assert!(
            listener.next_timeout().is_none_or(|after| after > next),
            "a timer that does not move"
        );
    }
    (sent, forgotten)
}
