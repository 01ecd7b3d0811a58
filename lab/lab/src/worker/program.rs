//! Real servers, as packaged by Debian: configured here, one process on its worker's
//! processor, no logs, no disk; on the kernel's sockets, or by `tidewall run`.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tidewall_manager::places;

use super::Job;
use super::child::scratch;
use super::datagrams::{DatagramsJob, READY};
use super::service::until_input_ends;
use crate::command::{self, absolute};

/// The key and value in a cache.
pub(crate) const KEY: &str = "key:0000001";
/// 100 bytes.
pub(crate) const VALUE: &str = "0123456789012345678901234567890123456789012345678901234567890123456789\
                                012345678901234567890123456789";
/// The name in a DNS cache.
pub(crate) const NAME: &str = "cached.example.net";
/// Variable that makes the library print on standard error which sockets it promotes.
pub(super) const SAYS: &str = "TIDEWALL_DEBUG";
/// Time for `tidewall run` to end.
const END: Duration = Duration::from_secs(5);

/// Time until a program listens.
const START: Duration = Duration::from_secs(10);
/// How often it is checked.
const LOOK: Duration = Duration::from_millis(20);
/// Connections and other files that a program may have open.
const FILES: u64 = 1 << 20;

/// A program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// Squid as the reverse proxy of one origin, which it asks for each document whether
    /// that has changed.
    Squid {
        /// The origin.
        origin: SocketAddr,
    },
    /// nginx with the files of a directory.
    Nginx {
        /// The directory.
        root: PathBuf,
        /// By sendfile(2). Otherwise nginx copies: Linux serves three times as many small
        /// files that way as by sendfile(2) behind a cork.
        #[serde(default)]
        sendfile: bool,
    },
    /// HAProxy, which hands each TCP connection to one of these servers.
    Haproxy {
        /// The servers.
        servers: Vec<SocketAddr>,
    },
    /// HAProxy, which hands each request (HTTP) to one of these servers, over persistent
    /// connections.
    HaproxyHttp {
        /// The servers.
        servers: Vec<SocketAddr>,
    },
    /// Twemproxy in front of these Redis servers.
    Twemproxy {
        /// The servers.
        servers: Vec<SocketAddr>,
    },
    /// A Redis server without persistence, with `VALUE` at `KEY`.
    Redis,
    /// memcached with one thread, over TCP; it has `VALUE` at `KEY`.
    Memcached,
    /// Unbound with one thread, with the address of `NAME` in its cache.
    Unbound,
    /// An event loop over datagram sockets ([`tidewall_service::serve_events`]), a worker
    /// of this very program.
    Datagrams(DatagramsJob),
    /// `tidewall acp-bridge`, this very program.
    AcpBridge {
        /// Side of the bridge: `client` or `member`.
        side: String,
        /// Destination of its connections.
        to: SocketAddr,
    },
}

impl Program {
    /// Returns its name in results, which is the program's.
    pub fn name(&self) -> &'static str {
        match self {
            Program::Squid { .. } => "squid",
            Program::Nginx { .. } => "nginx",
            Program::Haproxy { .. } | Program::HaproxyHttp { .. } => "haproxy",
            Program::Twemproxy { .. } => "twemproxy",
            Program::Redis => "redis",
            Program::Memcached => "memcached",
            Program::Unbound => "unbound",
            Program::Datagrams(_) => "datagrams",
            Program::AcpBridge { .. } => "acp-bridge",
        }
    }

    /// Returns the name of its executable.
    pub(crate) fn executable(&self) -> &'static str {
        match self {
            Program::Twemproxy { .. } => "nutcracker",
            Program::Redis => "redis-server",
            _ => self.name(),
        }
    }

    /// Returns whether it is installed.
    pub fn is_there(&self) -> bool {
        let own = matches!(self, Program::AcpBridge { .. } | Program::Datagrams(_));
        (own || absolute(self.executable()).is_ok()) && absolute("setpriv").is_ok()
    }

    /// Returns the whole configuration, for a server at `port` that keeps everything in
    /// `directory`.
    fn configuration(&self, port: u16, directory: &Path, files: u64) -> String {
        let directory = directory.display();
        match self {
            // The default `..._extras` contain the client's name (`%>A`), for which Squid
            // asks a name server at each connection. Searching the queries without
            // answers took a third of the processor.
            Program::Squid { origin } => format!(
                "http_port {port} accel defaultsite={} no-vhost\n\
                 cache_peer {} parent {} 0 no-query no-digest originserver name=origin connect-timeout=5\n\
                 acl all_of_them src all\n\
                 http_access allow all_of_them\n\
                 cache_peer_access origin allow all_of_them\n\
                 never_direct allow all_of_them\n\
                 refresh_pattern . 0 0% 0\n\
                 cache_mem 64 MB\n\
                 memory_cache_mode always\n\
                 server_persistent_connections off\n\
                 access_log none\n\
                 cache_log /dev/null\n\
                 cache_store_log none\n\
                 pid_filename none\n\
                 netdb_filename none\n\
                 coredump_dir {directory}\n\
                 icon_directory {directory}\n\
                 mime_table {directory}/mime.conf\n\
                 url_rewrite_extras \"%>a %un %>rm\"\n\
                 store_id_extras \"%>a %un %>rm\"\n\
                 pinger_enable off\n\
                 visible_hostname tidewall\n\
                 forwarded_for delete\n\
                 shutdown_lifetime 0 seconds\n\
                 request_start_timeout 600 seconds\n\
                 client_idle_pconn_timeout 600 seconds\n\
                 max_filedescriptors {files}\n\
                 workers 1\n",
                origin.ip(),
                origin.ip(),
                origin.port(),
            ),
            Program::Nginx { root, sendfile } => format!(
                "daemon off;\nmaster_process off;\nworker_processes 1;\nuser root;\n\
                 pid {directory}/pid;\nerror_log stderr crit;\n\
                 worker_rlimit_nofile {files};\n\
                 events {{ use epoll; multi_accept on; worker_connections {connections}; }}\n\
                 http {{\n\
                 access_log off; etag off; sendfile {}; tcp_nopush off;\n\
                 open_file_cache max=16; open_file_cache_valid 600s;\n\
                 client_header_timeout 600s; keepalive_timeout 600s; keepalive_requests 1000000000;\n\
                 client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;\n\
                 fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi;\n\
                 scgi_temp_path {directory}/scgi;\n\
                 default_type application/octet-stream;\n\
                 server {{ listen {port} backlog=4096; root {}; }}\n\
                 }}\n",
                if *sendfile { "on" } else { "off" },
                root.display(),
                connections = files.saturating_sub(64),
            ),
            Program::Haproxy { servers } => {
                let mut text = format!(
                    "global\n nbthread 1\n maxconn 1024\n\
                     defaults\n mode tcp\n option splice-auto\n timeout connect 5s\n \
                     timeout client 600s\n timeout server 600s\n\
                     listen all\n bind 0.0.0.0:{port}\n balance roundrobin\n"
                );
                for (number, server) in servers.iter().enumerate() {
                    text.push_str(&format!(" server s{number} {server}\n"));
                }
                text
            }
            Program::HaproxyHttp { servers } => {
                let mut text = format!(
                    "global\n nbthread 1\n maxconn 4096\n\
                     defaults\n mode http\n http-reuse always\n timeout connect 5s\n \
                     timeout client 600s\n timeout server 600s\n\
                     listen all\n bind 0.0.0.0:{port} backlog 4096\n balance roundrobin\n"
                );
                for (number, server) in servers.iter().enumerate() {
                    text.push_str(&format!(" server s{number} {server}\n"));
                }
                text
            }
            Program::Unbound => format!(
                "server:\n interface: 0.0.0.0\n port: {port}\n access-control: 0.0.0.0/0 allow\n \
                 num-threads: 1\n so-rcvbuf: 1m\n chroot: \"\"\n username: \"\"\n \
                 directory: \"{directory}\"\n pidfile: \"\"\n use-syslog: no\n do-daemonize: no\n \
                 module-config: \"iterator\"\n\
                 remote-control:\n control-enable: yes\n control-use-cert: no\n \
                 control-interface: \"{directory}/control\"\n"
            ),
            Program::Twemproxy { servers } => {
                let mut text = format!(
                    "all:\n listen: 0.0.0.0:{port}\n hash: fnv1a_64\n distribution: ketama\n \
                     redis: true\n servers:\n"
                );
                for server in servers {
                    text.push_str(&format!("  - {server}:1\n"));
                }
                text
            }
            Program::Redis => format!(
                "port {port}\nbind 0.0.0.0\nprotected-mode no\ntcp-backlog 4096\nsave \"\"\nappendonly no\n\
                 dir {directory}\nlogfile /dev/null\n"
            ),
            Program::Memcached | Program::AcpBridge { .. } | Program::Datagrams(_) => String::new(),
        }
    }

    /// Builds the command; `interface`: by `tidewall run`, on this interface.
    fn command(
        &self,
        port: u16,
        configuration: &Path,
        interface: Option<&str>,
    ) -> anyhow::Result<Command> {
        // The program dies with this worker, however that ends.
        let setpriv = absolute("setpriv")?;
        let mut command = Command::new(&setpriv);
        command.args(["--pdeathsig", "KILL"]);
        if let Some(interface) = interface {
            command.arg(std::env::current_exe()?);
            command.args(["run", "--interface", interface, "--", &setpriv]);
            command.args(["--pdeathsig", "KILL"]).env(SAYS, "1");
            // Measuring begins with its first client.
            command.env("TIDEWALL_PROMOTE", "at-once");
        }
        match self {
            Program::Squid { .. } => {
                // The program does not run as root.
                command
                    .args(["--reuid", "proxy", "--regid", "proxy", "--clear-groups"])
                    .arg(absolute("squid")?)
                    .args(["-N", "-f"]);
            }
            Program::Nginx { .. } => {
                command.arg(absolute("nginx")?).arg("-c");
            }
            Program::Haproxy { .. } | Program::HaproxyHttp { .. } => {
                command.arg(absolute("haproxy")?).args(["-db", "-f"]);
            }
            Program::Twemproxy { .. } => {
                command.arg(absolute("nutcracker")?).arg("-c");
            }
            Program::Redis => {
                command.arg(absolute("redis-server")?);
            }
            Program::Memcached => {
                command
                    .arg(absolute("memcached")?)
                    .args(["-u", "root", "-t", "1", "-l", "0.0.0.0", "-U", "0"])
                    .args(["-b", "4096", "-c", "4096", "-p", &port.to_string()]);
                return Ok(command);
            }
            Program::Unbound => {
                command.arg(absolute("unbound")?).args(["-d", "-c"]);
            }
            Program::Datagrams(job) => {
                let job = serde_json::to_string(&Job::Datagrams(job.clone()))?;
                command
                    .arg(std::env::current_exe()?)
                    .args(["lab-worker", &job]);
                return Ok(command);
            }
            Program::AcpBridge { side, to } => {
                let listen = format!("0.0.0.0:{port}");
                command.arg(std::env::current_exe()?).args([
                    "acp-bridge",
                    side,
                    "--listen",
                    &listen,
                    "--to",
                    &to.to_string(),
                ]);
                return Ok(command);
            }
        }
        command.arg(configuration);
        Ok(command)
    }

    /// Fills a cache with the clients' data, over the loopback.
    fn fill(&self, mut connection: TcpStream, configuration: &Path) -> anyhow::Result<()> {
        let (request, answer) = match self {
            Program::Redis => (format!("SET {KEY} {VALUE}\r\n"), "+OK\r\n"),
            Program::Memcached => (
                format!("set {KEY} 0 0 {}\r\n{VALUE}\r\n", VALUE.len()),
                "STORED\r\n",
            ),
            Program::Unbound => return fill_unbound(configuration),
            _ => return Ok(()),
        };
        connection.set_read_timeout(Some(START))?;
        connection.write_all(request.as_bytes())?;
        let mut said = vec![0; answer.len()];
        connection.read_exact(&mut said)?;
        ensure!(
            said == answer.as_bytes(),
            "{} answered {}",
            self.name(),
            String::from_utf8_lossy(&said)
        );
        Ok(())
    }
}

/// Fills Unbound's cache in the format of `unbound-control dump_cache`, to keep for a
/// day.
fn fill_unbound(configuration: &Path) -> anyhow::Result<()> {
    let dump = format!(
        "START_RRSET_CACHE\n;rrset 86400 1 0 8 3\n{NAME}.\t86400\tIN\tA\t192.0.2.1\nEND_RRSET_CACHE\n\
         START_MSG_CACHE\nmsg {NAME}. IN A 33152 1 86400 0 1 0 0\n{NAME}. IN A 0\nEND_MSG_CACHE\nEOF\n"
    );
    let mut control = Command::new(absolute("unbound-control")?)
        .arg("-c")
        .arg(configuration)
        .arg("load_cache")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let mut input = control.stdin.take().context("no pipe to unbound-control")?;
    input.write_all(dump.as_bytes())?;
    drop(input);
    let status = control.wait()?;
    ensure!(status.success(), "unbound-control load_cache: {status}");
    Ok(())
}

/// A running program; dropping it ends it and removes its files.
struct Running {
    child: Child,
    directory: PathBuf,
    /// To be ended in order: `tidewall run`, which restores the interface first, or
    /// Squid, which leaves shared memory behind otherwise.
    in_order: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.in_order {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let deadline = Instant::now() + END;
            while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
                thread::sleep(LOOK);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Runs a program until the end of the input.
pub(super) fn run(program: &Program, port: u16) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let ended = stop.clone();
    thread::spawn(move || {
        let _ = until_input_ends(|_| Ok(()));
        ended.store(true, Ordering::Relaxed);
    });
    serve(program, port, None, &AtomicU32::new(0), &stop, || {
        println!("ready")
    })
}

/// Runs a program until `stop` is set, by `tidewall run` if an `interface` is named;
/// `serving` is its process then. Calls `ready` once it listens.
pub(super) fn serve(
    program: &Program,
    port: u16,
    interface: Option<&str>,
    serving: &AtomicU32,
    stop: &AtomicBool,
    ready: impl FnOnce(),
) -> anyhow::Result<()> {
    let files = tidewall_sys::raise_open_files(FILES)?;
    // Only for this network namespace, which is temporary: Squid does not run as root.
    fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
        .context("cannot let a program without privileges have a port below 1024")?;
    if interface.is_some() {
        private_places()?;
    }
    let directory = scratch(program.name());
    fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let configuration = directory.join("configuration");
    let written = fs::write(
        &configuration,
        program.configuration(port, &directory, files),
    )
    .and_then(|()| fs::write(directory.join("mime.conf"), ""))
    .and_then(|()| fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)));
    let errors = fs::File::create(directory.join("errors"));
    let started = written
        .and(errors)
        .map_err(anyhow::Error::from)
        .and_then(|errors| {
            let mut command = program.command(port, &configuration, interface)?;
            command.current_dir(&directory).stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(errors);
            Ok(command.spawn()?)
        });
    let child = match started {
        Ok(child) => child,
        Err(error) => {
            let _ = fs::remove_dir_all(&directory);
            return Err(error.context(format!("cannot start {}", program.name())));
        }
    };
    // `setpriv` becomes the program.
    serving.store(child.id(), Ordering::Relaxed);
    let mut running = Running {
        child,
        directory,
        in_order: interface.is_some() || matches!(program, Program::Squid { .. }),
    };
    if let Program::Datagrams(_) = program {
        let bound =
            |running: &Running| running.errors().lines().any(|it| it == READY).then_some(());
        running.until(program, stop, "does not serve", bound)?;
    } else {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let connection = running.until(program, stop, "does not listen", |_| {
            TcpStream::connect_timeout(&address, LOOK).ok()
        })?;
        program.fill(connection, &configuration)?;
    }
    if interface.is_some() {
        // Otherwise sockets that stay with the kernel would be measured instead.
        let process = running.until(program, stop, "is not on Tidewall", Running::promoted)?;
        serving.store(process, Ordering::Relaxed);
    }
    ready();
    while !stop.load(Ordering::Relaxed) {
        running.check(program)?;
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Prepares a process that its own manager serves: only this worker and its children see
/// where managers pin and listen.
pub(super) fn private_places() -> anyhow::Result<()> {
    fs::create_dir_all(places::SOCKETS)?;
    // `ip netns exec` has created a mount namespace for this process, which disappears
    // with it.
    command::run("mount", &["-t", "bpf", "tw-bpf", "/sys/fs/bpf"]).context("a bpffs is needed")?;
    command::run("mount", &["-t", "tmpfs", "tw-run", places::SOCKETS])?;
    Ok(())
}

impl Running {
    /// Checks repeatedly until there is a result, the program has ended, or it takes too
    /// long.
    fn until<T>(
        &mut self,
        program: &Program,
        stop: &AtomicBool,
        fails: &str,
        look: impl Fn(&Self) -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + START;
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            self.check(program)?;
            if Instant::now() > deadline || stop.load(Ordering::Relaxed) {
                bail!("{} {fails}{}", program.name(), self.said());
            }
            thread::sleep(LOOK);
        }
    }

    /// Returns the process whose socket has become the stack's, as it reports itself
    /// (docs/preload.md, "The report").
    fn promoted(&self) -> Option<u32> {
        promoted(&self.errors())
    }

    /// Returns the text of its standard error.
    fn errors(&self) -> String {
        fs::read_to_string(self.directory.join("errors")).unwrap_or_default()
    }

    fn check(&mut self, program: &Program) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended ({status}){}", program.name(), self.said()),
            None => Ok(()),
        }
    }

    fn said(&self) -> String {
        match self.errors().trim() {
            "" => String::new(),
            text => format!(": {text}"),
        }
    }
}

/// Returns the process of a socket that has become the stack's.
pub(super) fn promoted(said: &str) -> Option<u32> {
    said.lines().find_map(|line| {
        let mut fields = line.strip_prefix("tidewall: ")?.split('\t');
        let process = fields.next()?.parse().ok()?;
        (fields.nth(1)? == "promoted").then_some(process)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_socket_of_the_stack_says_so() {
        let said = "tidewall: 7\tredis-server\tstack\t\ttw-b\t\n\
                    tidewall: 7\tredis-server\tpromoted\tlistener\t0.0.0.0:6379\t\n";
        assert_eq!(promoted(said), Some(7));
        assert_eq!(promoted("tidewall: 7\tx\tkernel\tlistener\ty\tz\n"), None);
        assert_eq!(
            promoted("tidewall: the program runs on the kernel's sockets\n"),
            None
        );
    }

    #[test]
    fn each_request_to_squid_asks_the_origin() {
        let squid = Program::Squid {
            origin: "10.77.0.1:8080".parse().unwrap(),
        };
        let text = squid.configuration(80, Path::new("/dev/shm/x"), 20_000);
        for line in [
            "http_port 80 accel defaultsite=10.77.0.1 no-vhost",
            "url_rewrite_extras \"%>a %un %>rm\"",
            "store_id_extras \"%>a %un %>rm\"",
            "refresh_pattern . 0 0% 0",
            "server_persistent_connections off",
            "access_log none",
            "workers 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}");
        }
        assert!(text.contains("cache_peer 10.77.0.1 parent 8080 0 "));
    }

    #[test]
    fn nginx_is_one_process_without_logs() {
        let nginx = Program::Nginx {
            root: "/dev/shm/www".into(),
            sendfile: false,
        };
        let text = nginx.configuration(80, Path::new("/dev/shm/x"), 20_000);
        for part in [
            "master_process off;",
            "access_log off;",
            "listen 80 backlog=4096; root /dev/shm/www;",
            "worker_connections 19936;",
        ] {
            assert!(text.contains(part), "{part}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        // Only Debian's own directories are searched.
        let there = Path::new("/usr/sbin/squid").exists() || Path::new("/usr/bin/squid").exists();
        let squid = Program::Squid {
            origin: "10.77.0.1:8080".parse().unwrap(),
        };
        assert!(there || !squid.is_there());
    }
}
