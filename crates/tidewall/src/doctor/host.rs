//! The host: kernel, BPF, privileges, memory, real-time throttling, conntrack.

use tidewall_socket::snapshot::StackSnapshot;

use super::{Finding, line_of, tool};

/// Frame memory of a stack with default settings, bytes a queue.
const MEMORY_PER_QUEUE: u64 = 16 << 20;

/// Everything about the host.
pub fn check(live: &[StackSnapshot]) -> Vec<Finding> {
    let release = line_of("/proc/sys/kernel/osrelease").unwrap_or_default();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let capabilities = effective(&status).unwrap_or(0);
    vec![
        kernel(&release),
        btf(std::path::Path::new("/sys/kernel/btf/vmlinux").exists()),
        jit(compiler_switch().as_deref()),
        missing_capabilities(capabilities),
        locked_memory(&limits, capabilities),
        throttling(
            line_of("/proc/sys/kernel/sched_rt_runtime_us").as_deref(),
            live,
        ),
        conntrack(
            line_of("/proc/sys/net/netfilter/nf_conntrack_count").as_deref(),
            live,
        ),
    ]
}

/// Major and minor number of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn kernel(release: &str) -> Finding {
    const CHECK: &str = "kernel";
    const MEND: &str = "apt-get install -t bookworm-backports linux-image-amd64 && reboot";
    match version(release) {
        Some(found) if found >= (6, 8) => {
            Finding::ok(CHECK, format!("{release} (6.8 or later is wanted)"))
        }
        Some(found) if found >= (5, 11) => Finding::warning(
            CHECK,
            format!(
                "{release} is older than 6.8: no transmit checksum metadata, and Tidewall is not tested on it"
            ),
            MEND,
        ),
        Some(_) => Finding::problem(
            CHECK,
            format!("{release} has no preferred busy polling (5.11); 6.8 or later is wanted"),
            MEND,
        ),
        None => Finding::unknown(CHECK, format!("the release {release:?} names no version")),
    }
}

fn btf(present: bool) -> Finding {
    const CHECK: &str = "BTF";
    if present {
        return Finding::ok(CHECK, "the kernel describes its types");
    }
    Finding::warning(
        CHECK,
        "the kernel has no type information (CONFIG_DEBUG_INFO_BTF): maps cannot be described and BPF tools show less",
        "apt-get install linux-image-amd64 && reboot",
    )
}

/// net.core.bpf_jit_enable, which only the first network namespace has.
fn compiler_switch() -> Option<String> {
    const PATH: &str = "/proc/sys/net/core/bpf_jit_enable";
    line_of(PATH).or_else(|| {
        let value = tool("nsenter", &["-t", "1", "-n", "cat", PATH]).ok()?;
        Some(value.trim().to_owned())
    })
}

fn jit(value: Option<&str>) -> Finding {
    const CHECK: &str = "BPF compiler";
    match value {
        Some("0") => Finding::problem(
            CHECK,
            "the driver program would be interpreted, several times slower",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        Some(_) => Finding::ok(CHECK, "driver programs are compiled"),
        None => Finding::unknown(
            CHECK,
            "net.core.bpf_jit_enable cannot be seen from here; look in the host's own network namespace",
        ),
    }
}

/// CapEff of /proc/self/status.
fn effective(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// include/uapi/linux/capability.h.
const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;
const IPC_LOCK: u32 = 14;
const SYS_ADMIN: u32 = 21;
const SYS_NICE: u32 = 23;
const SYS_RESOURCE: u32 = 24;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

fn has(capabilities: u64, number: u32) -> bool {
    capabilities & (1 << number) != 0
}

fn missing_capabilities(capabilities: u64) -> Finding {
    const CHECK: &str = "capabilities";
    let mut missing = Vec::new();
    for (number, name) in [(NET_ADMIN, "CAP_NET_ADMIN"), (NET_RAW, "CAP_NET_RAW")] {
        if !has(capabilities, number) {
            missing.push(name);
        }
    }
    // CAP_SYS_ADMIN includes these two.
    for (number, name) in [(BPF, "CAP_BPF"), (PERFMON, "CAP_PERFMON")] {
        if !has(capabilities, number) && !has(capabilities, SYS_ADMIN) {
            missing.push(name);
        }
    }
    if !missing.is_empty() {
        return Finding::problem(
            CHECK,
            format!(
                "missing {}: a stack cannot take an interface over",
                missing.join(", ")
            ),
            "sudo tidewall doctor\nsetcap cap_net_admin,cap_net_raw,cap_bpf,cap_perfmon,cap_ipc_lock+ep \
             \"$(command -v tidewall)\"",
        );
    }
    if !has(capabilities, SYS_NICE) {
        return Finding::warning(
            CHECK,
            "all but CAP_SYS_NICE, which bsd, early-demux, softirq and soft-lrp need",
            "sudo tidewall doctor",
        );
    }
    Finding::ok(CHECK, "all that a stack needs")
}

/// Soft limit of locked memory; `None` is unlimited.
fn memlock(limits: &str) -> Option<Option<u64>> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

fn locked_memory(limits: &str, capabilities: u64) -> Finding {
    const CHECK: &str = "locked memory";
    let exempt = has(capabilities, IPC_LOCK) || has(capabilities, SYS_RESOURCE);
    let wanted = MEMORY_PER_QUEUE + (1 << 20);
    match memlock(limits) {
        Some(None) => Finding::ok(CHECK, "unlimited"),
        Some(Some(limit)) if limit >= wanted => Finding::ok(CHECK, format!("{} MiB", limit >> 20)),
        Some(Some(limit)) if exempt => Finding::ok(
            CHECK,
            format!("{} MiB, but this process is exempt", limit >> 20),
        ),
        Some(Some(limit)) => Finding::problem(
            CHECK,
            format!(
                "{} KiB may be locked, a stack needs {} MiB a queue: opening it would end in ENOBUFS",
                limit >> 10,
                MEMORY_PER_QUEUE >> 20
            ),
            "ulimit -l unlimited\nin the service's unit: LimitMEMLOCK=infinity",
        ),
        None => Finding::unknown(CHECK, "the limit cannot be read from /proc/self/limits"),
    }
}

fn throttling(value: Option<&str>, live: &[StackSnapshot]) -> Finding {
    const CHECK: &str = "real-time throttling";
    let threads: Vec<&str> = live
        .iter()
        .filter(|stack| stack.architecture != "ni-lrp")
        .map(|stack| stack.architecture.as_str())
        .collect();
    match (value, threads.as_slice()) {
        (Some("-1"), _) => Finding::ok(CHECK, "off"),
        (Some(value), []) => Finding::ok(
            CHECK,
            format!(
                "{value} µs of each period; no live stack has real-time threads, so it does not matter"
            ),
        ),
        (Some(value), _) => Finding::warning(
            CHECK,
            format!(
                "real-time threads get {value} µs of each period, so {} is kinder to the application than \
                 interrupts would be; restore the value afterwards",
                threads.join(", ")
            ),
            format!(
                "sysctl -w kernel.sched_rt_runtime_us=-1\nafterwards: sysctl -w kernel.sched_rt_runtime_us={value}"
            ),
        ),
        (None, _) => Finding::ok(CHECK, "this kernel has none"),
    }
}

fn conntrack(count: Option<&str>, live: &[StackSnapshot]) -> Finding {
    const CHECK: &str = "conntrack";
    let count: u64 = count.and_then(|count| count.parse().ok()).unwrap_or(0);
    match (count, live.is_empty()) {
        (0, _) => Finding::ok(CHECK, "tracks nothing"),
        (_, true) => Finding::ok(
            CHECK,
            format!("tracks {count} flows; those of Tidewall's ports will not be among them"),
        ),
        (_, false) => Finding::warning(
            CHECK,
            format!(
                "tracks {count} flows, none of them Tidewall's: rules on `ct state` do not apply to owned ports"
            ),
            "tidewall stat",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    #[test]
    fn kernels_are_told_apart_by_version() {
        assert_eq!(kernel("6.18.44-fc").severity, Severity::Ok);
        assert_eq!(kernel("6.8.0").severity, Severity::Ok);
        assert_eq!(kernel("6.1.0-18-amd64").severity, Severity::Warning);
        assert_eq!(kernel("5.10.0").severity, Severity::Problem);
        assert_eq!(kernel("unheard of").severity, Severity::Warning);
    }

    #[test]
    fn missing_capabilities_are_named() {
        assert_eq!(
            effective("Name:\tx\nCapEff:\t000001fffeffffff\n"),
            Some(0x1ff_feff_ffff)
        );
        assert_eq!(missing_capabilities(u64::MAX).severity, Severity::Ok);
        let finding = missing_capabilities(1 << NET_ADMIN | 1 << SYS_ADMIN);
        assert_eq!(finding.severity, Severity::Problem);
        assert!(
            finding.text.starts_with("missing CAP_NET_RAW:"),
            "{}",
            finding.text
        );
        let finding = missing_capabilities(!(1 << SYS_NICE));
        assert_eq!(finding.severity, Severity::Warning);
    }

    #[test]
    fn locked_memory_is_compared_with_what_a_queue_needs() {
        let limits = |value: &str| {
            format!("Max locked memory         {value}              {value}              bytes\n")
        };
        assert_eq!(
            locked_memory(&limits("unlimited"), 0).severity,
            Severity::Ok
        );
        assert_eq!(
            locked_memory(&limits("8388608"), 0).severity,
            Severity::Problem
        );
        assert_eq!(
            locked_memory(&limits("8388608"), 1 << IPC_LOCK).severity,
            Severity::Ok
        );
        assert_eq!(locked_memory(&limits("67108864"), 0).severity, Severity::Ok);
        assert_eq!(locked_memory("", 0).severity, Severity::Warning);
    }

    #[test]
    fn the_compiler_must_be_on() {
        assert_eq!(
            jit(Some("0")).mend.as_deref(),
            Some("sysctl -w net.core.bpf_jit_enable=1")
        );
        assert_eq!(jit(Some("1")).severity, Severity::Ok);
        assert_eq!(btf(false).severity, Severity::Warning);
    }

    #[test]
    fn throttling_and_conntrack_matter_only_beside_a_stack() {
        assert_eq!(throttling(Some("950000"), &[]).severity, Severity::Ok);
        assert_eq!(conntrack(Some("12"), &[]).severity, Severity::Ok);
        let stack = super::super::firewall::tests::stack(1, "bsd", "0.0.0.0:7");
        let finding = throttling(Some("950000"), std::slice::from_ref(&stack));
        assert!(
            finding
                .mend
                .is_some_and(|mend| mend.ends_with("sched_rt_runtime_us=950000"))
        );
        assert_eq!(conntrack(Some("12"), &[stack]).severity, Severity::Warning);
    }
}
