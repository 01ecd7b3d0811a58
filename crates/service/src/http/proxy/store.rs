//! Responses that are kept (RFC 9111), in a bounded amount of memory.
//!
//! The least recently used one makes room. Everything here is deterministic:
//! times go in.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use slab::Slab;

use super::control::Directives;

/// Most responses kept for one target, which differ by what Vary names.
const VARIANTS_MAX: usize = 16;
/// What an entry takes beside its texts and content, roughly.
const OVERHEAD: usize = 512;

/// How old a response is, and how old it may become (RFC 9111 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// When it came, or was last confirmed.
    pub at: Duration,
    /// Its age then, in seconds.
    pub age: u64,
    /// Age up to which it is fresh, in seconds; `None` when the origin has not
    /// said. Nothing is guessed from Last-Modified (§4.2.2 leaves that to the
    /// cache): such a response is always confirmed before it is used.
    pub lifetime: Option<u64>,
    /// What the origin said of it.
    pub control: Directives,
}

impl Freshness {
    /// Its age in seconds.
    pub fn age(&self, now: Duration) -> u64 {
        self.age
            .saturating_add(now.saturating_sub(self.at).as_secs())
    }

    /// Whether it may answer a request of these directives without the origin
    /// being asked.
    pub fn serves(&self, wish: &Directives, now: Duration) -> bool {
        if self.control.no_cache || wish.no_cache {
            return false;
        }
        let age = self.age(now);
        if wish.max_age.is_some_and(|most| age > most) {
            return false;
        }
        let lifetime = self.lifetime.unwrap_or(0);
        if lifetime > age {
            return wish.min_fresh.is_none_or(|least| lifetime - age >= least);
        }
        // §5.2.1.2: stale, which the client may have allowed.
        let stale = age - lifetime;
        self.lifetime.is_some()
            && !self.control.forbids_stale()
            && wish.min_fresh.is_none()
            && wish.max_stale.is_some_and(|most| stale <= most)
    }

    /// Whether it may be used when the origin cannot be asked (RFC 5861 §4).
    pub fn serves_on_error(&self, now: Duration) -> bool {
        let lifetime = self.lifetime.unwrap_or(0);
        let stale = self.age(now).saturating_sub(lifetime);
        !self.control.forbids_stale()
            && !self.control.no_cache
            && self
                .control
                .stale_if_error
                .is_some_and(|most| stale <= most)
    }
}

/// A field that Vary names, and its value in a request; none if it was not
/// there.
pub type Selecting = (Box<str>, Option<Box<[u8]>>);

/// A response that is kept.
#[derive(Debug)]
pub struct Stored {
    /// Its status code.
    pub status: u16,
    /// The status line, with its line end.
    pub line: Box<[u8]>,
    /// The fields to be sent with it, with line ends: all that go from end to
    /// end, but for Date and Age.
    pub fields: Box<[u8]>,
    /// The value of Date.
    pub date: RefCell<Box<[u8]>>,
    /// Its content.
    pub body: Rc<[u8]>,
    /// The entity tag.
    pub etag: Option<Box<[u8]>>,
    /// The value of Last-Modified.
    pub last_modified: Option<Box<[u8]>>,
    /// The same, in seconds since 1970.
    pub modified: Option<u64>,
    /// The fields that requests must have alike: names, and values in the
    /// request that it answered.
    pub vary: Box<[Selecting]>,
    /// How old it is.
    pub freshness: Cell<Freshness>,
}

impl Stored {
    /// Memory that it takes, in bytes.
    pub fn size(&self) -> usize {
        let vary: usize = self
            .vary
            .iter()
            .map(|(name, value)| name.len() + value.as_ref().map_or(0, |value| value.len()) + 40)
            .sum();
        let tag = self.etag.as_ref().map_or(0, |tag| tag.len());
        let modified = self.last_modified.as_ref().map_or(0, |date| date.len());
        let heads = self.line.len() + self.fields.len() + self.date.borrow().len();
        OVERHEAD + heads + tag + modified + self.body.len() + vary
    }

    /// Whether the origin can be asked if it is still current.
    pub fn has_validator(&self) -> bool {
        self.etag.is_some() || self.last_modified.is_some()
    }

    fn varies_alike(&self, other: &Stored) -> bool {
        self.vary == other.vary
    }
}

/// A place in the order of use.
#[derive(Debug)]
struct Slot {
    stored: Rc<Stored>,
    key: Rc<[u8]>,
    size: usize,
    newer: usize,
    older: usize,
}

/// None.
const NONE: usize = usize::MAX;

/// What has been stored.
#[derive(Debug)]
pub struct Cache {
    slots: Slab<Slot>,
    places: HashMap<Rc<[u8]>, Vec<usize>>,
    newest: usize,
    oldest: usize,
    bytes: usize,
    limit: usize,
    evicted: u64,
}

impl Cache {
    /// An empty one of up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Cache {
            slots: Slab::new(),
            places: HashMap::new(),
            newest: NONE,
            oldest: NONE,
            bytes: 0,
            limit,
            evicted: 0,
        }
    }

    /// The response stored under `key` that suits a request whose fields are
    /// what `field` says (§4.1): all values of that name, joined. Of several the
    /// one that was stored last.
    pub fn find(
        &mut self,
        key: &[u8],
        field: impl Fn(&str) -> Option<Box<[u8]>>,
    ) -> Option<Rc<Stored>> {
        let places = self.places.get(key)?;
        let place = places.iter().copied().rev().find(|&place| {
            self.slots.get(place).is_some_and(|slot| {
                let mut vary = slot.stored.vary.iter();
                vary.all(|(name, value)| field(name) == *value)
            })
        })?;
        self.unlink(place);
        self.link(place);
        self.slots.get(place).map(|slot| slot.stored.clone())
    }

    /// Stores a response, in place of one for the same requests. Returns false
    /// when it is larger than everything together may be.
    pub fn store(&mut self, key: &[u8], stored: Rc<Stored>) -> bool {
        let size = stored.size() + key.len();
        let places = self.places.get(key).map(Vec::as_slice).unwrap_or_default();
        let same = places.iter().copied().find(|&place| {
            let slot = self.slots.get(place);
            slot.is_some_and(|slot| slot.stored.varies_alike(&stored))
        });
        let surplus = match same {
            None if places.len() >= VARIANTS_MAX => places.first().copied(),
            same => same,
        };
        if let Some(place) = surplus {
            self.remove(place);
        }
        if size > self.limit {
            return false;
        }
        while self.bytes + size > self.limit && self.oldest != NONE {
            self.evicted += 1;
            self.remove(self.oldest);
        }
        let shared = self.places.get_key_value(key).map(|(key, _)| key.clone());
        let key: Rc<[u8]> = shared.unwrap_or_else(|| key.into());
        let place = self.slots.insert(Slot {
            stored,
            key: key.clone(),
            size,
            newer: NONE,
            older: NONE,
        });
        self.places.entry(key).or_default().push(place);
        self.bytes += size;
        self.link(place);
        true
    }

    /// Takes out one response of `key`; returns whether it was there.
    pub fn forget(&mut self, key: &[u8], stored: &Rc<Stored>) -> bool {
        let places = self.places.get(key).map(Vec::as_slice).unwrap_or_default();
        let place = places.iter().copied().find(|&place| {
            let slot = self.slots.get(place);
            slot.is_some_and(|slot| Rc::ptr_eq(&slot.stored, stored))
        });
        place.is_some_and(|place| {
            self.remove(place);
            true
        })
    }

    /// Takes out all responses of `key`: it has changed (§4.4).
    pub fn invalidate(&mut self, key: &[u8]) {
        let places = self.places.get(key).cloned().unwrap_or_default();
        for place in places {
            self.remove(place);
        }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Responses stored.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Responses that had to make room so far.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    fn remove(&mut self, place: usize) {
        self.unlink(place);
        let Some(slot) = self.slots.try_remove(place) else {
            return;
        };
        self.bytes -= slot.size;
        if let Some(places) = self.places.get_mut(&slot.key) {
            places.retain(|&other| other != place);
            if places.is_empty() {
                self.places.remove(&slot.key);
            }
        }
    }

    /// Makes it the newest.
    fn link(&mut self, place: usize) {
        let older = self.newest;
        if let Some(slot) = self.slots.get_mut(place) {
            (slot.older, slot.newer) = (older, NONE);
        }
        match self.slots.get_mut(older) {
            Some(slot) => slot.newer = place,
            None => self.oldest = place,
        }
        self.newest = place;
    }

    fn unlink(&mut self, place: usize) {
        let Some(slot) = self.slots.get(place) else {
            return;
        };
        let (newer, older) = (slot.newer, slot.older);
        match self.slots.get_mut(newer) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
        match self.slots.get_mut(older) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(lifetime: Option<u64>, control: &str) -> Freshness {
        Freshness {
            at: Duration::from_secs(1000),
            age: 5,
            lifetime,
            control: Directives::parse(std::iter::once(control.as_bytes())),
        }
    }

    fn stored(body: usize, vary: &[(&str, Option<&str>)]) -> Rc<Stored> {
        Rc::new(Stored {
            status: 200,
            line: (*b"HTTP/1.1 200 OK\r\n").into(),
            fields: [].into(),
            date: RefCell::new([].into()),
            body: vec![0; body].into(),
            etag: None,
            last_modified: None,
            modified: None,
            vary: vary
                .iter()
                .map(|(name, value)| ((*name).into(), value.map(|value| value.as_bytes().into())))
                .collect(),
            freshness: Cell::new(fresh(None, "")),
        })
    }

    fn plain(cache: &mut Cache, key: &[u8]) -> Option<usize> {
        cache.find(key, |_| None).map(|stored| stored.body.len())
    }

    #[test]
    fn freshness_follows_both_sides() {
        let at = |seconds: u64| Duration::from_secs(1000 + seconds);
        let wish = |text: &str| Directives::parse(std::iter::once(text.as_bytes()));
        for (lifetime, control, request, now, serves) in [
            (Some(60), "", "", 54, true),
            (Some(60), "", "", 55, false),
            (None, "", "", 0, false),
            (None, "", "max-stale", 0, false),
            (Some(60), "no-cache", "", 0, false),
            (Some(60), "", "no-cache", 0, false),
            (Some(60), "", "max-age=10", 5, true),
            (Some(60), "", "max-age=10", 6, false),
            (Some(60), "", "min-fresh=50", 5, true),
            (Some(60), "", "min-fresh=50", 6, false),
            (Some(60), "", "max-stale", 1000, true),
            (Some(60), "", "max-stale=10", 65, true),
            (Some(60), "", "max-stale=10", 66, false),
            (Some(60), "must-revalidate", "max-stale", 60, false),
            (Some(60), "proxy-revalidate", "max-stale", 60, false),
        ] {
            let found = fresh(lifetime, control).serves(&wish(request), at(now));
            assert_eq!(found, serves, "{lifetime:?} {control} {request} {now}");
        }
        assert!(fresh(Some(60), "stale-if-error=30").serves_on_error(at(85)));
        assert!(!fresh(Some(60), "stale-if-error=30").serves_on_error(at(86)));
        assert!(!fresh(Some(60), "").serves_on_error(at(56)));
        let strict = fresh(Some(60), "stale-if-error=30, must-revalidate");
        assert!(!strict.serves_on_error(at(56)));
    }

    #[test]
    fn the_least_recently_used_makes_room() {
        let each = stored(1000, &[]).size() + 1;
        let mut cache = Cache::new(3 * each);
        for key in [b"a", b"b", b"c"] {
            assert!(cache.store(key, stored(1000, &[])));
        }
        assert_eq!(
            (cache.len(), cache.bytes(), cache.evicted()),
            (3, 3 * each, 0)
        );
        assert!(plain(&mut cache, b"a").is_some());
        assert!(cache.store(b"d", stored(1000, &[])));
        assert_eq!(plain(&mut cache, b"b"), None, "it was used longest ago");
        assert_eq!((cache.len(), cache.evicted()), (3, 1));
        assert!(!cache.store(b"e", stored(5000, &[])), "larger than all");
        assert_eq!(cache.len(), 3);
        assert!(cache.store(b"a", stored(999, &[])), "a new version");
        assert_eq!(plain(&mut cache, b"a"), Some(999));
        assert_eq!(cache.len(), 3);
        // A version that does not fit takes the old one with it.
        assert!(!cache.store(b"a", stored(9999, &[])));
        assert_eq!(plain(&mut cache, b"a"), None);
        for key in [b"c", b"d"] {
            cache.invalidate(key);
        }
        assert!(cache.is_empty());
        assert_eq!((cache.bytes(), cache.places.len()), (0, 0));
        assert!(cache.store(b"z", stored(1000, &[])), "the order is whole");
    }

    #[test]
    fn all_that_an_origin_can_make_long_is_counted() {
        let long = || -> Box<[u8]> { vec![b'x'; 10_000].into() };
        let small = stored(0, &[]).size();
        let response = Stored {
            line: long(),
            fields: long(),
            date: RefCell::new(long()),
            body: Rc::from(long()),
            etag: Some(long()),
            last_modified: Some(long()),
            vary: [("accept".into(), Some(long()))].into(),
            ..Rc::into_inner(stored(0, &[])).unwrap()
        };
        assert!(response.size() >= small + 7 * 9_900, "{}", response.size());
    }

    #[test]
    fn variants_are_told_apart_and_bounded() {
        let mut cache = Cache::new(1 << 20);
        let language = |value: &str| stored(value.len(), &[("accept-language", Some(value))]);
        cache.store(b"k", language("de"));
        cache.store(b"k", language("eng"));
        let asked = |cache: &mut Cache, value: &str| {
            let found = cache.find(b"k", |name| {
                (name == "accept-language").then(|| value.as_bytes().into())
            });
            found.map(|stored| stored.body.len())
        };
        assert_eq!(asked(&mut cache, "de"), Some(2));
        assert_eq!(asked(&mut cache, "eng"), Some(3));
        assert_eq!(asked(&mut cache, "fr"), None);
        assert_eq!(plain(&mut cache, b"k"), None);
        for number in 0..100 {
            cache.store(b"k", language(&format!("x{number}")));
        }
        assert_eq!(cache.len(), VARIANTS_MAX);
    }

    #[test]
    fn a_long_history_keeps_the_books() {
        // A linear congruential generator: the same history each time.
        let mut state = 7u64;
        let mut cache = Cache::new(20_000);
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let key = [(state >> 60) as u8, (state >> 50) as u8 & 3];
            match (state >> 40) % 4 {
                0 => cache.invalidate(&key),
                1 => drop(plain(&mut cache, &key)),
                _ => drop(cache.store(&key, stored((state >> 32) as usize % 3000, &[]))),
            }
            assert!(cache.bytes() <= 20_000);
            let sum: usize = cache.slots.iter().map(|(_, slot)| slot.size).sum();
            assert_eq!(sum, cache.bytes());
            let (mut place, mut seen) = (cache.newest, 0);
            while place != NONE {
                seen += 1;
                place = cache.slots[place].older;
            }
            assert_eq!(seen, cache.len());
        }
    }
}
