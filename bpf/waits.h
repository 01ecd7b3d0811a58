/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Segments that no thread waits for. They go to a socket of the queue on which no
 * thread sleeps, and are processed with the next frames.
 */
#ifndef TIDEWALL_WAITS_H
#define TIDEWALL_WAITS_H

#include "flows.h"
#include "headers.h"

#define ARRIVAL_SHIFT 40
/* Arrival time of a segment that may wait (tw_metadata.fragment); 0: it may not. */
#define ARRIVAL(found) ((__u32)((found) >> ARRIVAL_SHIFT))

/* An acknowledgment that reports only an arrival: no payload, no other flag, no options
 * but the usual timestamps. One with SACK is the first report of a loss. */
INLINE __u32 is_bare_acknowledgment(const __u8 *header, const __u8 *data_end, __u64 place)
{
	__u32 length = (header[12] >> 4) * 4;
	if ((header[13] & ~TCP_PSH) != TCP_ACK || PLACE_TRANSPORT(place) + length != PLACE_END(place))
		return 0;
	if (header[12] == TCP_HEADER / 4 << 4)
		return 1;
	return header[12] == (TCP_HEADER + 12) / 4 << 4 && header + TCP_HEADER + 4 <= data_end &&
	       *(const __u32 *)(header + TCP_HEADER) == htonl(0x0101080a);
}

/* Channel of a segment of a flow of which some may wait (`found` by find_flow()), with
 * its ARRIVAL() if this one may. An acknowledgment may wait after a recent round: a
 * probe from the peer, which looks the same, is repeated until it wakes a thread. */
GLOBAL __u64 may_wait(struct xdp_md *ctx, struct tw_application *application, __u64 found, __u64 place)
{
	__u32 index = ctx->rx_queue_index, channel = found, waits = found >> WAITS_SHIFT;
	const __u8 *header = (const __u8 *)(long)ctx->data + (place & FRAME_MASK);
	const __u8 *data_end = (const __u8 *)(long)ctx->data_end;
	if (!application || index >= TW_QUEUES || place & PLACE_FIRST || header + TCP_HEADER > data_end)
		return channel;
	if (found & HALF_OPEN)
		return channel;
	if (waits & TW_WAIT_ALL ? header[13] & TCP_SYN : !is_bare_acknowledgment(header, data_end, place))
		return channel;
	const struct tw_waiting *waiting = &application->waiting[index];
	if (waiting->head - READ_ONCE(waiting->tail) >= READ_ONCE(waiting->limit))
		return channel;
	__u64 now = bpf_ktime_get_ns() - READ_ONCE(application->cookies.epoch);
	__u32 tick = now >> TW_TICK_SHIFT;
	/* The remaining time is always less than half of the range of its bits. */
	if (waits & TW_WAIT_ALL ? ((waits - tick - 1) & TW_WAIT_UNTIL) > TW_WAIT_UNTIL / 2
				: tick - READ_ONCE(waiting->looked) > TW_WAIT_TICKS)
		return channel;
	return channel | (((now >> 10) & 0xffffff) | 1) << ARRIVAL_SHIFT;
}

#endif
