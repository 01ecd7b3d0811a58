/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The kernel's interface to the driver program, for one that is compiled for the CPU.
 * It has the context, the helpers and the maps, over the tables of one device and of
 * the one application on it. The kernel has no sockets here, and nothing reads traces;
 * each queue has an AF_XDP socket.
 */
#ifndef TIDEWALL_NATIVE_H
#define TIDEWALL_NATIVE_H

/* The kernel's context has addresses of 32 bits, which its verifier converts into
 * pointers. */
#define xdp_md kernel_xdp_md
#include <linux/bpf.h>
#undef xdp_md

#include "tables.h"

struct xdp_md {
	long data;
	long data_end;
	long data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
};

/* Ethernet, IPv6 and TCP header with the options of a cookie answer. */
#define ANSWER_MAX (14 + 40 + 40)

/* crates/device/src/demux/raw_native.rs has the same two. */
struct native_tables {
	struct tw_device *device;
	struct tw_queue *queues; /* TW_QUEUES */
	struct tw_application *application;
	/* For hash maps: nonzero if there is a value. */
	int (*owner)(const void *maps, const void *key, __u32 *value);
	int (*decision)(const void *maps, const void *key, __u32 *value);
	void (*decide)(const void *maps, const void *key, __u32 value);
	const void *maps;
};

struct native_result {
	__u32 cause;  /* enum tw_counter */
	__u32 class;  /* enum tw_class, of a frame for the kernel */
	__u32 length; /* of the answer */
	__u32 value;  /* of a hash map, found last */
	struct tw_metadata metadata;
	__u8 answer[ANSWER_MAX];
};

struct run {
	const struct native_tables *tables;
	struct native_result *result;
	__u64 now;
};

/* The state of this thread's current run, since not every function has the context. */
static _Thread_local struct run run;

#define SEC(name) static __attribute__((unused))
#define GLOBAL static
#define BOUND(x, mask) ((x) &= (mask))
#define METADATA_END(ctx) ((void *)(&run.result->metadata + 1))
#define PASSED(paid) (run.result->class = (paid))

/* The maps are known by their addresses. */
static const char device, queues, owners, fragments, embedded, applications, sockets, pairs, traces;

INLINE void *bpf_map_lookup_elem(const void *map, const void *key)
{
	const struct native_tables *tables = run.tables;
	__u32 *value = &run.result->value;
	if (map == &device)
		return tables->device;
	if (map == &queues)
		return *(const __u32 *)key < TW_QUEUES ? &tables->queues[*(const __u32 *)key] : 0;
	if (map == &applications)
		return *(const __u32 *)key ? 0 : (void *)&embedded;
	if (map == &embedded)
		return tables->application;
	if (map == &sockets)
		return *(const __u32 *)key < TW_QUEUES ? (void *)&sockets : 0;
	if (map == &owners)
		return tables->owner(tables->maps, key, value) ? value : 0;
	return tables->decision(tables->maps, key, value) ? value : 0;
}

/* Only `fragments` is written. */
INLINE long bpf_map_update_elem(const void *map, const void *key, const void *value, __u64 flags)
{
	(void)map, (void)flags;
	run.tables->decide(run.tables->maps, key, *(const __u32 *)value);
	return 0;
}

INLINE long bpf_redirect_map(const void *map, __u64 key, __u64 flags)
{
	return map == &sockets && key % TW_WAITING_SOCKETS < TW_QUEUES ? XDP_REDIRECT : (long)(flags & 3);
}

INLINE long bpf_redirect(__u32 interface, __u64 flags)
{
	(void)interface, (void)flags;
	return XDP_REDIRECT;
}

INLINE __u64 bpf_ktime_get_ns(void)
{
	return run.now;
}

INLINE struct bpf_sock *no_socket(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns, __u64 flags)
{
	(void)ctx, (void)tuple, (void)size, (void)netns, (void)flags;
	return 0;
}
#define bpf_sk_lookup_udp no_socket
#define bpf_skc_lookup_tcp no_socket

INLINE long bpf_sk_release(void *socket)
{
	(void)socket;
	return 0;
}

/* The metadata have their own space. */
INLINE long bpf_xdp_adjust_meta(struct xdp_md *ctx, int delta)
{
	(void)delta;
	ctx->data_meta = (long)&run.result->metadata;
	return 0;
}

INLINE long bpf_xdp_adjust_head(struct xdp_md *ctx, int delta)
{
	(void)ctx, (void)delta;
	return -1;
}

INLINE __u64 bpf_xdp_get_buff_len(struct xdp_md *ctx)
{
	return ctx->data_end - ctx->data;
}

/* Only an answer has another length, and it has its own space. */
INLINE long bpf_xdp_adjust_tail(struct xdp_md *ctx, int delta)
{
	long had = ctx->data_end - ctx->data, has = had + delta;
	if (has < 0 || has > ANSWER_MAX)
		return -1;
	__u8 *answer = run.result->answer;
	__builtin_memset(answer, 0, ANSWER_MAX);
	__builtin_memcpy(answer, (const void *)ctx->data, had < has ? had : has);
	ctx->data = (long)answer;
	ctx->data_end = (long)(answer + has);
	run.result->length = has;
	return 0;
}

INLINE __u8 *in_frame(struct xdp_md *ctx, __u32 offset, __u32 length)
{
	__u64 size = ctx->data_end - ctx->data;
	return offset > size || length > size - offset ? 0 : (__u8 *)ctx->data + offset;
}

INLINE long bpf_xdp_load_bytes(struct xdp_md *ctx, __u32 offset, void *to, __u32 length)
{
	const __u8 *from = in_frame(ctx, offset, length);
	if (!from)
		return -1;
	__builtin_memcpy(to, from, length);
	return 0;
}

INLINE long bpf_xdp_store_bytes(struct xdp_md *ctx, __u32 offset, const void *from, __u32 length)
{
	__u8 *to = in_frame(ctx, offset, length);
	if (!to)
		return -1;
	__builtin_memcpy(to, from, length);
	return 0;
}

INLINE void *bpf_ringbuf_reserve(const void *map, __u64 size, __u64 flags)
{
	(void)map, (void)size, (void)flags;
	return 0;
}

INLINE void bpf_ringbuf_submit(void *record, __u64 flags)
{
	(void)record, (void)flags;
}

#endif
