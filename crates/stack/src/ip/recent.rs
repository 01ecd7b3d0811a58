//! A table that drops entries that were not looked up lately.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Instant;

/// Two generations of at most `most` entries each. When the young one is full it becomes
/// the old one, whose entries are dropped. An entry that is looked up becomes young
/// again. So an entry in use stays while `most` others come, even if an attacker invents
/// these. No search for an entry to evict is needed.
#[derive(Debug)]
pub struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    most: usize,
}

impl<K: Eq + Hash + Copy, V> Recent<K, V> {
    /// Creates an empty map with at most `most` entries per generation.
    pub fn new(most: usize) -> Self {
        Recent {
            young: HashMap::new(),
            old: HashMap::new(),
            most,
        }
    }

    /// Looks an entry up, and makes it young.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        self.get_mut(key).map(|value| &*value)
    }

    /// Looks an entry up to change it, and makes it young.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        if !self.young.contains_key(key) {
            let value = self.old.remove(key)?;
            self.insert(*key, value);
        }
        self.young.get_mut(key)
    }

    /// Adds an entry, or replaces it. A full young generation becomes the old one first.
    pub fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.most && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    /// Has every entry expire at once; `time`: the place of its time.
    pub fn expire(&mut self, time: impl Fn(&mut V) -> &mut Instant) {
        let now = Instant::now();
        for value in self.young.values_mut().chain(self.old.values_mut()) {
            let time = time(value);
            *time = now.min(*time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_while_others_come() {
        let mut recent = Recent::new(64);
        recent.insert(0, 7);
        for other in 1..10_000 {
            recent.insert(other, 1);
            assert!(recent.young.len() <= 64 && recent.old.len() <= 64);
            assert_eq!(recent.get(&other), Some(&1));
            if other % 60 == 0 {
                assert_eq!(recent.get(&0), Some(&7), "after {other}");
            }
        }
        assert_eq!(recent.get(&1), None);
    }
}
