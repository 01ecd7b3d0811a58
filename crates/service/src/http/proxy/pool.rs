//! Connections to origins that nobody uses, by the origin's address.

use std::collections::HashMap;
use std::net::SocketAddr;

/// Places of connections that nobody uses.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// The latest used last. Empty ones stay while the origin has connections
    /// in use: it is there that the next one is put back.
    places: HashMap<SocketAddr, Vec<usize>>,
}

impl Pool {
    /// Puts one back.
    pub(super) fn put(&mut self, address: SocketAddr, place: usize) {
        self.places.entry(address).or_default().push(place);
    }

    /// Takes the one used last: the least likely to be closed by its origin.
    pub(super) fn take(&mut self, address: SocketAddr) -> Option<usize> {
        self.places.get_mut(&address)?.pop()
    }

    /// How many of this origin there are.
    pub(super) fn len(&self, address: SocketAddr) -> usize {
        self.places.get(&address).map_or(0, Vec::len)
    }

    /// One that can be closed to make room for another origin's.
    pub(super) fn any(&self) -> Option<usize> {
        let mut all = self.places.values();
        all.find_map(|places| places.first().copied())
    }

    /// A connection to this origin is closed, in use or not: nothing is kept of
    /// an origin that has none.
    pub(super) fn closed(&mut self, address: SocketAddr, place: usize) {
        let Some(places) = self.places.get_mut(&address) else {
            return;
        };
        if let Some(at) = places.iter().position(|&other| other == place) {
            places.remove(at);
        }
        if places.is_empty() {
            self.places.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn origin(number: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, number).into()
    }

    #[test]
    fn the_latest_used_is_used_next() {
        let mut pool = Pool::default();
        for place in [1, 2, 3] {
            pool.put(origin(80), place);
        }
        pool.put(origin(81), 4);
        assert_eq!((pool.len(origin(80)), pool.len(origin(82))), (3, 0));
        assert_eq!(pool.take(origin(80)), Some(3));
        pool.closed(origin(80), 1);
        assert_eq!(pool.take(origin(80)), Some(2));
        assert_eq!(pool.take(origin(80)), None);
        assert_eq!(pool.any(), Some(4));
    }

    #[test]
    fn nothing_is_kept_of_origins_that_are_done_with() {
        let mut pool = Pool::default();
        for number in 0..1000 {
            // Used twice, and closed while it was in use.
            pool.put(origin(number), 7);
            assert_eq!(pool.take(origin(number)), Some(7));
            pool.closed(origin(number), 7);
        }
        assert!(pool.places.is_empty());
        assert_eq!(pool.any(), None);
    }
}
