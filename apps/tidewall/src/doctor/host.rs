//! The host: kernel, BPF, privileges, memory, real-time throttling, conntrack.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use tidewall::snapshot::StackSnapshot;
use tidewall_device::capabilities::{
    BPF, IPC_LOCK, NET_ADMIN, NET_RAW, PERFMON, SETCAP, SYS_NICE, SYS_RESOURCE, Set,
};
use tidewall_manager::pinned::{BPFFS, is_bpffs};
use tidewall_manager::{KERNEL_MINIMUM, Program, Refused, version};

use super::{Finding, Severity, line_of, tool};

/// Frame memory of a stack with default settings, in bytes per queue.
const MEMORY_PER_QUEUE: u64 = 16 << 20;

/// Checks the host.
pub fn check(live: &[StackSnapshot]) -> Vec<Finding> {
    let release = line_of("/proc/sys/kernel/osrelease").unwrap_or_default();
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let capabilities = Set::effective();
    vec![
        kernel(&release),
        btf(std::path::Path::new("/sys/kernel/btf/vmlinux").exists()),
        jit(compiler_switch().as_deref()),
        missing_capabilities(capabilities),
        driver_program(),
        bpffs(is_bpffs(Path::new(BPFFS))),
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

fn kernel(release: &str) -> Finding {
    const CHECK: &str = "kernel";
    const MEND: &str = "apt-get install linux-image-amd64 && reboot";
    let (major, minor) = KERNEL_MINIMUM;
    match version(release) {
        Some(found) if found >= KERNEL_MINIMUM => Finding::ok(
            CHECK,
            format!("{release} ({major}.{minor} or later is wanted)"),
        ),
        Some(_) => Finding::warning(
            CHECK,
            format!(
                "{release} is older than {major}.{minor}, the oldest that Tidewall is tested on"
            ),
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
    Finding::ok(
        CHECK,
        "the kernel has no type information (CONFIG_DEBUG_INFO_BTF); Tidewall needs none, BPF tools show less",
    )
}

/// Reads net.core.bpf_jit_enable, which only the first network namespace has.
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

fn missing_capabilities(capabilities: Set) -> Finding {
    const CHECK: &str = "capabilities";
    let missing = capabilities.missing(&[NET_ADMIN, NET_RAW, BPF, PERFMON]);
    if !missing.is_empty() {
        return Finding::problem(
            CHECK,
            format!(
                "missing {}: a stack cannot take an interface over",
                missing.join(", ")
            ),
            format!("sudo tidewall doctor\n{SETCAP} \"$(command -v tidewall)\""),
        );
    }
    if !capabilities.has(SYS_NICE) {
        return Finding::warning(
            CHECK,
            "all but CAP_SYS_NICE, which bsd, early-demux, softirq and soft-lrp need",
            "sudo tidewall doctor",
        );
    }
    Finding::ok(CHECK, "all that a stack needs")
}

/// Reports whether the kernel accepts the driver program, without attaching it.
fn driver_program() -> Finding {
    let start = Instant::now();
    loaded(Program::load().map(|_| start.elapsed()))
}

fn loaded(result: io::Result<Duration>) -> Finding {
    const CHECK: &str = "driver program";
    let error = match result {
        Ok(time) => {
            return Finding::ok(
                CHECK,
                format!(
                    "the kernel takes it (loaded in {:.2} s)",
                    time.as_secs_f64()
                ),
            );
        }
        Err(error) => error,
    };
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(Refused { cause, log, remedy }) => {
            // The error itself; starting a service shows what led to it.
            let last = log.last().map(|line| format!(": {line}"));
            let text = format!("{cause}{}", last.unwrap_or_default());
            Finding::problem(CHECK, text, remedy)
        }
        None => Finding::new(CHECK, Severity::Problem, error.to_string()),
    }
}

/// Returns the soft limit of locked memory; `None` is unlimited.
fn memlock(limits: &str) -> Option<Option<u64>> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

/// Reports whether bpffs is mounted and writable.
fn bpffs(mounted: bool) -> Finding {
    const CHECK: &str = "bpffs";
    match mounted {
        true => Finding::ok(CHECK, format!("mounted at {BPFFS}")),
        false => Finding::warning(
            CHECK,
            format!(
                "not mounted at {BPFFS}, or read-only: tidewalld needs it; `tidewall run` uses one of its \
                 own, so if it is killed its program loses Tidewall's sockets (`ip netns exec` hides \
                 what is mounted there)"
            ),
            format!("mount -t bpf -o mode=0700 bpf {BPFFS}"),
        ),
    }
}

fn locked_memory(limits: &str, capabilities: Set) -> Finding {
    const CHECK: &str = "locked memory";
    let exempt = capabilities.has(IPC_LOCK) || capabilities.has(SYS_RESOURCE);
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
        .filter(|stack| stack.architecture != "tidewall")
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
    fn kernels_are_distinguished_by_version() {
        assert_eq!(kernel("6.18.44-fc").severity, Severity::Ok);
        assert_eq!(kernel("6.1.0-50-amd64").severity, Severity::Ok);
        assert_eq!(kernel("5.15.0").severity, Severity::Warning);
        assert_eq!(kernel("unheard of").severity, Severity::Warning);
    }

    #[test]
    fn missing_capabilities_are_named() {
        let all = [NET_ADMIN, NET_RAW, BPF, PERFMON, SYS_NICE];
        assert_eq!(missing_capabilities(all.into()).severity, Severity::Ok);
        let finding = missing_capabilities([NET_ADMIN, BPF, PERFMON].into());
        assert_eq!(finding.severity, Severity::Problem);
        assert!(
            finding.text.starts_with("missing CAP_NET_RAW:"),
            "{}",
            finding.text
        );
        let finding = missing_capabilities([NET_ADMIN, NET_RAW, BPF, PERFMON].into());
        assert_eq!(finding.severity, Severity::Warning);
    }

    #[test]
    fn a_refused_program_is_a_problem_with_its_cause_and_remedy() {
        let finding = loaded(Ok(Duration::from_millis(120)));
        assert_eq!(finding.severity, Severity::Ok);
        assert!(
            finding.text.ends_with("(loaded in 0.12 s)"),
            "{}",
            finding.text
        );
        let refused = Refused {
            cause: "the verifier refused it".to_owned(),
            log: ["5: (61) r2 = r3", "R3 unbounded memory access"]
                .map(str::to_owned)
                .into(),
            remedy: "report it".to_owned(),
        };
        let finding = loaded(Err(io::Error::new(io::ErrorKind::Unsupported, refused)));
        assert_eq!(finding.severity, Severity::Problem);
        assert_eq!(
            finding.text,
            "the verifier refused it: R3 unbounded memory access"
        );
        assert_eq!(finding.mend.as_deref(), Some("report it"));
        let finding = loaded(Err(io::ErrorKind::OutOfMemory.into()));
        assert_eq!((finding.severity, finding.mend), (Severity::Problem, None));
    }

    #[test]
    fn locked_memory_is_compared_with_what_a_queue_needs() {
        let none = Set::default();
        let limits = |value: &str| {
            format!("Max locked memory         {value}              {value}              bytes\n")
        };
        assert_eq!(
            locked_memory(&limits("unlimited"), none).severity,
            Severity::Ok
        );
        assert_eq!(
            locked_memory(&limits("8388608"), none).severity,
            Severity::Problem
        );
        assert_eq!(
            locked_memory(&limits("8388608"), [IPC_LOCK].into()).severity,
            Severity::Ok
        );
        assert_eq!(
            locked_memory(&limits("67108864"), none).severity,
            Severity::Ok
        );
        assert_eq!(locked_memory("", none).severity, Severity::Warning);
    }

    #[test]
    fn the_compiler_must_be_on() {
        assert_eq!(
            jit(Some("0")).mend.as_deref(),
            Some("sysctl -w net.core.bpf_jit_enable=1")
        );
        assert_eq!(jit(Some("1")).severity, Severity::Ok);
        assert_eq!(btf(false).severity, Severity::Ok);
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
