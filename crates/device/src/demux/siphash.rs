//! SipHash (Aumasson & Bernstein, 2012) of whole words.

/// SipHash with so many rounds a word and at the end.
pub(super) fn siphash<const ABSORB: usize, const FINISH: usize>(
    key: [u64; 2],
    words: impl IntoIterator<Item = u64>,
) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut absorb = |word: u64| {
        v[3] ^= word;
        for _ in 0..ABSORB {
            round(&mut v);
        }
        v[0] ^= word;
    };
    let mut length = 0;
    for word in words {
        absorb(word);
        length += 8;
    }
    absorb(length << 56);
    v[2] ^= 0xff;
    for _ in 0..FINISH {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}
