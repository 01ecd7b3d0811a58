//! Workers that change how an interface receives, some for as long as they run.

use tidewall_load::{Prefix, XdpSink};
use tidewall_manager::SynLimit;

use super::service::until_input_ends;
use crate::testbed::{CLIENT_INTERFACE, NOWHERE, SERVER_INTERFACE};

pub(super) fn xdp_sink() -> anyhow::Result<()> {
    let prefix = Prefix::new(NOWHERE.0.into(), NOWHERE.1)?;
    let _sink = XdpSink::attach(CLIENT_INTERFACE, &prefix)?;
    println!("ready");
    until_input_ends(|_| Ok(()))
}

pub(super) fn limit_syns(per_second: u32) -> anyhow::Result<()> {
    let _limit = SynLimit::attach(SERVER_INTERFACE, per_second)?;
    println!("ready");
    until_input_ends(|_| Ok(()))
}
