/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A limit of SYNs per TCP port, in front of the kernel's own stack. An operator of
 * Linux puts such a program into the driver against a SYN flood. Tidewall does not use
 * it; the laboratory compares with it (`linux-xdp`).
 *
 * Extension headers of IPv6 are not walked: a SYN behind one is not limited.
 */
#include "helpers.h"

#define LENGTH 10000000ULL /* of a window, in ns */

enum { TCP = 6, SYN = 0x02, ACK = 0x10 };

/* SYNs to one port in the current window. */
struct window {
	__u64 number;
	__u64 syns;
};

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, 65536);
	TYPE(key, __u32);
	TYPE(value, struct window);
} windows SEC(".maps");

/* SYNs that pass in a window; set when the program is loaded. */
const volatile __u32 limit = 1;

SEC("xdp")
int syn_limit(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (data + 34 > end)
		return XDP_PASS;
	__u16 type = *(__u16 *)(data + 12);
	__u8 *segment;
	if (type == htons(0x0800) && data[23] == TCP && !(*(__u16 *)(data + 20) & htons(0x1fff)))
		segment = data + 14 + (data[14] & 15) * 4;
	else if (type == htons(0x86dd) && data[20] == TCP)
		segment = data + 54;
	else
		return XDP_PASS;
	if (segment + 14 > end || (segment[13] & (SYN | ACK)) != SYN)
		return XDP_PASS;
	__u32 port = *(__u16 *)(segment + 2);
	struct window *window = bpf_map_lookup_elem(&windows, &port);
	if (!window)
		return XDP_PASS;
	__u64 now = bpf_ktime_get_ns() / LENGTH;
	if (window->number != now) {
		window->number = now;
		window->syns = 0;
	}
	return ++window->syns > limit ? XDP_DROP : XDP_PASS;
}
