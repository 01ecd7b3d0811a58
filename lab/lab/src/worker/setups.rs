//! A neighbour that calls without end.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tidewall::{AtmSocket, Circuit, EmbeddedConfig, Nsap, Side, Stack};
use tidewall_atm::signalling::{Config, Signalling};
use tidewall_wire::atm::q2931::{Aal, Bearer, Elements, QosClasses, TrafficDescriptor};

use super::calls::CALLED;
use super::service::until_input_ends;
use crate::testbed::{CLIENT_INTERFACE, SERVER};

/// Most SETUPs per second.
const RATE: f64 = 100_000.0;
/// Period whose SETUPs may be sent at once.
const AT_ONCE: Duration = Duration::from_millis(5);
/// A selector without a listener.
const NOBODY: u8 = 250;

/// Floods the server's interface from the client's, until the input ends. Its signalling
/// is correct: SSCOP's window limits it like any neighbour.
pub(super) fn flood() -> anyhow::Result<()> {
    let stack = Stack::embedded(EmbeddedConfig::new(CLIENT_INTERFACE).control(false))
        .with_context(|| format!("cannot start the stack on {CLIENT_INTERFACE}"))?;
    stack.attach_atm(IpAddr::V4(SERVER.0))?;
    let link = AtmSocket::bind(&stack, Circuit::SIGNALLING)?;
    link.set_nonblocking(true)?;
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    // The thread ends with the process.
    thread::spawn(move || send(&link, &counted));
    println!("ready");
    until_input_ends(|line| {
        if line == "setups" {
            println!("{}", sent.load(Ordering::Relaxed));
        }
        Ok(())
    })
}

fn send(link: &AtmSocket, sent: &AtomicU64) -> io::Result<()> {
    let mut signalling = Signalling::new(Config {
        calls: usize::MAX,
        ..Config::new(Side::User)
    });
    let Nsap(mut called) = CALLED;
    if let Some(selector) = called.last_mut() {
        *selector = NOBODY;
    }
    let setup = Elements {
        aal: Some(Aal::Five {
            forward_max: Some(1500),
            backward_max: Some(1500),
        }),
        traffic: Some(TrafficDescriptor::best_effort()),
        qos: Some(QosClasses::default()),
        bearer: Some(Bearer::data()),
        called: Some(Nsap(called).into()),
        ..Elements::default()
    };
    let begun = Instant::now();
    let mut due = Duration::ZERO;
    loop {
        let now = begun.elapsed();
        signalling.handle_timeout(now);
        due = due.max(now.saturating_sub(AT_ONCE));
        while due <= now && signalling.setup(now, setup).is_ok() {
            sent.fetch_add(1, Ordering::Relaxed);
            due += Duration::from_secs_f64(1.0 / RATE);
        }
        while let Some(pdu) = signalling.poll_transmit(now) {
            // A PDU without room is as good as lost, and SSCOP retransmits it.
            if link.queue(&pdu).is_err() {
                break;
            }
        }
        link.flush()?;
        let received = link.recv_batch(64, |received| {
            signalling.pdu_received(now, received.payload);
        });
        match received {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => while signalling.poll_event().is_some() {},
        }
    }
}
