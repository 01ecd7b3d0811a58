//! Servers as Debian's packages configure them, with the commands of `tidewall run
//! --help`: most go to the background. Each is served by Tidewall, or standard error
//! reports at once why not.

use std::fs::{self, File};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::bed::Bed;
use crate::common::host::{Host, library};
use crate::common::{PROGRAM, Place, Running, signal, text};
use crate::lane::{End, SERVER};

/// Longest time for a server to answer, and to end: Squid waits for its clients.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Directories that a service manager creates for them, which last until it is stopped.
const DIRECTORIES: &str = "
    for at in /var/log /var/lib/redis /var/lib/unbound /var/spool/squid /srv; do mount -t tmpfs tmpfs $at; done
    for of in redis:redis squid:proxy haproxy:haproxy nginx:www-data unbound:unbound; do
        for at in /run /var/log; do install -d -o ${of#*:} $at/${of%:*}; done
    done
    echo '. IN DS 20326 8 2 E06D44B80B8F1D39A95C0B0D7C65D08458E880409BBC683457104237C7F8EC8D' >/var/lib/unbound/root.key
    chown redis /var/lib/redis; chown unbound /var/lib/unbound /var/lib/unbound/root.key; chown proxy /var/spool/squid; install -d /srv/www; echo page >/srv/www/page";

/// A server as packaged by Debian.
struct Stock<'a> {
    program: &'a str,
    /// Shell words after `tidewall run --interface IF --`.
    command: &'a str,
    /// Options in front of those.
    options: &'a [&'a str],
    /// The end from which it is queried, and the shell words of the query.
    at: End,
    ask: &'a str,
    /// Text that the answer contains.
    answer: &'a str,
    /// Text on standard error while it runs; `None` if all is Tidewall's.
    said: Option<&'a str>,
    /// The report's text on Tidewall's socket.
    takes: Option<&'a str>,
}

const PAGE: &str = "curl -sS --max-time 10 -o /dev/null -w '%{http_code}' http://$SERVER";

#[test]
fn nginx() {
    Stock {
        program: "nginx",
        command: "nginx",
        options: &["--report"],
        at: End::Client,
        ask: PAGE,
        answer: "200",
        // Debian starts a worker for each processor, which share the listener.
        said: (processors() > 1).then_some("another process accepts its connections, too"),
        takes: (processors() == 1).then_some("0.0.0.0:80"),
    }
    .check();
}

#[test]
fn redis() {
    Stock {
        program: "redis-server",
        command: "redis-server /etc/redis/redis.conf",
        options: &["--report"],
        at: End::Server,
        ask: "redis-cli ping",
        answer: "PONG",
        said: Some("listener 127.0.0.1:6379 stays with the kernel: loopback"),
        takes: None,
    }
    .check();
}

#[test]
fn memcached() {
    Stock {
        program: "memcached",
        command: "memcached -d -u nobody",
        options: &["--report"],
        at: End::Client,
        ask: "printf 'version\\r\\nquit\\r\\n' | nc $SERVER 11211",
        answer: "VERSION",
        said: None,
        takes: Some("0.0.0.0:11211"),
    }
    .check();
}

#[test]
fn haproxy() {
    Stock {
        program: "haproxy",
        command: "haproxy -f /etc/haproxy/haproxy.cfg -f $DIR/service.cfg",
        options: &["--report"],
        at: End::Client,
        ask: "curl -sS --max-time 10 http://$SERVER:8081/",
        answer: "served",
        said: None,
        takes: Some("0.0.0.0:8081"),
    }
    .check();
}

#[test]
fn unbound() {
    Stock {
        program: "unbound",
        command: "unbound",
        options: &["--report"],
        at: End::Server,
        // A question for localhost's address, which it knows by itself.
        ask: "printf '\\0\\33\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\11localhost\\0\\0\\1\\0\\1' \
              | timeout 5 nc -q 2 127.0.0.1 53 | tr -cd a-z",
        answer: "localhost",
        said: Some("127.0.0.1:53 stays with the kernel: loopback"),
        takes: None,
    }
    .check();
}

#[test]
fn squid() {
    Stock {
        program: "squid",
        command: "squid",
        options: &["--report"],
        at: End::Client,
        ask: "curl -sS --max-time 10 -o /dev/null -w '%{http_code}' http://$SERVER:3128/",
        answer: "400",
        // It gives up root, then executes itself.
        said: Some("listener [::]:3128 stays with the kernel: it changed its user"),
        takes: None,
    }
    .check();
}

/// The examples of the help, literally.
#[test]
fn examples_of_the_help() {
    let help = crate::common::tidewall(&["run", "--help"]);
    let help = text(&help.stdout);
    let start = "  tidewall run --interface eth1 ";
    let commands = help.lines().filter_map(|line| line.strip_prefix(start));
    let mut commands = commands.peekable();
    assert!(commands.peek().is_some(), "{help}");
    for command in commands {
        let (options, command) = command.split_once("-- ").unwrap();
        let options: Vec<&str> = options
            .split_whitespace()
            .filter(|&it| it != "--report")
            .collect();
        let program = command.split(' ').next().unwrap();
        let port = match program {
            "nginx" => 80,
            "redis-server" => 6379,
            "memcached" => 11211,
            _ => panic!("what does {command} serve?"),
        };
        // Every one of them answers this, since none understands it.
        let ask = format!(
            "exec 3<>/dev/tcp/$SERVER/{port} && printf 'x\\r\\n\\r\\n' >&3 && timeout 5 head -c 1 <&3 | wc -c"
        );
        let takes = format!(":{port}");
        let is_alone = program != "nginx" || processors() == 1;
        Stock {
            program,
            command,
            options: &[&options[..], &["--report"]].concat(),
            at: End::Client,
            ask: &ask,
            answer: "1",
            said: None,
            takes: is_alone.then_some(takes.as_str()),
        }
        .check();
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Stock<'_> {
    fn check(&self) {
        let name = format!("stock {}", self.program);
        let needs = [self.program, "curl", "nc", "redis-cli"];
        if !tidewall_skip::has_programs(&name, &needs) {
            return;
        }
        library();
        let Some(host) = Host::or_skip(&name, "st") else {
            return;
        };
        let service = "frontend service\n  bind 0.0.0.0:8081\n  http-request return status 200 content-type text/plain string served\n";
        let place = Place::new(&format!("stock-{}", self.program)).with("service.cfg", service);
        let directory = place.name("");
        let made = host.command("sh", &["-ec", DIRECTORIES]).output().unwrap();
        assert!(made.status.success(), "{}", text(&made.stderr));

        let log = place.name("said");
        let script = format!("exec {}", self.command);
        let variables = [("DIR", directory.trim_end_matches('/')), ("SERVER", SERVER)];
        let program = ["sh", "-c", &script];
        let mut run = host.run_on(&host.bed.interface, self.options, &program);
        run.envs(variables).stdout(Stdio::null());
        run.stderr(File::create(&log).unwrap());
        let mut run = Running(run.spawn().unwrap());
        let said = || fs::read_to_string(&log).unwrap();

        let until = Instant::now() + TIMEOUT;
        let mut answer = String::new();
        while !answer.contains(self.answer) {
            assert!(
                Instant::now() < until && run.0.try_wait().unwrap().is_none(),
                "{name}: {answer}\n{}",
                said()
            );
            let mut ask = match self.at {
                End::Client => Bed::other(&host.bed.client, "bash", &["-c", self.ask]),
                End::Server => host.command("bash", &["-c", self.ask]),
            };
            answer = text(
                &ask.envs(variables)
                    .stderr(Stdio::null())
                    .output()
                    .unwrap()
                    .stdout,
            );
        }
        let link = ["-d", "link", "show", "dev", &host.bed.interface];
        assert!(
            host.output("ip", &link).contains("xdp"),
            "{name}: {}",
            said()
        );
        if let Some(reason) = self.said {
            while !said().contains(reason) {
                assert!(Instant::now() < until, "{name}: {reason}: {}", said());
            }
            // It is shown while it runs.
            for command in [&["stat"][..], &["top", "--once"], &["doctor"]] {
                let shown = host.output(PROGRAM, command).replace("\n         ", " ");
                assert!(shown.contains(reason), "{name}: {command:?}: {shown}");
            }
        }
        signal("-TERM", &run);
        let until = Instant::now() + TIMEOUT;
        let status = loop {
            match run.0.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < until, "{name} does not end: {}", said()),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        // Some end by the signal.
        let ended = matches!(status.code(), Some(0 | 143));
        assert!(ended, "{name}: {status}: {}", said());
        if let Some(socket) = self.takes {
            let is_taken = |line: &str| line.contains(" Tidewall ") && line.contains(socket);
            assert!(said().lines().any(is_taken), "{name}: {}", said());
        }
        if self.said.is_none() && self.takes.is_some() {
            let stays = said().contains("stays with the kernel");
            assert!(!stays || self.program == "nginx", "{name}: {}", said());
        }
        host.check_clean();
    }
}
