//! Workers that change how an interface receives, some only while they run.

use anyhow::{Context, ensure};
use tidewall_load::{Prefix, XdpSink};
use tidewall_manager::SynLimit;
use tidewall_sys::netlink::Netdev;

use super::service::until_input_ends;
use crate::testbed::{CLIENT_INTERFACE, NOWHERE, SERVER_INTERFACE, SUSPEND};

pub(super) fn xdp_sink() -> anyhow::Result<()> {
    let prefix = Prefix::new(NOWHERE.0.into(), NOWHERE.1)?;
    let _sink = XdpSink::attach(CLIENT_INTERFACE, &prefix)?;
    println!("ready");
    until_input_ends(|_| Ok(()))
}

pub(super) fn suspend_interrupts() -> anyhow::Result<()> {
    let index = tidewall_sys::interface::index(SERVER_INTERFACE)?;
    let mut netdev = Netdev::open()?;
    let napis = netdev.napis(index)?;
    ensure!(!napis.is_empty(), "{SERVER_INTERFACE} has no NAPI");
    for napi in napis {
        netdev
            .set_suspend_timeout(napi, SUSPEND)
            .context("the kernel does not suspend interrupts")?;
    }
    println!("ready");
    Ok(())
}

pub(super) fn limit_syns(per_second: u32) -> anyhow::Result<()> {
    let _limit = SynLimit::attach(SERVER_INTERFACE, per_second)?;
    println!("ready");
    until_input_ends(|_| Ok(()))
}
