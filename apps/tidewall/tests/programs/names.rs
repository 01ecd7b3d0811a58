//! Unbound.

use crate::lane::{Program, ask};

const CONFIGURATION: &str = "server:
  $INTERFACE
  access-control: 10.99.0.0/24 allow
  num-threads: $THREADS
  so-reuseport: yes
  chroot: \"\"
  username: \"\"
  directory: \"$DIR\"
  pidfile: \"$DIR/unbound.pid\"
  use-syslog: no
  do-daemonize: no
  local-zone: \"test.\" static
  local-data: \"a.test. 60 IN A 192.0.2.1\"
  local-data: \"b.test. 60 IN AAAA 2001:db8::1\"
  local-data: 'long.test. 60 IN TXT \"0123456789012345678901234567890123456789012345678901234567890123456789\"'
remote-control:
  control-enable: no
";

const ONE: &str = "interface: 10.99.0.2";

#[test]
fn unbound() {
    check("unbound", ONE, 1, &["10.99.0.2:53"]);
}

/// It answers from the address to which the question was sent (IP_PKTINFO).
#[test]
fn unbound_automatic() {
    let name = "unbound, interface-automatic";
    check(name, "interface-automatic: yes", 1, &["0.0.0.0:53"]);
}

/// Each thread has its own sockets for the port; those of UDP stay the kernel's.
#[test]
fn unbound_with_threads() {
    check("2 threads of unbound", ONE, 2, &[]);
}

fn check(name: &str, interface: &str, threads: usize, takes: &[&str]) {
    let configuration = CONFIGURATION.replace("$THREADS", &threads.to_string());
    let configuration = configuration.replace("$INTERFACE", interface);
    Program {
        name,
        package: "unbound",
        needs: &["unbound", "dnsperf"],
        files: &[
            ("unbound.conf", &configuration),
            ("queries", "a.test A\nb.test AAAA\nlong.test TXT\nnone.test A\n"),
        ],
        server: "unbound -d -c $DIR/unbound.conf",
        beside: &[],
        ports: &[53],
        asks: &[
            ask(
                "dnsperf by UDP: 8,000 queries of 20 clients, every answer's code",
                "dnsperf -s $SERVER -d $DIR/queries -n 2000 -c 20 | grep -E 'Queries (sent|completed)|Response codes'",
            ),
            ask(
                "dnsperf by TCP: 2,000 queries of 10 clients",
                "dnsperf -m tcp -s $SERVER -d $DIR/queries -n 500 -c 10 | grep -E 'Queries (sent|completed)|Response codes'",
            ),
        ],
        takes,
        lacks: match threads {
            1 => "`num-threads` above 1",
            _ => "UDP stays the kernel's: SO_REUSEPORT",
        },
    }
    .check();
}
