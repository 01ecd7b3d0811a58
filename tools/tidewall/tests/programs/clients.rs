//! wrk as a client.

use crate::lane::{Beside, Program, REMOTE_WEB, ask_locally};

/// A client whose script's output is compared.
fn client(name: &str, package: &str, needs: &[&str], beside: Beside, what: &str, script: &str) {
    let script =
        format!("exec >$DIR/out 2>&1\n{script}\nexec >&-\ntouch $DIR/done\nexec sleep 600\n");
    Program {
        name,
        package,
        needs,
        files: &[("client.sh", &script)],
        server: "bash $DIR/client.sh",
        beside: &[beside],
        ports: &[],
        asks: &[ask_locally(
            what,
            "until [ -e $DIR/done ]; do sleep 0.05; done; cat $DIR/out",
        )],
        takes: &["connections"],
        lacks: "",
    }
    .check();
}

#[test]
fn wrk() {
    client(
        "wrk",
        "wrk",
        &["wrk"],
        REMOTE_WEB,
        "a second over 20 connections, no errors",
        "wrk -t 2 -c 20 -d 1s http://$CLIENT:9002/1k >$DIR/wrk; grep -c 'requests in' $DIR/wrk
         grep -E 'Socket errors|Non-2xx' $DIR/wrk || echo none",
    );
}
