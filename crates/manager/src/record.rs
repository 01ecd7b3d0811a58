//! The outcome for a socket of an unmodified program: the records that its processes send
//! to the `tidewall run` that started it. Format of a line: docs/preload.md.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Variable with the path that records are sent to: a file, or the socket of a
/// `tidewall run`.
pub const VARIABLE: &str = "TIDEWALL_REPORT";

/// Variable with what a process first sends to that socket. Only a process that the run
/// started knows it, or one that could trace such a process.
pub const KEY_VARIABLE: &str = "TIDEWALL_REPORT_KEY";

/// Maximum bytes of a line.
pub const LINE_BYTES: usize = 4096;

/// The outcome for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// A stack was made.
    Stack,
    /// No stack could be made.
    NoStack,
    /// The stack owns the socket.
    Promoted,
    /// It stayed a kernel socket.
    Kernel,
    /// It stays a kernel socket until the program has served a connection itself.
    Watched,
    /// A system-call filter was refused.
    NoFilter,
}

impl Verdict {
    const ALL: [Verdict; 6] = [
        Verdict::Stack,
        Verdict::NoStack,
        Verdict::Promoted,
        Verdict::Kernel,
        Verdict::Watched,
        Verdict::NoFilter,
    ];

    /// Its name in a line.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Stack => "stack",
            Verdict::NoStack => "no-stack",
            Verdict::Promoted => "promoted",
            Verdict::Kernel => "kernel",
            Verdict::Watched => "watched",
            Verdict::NoFilter => "no-filter",
        }
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Record {
    /// The process that sends it.
    pub process: u32,
    /// The program's name, from `/proc/PID/comm` when the library was loaded.
    pub program: String,
    /// The outcome for the socket.
    pub verdict: Verdict,
    /// `listener`, `datagrams`, `connection`, `connections` or `later sockets`; empty if
    /// it concerns no socket.
    pub what: String,
    /// Address and port; the interface if it concerns no socket.
    pub address: String,
    /// The reason, in words; empty if there is none.
    pub why: String,
}

impl Record {
    /// Reads a line. Escapes characters that could move a terminal's cursor.
    pub fn parse(line: &str) -> Option<Self> {
        let (process, rest) = line.split_once('\t')?;
        let mut fields = (rest.split('\t')).map(|field| field.escape_debug().to_string());
        let mut next = || fields.next().unwrap_or_default();
        let [program, verdict, what, address, why] = [next(), next(), next(), next(), next()];
        let verdict = Verdict::ALL.into_iter().find(|it| it.name() == verdict)?;
        Some(Record {
            process: process.parse().ok()?,
            program,
            verdict,
            what,
            address,
            why,
        })
    }

    /// The line, without its end.
    pub fn line(&self) -> String {
        let Record {
            process,
            program,
            verdict,
            what,
            address,
            why,
        } = self;
        let verdict = verdict.name();
        format!("{process}\t{program}\t{verdict}\t{what}\t{address}\t{why}")
    }

    /// The address that standard error names each time: a listener's. A program may
    /// create a connection or a datagram socket per exchange, so their causes are
    /// reported once.
    pub fn repeated_address(&self) -> &str {
        match self.what.as_str() {
            "connection" | "datagrams" => "",
            _ => &self.address,
        }
    }

    /// Whether it concerns the same socket, or the same matter without a socket.
    pub fn is_of_same(&self, other: &Record) -> bool {
        (&self.what, &self.address) == (&other.what, &other.address)
    }

    /// Whether it concerns something that Tidewall does not protect.
    pub fn is_unprotected(&self) -> bool {
        matches!(self.verdict, Verdict::NoStack | Verdict::Kernel)
    }
}

impl fmt::Display for Record {
    /// Formats a sentence for an operator.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record {
            process,
            program,
            what,
            address,
            why,
            ..
        } = self;
        write!(f, "{program} (process {process}): ")?;
        match self.verdict {
            Verdict::Stack => write!(f, "its sockets are Tidewall's on {address}"),
            Verdict::NoStack => write!(
                f,
                "its sockets stay with the kernel, without a stack on {address}"
            ),
            Verdict::Promoted => write!(f, "{what} {address} is Tidewall's"),
            Verdict::Kernel if address.is_empty() => write!(f, "{what} stay with the kernel"),
            Verdict::Kernel => write!(f, "{what} {address} stays with the kernel"),
            Verdict::Watched => write!(f, "{what} {address} is the kernel's so far"),
            Verdict::NoFilter => write!(f, "a filter of system calls was refused"),
        }?;
        match why.is_empty() {
            true => Ok(()),
            false => write!(f, ": {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        for verdict in Verdict::ALL {
            let record = Record {
                process: 7,
                program: "nginx".to_owned(),
                verdict,
                what: "listener".to_owned(),
                address: "0.0.0.0:80".to_owned(),
                why: "there is no stack".to_owned(),
            };
            assert_eq!(Record::parse(&record.line()), Some(record));
        }
        for wrong in ["", "7", "x\tnginx\tkernel\t\t\t", "7\tnginx\tlost\t\t\t"] {
            assert_eq!(Record::parse(wrong), None, "{wrong}");
        }
        let escaped = Record::parse("9\t\u{1b}[2J\tkernel\tlistener\t\u{7}").unwrap();
        assert!(!escaped.to_string().chars().any(char::is_control));
    }

    #[test]
    fn a_sentence_names_program_socket_and_reason() {
        let line = "7\tnginx\tkernel\tlistener\t127.0.0.1:81\tloopback";
        let record = Record::parse(line).unwrap();
        assert!(record.is_unprotected());
        assert_eq!(
            record.to_string(),
            "nginx (process 7): listener 127.0.0.1:81 stays with the kernel: loopback"
        );
        let stack = Record::parse("7\tnginx\tstack\t\teth0\t").unwrap();
        assert!(!stack.is_unprotected());
    }
}
