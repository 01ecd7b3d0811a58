//! Writes captures in the pcapng format (IETF draft-ietf-opsawg-pcapng): a section
//! header, one interface per stack, then one enhanced packet block per frame. Its comment
//! is what Tidewall did to the frame. Its `epb_verdict` is the XDP verdict, which
//! Wireshark knows.

use std::io::{self, Write};

/// Block types (§4).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

/// Options of any block (§3.5).
const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
/// Options of a section header (§4.1).
const SECTION_APPLICATION: u16 = 4;
/// Options of an interface description (§4.2).
const INTERFACE_NAME: u16 = 2;
const INTERFACE_RESOLUTION: u16 = 9;
/// Options of an enhanced packet (§4.3).
const PACKET_FLAGS: u16 = 2;
const PACKET_NUMBER: u16 = 5;
const PACKET_QUEUE: u16 = 6;
const PACKET_VERDICT: u16 = 7;

/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;
/// Timestamps in units of 10^-9 s.
const NANOSECONDS: u8 = 9;
/// Direction: inbound.
const INBOUND: u32 = 1;
/// Kind of verdict: Linux eBPF XDP, a 64-bit `enum xdp_action`.
const VERDICT_XDP: u8 = 2;

/// One frame.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// From [`Writer::interface`].
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Captured bytes.
    pub bytes: &'a [u8],
    /// Bytes on the wire.
    pub length: u32,
    /// Number of the frame.
    pub number: u64,
    /// Device queue.
    pub queue: u32,
    /// `enum xdp_action`.
    pub verdict: u64,
    /// For people.
    pub comment: &'a str,
}

/// Writes one section.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    interfaces: u32,
}

impl<W: Write> Writer<W> {
    /// Begins a section.
    ///
    /// # Errors
    /// The error of writing.
    pub fn new(mut out: W) -> io::Result<Self> {
        let mut body = Vec::new();
        body.extend(0x1a2b_3c4d_u32.to_le_bytes());
        body.extend(1u16.to_le_bytes());
        body.extend(0u16.to_le_bytes());
        // Length of the section: not given.
        body.extend(u64::MAX.to_le_bytes());
        option(
            &mut body,
            SECTION_APPLICATION,
            concat!("tidewall ", env!("CARGO_PKG_VERSION")).as_bytes(),
        );
        option(&mut body, END_OF_OPTIONS, &[]);
        block(&mut out, SECTION_HEADER, &body)?;
        Ok(Writer { out, interfaces: 0 })
    }

    /// Describes an interface; returns its number.
    ///
    /// # Errors
    /// The error of writing.
    pub fn interface(&mut self, name: &str) -> io::Result<u32> {
        let mut body = Vec::new();
        body.extend(ETHERNET.to_le_bytes());
        body.extend(0u16.to_le_bytes());
        // No limit to the length of packets.
        body.extend(0u32.to_le_bytes());
        option(&mut body, INTERFACE_NAME, name.as_bytes());
        option(&mut body, INTERFACE_RESOLUTION, &[NANOSECONDS]);
        option(&mut body, END_OF_OPTIONS, &[]);
        block(&mut self.out, INTERFACE_DESCRIPTION, &body)?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// The error of writing.
    pub fn packet(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        let mut body = Vec::new();
        body.extend(packet.interface.to_le_bytes());
        body.extend(((packet.time >> 32) as u32).to_le_bytes());
        body.extend((packet.time as u32).to_le_bytes());
        body.extend((packet.bytes.len() as u32).to_le_bytes());
        body.extend(packet.length.max(packet.bytes.len() as u32).to_le_bytes());
        body.extend(packet.bytes);
        pad(&mut body);
        option(&mut body, COMMENT, packet.comment.as_bytes());
        option(&mut body, PACKET_FLAGS, &INBOUND.to_le_bytes());
        option(&mut body, PACKET_NUMBER, &packet.number.to_le_bytes());
        option(&mut body, PACKET_QUEUE, &packet.queue.to_le_bytes());
        let mut verdict = vec![VERDICT_XDP];
        verdict.extend(packet.verdict.to_le_bytes());
        option(&mut body, PACKET_VERDICT, &verdict);
        option(&mut body, END_OF_OPTIONS, &[]);
        block(&mut self.out, ENHANCED_PACKET, &body)
    }

    /// Ends the section.
    ///
    /// # Errors
    /// The error of flushing.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Fills to a multiple of four bytes.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    // An option's length has 16 bits. No text here comes near; a longer one is cut rather
    // than break the file.
    let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    pad(body);
}

/// Writes a block: type, total length, body, total length again.
fn block(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let length = (body.len() + 12) as u32;
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(body)?;
    out.write_all(&length.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::decode::tests::udp4;

    fn capture() -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file).unwrap();
        let interface = writer.interface("tw-veth0").unwrap();
        for (number, payload) in [&b"abcde"[..], &[7; 300]].into_iter().enumerate() {
            let bytes = udp4(payload);
            writer
                .packet(&Packet {
                    interface,
                    time: 1_700_000_000_123_456_789 + number as u64,
                    bytes: &bytes[..bytes.len().min(256)],
                    length: bytes.len() as u32,
                    number: number as u64 + 1,
                    queue: 3,
                    verdict: 4,
                    comment: "driver: redirect to channel 2",
                })
                .unwrap();
        }
        writer.finish().unwrap();
        file
    }

    #[test]
    fn blocks_are_whole_and_say_their_length_twice() {
        let file = capture();
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let mut at = 0;
        let mut kinds = Vec::new();
        while at < file.len() {
            let length = word(at + 4) as usize;
            assert_eq!(length % 4, 0);
            assert_eq!(word(at + length - 4) as usize, length);
            kinds.push(word(at));
            at += length;
        }
        assert_eq!(at, file.len());
        assert_eq!(
            kinds,
            [
                SECTION_HEADER,
                INTERFACE_DESCRIPTION,
                ENHANCED_PACKET,
                ENHANCED_PACKET
            ]
        );
    }

    #[test]
    fn tshark_reads_it_without_complaint() {
        let path = std::env::temp_dir().join(format!("tw-pcapng-{}.pcapng", std::process::id()));
        std::fs::write(&path, capture()).unwrap();
        let result = std::process::Command::new("tshark")
            .args(["-n", "-T", "fields", "-E", "separator=|"])
            .args([
                "-e",
                "frame.time_epoch",
                "-e",
                "frame.len",
                "-e",
                "frame.cap_len",
                "-e",
                "frame.comment",
            ])
            .args([
                "-e",
                "frame.interface_name",
                "-e",
                "frame.packet_id",
                "-e",
                "frame.interface_queue",
            ])
            .args(["-e", "udp.dstport", "-e", "frame.verdict.ebpf_xdp", "-r"])
            .arg(&path)
            .output();
        std::fs::remove_file(&path).unwrap();
        let output = match result {
            Ok(output) => output,
            Err(error) => {
                tidewall_skip::missing(
                    "tshark_reads_it_without_complaint",
                    format!("tshark cannot be run: {error}"),
                );
                return;
            }
        };
        let complaint = String::from_utf8_lossy(&output.stderr);
        let complaint: Vec<&str> = complaint
            .lines()
            .filter(|line| !line.is_empty() && !line.contains("as user \"root\""))
            .collect();
        assert!(
            output.status.success() && complaint.is_empty(),
            "{complaint:?}"
        );
        assert_eq!(
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .collect::<Vec<_>>(),
            [
                "1700000000.123456789|47|47|driver: redirect to channel 2|tw-veth0|1|3|7|4",
                "1700000000.123456790|342|256|driver: redirect to channel 2|tw-veth0|2|3|7|4",
            ]
        );
    }
}
