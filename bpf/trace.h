/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Records of sampled frames, for `tidewall trace`.
 */
#ifndef TIDEWALL_TRACE_H
#define TIDEWALL_TRACE_H

#include "program.h"

/* Takes a trace id if frames are left to sample; else 0. */
GLOBAL __u32 begin_trace(struct tw_control *control)
{
	if (!control)
		return 0;
	/* Several queues count down the same number, hence atomics. */
	__u32 remaining = READ_ONCE(control->trace_remaining);
	if (!remaining ||
	    __sync_val_compare_and_swap(&control->trace_remaining, remaining, remaining - 1) != remaining)
		return 0;
	return __sync_fetch_and_add(&control->trace_next, 1) + 1;
}

GLOBAL int emit_trace(struct xdp_md *ctx, __u32 trace, __u32 channel, __u32 verdict, __u32 cause)
{
	__u32 skip = 0, index = ctx->rx_queue_index;
	const struct tw_queue *queue = bpf_map_lookup_elem(&queues, &index);
	if (queue && (cause == TW_COUNT_CHANNEL || cause == TW_COUNT_RAW) && queue->metadata_in_frame)
		skip = sizeof(struct tw_metadata);
	struct tw_trace_record *record = bpf_ringbuf_reserve(&traces, sizeof(*record), 0);
	if (!record)
		return 0;
	__u32 length = bpf_xdp_get_buff_len(ctx) - skip;
	__u32 last = length - 1;
	if (last >= TW_TRACE_BYTES)
		last = TW_TRACE_BYTES - 1;
	BOUND(last, TW_TRACE_BYTES - 1);
	record->time = bpf_ktime_get_ns();
	record->trace = trace;
	record->channel = channel;
	record->verdict = verdict;
	record->cause = cause;
	record->queue = index;
	record->length = length;
	record->captured = bpf_xdp_load_bytes(ctx, skip, record->bytes, last + 1) ? 0 : last + 1;
	record->pad = 0;
	bpf_ringbuf_submit(record, 0);
	return 0;
}

#endif
