//! Cache-Control (RFC 9111 §5.2), of requests and of responses.

/// The directives that a shared cache heeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directives {
    /// Nothing of it may be stored.
    pub no_store: bool,
    /// Not to be used without asking the origin. A list of fields after it is
    /// taken as if there were none, which §5.2.2.4 allows.
    pub no_cache: bool,
    /// For one user's cache, not for this one.
    pub private: bool,
    /// May be stored although it otherwise might not.
    pub public: bool,
    /// Never to be used once stale without asking, and so may be stored
    /// whoever has asked for it (§3.5): must-revalidate and s-maxage.
    pub must_revalidate: bool,
    /// Never to be used once stale without asking, which opens it to nobody
    /// (§5.2.2.8).
    pub proxy_revalidate: bool,
    /// Only caches that know the status code may store it.
    pub must_understand: bool,
    /// Not to be forwarded: from the cache, or not at all.
    pub only_if_cached: bool,
    /// Seconds.
    pub max_age: Option<u64>,
    /// Seconds, for shared caches.
    pub s_maxage: Option<u64>,
    /// Seconds for which it may have been stale.
    pub max_stale: Option<u64>,
    /// Seconds for which it must go on being fresh.
    pub min_fresh: Option<u64>,
    /// Seconds for which it may have been stale when the origin fails
    /// (RFC 5861 §4).
    pub stale_if_error: Option<u64>,
}

impl Directives {
    /// Reads the values of all Cache-Control fields of a message.
    pub fn parse<'a>(fields: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut found = Directives::default();
        for field in fields {
            let mut rest = field;
            while let Some((name, argument)) = directive(&mut rest) {
                found.note(name, argument);
            }
        }
        found
    }

    /// Whether a shared cache may keep what comes with them: must-understand
    /// overrides no-store for those who understand (§5.2.2.3).
    pub fn may_be_kept(&self) -> bool {
        !self.private && (!self.no_store || self.must_understand)
    }

    /// Whether it must not be used once stale without asking.
    pub fn forbids_stale(&self) -> bool {
        self.must_revalidate || self.proxy_revalidate
    }

    fn note(&mut self, name: &[u8], argument: Option<&[u8]>) {
        let is = |text: &str| name.eq_ignore_ascii_case(text.as_bytes());
        // §4.2.1: what is invalid, or there twice, is best taken as stale.
        let seconds = || argument.and_then(seconds).unwrap_or(0);
        let least = |old: Option<u64>, new: u64| Some(old.map_or(new, |old| old.min(new)));
        match name.len() {
            6 if is("public") => self.public = true,
            7 if is("private") => self.private = true,
            7 if is("max-age") => self.max_age = least(self.max_age, seconds()),
            8 if is("no-store") => self.no_store = true,
            8 if is("no-cache") => self.no_cache = true,
            8 if is("s-maxage") => {
                self.s_maxage = least(self.s_maxage, seconds());
                self.must_revalidate = true;
            }
            9 if is("max-stale") => {
                // Without a number, however stale.
                let seconds = argument.map_or(u64::MAX, |text| self::seconds(text).unwrap_or(0));
                self.max_stale = least(self.max_stale, seconds);
            }
            9 if is("min-fresh") => {
                let seconds = argument.and_then(self::seconds).unwrap_or(u64::MAX);
                self.min_fresh = Some(self.min_fresh.unwrap_or(0).max(seconds));
            }
            14 if is("only-if-cached") => self.only_if_cached = true,
            14 if is("stale-if-error") => {
                self.stale_if_error = least(self.stale_if_error, seconds());
            }
            15 if is("must-revalidate") => self.must_revalidate = true,
            15 if is("must-understand") => self.must_understand = true,
            16 if is("proxy-revalidate") => self.proxy_revalidate = true,
            _ => {}
        }
    }
}

/// A number of seconds (§1.2.2): one too large for 64 bits is as good as ever.
fn seconds(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    Some(text.parse().unwrap_or(u64::MAX).min(1 << 31))
}

/// Takes the next directive from the start of `rest`: its name, and its
/// argument without the quotes.
fn directive<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], Option<&'a [u8]>)> {
    loop {
        let text = rest.trim_ascii_start();
        if text.is_empty() {
            *rest = text;
            return None;
        }
        let end = text
            .iter()
            .position(|&byte| matches!(byte, b'=' | b','))
            .unwrap_or(text.len());
        let (name, after) = text.split_at(end);
        let name = name.trim_ascii();
        let mut argument = None;
        let mut after = after;
        if let Some(value) = after.strip_prefix(b"=") {
            let value = value.trim_ascii_start();
            if let Some(quoted) = value.strip_prefix(b"\"") {
                // Escapes change nothing in what is looked for here.
                let mut escaped = false;
                let close = quoted.iter().position(|&byte| {
                    let ends = byte == b'"' && !escaped;
                    escaped = byte == b'\\' && !escaped;
                    ends
                });
                let close = close.unwrap_or(quoted.len());
                argument = quoted.get(..close);
                after = quoted.get(close + 1..).unwrap_or_default();
            } else {
                let close = value.iter().position(|&byte| byte == b',');
                let (plain, next) = value.split_at(close.unwrap_or(value.len()));
                argument = Some(plain.trim_ascii());
                after = next;
            }
        }
        let comma = after.iter().position(|&byte| byte == b',');
        *rest = comma.and_then(|at| after.get(at + 1..)).unwrap_or_default();
        if !name.is_empty() {
            return Some((name, argument));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(fields: &[&str]) -> Directives {
        Directives::parse(fields.iter().map(|field| field.as_bytes()))
    }

    #[test]
    fn directives_are_found_whatever_stands_beside_them() {
        let found = parse(&[
            "community=\"a, no-store\", Max-Age=60 ,,x",
            "PUBLIC, s-maxage=\"10\"",
        ]);
        assert_eq!(
            found,
            Directives {
                public: true,
                must_revalidate: true,
                max_age: Some(60),
                s_maxage: Some(10),
                ..Directives::default()
            }
        );
        let found = parse(&["no-cache=\"Set-Cookie\", private=\"x\\\"y\", no-store"]);
        assert!(found.no_cache && found.private && found.no_store);
        assert_eq!(parse(&[", ,", "=", "\"", "a=\"b"]), Directives::default());
    }

    #[test]
    fn what_is_invalid_is_stale() {
        assert_eq!(parse(&["max-age"]).max_age, Some(0));
        assert_eq!(parse(&["max-age=-1"]).max_age, Some(0));
        assert_eq!(parse(&["max-age=60, max-age=5"]).max_age, Some(5));
        assert_eq!(
            parse(&["max-age=99999999999999999999"]).max_age,
            Some(1 << 31)
        );
        assert_eq!(parse(&["max-stale"]).max_stale, Some(u64::MAX));
        assert_eq!(parse(&["max-stale=x"]).max_stale, Some(0));
        assert_eq!(parse(&["min-fresh=x"]).min_fresh, Some(u64::MAX));
        assert_eq!(parse(&["min-fresh=3"]).min_fresh, Some(3));
    }
}
