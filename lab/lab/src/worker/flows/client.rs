//! The clients, on kernel sockets: one thread per flow.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_socket_linger, tcp_congestion};

use super::{
    CHUNK, FlowClient, FlowOutcome, FlowSpec, ObjectClient, ObjectOutcome, Request, TICK_MS, Way,
};
use crate::tcp;

/// Longest time that connecting, the first bytes or an object may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How often a flow checks the clock while nothing arrives.
const LOOK: Duration = Duration::from_millis(20);
/// How much longer than the counted time a flow sends: its last bytes must arrive within
/// that time, at any round trip here.
const GRACE: Duration = Duration::from_millis(500);

pub(super) fn flows(client: &FlowClient) -> Vec<FlowOutcome> {
    let begun = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = client
            .flows
            .iter()
            .map(|flow| scope.spawn(move || one_flow(flow, &client.congestion, begun)))
            .collect();
        threads
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(error)) => failed(&error.to_string()),
                Err(_) => failed("its thread died"),
            })
            .collect()
    })
}

fn failed(why: &str) -> FlowOutcome {
    FlowOutcome {
        failed: Some(why.to_owned()),
        ..FlowOutcome::default()
    }
}

fn one_flow(flow: &FlowSpec, congestion: &str, begun: Instant) -> io::Result<FlowOutcome> {
    let start = begun + Duration::from_millis(flow.after_ms);
    thread::sleep(start.saturating_duration_since(Instant::now()));
    let stream = tcp::connect(flow.port, flow.server, congestion, TIMEOUT)?;
    // Bytes in flight at the end of the time do not matter.
    set_socket_linger(&stream, Some(Duration::ZERO))?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(LOOK))?;
    let time = Duration::from_millis(flow.duration_ms);
    let mut outcome = match flow.way {
        Way::Fetch => {
            (&stream).write_all(&Request::Fetch(flow.duration_ms).to_bytes())?;
            fetch(&stream, time, begun)?
        }
        Way::Give => {
            (&stream).write_all(&Request::Give(flow.duration_ms).to_bytes())?;
            give(&stream, time)?;
            FlowOutcome::default()
        }
    };
    outcome.figures = tcp::info(&stream)?;
    let used = tcp_congestion(&stream)?;
    if used != congestion {
        return Err(io::Error::other(format!("congestion control is {used}")));
    }
    Ok(outcome)
}

/// Receives for `time` after the first bytes.
fn fetch(mut stream: &TcpStream, time: Duration, begun: Instant) -> io::Result<FlowOutcome> {
    let mut chunk = vec![0; CHUNK];
    let mut outcome = FlowOutcome::default();
    let asked = Instant::now();
    let mut first = None;
    let mut all = 0;
    loop {
        let read = stream.read(&mut chunk);
        let now = Instant::now();
        // The ticks that are over have the bytes received before.
        let ticks = (now - begun).as_millis() as u64 / TICK_MS;
        while (outcome.timeline.len() as u64) < ticks {
            outcome.timeline.push(all);
        }
        if first.is_some_and(|first| now - first >= time) {
            outcome.nanoseconds = time.as_nanos() as u64;
            return Ok(outcome);
        }
        match read {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                all += count as u64;
                match first {
                    Some(_) => outcome.bytes += count as u64,
                    None => first = Some(now),
                }
            }
            Err(error) if waits(&error) => {
                if first.is_none() && now - asked > TIMEOUT {
                    return Err(io::Error::new(ErrorKind::TimedOut, "no bytes came"));
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Sends for `time` and a little longer.
fn give(mut stream: &TcpStream, time: Duration) -> io::Result<()> {
    let chunk = vec![0x5a; CHUNK];
    let end = Instant::now() + time + GRACE;
    while Instant::now() < end {
        match stream.write(&chunk) {
            Ok(_) => {}
            Err(error) if waits(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

pub(super) fn objects(client: &ObjectClient) -> ObjectOutcome {
    let next = AtomicU16::new(0);
    let mut outcome = ObjectOutcome::default();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..client.at_once)
            .map(|_| {
                let next = &next;
                scope.spawn(move || {
                    let mut outcome = ObjectOutcome::default();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= client.count {
                            return outcome;
                        }
                        let port = client.first_port.wrapping_add(number);
                        match one_object(client, port) {
                            Ok(times) => outcome.times.push(times),
                            Err(error) => outcome.failed.push(format!("port {port}: {error}")),
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(part) => {
                    outcome.times.extend(part.times);
                    outcome.failed.extend(part.failed);
                }
                Err(_) => outcome.failed.push("a client's thread died".to_owned()),
            }
        }
    });
    outcome
}

/// Fetches one object on its own connection; returns the times of [`ObjectOutcome`].
fn one_object(client: &ObjectClient, port: u16) -> io::Result<(u64, u64)> {
    let begun = Instant::now();
    let stream = tcp::connect(port, client.server, &client.congestion, TIMEOUT)?;
    let connected = begun.elapsed();
    stream.set_read_timeout(Some(TIMEOUT))?;
    (&stream).write_all(&Request::Object(client.bytes).to_bytes())?;
    let mut chunk = vec![0; CHUNK];
    let mut left = client.bytes;
    while left > 0 {
        match (&stream).read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => left = left.saturating_sub(count as u64),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let all = begun.elapsed();
    Ok((connected.as_nanos() as u64, all.as_nanos() as u64))
}
