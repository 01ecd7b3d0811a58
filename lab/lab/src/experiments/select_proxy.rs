//! Banga and Mogul, Figures 3 to 5: a proxy with two connections per request. Shows
//! response time and idle processor against the rate of requests, without other
//! connections (naive) and beside 750 without requests (realistic). The paper's proxy
//! cached and asked about every hit; this one forwards the response.
//!
//! The origin runs in the client's namespace and on its processor, so that the server's
//! processor runs only the proxy.

use super::select::{
    CONNECTIONS, SELECTOR_NAME, Servers, TIME_AXIS, capacity, describe, reduce, saturation, sweeps,
};
use super::select_static::{
    NAIVE_SMALL, REALISTIC_SMALL, SENDERS, common_claims, groups, with_idle,
};
use super::{Experiment, Run, USUAL, ratio};
use crate::result::{Claim, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "select-proxy",
    paper: "select, Figures 3–5",
    about: "a forwarding proxy: response time and idle processor against the rate, cold connections beside",
    x: "requests/s offered",
    y: TIME_AXIS,
    senders: &SENDERS,
    measure,
    claims,
    ..USUAL
};

/// Multiplications per request: with them the proxy is slower than client and origin
/// together, which share the other processor.
const WORK: u32 = 40_000;

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let config = run.config();
    let servers = Servers::proxies(WORK)?;
    let _origin = servers.origin(run.bench)?;
    let capacity = capacity(run, &servers)?;
    let groups = groups(config, &servers, run.options.quick, capacity);
    run.series = with_idle(sweeps(run, &groups, reduce)?);
    run.note(format!(
        "Rates are parts of {capacity:.0} requests/s, what the selector serves at saturation. S-clients with \
         T = 500 ms; a curve's last point is saturation, a closed loop of {CONNECTIONS} clients. Each request \
         has a connection of its own and is forwarded to the origin on another; {WORK} multiplications a request \
         (Squid, which caches and makes one If-Modified-Since each, makes none). Client and origin share a processor."
    ));
    run.described = Some(describe(&servers));
    Ok(())
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let kept = Claim::at_least(
        "kept-750",
        "selector: saturation throughput with 750 cold connections over that with \
             none, 1,259 bytes",
        ratio(
            saturation(series, SELECTOR_NAME, REALISTIC_SMALL.0),
            saturation(series, SELECTOR_NAME, NAIVE_SMALL.0),
        ),
        0.98,
    );
    std::iter::once(kept).chain(common_claims(series)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::select::{CLASSICAL_NAME, SELECT_NAME};
    use super::super::select_static::REALISTIC_LARGE;
    use super::super::select_static::tests::risen;
    use super::*;
    use crate::result::tests::all_hold;
    use crate::testbed::Config;

    #[test]
    fn claims_follow_from_the_curves() {
        let series = [
            risen(SELECTOR_NAME, NAIVE_SMALL, &[(3e3, 70.0), (1.2e4, 0.0)]),
            risen(
                SELECTOR_NAME,
                REALISTIC_SMALL,
                &[(3e3, 69.3), (1.188e4, 0.0)],
            ),
            risen(SELECT_NAME, REALISTIC_SMALL, &[(3e3, 60.0), (1.1e4, 0.0)]),
            risen(
                CLASSICAL_NAME,
                REALISTIC_SMALL,
                &[(3e3, 20.0), (5.5e3, 0.0)],
            ),
            risen(SELECT_NAME, REALISTIC_LARGE, &[(9e3, 0.0)]),
            risen(CLASSICAL_NAME, REALISTIC_LARGE, &[(6e3, 0.0)]),
        ];
        let claims = claims(&series);
        let expected = [
            ("kept-750", 0.99),
            ("idle-kept", 0.99),
            ("gain-1259", 2.0),
            ("gain-8192", 1.5),
        ];
        all_hold(&claims, &expected);
    }

    #[test]
    fn every_load_is_valid() {
        let servers = Servers::proxies(WORK).unwrap();
        for quick in [false, true] {
            for (curves, _) in groups(Config::default(), &servers, quick, 10_000.0) {
                for load in curves.iter().flat_map(|curve| &curve.loads) {
                    load.check().unwrap();
                }
            }
        }
    }
}
