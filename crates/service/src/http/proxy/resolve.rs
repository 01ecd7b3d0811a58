//! Names of origins. The system's resolver blocks, so each look-up has a
//! thread of its own, for as long as it takes; the event loop only collects.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Look-ups at a time.
const PENDING_MAX: usize = 64;
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
    /// It is being looked up: whoever has asked will be named by
    /// [`Resolver::collect`].
    Soon,
    /// Too much is being looked up.
    Busy,
}

/// Looks up names.
#[derive(Debug)]
pub(super) struct Resolver {
    known: HashMap<Box<str>, (Duration, Addresses)>,
    /// Who waits for a name, each once, however often its client has a turn
    /// meanwhile.
    pending: HashMap<Box<str>, BTreeSet<u64>>,
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
            pending: HashMap::new(),
            answers,
            answer,
            look_up,
        }
    }

    /// Asks for the addresses of `name` on behalf of `token`.
    pub(super) fn ask(&mut self, name: &str, token: u64, now: Duration) -> Known {
        if let Some((until, addresses)) = self.known.get(name)
            && now < *until
        {
            return Known::Addresses(addresses.clone());
        }
        if let Some(waiting) = self.pending.get_mut(name) {
            waiting.insert(token);
            return Known::Soon;
        }
        if self.pending.len() >= PENDING_MAX {
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
            return Known::Busy;
        }
        self.pending.insert(name.into(), BTreeSet::from([token]));
        Known::Soon
    }

    /// Whether a look-up is under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Puts into `tokens` who can ask again.
    pub(super) fn collect(&mut self, now: Duration, tokens: &mut Vec<u64>) {
        while let Ok((name, addresses)) = self.answers.try_recv() {
            tokens.extend(self.pending.remove(&name).unwrap_or_default());
            if self.known.len() >= NAMES_MAX {
                self.known.retain(|_, (until, _)| now < *until);
            }
            if self.known.len() >= NAMES_MAX {
                self.known.clear();
            }
            let time = match addresses.is_empty() {
                true => REMEMBERED_FAILURE,
                false => REMEMBERED,
            };
            self.known.insert(name, (now + time, addresses));
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
        assert_eq!(resolver.ask("a", 1, now), Known::Soon);
        for _ in 0..100 {
            assert_eq!(resolver.ask("a", 2, now), Known::Soon);
        }
        assert_eq!(resolver.ask("none", 3, now), Known::Soon);
        assert!(resolver.is_busy());
        let mut tokens = collected(&mut resolver, now, 3);
        tokens.sort_unstable();
        assert_eq!(tokens, [1, 2, 3]);
        assert!(!resolver.is_busy());
        let address = vec![Ipv4Addr::LOCALHOST.into()];
        assert_eq!(resolver.ask("a", 4, now), Known::Addresses(address));
        assert_eq!(resolver.ask("none", 4, now), Known::Addresses(Vec::new()));
        let later = now + REMEMBERED_FAILURE;
        assert_eq!(resolver.ask("none", 5, later), Known::Soon);
        assert_eq!(resolver.ask("a", 6, now + REMEMBERED), Known::Soon);
        assert_eq!(collected(&mut resolver, later, 2).len(), 2);
    }

    #[test]
    fn a_flood_of_names_is_bounded() {
        fn slow(_: &str) -> Addresses {
            thread::park_timeout(Duration::from_millis(300));
            Vec::new()
        }
        let mut resolver = Resolver::new(slow);
        for number in 0..PENDING_MAX {
            let name = format!("n{number}");
            assert_eq!(resolver.ask(&name, 0, Duration::ZERO), Known::Soon);
        }
        assert_eq!(resolver.ask("more", 0, Duration::ZERO), Known::Busy);
        collected(&mut resolver, Duration::ZERO, PENDING_MAX);
        assert_eq!(resolver.ask("more", 0, Duration::ZERO), Known::Soon);
    }
}
