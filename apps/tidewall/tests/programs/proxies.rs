//! HAProxy and Squid.

use crate::lane::{LOCAL_WEB, Program, REMOTE_WEB, ask, ask_locally};

const HAPROXY: &str = "global
  nbthread 2
  stats socket $DIR/haproxy.sock level admin
defaults
  timeout connect 5s
  timeout client 30s
  timeout server 30s
frontend web
  mode http
  bind 0.0.0.0:8000
  use_backend remote if { path_beg /remote }
  default_backend local
frontend stream
  mode tcp
  bind 0.0.0.0:8001
  default_backend tcp
backend local
  mode http
  http-request set-header X-By haproxy
  server a 127.0.0.1:9001 check inter 100ms
backend remote
  mode http
  http-request replace-path /remote(.*) \\1
  server b 10.99.0.1:9002 check inter 100ms
  server none 10.99.0.1:9 check inter 100ms fall 1
backend tcp
  mode tcp
  server b 10.99.0.1:9002
";

const SQUID: &str = "http_port 3128
http_access allow all
cache deny all
cache_log stdio:/dev/stderr
access_log none
pid_filename none
shutdown_lifetime 0 seconds
netdb_filename none
pinger_enable off
via off
forwarded_for delete
visible_hostname squid
coredump_dir $DIR
";

#[test]
fn haproxy() {
    Program {
        name: "haproxy",
        package: "haproxy",
        needs: &["haproxy", "ab", "nc"],
        files: &[("haproxy.cfg", HAPROXY)],
        server: "haproxy -db -q -f $DIR/haproxy.cfg",
        beside: &[LOCAL_WEB, REMOTE_WEB],
        ports: &[8000, 8001],
        asks: &[
            ask_locally(
                "health checks and the stats socket",
                "say() { echo \"$1\" | nc -NU $DIR/haproxy.sock; }
                 until say 'show stat' | grep -q '^remote,none,.*DOWN'; do sleep 0.05; done
                 until say 'show stat' | grep -q '^remote,b,.*UP'; do sleep 0.05; done
                 say 'show stat' | cut -d, -f1,2,18 | grep -E '^(local|remote|web|stream)'
                 say 'disable server remote/b'; say 'show servers state remote' | cut -d' ' -f4-7; say 'enable server remote/b'
                 until say 'show stat' | grep -q '^remote,b,.*UP'; do sleep 0.05; done; say nonsense | head -1",
            ),
            ask(
                "HTTP proxy to loopback and beyond the wire: files of 0 B to 8 MB",
                "for file in 0k 1k 100k large; do for at in '' remote/; do curl -sS http://$SERVER:8000/$at$file | md5sum; done; done
                 curl -sS -o /dev/null -w '%{http_code}\\n' http://$SERVER:8000/none",
            ),
            ask(
                "keep-alive: 2,000 requests over 20 connections",
                "ab -q -k -c 20 -n 2000 http://$SERVER:8000/1k | grep -E 'Complete|Failed'
                 ab -q -k -c 20 -n 2000 http://$SERVER:8000/remote/1k | grep -E 'Complete|Failed'",
            ),
            ask(
                "TCP proxy: 8 MB, and 500 connections",
                "curl -sS http://$SERVER:8001/large | md5sum; ab -q -c 20 -n 500 http://$SERVER:8001/1k | grep -E 'Complete|Failed'",
            ),
        ],
        takes: &["0.0.0.0:8000", "0.0.0.0:8001"],
        lacks: "reload (listening sockets over an AF_UNIX socket)",
    }
    .check();
}

/// Until then requests are sent to a missing server.
const HEALTH: &str = "say() { echo 'show stat' | nc -NU $DIR/haproxy.sock; }
until say | grep -q '^remote,none,.*DOWN'; do sleep 0.05; done
until say | grep -q '^remote,b,.*UP'; do sleep 0.05; done; say | cut -d, -f1,2,18 | grep ^remote";

/// As in Debian's own configuration, which changes into an empty root directory.
#[test]
fn haproxy_in_a_root_directory_of_its_own() {
    const CONFINED: &str = "  chroot $DIR/empty\n  user nobody\n  group nogroup\n";
    let configuration = HAPROXY.replacen("global\n", &format!("global\n{CONFINED}"), 1);
    Program {
        name: "haproxy, chroot and user",
        package: "haproxy",
        needs: &["haproxy", "ab", "nc"],
        files: &[("haproxy.cfg", &configuration), ("empty/none", "")],
        server: "haproxy -db -q -f $DIR/haproxy.cfg",
        beside: &[LOCAL_WEB, REMOTE_WEB],
        ports: &[8000, 8001],
        asks: &[
            ask_locally("health checks", HEALTH),
            ask(
                "HTTP proxy to loopback and beyond the wire: files of 0 B to 8 MB",
                "for file in 0k 1k 100k large; do for at in '' remote/; do curl -sS http://$SERVER:8000/$at$file | md5sum; done; done",
            ),
            ask(
                "keep-alive: 2,000 requests over 20 connections",
                "ab -q -k -c 20 -n 2000 http://$SERVER:8000/remote/1k | grep -E 'Complete|Failed'",
            ),
        ],
        takes: &["0.0.0.0:8000", "0.0.0.0:8001"],
        lacks: "",
    }
    .check();
}

/// With one listener for each thread, all on one port.
#[test]
fn haproxy_with_a_listener_for_each_thread() {
    let configuration = HAPROXY
        .replacen("0.0.0.0:8000", "0.0.0.0:8000 shards by-thread", 1)
        .replacen("0.0.0.0:8001", "0.0.0.0:8001 shards 2", 1);
    Program {
        name: "haproxy, shards",
        package: "haproxy",
        needs: &["haproxy", "ab", "nc"],
        files: &[("haproxy.cfg", &configuration)],
        server: "haproxy -db -q -f $DIR/haproxy.cfg",
        beside: &[LOCAL_WEB, REMOTE_WEB],
        ports: &[8000, 8001],
        asks: &[
            ask_locally("health checks", HEALTH),
            ask(
                "HTTP proxy to loopback and beyond the wire: files of 0 B to 8 MB",
                "for file in 0k 1k 100k large; do for at in '' remote/; do curl -sS http://$SERVER:8000/$at$file | md5sum; done; done",
            ),
            ask_locally(
                "the same by loopback",
                "for n in 1 2 3 4 5 6 7 8; do curl -sS http://127.0.0.1:8000/1k | md5sum; done",
            ),
            ask(
                "keep-alive: 2,000 requests over 20 connections",
                "ab -q -k -c 20 -n 2000 http://$SERVER:8000/1k | grep -E 'Complete|Failed'",
            ),
            ask(
                "TCP proxy: 8 MB, and 500 connections",
                "curl -sS http://$SERVER:8001/large | md5sum; ab -q -c 20 -n 500 http://$SERVER:8001/1k | grep -E 'Complete|Failed'",
            ),
        ],
        takes: &["0.0.0.0:8000", "0.0.0.0:8001"],
        lacks: "",
    }
    .check();
}

#[test]
fn squid() {
    Program {
        name: "squid",
        package: "squid",
        needs: &["squid", "nc"],
        files: &[("squid.conf", SQUID)],
        server: "squid -N -f $DIR/squid.conf",
        beside: &[REMOTE_WEB],
        ports: &[3128],
        asks: &[
            ask(
                "forward proxy: files of 0 B to 8 MB, errors",
                "for file in 0k 1k 100k large; do curl -sS -x http://$SERVER:3128 http://$CLIENT:9002/$file | md5sum; done
                 curl -sS -o /dev/null -w '%{http_code}\\n' -x http://$SERVER:3128 http://$CLIENT:9002/none
                 curl -sS -o /dev/null -w '%{http_code}\\n' -x http://$SERVER:3128 http://$CLIENT:9/",
            ),
            ask(
                "a tunnel (CONNECT)",
                "curl -sS -p -x http://$SERVER:3128 http://$CLIENT:9002/large | md5sum",
            ),
            ask(
                "20 requests over a connection, and 500 over 20",
                "curl -sS -w '%{num_connects} ' -x http://$SERVER:3128 $(for n in $(seq 20); do echo -o /dev/null http://$CLIENT:9002/1k; done); echo
                 ab -q -k -c 20 -n 500 -X $SERVER:3128 http://$CLIENT:9002/1k | grep -E 'Complete|Failed'",
            ),
        ],
        takes: &[":3128"],
        lacks: "several workers (SMP)",
    }
    .check();
}
