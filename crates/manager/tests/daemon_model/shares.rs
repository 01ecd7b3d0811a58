//! Shares that greedy users leave to others, and the order in which clients are served
//! after a restart.

use std::net::SocketAddr;
use std::time::Duration;

use tidewall_device::demux::layout::{APPLICATIONS, Protocol};
use tidewall_manager::connection::Credentials;
use tidewall_manager::daemon::ports::{HolderFacts, Proof};
use tidewall_manager::daemon::{ClientId, Limits, Manager, Recovered, Reply, Users};
use tidewall_manager::protocol::*;

use crate::device::FakeDevice;
use crate::kernel::{Bound, Socket, State};

const NOW: Duration = Duration::from_secs(1000);
const NAMED: u32 = 1000;

/// A manager that permits any user to join, and its answers.
struct Shared {
    device: FakeDevice,
    manager: Manager,
    next: ClientId,
    longest: Duration,
    /// Number of the last application that has joined.
    key: [u64; 2],
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.trusted = vec![NAMED];
    limits.private = Users::Any;
    limits
}

impl Shared {
    fn new() -> Self {
        let mut device = FakeDevice::new();
        let manager = Manager::new(limits(), Recovered::default(), NOW, &mut device);
        Shared {
            device,
            manager,
            next: 0,
            longest: Duration::ZERO,
            key: [0; 2],
        }
    }

    fn ask(&mut self, client: ClientId, request: &Request) -> Answer {
        self.ask_beside(client, request, None)
    }

    fn ask_beside(
        &mut self,
        client: ClientId,
        request: &Request,
        holder: Option<HolderFacts>,
    ) -> Answer {
        let (bytes, device) = (request.emit(7), &mut self.device);
        device.worked = Duration::ZERO;
        device.shown = holder.map(|it| it.cookie);
        let reply = self
            .manager
            .handle(client, &bytes, holder.as_ref(), NOW, device)
            .1;
        self.longest = self.longest.max(device.end_turn());
        match reply {
            Reply::Answer(answer, _) => answer,
            Reply::Joined(joined, ()) => Answer::Joined(joined),
            Reply::Left => Answer::Done(Empty {}),
            other => panic!("{other:?}"),
        }
    }

    /// The errno of a refusal.
    fn join(&mut self, uid: u32) -> Result<ClientId, i32> {
        self.next += 1;
        let client = self.next;
        let credentials = Credentials { uid, pid: 1 };
        let connected = self.manager.connected(client, credentials);
        connected
            .and_then(|()| self.manager.admit(client, NOW))
            .unwrap();
        let join = Request::Join(Join {
            queues: 0,
            frames: 0,
            receive_ring: 0,
            flags: JOIN_WITHOUT_QUEUES,
        });
        match self.ask(client, &join) {
            Answer::Joined(joined) => {
                self.key = joined.hash_key;
                Ok(client)
            }
            Answer::Error(failure) => {
                self.manager.gone(client, NOW, &mut self.device);
                Err(failure.errno)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The number of TCP blocks that a client gets.
    fn lease_all(&mut self, client: ClientId) -> usize {
        let lease = Request::Lease(Transport {
            protocol: 6,
            pad: [0; 7],
        });
        let leased = |shared: &mut Self| matches!(shared.ask(client, &lease), Answer::Leased(_));
        std::iter::repeat_with(|| leased(self))
            .take_while(|it| *it)
            .count()
    }
}

#[test]
fn greedy_users_leave_ports_to_others() {
    let mut shared = Shared::new();
    let counts: Vec<usize> = (0..10)
        .map(|user| {
            let client = shared.join(2000 + user).unwrap();
            shared.lease_all(client)
        })
        .collect();
    println!("blocks of users who want all: {counts:?}");
    assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    assert!(counts[0] <= 64, "{counts:?}");
}

#[test]
fn users_who_may_join_as_any_leave_numbers_to_others() {
    let mut shared = Shared::new();
    let mut all = 0;
    for user in 2000..2000 + APPLICATIONS as u32 {
        while shared.join(user).is_ok() {
            all += 1;
        }
    }
    println!("applications of users who may join as any: {all} of {APPLICATIONS}");
    assert!(all < APPLICATIONS && all > APPLICATIONS / 2, "{all}");
    assert!(shared.join(NAMED).is_ok());
}

#[test]
fn applications_are_awaited_while_clients_wait_to_be_heard() {
    let second = |seconds: u32| NOW + Duration::from_secs(1) * seconds;
    let awaited = |behind_until: u32| {
        let mut shared = Shared::new();
        shared.join(NAMED).unwrap();
        let recovered = Recovered {
            entries: shared.device.journal.clone(),
            ..Recovered::default()
        };
        shared.manager = Manager::new(limits(), recovered, NOW, &mut shared.device);
        // The loop turns whenever something is due.
        let (manager, device) = (&mut shared.manager, &mut shared.device);
        let mut now = NOW;
        while manager.counters().applications > 0 {
            now = manager
                .deadline()
                .expect("it is cleared at some time")
                .max(now);
            manager.set_behind(now < second(behind_until));
            manager.tick(now, device);
            assert!(now < second(1000));
        }
        (now - NOW).as_secs()
    };
    let waited = [0, 12, 500].map(awaited);
    println!("an application is awaited for {waited:?} s");
    assert_eq!(waited, [5, 12, 20]);
}

/// Binds a socket, as a process does.
fn bind(shared: &mut Shared, protocol: Protocol, cookie: u64, port: u16) -> HolderFacts {
    let facts = HolderFacts {
        protocol,
        local: SocketAddr::new("10.0.0.1".parse().unwrap(), port),
        dual: false,
        cookie,
        here: true,
        proof: Proof::Alone,
    };
    shared.device.kernel.sockets.push(Socket {
        facts,
        process: Some(0),
        user: NAMED,
        shares: false,
        device: Bound::Nowhere,
        state: State::Idle,
        kept: false,
        changed: false,
    });
    facts
}

#[test]
fn no_message_keeps_the_next_client_waiting() {
    // With its whole quota used, it leaves, or dies.
    for leaves in [true, false] {
        let mut shared = Shared::new();
        let client = shared.join(2000).unwrap();
        for port in 1000..1000 + limits().holders_of_domain as u16 {
            let facts = bind(&mut shared, Protocol::Udp, port.into(), port);
            let owns = Request::OwnPort(Port {
                address: address_bytes(facts.local.ip()),
                port,
                protocol: facts.protocol as u8,
                pad: 0,
            });
            let answer = shared.ask_beside(client, &owns, Some(facts));
            assert!(matches!(answer, Answer::Owned(_)), "{answer:?}");
        }
        // Another program has the last port of every second block.
        for last in (33_023..=60_999).step_by(512) {
            bind(&mut shared, Protocol::Tcp, last.into(), last);
        }
        let refused = std::iter::repeat_with(|| shared.lease_all(client)).take(20);
        let blocks: usize = refused.sum();
        assert!(blocks > 20, "{blocks}");
        if leaves {
            shared.ask(client, &Request::Leave(Empty {}));
        } else {
            shared.device.worked = Duration::ZERO;
            shared.manager.gone(client, NOW, &mut shared.device);
            shared.longest = shared.longest.max(shared.device.end_turn());
        }
        let longest = shared.longest;
        println!("longest work beside the next client, {blocks} blocks: {longest:?}");
    }
}

#[test]
fn each_application_has_a_key_of_its_own() {
    let mut shared = Shared::new();
    let mut keys = Vec::new();
    for user in 2000..2010 {
        shared.join(user).unwrap();
        keys.push(shared.key);
    }
    assert!(!keys.contains(&[0; 2]), "{keys:?}");
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 10, "{keys:?}");
}
