/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The application level: the channel of a flow or a listener.
 */
#ifndef TIDEWALL_FLOWS_H
#define TIDEWALL_FLOWS_H

#include "headers.h"
#include "owners.h"
#include "siphash.h"

/* Hash of a circuit. Its label has 20 bits, and the ends of the link agree on few
 * labels. A product with the key suffices (Dietzfelbinger et al., 1997), since
 * strangers choose no labels. */
INLINE __u64 label_hash(__u64 k0, __u64 k1, const struct ends *ends)
{
	__u64 product = (k0 | 1) * htonl(((const __u32 *)ends->local)[3]) + k1;
	return product ^ product >> 32;
}

/* SipHash-1-3 (Aumasson & Bernstein, 2012) of a flow: an attacker who does not
 * know the key cannot fill one bucket. */
INLINE __u64 flow_hash(__u64 k0, __u64 k1, const struct ends *ends)
{
	__u64 v0 = k0 ^ 0x736f6d6570736575ULL, v1 = k1 ^ 0x646f72616e646f6dULL;
	__u64 v2 = k0 ^ 0x6c7967656e657261ULL, v3 = k1 ^ 0x7465646279746573ULL;
	__u64 length;
	if (ends->version == 4) {
		const __u32 *local = (const __u32 *)ends->local, *remote = (const __u32 *)ends->remote;
		ABSORB((__u64)local[3] << 32 | remote[3]);
		length = 16;
	} else if (ends->version == 0) {
		return label_hash(k0, k1, ends);
	} else {
		ABSORB(ends->local[0]);
		ABSORB(ends->local[1]);
		ABSORB(ends->remote[0]);
		ABSORB(ends->remote[1]);
		length = 40;
	}
	ABSORB((__u64)ends->local_port << 32 | (__u64)ends->remote_port << 16 | ends->protocol);
	ABSORB(length << 56);
	v2 ^= 0xff;
	ROUND;
	ROUND;
	ROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

/* The byte of a flow's hash that is in neither of its bucket numbers; never 0. */
INLINE __u8 flow_tag(__u64 hash)
{
	__u8 tag = hash >> 24;
	return tag ? tag : 1;
}

#define EACH_BYTE 0x0101010101010101ULL
_Static_assert(TW_FLOW_WAYS == 8, "the tags of a bucket are compared as one word");

/* Ports, protocol and version, and a flow's `waits` where `ends` have zero. */
#define PORTS_WORD(of) READ_ONCE(*(const __u64 *)&(of)->local_port)
_Static_assert(__builtin_offsetof(struct tw_flow_entry, channel) - __builtin_offsetof(struct tw_flow_entry, local_port) == 8 &&
	       sizeof(struct ends) - __builtin_offsetof(struct ends, local_port) == 8, "they are compared as one word");

#define WAITS_SHIFT 32 /* position of the TW_WAIT_ bits in the result of same_flow() */

#define HALF_OPEN (1ULL << 48) /* beside a channel: belongs to a connection in its handshake */

/* Channel of an entry if it is this flow's, with the segments that may wait; or 0. */
INLINE __u64 same_flow(const struct tw_flow_entry *flow, const struct ends *ends)
{
	/* The application writes the channel last and clears it first. So the key
	 * belongs to it if it is the same before and after. */
	__u32 channel = READ_ONCE(flow->channel);
	const __u64 *local = flow->local, *remote = flow->remote;
	if (READ_ONCE(local[0]) != ends->local[0] || READ_ONCE(local[1]) != ends->local[1] ||
	    READ_ONCE(remote[0]) != ends->remote[0] || READ_ONCE(remote[1]) != ends->remote[1])
		return 0;
	__u64 word = PORTS_WORD(flow);
	if (READ_ONCE(flow->channel) != channel)
		return 0;
	if (likely(word == PORTS_WORD(ends)))
		return channel;
	struct ends waiting = { .pad = 0xffff };
	if ((word ^ PORTS_WORD(ends)) & ~PORTS_WORD(&waiting) || !channel)
		return 0;
	return (__u64)READ_ONCE(flow->waits) << WAITS_SHIFT | channel;
}

_Static_assert(TW_CHANNELS <= 1 << TW_SHARE_SHIFT, "no channel has the bits of a share");

/* A flow's channel, with TW_OVER_SHARE if the flow has used its share since the channel
 * was last emptied. So one flow cannot fill a channel that many share. */
INLINE __u64 within_share(struct tw_application *application, struct tw_flow_entry *flow, __u64 channel)
{
	if (likely(!(channel & TW_SHARE)))
		return channel;
	__u64 place = ((channel & TW_SHARE) >> TW_SHARE_SHIFT) - 1;
	BOUND(place, TW_SHARES - 1);
	__u64 handshake = (channel & TW_SHARE) == TW_SHARE_HALF_OPEN ? HALF_OPEN : 0;
	channel = (channel & ~(__u64)TW_SHARE) | handshake;
	const struct tw_share *share = &application->shares[place];
	__u32 most = READ_ONCE(share->most);
	if (!most)
		return channel;
	__u16 epoch = READ_ONCE(share->epoch);
	__u32 came = flow->epoch == epoch ? flow->came : 0;
	flow->epoch = epoch;
	if (came < 0xffff)
		flow->came = came + 1;
	return came < most ? channel : channel | TW_OVER_SHARE;
}

/* Channel of an exact entry, or 0; see within_share(), HALF_OPEN and same_flow(). */
GLOBAL __u64 find_flow(struct tw_application *application, __u64 k0, __u64 k1, struct ends *ends)
{
	if (!application || !ends)
		return 0;
	__u64 hash = flow_hash(k0, k1, ends);
	__u64 tag = flow_tag(hash);
	for (int choice = 0; choice < 2; choice++) {
		/* Two buckets to choose from: the table fills to seven tenths before a
		 * flow finds no slot. With one, that would happen at a tenth. */
		__u64 bucket = (choice ? hash >> 32 : hash) & (TW_FLOW_BUCKETS - 1);
		/* The lowest set bit marks the first matching tag. Those above may be
		 * false, as any tag may: the flow itself decides. */
		__u64 differs = READ_ONCE(*(const __u64 *)application->tags[bucket]) ^ tag * EACH_BYTE;
		if (!((differs - EACH_BYTE) & ~differs & EACH_BYTE << 7))
			continue;
		for (int way = 0; way < TW_FLOW_WAYS; way++) {
			if (READ_ONCE(application->tags[bucket][way]) != tag)
				continue;
			struct tw_flow_entry *flow = &application->flows[bucket][way];
			__u64 channel = same_flow(flow, ends);
			if (channel)
				return within_share(application, flow, channel);
		}
	}
	return 0;
}

/* Channel of a listener on the local address, or 0. */
GLOBAL __u32 find_local(struct tw_application *application, __u64 k0, __u64 k1, struct ends *ends)
{
	if (!application || !ends)
		return 0;
	struct ends listening = *ends;
	listening.remote[0] = 0;
	listening.remote[1] = 0;
	listening.remote_port = 0;
	return find_flow(application, k0, k1, &listening);
}

/* Channel of a port's listener: first on the local address, then on any; 0: none. */
INLINE __u32 listener_channel(struct tw_application *application, __u64 k0, __u64 k1, struct ends *ends,
			      const struct tw_listener *listener)
{
	if (READ_ONCE(listener->flags) & TW_LISTEN_LOCAL) {
		__u32 channel = find_local(application, k0, k1, ends);
		if (channel)
			return channel;
	}
	return ends->version == 4 ? READ_ONCE(listener->channel[0]) : READ_ONCE(listener->channel[1]);
}

/* Channel of the flow that an ICMP error quotes: the exact entry, then the listener's,
 * except for a strict port; 0: none. */
GLOBAL __u32 quoted_channel(struct xdp_md *ctx, struct tw_application *application, __u64 k0, __u64 k1, __u64 place)
{
	struct ends ends = {};
	if (!application || !quoted_ends(ctx, &ends, place))
		return 0;
	const struct tw_listener *listener = &application->listeners[port_index(ends.protocol, ends.local_port)];
	__u32 flags = READ_ONCE(listener->flags);
	if (flags & TW_LISTEN_CONNECTED) {
		__u32 channel = find_flow(application, k0, k1, &ends);
		if (channel)
			return channel;
	}
	return flags & TW_LISTEN_TCP_STRICT ? 0 : listener_channel(application, k0, k1, &ends, listener);
}

#endif
