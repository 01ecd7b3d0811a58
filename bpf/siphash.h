/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The rounds of SipHash (Aumasson & Bernstein, 2012) on v0 to v3, and the hash
 * of three words.
 */
#ifndef TIDEWALL_SIPHASH_H
#define TIDEWALL_SIPHASH_H

#include "program.h"

#define ROTATE(x, b) ((x) << (b) | (x) >> (64 - (b)))
#define ROUND                                                                  \
	do {                                                                       \
		v0 += v1; v1 = ROTATE(v1, 13); v1 ^= v0; v0 = ROTATE(v0, 32);          \
		v2 += v3; v3 = ROTATE(v3, 16); v3 ^= v2;                               \
		v0 += v3; v3 = ROTATE(v3, 21); v3 ^= v0;                               \
		v2 += v1; v1 = ROTATE(v1, 17); v1 ^= v2; v2 = ROTATE(v2, 32);          \
	} while (0)
#define ABSORB(word)                                                           \
	do {                                                                       \
		__u64 w = (word);                                                      \
		v3 ^= w;                                                               \
		ROUND;                                                                 \
		v0 ^= w;                                                               \
	} while (0)

/* SipHash-1-3 of three words with the device's key, which applications do not know. */
GLOBAL __u64 hash_words(__u64 first, __u64 second, __u64 third)
{
	__u32 zero = 0;
	struct tw_device *state = bpf_map_lookup_elem(&device, &zero);
	if (!state)
		return 0;
	__u64 k0 = state->control.hash_key.words[0], k1 = state->control.hash_key.words[1];
	__u64 v0 = k0 ^ 0x736f6d6570736575ULL, v1 = k1 ^ 0x646f72616e646f6dULL;
	__u64 v2 = k0 ^ 0x6c7967656e657261ULL, v3 = k1 ^ 0x7465646279746573ULL;
	ABSORB(first);
	ABSORB(second);
	ABSORB(third);
	ABSORB(24ULL << 56);
	v2 ^= 0xff;
	ROUND;
	ROUND;
	ROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

#endif
