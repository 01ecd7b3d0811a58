/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The demultiplexer that runs in the driver (XDP). It decides for every frame whether
 * it belongs to the kernel, to an application or to neither. For an application's frame
 * it decides which channel receives it and whether that has room (LRP, Druschel &
 * Banga, OSDI 1996, sections 3.1 and 3.2).
 *
 * Devices without a driver run it, too, compiled for the CPU (native.c). A test runs
 * both on one corpus and requires the same answer.
 *
 * The common case, a UDP datagram for a socket bound to any address, runs straight
 * through demux(). Everything rare is in global functions. The verifier checks each of
 * those once, for any arguments, but follows a static function again at each call and
 * on each path to it. So loading costs in proportion to the program's length, not to
 * the product of its paths. The verifiers of Linux 6.1 to 6.18 must all follow (`make
 * kernels`): they know nothing of a register after a byte swap, and forget a scalar's
 * bounds where paths meet. The program needs only clang and the kernel's UAPI headers.
 */
#include "circuits.h"
#include "headers.h"
#include "kernel.h"
#include "napi.h"
#include "owners.h"
#include "private.h"
#include "program.h"
#include "strict.h"
#include "trace.h"

/* Makes room for the metadata as the first bytes of the frame, for a driver without
 * space before the frame. A driver always behaves the same way: once one frame took
 * this path, the reader expects it of all. */
GLOBAL int metadata_in_frame(struct xdp_md *ctx, struct tw_queue *queue)
{
	if (!queue)
		return 0;
	if (!queue->metadata_in_frame &&
	    (queue->counters[TW_COUNT_CHANNEL] || queue->counters[TW_COUNT_RAW]))
		return 0;
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(struct tw_metadata)))
		return 0;
	WRITE_ONCE(queue->metadata_in_frame, 1);
	return 1;
}

/* Handles an owned frame that no AF_XDP socket takes. On a queue that was added later,
 * the kernel socket that holds the port gets datagrams and SYNs. Any other segment may
 * belong to a connection that the kernel does not have, and which it would reset. For a
 * process that has ended, that reset is what its peers should get. */
GLOBAL int without_socket(struct xdp_md *ctx, struct tw_queue *queue, __u64 place, __u32 in_frame, __u32 owner)
{
	__u8 flags;
	if (!queue || (in_frame && bpf_xdp_adjust_head(ctx, sizeof(struct tw_metadata))))
		return XDP_DROP;
	if (PLACE_PROTOCOL(place) == TCP &&
	    (bpf_xdp_load_bytes(ctx, PLACE_TRANSPORT(place) + 13, &flags, 1) || (flags & (TCP_SYN | TCP_ACK)) != TCP_SYN) &&
	    !is_gone(owner, ctx->rx_queue_index))
		return XDP_DROP;
	return datagram_to_kernel(ctx, queue, place);
}

#define DROP(counter)                                                          \
	do {                                                                       \
		count(queue, counter);                                                 \
		*cause = counter;                                                      \
		return XDP_DROP;                                                       \
	} while (0)

#define KERNEL(counter, class, place)                                          \
	do {                                                                       \
		count(queue, counter);                                                 \
		*cause = counter;                                                      \
		return to_kernel(ctx, queue, class, place);                            \
	} while (0)

#define DATAGRAM_TO_KERNEL(counter)                                            \
	do {                                                                       \
		count(queue, counter);                                                 \
		*cause = counter;                                                      \
		return datagram_to_kernel(ctx, queue, HERE);                           \
	} while (0)

#define WITHOUT_SOCKET(in_frame)                                               \
	do {                                                                       \
		count(queue, TW_COUNT_NO_SOCKET);                                      \
		*cause = TW_COUNT_NO_SOCKET;                                           \
		return without_socket(ctx, queue, HERE, in_frame, owner);              \
	} while (0)

/* Drops a frame of a living application; if the application is gone, the kernel must
 * answer it. */
#define DROP_OWNED(counter)                                                    \
	do {                                                                       \
		if (unlikely(is_gone(owner, index)))                                   \
			WITHOUT_SOCKET(0);                                                 \
		DROP(counter);                                                         \
	} while (0)

/* This many datagrams that a full channel drops are dropped without testing whether the
 * application is gone. In a flood to a living application they pay for the test of the
 * next one. */
#define DROPPED_UNASKED 15

/* By value: with a pointer each function would have to test it. */
#define KEY READ_ONCE(application->hash_key.words[0]), READ_ONCE(application->hash_key.words[1])
#define HERE PLACE(transport, end, version, protocol, first)

INLINE int process(struct xdp_md *ctx, struct tw_device *device, struct tw_queue *queue, __u32 index, __u32 trace,
		   __u32 *cause, __u32 *traced_channel)
{
	struct tw_control *control = &device->control;
	__u8 *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;

	count(queue, TW_COUNT_FRAMES);
	if (data + NETWORK > data_end)
		DROP(TW_COUNT_TRUNCATED);
	__u16 ethertype = *(__u16 *)(data + 12);
	if (unlikely(data[0] & 1))
		KERNEL(TW_COUNT_MULTICAST, group_class(ctx, ntohs(ethertype)), 0);

	__u32 transport, end, protocol, version, fragment = 0;
	__u32 later = 0, first = 0;
	__u64 high, low; /* the destination */
	/* Above its byte `kind` has the arrival of a segment that may wait. */
	__u32 owner = NO_OWNER, kind = TW_KIND_DATAGRAM, channel = 0;
	__u64 listener = 0;
	if (likely(ethertype == htons(0x0800))) {
		if (data + NETWORK + V4_HEADER > data_end)
			DROP(TW_COUNT_TRUNCATED);
		__u32 header = (data[NETWORK] & 15) * 4;
		__u32 total = ntohs(*(__u16 *)(data + NETWORK + 2));
		if (data[NETWORK] >> 4 != 4 || header < V4_HEADER || total < header)
			DROP(TW_COUNT_MALFORMED);
		end = NETWORK + total;
		if (end > data_end - data && end > bpf_xdp_get_buff_len(ctx))
			DROP(TW_COUNT_TRUNCATED);
		version = 4;
		transport = NETWORK + header;
		protocol = data[NETWORK + 9];
		__u16 offset = *(__u16 *)(data + NETWORK + 6);
		if (unlikely(offset & htons(0x3fff))) {
			later = offset & htons(0x1fff);
			first = !later;
		}
		__u32 destination = *(__u32 *)(data + NETWORK + 16);
		if (unlikely(data[NETWORK + 16] >> 4 == 14 || destination == 0xffffffff))
			KERNEL(TW_COUNT_MULTICAST, group_class(ctx, 0x0800), 0);
		high = 0;
		low = MAPPED(destination);
	} else if (ethertype == htons(0x86dd)) {
		if (data + NETWORK + V6_HEADER > data_end)
			DROP(TW_COUNT_TRUNCATED);
		if (data[NETWORK] >> 4 != 6)
			DROP(TW_COUNT_MALFORMED);
		end = NETWORK + V6_HEADER + ntohs(*(__u16 *)(data + NETWORK + 4));
		if (end > data_end - data && end > bpf_xdp_get_buff_len(ctx))
			DROP(TW_COUNT_TRUNCATED);
		if (unlikely(data[NETWORK + 24] == 0xff))
			KERNEL(TW_COUNT_MULTICAST, group_class(ctx, 0x86dd), 0);
		version = 6;
		transport = NETWORK + V6_HEADER;
		protocol = data[NETWORK + 6];
		high = *(__u64 *)(data + NETWORK + 24);
		low = *(__u64 *)(data + NETWORK + 32);
		/* Free slots of the set are zero, and those of IPv4 are mapped. */
		if (unlikely(!high) && (!low || *(__u32 *)(data + NETWORK + 32) == htonl(0xffff)))
			KERNEL(TW_COUNT_NOT_LOCAL, TW_CLASS_FORWARDED, 0);
		if (unlikely(protocol != UDP && protocol != TCP && protocol != ICMPV6)) {
			__u64 walked = walk_extensions(ctx, transport, end, protocol);
			if (!walked)
				DROP(TW_COUNT_MALFORMED);
			protocol = WALK_PROTOCOL(walked);
			transport = WALK_TRANSPORT(walked);
			later = !!(walked & WALK_LATER);
			first = !!(walked & WALK_FIRST);
			if (later || first)
				fragment = WALK_FRAGMENT(walked);
		}
	} else if (ethertype == htons(0x0806)) {
		return to_kernel(ctx, queue, TW_CLASS_ARP, 0);
	} else if (ethertype == htons(0x8100) || ethertype == htons(0x88a8)) {
		KERNEL(TW_COUNT_TAGGED, TW_CLASS_FORWARDED, 0);
	} else if (ethertype == htons(0x8847)) {
		owner = circuit_owner(ctx, device);
		if (owner == NO_OWNER)
			KERNEL(TW_COUNT_NO_CIRCUIT, TW_CLASS_FORWARDED, 0);
		kind = TW_KIND_CIRCUIT;
		version = 0;
		protocol = TW_PROTOCOL_CIRCUIT;
		transport = NETWORK + LABEL_ENTRY;
		end = bpf_xdp_get_buff_len(ctx);
		goto owned;
	} else {
		KERNEL(TW_COUNT_UNKNOWN, TW_CLASS_FORWARDED, 0);
	}
	if (unlikely(!is_local(control, high, low)))
		KERNEL(TW_COUNT_NOT_LOCAL, TW_CLASS_FORWARDED, 0);

	if (unlikely(later)) {
		kind = TW_KIND_FRAGMENT;
		__u64 decision = fragment_decision(ctx, HERE, fragment);
		if (decision == UNDECIDED) {
			count(queue, TW_COUNT_FRAGMENT_ORPHAN);
			*cause = TW_COUNT_FRAGMENT_ORPHAN;
			owner = READ_ONCE(control->fragment_application) - 1;
			if (owner == NO_OWNER)
				return to_kernel(ctx, queue, TW_CLASS_OTHER, HERE);
		} else {
			owner = (__u32)decision - 1;
			if (owner == NO_OWNER)
				KERNEL(TW_COUNT_UNOWNED, TW_CLASS_OTHER, HERE);
		}
	} else if (likely(protocol == UDP || protocol == TCP)) {
		if (transport + (protocol == UDP ? 8 : 20) > end)
			DROP(TW_COUNT_TRUNCATED);
		/* True if the frame is in one piece. If it has several, the first must
		 * contain these, too. */
		__u16 *ports = (void *)(data + (transport & FRAME_MASK));
		CHECKED_ALONE(ports);
		if ((__u8 *)(ports + 4) > data_end)
			DROP(TW_COUNT_TRUNCATED);
		if (protocol == UDP) {
			__u32 bytes = ntohs(ports[2]);
			if (bytes < 8 || (!first && transport + bytes > end))
				DROP(TW_COUNT_MALFORMED);
		}
		listener = port_index(protocol, ports[1]);
		__u32 entry = READ_ONCE(device->ports[listener]);
		if (likely(!(entry & TW_OWNER_BY_ADDRESS)))
			owner = owner_of_all(entry, version);
		else
			owner = frame_owner(ctx, device, HERE);
		if (unlikely(first)) {
			kind = TW_KIND_FIRST_FRAGMENT;
			decide_fragments(ctx, HERE, fragment, owner + 1);
		}
	} else if (unlikely(first)) {
		decide_fragments(ctx, HERE, fragment, 0);
	} else if (protocol == (version == 4 ? ICMP : ICMPV6)) {
		kind = TW_KIND_ICMP_ERROR;
		owner = quoted_owner(ctx, device, HERE);
	}
	if (owner == NO_OWNER)
		DATAGRAM_TO_KERNEL(TW_COUNT_UNOWNED);

owned:;
	struct tw_application *application = 0;
	void *map = bpf_map_lookup_elem(&applications, &owner);
	if (map) {
		__u32 zero = 0;
		application = bpf_map_lookup_elem(map, &zero);
	}
	if (!application) {
		if (later)
			KERNEL(TW_COUNT_UNOWNED, TW_CLASS_OTHER, HERE);
		DATAGRAM_TO_KERNEL(TW_COUNT_UNOWNED);
	}
	struct tw_account *account = 0;
	if (unlikely(READ_ONCE(control->charges))) {
		__u32 payer = owner;
		BOUND(payer, TW_APPLICATIONS - 1);
		account = &device->accounts[payer][index];
		account->frames++;
		if (is_over_budget(account))
			DROP_OWNED(TW_COUNT_OVER_BUDGET);
	}

	/* A segment behind extension headers is not used: its last extension header
	 * would have to change. Nor is a handshake's last segment: it would arrive
	 * after those of later connections, and its sender may wait for us to send
	 * first. */
	if (unlikely(READ_ONCE(control->probe_port[index])) && kind == TW_KIND_DATAGRAM &&
	    (protocol == UDP || version == 4 || transport == NETWORK + V6_HEADER)) {
		if ((protocol == UDP || is_established(ctx, application, KEY, HERE)) && probe_napi(ctx, control, HERE)) {
			count(queue, TW_COUNT_NAPI_PROBE);
			*cause = TW_COUNT_NAPI_PROBE;
			return XDP_PASS;
		}
	}

	__u32 credit = 0;
	struct tw_channel_driver *head = 0;
	if (unlikely(READ_ONCE(control->raw))) {
		kind = TW_KIND_RAW;
	} else {
		if (unlikely(kind > TW_KIND_FIRST_FRAGMENT)) {
			if (kind == TW_KIND_FRAGMENT)
				channel = READ_ONCE(application->fragment_channel);
			else if (kind == TW_KIND_ICMP_ERROR)
				channel = quoted_channel(ctx, application, KEY, HERE);
			else
				channel = circuit_channel(ctx, application, KEY);
		} else {
			struct tw_listener *entry = &application->listeners[listener];
			channel = version == 4 ? READ_ONCE(entry->channel[0]) : READ_ONCE(entry->channel[1]);
			__u32 flags = READ_ONCE(entry->flags);
			if (unlikely(flags)) {
				/* No process would accept the connection that a
				 * cookie creates. */
				if (unlikely(flags & TW_LISTEN_COOKIES) && is_gone(owner, index))
					WITHOUT_SOCKET(0);
				__u64 found = flow_channel(ctx, application, KEY, HERE);
				if (found & COOKIE_VALID)
					count(queue, TW_COUNT_COOKIE_VALID);
				if (found & COOKIE_FAILED)
					count(queue, TW_COUNT_COOKIE_FAILED);
				if (found & ANSWERED) {
					count(queue, TW_COUNT_COOKIE_SENT);
					*cause = TW_COUNT_COOKIE_SENT;
					if (READ_ONCE(application->cookies.redirect))
						return bpf_redirect(ctx->ingress_ifindex, 0);
					return XDP_TX;
				}
				if (unlikely(found & (IGNORED | REFUSED)) && has_socket(ctx, TW_CLASS_ESTABLISHED, HERE))
					KERNEL(TW_COUNT_UNOWNED, TW_CLASS_ESTABLISHED, HERE);
				if (found & IGNORED)
					DROP_OWNED(TW_COUNT_NO_CONNECTION);
				if (found & REFUSED)
					KERNEL(TW_COUNT_NO_CONNECTION, TW_CLASS_NO_CONNECTION, HERE);
				channel = found;
				kind |= ARRIVAL(found) << 8;
			}
		}
		if (!channel && kind != TW_KIND_FRAGMENT)
			DATAGRAM_TO_KERNEL(TW_COUNT_UNOWNED);
		*traced_channel = channel;
		__u32 number = channel & 0xffff;
		if (unlikely(number >= TW_CHANNELS)) {
			if (!(number & TW_OVER_SHARE))
				DROP_OWNED(TW_COUNT_CHANNEL_CLOSED);
			*traced_channel = channel & ~TW_OVER_SHARE;
			application->heads[index][number & (TW_CHANNELS - 1)].dropped++;
			DROP_OWNED(TW_COUNT_OVER_SHARE);
		}
		struct tw_channel_application *bounds = &application->channels[index][number];
		head = &application->heads[index][number];
		__u32 limit = READ_ONCE(bounds->limit);
		if (!limit) {
			/* Or no channel is open on this queue, which came later. */
			__u32 place = owner * TW_QUEUES + index;
			if (has_socket_at(place))
				DROP(TW_COUNT_CHANNEL_CLOSED);
			WITHOUT_SOCKET(0);
		}
		__u32 admitted = head->head;
		struct tw_total *total = &application->totals[index];
		__u32 waiting = admitted - READ_ONCE(bounds->tail), given = READ_ONCE(total->given);
		int is_full = waiting >= limit;
		__u32 spare = waiting < TW_QUIET ? 0 : READ_ONCE(total->spare);
		if (is_full || ((int)(given - total->head - spare) <= 0 && given)) {
			if ((!(++head->dropped & DROPPED_UNASKED) || protocol == TCP) && is_gone(owner, index)) {
				/* Frames in transit were lost with the socket. */
				WRITE_ONCE(head->head, READ_ONCE(bounds->tail));
				WITHOUT_SOCKET(0);
			}
			total->dropped++;
			if (!is_full)
				DROP(TW_COUNT_APPLICATION_FULL);
			DROP(TW_COUNT_CHANNEL_FULL);
		}
		credit = admitted + 1;
	}

	struct tw_metadata *metadata;
	if (likely(!bpf_xdp_adjust_meta(ctx, -(int)sizeof(*metadata)))) {
		metadata = (void *)(long)ctx->data_meta;
		if ((void *)(metadata + 1) > METADATA_END(ctx))
			DATAGRAM_TO_KERNEL(TW_COUNT_NO_METADATA);
	} else {
		if (!metadata_in_frame(ctx, queue))
			DATAGRAM_TO_KERNEL(TW_COUNT_NO_METADATA);
		metadata = (void *)(long)ctx->data;
		if ((void *)(metadata + 1) > (void *)(long)ctx->data_end)
			DROP(TW_COUNT_NO_METADATA);
	}
	metadata->channel = channel;
	metadata->credit = credit;
	metadata->trace = trace;
	metadata->kind = kind;
	metadata->version = version;
	metadata->protocol = protocol;
	metadata->arrival = 0;
	metadata->network = NETWORK;
	metadata->transport = transport;
	metadata->end = END(end);
	metadata->fragment = fragment;

	__u32 socket = owner * TW_QUEUES + index;
	if (unlikely(kind >> 8)) {
		metadata->arrival = kind >> 24;
		metadata->fragment = kind >> 8;
		socket += TW_WAITING_SOCKETS;
		application->waiting[index].head++;
	}
	if (bpf_redirect_map(&sockets, socket, XDP_DROP) != XDP_REDIRECT &&
	    !to_pair(queue, metadata, owner * TW_QUEUES + index))
		WITHOUT_SOCKET(queue->metadata_in_frame);
	if (unlikely(account)) {
		account->passed++;
		account->due += READ_ONCE(account->interval);
	}
	if (head) {
		WRITE_ONCE(head->head, credit);
		struct tw_total *total = &application->totals[index];
		WRITE_ONCE(total->head, total->head + 1);
		count(queue, TW_COUNT_CHANNEL);
		*cause = TW_COUNT_CHANNEL;
	} else {
		count(queue, TW_COUNT_RAW);
		*cause = TW_COUNT_RAW;
	}
	return XDP_REDIRECT;
}

SEC("xdp.frags") int demux(struct xdp_md *ctx)
{
	__u32 zero = 0, key = ctx->rx_queue_index, index = key;
	struct tw_device *state = bpf_map_lookup_elem(&device, &zero);
	struct tw_queue *queue = bpf_map_lookup_elem(&queues, &key);
	/* Queues beyond the table stay with the kernel. */
	if (!state || !queue)
		return XDP_PASS;
	BOUND(index, TW_QUEUES - 1);
	__u32 trace = 0, cause = TW_COUNT_FRAMES, channel = 0;
	if (unlikely(READ_ONCE(state->control.trace_remaining)))
		trace = begin_trace(&state->control);
	int action = process(ctx, state, queue, index, trace, &cause, &channel);
	if (unlikely(trace))
		emit_trace(ctx, trace, channel, action, cause);
	return action;
}

#ifndef TIDEWALL_NATIVE
char license_text[] SEC("license") = "Dual MIT/GPL";
#endif
