//! What the library says of a program's sockets, by a file to which its processes add lines.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;

use tidewall_manager::places;

use crate::table::Table;

/// Variable with the file's name.
pub const VARIABLE: &str = "TIDEWALL_REPORT";

/// Bytes of it that are read: lines are a few, but whoever may write may write much.
const MOST: u64 = 16 << 20;

/// The file; removed when dropped.
pub struct Report(PathBuf);

impl Report {
    /// An empty one to which any user can add: programs drop their privileges.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn new() -> io::Result<Self> {
        let name = format!("run-{}.report", process::id());
        let make = |directory: &Path| {
            let path = directory.join(&name);
            let mut options = OpenOptions::new();
            let file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)?;
            let report = Report(path);
            file.set_permissions(fs::Permissions::from_mode(0o622))?;
            Ok(report)
        };
        let _ = fs::create_dir_all(places::SOCKETS);
        make(Path::new(places::SOCKETS)).or_else(|_: io::Error| make(&env::temp_dir()))
    }

    /// What the library opens.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Says on standard error what the lines add up to. `obstacle`: why the library was left
    /// out.
    pub fn print(&self, obstacle: Option<&str>) {
        let mut lines = Vec::new();
        let read = File::open(&self.0).and_then(|file| file.take(MOST).read_to_end(&mut lines));
        if let Err(error) = read {
            eprintln!("tidewall: reading the report: {error}");
        }
        eprint!("{}", text(&String::from_utf8_lossy(&lines), obstacle));
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Lines of the form process, program, verdict, what it is, address, reason
/// (docs/preload.md); those that differ by their process alone are one row.
fn text(lines: &str, obstacle: Option<&str>) -> String {
    let mut rows: BTreeMap<[String; 5], BTreeSet<&str>> = BTreeMap::new();
    for line in lines.lines() {
        let Some((process, rest)) = line.split_once('\t') else {
            continue;
        };
        let mut fields = rest
            .split('\t')
            .map(|field| field.escape_debug().to_string());
        let mut next = || fields.next().unwrap_or_default();
        let [program, verdict, what, address, why] = [next(), next(), next(), next(), next()];
        let has = match verdict.as_str() {
            "promoted" => "Tidewall",
            "kernel" => "kernel",
            // Of the stack, which has neither name nor address.
            verdict => verdict,
        };
        let key = [program, has.to_owned(), what, address, why];
        rows.entry(key).or_default().insert(process);
    }
    if rows.is_empty() {
        let why = obstacle.unwrap_or("the program has attended to none that Tidewall can have");
        return format!("tidewall: all sockets stayed with the kernel: {why}\n");
    }
    let mut table = Table::of(2, "program|>processes|who has it|what|address|why");
    for ([program, has, what, address, why], processes) in rows {
        table.row([
            program,
            processes.len().to_string(),
            has,
            what,
            address,
            why,
        ]);
    }
    format!("tidewall: who had the program's sockets\n{}", table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_several_processes_add_up() {
        let lines = "7\tnginx\tpromoted\tlistener\t0.0.0.0:80\t\n\
            8\tnginx\tpromoted\tlistener\t0.0.0.0:80\t\n\
            7\tnginx\tkernel\tlistener\t127.0.0.1:81\tloopback\n\
            garbage\u{1b}[2J\n\n9\t\u{1b}[2J";
        let said = text(lines, None);
        let row = |words: &[&str]| {
            let has = |line: &str| words.iter().all(|word| line.contains(word));
            assert!(said.lines().any(has), "{said}");
        };
        row(&["nginx", "2", "Tidewall", "0.0.0.0:80"]);
        row(&["nginx", "1", "kernel", "127.0.0.1:81", "loopback"]);
        assert!(!said.contains('\u{1b}'));
        assert!(text("", Some("it is static")).contains("kernel: it is static"));
    }
}
