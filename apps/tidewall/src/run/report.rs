//! The fate of a program's sockets: those that stay with the kernel are named on standard
//! error at once, and shown to `stat`, `top` and `doctor`. A table follows at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tidewall::snapshot::StackSnapshot;
use tidewall_manager::connection::{Connection, Listener};
use tidewall_manager::places;
use tidewall_manager::record::{self, LINE_BYTES, Record, Verdict};

use super::unreached::Unreached;
use crate::end::warn;
use crate::table::Table;

/// Prefix and suffix of a socket's name in [`places::SOCKETS`], around the process.
const NAME: (&str, &str) = ("run-", ".report");
/// Sent instead of the key by a process that asks for the records.
const QUESTION: &[u8] = b"?";
/// Bytes of a key, which is written in hexadecimal.
const KEY_BYTES: usize = 16;
/// Most rows kept.
const ROWS_MAX: usize = 4096;
/// Most lines on standard error.
const SAID_MAX: usize = 64;
/// Most records shown to a process that asks.
const SHOWN_MAX: usize = 128;
/// Most strangers at a time: connections that have not sent the key, and threads that
/// answer them. A stranger's data are only discarded by closing its socket, which may
/// take as long as the stranger likes.
const STRANGERS_MAX: usize = 64;
/// Time in which a connection must send the key.
const KEY_WITHIN: Duration = Duration::from_secs(1);
/// How often timeouts are checked, and the delay before accepting again after too many
/// connections, or without a descriptor.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often to look for processes without the library, at first and later.
const LOOK_FIRST: Duration = Duration::from_millis(500);
const LOOK_RARELY: Duration = Duration::from_secs(10);
const UNTIL_RARE: Duration = Duration::from_secs(60);
/// Longest wait for an answer.
const ANSWER_WITHIN: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Receives the records of a program's processes; removes its socket when dropped.
pub struct Report {
    path: PathBuf,
    key: String,
    records: Arc<Mutex<Records>>,
    /// Closed at the end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// A record without its process; rows are compared by it.
type Row = (String, Verdict, String, String, String);

#[derive(Debug, Default)]
struct Records {
    rows: BTreeMap<Row, BTreeSet<u32>>,
    /// Records already printed on standard error, in the form in which each is printed
    /// once.
    said: BTreeSet<Row>,
}

impl Report {
    /// Begins to receive the records of programs started with this library.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn start(library: &Path) -> io::Result<Self> {
        // This removes the sockets of killed runs.
        live();
        let name = format!("{}{}{}", NAME.0, process::id(), NAME.1);
        let _ = fs::create_dir_all(places::SOCKETS);
        let bind = |directory: &Path| {
            let path = directory.join(&name);
            Listener::bind(&path).map(|listener| (listener, path))
        };
        let (listener, path) =
            bind(Path::new(places::SOCKETS)).or_else(|_| bind(&std::env::temp_dir()))?;
        let (stop, stopped) = UnixStream::pair()?;
        let key = new_key()?;
        let records = Arc::new(Mutex::new(Records::default()));
        let mut server = Server {
            listener,
            stopped,
            key: key.clone(),
            processes: Vec::new(),
            pending: Vec::new(),
            strangers: Arc::new(()),
            records: records.clone(),
            unreached: Unreached::new(library),
            look_at: Instant::now() + LOOK_FIRST,
            until_rare: Instant::now() + UNTIL_RARE,
        };
        let thread = std::thread::Builder::new().name("tw-report".to_owned());
        let thread = thread.spawn(move || server.serve())?;
        Ok(Report {
            path,
            key,
            records,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Lets a program's library connect.
    pub fn offer(&self, command: &mut Command) {
        command.env(record::VARIABLE, &self.path);
        command.env(record::KEY_VARIABLE, &self.key);
    }

    /// Returns the table of all records; to be called after the last process has ended.
    pub fn end(mut self) -> String {
        self.stop();
        text(&lock(&self.records))
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_file(&self.path);
    }
}

fn lock(records: &Mutex<Records>) -> MutexGuard<'_, Records> {
    records.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_key() -> io::Result<String> {
    let mut bytes = [0; KEY_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The receiving thread.
struct Server {
    listener: Listener,
    /// Readable at the end.
    stopped: UnixStream,
    key: String,
    /// Connections that have sent the key.
    processes: Vec<Connection>,
    /// Connections that have not sent anything yet, with their deadlines.
    pending: Vec<(Connection, Instant)>,
    /// A reference count: one more for each thread that answers a stranger.
    strangers: Arc<()>,
    records: Arc<Mutex<Records>>,
    unreached: Unreached,
    /// Next time to look for processes without the library.
    look_at: Instant,
    /// End of the time in which they are looked for often.
    until_rare: Instant,
}

/// The first message of a connection.
enum First {
    Key,
    Nothing,
    Another,
}

impl Server {
    fn serve(&mut self) {
        let mut is_accepting = true;
        loop {
            let mut waits = vec![PollFd::new(&self.stopped, PollFlags::IN)];
            let pending = self.pending.iter().map(|(connection, _)| connection);
            let connections = self.processes.iter().chain(pending).map(AsFd::as_fd);
            waits.extend(connections.map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)));
            if is_accepting {
                waits.push(PollFd::new(&self.listener, PollFlags::IN));
            }
            let until_look = self.look_at.saturating_duration_since(Instant::now());
            let timeout = match is_accepting && self.pending.is_empty() {
                true => until_look,
                false => until_look.min(LOOK_EVERY),
            };
            let timeout = Timespec {
                tv_sec: timeout.as_secs() as i64,
                tv_nsec: timeout.subsec_nanos().into(),
            };
            if poll(&mut waits, Some(&timeout)).is_err_and(|error| error != Errno::INTR) {
                return;
            }
            let is_over = waits.first().is_some_and(|it| !it.revents().is_empty());
            is_accepting = self.accept();
            self.look_at_pending();
            let (records, processes) = (&self.records, &mut self.processes);
            processes.retain(|process| receive(process, records));
            if Instant::now() >= self.look_at {
                self.look_for_unreached();
            }
            if is_over {
                return;
            }
        }
    }

    /// Accepts all waiting connections; returns false if no more can be accepted for a
    /// while.
    fn accept(&mut self) -> bool {
        loop {
            if Arc::strong_count(&self.strangers) + self.pending.len() > STRANGERS_MAX {
                return false;
            }
            match self.listener.accept() {
                Ok(Some(connection)) => {
                    self.pending.push((connection, Instant::now() + KEY_WITHIN));
                }
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    fn look_for_unreached(&mut self) {
        for record in self.unreached.look() {
            note(&self.records, &record);
        }
        let is_rare = Instant::now() > self.until_rare;
        self.look_at = Instant::now() + if is_rare { LOOK_RARELY } else { LOOK_FIRST };
    }

    fn look_at_pending(&mut self) {
        for (connection, until) in std::mem::take(&mut self.pending) {
            match self.first(&connection) {
                First::Key => self.processes.push(connection),
                First::Nothing if Instant::now() < until => self.pending.push((connection, until)),
                First::Nothing | First::Another => self.answer_stranger(connection),
            }
        }
    }

    /// Reads the first message. Only the key is taken from the socket. Descriptors in
    /// anything else stay there, since closing them here could block.
    fn first(&self, connection: &Connection) -> First {
        let mut sent = [0; 2 * KEY_BYTES];
        match recv(
            connection,
            &mut sent[..],
            RecvFlags::PEEK | RecvFlags::DONTWAIT,
        ) {
            Err(Errno::AGAIN | Errno::INTR) => First::Nothing,
            Ok((length, _)) if sent.get(..length) == Some(self.key.as_bytes()) => {
                let _ = recv(connection, &mut sent[..], RecvFlags::DONTWAIT);
                First::Key
            }
            _ => First::Another,
        }
    }

    fn answer_stranger(&self, connection: Connection) {
        let (records, count) = (self.records.clone(), self.strangers.clone());
        let answer = move || {
            show(&connection, &lock(&records));
            drop((connection, count));
        };
        // If no thread starts, the connection is closed here: there is no better way.
        let _ = std::thread::Builder::new()
            .name("tw-show".to_owned())
            .spawn(answer);
    }
}

/// Receives all messages of a process; returns false once it has hung up.
fn receive(process: &Connection, records: &Mutex<Records>) -> bool {
    let mut line = [0; LINE_BYTES];
    loop {
        let length = match recv(process, &mut line[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return false,
            Ok((length, _)) => length,
            Err(Errno::AGAIN) => return true,
            Err(Errno::INTR) => continue,
            Err(_) => return false,
        };
        let line = line.get(..length).unwrap_or_default();
        if let Some(record) = Record::parse(&String::from_utf8_lossy(line)) {
            note(records, &record);
        }
    }
}

fn note(records: &Mutex<Records>, record: &Record) {
    let is_news = lock(records).add(record);
    if is_news {
        warn(&record.to_string());
    }
}

/// Sends the unprotected sockets of live processes.
fn show(to: &Connection, records: &Records) {
    for record in records.unprotected().take(SHOWN_MAX) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if send(to, record.line().as_bytes(), flags).is_err() {
            return;
        }
    }
}

impl Records {
    /// Adds a record; returns whether to print it on standard error. It is printed once
    /// for each cause and socket, or once per cause for connections, which may be many. A
    /// process's record of a listener replaces its earlier one.
    fn add(&mut self, record: &Record) -> bool {
        let is_listener = |row: &Row| row.2 == "listener" && row.3 == record.address;
        if record.what == "listener" {
            self.rows.retain(|row, processes| {
                if is_listener(row) && processes.remove(&record.process) {
                    return !processes.is_empty();
                }
                true
            });
        }
        let row = (
            record.program.clone(),
            record.verdict,
            record.what.clone(),
            record.address.clone(),
            record.why.clone(),
        );
        if self.rows.len() < ROWS_MAX || self.rows.contains_key(&row) {
            let processes = self.rows.entry(row.clone()).or_default();
            processes.insert(record.process);
        }
        let (program, verdict, what, _, why) = row;
        let address = record.repeated_address().to_owned();
        record.is_unprotected()
            && self.said.len() < SAID_MAX
            && self.said.insert((program, verdict, what, address, why))
    }

    fn unprotected(&self) -> impl Iterator<Item = Record> {
        let records = self.rows.iter().filter_map(|(row, processes)| {
            let lives = |process: &&u32| Path::new(&format!("/proc/{process}")).exists();
            let process = *processes.iter().find(lives)?;
            let (program, verdict, what, address, why) = row.clone();
            Some(Record {
                process,
                program,
                verdict,
                what,
                address,
                why,
            })
        });
        records.filter(Record::is_unprotected)
    }
}

/// Returns the kernel sockets of the programs of all live runs that answer this user;
/// removes the sockets of killed runs.
pub fn live() -> Vec<Record> {
    let entries = fs::read_dir(places::SOCKETS)
        .into_iter()
        .flatten()
        .flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(NAME.0) && name.ends_with(NAME.1))
    });
    paths.flat_map(|path| ask(&path)).collect()
}

/// Returns the same, and what these stacks report of their programs.
pub fn of_all<'a>(stacks: impl IntoIterator<Item = &'a StackSnapshot>) -> Vec<Record> {
    let said = stacks.into_iter().flat_map(|stack| &stack.unprotected);
    let mut records: Vec<Record> = live().into_iter().chain(said.cloned()).collect();
    // A process may have several stacks.
    let mut known = BTreeSet::new();
    records.retain(|record| known.insert(record.clone()));
    records
}

/// Formats records as a list with a title; empty if there are none.
pub fn listed(records: &[Record]) -> String {
    let lines = records.iter().map(|record| format!("  {record}\n"));
    let lines: String = lines.collect();
    match lines.is_empty() {
        true => lines,
        false => format!("on the kernel's sockets, without Tidewall's protection\n{lines}"),
    }
}

fn ask(path: &Path) -> Vec<Record> {
    let mut records = Vec::new();
    let connection = match Connection::connect(path) {
        Ok(connection) => connection,
        Err(error) => {
            if error.kind() == io::ErrorKind::ConnectionRefused {
                let _ = fs::remove_file(path);
            }
            return records;
        }
    };
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = send(&connection, QUESTION, flags);
    let mut line = [0; LINE_BYTES];
    loop {
        let mut waits = [PollFd::new(&connection, PollFlags::IN)];
        if !poll(&mut waits, Some(&ANSWER_WITHIN)).is_ok_and(|ready| ready > 0) {
            return records;
        }
        match recv(&connection, &mut line[..], RecvFlags::DONTWAIT) {
            Ok((length, _)) if length > 0 => {
                let line = String::from_utf8_lossy(line.get(..length).unwrap_or_default());
                records.extend(Record::parse(&line));
            }
            // The question was not read; the answer comes behind that.
            Err(Errno::CONNRESET | Errno::INTR) => {}
            _ => return records,
        }
        if records.len() > SHOWN_MAX {
            return records;
        }
    }
}

/// Formats all records; rows that differ only by process become one.
fn text(records: &Records) -> String {
    if records.rows.is_empty() {
        return "tidewall: all sockets stayed with the kernel: the program has waited for none that \
                Tidewall can have\n"
            .to_owned();
    }
    let mut table = Table::of(2, "program|>processes|who has it|what|address|why");
    for ((program, verdict, what, address, why), processes) in &records.rows {
        let has = match verdict {
            Verdict::Promoted => "Tidewall",
            verdict => verdict.name(),
        };
        table.row([
            program.clone(),
            processes.len().to_string(),
            has.to_owned(),
            what.clone(),
            address.clone(),
            why.clone(),
        ]);
    }
    format!("tidewall: who had the program's sockets\n{}", table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_lines(lines: &str) -> (Records, Vec<String>) {
        let mut records = Records::default();
        let parsed = lines.lines().filter_map(Record::parse);
        let news = parsed.filter(|record| records.add(record));
        let news = news.map(|record| record.to_string()).collect();
        (records, news)
    }

    #[test]
    fn lines_of_several_processes_add_up() {
        let (records, _) = of_lines(
            "7\tnginx\tpromoted\tlistener\t0.0.0.0:80\t\n\
             8\tnginx\tpromoted\tlistener\t0.0.0.0:80\t\n\
             7\tnginx\tkernel\tlistener\t127.0.0.1:81\tloopback\n\
             garbage\u{1b}[2J\n\n9\t\u{1b}[2J",
        );
        let said = text(&records);
        let row = |words: &[&str]| {
            let has = |line: &str| words.iter().all(|word| line.contains(word));
            assert!(said.lines().any(has), "{said}");
        };
        row(&["nginx", "2", "Tidewall", "0.0.0.0:80"]);
        row(&["nginx", "1", "kernel", "127.0.0.1:81", "loopback"]);
        assert!(!said.contains('\u{1b}'));
    }

    #[test]
    fn what_the_kernel_has_is_said_once_by_cause_and_socket() {
        let (_, news) = of_lines(
            "7\tnginx\tpromoted\tlistener\t0.0.0.0:80\t\n\
             8\tnginx\tno-stack\t\teth0\tanother application has the queues\n\
             9\tnginx\tno-stack\t\teth0\tanother application has the queues\n\
             8\tnginx\tkernel\tlistener\t0.0.0.0:80\tthere is no stack\n\
             8\tnginx\tkernel\tconnection\t10.0.0.1:80\tanother interface leads there\n\
             8\tnginx\tkernel\tconnection\t10.0.0.2:80\tanother interface leads there\n\
             8\tnginx\tkernel\tdatagrams\t127.0.0.1:4000\tloopback\n\
             8\tnginx\tkernel\tdatagrams\t127.0.0.1:4001\tloopback",
        );
        assert_eq!(news.len(), 4, "{news:?}");
        // A program that keeps making new sockets does not fill the terminal.
        let lines: String = (0..2 * SAID_MAX)
            .map(|port| format!("8\tp\tkernel\tlistener\t127.0.0.1:{port}\tloopback\n"))
            .collect();
        assert_eq!(of_lines(&lines).1.len(), SAID_MAX);
    }
}
