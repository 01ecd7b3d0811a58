//! curl, wrk and ssh as clients.

use crate::lane::{Beside, End, Program, REMOTE_WEB, ask_locally};

/// Its keys are made when it starts.
const SSHD: Beside = Beside {
    at: End::Client,
    listens: "10.99.0.1/2222",
    server: "unshare -m sh -ec 'mount -t tmpfs tmpfs /run; mkdir /run/sshd
        ssh-keygen -q -t ed25519 -N \"\" -f $DIR/key; cp $DIR/key.pub $DIR/authorized; chmod 600 $DIR/authorized
        exec /usr/sbin/sshd -D -e -f $DIR/sshd.conf'",
};

const SSHD_CONFIGURATION: &str = "Port 2222
ListenAddress 10.99.0.1
HostKey $DIR/key
AuthorizedKeysFile $DIR/authorized
StrictModes no
UsePAM no
PermitRootLogin yes
PidFile none
";

/// A client whose script's output is compared.
fn client(name: &str, package: &str, needs: &[&str], beside: Beside, what: &str, script: &str) {
    let script =
        format!("exec >$DIR/out 2>&1\n{script}\nexec >&-\ntouch $DIR/done\nexec sleep 600\n");
    Program {
        name,
        package,
        needs,
        files: &[("client.sh", &script), ("sshd.conf", SSHD_CONFIGURATION)],
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
fn curl() {
    client(
        "curl",
        "curl",
        &[],
        REMOTE_WEB,
        "files of 0 B to 8 MB, 20 requests over a connection, 10 at once, a port that refuses",
        "for file in 0k 1k 100k large; do curl -sS http://$CLIENT:9002/$file | md5sum; done
         curl -sS -w '%{num_connects} ' $(for n in $(seq 20); do echo -o /dev/null http://$CLIENT:9002/1k; done); echo
         curl -sS -Z --no-progress-meter --parallel-max 10 -w '%{http_code} ' $(for n in $(seq 10); do echo -o /dev/null http://$CLIENT:9002/100k; done); echo
         curl -sS http://$CLIENT:9/ 2>&1 | sed 's/after [0-9]* ms/after/'",
    );
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

#[test]
fn ssh() {
    client(
        "ssh",
        "openssh-client",
        &["ssh", "ssh-keygen"],
        SSHD,
        "commands, 8 MB each way",
        "ssh() { command ssh -p 2222 -i $DIR/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -F none $CLIENT \"$@\"; }
         ssh echo hello; ssh exit 7; echo $?; ssh md5sum <$DIR/www/large; ssh cat $DIR/www/large | md5sum",
    );
}
