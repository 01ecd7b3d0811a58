//! Cuts a TCP segment that is longer than the link's MTU, as a sender's device does.

use tidewall_wire::checksum::{Sum, checksum};

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;

/// The datagrams into which one with a long segment is cut; unchanged if it has none.
pub(super) fn cut(datagram: &[u8], mtu: usize) -> Vec<Vec<u8>> {
    pieces(datagram, mtu).unwrap_or_else(|| vec![datagram.to_vec()])
}

fn pieces(datagram: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
    let v4 = datagram.first()? >> 4 == 4;
    let (network, protocol) = if v4 {
        (usize::from(datagram.first()? & 15) * 4, *datagram.get(9)?)
    } else {
        (40, *datagram.get(6)?)
    };
    let header = usize::from(datagram.get(network + 12)? >> 4) * 4;
    if protocol != 6 {
        return None;
    }
    let (headers, payload) = datagram.split_at_checked(network + header)?;
    let size = mtu.checked_sub(headers.len()).filter(|&size| size > 0)?;
    let sequence = u32::from_be_bytes(*headers.get(network + 4..)?.first_chunk()?);
    let count = payload.chunks(size).len();
    let mut all = Vec::with_capacity(count);
    for (index, chunk) in payload.chunks(size).enumerate() {
        let mut piece = headers.to_vec();
        piece.extend_from_slice(chunk);
        let at = sequence.wrapping_add((index * size) as u32);
        piece
            .get_mut(network + 4..network + 8)?
            .copy_from_slice(&at.to_be_bytes());
        if index + 1 < count {
            *piece.get_mut(network + 13)? &= !(FIN | PSH);
        }
        finish(&mut piece, v4, network)?;
        all.push(piece);
    }
    Some(all)
}

/// Sets lengths and checksums.
fn finish(piece: &mut [u8], v4: bool, network: usize) -> Option<()> {
    let transport = (piece.len() - network) as u32;
    let addresses = if v4 { 12..20 } else { 8..40 };
    let pseudo = Sum::ZERO
        .bytes(piece.get(addresses)?)
        .double_word(transport)
        .word(6);
    if v4 {
        let length = (piece.len() as u16).to_be_bytes();
        piece.get_mut(2..4)?.copy_from_slice(&length);
        piece.get_mut(10..12)?.fill(0);
        let sum = checksum(piece.get(..network)?).to_be_bytes();
        piece.get_mut(10..12)?.copy_from_slice(&sum);
    } else {
        let length = (transport as u16).to_be_bytes();
        piece.get_mut(4..6)?.copy_from_slice(&length);
    }
    piece.get_mut(network + 16..network + 18)?.fill(0);
    let sum = pseudo.bytes(piece.get(network..)?).checksum().to_be_bytes();
    piece
        .get_mut(network + 16..network + 18)?
        .copy_from_slice(&sum);
    Some(())
}
