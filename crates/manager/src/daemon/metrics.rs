//! A manager's metrics for Prometheus: its text format, over HTTP.

mod http;

use std::fmt::{Display, Write};
use std::time::Duration;

use tidewall_device::demux::ClassCounts;
use tidewall_device::demux::layout::{CLASSES, Class, Counter, DEPARTURES, Sent};

use crate::protocol::{Counters, QueueCounters, Status};

pub use http::{Endpoint, Metrics, Next};

/// All values at one time.
#[derive(Debug)]
pub struct Values<'a> {
    /// Name of the interface.
    pub interface: &'a str,
    /// The manager's counters.
    pub counters: Counters,
    /// Its applications.
    pub applications: Vec<Status>,
    /// The driver program's counters, by queue.
    pub queues: Vec<QueueCounters>,
    /// Kernel-bound frames by outcome, by queue.
    pub classes: Vec<[ClassCounts; CLASSES]>,
    /// Frames that private applications sent, by outcome, by application.
    pub departures: Vec<(u32, [u64; DEPARTURES])>,
}

/// Text under construction. Writing to a String cannot fail.
struct Text<'a> {
    text: String,
    interface: &'a str,
}

impl Text<'_> {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Label values are our own numbers and names, which need no escaping, and an
    /// interface's name, which may contain anything.
    fn sample(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        let _ = write!(self.text, "{name}{{interface=\"");
        for character in self.interface.chars() {
            if matches!(character, '"' | '\\') {
                self.text.push('\\');
            }
            self.text.push(character);
        }
        self.text.push('"');
        for (label, of) in labels {
            let _ = write!(self.text, ",{label}=\"{of}\"");
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn applications(
        &mut self,
        name: &str,
        help: &str,
        all: &[Status],
        value: impl Fn(&Status) -> u32,
    ) {
        self.family(name, "gauge", help);
        for status in all {
            self.sample(name, &application_labels(status), value(status));
        }
    }
}

fn application_labels(status: &Status) -> [(&str, &dyn Display); 3] {
    [
        ("application", &status.application),
        ("user", &status.domain),
        ("process", &status.process),
    ]
}

/// Prometheus's text format, version 0.0.4.
pub fn text(values: &Values<'_>) -> String {
    let mut text = Text {
        text: String::new(),
        interface: values.interface,
    };
    let counters = &values.counters;
    let gauges = [
        (
            "tidewall_applications",
            "Applications.",
            counters.applications,
        ),
        (
            "tidewall_clients",
            "Connections to the manager.",
            counters.clients,
        ),
        (
            "tidewall_ports",
            "Ports owned, those of leases aside.",
            counters.ports,
        ),
        (
            "tidewall_blocks",
            "Blocks of ports leased.",
            counters.blocks,
        ),
    ];
    for (name, help, value) in gauges {
        text.one(name, "gauge", help, value);
    }
    let totals = [
        (
            "tidewall_joined_total",
            "Applications that joined.",
            counters.joined,
        ),
        (
            "tidewall_presented_total",
            "Applications that presented themselves after a restart.",
            counters.presented,
        ),
        (
            "tidewall_cleared_total",
            "Applications that were cleared away.",
            counters.cleared,
        ),
        (
            "tidewall_refused_total",
            "Requests refused.",
            counters.refused,
        ),
        (
            "tidewall_malformed_total",
            "Messages that were none.",
            counters.malformed,
        ),
        (
            "tidewall_retried_total",
            "Changes of the device that failed and were tried again.",
            counters.retried,
        ),
    ];
    let now = [
        (
            "tidewall_circuits",
            "Circuits that applications have.",
            counters.circuits,
        ),
        (
            "tidewall_calls",
            "Calls, those that are being released included.",
            counters.calls,
        ),
    ];
    for (name, help, value) in now {
        text.one(name, "gauge", help, value);
    }
    for (name, help, value) in totals {
        text.one(name, "counter", help, value);
    }
    let all = &values.applications;
    text.applications("tidewall_application_ports", "Ports owned.", all, |of| {
        of.ports
    });
    text.applications(
        "tidewall_application_holders",
        "Sockets that hold them.",
        all,
        |of| of.holders,
    );
    text.applications("tidewall_application_blocks", "Blocks leased.", all, |of| {
        of.blocks
    });
    text.applications("tidewall_application_queues", "Queues.", all, |of| {
        of.queues
    });
    let name = "tidewall_application_polls_seconds_total";
    text.family(
        name,
        "counter",
        "Time of the kernel's polling threads that applications were charged.",
    );
    for status in all {
        let seconds = Duration::from_nanos(status.charged).as_secs_f64();
        text.sample(name, &application_labels(status), seconds);
    }
    let name = "tidewall_driver_frames_total";
    text.family(
        name,
        "counter",
        "Frames by the way that they went in the driver.",
    );
    for of_queue in &values.queues {
        for (counter, &value) in Counter::ALL.into_iter().zip(&of_queue.counters) {
            let labels: [(&str, &dyn Display); 2] =
                [("queue", &of_queue.queue), ("cause", &counter.name())];
            text.sample(name, &labels, value);
        }
    }
    let name = "tidewall_kernel_frames_total";
    text.family(
        name,
        "counter",
        "The kernel's frames by class and what became of them.",
    );
    for (queue, classes) in values.classes.iter().enumerate() {
        for (class, counts) in Class::ALL.into_iter().zip(classes) {
            for (result, value) in [("passed", counts.passed), ("dropped", counts.dropped)] {
                let labels: [(&str, &dyn Display); 3] = [
                    ("queue", &queue),
                    ("class", &class.name()),
                    ("result", &result),
                ];
                text.sample(name, &labels, value);
            }
        }
    }
    let name = "tidewall_private_sent_frames_total";
    text.family(
        name,
        "counter",
        "Frames that private applications sent, by what became of them.",
    );
    for (application, counts) in &values.departures {
        for (cause, &value) in Sent::ALL.into_iter().zip(counts) {
            let labels: [(&str, &dyn Display); 2] =
                [("application", application), ("cause", &cause.name())];
            text.sample(name, &labels, value);
        }
    }
    text.text
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn each_sample_follows_its_family_and_has_one_value() {
        let mut counters = Counters::new_zeroed();
        counters.joined = 3;
        let mut status = Status::new_zeroed();
        (status.application, status.domain, status.ports) = (2, 1000, 7);
        status.charged = 2_500_000_000;
        let mut of_queue = QueueCounters::new_zeroed();
        of_queue.counters[Counter::ChannelFull as usize] = 41;
        let class = ClassCounts {
            passed: 1,
            dropped: 2,
        };
        let text = text(&Values {
            interface: "a\"b",
            counters,
            applications: vec![status],
            queues: vec![of_queue],
            classes: vec![[class; CLASSES]],
            departures: vec![(2, std::array::from_fn(|cause| cause as u64))],
        });
        for line in [
            "tidewall_joined_total{interface=\"a\\\"b\"} 3",
            "tidewall_application_ports{interface=\"a\\\"b\",application=\"2\",user=\"1000\",process=\"0\"} 7",
            "tidewall_application_polls_seconds_total{interface=\"a\\\"b\",application=\"2\",user=\"1000\",process=\"0\"} 2.5",
            "tidewall_driver_frames_total{interface=\"a\\\"b\",queue=\"0\",cause=\"channel-full\"} 41",
            &format!(
                "tidewall_private_sent_frames_total{{interface=\"a\\\"b\",application=\"2\",cause=\"{}\"}} 1",
                Sent::ALL[1].name()
            ),
            "tidewall_kernel_frames_total{interface=\"a\\\"b\",queue=\"0\",class=\"udp\",result=\"dropped\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        let mut family = "";
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => family = rest.split(' ').next().unwrap(),
                None if line.starts_with('#') => {}
                None => {
                    assert_eq!(line.split('{').next(), Some(family));
                    let value = line.rsplit(' ').next().unwrap();
                    assert!(value.parse::<f64>().is_ok(), "{line}");
                }
            }
        }
    }
}
