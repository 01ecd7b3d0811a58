/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The driver program compiled for the CPU, for devices without a driver and for hosts
 * that demultiplex themselves. crates/device/src/demux/raw_native.rs declares these
 * functions.
 */
#define TIDEWALL_NATIVE
#include "demux.bpf.c"

static struct xdp_md context(const __u8 *frame, __u32 length, __u32 queue)
{
	return (struct xdp_md){ .data = (long)frame, .data_end = (long)(frame + length), .rx_queue_index = queue };
}

/* Runs the program on a frame of a queue below TW_QUEUES. Returns an `enum xdp_action`. */
__u32 tidewall_drive(const struct native_tables *tables, __u8 *frame, __u32 length, __u32 queue, __u64 now,
			    struct native_result *result)
{
	struct xdp_md ctx = context(frame, length, queue);
	struct tw_control *control = &tables->device->control;
	__u32 channel;
	run = (struct run){ tables, result, now };
	result->cause = TW_COUNT_FRAMES;
	__u32 trace = READ_ONCE(control->trace_remaining) ? begin_trace(control) : 0;
	return process(&ctx, tables->device, &tables->queues[queue], queue, trace, &result->cause, &channel);
}

/* Finds the channel of a frame that arrived as TW_KIND_RAW, and completes its metadata
 * except the credit. Returns 0 for no channel, or if the frame contradicts the
 * metadata. On a strict port, the listener's owner also gets segments of no flow, and
 * looks for cookies in them. */
__u32 tidewall_classify(struct tw_application *application, const struct tw_hash_key *key, const __u8 *frame, __u32 length,
			struct tw_metadata *metadata)
{
	struct xdp_md ctx = context(frame, length, 0);
	__u64 k0 = key->words[0], k1 = key->words[1];
	__u32 version = metadata->version, protocol = metadata->protocol;
	__u32 transport = metadata->transport, end = metadata->end, fragment = metadata->fragment;
	__u32 header = version == 4 ? V4_HEADER : V6_HEADER;
	if (protocol == TW_PROTOCOL_CIRCUIT && !version) {
		metadata->kind = TW_KIND_CIRCUIT;
		metadata->credit = 0;
		return metadata->channel = circuit_channel(&ctx, application, k0, k1);
	}
	if ((version != 4 && version != 6) || metadata->network != NETWORK || transport < NETWORK + header ||
	    transport > end || end > length)
		return 0;

	__u16 field = 0, offset = version == 4 ? 0x1fff : 0xfff8, more = version == 4 ? 0x2000 : 1;
	if ((version == 4 || fragment) &&
	    bpf_xdp_load_bytes(&ctx, version == 4 ? NETWORK + 6 : fragment + 2, &field, 2))
		return 0;
	field = ntohs(field);
	__u32 later = field & offset, first = !later && field & more;
	__u64 place = PLACE(transport, end, version, protocol, first);
	__u32 channel = 0;
	if (later) {
		metadata->kind = TW_KIND_FRAGMENT;
		channel = READ_ONCE(application->fragment_channel);
	} else if (protocol == UDP || protocol == TCP) {
		struct ends ends;
		if (transport + (protocol == UDP ? 8 : 20) > end || !frame_ends(&ctx, &ends, place))
			return 0;
		metadata->kind = first ? TW_KIND_FIRST_FRAGMENT : TW_KIND_DATAGRAM;
		const struct tw_listener *listener = &application->listeners[port_index(protocol, ends.local_port)];
		if (READ_ONCE(listener->flags) & TW_LISTEN_CONNECTED)
			channel = find_flow(application, k0, k1, &ends);
		if (!channel)
			channel = listener_channel(application, k0, k1, &ends, listener);
	} else if (!first && protocol == (version == 4 ? ICMP : ICMPV6)) {
		metadata->kind = TW_KIND_ICMP_ERROR;
		channel = quoted_channel(&ctx, application, k0, k1, place);
	}
	metadata->channel = channel;
	metadata->credit = 0;
	return channel;
}

/* The key of a flow's look-up; see find_flow(). */
__u64 tidewall_flow_hash(const struct tw_hash_key *key, const struct ends *ends)
{
	return flow_hash(key->words[0], key->words[1], ends);
}

/* Start of the probing for a local address. */
__u32 tidewall_local_slot(__u64 high, __u64 low)
{
	return local_slot(high, low);
}
