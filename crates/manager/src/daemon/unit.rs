//! Finds the systemd unit of a process, by its control group (cgroups(7), version 2).

use std::fs;
use std::os::fd::AsFd;
use std::str::FromStr;

use super::process::looked_up;

/// The name of a service or scope, as `systemctl` shows it: `nginx.service`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitName(String);

/// Bytes of a unit's name (`UNIT_NAME_MAX` in systemd).
const NAME_MAX: usize = 255;

impl FromStr for UnitName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let is_unit = [".service", ".scope"].iter().any(|kind| {
            let stem = name.strip_suffix(kind);
            stem.is_some_and(|stem| !stem.is_empty() && !stem.contains('/'))
        });
        match is_unit && name.len() <= NAME_MAX {
            true => Ok(UnitName(name.to_owned())),
            false => Err(format!(
                "{name} is neither a user id nor a unit's name, such as nginx.service"
            )),
        }
    }
}

impl std::fmt::Display for UnitName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The unit of the process at the other end of a Unix socket. `process`: its id, as
/// SO_PEERCRED reports it.
pub(super) fn unit_of(connection: impl AsFd, process: u32) -> Option<UnitName> {
    looked_up(connection, || {
        let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
        of_groups(&groups)
    })
}

/// Parses /proc/PID/cgroup, in which the line `0::` is version 2's. The first component
/// of the path that is not a slice is the unit: only systemd, or user 0, puts processes
/// there. The unit's own processes may have named components below it: a user's own
/// services are below `user@UID.service`.
fn of_groups(groups: &str) -> Option<UnitName> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let unit = path.split('/').find(|part| !part.ends_with(".slice"))?;
    // Prefix of a name that could be that of a kernel file.
    unit.strip_prefix('_').unwrap_or(unit).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(groups: &str) -> Option<String> {
        of_groups(groups).map(|unit| unit.to_string())
    }

    #[test]
    fn a_unit_is_what_comes_after_the_slices() {
        let service = |groups| unit(groups).is_some_and(|unit| unit == "nginx.service");
        assert!(service("0::/system.slice/nginx.service\n"));
        assert!(service("0::/nginx.service\n"));
        assert!(service("0::/a.slice/a-b.slice/nginx.service/worker\n"));
        assert!(service("1:cpu:/other.service\n0::/nginx.service\n"));
        assert!(service("0::/system.slice/_nginx.service\n"));
        assert_eq!(unit("0::/init.scope\n").unwrap(), "init.scope");
    }

    #[test]
    fn what_a_user_has_named_is_no_unit_of_the_systems() {
        let own = "0::/user.slice/user-7.slice/user@7.service/app.slice/nginx.service\n";
        assert_eq!(unit(own).unwrap(), "user@7.service");
        assert_eq!(unit("0::/sessions/nginx.service\n"), None);
        // Another cgroup namespace, no group, version 1 alone, and no such file.
        for groups in [
            "0::/../nginx.service\n",
            "0::/\n",
            "1:cpu:/nginx.service\n",
            "",
        ] {
            assert_eq!(unit(groups), None, "{groups:?}");
        }
    }

    #[test]
    fn names_are_of_services_and_scopes() {
        let good = |name: &str| name.parse::<UnitName>().is_ok();
        assert!(good("a.service") && good("user@7.service") && good("x.scope"));
        assert!(!good("") && !good(".service") && !good("nginx") && !good("a/b.service"));
        assert!(!good("system.slice") && !good(&"a".repeat(256)));
    }
}
