/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Definitions that every driver program needs: byte order, kernel helpers, map
 * definitions.
 */
#ifndef TIDEWALL_HELPERS_H
#define TIDEWALL_HELPERS_H

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

#ifdef TIDEWALL_NATIVE
#include "native.h"
#else
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#define SEC(name) __attribute__((section(name), used))
/* Verified separately, for any arguments: pointers may be null. */
#define GLOBAL NOINLINE
/* Keeps `x` below 2^n for `mask` = 2^n - 1, where the program knows the bound and some
 * verifier does not. The compiler cannot remove it. */
#define BOUND(x, mask) asm volatile("%0 &= %1" : "+r"(x) : "i"(mask))
/* The metadata lie before the frame and must end before this address. */
#define METADATA_END(ctx) ((void *)(long)(ctx)->data)
/* A frame goes to the kernel, and this class paid for it. */
#define PASSED(class)
#endif

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile __typeof__(x) *)&(x) = (v))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define htons(x) ((__u16)__builtin_bswap16(x))
/* Last eight bytes of ::ffff:a.b.c.d as one word in memory order. */
#define MAPPED(address) ((__u64)(address) << 32 | 0xffff0000ULL)
#else
#define htons(x) ((__u16)(x))
#define MAPPED(address) (0x0000ffffULL << 32 | (__u64)(address))
#endif
#define ntohs htons
#define htonl(x) ((__u32)htons((x) >> 16) | (__u32)htons((x) & 0xffff) << 16)

#ifndef TIDEWALL_NATIVE
/* The helpers used here (man 7 bpf-helpers), by number. */
static void *(*const bpf_map_lookup_elem)(const void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const bpf_map_update_elem)(const void *map, const void *key, const void *value, __u64 flags) =
	(void *)BPF_FUNC_map_update_elem;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static struct bpf_sock *(*const bpf_sk_lookup_udp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns,
						    __u64 flags) = (void *)BPF_FUNC_sk_lookup_udp;
static struct bpf_sock *(*const bpf_skc_lookup_tcp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns,
						     __u64 flags) = (void *)BPF_FUNC_skc_lookup_tcp;
static long (*const bpf_sk_release)(void *socket) = (void *)BPF_FUNC_sk_release;
static long (*const bpf_redirect)(__u32 interface, __u64 flags) = (void *)BPF_FUNC_redirect;
static long (*const bpf_redirect_map)(const void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;
static long (*const bpf_xdp_adjust_head)(struct xdp_md *ctx, int delta) = (void *)BPF_FUNC_xdp_adjust_head;
static long (*const bpf_xdp_adjust_meta)(struct xdp_md *ctx, int delta) = (void *)BPF_FUNC_xdp_adjust_meta;
static __u64 (*const bpf_xdp_get_buff_len)(struct xdp_md *ctx) = (void *)BPF_FUNC_xdp_get_buff_len;
static long (*const bpf_xdp_load_bytes)(struct xdp_md *ctx, __u32 offset, void *to, __u32 length) =
	(void *)BPF_FUNC_xdp_load_bytes;
static long (*const bpf_xdp_store_bytes)(struct xdp_md *ctx, __u32 offset, void *from, __u32 length) =
	(void *)BPF_FUNC_xdp_store_bytes;
static long (*const bpf_xdp_adjust_tail)(struct xdp_md *ctx, int delta) = (void *)BPF_FUNC_xdp_adjust_tail;
static long (*const bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 length) =
	(void *)BPF_FUNC_skb_load_bytes;
static void *(*const bpf_ringbuf_reserve)(const void *map, __u64 size, __u64 flags) = (void *)BPF_FUNC_ringbuf_reserve;
static void (*const bpf_ringbuf_submit)(void *record, __u64 flags) = (void *)BPF_FUNC_ringbuf_submit;

/* Map definitions, in the form that loaders read from BTF. */
#define NUMBER(name, value) int (*name)[value]
#define TYPE(name, type) type *name
#endif

#endif
