//! The results of a load, for people.

use tidewall_load::{
    Distribution, HttpReport, IdleReport, IdleSpec, Latency, LoadReport, LoadSpec, PingReport,
    PingSpec, Progress, SClientReport, SClientSpec, Times,
};

use crate::blast;
use crate::table::{Align, Table};
use crate::units::{count, nanoseconds, per_second, trimmed};

/// Returns one line of progress. `open` is the number of idle connections at the last
/// line, and is updated.
pub fn line(progress: &Progress, open: &mut u64) -> String {
    let mut line = blast::line(progress);
    let seconds = progress.interval.as_secs_f64();
    let rate = |number: u64| per_second(number as f64 / seconds);
    let mut add = |part: String| {
        line.push_str("  ");
        line.push_str(&part);
    };
    if let Some(counts) = &progress.s_clients {
        let lost = counts.refused + counts.failed + counts.malformed + counts.timeouts;
        add(format!(
            "offered {}/s, connected {}/s, answered {}/s, gave up {}/s, failed {}/s",
            rate(counts.begun),
            rate(counts.connected),
            rate(counts.responses + counts.other_status),
            rate(counts.gave_up),
            rate(lost + counts.local_errors),
        ));
        let unsent = counts.skipped + counts.no_room;
        if unsent > 0 {
            add(format!("not begun {}/s", rate(unsent)));
        }
    }
    if let Some(counts) = &progress.http {
        add(format!(
            "responses {}/s, other status {}/s, failed {}/s",
            rate(counts.responses),
            rate(counts.other_status),
            rate(
                counts.failed + counts.timeouts + counts.connect_failures + counts.connect_timeouts
            ),
        ));
    }
    if let Some(counts) = &progress.idle {
        let ended = counts.closed + counts.reset;
        *open = (*open + counts.opened).saturating_sub(ended);
        add(format!(
            "{} open, opened {}/s, ended by the server {}/s, failed {}/s",
            count(*open),
            rate(counts.opened),
            rate(ended),
            rate(counts.failed + counts.timed_out),
        ));
    }
    if progress.ping.is_none()
        && let Some(latency) = &progress.latency
    {
        add(format!(
            "p50 {}, p99 {}",
            nanoseconds(latency.p50 as f64),
            nanoseconds(latency.p99 as f64)
        ));
    }
    line
}

/// Returns the report as tables.
pub fn report(spec: &LoadSpec, report: &LoadReport) -> String {
    let mut text = match spec.blast {
        Some(_) => blast::text(report),
        None => String::new(),
    };
    let early = if report.stopped {
        ", stopped early"
    } else {
        ""
    };
    if let (Some(spec), Some(report)) = (&spec.s_clients, &report.s_clients) {
        text.push_str(&s_clients(spec, report, early));
    }
    if let Some(http) = &report.http {
        text.push_str(&self::http(http, early));
    }
    if let (Some(spec), Some(report)) = (&spec.idle, &report.idle) {
        text.push_str(&idle(spec, report, early));
    }
    if spec.blast.is_none() {
        let pings = spec.ping.iter().chain(&spec.beside);
        let reports = report.ping.iter().chain(&report.beside);
        for (spec, report) in pings.zip(reports) {
            text.push_str(&rpc(spec, report, early));
        }
    }
    text
}

/// Explains why a load that ran to its end was useless.
pub fn unanswered(report: &LoadReport) -> Option<String> {
    if let Some(s_clients) = &report.s_clients {
        let counts = &s_clients.whole;
        let answered = counts.responses + counts.other_status;
        if answered == 0 {
            return Some(match &s_clients.local_error {
                Some(error) => format!("nothing was answered; connections failed here: {error}"),
                None if counts.refused > counts.begun / 2 => {
                    "nothing was answered: connections were refused".to_owned()
                }
                None => "nothing was answered".to_owned(),
            });
        }
    }
    if let Some(idle) = &report.idle
        && idle.counts.opened == 0
    {
        return Some("no connection could be opened".to_owned());
    }
    let mut pings = report.ping.iter().chain(&report.beside).peekable();
    if pings.peek().is_some() && pings.all(|ping| ping.whole.echoed == 0) {
        return Some("no call was answered".to_owned());
    }
    if let Some(http) = &report.http
        && http.whole.responses + http.whole.other_status == 0
    {
        return Some(match http.whole.connected {
            0 => "no connection could be had".to_owned(),
            _ => "nothing was answered".to_owned(),
        });
    }
    None
}

/// Acts as [`table`], with every row that has a number.
fn counts(seconds: f64, always: usize, rows: &[(&str, u64, &str)]) -> String {
    table("number", seconds, always, rows).text()
}

/// Returns a table of counts of `what`, also per second if any time passed: the first
/// `always` rows, and those of the others that are not zero.
pub fn table(what: &str, seconds: f64, always: usize, rows: &[(&str, u64, &str)]) -> Table {
    let mut table = Table::of(2, &format!("|>{what}|>/s|"));
    for (place, (name, number, note)) in rows.iter().enumerate() {
        if *number > 0 || place < always {
            let rate = match seconds > 0.0 {
                true => per_second(*number as f64 / seconds),
                false => "-".to_owned(),
            };
            table.row([(*name).to_owned(), count(*number), rate, (*note).to_owned()]);
        }
    }
    table
}

fn s_clients(spec: &SClientSpec, report: &SClientReport, early: &str) -> String {
    let seconds = report.duration.as_secs_f64();
    let mut text = format!(
        "S-clients at {}/s: D = {}, T = {}, {seconds:.2} s measured{early}\n",
        count(spec.rate),
        count(spec.establishing()),
        trimmed(spec.connect_timeout.as_nanos() as u64),
    );
    let counted = &report.measured;
    text.push_str(&counts(
        seconds,
        3,
        &[
            ("offered", counted.begun, "connections begun"),
            ("connected", counted.connected, "within T, the request sent"),
            ("responses", counted.responses, "whole, status 200"),
            (
                "other status",
                counted.other_status,
                "whole, another status",
            ),
            (
                "gave up",
                counted.gave_up,
                "not connected within T: closed and replaced",
            ),
            (
                "refused",
                counted.refused,
                "or reset before the request was sent",
            ),
            (
                "failed",
                counted.failed,
                "closed or reset before the response was whole",
            ),
            ("malformed", counted.malformed, "no HTTP/1.1 response"),
            ("timed out", counted.timeouts, "no whole response in time"),
            (
                "local errors",
                counted.local_errors,
                "this host could not begin them",
            ),
            ("unfinished", report.unfinished, "under way at the end"),
            (
                "skipped",
                counted.skipped,
                "not begun: the generator could not keep the rate",
            ),
            (
                "no room",
                counted.no_room,
                "not begun: --max-open connections were open",
            ),
        ],
    ));
    if let Some(error) = &report.local_error {
        text.push_str(&format!("  first local error: {error}\n"));
    }
    text.push_str(&times(
        &report.response,
        report.connect.as_ref().map(|connect| &connect.summary),
        "from when due",
        "from when begun",
    ));
    text
}

fn http(report: &HttpReport, early: &str) -> String {
    let seconds = report.duration.as_secs_f64();
    let counted = &report.measured;
    let mut text = format!("HTTP, {seconds:.2} s measured{early}\n");
    text.push_str(&counts(
        seconds,
        2,
        &[
            ("requests", counted.requests, "sent"),
            ("responses", counted.responses, "whole, status 200"),
            (
                "other status",
                counted.other_status,
                "whole, another status",
            ),
            (
                "failed",
                counted.failed,
                "closed, reset or answered by what is no HTTP/1.1",
            ),
            ("timed out", counted.timeouts, "no whole response in time"),
            ("connections", counted.connects, "begun"),
            (
                "connect failed",
                counted.connect_failures,
                "refused, reset or not to be begun",
            ),
            (
                "connect timed out",
                counted.connect_timeouts,
                "not connected in time",
            ),
            (
                "skipped",
                counted.skipped,
                "never sent: hopelessly behind the rate",
            ),
        ],
    ));
    text.push_str(&times(
        &report.response,
        report.connect.as_ref(),
        "what users see",
        "as measured",
    ));
    text
}

fn idle(spec: &IdleSpec, report: &IdleReport, early: &str) -> String {
    let counted = &report.counts;
    let seconds = 0.0;
    let mut text = format!(
        "{} of {} connections open after {:.2} s, {} at the end{early}\n",
        count(report.opened.into()),
        count(spec.connections.into()),
        report.opening_ms as f64 / 1e3,
        count(report.kept.into()),
    );
    text.push_str(&counts(
        seconds,
        2,
        &[
            ("begun", counted.begun, "connections"),
            ("opened", counted.opened, ""),
            (
                "failed",
                counted.failed,
                "refused, closed or answered wrongly before they were open",
            ),
            ("timed out", counted.timed_out, "not open in time"),
            ("closed", counted.closed, "by the server, once open"),
            ("reset", counted.reset, "by the server, once open"),
            ("bytes sent", counted.bytes_sent, "one at a time"),
            ("bytes read", counted.bytes_read, "one at a time"),
        ],
    ));
    text
}

fn rpc(spec: &PingSpec, report: &PingReport, early: &str) -> String {
    let seconds = report.duration.as_secs_f64();
    let counted = &report.measured;
    let kind = match spec.rate {
        Some(rate) => format!("{}/s", count(rate)),
        None => "a closed loop".to_owned(),
    };
    let mut text = format!(
        "calls to {}: {kind}, at most {} in flight, {seconds:.2} s measured{early}\n",
        spec.destination, spec.outstanding
    );
    text.push_str(&counts(
        seconds,
        2,
        &[
            ("calls", counted.sent, "sent"),
            ("replies", counted.echoed, "in time"),
            ("lost", counted.lost, "not answered in time"),
            ("unexpected", counted.unexpected, "late or repeated replies"),
            (
                "errors",
                counted.errors,
                "of the socket: refused, no way there",
            ),
            (
                "skipped",
                counted.skipped,
                "never sent: a second behind the rate",
            ),
        ],
    ));
    text.push_str(&times(
        &report.response,
        None,
        "from when due",
        "from when sent",
    ));
    text
}

/// Returns response times, corrected and raw, and connection times.
pub(super) fn times(
    times: &Times,
    connect: Option<&Latency>,
    corrected: &str,
    raw: &str,
) -> String {
    let summary = |of: &Option<Distribution>| of.as_ref().map(|of| of.summary);
    let columns = [
        (
            format!("corrected ({corrected})"),
            summary(&times.corrected),
        ),
        (format!("raw ({raw})"), summary(&times.raw)),
        ("connecting".to_owned(), connect.copied()),
    ];
    let columns: Vec<(String, Latency)> = columns
        .into_iter()
        .filter_map(|(name, latency)| Some((name, latency?)))
        .collect();
    if columns.is_empty() {
        return String::new();
    }
    let mut head = vec![("response time", Align::Left)];
    head.extend(
        columns
            .iter()
            .map(|(name, _)| (name.as_str(), Align::Right)),
    );
    let mut table = Table::new(2, &head);
    type Row = (&'static str, fn(&Latency) -> String);
    fn time(nanos: u64) -> String {
        nanoseconds(nanos as f64)
    }
    let rows: [Row; 8] = [
        ("samples", |latency| count(latency.samples)),
        ("min", |latency| time(latency.min)),
        ("mean", |latency| nanoseconds(latency.mean)),
        ("p50", |latency| time(latency.p50)),
        ("p90", |latency| time(latency.p90)),
        ("p99", |latency| time(latency.p99)),
        ("p99.9", |latency| time(latency.p999)),
        ("max", |latency| time(latency.max)),
    ];
    for (name, cell) in rows {
        let cells = |place: usize| {
            columns
                .get(place)
                .map_or_else(String::new, |(_, latency)| cell(latency))
        };
        table.row([name.to_owned(), cells(0), cells(1), cells(2)]);
    }
    table.text()
}
