//! `tidewall trace`: follows single frames through every stage, for people and as pcapng.
//! tcpdump does not see the frames that Tidewall receives.

mod atm;
mod decode;
mod pcapng;

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use tidewall::control::{self, Trace, TracedFrame};
use tidewall::snapshot::StackSnapshot;
use tidewall::trace::Line;
use tidewall_manager::pinned::PinnedTraces;
use tidewall_manager::places;
use tidewall_manager::protocol::Status;
use tidewall_manager::view::View;

use crate::end::{Failure, Outcome, say, say_json, say_line, stop_flag};
use crate::stat::explain::{self, Place};
use crate::stat::{snapshot, stacks};
use crate::units;

/// Follow the next N frames of a live stack through every stage.
///
/// For each frame it prints what it is, the driver program's verdict and reason, and its
/// later fate. tcpdump does not see frames that Tidewall receives; this does, and writes
/// them for Wireshark. Frames that are not followed cost the stack nothing.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tidewall trace                     the next 20 frames of the only live stack\n  \
    tidewall trace 4711 -n 5           five frames of one process\n  \
    tidewall trace -n 1000 --write out.pcapng && tshark -r out.pcapng\n  \
    tidewall trace --json | jq .       one JSON object a frame\n\n\
    Of an application of a manager (tidewalld) it shows all frames of the device, and needs root. \
    The driver keeps the first 256 bytes of each frame. Under load only the frames that fit its \
    trace ring at once are seen. Exit code 1: no stack is live, or no frame came in time."
)]
pub struct Arguments {
    /// Process whose stack to follow [default: all live stacks, one after another]
    #[arg(value_name = "PID")]
    process: Option<u32>,
    /// How many frames to follow, per stack
    #[arg(short = 'n', long = "frames", value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(control::TRACE_LIMIT)))]
    frames: u32,
    /// Longest time to wait for them, such as 10s (looks are two seconds long)
    #[arg(long = "for", value_name = "TIME", default_value = "2s", value_parser = units::duration)]
    time: Duration,
    /// Also write the frames to FILE as pcapng, with verdict and fate as comments
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Print one JSON object per frame instead of text
    #[arg(long)]
    json: bool,
}

/// A frame and everything known about it.
#[derive(Debug, Serialize)]
struct Followed<'a> {
    interface: &'a str,
    /// Seconds since 1970.
    time: f64,
    frame: &'a TracedFrame,
    decoded: decode::Decoded,
    stages: Vec<&'a Line>,
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    let stop = stop_flag()?;
    let paths = stacks(arguments.process)?;
    let mut file = arguments.write.as_deref().map(open).transpose()?;
    let mut seen = 0;
    for path in &paths {
        let stack = snapshot(path)?;
        let interface = match &mut file {
            Some((writer, name)) => writer
                .interface(&stack.interface)
                .map_err(|error| write_failure(name, &error))?,
            None => 0,
        };
        let mut of_manager = of_manager(&stack)?;
        let deadline = Instant::now() + arguments.time;
        let mut left = arguments.frames;
        while left > 0 && !stop.load(Ordering::Relaxed) {
            if let Some(frames) = &mut of_manager {
                frames.start(left);
            }
            let answer = control::ask(path, &format!("trace {left}"))
                .map_err(|error| Failure::io(&format!("asking {}", path.display()), &error))?;
            let mut trace: Trace = serde_json::from_str(&answer).map_err(|error| {
                Failure::answer(format!(
                    "{} answers in another form ({error})",
                    path.display()
                ))
            })?;
            if let Some(frames) = &mut of_manager {
                let taken = frames.taken().take(left as usize);
                trace.frames = taken.map(|record| TracedFrame::of(&record)).collect();
            }
            let epoch = epoch_of_monotonic();
            for frame in &trace.frames {
                let followed = follow(&stack, frame, &trace.lines, epoch);
                if let Some((writer, name)) = &mut file {
                    writer
                        .packet(&packet(&followed, interface, epoch, &comment(&followed)))
                        .map_err(|error| write_failure(name, &error))?;
                }
                if arguments.json {
                    say_json(&followed)?;
                } else {
                    say(&text(&followed))?;
                }
            }
            seen += trace.frames.len();
            left = left.saturating_sub(trace.frames.len() as u32);
            if Instant::now() >= deadline {
                break;
            }
        }
    }
    if let Some((writer, name)) = file {
        writer
            .finish()
            .map_err(|error| write_failure(&name, &error))?;
        if !arguments.json {
            say_line(&format!("{seen} frames written to {}", name.display()))?;
        }
    }
    if seen == 0 {
        return Err(Failure::answer(format!(
            "no frame came within {}; wait longer with --for, or see whether the stack has traffic: tidewall stat",
            units::age(arguments.time)
        )));
    }
    Ok(())
}

/// Returns the traces of a stack that is an application of a manager; none for a stack
/// with its own device.
fn of_manager(stack: &StackSnapshot) -> Result<Option<PinnedTraces>, Failure> {
    let interface = &stack.interface;
    let view = View::connect(&places::socket(interface));
    let applications = view.and_then(|view| view.applications());
    let is_ours = |status: &Status| status.process == stack.process;
    if !applications.is_ok_and(|all| all.iter().any(is_ours)) {
        return Ok(None);
    }
    let pins = [places::pins(interface), places::ephemeral_pins(interface)];
    // Only user 0 can see whether they exist.
    let mut opened = pins.iter().map(|pins| PinnedTraces::open(pins));
    let is_there = |opened: &io::Result<_>| {
        let error = opened.as_ref().err();
        error.is_none_or(|error| error.kind() != io::ErrorKind::NotFound)
    };
    let opened = opened.find(is_there);
    let opened = opened.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()));
    opened.map(Some).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::usage(format!(
            "the frames of process {} come by the driver program of a manager, where those of all users \
             pass: only user 0 may follow them: sudo tidewall trace {}",
            stack.process, stack.process
        )),
        _ => Failure::io(
            &format!("opening what the manager of {interface} has pinned in /sys/fs/bpf"),
            &error,
        ),
    })
}

type PcapngFile = (pcapng::Writer<BufWriter<File>>, PathBuf);

fn open(path: &Path) -> Result<PcapngFile, Failure> {
    let file = File::create(path).map_err(|error| write_failure(path, &error))?;
    let writer =
        pcapng::Writer::new(BufWriter::new(file)).map_err(|error| write_failure(path, &error))?;
    Ok((writer, path.to_owned()))
}

fn write_failure(path: &Path, error: &std::io::Error) -> Failure {
    Failure::io(&format!("writing {}", path.display()), error)
}

/// Returns the nanoseconds to add to the driver's monotonic clock for time since 1970.
fn epoch_of_monotonic() -> u64 {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    now.saturating_sub(tidewall_sys::monotonic()).as_nanos() as u64
}

fn follow<'a>(
    stack: &'a StackSnapshot,
    frame: &'a TracedFrame,
    lines: &'a [Line],
    epoch: u64,
) -> Followed<'a> {
    Followed {
        interface: &stack.interface,
        time: (epoch + frame.nanoseconds) as f64 / 1e9,
        frame,
        decoded: decode::frame(&frame.bytes, frame.length as usize),
        stages: lines
            .iter()
            .filter(|line| line.frame == frame.frame)
            .collect(),
    }
}

/// Describes the driver program's verdict and its reason.
fn verdict(frame: &TracedFrame) -> String {
    let meaning = explain::find(Place::Driver, &frame.cause).map_or("", |entry| entry.meaning);
    match (frame.verdict.as_str(), frame.cause.as_str()) {
        ("redirect", _) if frame.channel != 0 => format!("redirect to channel {}", frame.channel),
        ("redirect", _) => "redirect, not demultiplexed".to_owned(),
        ("pass", "frames") => "pass to the kernel".to_owned(),
        ("pass", cause) => format!("pass to the kernel: {cause}. {meaning}"),
        // Kernel-bound, yet dropped: its class had no token left.
        ("drop", cause @ ("tagged" | "unknown" | "multicast" | "not-local" | "unowned")) => {
            format!("drop: {cause}, over the rate of its class of kernel-bound frames")
        }
        ("drop", cause) => format!("drop: {cause}. {meaning}"),
        (verdict, cause) => format!("{verdict}: {cause}"),
    }
}

/// Describes the frame's fate in one line, for Wireshark.
fn comment(followed: &Followed<'_>) -> String {
    let mut comment = format!("driver: {}", verdict(followed.frame));
    for line in &followed.stages {
        comment.push_str(&format!("; {}: {}", line.stage, line.what));
    }
    comment
}

fn packet<'a>(
    followed: &'a Followed<'_>,
    interface: u32,
    epoch: u64,
    comment: &'a str,
) -> pcapng::Packet<'a> {
    let frame = followed.frame;
    pcapng::Packet {
        interface,
        time: epoch + frame.nanoseconds,
        bytes: &frame.bytes,
        length: frame.length,
        number: frame.frame.into(),
        queue: frame.queue,
        // enum xdp_action of the Linux UAPI; anything else is XDP_ABORTED.
        verdict: match frame.verdict.as_str() {
            "drop" => 1,
            "pass" => 2,
            "redirect" => 4,
            _ => 0,
        },
        comment,
    }
}

fn text(followed: &Followed<'_>) -> String {
    let frame = followed.frame;
    let seconds = followed.time as u64;
    // Time of day in UTC, as tcpdump prints it.
    let mut text = format!(
        "frame {} {:02}:{:02}:{:09.6} {} queue {}, {} bytes\n  {}\n",
        frame.frame,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        followed.time % 60.0,
        followed.interface,
        frame.queue,
        frame.length,
        followed.decoded.summary,
    );
    for layer in &followed.decoded.layers {
        text.push_str(&format!("    {layer}\n"));
    }
    text.push_str(&format!("    driver     {}\n", verdict(frame)));
    for line in &followed.stages {
        text.push_str(&format!("    {:<10} {}\n", line.stage, line.what));
    }
    if followed.stages.is_empty() && frame.verdict == "redirect" {
        text.push_str("    waiting    not received by the application before the trace ended\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(verdict: &str, cause: &str, channel: u16) -> TracedFrame {
        let bytes = decode::tests::udp4(b"hello");
        let mut traced = TracedFrame::default();
        traced.frame = 9;
        traced.nanoseconds = 5;
        traced.queue = 1;
        traced.length = bytes.len() as u32;
        traced.verdict = verdict.to_owned();
        traced.cause = cause.to_owned();
        traced.channel = channel;
        traced.bytes = bytes;
        traced
    }

    fn line(frame: u32, stage: &str, what: &str) -> Line {
        let mut line = Line::default();
        line.frame = frame;
        line.microseconds = 1;
        line.stage = stage.to_owned();
        line.what = what.to_owned();
        line
    }

    fn followed<'a>(frame: &'a TracedFrame, lines: &'a [Line]) -> Followed<'a> {
        Followed {
            interface: "veth0",
            time: 3_723.000_5,
            frame,
            decoded: decode::frame(&frame.bytes, frame.bytes.len()),
            stages: lines
                .iter()
                .filter(|line| line.frame == frame.frame)
                .collect(),
        }
    }

    #[test]
    fn a_frame_is_followed_through_its_own_stages_only() {
        let frame = frame("redirect", "channel", 2);
        let lines = [
            line(8, "dropped", "other"),
            line(9, "delivered", "5 bytes to 0.0.0.0:7"),
        ];
        let text = text(&followed(&frame, &lines));
        assert!(
            text.starts_with("frame 9 01:02:03.000500 veth0 queue 1, 47 bytes\n"),
            "{text}"
        );
        assert!(
            text.contains("10.0.0.1:40000 > 10.0.0.2:7 UDP, 5 bytes"),
            "{text}"
        );
        assert!(
            text.contains("driver     redirect to channel 2\n"),
            "{text}"
        );
        assert!(
            text.ends_with("delivered  5 bytes to 0.0.0.0:7\n"),
            "{text}"
        );
        assert!(!text.contains("other"), "{text}");
        assert_eq!(
            comment(&followed(&frame, &lines)),
            "driver: redirect to channel 2; delivered: 5 bytes to 0.0.0.0:7"
        );
    }

    #[test]
    fn verdicts_say_why() {
        assert_eq!(
            verdict(&frame("drop", "unowned", 0)),
            "drop: unowned, over the rate of its class of kernel-bound frames"
        );
        assert!(
            verdict(&frame("drop", "channel-full", 2))
                .starts_with("drop: channel-full. Early discard")
        );
        assert!(
            verdict(&frame("pass", "multicast", 0))
                .starts_with("pass to the kernel: multicast. Group")
        );
        assert_eq!(
            verdict(&frame("redirect", "raw", 0)),
            "redirect, not demultiplexed"
        );
        assert_eq!(verdict(&frame("aborted", "frames", 0)), "aborted: frames");
        assert!(
            text(&followed(&frame("redirect", "channel", 2), &[]))
                .contains("not received by the application")
        );
    }
}
