/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * TCP ports whose connections are all in the flow table: a segment of no connection
 * must be a SYN or carry a valid cookie.
 */
#ifndef TIDEWALL_STRICT_H
#define TIDEWALL_STRICT_H

#include "cookie.h"
#include "flows.h"
#include "headers.h"
#include "waits.h"

/* Results of flow_channel() besides a channel, whose index is then 0. REFUSED and
 * IGNORED hold only if the kernel has no connection either. A connection that the
 * kernel accepted before the port was owned remains the kernel's until it ends. */
#define ANSWERED (1ULL << 32)       /* the frame is now the answer */
#define REFUSED (1ULL << 33)        /* of no connection: the kernel's listening socket resets it */
#define IGNORED (1ULL << 34)        /* of no connection, and not to be reset */
#define COOKIE_VALID (1ULL << 35)
#define COOKIE_FAILED (1ULL << 36)
/* Also ARRIVAL() of a segment that may wait. */

/* Channel of a segment to a strict TCP port that belongs to no known flow; `channel` is
 * the listener's. */
GLOBAL __u64 strict_channel(struct xdp_md *ctx, struct tw_application *application, __u32 channel, struct ends *ends,
			    __u64 place)
{
	if (!application || !ends)
		return IGNORED;
	__u32 flags = READ_ONCE(application->listeners[port_index(TCP, ends->local_port)].flags);
	const __u8 *header = (const __u8 *)(long)ctx->data + (place & FRAME_MASK);
	if (header + TCP_HEADER > (const __u8 *)(long)ctx->data_end)
		return IGNORED;
	__u8 control_bits = header[13] & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK);
	if (control_bits == TCP_SYN) {
		if (channel && flags & TW_LISTEN_COOKIES && answer_with_cookie(ctx, application, ends, place, flags))
			return ANSWERED;
		return channel;
	}
	/* A listening socket answers nothing else (RFC 9293 section 3.10.7.2). */
	if ((control_bits & (TCP_RST | TCP_ACK)) != TCP_ACK)
		return IGNORED;
	if (!(flags & TW_LISTEN_COOKIES_VALID) || control_bits & TCP_SYN)
		return REFUSED;
	__u32 sequence = htonl(*(__u32 *)(header + 4)), acknowledgment = htonl(*(__u32 *)(header + 8));
	__u32 payload = PLACE_TRANSPORT(place) + (header[12] >> 4) * 4 < PLACE_END(place);
	if (cookie_is_valid(&application->cookies, ends, sequence, acknowledgment))
		return channel ? COOKIE_VALID | channel : COOKIE_VALID | REFUSED;
	/* Data may overtake the application, which still has to enter the flow of the
	 * preceding cookie: its sender will repeat it. */
	return COOKIE_FAILED | (payload || control_bits & TCP_FIN ? IGNORED : REFUSED);
}

/* Channel of a frame for a port with more than listeners on any address: the exact
 * flow, else the strict port's decision, or the listener's. 0: none. */
GLOBAL __u64 flow_channel(struct xdp_md *ctx, struct tw_application *application, __u64 k0, __u64 k1, __u64 place)
{
	struct ends ends;
	if (!application || !frame_ends(ctx, &ends, place))
		return 0;
	const struct tw_listener *listener = &application->listeners[port_index(ends.protocol, ends.local_port)];
	__u32 flags = READ_ONCE(listener->flags);
	if (flags & TW_LISTEN_CONNECTED) {
		__u64 found = find_flow(application, k0, k1, &ends);
		if (found)
			return unlikely(found >> WAITS_SHIFT) ? may_wait(ctx, application, found, place) : found;
	}
	__u32 channel = listener_channel(application, k0, k1, &ends, listener);
	return flags & TW_LISTEN_TCP_STRICT ? strict_channel(ctx, application, channel, &ends, place) : channel;
}

/* Whether a segment belongs to a connection that is past its handshake. */
GLOBAL int is_established(struct xdp_md *ctx, struct tw_application *application, __u64 k0, __u64 k1, __u64 place)
{
	struct ends ends;
	if (!application || !frame_ends(ctx, &ends, place))
		return 0;
	__u64 found = find_flow(application, k0, k1, &ends);
	return found && !(found & HALF_OPEN);
}

#endif
