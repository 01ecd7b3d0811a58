use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn parse(words: &str) -> Result<Kind, clap::Error> {
    Line::try_parse_from(std::iter::once("load").chain(words.split_whitespace()))
        .map(|line| line.arguments.kind)
}

fn spec(words: &str) -> LoadSpec {
    let kind = parse(words).unwrap_or_else(|error| panic!("{error}"));
    let of = |load: &dyn Filled| load.filled();
    match &kind {
        Kind::SClients(load) => of(load),
        Kind::Http(load) => of(load),
        Kind::Slow(load) => of(load),
        Kind::Rpc(load) => of(load),
        Kind::Udp(load) => of(load),
        Kind::SynFlood(load) => of(load),
        Kind::Blast(_) => panic!("a blast makes its own"),
    }
}

trait Filled {
    fn filled(&self) -> LoadSpec;
}

impl<T: Load> Filled for T {
    fn filled(&self) -> LoadSpec {
        let mut spec = LoadSpec::new(self.run().time);
        spec.warm_up = self.run().warm_up;
        assert!(self.fill(&mut spec).is_ok());
        assert!(!self.name().is_empty());
        spec
    }
}

#[test]
fn s_clients_are_read() {
    let spec = spec("s-clients -R 5k -d 3s -w 500ms --sources 127.0.1.0/27 http://10.0.0.2:81/doc");
    spec.check().unwrap();
    assert_eq!(
        (spec.duration, spec.warm_up),
        (Duration::from_secs(3), Duration::from_millis(500))
    );
    let s_clients = spec.s_clients.unwrap();
    assert_eq!(s_clients.destination, "10.0.0.2:81".parse().unwrap());
    assert_eq!((s_clients.rate, s_clients.establishing()), (5_000, 2_500));
    assert_eq!(s_clients.host.as_deref(), Some("10.0.0.2:81"));
    assert_eq!((s_clients.path.as_str(), s_clients.proxy), ("/doc", false));
    assert_eq!(s_clients.sources.len(), 30);
}

#[test]
fn d_and_t_make_a_rate() {
    let s_clients = spec("s-clients -D 100 -T 200ms http://10.0.0.2/")
        .s_clients
        .unwrap();
    assert_eq!((s_clients.rate, s_clients.establishing()), (500, 100));
    assert!(parse("s-clients http://10.0.0.2/").is_err(), "neither");
    assert!(
        parse("s-clients -D 1 -R 1 http://10.0.0.2/").is_err(),
        "both"
    );
    assert!(parse("s-clients -R max http://10.0.0.2/").is_err());
}

#[test]
fn a_proxy_is_connected_to_and_the_url_asked_for() {
    let words = "-x 10.0.0.9:3128 http://origin.test/doc";
    let s_clients = spec(&format!("s-clients -R 1 {words}")).s_clients.unwrap();
    assert_eq!(s_clients.destination, "10.0.0.9:3128".parse().unwrap());
    assert_eq!(s_clients.host.as_deref(), Some("origin.test"));
    assert!(s_clients.proxy);
    let http = spec(&format!("http -H other {words}")).http.unwrap();
    assert_eq!((http.host.as_deref(), http.proxy), (Some("other"), true));
}

#[test]
fn http_is_closed_unless_it_has_a_rate() {
    use tidewall_load::{Reuse, Wait};
    let http = spec("http http://10.0.0.2/").http.unwrap();
    assert_eq!((http.rate, http.connections), (None, 32));
    assert_eq!((http.reuse, http.wait), (Reuse::KeepAlive, Wait::Block));
    let http = spec("http -c 7 -R 2k --close --spin http://10.0.0.2/")
        .http
        .unwrap();
    assert_eq!((http.rate, http.connections), (Some(2_000), 7));
    assert_eq!((http.reuse, http.wait), (Reuse::OneRequest, Wait::Spin));
}

#[test]
fn slow_connections_are_silent_unless_asked_to_be_otherwise() {
    use tidewall_load::Habit;
    let idle = spec("slow -c 100k -r 5k --sources 10.0.1.0/28 http://10.0.0.2/doc");
    idle.check().unwrap();
    let idle = idle.idle.unwrap();
    assert_eq!((idle.connections, idle.pace), (100_000, Some(5_000)));
    assert_eq!((idle.habit, idle.path.as_str()), (Habit::Silent, ""));
    for (mode, habit, seconds) in [("trickle", Habit::Trickle, 60), ("sip", Habit::Sip, 1)] {
        let words = format!("slow -c 7 --mode {mode} http://10.0.0.2/doc");
        let idle = spec(&words).idle.unwrap();
        assert_eq!((idle.habit, idle.path.as_str()), (habit, "/doc"));
        assert_eq!(idle.every, Duration::from_secs(seconds));
    }
    let idle = spec("slow -c 7 --mode keep --every 2s http://10.0.0.2/")
        .idle
        .unwrap();
    assert_eq!((idle.habit, idle.path.as_str()), (Habit::Silent, "/"));
    assert!(parse("slow -c 1000001 http://10.0.0.2/").is_err());
    assert!(parse("slow http://10.0.0.2/").is_err());
}

#[test]
fn calls_have_rates_of_their_own() {
    let mix = spec("rpc --to 10.0.0.2:7@20k --to 10.0.0.2:8 -n 64 -s 100");
    mix.check().unwrap();
    let first = mix.ping.unwrap();
    assert_eq!(
        (first.rate, first.outstanding, first.payload),
        (Some(20_000), 64, 100)
    );
    assert_eq!((mix.beside.len(), mix.beside[0].rate), (1, None));
    assert!(parse("rpc").is_err());
    for to in ["10.0.0.2", "10.0.0.2:7@", "10.0.0.2:7@max", "x:7"] {
        assert!(parse(&format!("rpc --to {to}")).is_err(), "{to}");
    }
}

#[test]
fn packets_are_blasts() {
    use tidewall_load::{Content, SenderKind};
    let udp = spec("udp --to 10.0.0.2:9 -R max -s 64 --sender frame")
        .blast
        .unwrap();
    assert_eq!(
        (udp.rate, udp.payload, udp.kind),
        (None, 64, SenderKind::Frame)
    );
    let flood = spec("syn-flood --to 10.0.0.2:9 -R 10k --spoof 10.1.0.0/16")
        .blast
        .unwrap();
    assert_eq!((flood.content, flood.rate), (Content::Syn, Some(10_000)));
    let flood = spec("syn-flood --to 10.0.0.2:9 --sender socket");
    assert!(flood.check().is_err());
    assert!(matches!(parse("blast --to 10.0.0.2:9"), Ok(Kind::Blast(_))));
}

#[test]
fn intervals_have_bounds() {
    for words in ["--interval 1ms", "--interval 2h", "--for soon"] {
        assert!(
            parse(&format!("http {words} http://10.0.0.2/")).is_err(),
            "{words}"
        );
    }
}
