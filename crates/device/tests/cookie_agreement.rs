//! The driver and the protocol engine must generate and accept the same SYN cookies:
//! either may have answered the SYN whose ACK reaches the listener.

mod demux_support;

use std::time::Duration;

use demux_support::{COOKIES, HASH_KEY, Random, corpus, set_up};
use tidewall_device::demux::layout::Counter;
use tidewall_device::demux::{Tables, Verdict, drive};
use tidewall_protocol::InputOptions;
use tidewall_protocol::tcp::{self, Checksum, Config, Cookies, Link, Segment};
use tidewall_wire::ethernet::MacAddress;
use tidewall_wire::tcp::Flags;

/// The port for which the set-up wants cookies without options.
const PLAIN_PORT: u16 = 93;
const TIME: Duration = Duration::from_secs(1_000_000);

/// The set-up's ports, as an engine's configuration.
fn config(port: u16) -> Config {
    let config = Config {
        mss: COOKIES.mss[0],
        ..Config::default()
    };
    if port != PLAIN_PORT {
        return config;
    }
    Config {
        receive_buffer: 4096,
        timestamps: false,
        sack: false,
        ecn: tidewall_protocol::tcp::Ecn::Off,
        window_scaling: false,
        ..config
    }
}

fn segment(frame: &[u8]) -> Option<Segment<'_>> {
    let transport = match frame[12] {
        8 => usize::from(frame[14] & 15) * 4,
        // Destination options, eight bytes of them in the corpus.
        _ if frame.get(20) == Some(&60) => 48,
        _ => 40,
    };
    // The corpus's SYNs have no checksum; the driver does not look at it either.
    let options = InputOptions {
        checksum_offload_possible: false,
        verified: true,
    };
    tcp::input(&frame[14..], transport, &options).ok()
}

#[test]
fn the_driver_answers_as_the_engine_would_and_each_takes_the_others() {
    let tables = Tables::in_memory_with_key(HASH_KEY).unwrap();
    set_up(&tables);
    let link = Link {
        source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
        hop_limit: COOKIES.hop_limit,
        checksum: Checksum::Software,
    };
    let samples = corpus();
    let mut random = Random(7);
    let mut compared = 0;
    for round in 0..40u64 {
        // The driver's clock, and the application's, which started later.
        let clock = TIME + Duration::from_millis(7_777 * round);
        let now = clock - COOKIES.epoch;
        let driver_time = u64::try_from(clock.as_nanos()).unwrap();
        for sample in &samples {
            let mut frame = sample.bytes.clone();
            let answer = match drive(&tables, 0, &mut frame, driver_time) {
                Verdict::Answered(answer) => answer,
                _ => continue,
            };
            let Some(syn) = segment(&sample.bytes) else {
                panic!("{} was answered", sample.name)
            };
            assert!(syn.header.flags.contains(Flags::SYN));
            let config = config(syn.flow.local.port());
            let cookies = Cookies::new(&config, COOKIES.key);
            let outgoing = cookies.answer(&syn, now).expect(&sample.name);
            let mut bytes = [0; 200];
            let length = tcp::output(&mut bytes, &link, &syn.flow, &outgoing).unwrap();
            assert_eq!(answer.as_bytes(), &bytes[..length], "{}", sample.name);

            // The client's ACK, as the next frame; then a forged one.
            let mut client = syn;
            client.header.flags = Flags::ACK;
            client.header.sequence = syn.header.sequence.wrapping_add(1);
            client.header.acknowledgment = outgoing.header.sequence.wrapping_add(1);
            client.header.options = tidewall_wire::tcp::Options {
                timestamps: outgoing.header.options.timestamps.map(|theirs| {
                    tidewall_wire::tcp::Timestamps {
                        value: 1,
                        echo: theirs.value,
                    }
                }),
                ..Default::default()
            };
            for forged in [false, true] {
                if forged {
                    client.header.acknowledgment ^= 1 << random.below(32);
                }
                let reverse = tcp::FourTuple {
                    local: client.flow.remote,
                    remote: client.flow.local,
                };
                let out = tcp::Outgoing {
                    header: client.header,
                    payload: [&[]; 2],
                    segment_size: 0,
                    traffic_class: 0,
                };
                let length = tcp::output(&mut bytes, &link, &reverse, &out).unwrap();
                let taken = tables.trusted.counter(0, Counter::CookieValid);
                drive(&tables, 0, &mut bytes[..length], driver_time);
                let taken = tables.trusted.counter(0, Counter::CookieValid) > taken;
                assert_eq!(taken, !forged, "{}", sample.name);
                assert_eq!(cookies.check(&client, now).is_some(), !forged);
            }
            compared += 1;
        }
    }
    assert!(compared > 40 * 60, "{compared}");
}
