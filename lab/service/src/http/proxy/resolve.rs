//! Names of origins. The system's resolver blocks, so each look-up has its own thread,
//! for as long as it takes; the event loop only collects. Nothing is cached: that is the
//! task of the system's resolver, which knows for how long.

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Most concurrent look-ups.
const PENDING_MAX: usize = 64;

/// The known state of a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// These addresses, perhaps none.
    Addresses(Vec<IpAddr>),
    /// It is being looked up: [`Resolver::collect`] will name its clients.
    Soon,
    /// Too many look-ups are in progress.
    Busy,
}

/// Looks up names.
#[derive(Debug)]
pub(super) struct Resolver {
    /// The clients that wait for each name, each once.
    pending: HashMap<Box<str>, Vec<u64>>,
    /// Results since the last but one [`Resolver::collect`].
    found: HashMap<Box<str>, Vec<IpAddr>>,
    answers: Receiver<(Box<str>, Vec<IpAddr>)>,
    answer: Sender<(Box<str>, Vec<IpAddr>)>,
    look_up: fn(&str) -> Vec<IpAddr>,
}

/// Returns the system's addresses of a name.
fn system(name: &str) -> Vec<IpAddr> {
    let found = (name, 0).to_socket_addrs().into_iter().flatten();
    found.map(|address| address.ip()).collect()
}

impl Resolver {
    pub(super) fn new() -> Self {
        let (answer, answers) = channel();
        Resolver {
            pending: HashMap::new(),
            found: HashMap::new(),
            answers,
            answer,
            look_up: system,
        }
    }

    /// Requests the addresses of `name` on behalf of the client `token`.
    pub(super) fn ask(&mut self, name: &str, token: u64) -> Known {
        if let Some(addresses) = self.found.get(name) {
            return Known::Addresses(addresses.clone());
        }
        if let Some(waiting) = self.pending.get_mut(name) {
            if !waiting.contains(&token) {
                waiting.push(token);
            }
            return Known::Soon;
        }
        let (answer, look_up) = (self.answer.clone(), self.look_up);
        let wanted: Box<str> = name.into();
        let look_up = move || {
            let found = look_up(&wanted);
            // If this fails, nothing waits for it any more.
            let _ = answer.send((wanted, found));
        };
        let thread = std::thread::Builder::new().name("tidewall-names".to_owned());
        if self.pending.len() >= PENDING_MAX || thread.spawn(look_up).is_err() {
            return Known::Busy;
        }
        self.pending.insert(name.into(), vec![token]);
        Known::Soon
    }

    /// Returns whether a look-up is in progress.
    pub(super) fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Adds to `tokens` the clients that can ask again, before this is called again.
    pub(super) fn collect(&mut self, tokens: &mut Vec<u64>) {
        self.found.clear();
        while self.is_busy()
            && let Ok((name, addresses)) = self.answers.try_recv()
        {
            tokens.extend(self.pending.remove(&name).unwrap_or_default());
            self.found.insert(name, addresses);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use super::*;

    fn fixed(name: &str) -> Vec<IpAddr> {
        match name {
            "none" => Vec::new(),
            // There is no answer, as long as the test lasts.
            "never" => loop {
                thread::park();
            },
            name if name.starts_with("never") => fixed("never"),
            _ => vec![Ipv4Addr::LOCALHOST.into()],
        }
    }

    fn resolver() -> Resolver {
        Resolver {
            look_up: fixed,
            ..Resolver::new()
        }
    }

    #[test]
    fn clients_of_one_name_share_a_look_up() {
        let mut resolver = resolver();
        for _ in 0..100 {
            assert_eq!(resolver.ask("a", 1), Known::Soon);
            assert_eq!(resolver.ask("a", 2), Known::Soon);
        }
        assert_eq!(resolver.pending.len(), 1);
        let mut tokens = Vec::new();
        while tokens.is_empty() {
            resolver.collect(&mut tokens);
            thread::yield_now();
        }
        assert_eq!(tokens, [1, 2]);
        assert!(!resolver.is_busy());
        let addresses = vec![Ipv4Addr::LOCALHOST.into()];
        assert_eq!(resolver.ask("a", 1), Known::Addresses(addresses));
        resolver.collect(&mut tokens);
        assert_eq!(resolver.ask("a", 1), Known::Soon, "nothing is remembered");
    }

    #[test]
    fn look_ups_are_bounded() {
        let mut resolver = resolver();
        for number in 0..PENDING_MAX {
            assert_eq!(resolver.ask(&format!("never{number}"), 0), Known::Soon);
        }
        assert_eq!(resolver.ask("more", 0), Known::Busy);
        assert_eq!(resolver.ask("never0", 1), Known::Soon, "it takes nothing");
    }
}
