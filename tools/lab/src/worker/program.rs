//! Real servers, as Debian has them, to compare with: configured here, one
//! process on the processor of its worker, no logs, no disk.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::child::scratch;
use super::service::until_input_ends;
use crate::command::absolute;

/// Time for a program to listen.
const START: Duration = Duration::from_secs(10);
/// How often it is looked after.
const LOOK: Duration = Duration::from_millis(20);
/// Connections and other files that a program may have open.
const FILES: u64 = 1 << 20;

/// A program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// Squid as the reverse proxy of one origin, which asks it of each document
    /// whether it has changed.
    Squid {
        /// The origin.
        origin: SocketAddr,
    },
    /// nginx with the files of a directory.
    Nginx {
        /// The directory.
        root: PathBuf,
    },
    /// HAProxy handing each TCP connection to one of these servers.
    Haproxy {
        /// The servers.
        servers: Vec<SocketAddr>,
    },
    /// Twemproxy before these servers of Redis.
    Twemproxy {
        /// The servers.
        servers: Vec<SocketAddr>,
    },
    /// A server of Redis that keeps nothing on a disk.
    Redis,
    /// `tidewall acp-bridge`, this very program.
    AcpBridge {
        /// Which of the bridge's sides: `client` or `member`.
        side: String,
        /// Where its connections go on to.
        to: SocketAddr,
    },
}

impl Program {
    /// Its name in results, which is the program's.
    pub fn name(&self) -> &'static str {
        match self {
            Program::Squid { .. } => "squid",
            Program::Nginx { .. } => "nginx",
            Program::Haproxy { .. } => "haproxy",
            Program::Twemproxy { .. } => "twemproxy",
            Program::Redis => "redis",
            Program::AcpBridge { .. } => "acp-bridge",
        }
    }

    /// What is executed.
    pub(crate) fn executable(&self) -> &'static str {
        match self {
            Program::Twemproxy { .. } => "nutcracker",
            Program::Redis => "redis-server",
            _ => self.name(),
        }
    }

    /// Whether it is installed.
    pub fn is_there(&self) -> bool {
        let own = matches!(self, Program::AcpBridge { .. });
        (own || absolute(self.executable()).is_ok()) && absolute("setpriv").is_ok()
    }

    /// The whole configuration, for a server at `port` that keeps everything in
    /// `directory`.
    fn configuration(&self, port: u16, directory: &Path, files: u64) -> String {
        let directory = directory.display();
        match self {
            Program::Squid { origin } => format!(
                "http_port {port} accel defaultsite=tidewall no-vhost\n\
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
                 pinger_enable off\n\
                 visible_hostname tidewall\n\
                 forwarded_for delete\n\
                 shutdown_lifetime 0 seconds\n\
                 request_start_timeout 600 seconds\n\
                 client_idle_pconn_timeout 600 seconds\n\
                 max_filedescriptors {files}\n\
                 workers 1\n",
                origin.ip(),
                origin.port(),
            ),
            Program::Nginx { root } => format!(
                "daemon off;\nmaster_process off;\nworker_processes 1;\nuser root;\n\
                 pid {directory}/pid;\nerror_log stderr crit;\n\
                 worker_rlimit_nofile {files};\n\
                 events {{ use epoll; multi_accept on; worker_connections {connections}; }}\n\
                 http {{\n\
                 access_log off; etag off; sendfile on; tcp_nopush on;\n\
                 open_file_cache max=16; open_file_cache_valid 600s;\n\
                 client_header_timeout 600s; keepalive_timeout 600s; keepalive_requests 1000000000;\n\
                 client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;\n\
                 fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi;\n\
                 scgi_temp_path {directory}/scgi;\n\
                 default_type application/octet-stream;\n\
                 server {{ listen {port} backlog=4096; root {}; }}\n\
                 }}\n",
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
                "port {port}\nbind 0.0.0.0\nprotected-mode no\nsave \"\"\nappendonly no\n\
                 dir {directory}\nlogfile /dev/null\n"
            ),
            Program::AcpBridge { .. } => String::new(),
        }
    }

    fn command(&self, port: u16, configuration: &Path) -> anyhow::Result<Command> {
        // It dies with this worker, however that ends.
        let mut command = Command::new(absolute("setpriv")?);
        command.args(["--pdeathsig", "KILL"]);
        match self {
            Program::Squid { .. } => {
                // It does not run as root.
                command
                    .args(["--reuid", "proxy", "--regid", "proxy", "--clear-groups"])
                    .arg(absolute("squid")?)
                    .args(["-N", "-f"]);
            }
            Program::Nginx { .. } => {
                command.arg(absolute("nginx")?).arg("-c");
            }
            Program::Haproxy { .. } => {
                command.arg(absolute("haproxy")?).args(["-db", "-f"]);
            }
            Program::Twemproxy { .. } => {
                command.arg(absolute("nutcracker")?).arg("-c");
            }
            Program::Redis => {
                command.arg(absolute("redis-server")?);
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
}

/// A running program; dropping it ends it and removes what it wrote.
struct Running {
    child: Child,
    directory: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
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
    serve(program, port, &AtomicU32::new(0), &stop, || {
        println!("ready")
    })
}

/// Runs a program until `stop` is set; `serving` is its process then. `ready` is
/// called once it listens.
pub(super) fn serve(
    program: &Program,
    port: u16,
    serving: &AtomicU32,
    stop: &AtomicBool,
    ready: impl FnOnce(),
) -> anyhow::Result<()> {
    let files = tidewall_sys::raise_open_files(FILES)?;
    // Of this network namespace alone, which goes: Squid does not run as root.
    fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
        .context("cannot let a program without privileges have a port below 1024")?;
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
            let mut command = program.command(port, &configuration)?;
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
    let mut running = Running { child, directory };
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let deadline = Instant::now() + START;
    while TcpStream::connect_timeout(&address, LOOK).is_err() {
        running.check(program)?;
        if Instant::now() > deadline || stop.load(Ordering::Relaxed) {
            bail!("{} does not listen{}", program.name(), running.said());
        }
        thread::sleep(LOOK);
    }
    ready();
    while !stop.load(Ordering::Relaxed) {
        running.check(program)?;
        thread::sleep(LOOK);
    }
    Ok(())
}

impl Running {
    fn check(&mut self, program: &Program) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended ({status}){}", program.name(), self.said()),
            None => Ok(()),
        }
    }

    fn said(&self) -> String {
        let text = fs::read_to_string(self.directory.join("errors")).unwrap_or_default();
        match text.trim() {
            "" => String::new(),
            text => format!(": {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_to_squid_asks_the_origin() {
        let squid = Program::Squid {
            origin: "10.77.0.1:8080".parse().unwrap(),
        };
        let text = squid.configuration(80, Path::new("/dev/shm/x"), 20_000);
        for line in [
            "http_port 80 accel defaultsite=tidewall no-vhost",
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
        // Debian's own directories are looked into, nothing else.
        let there = Path::new("/usr/sbin/squid").exists() || Path::new("/usr/bin/squid").exists();
        let squid = Program::Squid {
            origin: "10.77.0.1:8080".parse().unwrap(),
        };
        assert!(there || !squid.is_there());
    }
}
