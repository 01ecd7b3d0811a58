use super::*;

fn blast() -> BlastSpec {
    BlastSpec::new(SenderKind::Skb, "10.0.0.2:9".parse().unwrap())
}

#[test]
fn a_spec_survives_json() {
    let spec = LoadSpec {
        blast: Some(BlastSpec {
            destination_mac: Some("02:00:00:00:00:01".parse().unwrap()),
            spoof: Some("10.1.2.3/16".parse().unwrap()),
            rate: Some(1000),
            ..blast()
        }),
        ping: Some(PingSpec::new("[fd00::1]:7".parse().unwrap())),
        beside: vec![PingSpec::new("[fd00::1]:8".parse().unwrap())],
        http: Some(HttpSpec::new("10.0.0.2:80".parse().unwrap(), "/x")),
        s_clients: Some(SClientSpec::new("10.0.0.2:80".parse().unwrap(), "/x", 9)),
        probe: Some(ProbeSpec::new("10.0.0.2:80".parse().unwrap(), "/x")),
        idle: Some(IdleSpec::new("10.0.0.2:80".parse().unwrap(), 7)),
        stream: Some(StreamSpec::new(
            "10.0.0.2:80".parse().unwrap(),
            StreamKind::Echo,
            1,
        )),
        warm_up: Duration::from_millis(100),
        duration: Duration::from_millis(1500),
        cpu: Some(0),
    };
    let json = serde_json::to_string(&spec).unwrap();
    assert!(json.contains(r#""duration":1.5"#), "{json}");
    assert!(json.contains(r#""spoof":"10.1.0.0/16""#), "{json}");
    assert_eq!(serde_json::from_str::<LoadSpec>(&json).unwrap(), spec);
}

#[test]
fn what_is_left_out_has_a_default() {
    let spec: LoadSpec = serde_json::from_str(
        r#"{"blast":{"kind":"skb","destination":"10.0.0.2:9","payload":14},"duration":1}"#,
    )
    .unwrap();
    assert_eq!(spec.blast, Some(blast()));
    assert!(spec.check().is_ok());
}

#[test]
fn ranges_are_checked() {
    type Change = fn(&mut BlastSpec);
    let step = |milliseconds, rate| RateStep {
        after: Duration::from_millis(milliseconds),
        rate,
    };
    let mut steps = BlastSpec {
        steps: vec![step(10, 5), step(20, 1)],
        ..blast()
    };
    assert!(steps.check().is_ok());
    steps.steps.push(step(20, 7));
    assert!(steps.check().is_err(), "two at one time");
    let bad: [Change; 15] = [
        |b| (b.kind, b.ports) = (SenderKind::Frame, vec![9]),
        |b| (b.flows, b.ports) = (2, vec![9]),
        |b| b.ports = vec![9, 0],
        |b| b.payload = 1473,
        |b| b.rate = Some(0),
        |b| b.burst = Some(257),
        |b| b.flows = 0,
        |b| (b.flows, b.source_port) = (2, Some(65535)),
        |b| b.source = Some("::1".parse().unwrap()),
        |b| b.spoof = Some("fd00::/64".parse().unwrap()),
        |b| (b.kind, b.spoof) = (SenderKind::Socket, Some("10.0.0.0/8".parse().unwrap())),
        |b| b.destination.set_port(0),
        |b| {
            b.steps = vec![RateStep {
                after: Duration::ZERO,
                rate: 0,
            }];
        },
        |b| {
            b.packets = Some(1);
            b.steps = vec![RateStep {
                after: Duration::ZERO,
                rate: 1,
            }];
        },
        |b| {
            b.steps = (0..=STEPS_MAX as u64)
                .map(|after| RateStep {
                    after: Duration::from_secs(after),
                    rate: 1,
                })
                .collect();
        },
    ];
    assert!(blast().check().is_ok());
    for (number, change) in bad.iter().enumerate() {
        let mut spec = blast();
        change(&mut spec);
        let error = spec.check().expect_err(&format!("case {number}"));
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn the_duration_is_bounded() {
    let mut spec = LoadSpec {
        blast: Some(blast()),
        ..LoadSpec::new(DURATION_MAX)
    };
    assert!(spec.check().is_ok());
    spec.warm_up = Duration::from_nanos(1);
    assert!(spec.check().is_err());
    spec.duration = Duration::ZERO;
    assert!(spec.check().is_err());
    spec.duration = Duration::MAX;
    assert!(spec.check().is_err());
}

#[test]
fn short_payloads_number_few_requests() {
    let mut ping = PingSpec::new("10.0.0.2:7".parse().unwrap());
    for (payload, most) in [(0, 1), (1, 128), (2, OUTSTANDING_MAX)] {
        (ping.payload, ping.outstanding) = (payload, most);
        assert!(ping.check().is_ok());
        ping.outstanding += 1;
        assert!(ping.check().is_err());
    }
}

#[test]
fn a_flood_of_syns_has_rules_of_its_own() {
    let flood = |kind| BlastSpec::syn(kind, "10.0.0.2:80".parse().unwrap());
    assert!(flood(SenderKind::Skb).check().is_ok());
    assert!(flood(SenderKind::Socket).check().is_err());
    let mut spec = flood(SenderKind::Frame);
    spec.burst = Some(64);
    assert!(spec.check().is_ok());
    spec.burst = Some(65);
    assert!(spec.check().is_err());
    (spec.burst, spec.payload) = (None, 1);
    assert!(spec.check().is_err());
    let json = serde_json::to_string(&flood(SenderKind::Skb)).unwrap();
    assert!(json.contains(r#""content":"syn""#), "{json}");
}

#[test]
fn a_load_is_something_and_its_parts_are_checked() {
    let mut spec = LoadSpec::new(Duration::from_secs(1));
    assert!(spec.check().is_err(), "nothing");
    let server = "10.0.0.2:80".parse().unwrap();
    spec.http = Some(HttpSpec::new(server, "/"));
    spec.check().unwrap();
    spec.probe = Some(ProbeSpec::new(server, "/"));
    let error = spec.check().unwrap_err().to_string();
    assert!(error.contains("longer than a probe's timeout"), "{error}");
    spec.duration = Duration::from_secs(4);
    spec.check().unwrap();
    spec.beside = vec![PingSpec::new(server); 8];
    assert!(spec.check().is_err());
    spec.beside = vec![PingSpec {
        payload: 1473,
        ..PingSpec::new(server)
    }];
    assert!(spec.check().is_err());
}
