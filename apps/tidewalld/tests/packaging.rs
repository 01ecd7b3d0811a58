//! The units in `packaging/systemd` and the container recipe of `docs/manager.md`: their
//! readers accept them, and whatever they name exists and suffices.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::*;
use tidewall_device::demux::layout::Protocol;
use tidewall_manager::client::Client;
use tidewall_manager::places;
use tidewall_manager::protocol::{JOIN_PRIVATE, Join};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const SERVICE: &str = "tidewalld@.service";
const SOCKET: &str = "tidewalld@.socket";
/// Path at which a package installs it.
const INSTALLED: &str = "/usr/bin/tidewalld";

#[test]
fn what_is_packaged_has_the_privileges_it_needs() {
    let test = "what_is_packaged_has_the_privileges_it_needs";
    if tidewall_skip::has_programs(test, &["setpriv"]) {
        run(test);
    }
}

/// A container like docker's, but without its image and seccomp's filter: namespaces for
/// processes, mounts and names, its own root directory, and the network of the host.
#[test]
fn a_container_by_the_recipe_serves() {
    let test = "a_container_by_the_recipe_serves";
    if tidewall_skip::has_programs(test, &["setpriv", "unshare", "chroot"]) {
        run(test);
    }
}

#[test]
fn the_unit_lets_the_daemon_call_what_it_calls() {
    let test = "the_unit_lets_the_daemon_call_what_it_calls";
    // The other tests do not need it.
    if Command::new("strace").arg("--version").output().is_err() {
        return tidewall_skip::inapplicable(test, "there is no strace");
    }
    if tidewall_skip::has_programs(test, &["systemd-analyze"]) {
        run_within(test, 120);
    }
}

/// Returns the system calls that a unit's filter allows, by systemd's sets.
fn allowed(filter: &str) -> BTreeSet<String> {
    let output = Command::new("systemd-analyze")
        .arg("syscall-filter")
        .output();
    let sets = format!("\n{}", text(&output.unwrap()));
    let of = |set: &str| -> Vec<String> {
        let (_, rest) = sets.split_once(&format!("\n{set}\n")).unwrap();
        let members = rest.lines().take_while(|line| line.starts_with(' '));
        let members = members.map(str::trim).filter(|line| !line.starts_with('#'));
        members.map(str::to_owned).collect()
    };
    let mut left: Vec<String> = filter.split(' ').map(str::to_owned).collect();
    let mut calls = BTreeSet::new();
    while let Some(name) = left.pop() {
        match name.starts_with('@') {
            true => left.extend(of(&name)),
            false => drop(calls.insert(name)),
        }
    }
    calls
}

fn unit(name: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join("packaging/systemd").join(name)).unwrap()
}

/// Returns the command of the section on containers, as one line.
fn recipe() -> String {
    let text = fs::read_to_string(Path::new(ROOT).join("docs/manager.md")).unwrap();
    let (_, section) = text.split_once("### In a container").unwrap();
    let lines = section.lines().map(|line| line.strip_prefix("    "));
    let lines = lines.skip_while(Option::is_none).map_while(|line| line);
    let lines: Vec<&str> = lines
        .map(|line| line.trim_end_matches('\\').trim())
        .collect();
    lines.join(" ")
}

fn text(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Returns the options behind the daemon's name in a text.
fn options(text: &str) -> BTreeSet<&str> {
    let commands = text.split("tidewalld ").skip(1);
    let words = commands.flat_map(|command| command.lines().next().unwrap_or("").split(' '));
    words.filter(|word| word.starts_with("--")).collect()
}

/// Returns the values of a unit's setting.
fn values<'a>(unit: &'a str, setting: &str) -> Vec<&'a str> {
    let of = |line: &'a str| line.strip_prefix(setting)?.strip_prefix('=');
    unit.lines().filter_map(of).collect()
}

/// Returns systemd's verdict on units, with this command instead of the installed one.
fn verify(directory: &Path, service: &str, socket: &str) -> Output {
    fs::create_dir_all(directory).unwrap();
    let service = service.replace(INSTALLED, DAEMON);
    for (name, unit) in [(SERVICE, service.as_str()), (SOCKET, socket)] {
        // An instance of it.
        let path = directory.join(name.replace('@', "@tw0"));
        fs::write(path, unit).unwrap();
    }
    let paths = [SERVICE, SOCKET].map(|name| directory.join(name.replace('@', "@tw0")));
    let mut command = Command::new("systemd-analyze");
    let command = command.args(["verify", "--man=no", "--recursive-errors=no"]);
    let output = command.args(paths).output().unwrap();
    fs::remove_dir_all(directory).unwrap();
    output
}

#[test]
fn systemd_takes_the_units() {
    if !tidewall_skip::has_programs("systemd_takes_the_units", &["systemd-analyze"]) {
        return;
    }
    let directory = |name| -> PathBuf {
        std::env::temp_dir().join(format!("tw-{name}-{}", std::process::id()))
    };
    let output = verify(&directory("units"), &unit(SERVICE), &unit(SOCKET));
    assert!(
        output.status.success() && text(&output).is_empty(),
        "{}",
        text(&output)
    );
    // Otherwise it would have been reported.
    let wrong = unit(SERVICE).replace("WatchdogSec=", "WatchdogSeconds=");
    let said = text(&verify(&directory("wrong"), &wrong, &unit(SOCKET)));
    assert!(said.contains("WatchdogSeconds"), "{said}");
}

#[test]
fn options_and_places_that_are_named_are_there() {
    let help = text(&Command::new(DAEMON).arg("--help").output().unwrap());
    let known: BTreeSet<&str> = (help.split_whitespace())
        .filter(|word| word.starts_with("--"))
        .collect();
    let (service, socket) = (unit(SERVICE), unit(SOCKET));
    let manual = fs::read_to_string(Path::new(ROOT).join("docs/manager.md")).unwrap();
    for text in [&service, &recipe()] {
        let named = options(text);
        assert!(named.contains("--interface"), "{text}");
        assert!(named.is_subset(&known), "{named:?} of {known:?}");
    }
    // In the manual, also all that stand alone in backquotes.
    let quoted = manual.split('`').skip(1).step_by(2);
    let quoted: BTreeSet<&str> = quoted
        .filter_map(|it| it.split([' ', '=']).next())
        .collect();
    for option in ["--metrics", "--private", "--remove", "--socket", "--pins"] {
        assert!(
            quoted.contains(option) && known.contains(option),
            "{option}"
        );
    }

    let [command] = values(&service, "ExecStart")[..] else {
        panic!("{service}");
    };
    assert!(command.starts_with(INSTALLED), "{command}");
    // The second line of the unit sets what the command line uses.
    assert!(command.contains("$TIDEWALLD_OPTIONS") && service.contains("TIDEWALLD_OPTIONS="));
    let listens = places::socket("%i");
    assert_eq!(
        values(&socket, "ListenSequentialPacket"),
        [listens.to_str().unwrap()]
    );
    let directory = places::SOCKETS.strip_prefix("/run/").unwrap();
    assert_eq!(values(&service, "RuntimeDirectory"), [directory]);
    let shared = format!("-v {0}:{0} -v /sys/fs/bpf:", places::SOCKETS);
    let recipe = recipe();
    for part in shared.split(" -v ") {
        assert!(recipe.contains(part.trim_start_matches("-v ")), "{recipe}");
    }
    assert!(places::pins("eth0").starts_with("/sys/fs/bpf"));
}

/// Only docker's client reads it; it contacts its daemon after that.
#[test]
fn docker_takes_the_recipe() {
    let test = "docker_takes_the_recipe";
    if Command::new("docker").arg("--version").output().is_err() {
        return tidewall_skip::inapplicable(test, "there is no docker");
    }
    let docker = |command: &str| {
        let nobody = "unix:///nonexistent/docker.sock";
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", command]).env("DOCKER_HOST", nobody);
        text(&shell.output().unwrap())
    };
    // A valid image name.
    let recipe = recipe().replace("IMAGE", "image");
    let asks = "onnect to the Docker daemon";
    let said = docker(&recipe);
    assert!(said.contains(asks), "{said}");
    assert!(!docker(&recipe.replace("--cap-add", "--add-cap")).contains(asks));
}

mod inside {
    use super::*;

    /// As root with no capability but `names`.
    fn begins_with(names: &[&str]) {
        let names = names.iter().map(|name| name.trim_start_matches("CAP_"));
        let names: Vec<String> = names
            .map(|name| format!("+{}", name.to_lowercase()))
            .collect();
        let mut limited = Command::new("setpriv");
        let bounding = format!("--bounding-set=-all,{}", names.join(","));
        let plain = command();
        limited.args(["--no-new-privs", &bounding]);
        limited.arg(DAEMON).args(plain.get_args());
        let (daemon, said) = start_with(&mut limited);
        assert!(said.contains("event=began"), "{said}");
        client();
        drop(daemon);
        assert!(command().arg("--remove").status().unwrap().success());
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn what_is_packaged_has_the_privileges_it_needs() {
        let service = unit(SERVICE);
        let [bounding] = values(&service, "CapabilityBoundingSet")[..] else {
            panic!("{service}");
        };
        begins_with(&bounding.split(' ').collect::<Vec<_>>());
        let recipe = recipe();
        let added = recipe.split("--cap-add ").skip(1);
        let added: Vec<&str> = added.filter_map(|rest| rest.split(' ').next()).collect();
        assert!(
            recipe.contains("--cap-drop ALL") && added.len() == 4,
            "{recipe}"
        );
        begins_with(&added);
    }

    /// A root directory with the host's programs, read-only, and the recipe's volumes.
    const ROOT_DIRECTORY: &str = r#"
        set -e
        mount -t tmpfs tw-root "$R"
        cd "$R"
        mkdir proc sys run run/tidewall tmp dev
        for d in null urandom; do touch dev/$d; mount --bind /dev/$d dev/$d; done
        for d in usr bin sbin lib lib64 etc; do
            if test -L /$d; then cp -a /$d .
            elif test -d /$d; then mkdir $d; mount --bind /$d $d; mount -o remount,bind,ro $d
            fi
        done
        touch tidewalld; mount --bind "$DAEMON" tidewalld
        mount --rbind /sys sys
        mount --bind "$PINS" sys/fs/bpf
        mount --bind "$RUN" run/tidewall
    "#;

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_container_by_the_recipe_serves() {
        let recipe = recipe();
        let (options, command) = recipe.split_once(" IMAGE ").unwrap();
        let beside = |name: &str| {
            let mut path = directory().into_os_string();
            path.push(name);
            let path = PathBuf::from(path);
            fs::create_dir(&path).unwrap();
            path
        };
        let (root, shared) = (beside(".root"), beside(".run"));
        let made = Command::new("sh")
            .args(["-c", ROOT_DIRECTORY])
            .env("R", &root)
            .env("DAEMON", DAEMON)
            .env("PINS", directory())
            .env("RUN", &shared)
            .status();
        assert!(made.unwrap().success());
        // The script's own copy of the recipe's values.
        for volume in ["/sys:/sys", "/sys/fs/bpf:/sys/fs/bpf"] {
            assert!(options.contains(&format!("-v {volume} ")), "{options}");
        }
        let mut added: Vec<String> = (options.split("--cap-add ").skip(1))
            .filter_map(|rest| rest.split(' ').next())
            .map(|name| format!("+{}", name.to_lowercase()))
            .collect();
        // A test that may not raise its limits has the capability instead.
        let limits = fs::read_to_string("/proc/self/limits").unwrap();
        let of_memory = (limits.lines()).find(|line| line.starts_with("Max locked memory"));
        if !of_memory.unwrap().contains("unlimited") {
            added.push("+ipc_lock".to_owned());
        }
        let start = || {
            let script = format!(
                "mount -t proc tw-proc \"$R/proc\" &&
                 exec chroot \"$R\" setpriv --no-new-privs --bounding-set=-all,{} /{} --trust {TRUSTED}",
                added.join(","),
                command.replace("eth0", INTERFACE),
            );
            let mut contained = Command::new("unshare");
            contained
                .args([
                    "--pid",
                    "--mount",
                    "--ipc",
                    "--uts",
                    "--fork",
                    "--kill-child",
                ])
                .args(["sh", "-c", &script])
                .env("R", &root)
                .stderr(Stdio::piped());
            let mut child = contained.spawn().unwrap();
            let mut said = String::new();
            let mut reader = BufReader::new(child.stderr.take().unwrap());
            reader.read_line(&mut said).unwrap();
            std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::stderr()));
            (Daemon(child), said)
        };
        let setting = |name: &str| {
            let path = format!("/sys/class/net/{INTERFACE}/{name}");
            fs::read_to_string(path).unwrap().trim().to_owned()
        };
        let before = setting("napi_defer_hard_irqs");
        let reserved = fs::read_to_string(RESERVED).unwrap();
        let manager = shared.join(places::socket(INTERFACE).file_name().unwrap());
        let (contained, said) = start();
        assert!(said.contains("event=began"), "{said}");
        // By an unprivileged process outside of it.
        let queues = Join { flags: 0, ..join() };
        let (client, handed) = as_user(TRUSTED, || Client::join(&manager, &queues).unwrap());
        assert!(!handed.queues.is_empty());
        client.lease(Protocol::Tcp).unwrap();
        assert_ne!(fs::read_to_string(RESERVED).unwrap(), reserved);
        wait_until("interrupts are deferred", || {
            setting("napi_defer_hard_irqs") == "1"
        });
        // Another container continues with the leftovers of the first.
        drop(contained);
        // The first dies with its `unshare`, a moment later.
        let until = Instant::now() + Duration::from_secs(20);
        let (contained, said) = loop {
            let (contained, said) = start();
            if !said.contains("another manager has") || Instant::now() > until {
                break (contained, said);
            }
        };
        assert!(said.contains("taken over"), "{said}");
        drop((contained, client, handed));
        let mut removal = Command::new(DAEMON);
        removal.args(["--interface", INTERFACE, "--remove", "--pins"]);
        let pins = places::pins(INTERFACE);
        removal.arg(directory().join(pins.strip_prefix("/sys/fs/bpf").unwrap()));
        wait_until("the second has died, and all is given back", || {
            removal.status().unwrap().success()
        });
        assert_eq!(setting("napi_defer_hard_irqs"), before);
        assert_eq!(fs::read_to_string(RESERVED).unwrap(), reserved);
        let unmounted = Command::new("umount").arg("-R").arg(&root).status();
        assert!(unmounted.unwrap().success());
        fs::remove_dir(&root).unwrap();
        fs::remove_dir_all(&shared).unwrap();
    }

    /// Returns the system calls and socket families of a daemon with these options while
    /// applications come and go.
    fn called(options: &[&str]) -> [BTreeSet<String>; 2] {
        let mut path = directory().into_os_string();
        path.push(".strace");
        let mut traced = Command::new("strace");
        traced.args(["-f", "-qq", "-o"]).arg(&path);
        let plain = command();
        let plain = plain.get_args();
        traced.arg(DAEMON).args(plain).args(options);
        let (mut daemon, _) = start_with(&mut traced);
        let own = client();
        own.lease(Protocol::Udp).unwrap();
        let queues = Join { flags: 0, ..join() };
        drop(as_user(TRUSTED, || {
            Client::join(&socket(), &queues).unwrap()
        }));
        wait_until("the queues are free", || counters().applications == 1);
        if options.contains(&"--private") {
            let private = Join {
                flags: JOIN_PRIVATE,
                ..queues
            };
            drop(as_user(TRUSTED, || {
                Client::join(&socket(), &private).unwrap()
            }));
        }
        drop(own);
        wait_until("none is left", || counters().applications == 0);
        // Its tracer ends with it.
        let tracer = daemon.0.id();
        let children = format!("/proc/{tracer}/task/{tracer}/children");
        let daemons = fs::read_to_string(children).unwrap();
        let number = daemons.trim().parse().unwrap();
        let process = rustix::process::Pid::from_raw(number).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
        daemon.0.wait().unwrap();
        let trace = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let calls = trace.lines().filter_map(|line| {
            let (_, call) = line.split_once(' ')?;
            let (name, arguments) = call.trim_start().split_once('(')?;
            let is_name = |byte: u8| byte.is_ascii_lowercase() || b"_0123456789".contains(&byte);
            name.bytes().all(is_name).then_some((name, arguments))
        });
        // The tracer's child executes the daemon first.
        let calls: Vec<_> = calls.filter(|call| call.0 != "execve").collect();
        let sockets = calls.iter().filter(|call| call.0.starts_with("socket"));
        let families = sockets.filter_map(|call| call.1.split(',').next());
        let names = calls.iter().map(|call| call.0.to_owned());
        [names.collect(), families.map(str::to_owned).collect()]
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn the_unit_lets_the_daemon_call_what_it_calls() {
        let service = unit(SERVICE);
        let [filter] = values(&service, "SystemCallFilter")[..] else {
            panic!("{service}");
        };
        let allowed = allowed(filter);
        let families = |unit: &str| -> BTreeSet<String> {
            let lists = values(unit, "RestrictAddressFamilies").into_iter();
            lists
                .flat_map(|list| list.split(' '))
                .map(str::to_owned)
                .collect()
        };
        let of_unit = families(&service);
        let example = Path::new(ROOT).join("packaging/examples/tidewalld-atm.conf");
        let of_atm = families(&fs::read_to_string(example).unwrap());
        let number = "47000580ffe1000000f21a0000000100000001.00";
        let atm = ["--atm-next-hop", "10.77.0.2", "--atm-number", number];
        for options in [&["--private", "any", "--ports", "1-65535"][..], &atm] {
            let [calls, opened] = called(options);
            let refused: Vec<_> = calls.difference(&allowed).collect();
            assert!(refused.is_empty(), "{options:?}: {refused:?}");
            assert!(
                calls.contains("bpf") && opened.contains("AF_XDP"),
                "{opened:?}"
            );
            let beside: BTreeSet<_> = opened.difference(&of_unit).cloned().collect();
            match options == atm {
                true => assert_eq!(beside, of_atm),
                false => assert!(beside.is_empty(), "{beside:?}"),
            }
            assert!(command().arg("--remove").status().unwrap().success());
        }
    }
}
