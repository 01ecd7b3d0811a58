//! Whatever the path does and however the ends are configured, every byte arrives, and
//! connections end.

use std::time::Duration;

use proptest::prelude::*;
use tidewall_protocol::tcp::{Config, Congestion, Ecn};
use tidewall_simulator::link::{Impairment, Loss, Pause, Queue, Reorder, Thin};
use tidewall_simulator::network::{Application, Network, Reading, Setup};

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

prop_compose! {
    /// Losses that a connection survives: its retransmissions are bounded.
    fn losses()(kind in 0..4, share in 0.0..0.1, lost in prop::collection::vec(0u64..100, 0..30)) -> Loss {
        match kind {
            0 => Loss::None,
            1 => Loss::Random { probability: share },
            2 => Loss::GilbertElliott {
                to_bad: share / 5.0,
                to_good: 0.2,
                loss_good: 0.0,
                loss_bad: 0.8,
                slot: MS,
            },
            _ => Loss::Script(lost),
        }
    }
}

prop_compose! {
    fn impairments()(
        rate in prop::option::of(500_000u64..200_000_000),
        delay in 0u32..50_000,
        jitter in prop_oneof![Just(0u32), 0u32..20_000],
        loss in losses(),
        reorder in prop_oneof![Just(0.0), 0.0..0.2],
        extra in 0u32..30_000,
        duplicate in prop_oneof![Just(0.0), 0.0..0.2],
        limit in prop::option::of(5_000u32..200_000),
        mark in prop::option::of(1_000u32..50_000),
        pause in prop::option::of((100u32..2000, 1u32..100)),
    ) -> Impairment {
        Impairment {
            rate,
            delay: delay * US,
            jitter: jitter * US,
            loss,
            reorder: Reorder { probability: reorder, delay: extra * US },
            duplicate,
            queue: Queue { limit, mark },
            pause: pause.map(|(every, length)| Pause { every: every * MS, length: length * MS }),
            ..Impairment::default()
        }
    }
}

prop_compose! {
    fn configs()(
        mss in prop_oneof![Just(1460u16), 88u16..9000],
        buffers in (2048u32..1 << 20, 2048u32..4 << 20, 2048u32..1 << 20, 2048u32..4 << 20),
        offload in prop_oneof![Just(0u32), Just(65_536), 1u32..100_000],
        options in (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        ecn in prop_oneof![Just(Ecn::Off), Just(Ecn::Passive), Just(Ecn::Active)],
        congestion in prop::sample::select(&Congestion::ALL[..]),
        initial_window in 1u8..20,
    ) -> Config {
        let (receive_buffer, receive_buffer_max, send_buffer, send_buffer_max) = buffers;
        let (timestamps, sack, window_scaling, nodelay, pacing) = options;
        Config {
            mss,
            receive_buffer,
            receive_buffer_max,
            send_buffer,
            send_buffer_max,
            offload,
            timestamps,
            sack,
            window_scaling,
            nodelay,
            pacing,
            ecn,
            congestion,
            initial_window,
            // A path with bursts can be silent for any length of time.
            retries: 30,
            syn_retries: 30,
            timeout_max: Duration::from_secs(10),
            ..Config::default()
        }
    }
}

prop_compose! {
    fn applications()(
        bulk: bool,
        bytes in 0u64..300_000,
        request in 1u64..5_000,
        response in 1u64..30_000,
        count in 1u32..8,
        pause in 0u32..500,
        keep: bool,
    ) -> Application {
        if bulk {
            return Application::Bulk { bytes: Some(bytes) };
        }
        Application::Exchange { request, response, count, pause: pause * MS, keep }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn everything_arrives(
        forward in impairments(),
        back in impairments(),
        thin in prop::option::of((2u32..20, 0u32..10_000)),
        client in configs(),
        server in configs(),
        application in applications(),
        reading in prop::option::of((1usize..20_000, 0u32..20_000)),
        device_queue in prop::option::of(1u32..100_000),
        seed: u64,
    ) {
        let mut network = Network::new(seed);
        // The thinning would affect data, too.
        let thin = thin.filter(|_| matches!(application, Application::Bulk { .. }));
        let back = Impairment {
            thin: thin.map(|(keep_one_of, within)| Thin { keep_one_of, within: within * US }),
            ..back
        };
        let (forward, back) = (network.link(forward), network.link(back));
        let reading = reading.map_or_else(Reading::default, |(at_once, pause)| Reading {
            at_once: at_once.max(200),
            pause: pause * US,
        });
        let flow = network.flow(Setup {
            client,
            server,
            forward: vec![forward],
            back: vec![back],
            application,
            start: Duration::ZERO,
            reading,
            device_queue,
        });
        prop_assert_eq!(network.run(2 * HOUR), Ok(()));
        let report = network.report(flow).unwrap();
        prop_assert!(report.done, "{:?}", report);
        let expected = match application {
            Application::Bulk { bytes } => (bytes.unwrap(), 0),
            Application::Exchange { request, response, count, .. } => {
                (request * u64::from(count), response * u64::from(count))
            }
        };
        prop_assert_eq!((report.uploaded, report.downloaded), expected);
    }
}
