//! Starting without the kernel's requirements: each refusal names its cause and its
//! remedy, and leaves the interface as it was. Needs root; skipped without.

mod common;

use common::bed::Bed;
use common::{PROGRAM, text, tidewall};

/// Missing capabilities, as named by setpriv(1), and the resulting message. CAP_SYS_ADMIN
/// would stand in for two of them.
const REFUSALS: [(&str, &str); 5] = [
    ("-bpf,-sys_admin", "this process lacks CAP_BPF"),
    ("-perfmon,-sys_admin", "this process lacks CAP_PERFMON"),
    ("-net_admin,-sys_admin", "this process lacks CAP_NET_ADMIN"),
    ("-net_raw", "this process lacks CAP_NET_RAW: "),
    ("-ipc_lock,-sys_resource", "ulimit -l unlimited"),
];

/// Runs a script that always ends, in the server's namespace of a bed.
fn script(bed: &Bed, script: &str) -> (Option<i32>, String) {
    let output = Bed::other(&bed.server, "timeout", &["20", "sh", "-c", script])
        .output()
        .unwrap();
    let all = [text(&output.stdout), text(&output.stderr)].concat();
    (output.status.code(), all)
}

#[test]
fn each_missing_capability_is_named_and_nothing_is_left() {
    let name = "each_missing_capability_is_named_and_nothing_is_left";
    let Some(bed) = Bed::or_skip(name, "p") else {
        return;
    };
    if !tidewall_skip::has_programs(name, &["setpriv"]) {
        return;
    }
    let interface = &bed.interface;
    let serve = format!("serve echo --interface {interface}");
    let run = format!("run --interface {interface} -- true");
    // The run asks first for the privileges of its applications' sockets.
    let of_run = REFUSALS.iter().take(3).map(|of| (&run, of));
    let all = REFUSALS.iter().map(|of| (&serve, of)).chain(of_run);
    for (command, &(without, said)) in all {
        let (code, all) = script(
            &bed,
            &format!(
                "ulimit -l 8192; mount -t bpf bpf /sys/fs/bpf 2>/dev/null; \
                 exec setpriv --bounding-set={without} --inh-caps={without} {PROGRAM} {command}"
            ),
        );
        // Memory is not a matter of arguments or privileges.
        let wanted = if said.starts_with("ulimit") { 1 } else { 2 };
        assert_eq!(code, Some(wanted), "{without}: {all}");
        assert!(all.contains(said), "{without}: {all}");
        assert!(!all.contains("Verifier"), "{without}: {all}");
        let (_, left) = script(
            &bed,
            &format!(
                "ip -details link show {interface}; cd /sys/class/net/{interface}; \
                 cat napi_defer_hard_irqs gro_flush_timeout"
            ),
        );
        assert!(!left.contains("xdp"), "{without}: {left}");
        assert!(left.ends_with("\n0\n0\n"), "{without}: {left}");
    }
}

#[test]
fn neither_the_kernel_s_btf_nor_bpffs_is_needed() {
    let name = "neither_the_kernel_s_btf_nor_bpffs_is_needed";
    let Some(bed) = Bed::or_skip(name, "q") else {
        return;
    };
    // SIGINT is a clean end of the service. In the background, timeout(1) sends the
    // signal a second time, to its group, and a second one ends a service at once.
    let (code, all) = script(
        &bed,
        &format!(
            "mount -t tmpfs tw-empty /sys/kernel || exit 77; umount /sys/fs/bpf 2>/dev/null; \
             ls /sys/kernel; timeout --foreground --preserve-status -s INT 3 {PROGRAM} serve echo --interface {}",
            bed.interface
        ),
    );
    if code == Some(77) {
        tidewall_skip::missing(name, "mounts are not allowed");
        return;
    }
    assert_eq!(code, Some(0), "{all}");
    assert!(all.starts_with("echo on "), "{all}");
}

#[test]
fn doctor_loads_the_program() {
    let output = tidewall(&["doctor", "--json"]);
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = findings.as_array().unwrap();
    let of = |check: &str| {
        findings
            .iter()
            .find(|finding| finding["check"] == check)
            .unwrap()
    };
    let program = of("driver program");
    let said = program["text"].as_str().unwrap();
    if of("capabilities")["severity"] == "problem" {
        assert_eq!(program["severity"], "problem");
        assert!(said.contains("this process lacks CAP_"), "{said}");
        assert!(program["mend"].is_string(), "{program}");
    } else {
        assert_eq!(program["severity"], "ok", "{program}");
        assert!(said.contains("loaded in "), "{said}");
    }
}
