/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Frames for the kernel: their class, its token bucket, and the shares of senders that
 * find it empty.
 */
#ifndef TIDEWALL_KERNEL_H
#define TIDEWALL_KERNEL_H

#include "headers.h"
#include "siphash.h"

#define TOKEN 1000000000ULL
#define EPOCH_SHIFT 30 /* of ns */

/* Combines bytes into a number, the first byte lowest. */
INLINE __u64 gather(const __u8 *bytes, int count)
{
	__u64 number = 0;
#pragma unroll
	for (int i = 0; i < count; i++)
		number |= (__u64)bytes[i] << 8 * i;
	return number;
}

/* Takes the token of a slot, if there is one: the generic cell rate algorithm. */
INLINE int take_share(__u64 *place, const struct tw_class_bucket *bucket, __u64 now)
{
	__u64 due = *place > now ? *place : now;
	if (due - now > READ_ONCE(bucket->share_tolerance))
		return 0;
	*place = due + READ_ONCE(bucket->share_interval);
	return 1;
}

/* True if the frame's sender, or its purpose, has a share left. A sender is identified
 * by its /24 or /48, which it cannot change as easily as an address. On this link it is
 * identified by its link address. A purpose is one of these: a port, a type of message,
 * a protocol, or the flow of an established connection. It may also be the destination
 * link address, so that answers to us do not share with frames to all. */
GLOBAL int has_share(struct xdp_md *ctx, __u32 class, __u64 place, __u64 now)
{
	__u32 zero = 0, index = ctx->rx_queue_index;
	struct tw_device *state = bpf_map_lookup_elem(&device, &zero);
	const struct tw_queue *counts = bpf_map_lookup_elem(&queues, &index);
	const __u8 *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	if (!state || !counts || index >= TW_QUEUES || class >= TW_CLASSES || data + NETWORK > data_end)
		return 0;
	__u64 queue = index, row = class;
	BOUND(queue, TW_QUEUES - 1);
	BOUND(row, 15);
	const struct tw_class_bucket *bucket = &counts->classes[row];
	if (!READ_ONCE(bucket->share_interval))
		return 0;
	__u64 domain = now >> EPOCH_SHIFT << 8 | class;
	__u64 sender, purpose, host = 0;
	if (!place || class == TW_CLASS_NEIGHBOUR) {
		purpose = gather(data, 6);
		sender = gather(data + 6, 6) << 1 | (data[0] & 1);
	} else {
		if (!(place & PLACE_V6)) {
			if (data + NETWORK + V4_HEADER > data_end)
				return 0;
			sender = gather(data + NETWORK + 12, 3);
			host = gather(data + NETWORK + 15, 1);
		} else {
			if (data + NETWORK + V6_HEADER > data_end)
				return 0;
			sender = gather(data + NETWORK + 8, 6);
			host = *(const __u64 *)(data + NETWORK + 16);
		}
		purpose = PLACE_PROTOCOL(place);
		const __u8 *header = data + (place & FRAME_MASK);
		CHECKED_ALONE(header);
		if (class != TW_CLASS_OTHER && header + 4 <= data_end)
			purpose = class == TW_CLASS_ICMP ? header[0] :
				  class == TW_CLASS_ESTABLISHED ? gather(header, 4) : gather(header + 2, 2);
	}
	__u64 hash = hash_words(domain, sender, 0);
	__u64 number = hash;
	BOUND(number, TW_KERNEL_SHARES - 1);
	if (take_share(&state->kernel_shares[queue][0][number], bucket, now))
		return 1;
	/* Resets go only to their own sender: a shared slot would reveal what others
	 * sent (CVE-2016-5696). */
	if (class == TW_CLASS_NO_CONNECTION)
		return 0;
	hash = class == TW_CLASS_ESTABLISHED ? hash_words(hash, host, purpose) : hash_words(domain, purpose, 0);
	BOUND(hash, TW_KERNEL_SHARES - 1);
	return take_share(&state->kernel_shares[queue][1][hash], bucket, now);
}

/* True if the kernel has a socket for a datagram. For a segment of an established
 * connection, a listener does not count. */
GLOBAL int has_socket(struct xdp_md *ctx, __u32 class, __u64 place)
{
	const __u8 *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	const __u16 *ports = (const __u16 *)(data + (place & FRAME_MASK));
	CHECKED_ALONE(ports);
	if ((const __u8 *)(ports + 2) > data_end)
		return 0;
	struct bpf_sock_tuple tuple = {};
	__u32 size = sizeof(tuple.ipv4);
	if (!(place & PLACE_V6)) {
		if (data + NETWORK + V4_HEADER > data_end)
			return 0;
		tuple.ipv4.saddr = *(const __u32 *)(data + NETWORK + 12);
		tuple.ipv4.daddr = *(const __u32 *)(data + NETWORK + 16);
		tuple.ipv4.sport = ports[0];
		tuple.ipv4.dport = ports[1];
	} else {
		if (data + NETWORK + V6_HEADER > data_end)
			return 0;
		__builtin_memcpy(tuple.ipv6.saddr, data + NETWORK + 8, 32);
		tuple.ipv6.sport = ports[0];
		tuple.ipv6.dport = ports[1];
		size = sizeof(tuple.ipv6);
	}
	/* Two separate paths: an instruction may read only one type of socket. */
	if (class == TW_CLASS_UDP) {
		struct bpf_sock *socket = bpf_sk_lookup_udp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
		if (socket)
			bpf_sk_release(socket);
		return !!socket;
	}
	struct bpf_sock *socket = bpf_skc_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return 0;
	__u32 state = socket->state;
	bpf_sk_release(socket);
	return class != TW_CLASS_ESTABLISHED || state != BPF_TCP_LISTEN;
}

/* Takes a token of a bucket, if there is one. Not verified separately: then there is
 * nothing to test, and two calls are few to follow. */
static NOINLINE int has_token(struct tw_class_bucket *bucket, __u32 class, __u32 queue, __u64 now)
{
	__u64 rate = READ_ONCE(bucket->rate);
	/* If a budget's size is unknown, what one sender can count of it reveals little
	 * of what others used. */
	if (!bucket->drawn || (now ^ bucket->updated) >> EPOCH_SHIFT)
		bucket->drawn = 128 + (hash_words(now >> EPOCH_SHIFT << 8 | 0xff, class, queue) & 0xff);
	__u64 elapsed = now > bucket->updated ? now - bucket->updated : 0;
	/* 4.29 s: keeps the product below 2^63 for any rate below 2^30. */
	if (elapsed > 0xffffffffULL)
		elapsed = 0xffffffffULL;
	__u64 tokens = bucket->tokens + elapsed * ((rate * bucket->drawn + 255) >> 8);
	__u64 most = ((READ_ONCE(bucket->burst) * bucket->drawn + 255) >> 8) * TOKEN;
	if (tokens > most)
		tokens = most;
	bucket->updated = now;
	__u32 has = tokens >= TOKEN;
	bucket->tokens = has ? tokens - TOKEN : tokens;
	return !rate || has;
}

/* The TW_USE_ flags: the kernel's uses for frames that are not for this host or may
 * leave it. */
INLINE __u32 kernel_uses(void)
{
	__u32 zero = 0;
	const struct tw_device *state = bpf_map_lookup_elem(&device, &zero);
	return state ? READ_ONCE(state->control.kernel_uses) : 0;
}

/* True for a datagram or SYN that a forwarding host may translate and forward, to a container. */
INLINE int may_be_forwarded(__u32 class)
{
	return class != TW_CLASS_ESTABLISHED && kernel_uses() & TW_USE_FORWARDING;
}

/* Passes a frame of a limited class if the class has a token, or the frame a share, or
 * the kernel a socket or another use for it. */
GLOBAL int limited(struct xdp_md *ctx, struct tw_queue *queue, __u32 class, __u64 place)
{
	if (!queue || class >= TW_CLASSES)
		return XDP_ABORTED;
	struct tw_class_bucket *bucket = &queue->classes[class];
	__u64 now = bpf_ktime_get_ns();
	if (!(class == TW_CLASS_FORWARDED && kernel_uses()) && !has_token(bucket, class, ctx->rx_queue_index, now) &&
	    !has_share(ctx, class, place, now)) {
		struct tw_class_bucket *open = &queue->classes[TW_CLASS_OPEN];
		if ((class != TW_CLASS_UDP && class != TW_CLASS_SYN && class != TW_CLASS_ESTABLISHED) ||
		    !(may_be_forwarded(class) || has_socket(ctx, class, place)) ||
		    !has_token(open, TW_CLASS_OPEN, ctx->rx_queue_index, now)) {
			bucket->dropped++;
			return XDP_DROP;
		}
		bucket = open;
		class = TW_CLASS_OPEN;
	}
	bucket->passed++;
	PASSED(class);
	return XDP_PASS;
}

/* `place` is 0 for a frame of which only the Ethernet header was checked. */
INLINE int unlimited_or(struct xdp_md *ctx, struct tw_queue *queue, __u32 class, __u64 place)
{
	if (!queue || class >= TW_CLASSES)
		return XDP_ABORTED;
	struct tw_class_bucket *bucket = &queue->classes[class];
	if (READ_ONCE(bucket->rate))
		return limited(ctx, queue, class, place);
	bucket->passed++;
	PASSED(class);
	return XDP_PASS;
}

GLOBAL int to_kernel(struct xdp_md *ctx, struct tw_queue *queue, __u32 class, __u64 place)
{
	return unlimited_or(ctx, queue, class, place);
}

/* Router and neighbour solicitation and advertisement, redirect. A message from beyond
 * the link never has a hop limit of 255 (RFC 4861 sections 6.1, 7.1 and 8.1). */
INLINE __u32 icmpv6_class(const __u8 *message, __u8 hop_limit)
{
	return message[0] >= 133 && message[0] <= 137 && !message[1] && hop_limit == 255 ? TW_CLASS_NEIGHBOUR :
											   TW_CLASS_ICMP;
}

/* Class of an IP datagram that is not UDP, whose header may be truncated. */
INLINE __u32 datagram_class(struct xdp_md *ctx, __u64 place)
{
	__u32 protocol = PLACE_PROTOCOL(place), transport = PLACE_TRANSPORT(place);
	__u8 bytes[2], hop_limit;
	if (protocol == TCP) {
		if (transport + 14 > PLACE_END(place) || bpf_xdp_load_bytes(ctx, transport + 13, bytes, 1))
			return TW_CLASS_SYN;
		return bytes[0] & (TCP_ACK | TCP_RST) ? TW_CLASS_ESTABLISHED : TW_CLASS_SYN;
	}
	if (!(place & PLACE_V6))
		return protocol == ICMP || protocol == IGMP ? TW_CLASS_ICMP : TW_CLASS_OTHER;
	if (protocol != ICMPV6)
		return TW_CLASS_OTHER;
	if (transport + 2 > PLACE_END(place) || bpf_xdp_load_bytes(ctx, transport, bytes, 2) ||
	    bpf_xdp_load_bytes(ctx, NETWORK + 7, &hop_limit, 1))
		return TW_CLASS_ICMP;
	return icmpv6_class(bytes, hop_limit);
}

GLOBAL int datagram_to_kernel(struct xdp_md *ctx, struct tw_queue *queue, __u64 place)
{
	/* Tested first, since it is the common one. */
	if (PLACE_PROTOCOL(place) == UDP)
		return unlimited_or(ctx, queue, TW_CLASS_UDP, place);
	return unlimited_or(ctx, queue, datagram_class(ctx, place), place);
}

/* Class of a frame to a group; nothing else was checked yet. */
GLOBAL __u32 group_class(struct xdp_md *ctx, __u32 ethertype)
{
	__u8 network[2], message[2];
	if (ethertype == 0x0806)
		return TW_CLASS_ARP;
	if (ethertype == 0x0800) {
		if (bpf_xdp_load_bytes(ctx, NETWORK + 9, network, 1))
			return TW_CLASS_MULTICAST;
		return network[0] == ICMP || network[0] == IGMP ? TW_CLASS_ICMP : TW_CLASS_MULTICAST;
	}
	if (ethertype != 0x86dd)
		return TW_CLASS_FORWARDED;
	if (bpf_xdp_load_bytes(ctx, NETWORK + 6, network, 2))
		return TW_CLASS_MULTICAST;
	if (bpf_xdp_load_bytes(ctx, NETWORK + V6_HEADER, message, 2))
		return network[0] == ICMPV6 ? TW_CLASS_ICMP : TW_CLASS_MULTICAST;
	if (network[0] == ICMPV6)
		return icmpv6_class(message, network[1]);
	/* MLD follows a router alert (RFC 3810 section 5). */
	return network[0] == HOP_BY_HOP && message[0] == ICMPV6 ? TW_CLASS_ICMP : TW_CLASS_MULTICAST;
}

#endif
