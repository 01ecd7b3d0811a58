//! Programs that link the library: installed as a package would be, found by pkg-config.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::bed::Bed;
use crate::common::host::{Host, library};
use crate::common::{PROGRAM, Place, Service, text};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Runs a command, and returns what it prints.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// A linked program on Tidewall, and on the kernel where no stack can be made.
fn echoes(name: &str, compile: impl FnOnce(&Path, &str)) {
    if !tidewall_skip::has_programs(name, &["cc", "make", "pkg-config", "nc"]) {
        return;
    }
    let Some(host) = Host::or_skip(name, &name[..3]) else {
        return;
    };
    let place = Place::new(name);
    let to = place.path().to_str().unwrap();
    let built = library();
    let built = built.parent().unwrap().to_str().unwrap();
    let mut install = Command::new("make");
    install.args(["-sC", ROOT, "install", "PREFIX=/usr"]);
    install
        .arg(format!("DESTDIR={to}"))
        .arg(format!("BUILD={built}"));
    output(&mut install);
    let program = place.path().join("echo");
    compile(&program, to);

    let libraries = format!("LD_LIBRARY_PATH={to}/usr/lib");
    let program = program.to_str().unwrap();
    let serve = |interface: &str, port: &str| {
        let mut command = host.command("env", &[&libraries, program, interface, port]);
        command.stderr(Stdio::null());
        command
    };
    for (interface, port, whose) in [
        (&*host.bed.interface, "7001", "Tidewall's"),
        ("tw-no-such", "7002", "the kernel's"),
    ] {
        let answered = std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                // One before the first `accept` is the kernel's in any case.
                let script = format!(
                    "until exec 3<>/dev/tcp/10.99.0.2/{port}; do :; done 2>/dev/null
                     echo first >&3; head -n 1 <&3; exec 3<>/dev/tcp/10.99.0.2/{port}
                     seq 100000 >&3 & timeout 20 head -n 100000 <&3 | md5sum; seq 100000 | md5sum"
                );
                let mut ask =
                    Bed::other(&host.bed.client, "timeout", &["30", "bash", "-c", &script]);
                output(&mut ask)
            });
            let mut server = Service::start(serve(interface, port));
            server.line_with(&format!("a connection of {whose}"));
            client.join().unwrap()
        });
        let sums: Vec<&str> = answered.lines().collect();
        assert_eq!(sums[0], "first");
        assert_eq!(sums[1], sums[2], "{name} on {interface}");
    }
}

#[test]
fn c() {
    echoes("linked-c", |program, to| {
        let mut options = Command::new("pkg-config");
        options.env("PKG_CONFIG_PATH", format!("{to}/usr/lib/pkgconfig"));
        options.env("PKG_CONFIG_SYSROOT_DIR", to);
        options
            .env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1")
            .env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1");
        let options = output(options.args(["--cflags", "--libs", "tidewall"]));
        let mut compile = Command::new("cc");
        compile
            .args(["-Wall", "-Wextra", "-Werror", "-o"])
            .arg(program);
        compile.arg(format!("{ROOT}/packaging/examples/echo.c"));
        output(compile.args(options.split_whitespace()));
    });
}

#[test]
fn rust() {
    echoes("rust-linked", |program, to| {
        let mut compile = Command::new("rustc");
        compile.args(["--edition", "2024", "-o"]).arg(program);
        compile.arg(format!("-L{to}/usr/lib"));
        output(compile.arg(format!("{ROOT}/packaging/examples/echo.rs")));
    });
}

#[test]
fn the_installed_program_finds_its_library() {
    let name = "the_installed_program_finds_its_library";
    let place = Place::new(name);
    for directory in ["bin", "lib"] {
        std::fs::create_dir(place.path().join(directory)).unwrap();
    }
    let program = place.path().join("bin/tidewall");
    std::fs::copy(PROGRAM, &program).unwrap();
    let library = std::path::absolute(place.path().join("lib/libtidewall.so")).unwrap();
    std::fs::copy("/lib/x86_64-linux-gnu/libm.so.6", &library).unwrap();
    let mut run = Command::new(&program);
    run.args(["run", "--interface", "tw-no-such", "--", "true"]);
    let output = run.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    // It has one, and reports that the interface is the obstacle.
    let said = text(&output.stderr);
    assert!(said.contains("no interface tw-no-such"), "{said}");
}
