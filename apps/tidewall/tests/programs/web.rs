//! nginx.

use crate::lane::{Ask, LOCAL_WEB, Program, REMOTE_WEB, ask};

const CONFIGURATION: &str = "daemon off; error_log stderr; pid $DIR/nginx.pid;
events { worker_connections 512; }
http {
  access_log off; sendfile on; tcp_nopush on; keepalive_timeout 30; types { text/plain txt; }
  client_body_temp_path $DIR/t1; proxy_temp_path $DIR/t2; fastcgi_temp_path $DIR/t3;
  uwsgi_temp_path $DIR/t4; scgi_temp_path $DIR/t5;
  upstream local { server 127.0.0.1:9001; keepalive 4; }
  upstream remote { server 10.99.0.1:9002; keepalive 4; }
  server {
    listen 8080; root $DIR/www;
    location /local/ { proxy_pass http://local/; proxy_http_version 1.1; proxy_set_header Connection ''; }
    location /remote/ { proxy_pass http://remote/; proxy_http_version 1.1; proxy_set_header Connection ''; }
    location /plain/ { sendfile off; alias $DIR/www/; }
  }
}
";

/// The requests to a web server and proxy at port 8080.
const ASKS: &[Ask<'static>] = &[
    ask(
        "static files of 0 B to 8 MB by sendfile and by write, ranges, HEAD, conditions, errors",
        "cd $DIR/www; for file in *; do for at in '' plain/; do curl -sS http://$SERVER:8080/$at$file | md5sum; done; done
         curl -sS -r 1000-1999,7000000-7000099 http://$SERVER:8080/large | grep -av '^--' | md5sum
         for path in 1k none ../etc/passwd; do
           curl -sSI --path-as-is -w '%{http_code} %{size_download}\\n' http://$SERVER:8080/$path | grep -vE '^(Date|Last-Modified|ETag)'
         done
         curl -sS -o /dev/null -w '%{http_code}\\n' -z tomorrow http://$SERVER:8080/1k; printf 'nonsense\\r\\n\\r\\n' | nc -N $SERVER 8080 | head -1",
    ),
    ask(
        "keep-alive: 20 requests over a connection, and 5,000 over 40 (ab -k)",
        "curl -sS -w '%{num_connects} ' $(for n in $(seq 20); do echo -o /dev/null http://$SERVER:8080/1k; done); echo
         ab -q -k -c 40 -n 5000 http://$SERVER:8080/1k | grep -E 'Complete|Failed|Keep-Alive|HTML'",
    ),
    ask(
        "a connection for each of 1,000 requests",
        "ab -q -c 20 -n 1000 http://$SERVER:8080/1k | grep -E 'Complete|Failed'",
    ),
    ask(
        "reverse proxy to an upstream on loopback and to one beyond the wire",
        "for at in local remote; do for file in 0k 1k 100k large; do curl -sS http://$SERVER:8080/$at/$file | md5sum; done
         ab -q -k -c 10 -n 500 http://$SERVER:8080/$at/1k | grep -E 'Complete|Failed'; done",
    ),
];

/// nginx with its processes in this arrangement.
fn nginx(name: &'static str, server: &'static str) {
    Program {
        name,
        package: "nginx-light",
        needs: &["nginx", "ab", "nc"],
        files: &[("nginx.conf", CONFIGURATION)],
        server,
        beside: &[LOCAL_WEB, REMOTE_WEB],
        ports: &[8080],
        asks: ASKS,
        takes: &["0.0.0.0:8080"],
        lacks: "`worker_processes` above 1 (served by the kernel's sockets)",
    }
    .check();
}

#[test]
fn nginx_with_a_worker() {
    nginx(
        "nginx, worker_processes 1",
        "nginx -c $DIR/nginx.conf -g 'worker_processes 1; user www-data;'",
    );
}

#[test]
fn nginx_without_a_master() {
    nginx(
        "nginx, master_process off",
        "nginx -c $DIR/nginx.conf -g 'master_process off;'",
    );
}
