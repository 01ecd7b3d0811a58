//! Unbound.

use crate::lane::{Program, ask};

#[test]
fn unbound() {
    Program {
        name: "unbound",
        package: "unbound",
        needs: &["unbound", "dnsperf"],
        files: &[
            (
                "unbound.conf",
                "server:
  interface: 10.99.0.2
  access-control: 10.99.0.0/24 allow
  num-threads: 1
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
",
            ),
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
        takes: &["10.99.0.2:53"],
        lacks: "`num-threads` above 1",
    }
    .check();
}
