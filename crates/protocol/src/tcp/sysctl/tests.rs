use super::*;

#[test]
fn every_name_is_known_and_no_other() {
    let mut sysctl = Sysctl::default();
    for name in Sysctl::NAMES {
        let value = match name {
            "tcp_rmem" | "tcp_wmem" => "1 2 3",
            "tcp_congestion_control" => "reno",
            "tcp_fastopen_key" => "1-2-3-4",
            _ => "7",
        };
        assert_eq!(sysctl.set(name, value), Ok(()), "{name}");
    }
    let config = sysctl.config();
    assert_eq!((config.receive_buffer, config.receive_buffer_max), (1, 3));
    assert_eq!(config.send_buffer_max, 3);
    assert_eq!(config.congestion, Congestion::NewReno);
    assert_eq!(config.not_sent_low_water, Some(7));
    assert_eq!(config.fin_timeout, Duration::from_secs(7));
    assert_eq!(config.mtu_probing, MtuProbing::Always);
    assert_eq!((config.retries, config.orphan_retries), (7, 7));
    assert_eq!(sysctl.set("tcp_mem", "1 2 3"), Err(SysctlError::Unknown));
}

#[test]
fn what_is_no_value_changes_nothing() {
    let mut sysctl = Sysctl::default();
    for (name, value) in [
        ("tcp_rmem", "1 2"),
        ("tcp_wmem", "many"),
        ("tcp_ecn", "256"),
        ("tcp_fastopen_key", "1-2-3"),
    ] {
        assert_eq!(sysctl.set(name, value), Err(SysctlError::Value), "{name}");
    }
    assert_eq!(sysctl, Sysctl::default());
    let hexadecimal = Sysctl::read(|name| (name == "tcp_fastopen").then(|| "0x403".to_owned()));
    assert_eq!(hexadecimal.fast_open, 0x403);
    // An algorithm that only the kernel has.
    sysctl.set("tcp_congestion_control", "bbr\n").unwrap();
    assert_eq!(sysctl.config().congestion, Congestion::Cubic);
}

#[test]
fn the_default_is_the_engines_but_for_what_linux_keeps_back() {
    let engine = Config {
        receive_buffer: 65_536,
        ..Config::default()
    };
    assert_eq!(Sysctl::default().config(), engine);
}
