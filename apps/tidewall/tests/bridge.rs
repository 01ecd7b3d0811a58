//! `tidewall acp-bridge`: over loopback with a server of the test's own, and with
//! unmodified Redis through a switch in namespaces (needs root and Redis; skipped
//! without).

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use common::bed::Bed;
use common::star::Star;
use common::{Place, Running, Service, fails, program, text};
use tidewall_wire::resp;

/// Nothing here takes so long.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Starts a bridge; returns it and its address.
fn bridge(side: &str, to: &str, more: &[&str]) -> (Service, SocketAddr) {
    let arguments = [
        &["acp-bridge", side, "--listen", "127.0.0.1:0", "--to", to],
        more,
    ];
    let service = Service::start(program(&arguments.concat()));
    let address = service.first.split(' ').nth(2).unwrap();
    let address = address.parse().unwrap();
    (service, address)
}

/// Puts a client bridge and a member bridge in front of this; returns the client's
/// connection.
fn bridges(to: &str, more: &[&str]) -> ([Service; 2], TcpStream) {
    let (member, address) = bridge("member", to, more);
    let (client, address) = bridge("client", &address.to_string(), more);
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    ([member, client], stream)
}

/// A store with GET, SET, MGET, MSET and DEL, one connection after another; `DIE` ends one.
fn serve(mut stream: impl Read + Write) {
    let mut store: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    let bulk = |value: Option<&Vec<u8>>| match value {
        Some(value) => [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
        None => b"$-1\r\n".to_vec(),
    };
    let (mut input, mut buffer) = (Vec::new(), vec![0; 4096]);
    let mut scanner = resp::Scanner::new();
    loop {
        let read = stream.read(&mut buffer).unwrap_or(0);
        if read == 0 {
            return;
        }
        let mut rest = &buffer[..read];
        let mut output = Vec::new();
        while !rest.is_empty() {
            let (taken, ended) = scanner.scan(rest).unwrap();
            input.extend(&rest[..taken]);
            rest = &rest[taken..];
            if !ended {
                continue;
            }
            let command = std::mem::take(&mut input);
            let arguments: Vec<_> = resp::arguments(&command).unwrap().collect();
            let name = arguments[0].to_ascii_uppercase();
            output.extend(match (name.as_slice(), &arguments[1..]) {
                (b"GET", [b"die"]) => {
                    let _ = stream.write_all(&output);
                    return;
                }
                (b"GET", [key]) => bulk(store.get(*key)),
                (b"MGET", [key]) => [b"*1\r\n".to_vec(), bulk(store.get(*key))].concat(),
                (b"SET" | b"MSET", [key, value]) => {
                    store.insert(key.to_vec(), value.to_vec());
                    b"+OK\r\n".to_vec()
                }
                (b"DEL", [key]) => {
                    format!(":{}\r\n", u8::from(store.remove(*key).is_some())).into_bytes()
                }
                other => panic!("{other:?}"),
            });
        }
        if stream.write_all(&output).is_err() {
            return;
        }
    }
}

fn tcp_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            serve(stream.unwrap());
        }
    });
    address.to_string()
}

fn expect(stream: &mut TcpStream, reply: &[u8]) {
    let mut got = vec![0; reply.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == reply, "{}", got[..got.len().min(200)].escape_ascii());
}

#[test]
fn commands_go_through_both_bridges_and_replies_come_back_in_order() {
    let ([member, client], mut stream) = bridges(&tcp_server(), &["--segment", "1000"]);
    let asked = "MSET a 1 b 2 c 3\r\nMGET c x a\r\nPING\r\nDEL a b a\r\nMULTI\r\nGET c\r\n";
    // One byte at a time, so that everything is split everywhere.
    for byte in asked.bytes() {
        stream.write_all(&[byte]).unwrap();
    }
    expect(
        &mut stream,
        b"+OK\r\n*3\r\n$1\r\n3\r\n$-1\r\n$1\r\n1\r\n+PONG\r\n:2\r\n-ERR tidewall acp-bridge: MULTI \
          cannot be served: keys are on several members, and by no one key of it could one be \
          chosen\r\n$1\r\n3\r\n",
    );
    // More commands at once than may be unanswered.
    stream.write_all(&b"GET c\r\n".repeat(10_000)).unwrap();
    expect(&mut stream, &b"$1\r\n3\r\n".repeat(10_000));
    // Values longer than a frame, and than the bytes kept at a time, while nothing is
    // read.
    let value = common::content(300_000);
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nv\r\n${}\r\n", value.len());
    let set = [head.as_bytes(), &value, b"\r\n"].concat();
    let mut output = stream.try_clone().unwrap();
    let writing = thread::spawn(move || {
        output.write_all(&set).unwrap();
        for _ in 0..50 {
            output.write_all(b"GET v\r\n").unwrap();
        }
        output.shutdown(std::net::Shutdown::Write).unwrap();
    });
    writing.join().unwrap();
    // Time for replies to fill all buffers on their way.
    thread::sleep(Duration::from_millis(500));
    expect(&mut stream, b"+OK\r\n");
    let reply = [b"$300000\r\n", &value[..], b"\r\n"].concat();
    for _ in 0..50 {
        expect(&mut stream, &reply);
    }
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    for service in [client, member] {
        let totals = service.end();
        assert_eq!(totals, "connections 1, of which 0 were broken off\n");
    }
}

#[test]
fn a_server_that_goes_is_not_taken_for_one_that_has_answered() {
    let ([_member, client], mut stream) = bridges(&tcp_server(), &[]);
    stream.write_all(b"SET a 1\r\n").unwrap();
    expect(&mut stream, b"+OK\r\n");
    stream.write_all(b"GET die\r\nGET a\r\n").unwrap();
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    assert_eq!(said, b"");
    let totals = client.end();
    assert_eq!(totals, "connections 1, of which 1 were broken off\n");
}

#[test]
fn a_server_at_a_unix_socket() {
    let place = Place::new("bridge-unix");
    let path = place.name("server");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || serve(listener.accept().unwrap().0));
    let (_bridges, mut stream) = bridges(&format!("unix:{path}"), &[]);
    stream.write_all(b"SET a 1\r\nGET a\r\nQUIT\r\n").unwrap();
    expect(&mut stream, b"+OK\r\n$1\r\n1\r\n+OK\r\n");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn messages_behind_their_length_go_through_both_bridges() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut length = [0; 4];
        while stream.read_exact(&mut length).is_ok() {
            let mut message = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut message).unwrap();
            // Each returns ten times as long.
            let answer = message.repeat(10);
            stream
                .write_all(&(answer.len() as u32).to_be_bytes())
                .unwrap();
            stream.write_all(&answer).unwrap();
        }
    });
    let more = ["--messages", "length", "--segment", "1000"];
    let (_bridges, mut stream) = bridges(&address, &more);
    for length in [0_u32, 1, 500, 900] {
        let message = common::content(length as usize);
        let sent = [&length.to_be_bytes()[..], &message].concat();
        stream.write_all(&sent).unwrap();
        let answer = message.repeat(10);
        expect(
            &mut stream,
            &[&(10 * length).to_be_bytes()[..], &answer].concat(),
        );
    }
    // A message that fits into no frame ends the connection.
    stream.write_all(&2000_u32.to_be_bytes()).unwrap();
    stream.write_all(&[0; 2000]).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn what_is_wrong_is_said() {
    let listen = ["--listen", "127.0.0.1:0"];
    let unix = [
        "acp-bridge",
        "client",
        listen[0],
        listen[1],
        "--to",
        "unix:/x",
    ];
    assert!(fails(&unix, 2).contains("by TCP"));
    let name = [
        "acp-bridge",
        "member",
        listen[0],
        listen[1],
        "--to",
        "redis",
    ];
    assert!(fails(&name, 2).contains("neither ADDRESS:PORT nor unix:PATH"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let again = [
        "acp-bridge",
        "member",
        "--listen",
        &address,
        "--to",
        &address,
    ];
    assert!(fails(&again, 2).contains("another program has the port"));
}

const MEMBERS: usize = 4;
const VIRTUAL: &str = "10.99.0.99:6379";

/// A client, a switch and four members; in each member's namespace a Redis.
struct Ensemble {
    _redis: Vec<Running>,
    star: Star,
}

impl Ensemble {
    fn or_skip(test: &str) -> Option<Self> {
        for name in ["redis-server", "redis-cli", "redis-benchmark"] {
            if Command::new(name).arg("--version").output().is_err() {
                tidewall_skip::missing(test, format!("no {name} (apt-get install redis)"));
                return None;
            }
        }
        let star = Star::or_skip(test, "br", 1 + MEMBERS)?;
        let redis = (1..=MEMBERS).map(|number| {
            let socket = star.place.name(&format!("redis{number}"));
            let arguments = ["--port", "0", "--unixsocket", &socket, "--save", ""];
            let mut redis = Bed::other(&star.ends[number], "redis-server", &arguments);
            let mut redis = Running(redis.stdout(Stdio::piped()).spawn().unwrap());
            let mut lines = BufReader::new(redis.0.stdout.take().unwrap()).lines();
            let ready = |line: &Result<String, _>| {
                line.as_ref().is_ok_and(|it| it.contains("ready to accept"))
            };
            assert!(lines.any(|line| ready(&line)), "redis-server did not begin");
            // Its further output must be read, or it would block.
            thread::spawn(move || lines.for_each(drop));
            redis
        });
        let redis = redis.collect();
        Some(Self {
            _redis: redis,
            star,
        })
    }

    /// Returns the output of a program in the client's namespace.
    fn client(&self, name: &str, arguments: &[&str]) -> String {
        let limited = [&["30", name], arguments].concat();
        let output = Bed::other(&self.star.ends[0], "timeout", &limited)
            .output()
            .unwrap();
        let said = text(&output.stdout);
        let error = text(&output.stderr);
        assert!(
            output.status.success(),
            "{name} {arguments:?}: {said}{error}"
        );
        said
    }
}

#[test]
fn redis_over_four_members_looks_like_one() {
    const TEST: &str = "redis_over_four_members_looks_like_one";
    let Some(ensemble) = Ensemble::or_skip(TEST) else {
        return;
    };
    let members: Vec<_> = (1..=MEMBERS)
        .map(|number| {
            let listen = format!("10.99.{number}.2:6379");
            let to = format!(
                "unix:{}",
                ensemble.star.place.name(&format!("redis{number}"))
            );
            let arguments = ["acp-bridge", "member", "--listen", &listen, "--to", &to];
            Service::start(Bed::command(&ensemble.star.ends[number], &arguments))
        })
        .collect();
    let file = "module = 'key-value'\nkey = [8, 9]";
    let file = ensemble.star.file(6379, MEMBERS, file);
    let switch = Service::start(Bed::command(&ensemble.star.switch, &["switch", &file]));
    assert!(switch.first.contains("key-value for 4"), "{}", switch.first);
    let arguments = [
        "acp-bridge",
        "client",
        "--listen",
        "127.0.0.1:6379",
        "--to",
        VIRTUAL,
    ];
    let client = Service::start(Bed::command(&ensemble.star.ends[0], &arguments));
    let cli = |arguments: &[&str]| ensemble.client("redis-cli", arguments);

    let keys: Vec<String> = (0..100).map(|number| format!("key:{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let pairs: Vec<&str> = keys.iter().flat_map(|&key| [key, &key[4..]]).collect();
    assert_eq!(cli(&[&["MSET"], &pairs[..]].concat()), "OK\n");
    let values: String = (0..100).map(|number| format!("{number}\n")).collect();
    assert_eq!(cli(&[&["MGET"], &keys[..]].concat()), values);
    assert_eq!(cli(&[&["EXISTS", "none"], &keys[..]].concat()), "100\n");
    // Each server has some of them, and none has another's.
    let mut sum = 0;
    for number in 1..=MEMBERS {
        let socket = ensemble.star.place.name(&format!("redis{number}"));
        let size = cli(&["-s", &socket, "DBSIZE"]);
        let size: usize = size.trim().parse().unwrap();
        assert!(size > 0);
        sum += size;
    }
    assert_eq!(sum, 100);
    assert_eq!(cli(&[&["DEL"], &keys[..]].concat()), "100\n");
    let value = "v".repeat(100_000);
    assert_eq!(cli(&["SET", "long", &value]), "OK\n");
    assert_eq!(cli(&["GET", "long"]).trim_end(), value);
    assert!(cli(&["MULTI"]).contains("several members"));
    assert_eq!(cli(&["PING"]), "PONG\n");
    let load = "-q -t get,set,incr,mset -r 1000 -n 2000 -c 10 -P 16";
    let load: Vec<&str> = load.split(' ').collect();
    let said = ensemble.client("redis-benchmark", &load);
    for name in ["SET: ", "GET: ", "INCR: ", "MSET (10 keys): "] {
        let line = said.split(['\r', '\n']).filter(|line| line.contains(name));
        assert!(
            line.into_iter()
                .any(|line| line.contains("requests per second")),
            "{said}"
        );
    }
    assert!(!said.contains("Error"), "{said}");
    // redis-benchmark may exit with outstanding replies, which counts as broken off.
    client.end();
    let totals = switch.end();
    assert!(totals.contains("frames_in "), "{totals}");
    for member in members {
        member.end();
    }
}
