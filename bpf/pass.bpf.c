// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Passes every frame. BPF_PROG_TEST_RUN with one of our frames gives it to the kernel
 * as if the interface had received it (crates/manager/src/input.rs). Attached to
 * nothing.
 */
#include <linux/bpf.h>

__attribute__((section("xdp"), used)) int pass(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

char license_text[] __attribute__((section("license"), used)) = "Dual MIT/GPL";
