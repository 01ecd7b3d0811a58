//! Parses a load's target and source addresses.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use ipnet::{IpAddrRange, IpNet, Ipv4AddrRange, Ipv6AddrRange};

/// Most source addresses that one option may stand for.
const SOURCES_MAX: usize = 256;

/// `http://HOST[:PORT][/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Host and port as written, for the `Host` field.
    pub authority: String,
    /// The path, `/` if there is none.
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
    /// Returns the address of the server, after looking up a name.
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

/// Source addresses, several separated by commas: `10.0.0.7`, `10.0.0.7-10.0.0.90` or
/// `10.0.1.0/26`. The first and last addresses of a prefix are left out: they are no
/// hosts'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources(pub Vec<IpAddr>);

impl FromStr for Sources {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Vec::new();
        for part in text.split(',').map(str::trim) {
            all.extend(addresses(part)?);
        }
        Ok(Sources(all))
    }
}

/// Returns the addresses of a part.
fn addresses(part: &str) -> Result<Vec<IpAddr>, String> {
    let address = |text: &str| {
        text.parse::<IpAddr>().map_err(|_| {
            format!("{text:?} is no address: 10.0.0.7, 10.0.0.7-10.0.0.90 or 10.0.1.0/26")
        })
    };
    let (first, last) = if let Some((first, last)) = part.split_once('-') {
        (address(first)?, address(last)?)
    } else if let Ok(block) = part.parse::<IpNet>() {
        (block.network(), block.broadcast())
    } else {
        (address(part)?, address(part)?)
    };
    let range = match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => {
            IpAddrRange::V4(Ipv4AddrRange::new(first, last))
        }
        (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => {
            IpAddrRange::V6(Ipv6AddrRange::new(first, last))
        }
        _ => return Err(format!("{part} goes from no address to a higher one")),
    };
    // One more than the maximum, and those left out below.
    let mut all: Vec<IpAddr> = range.take(SOURCES_MAX + 3).collect();
    if part.contains('/') && all.len() > 2 {
        all.pop();
        all.remove(0);
    }
    match all.len() > SOURCES_MAX {
        true => Err(format!("{part} is more than {SOURCES_MAX} addresses")),
        false => Ok(all),
    }
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
