//! `tidewall atm` between two namespaces: one end receives, the other sends and pings.

mod common;

use common::bed::Bed;
use common::{Service, fails, text};

fn atm<'a>(what: &'a str, interface: &'a str, next_hop: &'a str) -> Vec<&'a str> {
    let end = [
        "--interface",
        interface,
        "--next-hop",
        next_hop,
        "--circuit",
        "0.100",
    ];
    [&["atm", what][..], &end].concat()
}

#[test]
fn payloads_and_cells_go_from_namespace_to_namespace() {
    let Some(bed) = Bed::or_skip("payloads_and_cells_go_from_namespace_to_namespace", "atm") else {
        return;
    };
    let near = bed.interface.replacen("twcs", "twcc", 1);
    let receive = atm("receive", &bed.interface, "10.99.0.1");
    let service = Service::start(Bed::command(&bed.server, &receive));
    let expected = format!("circuit 0.100 of {}, next hop 10.99.0.1\n", bed.interface);
    assert_eq!(service.first, expected);
    let from = |what, more: &[&str]| {
        let arguments = [&atm(what, &near, "10.99.0.2")[..], more].concat();
        Bed::command(&bed.client, &arguments).output().unwrap()
    };
    let sent = from("send", &["--text", "hello"]);
    assert_eq!(
        text(&sent.stdout),
        "sent 1 payloads (5 bytes) on 0.100\n",
        "{sent:?}"
    );
    let sent = from("send", &["--size", "9180", "--count", "2", "--json"]);
    assert_eq!(
        text(&sent.stdout),
        "{\"payloads\":2,\"bytes\":18360}\n",
        "{sent:?}"
    );
    let pinged = from(
        "ping",
        &["--count", "2", "--interval", "0.1s", "--timeout", "10s"],
    );
    let said = text(&pinged.stdout);
    assert!(said.ends_with("2 cells sent, 2 answered\n"), "{said}");
    let totals = service.end();
    assert_eq!(
        totals,
        "5 bytes: 68656c6c6f\n\
         9180 bytes: 000102030405060708090a0b0c0d0e0f…\n\
         9180 bytes: 0102030405060708090a0b0c0d0e0f10…\n"
    );
    // The receiver has gone.
    let pinged = from("ping", &["--count", "1", "--timeout", "0.1s"]);
    assert_eq!(pinged.status.code(), Some(1));
    let said = text(&pinged.stderr);
    assert!(said.contains("no answer on circuit 0.100"), "{said}");
}

#[test]
fn what_is_wrong_is_named() {
    let said = fails(&atm("ping", "tw-none-such", "10.99.0.2"), 2);
    assert!(said.contains("no interface tw-none-such"), "{said}");
    let end = [
        "atm",
        "send",
        "--interface",
        "lo",
        "--next-hop",
        "127.0.0.1",
    ];
    let said = fails(&[&end[..], &["--circuit", "100"]].concat(), 2);
    assert!(said.contains("not a circuit such as 0.100"), "{said}");
    let said = fails(
        &[&end[..], &["--circuit", "0.100", "--size", "0"]].concat(),
        2,
    );
    assert!(said.contains("--size"), "{said}");
}
