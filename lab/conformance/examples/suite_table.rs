//! Prints the tables of docs/tcp.md: the results of the public scripts for the kernel and
//! for Tidewall.
//!
//! `suite_table KERNEL TIDEWALL` takes two files of results with one line per run. Its
//! fields, separated by tabs, are the script's path, the IP version, `pass` or `fail`,
//! and the first line of the tool's output. docs/tcp.md has the loop that writes the
//! files. The best of several runs of a script counts, since timing on a busy machine
//! sometimes fails the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::{env, fs, process};

/// Results by script and IP version: whether it passed at least once, and why not.
type Results = BTreeMap<String, BTreeMap<String, (bool, String)>>;

fn read(path: &str) -> Result<Results, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let mut results = Results::new();
    for (number, line) in text.lines().enumerate() {
        let mut fields = line.split('\t');
        let (Some(script), Some(version), Some(result)) =
            (fields.next(), fields.next(), fields.next())
        else {
            return Err(format!("{path}, line {}: too few fields", number + 1));
        };
        let passed = result == "pass";
        let why = fields.next().unwrap_or_default().to_owned();
        let versions = results.entry(script.to_owned()).or_default();
        let best = versions
            .entry(version.to_owned())
            .or_insert((false, String::new()));
        if passed || !best.0 {
            *best = (best.0 || passed, why);
        }
    }
    Ok(results)
}

/// `pass`, `fail`, or the IP versions in which it passed.
fn verdict(versions: Option<&BTreeMap<String, (bool, String)>>) -> String {
    let Some(versions) = versions else {
        return "not run".to_owned();
    };
    let passed = versions.values().filter(|(passed, _)| *passed).count();
    match passed {
        0 => "fail".to_owned(),
        all if all == versions.len() => "pass".to_owned(),
        some => format!("{some} of {}", versions.len()),
    }
}

/// The subject of a script, if that decides.
fn subject(script: &str) -> &'static str {
    match script {
        script if script.contains("fastopen") => "TCP Fast Open",
        script if script.contains("md5") => "TCP MD5",
        script if script.contains("psp") => "PSP",
        script if script.contains("zerocopy") => "zero copy",
        _ => "everything else",
    }
}

/// Why a script fails: what the subject lacks, or the tool's output.
fn reason(script: &str, versions: &BTreeMap<String, (bool, String)>) -> String {
    if subject(script) == "PSP" {
        return "needs the tool's wire mode".to_owned();
    }
    let said = versions.values().find(|(passed, _)| !passed);
    let said = said.map_or("", |(_, said)| said.as_str());
    let short: String = said.chars().take(150).collect();
    short.replace('|', "/").replace('<', "&lt;")
}

/// The cause of a failure, as far as the tool's output shows it.
fn cause(script: &str, versions: &BTreeMap<String, (bool, String)>) -> &'static str {
    let said = versions.values().find(|(passed, _)| !passed);
    let said = said.map_or("", |(_, said)| said.as_str());
    // A listener sought in `/proc/net/tcp`, a device whose queue is filled, the kernel's
    // memory of a server, its counters.
    let of_kernel = [
        "md5-only-on-client-ack",
        "failed-incoming-data",
        "user-timeout-probe",
        "fallback-exp-opt",
        "icmp-before-accept",
    ];
    match (subject(script), said) {
        _ if of_kernel.iter().any(|name| script.contains(name)) => {
            "it looks at what only a kernel has"
        }
        (known @ ("TCP MD5" | "PSP"), _) => known,
        (_, said) if said.contains("setsockopt call") => "an option that no socket has",
        (_, said) if said.contains("tcpi_") => "TCP_INFO: another value, or none",
        (_, said) if said.contains("tcp_psh") => "PSH on other segments",
        (_, said) if said.contains("payload") => "as many bytes in other packets",
        (_, said) if said.contains("timing") => "another time",
        (_, said) if said.contains("write call") || said.contains("blocking") => {
            "another part of a write is taken"
        }
        _ => "other",
    }
}

/// Scripts that the kernel passes and Tidewall does not, by cause.
fn causes(kernel: &Results, tidewall: &Results) -> Vec<String> {
    let mut causes: BTreeMap<&str, u32> = BTreeMap::new();
    for (script, versions) in tidewall {
        if verdict(kernel.get(script)) == "pass" && verdict(Some(versions)) != "pass" {
            *causes.entry(cause(script, versions)).or_default() += 1;
        }
    }
    let mut rows: Vec<_> = causes.into_iter().collect();
    rows.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let rows = rows
        .into_iter()
        .map(|(cause, count)| format!("| {cause} | {count} |"));
    let head = [
        "| what fails that the kernel passes | scripts |",
        "|---|---|",
    ];
    head.into_iter().map(str::to_owned).chain(rows).collect()
}

fn table(kernel: &Results, tidewall: &Results) -> String {
    let mut lines = Vec::new();
    let scripts: BTreeSet<_> = kernel.keys().chain(tidewall.keys()).collect();
    let mut counts: BTreeMap<&str, [u32; 4]> = BTreeMap::new();
    for script in &scripts {
        let count = counts.entry(subject(script)).or_default();
        let kernel = verdict(kernel.get(*script)) == "pass";
        let tidewall = verdict(tidewall.get(*script)) == "pass";
        count[0] += 1;
        count[1] += u32::from(kernel);
        count[2] += u32::from(tidewall);
        count[3] += u32::from(kernel && tidewall);
    }
    lines.push(
        "| subject | scripts | kernel passes | Tidewall passes | both | both / kernel |".to_owned(),
    );
    lines.push("|---|---|---|---|---|---|".to_owned());
    let mut total = [0; 4];
    let row = |name: &str, [all, kernel, tidewall, both]: [u32; 4]| {
        let share = f64::from(both) / f64::from(kernel.max(1));
        format!("| {name} | {all} | {kernel} | {tidewall} | {both} | {share:.2} |")
    };
    for (name, count) in counts {
        lines.push(row(name, count));
        for (sum, value) in total.iter_mut().zip(count) {
            *sum += value;
        }
    }
    lines.push(row("all", total));
    lines.push(String::new());
    lines.extend(causes(kernel, tidewall));
    lines.push(String::new());
    lines.push("| script | kernel here | Tidewall | why Tidewall fails |".to_owned());
    lines.push("|---|---|---|---|".to_owned());
    for script in scripts {
        let (here, ours) = (kernel.get(script), tidewall.get(script));
        let verdicts = (verdict(here), verdict(ours));
        let why = match ours {
            Some(versions) if verdicts.1 != "pass" => reason(script, versions),
            _ => String::new(),
        };
        lines.push(format!(
            "| {script} | {} | {} | {why} |",
            verdicts.0, verdicts.1
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [kernel, tidewall] = arguments.as_slice() else {
        eprintln!("suite_table KERNEL TIDEWALL");
        process::exit(2);
    };
    match (read(kernel), read(tidewall)) {
        (Ok(kernel), Ok(tidewall)) => {
            // The reader may have closed the pipe.
            let _ = io::stdout().write_all(table(&kernel, &tidewall).as_bytes());
        }
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("{error}");
            process::exit(1);
        }
    }
}
