// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Passes every frame: run on a frame of ours by BPF_PROG_TEST_RUN it gives that
 * to the kernel as if the interface had received it
 * (crates/manager/src/input.rs). Attached to nothing.
 */
#include <linux/bpf.h>

__attribute__((section("xdp"), used)) int pass(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

char license_text[] __attribute__((section("license"), used)) = "Dual MIT/GPL";
