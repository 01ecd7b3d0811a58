/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A veth pair that steers, as a card does by its n-tuple rules. On the sending end this
 * program picks the queue, which is the receive queue of the other end
 * (crates/manager/src/adaptor.rs). For tests and the laboratory.
 *
 * The card's rule table is the sending device's group (`ip link set dev IF group N`):
 * queue << 24 | protocol << 16 | destination port, 0 for none. Frames without a rule
 * use queue 0.
 */
#include "helpers.h"

static long (*const bpf_probe_read_kernel)(void *to, __u32 length, const void *from) =
	(void *)BPF_FUNC_probe_read_kernel;

/* Fields of kernel structures that are read; loaders insert the running kernel's
 * offsets (BTF). */
#define RELOCATED __attribute__((preserve_access_index))
struct net_device {
	int group;
} RELOCATED;
struct sk_buff {
	struct net_device *dev;
} RELOCATED;

static __u32 rule_of(struct __sk_buff *ctx)
{
	struct net_device *device = 0;
	int group = 0;
	/* The kernel runs traffic control programs on the buffer itself. */
	bpf_probe_read_kernel(&device, sizeof(device), &((struct sk_buff *)ctx)->dev);
	bpf_probe_read_kernel(&group, sizeof(group), &device->group);
	return group;
}

static int is_of(struct __sk_buff *ctx, __u32 rule)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *transport;
	__u8 protocol = rule >> 16;
	if (data + 54 > end)
		/* The shortest datagram's frame is shorter than IPv6's headers. */
		return data + 42 <= end && *(__u16 *)(data + 12) == htons(0x0800) && data[23] == protocol &&
		       *(__u16 *)(data + 36) == htons(rule);
	if (*(__u16 *)(data + 12) == htons(0x0800)) {
		if (data[23] != protocol)
			return 0;
		transport = data + 34;
	} else if (*(__u16 *)(data + 12) == htons(0x86dd)) {
		if (data[20] != protocol)
			return 0;
		transport = data + 54;
	} else {
		return 0;
	}
	return transport + 4 <= end && *(__u16 *)(transport + 2) == htons(rule);
}

SEC("tc")
int adaptor(struct __sk_buff *ctx)
{
	__u32 rule = rule_of(ctx);
	__u32 queue = rule && is_of(ctx, rule) ? rule >> 24 : 0;
	/* As a recorded receive queue: its number plus one. */
	ctx->queue_mapping = queue + 1;
	return TC_ACT_OK;
}

char license_text[] SEC("license") = "Dual MIT/GPL";
