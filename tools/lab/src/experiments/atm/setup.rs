//! Set-up and teardown of calls, one after the other.

use std::fs;
use std::time::Duration;

use super::super::{Experiment, Run, USUAL, ratio};
use super::{CALLS, Case, IN_PROCESS, SETUP_P50, SETUP_P99, WHOLE_P50, WHOLE_P99, value};
use crate::bench::Bench;
use crate::result::{Claim, Series};
use crate::testbed::{CLIENT, SERVER_INTERFACE};
use crate::worker::{CallsOver, CallsRole, Child, Job, PAIR, Place, scratch};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "atm-setup",
    paper: "ATM sockets, Table 1",
    about: "set-up and teardown of calls: in one thread, over a link, and TCP's",
    x: "nothing",
    y: "set-up and teardown, median µs",
    senders: &["calls in a closed loop"],
    measure,
    claims,
    ..USUAL
};

const LOCAL: &str = "both ends in one thread";
const LINK: &str = "direct link";
const THROUGH: &str = "through a cell switch";
const TCP: &str = "tcp";
const TIME: Duration = Duration::from_millis(500);

/// Bounds that the issue states in µs: as the paper has them in ms.
const LOCAL_MAX: f64 = 20.0;
const LINK_MAX: f64 = 200.0;
const THROUGH_MAX: f64 = 300.0;

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    pair(run)?;
    let case = |system, setting, what| Case {
        system,
        setting,
        x: 0.0,
        what,
    };
    let cases = [
        case(IN_PROCESS, LOCAL, (CallsRole::Both, CallsOver::InProcess)),
        case(IN_PROCESS, LINK, (CallsRole::Caller, CallsOver::InProcess)),
        case(
            IN_PROCESS,
            THROUGH,
            (CallsRole::Caller, CallsOver::Switched),
        ),
        case(TCP, LINK, (CallsRole::Caller, CallsOver::Tcp)),
    ];
    let plan = run.options.within(6, 40);
    super::rounds(run, &cases, plan, |bench, case| {
        let (role, over) = case.what;
        let job = super::calls(role, over, TIME);
        if role == CallsRole::Both {
            let place = Place {
                namespace: bench.testbed.server(),
                cpu: bench.testbed.config().server_cpu,
            };
            let mut child = Child::start_ready(place, &Job::Calls(job), "both ends")?;
            let report = serde_json::from_str(&child.line(TIME + super::TIMEOUT)?)?;
            return Ok(super::sample(case.x, &report));
        }
        let switch = (over == CallsOver::Switched).then(|| switch(bench));
        let _switch = switch.transpose()?;
        let _called = super::called(bench, over)?;
        let report = super::call(bench, &job, || Ok(()))?;
        Ok(super::sample(case.x, &report))
    })?;
    run.note(
        "From calling until the next call can be made; the caller's wake-up is in it. Over the link \
         each end is a process on a processor of its own; a switch shares that of who is called. In one thread both ends are polled, nobody \
         sleeps, and both have released when the next call begins. TCP connects to a kernel listener \
         on the same veth, which accepts and closes; the caller reads that.",
    );
    run.note("The bounds in µs are the issue's, against some 20 ms in the paper and 3.5 ms in its kernel.");
    Ok(())
}

/// Starts a switch of cells between the server's interface and the first of the pair.
fn switch(bench: &Bench) -> anyhow::Result<Child> {
    let [(out, [a, b, c]), _] = PAIR;
    let file = scratch("cells");
    let port = |interface: &str, next_hop: &str, end| {
        format!(
            "[[port]]\ninterface = '{interface}'\nnext-hop = '{next_hop}'\n\
             signalling = 'network'\nnumbers = ['47.0005.0{end}']\n"
        )
    };
    let ports = [
        port(SERVER_INTERFACE, &CLIENT.0.to_string(), 1),
        port(out, &format!("{a}.{b}.{c}.2"), 2),
    ];
    fs::write(&file, ports.concat())?;
    let place = Place {
        namespace: bench.testbed.server(),
        cpu: bench.testbed.config().server_cpu,
    };
    let started = super::command(place, &format!("atm switch {}", file.display()));
    let _ = fs::remove_file(&file);
    started
}

/// Two interfaces in the server's namespace that lead to each other.
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
    let local = |name| at(IN_PROCESS, LOCAL, name);
    let link = |name| at(IN_PROCESS, LINK, name);
    vec![
        Claim::at_most(
            "in-process",
            "µs, median: set-up and teardown in-process, both ends in one thread",
            local(WHOLE_P50),
            LOCAL_MAX,
        )
        .paper(3500.0),
        Claim::at_most(
            "link",
            "µs, median: set-up and teardown over a direct link, control in-process at both ends",
            link(WHOLE_P50),
            LINK_MAX,
        )
        .paper(20_000.0),
        Claim::at_most(
            "switch",
            "µs, median: the same through a cell switch",
            at(IN_PROCESS, THROUGH, WHOLE_P50),
            THROUGH_MAX,
        )
        .paper(20_000.0),
        Claim::new(
            "in-process-setup",
            "the same, both ends in one thread: set-up alone",
            local(SETUP_P50),
        ),
        Claim::new(
            "link-setup",
            "the same over the link: set-up alone",
            link(SETUP_P50),
        ),
        Claim::new("link-setup-p99", "and its 99th percentile", link(SETUP_P99)),
        Claim::new(
            "link-p99",
            "99th percentile of set-up and teardown over the link",
            link(WHOLE_P99),
        ),
        Claim::new(
            "link-calls",
            "calls/s over the link, one after the other",
            link(CALLS),
        ),
        Claim::new(
            "tcp",
            "median over the link: calls over TCP connections of the kernel's on the same Ethernet",
            ratio(link(WHOLE_P50), at(TCP, LINK, WHOLE_P50)),
        ),
    ]
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
            curve
        };
        let series = [
            of(IN_PROCESS, LOCAL, 19.0),
            of(IN_PROCESS, LINK, 210.0),
            of(IN_PROCESS, THROUGH, 290.0),
            of(TCP, LINK, 70.0),
        ];
        let claims = claims(&series);
        let holds: Vec<_> = claims
            .iter()
            .map(|claim| (claim.id.as_str(), claim.holds))
            .collect();
        assert_eq!(
            holds[..3],
            [
                ("in-process", Some(true)),
                ("link", Some(false)),
                ("switch", Some(true))
            ]
        );
        let tcp = claims.iter().find(|claim| claim.id == "tcp").unwrap();
        assert_eq!(tcp.measured, Some(3.0));
    }
}
