//! The configuration file and its contents.

use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tidewall_switch::MEMBERS_MAX;
use tidewall_switch::modules::{
    BlockStorage, HashOfKey, KeyValue, LeastOutstanding, Lost, Module, RoundRobin, Speed,
};
use toml::Spanned;

use crate::toml_file::{self, Error, Wrong};
use crate::units;

/// The contents of a file.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The virtual address and port.
    pub address: SocketAddr,
    /// The peers' interface.
    pub interface: String,
    pub module: ModuleChoice,
    /// Ports towards members.
    pub ports: RangeInclusive<u16>,
    /// See [`tidewall_switch::Config::kernel_ends`].
    pub kernel_ends: bool,
    /// See [`tidewall_switch::Config::ring`].
    pub ring: u16,
    pub members: Vec<MemberSetup>,
    pub health: Option<Health>,
}

impl Setup {
    /// Returns the names of the settings that differ in another setup, members aside.
    pub fn changed(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            address,
            interface,
            module,
            ports,
            kernel_ends,
            ring,
            members: _,
            health,
        } = self;
        let differs = [
            ("address", *address != other.address),
            ("interface", *interface != other.interface),
            ("module with lost and key", *module != other.module),
            ("ports", *ports != other.ports),
            ("kernel-ends", *kernel_ends != other.kernel_ends),
            ("ring", *ring != other.ring),
            ("health", *health != other.health),
        ];
        let differs = differs.into_iter().filter(|it| it.1);
        differs.map(|(name, _)| name).collect()
    }
}

/// A member and the path to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSetup {
    pub address: SocketAddr,
    pub interface: String,
    pub local: IpAddr,
}

/// How members are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Time between two attempts to connect, and the limit of each.
    pub interval: Duration,
    /// Attempts in a row that must fail before a member counts as dead.
    pub failures: u32,
}

/// A module and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleChoice {
    RoundRobin(Lost),
    LeastOutstanding(Lost),
    Hash(Range<usize>, Lost),
    Speed(Lost),
    KeyValue {
        skip: usize,
    },
    /// The first member of the file, and the others.
    BlockStorage {
        coordinator: SocketAddr,
        nodes: Arc<[SocketAddr]>,
    },
}

impl ModuleChoice {
    /// Creates the module of one connection.
    pub fn make(&self) -> Box<dyn Module> {
        match self.clone() {
            Self::RoundRobin(lost) => Box::new(RoundRobin::new(lost)),
            Self::LeastOutstanding(lost) => Box::new(LeastOutstanding::new(lost)),
            Self::Hash(key, lost) => Box::new(HashOfKey::new(key, lost)),
            Self::Speed(lost) => Box::new(Speed::new(lost)),
            Self::KeyValue { skip } => Box::new(KeyValue::new(skip)),
            Self::BlockStorage { coordinator, nodes } => {
                Box::new(BlockStorage::new(coordinator, nodes))
            }
        }
    }

    /// Returns the module of a file; an error names the place in the file.
    fn of(file: &File, members: &[MemberSetup]) -> Result<Self, (usize, String)> {
        let module = file.module.as_ref();
        let name = module.map_or(ModuleName::RoundRobin, |name| *name.get_ref());
        let place = module.map_or(0, |name| name.span().start);
        let key = match &file.key {
            None => None,
            Some(key) => {
                let place = key.span().start;
                let [first, end] = *key.get_ref();
                if !matches!(name, ModuleName::Hash | ModuleName::KeyValue) {
                    let what = "key: only hash and key-value choose by one; leave it out";
                    return Err((place, what.to_owned()));
                }
                if first >= end {
                    let what = "a key is [FIRST, END], of bytes of a frame's payload";
                    return Err((place, what.to_owned()));
                }
                Some(first..end)
            }
        };
        if let Some(lost) = &file.lost
            && matches!(name, ModuleName::KeyValue | ModuleName::BlockStorage)
        {
            let what = "lost: key-value and block-storage always reset; leave it out";
            return Err((lost.span().start, what.to_owned()));
        }
        let lost = match file.lost.as_ref().map(Spanned::get_ref) {
            None | Some(LostFrames::Reset) => Lost::Reset,
            Some(LostFrames::ResetIfUsed) => Lost::ResetIfUsed,
            Some(LostFrames::Resend) => Lost::Resend,
        };
        Ok(match name {
            ModuleName::RoundRobin => Self::RoundRobin(lost),
            ModuleName::LeastOutstanding => Self::LeastOutstanding(lost),
            ModuleName::Hash => {
                let what = "hash needs key = [FIRST, END]: the bytes of a frame's payload that \
                            name its member";
                Self::Hash(key.ok_or_else(|| (place, what.to_owned()))?, lost)
            }
            ModuleName::Speed => Self::Speed(lost),
            ModuleName::KeyValue => Self::KeyValue {
                skip: key.map_or(0, |key| key.start),
            },
            ModuleName::BlockStorage => match members {
                [coordinator, nodes @ ..] if !nodes.is_empty() => Self::BlockStorage {
                    coordinator: coordinator.address,
                    nodes: nodes.iter().map(|node| node.address).collect(),
                },
                _ => {
                    let what = "block-storage needs a coordinator and nodes: two members or more";
                    return Err((place, what.to_owned()));
                }
            },
        })
    }
}

impl fmt::Display for ModuleChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RoundRobin(_) => "round-robin",
            Self::LeastOutstanding(_) => "least-outstanding",
            Self::Hash(..) => "hash",
            Self::Speed(_) => "speed",
            Self::KeyValue { .. } => "key-value",
            Self::BlockStorage { .. } => "block-storage",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ModuleName {
    RoundRobin,
    LeastOutstanding,
    Hash,
    Speed,
    KeyValue,
    BlockStorage,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LostFrames {
    Reset,
    ResetIfUsed,
    Resend,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    address: Spanned<SocketAddr>,
    interface: Spanned<String>,
    module: Option<Spanned<ModuleName>>,
    lost: Option<Spanned<LostFrames>>,
    key: Option<Spanned<[usize; 2]>>,
    ports: Option<Spanned<String>>,
    #[serde(default)]
    kernel_ends: bool,
    ring: Option<Spanned<u16>>,
    #[serde(default)]
    member: Vec<Spanned<MemberTable>>,
    health: Option<HealthTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberTable {
    address: Spanned<SocketAddr>,
    interface: Spanned<String>,
    local: Option<Spanned<IpAddr>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthTable {
    interval: Option<Spanned<String>>,
    failures: Option<Spanned<u32>>,
}

/// Ports above those that Linux assigns to unbound sockets.
const PORTS: RangeInclusive<u16> = 61_000..=65_535;
/// The paper's w.
const RING: u16 = 384;

/// Reads a file. Only the routes to members are looked up in the system.
pub fn read(path: &Path) -> Result<Setup, Error> {
    toml_file::read(path, |text| parse(text, local_address))
}

/// Returns the address from which the kernel would send to a member.
fn local_address(member: SocketAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = match member {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(member)?;
    Ok(socket.local_addr()?.ip())
}

/// Parses the setup; an error names the place in the text.
fn parse(
    text: &str,
    local_address: impl Fn(SocketAddr) -> std::io::Result<IpAddr>,
) -> Result<Setup, Wrong> {
    let file: File = toml_file::from_str(text)?;
    let address = *file.address.get_ref();
    if address.port() == 0 || address.ip().is_unspecified() || address.ip().is_multicast() {
        return Err((
            file.address.span().start,
            format!("{address} is no address and port that peers can connect to"),
        ));
    }
    let ports = match &file.ports {
        None => PORTS,
        Some(ports) => range(ports.get_ref()).ok_or_else(|| {
            let what = format!("{}: not FIRST-LAST, from 1 to 65535", ports.get_ref());
            (ports.span().start, what)
        })?,
    };
    let ring = file.ring.as_ref().map_or(RING, |ring| *ring.get_ref());
    if let Some(place) = file.ring.as_ref().filter(|_| !(1..=32_767).contains(&ring)) {
        return Err((
            place.span().start,
            format!("{ring}: a ring has 1 to 32767 frames"),
        ));
    }
    if file.member.len() > MEMBERS_MAX {
        return Err((
            file.member.last().map_or(0, |member| member.span().start),
            format!(
                "{} members; at most {MEMBERS_MAX} are possible",
                file.member.len()
            ),
        ));
    }
    let mut members: Vec<MemberSetup> = Vec::new();
    for member in &file.member {
        let MemberTable {
            address,
            interface,
            local,
        } = member.get_ref();
        let place = address.span().start;
        let address = *address.get_ref();
        if members.iter().any(|other| other.address == address) {
            return Err((place, format!("{address} is a member already")));
        }
        if address.port() == 0 {
            return Err((place, format!("{address}: a member needs a port")));
        }
        let (place, local) = match local {
            Some(local) => (local.span().start, *local.get_ref()),
            None => {
                let local = local_address(address).map_err(|error| {
                    (
                        place,
                        format!(
                            "no way to {address}: {error} (see: ip route get {})",
                            address.ip()
                        ),
                    )
                })?;
                (place, local)
            }
        };
        if local.is_ipv4() != address.is_ipv4() {
            return Err((
                place,
                format!("{local} and {address} are not of one family"),
            ));
        }
        members.push(MemberSetup {
            address,
            interface: interface.get_ref().clone(),
            local,
        });
    }
    let health = health(file.health.as_ref().unwrap_or(&HealthTable::default()))?;
    Ok(Setup {
        address,
        interface: file.interface.get_ref().clone(),
        module: ModuleChoice::of(&file, &members)?,
        ports,
        kernel_ends: file.kernel_ends,
        ring,
        members,
        health,
    })
}

/// Returns how members are checked. Checks are on by default: a member that dies silently
/// would hold up its connections until their ends time out.
fn health(table: &HealthTable) -> Result<Option<Health>, Wrong> {
    let interval = match &table.interval {
        None => Duration::from_secs(1),
        Some(text) => units::duration(text.get_ref()).map_err(|_| {
            let what = format!("{}: not a time such as 500ms or 2s", text.get_ref());
            (text.span().start, what)
        })?,
    };
    let failures = table.failures.as_ref().map_or(3, |it| *it.get_ref());
    match &table.failures {
        Some(place) if failures == 0 => Err((
            place.span().start,
            "a member that never failed is not dead: at least 1".to_owned(),
        )),
        _ if interval.is_zero() => Ok(None),
        _ => Ok(Some(Health { interval, failures })),
    }
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (0 < first && first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"address = "10.77.0.99:6379"
interface = "tw-in"
module = "hash"
lost = "resend"
key = [4, 12]
ports = "62000-62999"
kernel-ends = true
ring = 100

[[member]]
address = "10.80.0.2:6379"
interface = "tw-a"

[[member]]
address = "[fd80::2]:6379"
interface = "tw-b"
local = "fd80::1"

[health]
interval = "500ms"
failures = 2
"#;

    fn parsed(text: &str) -> Result<Setup, Wrong> {
        parse(text, |_| Ok(IpAddr::from([10, 80, 0, 1])))
    }

    #[test]
    fn everything_that_may_be_said_is_understood() {
        let setup = parsed(WHOLE).unwrap();
        assert_eq!(setup.address, "10.77.0.99:6379".parse().unwrap());
        assert_eq!(setup.interface, "tw-in");
        assert_eq!(setup.module.to_string(), "hash");
        assert_eq!(setup.module, ModuleChoice::Hash(4..12, Lost::Resend));
        assert_eq!(setup.ports, 62_000..=62_999);
        assert!(setup.kernel_ends);
        assert_eq!(setup.ring, 100);
        assert_eq!(setup.members[0].local, IpAddr::from([10, 80, 0, 1]));
        assert_eq!(setup.members[1].interface, "tw-b");
        let health = Health {
            interval: Duration::from_millis(500),
            failures: 2,
        };
        assert_eq!(setup.health, Some(health));
        let least = parsed("address = '10.0.0.9:80'\ninterface = 'eth0'").unwrap();
        assert_eq!(least.module.to_string(), "round-robin");
        assert_eq!((least.ring, least.ports), (384, PORTS));
        assert!(!least.kernel_ends && least.members.is_empty());
        let usual = Health {
            interval: Duration::from_secs(1),
            failures: 3,
        };
        assert_eq!(least.health, Some(usual));
        let unchecked = "address = '10.0.0.9:80'\ninterface = 'eth0'\n[health]\ninterval = '0s'";
        assert_eq!(parsed(unchecked).unwrap().health, None);
    }

    #[test]
    fn errors_name_their_line_and_cause() {
        let with = |from: &str, to: &str| {
            let text = WHOLE.replacen(from, to, 1);
            assert_ne!(text, WHOLE);
            let (place, what) = parsed(&text).unwrap_err();
            (text[..place].matches('\n').count() + 1, what)
        };
        for (from, to, line, part) in [
            ("\"10.77.0.99:6379\"", "\"10.77.0.99\"", 1, "socket address"),
            ("10.77.0.99:6379", "0.0.0.0:6379", 1, "peers can connect"),
            (
                "interface = \"tw-in\"",
                "interfase = \"tw-in\"",
                2,
                "interfase",
            ),
            ("\"hash\"", "\"hashes\"", 3, "hashes"),
            ("\"resend\"", "\"forget\"", 4, "forget"),
            ("[4, 12]", "[12, 4]", 5, "FIRST, END"),
            ("key = [4, 12]", "", 3, "hash needs key"),
            ("\"hash\"", "\"speed\"", 5, "leave it out"),
            ("\"hash\"", "\"key-value\"", 4, "always reset"),
            ("62000-62999", "62999-62000", 6, "FIRST-LAST"),
            ("true", "maybe", 7, ""),
            ("100", "0", 8, "1 to 32767"),
            ("10.80.0.2:6379", "10.80.0.2:0", 11, "needs a port"),
            ("[fd80::2]:6379", "10.80.0.2:6379", 15, "already"),
            ("\"fd80::1\"", "\"10.80.0.1\"", 17, "one family"),
            ("500ms", "soon", 20, "not a time"),
            ("failures = 2", "failures = 0", 21, "at least 1"),
        ] {
            let (at, what) = with(from, to);
            assert!(at == line && what.contains(part), "{to}: line {at}: {what}");
        }
    }

    #[test]
    fn a_new_file_is_compared_whole() {
        let before = parsed(WHOLE).unwrap();
        for (from, to, what) in [
            ("0.99:6379", "0.98:6379", "address"),
            ("tw-in", "tw-on", "interface"),
            ("[4, 12]", "[4, 13]", "module with lost and key"),
            ("resend", "reset", "module with lost and key"),
            ("62000", "62001", "ports"),
            ("true", "false", "kernel-ends"),
            ("100", "101", "ring"),
            ("failures = 2", "failures = 3", "health"),
        ] {
            let after = parsed(&WHOLE.replacen(from, to, 1)).unwrap();
            assert_eq!(before.changed(&after), [what]);
        }
        let after = parsed(&WHOLE.replacen("10.80.0.2", "10.80.0.3", 1)).unwrap();
        assert!(before.changed(&after).is_empty());
    }

    #[test]
    fn a_module_gets_what_it_is_made_with() {
        let of = |module: &str| {
            let start = WHOLE.replace(
                "module = \"hash\"\nlost = \"resend\"\nkey = [4, 12]",
                module,
            );
            parsed(&start).map(|setup| setup.module)
        };
        let skip = |skip| Ok(ModuleChoice::KeyValue { skip });
        assert_eq!(of("module = 'key-value'"), skip(0));
        assert_eq!(of("module = 'key-value'\nkey = [8, 9]"), skip(8));
        let lost = ModuleChoice::Speed(Lost::ResetIfUsed);
        assert_eq!(of("module = 'speed'\nlost = 'reset-if-used'"), Ok(lost));
        let storage = ModuleChoice::BlockStorage {
            coordinator: "10.80.0.2:6379".parse().unwrap(),
            nodes: ["[fd80::2]:6379".parse().unwrap()].into(),
        };
        assert_eq!(of("module = 'block-storage'"), Ok(storage));
        let alone = parsed("address = '10.0.0.9:80'\ninterface = 'e'\nmodule = 'block-storage'");
        assert!(alone.unwrap_err().1.contains("two members"));
    }

    #[test]
    fn a_member_that_no_route_leads_to_is_named() {
        let none = |_| Err(std::io::Error::from_raw_os_error(libc::ENETUNREACH));
        let (place, what) = parse(WHOLE, none).unwrap_err();
        assert_eq!(WHOLE[..place].matches('\n').count() + 1, 11);
        assert!(what.contains("ip route get 10.80.0.2"), "{what}");
    }
}
