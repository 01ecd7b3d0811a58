//! Runs packet scripts on the engine: `cargo run -p tidewall-conformance --example script
//! -- FILE…`. Prints each failure with the events before it; the exit status is 1 then.

use std::process::ExitCode;

use tidewall_conformance::{run, script};

fn main() -> ExitCode {
    let mut failures = 0;
    let files: Vec<_> = std::env::args().skip(1).collect();
    if files.is_empty() {
        eprintln!("usage: script FILE…");
        return ExitCode::from(2);
    }
    for file in files {
        let result = std::fs::read_to_string(&file)
            .map_err(|error| format!("{file}: {error}"))
            .and_then(|text| script::parse(&text).map_err(|error| format!("{file}:{error}")))
            .and_then(|script| run::run(&script).map_err(|failure| format!("{file}:{failure}")));
        match result {
            Ok(()) => println!("{file}: ok"),
            Err(message) => {
                failures += 1;
                println!("{message}");
            }
        }
    }
    ExitCode::from(u8::from(failures > 0))
}
