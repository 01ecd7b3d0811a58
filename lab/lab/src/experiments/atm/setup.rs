//! Set-up and teardown of calls, one after the other.

use std::time::Duration;

use super::super::{Experiment, Run, USUAL, ratio};
use super::planes::{self, Parties, Plane, Way, client, server};
use super::{CALLS, Case, IN_PROCESS, SETUP_P50, SETUP_P99, WHOLE_P50, WHOLE_P99, value};
use crate::result::{Claim, Series};
use crate::worker::{CallsOver, CallsRole, Child, Job, PAIR};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "atm-setup",
    paper: "ATM sockets, Table 1",
    about: "set-up and teardown of calls by three control planes: local, over a link, through a \
            cell switch; and TCP's",
    x: "nothing",
    y: "set-up and teardown, median µs",
    senders: &["calls in a closed loop"],
    measure,
    claims,
    ..USUAL
};

const THREAD: &str = "both ends in one thread";
const LOCAL: &str = "local";
const LINK: &str = "direct link";
const THROUGH: &str = "through a cell switch";
const TCP: &str = "tcp";
const WAYS: [(Way, &str); 3] = [
    (Way::Local, LOCAL),
    (Way::Link, LINK),
    (Way::Switch, THROUGH),
];
const MANAGER: &str = Plane::Manager.name();
const THREADS: &str = Plane::Threads.name();
const TIME: Duration = Duration::from_millis(500);

/// Bounds that the issue states in µs: the paper's are in ms.
const IN_PROCESS_MAX: f64 = 20.0;
const LOCAL_MAX: f64 = 80.0;
const LINK_MAX: f64 = 200.0;
const THROUGH_MAX: f64 = 300.0;

/// The measured system.
#[derive(Clone, Copy, PartialEq)]
enum What {
    /// In one thread, without another process.
    Both,
    Calls(Plane, Way),
    Tcp,
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    planes::interrupt_at_once(run.bench)?;
    pair(run)?;
    let case = |system, setting, what| Case {
        system,
        setting,
        x: 0.0,
        what,
    };
    let mut cases = vec![
        case(IN_PROCESS, THREAD, What::Both),
        case(TCP, LINK, What::Tcp),
    ];
    for plane in [Plane::InProcess, Plane::Manager, Plane::Threads] {
        for (way, setting) in WAYS {
            // A stack that controls its own circuits has no local ones.
            if (plane, way) != (Plane::InProcess, Way::Local) {
                cases.push(case(plane.name(), setting, What::Calls(plane, way)));
            }
        }
    }
    let plan = run.options.within(6, 55);
    super::rounds(run, &cases, plan, |bench, case| {
        let report = match case.what {
            What::Both => {
                let job = super::calls(CallsRole::Both, CallsOver::InProcess, TIME);
                let mut child = Child::start_ready(server(bench), &Job::Calls(job), "both ends")?;
                serde_json::from_str(&child.line(TIME + super::TIMEOUT)?)?
            }
            What::Tcp => {
                let _called = super::called(bench, CallsOver::Tcp)?;
                let job = super::calls(CallsRole::Caller, CallsOver::Tcp, TIME);
                super::call(client(bench), &job)?
            }
            What::Calls(plane, way) => {
                let mut parties = Parties::start(bench, plane, way, 0)?;
                let job = parties.job(TIME);
                parties.call(bench, &job, |_| Ok(()))?
            }
        };
        Ok(super::sample(case.x, &report))
    })?;
    run.note(
        "From calling until the next call can be made; the caller's wake-up is in it. Over the link \
         each end is on a processor of its own, with its manager where it has one; a switch shares that \
         of who is called. Of a local call caller, manager and called end share one processor, as \
         the paper's hosts had one. In one thread both ends are polled, nobody \
         sleeps, and both have released when the next call begins. TCP connects to a kernel listener \
         on the same veth, which accepts and closes; the caller reads that.",
    );
    run.note("The bounds in µs are the issue's, against some 20 ms in the paper and 3.5 ms in its kernel.");
    Ok(())
}

/// Creates two connected interfaces in the server's namespace.
pub(super) fn pair(run: &Run<'_>) -> anyhow::Result<()> {
    let [(one, _), (two, _)] = PAIR;
    let mut script = format!("ip link add {one} type veth peer name {two}; ");
    for (number, (name, [a, b, c])) in PAIR.into_iter().enumerate() {
        let (other, _) = PAIR[1 - number];
        script += &format!(
            "ip link set {name} addrgenmode none; ip address add {a}.{b}.{c}.1/24 dev {name}; \
             ip link set {name} up; ip neigh replace {a}.{b}.{c}.2 dev {name} nud permanent \
             lladdr $(cat /sys/class/net/{other}/address); "
        );
    }
    run.bench.testbed.in_server_shell(&script)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let at = |system, setting, name| value(series, (system, setting), 0.0, name);
    let whole = |system, setting| at(system, setting, WHOLE_P50);
    let threads = |setting| ratio(at(MANAGER, setting, CALLS), at(THREADS, setting, CALLS));
    let bounded = [
        (
            "in-process",
            "µs, median: set-up and teardown in-process, both ends in one thread",
            (IN_PROCESS, THREAD),
            (IN_PROCESS_MAX, 3500.0),
        ),
        (
            "manager",
            "µs, median: set-up and teardown of a local call through tidewalld",
            (MANAGER, LOCAL),
            (LOCAL_MAX, 20_000.0),
        ),
        (
            "link",
            "µs, median: set-up and teardown over a direct link, control in-process at both ends",
            (IN_PROCESS, LINK),
            (LINK_MAX, 20_000.0),
        ),
        (
            "manager-link",
            "µs, median: the same through tidewalld at both ends",
            (MANAGER, LINK),
            (LINK_MAX, 20_000.0),
        ),
        (
            "switch",
            "µs, median: the same in-process, through a cell switch",
            (IN_PROCESS, THROUGH),
            (THROUGH_MAX, 20_000.0),
        ),
        (
            "manager-switch",
            "µs, median: the same through tidewalld at both ends and a cell switch",
            (MANAGER, THROUGH),
            (THROUGH_MAX, 20_000.0),
        ),
    ];
    let mut claims: Vec<Claim> = bounded
        .into_iter()
        .map(|(id, text, (system, setting), (most, paper))| {
            Claim::at_most(id, text, whole(system, setting), most).paper(paper)
        })
        .collect();
    claims.extend([
        Claim::at_least(
            "threads",
            "calls/s, local: tidewalld of one thread over that of a thread for each activity",
            threads(LOCAL),
            2.0,
        ),
        Claim::new("threads-link", "the same over a link", threads(LINK)),
        Claim::new(
            "threads-switch",
            "the same through a cell switch",
            threads(THROUGH),
        ),
        Claim::new(
            "in-process-setup",
            "in-process, both ends in one thread: set-up alone, µs",
            at(IN_PROCESS, THREAD, SETUP_P50),
        ),
        Claim::new(
            "manager-setup",
            "local through tidewalld: set-up alone, µs",
            at(MANAGER, LOCAL, SETUP_P50),
        ),
        Claim::new(
            "link-setup",
            "in-process over the link: set-up alone, µs",
            at(IN_PROCESS, LINK, SETUP_P50),
        ),
        Claim::new(
            "link-setup-p99",
            "and its 99th percentile",
            at(IN_PROCESS, LINK, SETUP_P99),
        ),
        Claim::new(
            "link-p99",
            "99th percentile of set-up and teardown over the link, in-process, µs",
            at(IN_PROCESS, LINK, WHOLE_P99),
        ),
        Claim::new(
            "link-calls",
            "calls/s over the link, in-process, one after the other",
            at(IN_PROCESS, LINK, CALLS),
        ),
        Claim::new(
            "tcp",
            "median over the link, in-process: calls over kernel TCP connections on the \
             same Ethernet",
            ratio(whole(IN_PROCESS, LINK), whole(TCP, LINK)),
        ),
    ]);
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn bounds_are_the_issues() {
        let of = |system, setting, p50: f64| {
            let mut curve = curve(system, Some(setting), &[(0.0, p50)]);
            let values = &mut curve.points[0].values;
            values.insert(WHOLE_P50.to_owned(), p50);
            values.insert(SETUP_P50.to_owned(), p50 / 2.0);
            values.insert(CALLS.to_owned(), 1e6 / p50);
            curve
        };
        let series = [
            of(IN_PROCESS, THREAD, 19.0),
            of(IN_PROCESS, LINK, 210.0),
            of(IN_PROCESS, THROUGH, 290.0),
            of(MANAGER, LOCAL, 90.0),
            of(THREADS, LOCAL, 240.0),
            of(TCP, LINK, 70.0),
        ];
        let claims = claims(&series);
        let holds = |id: &str| claims.iter().find(|claim| claim.id == id).unwrap().holds;
        assert_eq!(holds("in-process"), Some(true));
        assert_eq!(holds("link"), Some(false));
        assert_eq!(holds("switch"), Some(true));
        assert_eq!(holds("manager"), Some(false));
        let threads = claims.iter().find(|claim| claim.id == "threads").unwrap();
        assert_eq!(threads.holds, Some(true));
        let tcp = claims.iter().find(|claim| claim.id == "tcp").unwrap();
        assert_eq!(tcp.measured, Some(3.0));
    }
}
