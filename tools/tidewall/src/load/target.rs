//! Whom a load is for and where it comes from, as people write them.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// Most source addresses that one option may stand for.
const SOURCES_MAX: u128 = 256;

/// `http://HOST[:PORT][/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Host and port as written: what the `Host` field says.
    pub authority: String,
    /// The path, `/` where there is none.
    pub path: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("https://") {
            return Err("TLS is not spoken here: http:// only".to_owned());
        }
        let Some(rest) = text.strip_prefix("http://") else {
            return Err("not a URL such as http://10.77.0.2:8080/doc".to_owned());
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if authority.is_empty() || authority.contains('@') {
            return Err("the URL names no host, or a user: http://HOST[:PORT][/PATH]".to_owned());
        }
        Ok(Url {
            authority: authority.to_owned(),
            path: match path.starts_with('/') {
                true => path.to_owned(),
                false => format!("/{path}"),
            },
        })
    }
}

impl Url {
    /// The address of the server, which a name is looked up for.
    pub fn address(&self) -> Result<SocketAddr, String> {
        if let Ok(address) = self.authority.parse() {
            return Ok(address);
        }
        let bare = self
            .authority
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(&self.authority);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Ok(SocketAddr::new(address, 80));
        }
        let named = match self.authority.rsplit_once(':') {
            Some(_) => self.authority.to_socket_addrs(),
            None => (self.authority.as_str(), 80).to_socket_addrs(),
        };
        named
            .map_err(|error| format!("{}: {error}", self.authority))?
            .next()
            .ok_or_else(|| format!("{} has no address", self.authority))
    }
}

/// Source addresses: `10.0.0.7`, `10.0.0.7-10.0.0.90` or `10.0.1.0/26` (its
/// first and last addresses, which are no hosts', left out), several separated
/// by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources(pub Vec<IpAddr>);

impl FromStr for Sources {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (first, last) = ends(part)?;
            if number(last).saturating_sub(number(first)) >= SOURCES_MAX {
                return Err(format!("{part} is more than {SOURCES_MAX} addresses"));
            }
            all.extend((number(first)..=number(last)).map(|number| match first {
                // At most what an IPv4 address was made of.
                IpAddr::V4(_) => IpAddr::from((number as u32).to_be_bytes()),
                IpAddr::V6(_) => IpAddr::from(number.to_be_bytes()),
            }));
        }
        Ok(Sources(all))
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// The first and the last address of a part.
fn ends(part: &str) -> Result<(IpAddr, IpAddr), String> {
    let address = |text: &str| {
        text.parse::<IpAddr>().map_err(|_| {
            format!("{text:?} is no address: 10.0.0.7, 10.0.0.7-10.0.0.90 or 10.0.1.0/26")
        })
    };
    if let Some((first, last)) = part.split_once('-') {
        let (first, last) = (address(first)?, address(last)?);
        if first.is_ipv4() != last.is_ipv4() || number(first) > number(last) {
            return Err(format!("{part} goes from no address to a higher one"));
        }
        return Ok((first, last));
    }
    let Some((base, length)) = part.split_once('/') else {
        return address(part).map(|address| (address, address));
    };
    let base = address(base)?;
    let bits: u32 = if base.is_ipv4() { 32 } else { 128 };
    let length: u32 = length
        .parse()
        .ok()
        .filter(|length| *length <= bits)
        .ok_or_else(|| format!("{part}: a prefix is 0 to {bits} bits long"))?;
    let size = 1u128.checked_shl(bits - length).unwrap_or(u128::MAX);
    if size > SOURCES_MAX {
        return Err(format!("{part} is more than {SOURCES_MAX} addresses"));
    }
    let first = number(base) & !(size - 1);
    let (first, last) = match size {
        1 | 2 => (first, first + size - 1),
        _ => (first + 1, first + size - 2),
    };
    let back = |number: u128| match base {
        IpAddr::V4(_) => IpAddr::from((number as u32).to_be_bytes()),
        IpAddr::V6(_) => IpAddr::from(number.to_be_bytes()),
    };
    Ok((back(first), back(last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        for (text, authority, path, address) in [
            ("http://10.0.0.2", "10.0.0.2", "/", "10.0.0.2:80"),
            (
                "http://10.0.0.2:81/a?b=c",
                "10.0.0.2:81",
                "/a?b=c",
                "10.0.0.2:81",
            ),
            ("http://10.0.0.2?q", "10.0.0.2", "/?q", "10.0.0.2:80"),
            ("http://[fd00::2]/x#y", "[fd00::2]", "/x", "[fd00::2]:80"),
            (
                "http://[fd00::2]:8080/",
                "[fd00::2]:8080",
                "/",
                "[fd00::2]:8080",
            ),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(
                (url.authority.as_str(), url.path.as_str()),
                (authority, path)
            );
            assert_eq!(url.address(), Ok(address.parse().unwrap()), "{text}");
        }
        for text in [
            "",
            "10.0.0.2",
            "ftp://x",
            "https://x/",
            "http://",
            "http:///x",
            "http://a@b/",
        ] {
            assert!(text.parse::<Url>().is_err(), "{text}");
        }
        let local: Url = "http://localhost:7/".parse().unwrap();
        assert!(
            local
                .address()
                .is_ok_and(|address| address.ip().is_loopback())
        );
        let nowhere: Url = "http://10.0.0.2:x/".parse().unwrap();
        assert!(nowhere.address().is_err());
    }

    #[test]
    fn sources_are_read() {
        let sources = |text: &str| text.parse::<Sources>().map(|sources| sources.0);
        assert_eq!(sources("10.0.0.7").unwrap().len(), 1);
        let range = sources("10.0.0.255-10.0.1.2, fd00::1").unwrap();
        assert_eq!(range.len(), 5);
        assert_eq!(range[1], "10.0.1.0".parse::<IpAddr>().unwrap());
        let prefix = sources("10.0.1.5/26").unwrap();
        assert_eq!(prefix.len(), 62);
        assert_eq!(prefix[0], "10.0.1.1".parse::<IpAddr>().unwrap());
        assert_eq!(sources("10.0.1.5/31").unwrap().len(), 2);
        assert_eq!(sources("fd00::/120").unwrap().len(), 254);
        assert_eq!(sources("0.0.0.0-0.0.0.255").unwrap().len(), 256);
        for text in [
            "",
            "x",
            "10.0.0.2-10.0.0.1",
            "10.0.0.1-fd00::1",
            "10.0.0.0/33",
            "10.0.0.0/x",
            "10.0.0.0/8",
            "::/0",
            "10.0.0.0-10.0.9.0",
            "10.0.0.1,",
        ] {
            assert!(sources(text).is_err(), "{text}");
        }
    }
}
