/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Frames that are the kernel's: their class, and its token bucket.
 */
#ifndef TIDEWALL_KERNEL_H
#define TIDEWALL_KERNEL_H

#include "headers.h"

/* Lets a kernel-bound frame pass if its class has a token. */
GLOBAL int to_kernel(struct tw_queue *queue, __u32 class)
{
	if (!queue || class >= TW_CLASSES)
		return XDP_ABORTED;
	struct tw_class_bucket *bucket = &queue->classes[class];
	__u64 rate = READ_ONCE(bucket->rate);
	if (!rate) {
		bucket->passed++;
		return XDP_PASS;
	}
	__u64 now = bpf_ktime_get_ns();
	__u64 elapsed = now > bucket->updated ? now - bucket->updated : 0;
	/* 4.29 s: keeps the product below 2^63 for any rate below 2^31. */
	if (elapsed > 0xffffffffULL)
		elapsed = 0xffffffffULL;
	__u64 tokens = bucket->tokens + elapsed * rate;
	__u64 most = READ_ONCE(bucket->burst) * 1000000000ULL;
	if (tokens > most)
		tokens = most;
	bucket->updated = now;
	if (tokens < 1000000000ULL) {
		bucket->tokens = tokens;
		bucket->dropped++;
		return XDP_DROP;
	}
	bucket->tokens = tokens - 1000000000ULL;
	bucket->passed++;
	return XDP_PASS;
}

INLINE __u32 icmpv6_class(__u8 type)
{
	/* Router and neighbour solicitation and advertisement, redirect. */
	return type >= 133 && type <= 137 ? TW_CLASS_NEIGHBOUR : TW_CLASS_ICMP;
}

/* Class of an IP datagram whose transport header, if `whole` and present, is
 * at `transport`. */
GLOBAL __u32 datagram_class(struct xdp_md *ctx, __u32 protocol, __u32 transport, __u32 end, __u32 version)
{
	__u8 byte;
	if (protocol == TCP) {
		if (transport + 14 > end || bpf_xdp_load_bytes(ctx, transport + 13, &byte, 1))
			return TW_CLASS_OTHER;
		return (byte & (TCP_SYN | TCP_ACK)) == TCP_ACK ? TW_CLASS_ESTABLISHED : TW_CLASS_OTHER;
	}
	if (version == 4)
		return protocol == ICMP || protocol == IGMP ? TW_CLASS_ICMP : TW_CLASS_OTHER;
	if (protocol != ICMPV6)
		return TW_CLASS_OTHER;
	if (transport >= end || bpf_xdp_load_bytes(ctx, transport, &byte, 1))
		return TW_CLASS_ICMP;
	return icmpv6_class(byte);
}

/* Class of a frame to a group, of which nothing was checked yet. */
GLOBAL __u32 group_class(struct xdp_md *ctx, __u32 ethertype)
{
	__u8 bytes[2];
	if (ethertype == 0x0806)
		return TW_CLASS_NEIGHBOUR;
	if (ethertype == 0x0800) {
		if (bpf_xdp_load_bytes(ctx, NETWORK + 9, bytes, 1))
			return TW_CLASS_OTHER;
		return bytes[0] == ICMP || bytes[0] == IGMP ? TW_CLASS_ICMP : TW_CLASS_OTHER;
	}
	if (ethertype != 0x86dd || bpf_xdp_load_bytes(ctx, NETWORK + 6, bytes, 1))
		return TW_CLASS_OTHER;
	__u8 next = bytes[0];
	if (bpf_xdp_load_bytes(ctx, NETWORK + V6_HEADER, bytes, 2))
		return next == ICMPV6 ? TW_CLASS_ICMP : TW_CLASS_OTHER;
	if (next == ICMPV6)
		return icmpv6_class(bytes[0]);
	/* MLD comes behind a router alert (RFC 3810 section 5). */
	return next == HOP_BY_HOP && bytes[0] == ICMPV6 ? TW_CLASS_ICMP : TW_CLASS_OTHER;
}

#endif
