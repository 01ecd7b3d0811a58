//! Chooses the queue that a frame arrives on.

const ETHERNET_HEADER: usize = 14;

/// The queue, of `queues`, on which a device puts a frame. Chosen by addresses and, for
/// unfragmented TCP and UDP, ports. Both directions of a flow use the same queue; frames
/// other than IP use queue 0.
pub fn flow_queue(frame: &[u8], queues: u32) -> u32 {
    if queues <= 1 {
        return 0;
    }
    let Some(hash) = flow_hash(frame) else {
        return 0;
    };
    // The high bits, multiplied instead of divided: unbiased enough, no modulo.
    ((u128::from(hash) * u128::from(queues)) >> 64) as u32
}

fn flow_hash(frame: &[u8]) -> Option<u64> {
    let ethertype = frame.get(12..ETHERNET_HEADER)?;
    let packet = frame.get(ETHERNET_HEADER..)?;
    match ethertype {
        [0x08, 0x00] => {
            let header = packet.first_chunk::<20>()?;
            let length = usize::from(header[0] & 0x0f) * 4;
            // More fragments, or an offset: only the first part has ports.
            let fragmented = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
            let ports = if fragmented {
                0
            } else {
                ports(header[9], packet.get(length..))
            };
            Some(mix(fold(&header[12..16]) ^ fold(&header[16..20]), ports))
        }
        [0x86, 0xdd] => {
            let header = packet.first_chunk::<40>()?;
            let ports = ports(header[6], packet.get(40..));
            Some(mix(fold(&header[8..24]) ^ fold(&header[24..40]), ports))
        }
        _ => None,
    }
}

/// Both ports, the same in either direction.
fn ports(protocol: u8, transport: Option<&[u8]>) -> u64 {
    match (
        protocol,
        transport.and_then(|bytes| bytes.first_chunk::<4>()),
    ) {
        (6 | 17, Some(&[a, b, c, d])) => {
            scatter(u64::from(u16::from_be_bytes([a, b])))
                ^ scatter(u64::from(u16::from_be_bytes([c, d])))
        }
        _ => 0,
    }
}

/// One address as a number. It is scattered, so that two that differ in a bit do not
/// cancel out another two.
fn fold(address: &[u8]) -> u64 {
    address
        .iter()
        .fold(0, |sum, &byte| scatter(sum ^ u64::from(byte)))
}

fn mix(addresses: u64, ports: u64) -> u64 {
    scatter(addresses ^ ports.rotate_left(32))
}

/// The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(super) fn scatter(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
