//! What the kernel says of a link's root queueing discipline: rtnetlink(7)
//! messages as bytes.
//!
//! A `pfifo` or `bfifo` with limit 0 refuses every packet (tc-pfifo(8)). Scripts
//! have a device do that, and lift it later.

/// `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// `struct tcmsg`.
const TCMSG_LEN: usize = 20;
/// `struct nlattr`.
const ATTRIBUTE_LEN: usize = 4;
/// `linux/pkt_sched.h`: the parent of a root queueing discipline.
const TC_H_ROOT: u32 = 0xffff_ffff;

/// A message of the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// A queueing discipline is a FIFO that takes nothing, or is not.
    Refuses(bool),
    /// The request is done (`NLMSG_ERROR`), well or not.
    Done,
}

/// RTM_GETQDISC for the root of a link. Without NLM_F_ECHO only those who watch
/// queueing disciplines are told; the acknowledgment is asked for because of one
/// that is built in (`noqueue`) nothing is told.
pub(super) fn request(link: u32, sequence: u32) -> Vec<u8> {
    let length = (HEADER_LEN + TCMSG_LEN) as u32;
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_ECHO) as u16;
    let mut message = Vec::with_capacity(HEADER_LEN + TCMSG_LEN);
    message.extend_from_slice(&length.to_ne_bytes());
    message.extend_from_slice(&libc::RTM_GETQDISC.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&sequence.to_ne_bytes());
    // To the kernel. Then AF_UNSPEC, link, handle, parent, info.
    for word in [0, 0, link, 0, TC_H_ROOT, 0] {
        message.extend_from_slice(&u32::to_ne_bytes(word));
    }
    message
}

/// The replies to a request in a datagram. Other messages are skipped; what is
/// cut short ends it.
pub(super) fn replies(datagram: &[u8], sequence: u32) -> impl Iterator<Item = Reply> {
    let mut rest = datagram;
    core::iter::from_fn(move || {
        loop {
            let length = usize::try_from(word(rest, 0)?).ok()?;
            let message = rest.get(..length)?;
            let (kind, answers) = (half(message, 4)?, word(message, 8)?);
            let body = message.get(HEADER_LEN..)?;
            rest = rest.get(aligned(length)..).unwrap_or_default();
            if answers != sequence {
                continue;
            }
            if kind == libc::RTM_NEWQDISC {
                let attributes = body.get(TCMSG_LEN..).unwrap_or_default();
                return Some(Reply::Refuses(refuses(attributes)));
            }
            if i32::from(kind) == libc::NLMSG_ERROR {
                return Some(Reply::Done);
            }
        }
    })
}

/// Whether the attributes of a queueing discipline are those of a FIFO with limit
/// 0 (`struct tc_fifo_qopt`).
fn refuses(mut attributes: &[u8]) -> bool {
    let (mut fifo, mut empty) = (false, false);
    while let (Some(length), Some(kind)) = (half(attributes, 0), half(attributes, 2)) {
        let length = usize::from(length);
        let Some(value) = attributes.get(ATTRIBUTE_LEN..length) else {
            break;
        };
        match kind {
            libc::TCA_KIND => fifo = matches!(value, b"pfifo\0" | b"bfifo\0"),
            libc::TCA_OPTIONS => empty = word(value, 0) == Some(0),
            _ => {}
        }
        attributes = attributes.get(aligned(length)..).unwrap_or_default();
    }
    fifo && empty
}

/// Messages and attributes begin at multiples of four bytes.
const fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = (ATTRIBUTE_LEN + value.len()) as u16;
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(value);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let length = (HEADER_LEN + body.len()) as u32;
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(body);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    /// As the kernel tells it, with attributes before, between and behind.
    fn discipline(sequence: u32, name: &[u8], options: &[u8]) -> Vec<u8> {
        const TCA_STATS: u16 = 3;
        let body = [
            vec![0; TCMSG_LEN],
            attribute(libc::TCA_KIND, name),
            attribute(12, &[0]),
            attribute(libc::TCA_OPTIONS, options),
            attribute(TCA_STATS, &[7; 36]),
        ];
        message(libc::RTM_NEWQDISC, sequence, &body.concat())
    }

    fn acknowledgment(sequence: u32) -> Vec<u8> {
        message(libc::NLMSG_ERROR as u16, sequence, &[0; 20])
    }

    #[test]
    fn the_request_is_as_rtnetlink_has_it() {
        let bytes = request(5, 9);
        assert_eq!(word(&bytes, 0), Some(36));
        assert_eq!((half(&bytes, 4), half(&bytes, 6)), (Some(38), Some(13)));
        let words = [8, 12, 16, 20, 24, 28, 32].map(|at| word(&bytes, at));
        let expected = [9, 0, 0, 5, 0, TC_H_ROOT, 0].map(Some);
        assert_eq!(words, expected);
        assert_eq!(bytes.len(), 36);
    }

    #[test]
    fn a_fifo_with_limit_0_refuses() {
        let told = |name: &[u8], options: &[u8]| {
            let datagram = [discipline(3, name, options), acknowledgment(3)].concat();
            replies(&datagram, 3).collect::<Vec<_>>()
        };
        let refuses = [Reply::Refuses(true), Reply::Done];
        let takes = [Reply::Refuses(false), Reply::Done];
        assert_eq!(told(b"pfifo\0", &0u32.to_ne_bytes()), refuses);
        assert_eq!(told(b"bfifo\0", &0u32.to_ne_bytes()), refuses);
        assert_eq!(told(b"pfifo\0", &1u32.to_ne_bytes()), takes);
        assert_eq!(told(b"bfifo\0", &(1u32 << 24).to_ne_bytes()), takes);
        // Its options begin with the number of bands.
        assert_eq!(told(b"pfifo_fast\0", &[0; 20]), takes);
        assert_eq!(told(b"noqueue\0", &[]), takes);
        assert_eq!(told(b"pfifo\0", &[0; 3]), takes);
    }

    #[test]
    fn other_messages_are_skipped() {
        let empty = 0u32.to_ne_bytes();
        let stale = discipline(1, b"pfifo\0", &empty);
        let link = message(libc::RTM_NEWLINK, 2, &[0; 16]);
        let datagram = [stale, acknowledgment(1), link, acknowledgment(2)].concat();
        let told = replies(&datagram, 2).collect::<Vec<_>>();
        assert_eq!(told, [Reply::Done]);
    }

    #[test]
    fn any_bytes_are_told_without_a_panic() {
        let empty = 0u32.to_ne_bytes();
        let datagram = [discipline(3, b"pfifo\0", &empty), acknowledgment(3)].concat();
        for length in 0..datagram.len() {
            let told = replies(&datagram[..length], 3).count();
            assert!(told <= 1);
        }
        for at in 0..datagram.len() {
            for value in 0..=u8::MAX {
                let mut changed = datagram.clone();
                changed[at] = value;
                // Each message takes its header at least: it ends.
                assert!(replies(&changed, 3).count() <= datagram.len() / HEADER_LEN);
            }
        }
        bolero::check!()
            .with_iterations(20_000)
            .for_each(|bytes: &[u8]| {
                let most = bytes.len() / HEADER_LEN;
                assert!(replies(bytes, 0).count() <= most);
            });
    }
}
