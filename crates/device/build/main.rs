//! Compiles the driver programs, `bpf/*.bpf.c`, with clang, and translates their tables
//! to Rust.

mod tables;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, exit};
use std::{env, fs};

const REMEDY: &str = "On Debian or Ubuntu: apt-get install clang linux-libc-dev";

/// The demultiplexer, and the program that tests the kernel's input path. For the
/// laboratory: its comparator, its load generator's program, and the stand-in for a card
/// that steers.
const PROGRAMS: [&str; 5] = ["demux", "pass", "syn_limit", "load", "adaptor"];

/// For `make sanitize`. Headers lie at any alignment; see `native`.
const SANITIZERS: [&str; 3] = [
    "-fsanitize=address,undefined",
    "-fno-sanitize=alignment",
    "-fno-sanitize-recover=all",
];

fn main() {
    println!("cargo::rerun-if-env-changed=CLANG");
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../../bpf");
    println!("cargo::rerun-if-changed={}", root.display());
    let clang = find_clang();
    for program in PROGRAMS {
        let source = root.join(format!("{program}.bpf.c"));
        let object = PathBuf::from(variable("OUT_DIR")).join(format!("{program}.bpf.o"));
        let target = if variable("CARGO_CFG_TARGET_ENDIAN") == "big" {
            "bpfeb"
        } else {
            "bpfel"
        };
        let flags = ["-mcpu=v3", "-target", target];
        compile(&clang, &flags, &source, &object);
    }
    native(&clang, &root.join("native.c"));
    let header = root.join("tables.h");
    let rust = fs::read_to_string(&header).map_err(|error| error.to_string());
    let rust = rust.and_then(|header| tables::translate(&header));
    let place = PathBuf::from(variable("OUT_DIR")).join("tables.rs");
    let written = rust.and_then(|rust| fs::write(place, rust).map_err(|error| error.to_string()));
    if let Err(error) = written {
        stop(&format!("{}: {error}", header.display()));
    }
}

/// Builds the demultiplexer for the processor, in an archive that goes into the crate.
fn native(clang: &str, source: &Path) {
    let target = format!("{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH"));
    let folder = PathBuf::from(variable("OUT_DIR"));
    let (object, archive) = (folder.join("native.o"), folder.join("libtidewall_demux.a"));
    // As eBPF, it reads headers at any alignment and by any type.
    let mut flags = vec![
        "-target",
        &target,
        "-fmax-type-align=1",
        "-fno-strict-aliasing",
        "-fPIC",
        "-fvisibility=hidden",
        // Valgrind, which counts instructions, does not read the next version.
        "-gdwarf-4",
    ];
    println!("cargo::rerun-if-env-changed=TIDEWALL_SANITIZE");
    if env::var_os("TIDEWALL_SANITIZE").is_some() {
        flags.extend(SANITIZERS);
        for library in ["asan", "ubsan"] {
            println!("cargo::rustc-link-lib={library}");
        }
    }
    compile(clang, &flags, source, &object);
    // `ar` adds to an existing archive.
    let _ = fs::remove_file(&archive);
    let status = Command::new("ar")
        .arg("crs")
        .args([&archive, &object])
        .status();
    if !status.as_ref().is_ok_and(ExitStatus::success) {
        stop(&format!(
            "ar: {status:?}. On Debian or Ubuntu: apt-get install binutils"
        ));
    }
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rustc-link-lib=static=tidewall_demux");
}

fn compile(clang: &str, flags: &[&str], source: &Path, object: &Path) {
    let output = command(clang, source, object).args(flags).output();
    let output = match output {
        Ok(output) => output,
        Err(error) => stop(&format!("cannot run {clang}: {error}. {REMEDY}")),
    };
    if output.status.success() {
        return;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("linux/bpf.h' file not found") || said.contains("asm/types.h' file not found")
    {
        stop(&format!(
            "the kernel's UAPI headers (linux/bpf.h) are missing. {REMEDY}"
        ));
    }
    if said.contains("unknown target triple") || said.contains("No available targets") {
        stop(&format!(
            "{clang} was built without the bpf target; set CLANG to one that has it. {REMEDY}"
        ));
    }
    stop(&format!(
        "{clang} could not compile {}:\n{said}",
        source.display()
    ));
}

/// The clang to use: `$CLANG`, else the first of the usual names that runs.
fn find_clang() -> String {
    if let Ok(clang) = env::var("CLANG") {
        return clang;
    }
    let runs = |name: &&str| {
        Command::new(name)
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success())
    };
    match ["clang", "clang-22", "clang-19", "clang-14"]
        .iter()
        .find(|name| runs(name))
    {
        Some(name) => (*name).to_owned(),
        None => stop(&format!(
            "clang is missing; it compiles the program that runs in the network driver. {REMEDY}"
        )),
    }
}

fn command(clang: &str, source: &Path, object: &Path) -> Command {
    let mut command = Command::new(clang);
    command.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror"]);
    // Debian keeps <asm/…> in a directory named after the architecture, which
    // clang does not search when it compiles for bpf.
    let architecture = variable("CARGO_CFG_TARGET_ARCH");
    command.arg(format!("-I/usr/include/{architecture}-linux-gnu"));
    command.arg("-c").arg(source).arg("-o").arg(object);
    command
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| stop(&format!("cargo did not set {name}")))
}

/// Ends the build with one message and no backtrace.
fn stop(message: &str) -> ! {
    eprintln!("tidewall-device: {message}");
    exit(1);
}
