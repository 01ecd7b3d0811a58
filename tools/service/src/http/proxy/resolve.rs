//! Names of origins. The system's resolver blocks, so each look-up has a
//! thread of its own, for as long as it takes; the event loop only collects.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::prefix::{Prefix, Shares};

/// Look-ups at a time.
const PENDING_MAX: usize = 64;
/// Of those only for names that have resolved before: a flood of names whose
/// servers do not answer leaves them to the names that people use.
const PENDING_KNOWN: usize = 16;
/// Look-ups at a time for clients of one prefix; twice as many for names that
/// have resolved before.
const PENDING_PREFIX: usize = 8;
/// Names that are remembered.
const NAMES_MAX: usize = 4096;
/// For how long an answer is remembered; the resolver does not tell its time
/// to live.
const REMEMBERED: Duration = Duration::from_secs(30);
/// For how long it is remembered that there was none.
const REMEMBERED_FAILURE: Duration = Duration::from_secs(2);

/// The addresses of a name; none if it has none.
type Addresses = Vec<IpAddr>;

/// What is known of a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// These addresses, perhaps none.
    Addresses(Addresses),
    /// It is being looked up: its clients will be named by
    /// [`Resolver::collect`].
    Soon,
    /// Too much is being looked up.
    Busy,
}

/// A look-up under way.
#[derive(Debug)]
struct Pending {
    /// Who waits for it, each once, however often its client runs
    /// meanwhile.
    waiting: BTreeSet<u64>,
    /// On whose account it goes.
    prefix: Prefix,
}

/// Looks up names.
#[derive(Debug)]
pub(super) struct Resolver {
    /// What names have resolved to, and until when that is believed. It is kept
    /// for longer: a name that has resolved is worth more than one that never
    /// has.
    known: HashMap<Box<str>, (Duration, Addresses)>,
    /// The same names, those first that are believed the shortest: they make
    /// room.
    by_age: BTreeSet<(Duration, Box<str>)>,
    pending: HashMap<Box<str>, Pending>,
    shares: Shares,
    answers: Receiver<(Box<str>, Addresses)>,
    answer: Sender<(Box<str>, Addresses)>,
    look_up: fn(&str) -> Addresses,
}

/// The system's addresses of a name.
pub(super) fn system(name: &str) -> Addresses {
    let found = (name, 0).to_socket_addrs();
    found.map_or_else(
        |_| Vec::new(),
        |all| all.map(|address| address.ip()).collect(),
    )
}

impl Resolver {
    pub(super) fn new(look_up: fn(&str) -> Addresses) -> Self {
        let (answer, answers) = channel();
        Resolver {
            known: HashMap::new(),
            by_age: BTreeSet::new(),
            pending: HashMap::new(),
            shares: Shares::default(),
            answers,
            answer,
            look_up,
        }
    }

    /// Asks for the addresses of `name` on behalf of `token`, a client's at
    /// `client`.
    pub(super) fn ask(&mut self, name: &str, token: u64, client: IpAddr, now: Duration) -> Known {
        let mut resolved = false;
        if let Some((until, addresses)) = self.known.get(name) {
            if now < *until {
                return Known::Addresses(addresses.clone());
            }
            resolved = !addresses.is_empty();
        }
        if let Some(pending) = self.pending.get_mut(name) {
            pending.waiting.insert(token);
            return Known::Soon;
        }
        let (most, share) = match resolved {
            true => (PENDING_MAX, 2 * PENDING_PREFIX),
            false => (PENDING_MAX - PENDING_KNOWN, PENDING_PREFIX),
        };
        let prefix = Prefix::of(client);
        if self.pending.len() >= most || !self.shares.take(prefix, share) {
            return Known::Busy;
        }
        let (answer, look_up) = (self.answer.clone(), self.look_up);
        let wanted: Box<str> = name.into();
        let begun = std::thread::Builder::new()
            .name("tidewall-names".to_owned())
            .spawn(move || {
                let found = look_up(&wanted);
                // Nobody waits any more when this fails.
                let _ = answer.send((wanted, found));
            });
        if begun.is_err() {
            self.shares.give(prefix);
            return Known::Busy;
        }
        let waiting = BTreeSet::from([token]);
        self.pending
            .insert(name.into(), Pending { waiting, prefix });
        Known::Soon
    }

    /// Whether a look-up is under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Puts into `tokens` who can ask again.
    pub(super) fn collect(&mut self, now: Duration, tokens: &mut Vec<u64>) {
        while let Ok((name, addresses)) = self.answers.try_recv() {
            if let Some(pending) = self.pending.remove(&name) {
                tokens.extend(pending.waiting);
                self.shares.give(pending.prefix);
            }
            self.remember(name, addresses, now);
        }
    }

    fn remember(&mut self, name: Box<str>, addresses: Addresses, now: Duration) {
        let time = match addresses.is_empty() {
            true => REMEMBERED_FAILURE,
            false => REMEMBERED,
        };
        let until = now + time;
        if let Some((before, _)) = self.known.insert(name.clone(), (until, addresses)) {
            self.by_age.remove(&(before, name.clone()));
        }
        self.by_age.insert((until, name));
        if self.known.len() > NAMES_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use super::*;

    fn fixed(name: &str) -> Addresses {
        match name {
            "none" => Vec::new(),
            _ => vec![Ipv4Addr::LOCALHOST.into()],
        }
    }

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// A client of a network of its own.
    fn client(network: u8) -> IpAddr {
        Ipv4Addr::new(203, 0, network, 7).into()
    }

    fn collected(resolver: &mut Resolver, now: Duration, count: usize) -> Vec<u64> {
        let mut tokens = Vec::new();
        while tokens.len() < count {
            resolver.collect(now, &mut tokens);
            thread::yield_now();
        }
        tokens
    }

    #[test]
    fn names_are_looked_up_once_and_remembered_for_a_while() {
        let mut resolver = Resolver::new(fixed);
        let now = Duration::ZERO;
        assert_eq!(resolver.ask("a", 1, CLIENT, now), Known::Soon);
        for _ in 0..100 {
            assert_eq!(resolver.ask("a", 2, CLIENT, now), Known::Soon);
        }
        assert_eq!(resolver.ask("none", 3, CLIENT, now), Known::Soon);
        assert!(resolver.is_busy());
        let mut tokens = collected(&mut resolver, now, 3);
        tokens.sort_unstable();
        assert_eq!(tokens, [1, 2, 3]);
        assert!(!resolver.is_busy());
        let address = vec![Ipv4Addr::LOCALHOST.into()];
        assert_eq!(resolver.ask("a", 4, CLIENT, now), Known::Addresses(address));
        assert_eq!(
            resolver.ask("none", 4, CLIENT, now),
            Known::Addresses(Vec::new())
        );
        let later = now + REMEMBERED_FAILURE;
        assert_eq!(resolver.ask("none", 5, CLIENT, later), Known::Soon);
        assert_eq!(resolver.ask("a", 6, CLIENT, now + REMEMBERED), Known::Soon);
        assert_eq!(collected(&mut resolver, later, 2).len(), 2);
    }

    /// Nobody answers: as long as the test lasts, that is.
    fn never(_: &str) -> Addresses {
        loop {
            thread::park();
        }
    }

    #[test]
    fn one_network_takes_no_more_than_its_share() {
        let mut resolver = Resolver::new(never);
        let now = Duration::ZERO;
        for number in 0..PENDING_PREFIX {
            let name = format!("n{number}");
            assert_eq!(resolver.ask(&name, 0, client(1), now), Known::Soon);
        }
        assert_eq!(resolver.ask("more", 0, client(1), now), Known::Busy);
        assert_eq!(resolver.ask("more", 0, client(2), now), Known::Soon);
        // Who asks for what is being looked up already takes nothing.
        assert_eq!(resolver.ask("more", 0, client(1), now), Known::Soon);
    }

    #[test]
    fn a_flood_of_names_leaves_room_for_those_that_resolved() {
        let mut resolver = Resolver::new(fixed);
        let now = Duration::ZERO;
        assert_eq!(resolver.ask("good", 1, CLIENT, now), Known::Soon);
        collected(&mut resolver, now, 1);
        resolver.look_up = never;
        let later = now + REMEMBERED;
        for number in 0..PENDING_MAX - PENDING_KNOWN {
            let name = format!("n{number}");
            let client = client((number / PENDING_PREFIX) as u8);
            assert_eq!(resolver.ask(&name, 0, client, later), Known::Soon);
        }
        assert_eq!(resolver.ask("more", 0, client(99), later), Known::Busy);
        // The network of the flood, too.
        assert_eq!(resolver.ask("good", 0, client(0), later), Known::Soon);
    }

    #[test]
    fn what_was_taken_is_given_back() {
        let mut resolver = Resolver::new(fixed);
        for round in 0..3 * PENDING_MAX {
            let name = format!("n{round}");
            assert_eq!(resolver.ask(&name, 0, CLIENT, Duration::ZERO), Known::Soon);
            collected(&mut resolver, Duration::ZERO, 1);
        }
    }

    #[test]
    fn the_oldest_names_make_room() {
        let mut resolver = Resolver::new(fixed);
        let known = |resolver: &mut Resolver, name: &str, now| {
            matches!(resolver.ask(name, 0, CLIENT, now), Known::Addresses(_))
        };
        let addresses = vec![CLIENT];
        for number in 0..NAMES_MAX as u64 {
            let name = format!("n{number}");
            let now = Duration::from_millis(number);
            resolver.remember(name.into(), addresses.clone(), now);
        }
        let now = Duration::from_millis(NAMES_MAX as u64);
        assert!(known(&mut resolver, "n0", now), "all are there");
        // One that is confirmed is as young as any.
        resolver.remember("n0".into(), addresses.clone(), now);
        for number in 0..100 {
            resolver.remember(format!("new{number}").into(), addresses.clone(), now);
        }
        assert_eq!(
            (resolver.known.len(), resolver.by_age.len()),
            (NAMES_MAX, NAMES_MAX)
        );
        assert!(known(&mut resolver, "n0", now) && known(&mut resolver, "n101", now));
        assert!(!known(&mut resolver, "n1", now), "it was the oldest");
        // Failures go before what has resolved.
        resolver.remember("failure".into(), Vec::new(), now);
        resolver.remember("another".into(), addresses, now);
        assert!(known(&mut resolver, "n102", now));
    }
}
