//! What a call costs that is not the stack's, through the library and without it: the same
//! program in turns, on one processor. Prints nanoseconds a call, medians and extremes.
//!
//! `cargo bench -p tidewall-preload --bench foreign`; under `tidewall run --interface IF --`
//! the library has a stack, and a call looks into its table of numbers, too.
#![allow(unsafe_code)]

use std::env;
use std::fs::File;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

const CALLS: u32 = 1_000_000;
const PAIRS: usize = 15;
const CHILD: &str = "TIDEWALL_BENCH_CHILD";

/// Nanoseconds of a read of one byte.
fn measure() -> f64 {
    // Where there is a manager this is the stack's from here on.
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
    // A process with a stack has threads, which makes any call on a descriptor dearer.
    std::thread::spawn(std::thread::park);
    let zero = File::open("/dev/zero").unwrap();
    let mut byte = 0u8;
    let begun = Instant::now();
    for _ in 0..CALLS {
        // SAFETY: a byte that is here.
        let read = unsafe { libc::read(zero.as_raw_fd(), (&raw mut byte).cast(), 1) };
        assert_eq!(read, 1);
    }
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}

fn library() -> PathBuf {
    // The bench is in target/release/deps.
    let program = env::current_exe().unwrap();
    program.parent().unwrap().with_file_name("libtidewall.so")
}

fn turn(preloaded: bool) -> f64 {
    let mut child = Command::new(env::current_exe().unwrap());
    child.env(CHILD, "1").env_remove("LD_PRELOAD");
    if preloaded {
        child.env("LD_PRELOAD", library());
    }
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// The median and the extremes.
fn words(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let median = values[values.len() / 2];
    let (least, most) = (values[0], values[values.len() - 1]);
    format!("{median:.1} ({least:.1} to {most:.1})")
}

fn main() {
    if env::var_os(CHILD).is_some() {
        println!("{:.2}", measure());
        return;
    }
    assert!(
        library().exists(),
        "{}: cargo build --release -p tidewall-preload",
        library().display()
    );
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        pairs.push((turn(false), turn(true)));
    }
    let plain = pairs.iter().map(|pair| pair.0).collect();
    let through = pairs.iter().map(|pair| pair.1).collect();
    let added = pairs
        .iter()
        .map(|(plain, through)| through - plain)
        .collect();
    println!("a read of one byte of /dev/zero, ns, {PAIRS} pairs in turns:");
    println!("  plain   {}", words(plain));
    println!("  library {}", words(through));
    println!("  added   {}", words(added));
}
