//! AF_XDP transmission in copy mode.

use std::collections::VecDeque;
use std::io;

use tidewall_device::frame::{Frame, FrameMemory};
use tidewall_device::queue::Transmit;

use super::{Sender, Sent, Sources, template};
use crate::circuit;
use crate::neighbour::Path;
use crate::spec::{BlastSpec, Content, invalid};
use crate::template::Template;

/// Frames of the transmitter: several of the largest bursts.
const FRAMES: u32 = 1024;

/// Sends frames that were written once. Only a frame's source is rewritten, if it varies
/// and there are fewer frames than sources.
pub(super) struct SkbSender {
    transmit: Box<dyn Transmit>,
    memory: FrameMemory,
    /// Rewrites a frame's source; none if each frame is sent as it is.
    sources: Option<(Template, Sources)>,
    /// Length of each frame of the memory.
    lengths: Vec<u16>,
    /// Free frames. Those held by the kernel are in neither list.
    free: VecDeque<Frame>,
    reclaimed: Vec<Frame>,
}

impl SkbSender {
    pub(super) fn open(spec: &BlastSpec, path: &Path) -> io::Result<Self> {
        let name = &path.link.name;
        let (transmit, memory, frames) = tidewall_device::afxdp::open_transmitter(
            name, spec.queue, FRAMES,
        )
        .map_err(|error| {
            let text = format!("no AF_XDP transmission: {error} (the socket sender needs nothing)");
            io::Error::new(error.kind(), text)
        })?;
        Self::new(spec, path, transmit, memory, frames)
    }

    fn new(
        spec: &BlastSpec,
        path: &Path,
        transmit: Box<dyn Transmit>,
        memory: FrameMemory,
        mut frames: Vec<Frame>,
    ) -> io::Result<Self> {
        let mut sources = Sources::new(spec, path);
        let (packets, rewrite) = match spec.content {
            Content::Pdus | Content::Cells => (circuit::frames(spec, path)?, None),
            Content::Datagrams if !spec.ports.is_empty() => {
                let packet = |&port: &u16| {
                    let mut to_port = spec.clone();
                    to_port.destination.set_port(port);
                    Ok(template(&to_port, path, &sources)?.frame().to_vec())
                };
                (
                    spec.ports.iter().map(packet).collect::<io::Result<_>>()?,
                    None,
                )
            }
            Content::Datagrams | Content::Syn => {
                let template = template(spec, path, &sources)?;
                let flows = usize::from(spec.flows.max(1));
                let rewrite = spec.spoof.is_some() || flows > frames.len();
                let mut packet = template.frame().to_vec();
                let packets = (0..if rewrite { 1 } else { flows }).map(|_| {
                    let source = sources.next();
                    template.set_source(&mut packet, source.ip(), source.port());
                    packet.clone()
                });
                let packets = packets.collect();
                let again = rewrite.then(|| (template, Sources::new(spec, path)));
                (packets, again)
            }
        };
        if frames.len() < packets.len() {
            return Err(invalid(format!(
                "a PDU of {} bytes needs {} frames, more than a transmitter has",
                spec.payload,
                packets.len()
            )));
        }
        // Frames return in the order in which they were sent: with a whole number of
        // rounds of packets, each can keep its packet.
        frames.truncate(frames.len() - frames.len() % packets.len().max(1));
        let mut lengths = Vec::new();
        for (frame, packet) in frames.iter_mut().zip(packets.iter().cycle()) {
            let index = frame.index() as usize;
            if lengths.len() <= index {
                lengths.resize(index + 1, 0);
            }
            if let Some(length) = lengths.get_mut(index) {
                // A frame is at most 4 KiB.
                *length = packet.len() as u16;
            }
            extend(frame, &memory, transmit.headroom(), &lengths).copy_from_slice(packet);
        }
        Ok(SkbSender {
            transmit,
            memory,
            sources: rewrite,
            lengths,
            free: frames.into(),
            reclaimed: Vec::new(),
        })
    }

    /// Returns a frame to send, if the kernel has returned one.
    fn take(&mut self) -> io::Result<Option<Frame>> {
        if self.free.is_empty() {
            self.flush()?;
        }
        Ok(self.free.pop_front())
    }

    fn flush(&mut self) -> io::Result<()> {
        loop {
            let flushed = self.transmit.flush()?;
            // No room below: the frames stay queued and leave with the next flush.
            if flushed.left == 0 || flushed.full {
                break;
            }
        }
        self.transmit.reclaim(&mut self.reclaimed);
        self.free.extend(self.reclaimed.drain(..));
        Ok(())
    }
}

/// Makes a frame hold its packet of the stream; returns the packet.
fn extend<'a>(
    frame: &'a mut Frame,
    memory: &'a FrameMemory,
    headroom: u16,
    lengths: &[u16],
) -> &'a mut [u8] {
    let length = lengths.get(frame.index() as usize).copied();
    frame.set_extent(headroom, length.unwrap_or(0));
    memory.packet_mut(frame)
}

impl Sender for SkbSender {
    fn send(&mut self, count: u32) -> io::Result<Sent> {
        let headroom = self.transmit.headroom();
        let mut result = Sent::default();
        for _ in 0..count {
            let Some(mut frame) = self.take()? else { break };
            // The completion ring names the frame, not its extent.
            let bytes = extend(&mut frame, &self.memory, headroom, &self.lengths);
            if let Some((template, sources)) = &mut self.sources {
                let source = sources.next();
                template.set_source(bytes, source.ip(), source.port());
            }
            if let Err(frame) = self.transmit.transmit(frame, None) {
                self.flush()?;
                if let Err(frame) = self.transmit.transmit(frame, None) {
                    self.free.push_front(frame);
                    break;
                }
            }
            result.sent += 1;
        }
        self.flush()?;
        result.ring_full = u64::from(count) - result.sent;
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::SenderKind;
    use std::sync::{Arc, Mutex};

    /// A device that keeps a copy of each sent frame, and up to `room` frames until the
    /// next flush.
    struct Recorder {
        memory: FrameMemory,
        room: usize,
        queued: Vec<Frame>,
        done: Vec<Frame>,
        packets: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl Transmit for Recorder {
        fn transmit(
            &mut self,
            frame: Frame,
            _: Option<tidewall_device::queue::Offload>,
        ) -> Result<(), Frame> {
            if self.queued.len() >= self.room {
                return Err(frame);
            }
            self.packets
                .lock()
                .unwrap()
                .push(self.memory.packet(&frame).to_vec());
            self.queued.push(frame);
            Ok(())
        }

        fn flush(&mut self) -> io::Result<tidewall_device::queue::Flushed> {
            self.done.append(&mut self.queued);
            Ok(tidewall_device::queue::Flushed::default())
        }

        fn reclaim(&mut self, frames: &mut Vec<Frame>) {
            frames.extend(self.done.drain(..).map(|mut frame| {
                // The completion ring reports no lengths.
                frame.set_extent(0, 0);
                frame
            }));
        }

        fn checksum_offload(&self) -> bool {
            false
        }

        fn headroom(&self) -> u16 {
            24
        }
    }

    #[allow(unsafe_code)]
    mod raw_frames {
        use super::*;

        /// Four frames, as a device would make them.
        pub(super) fn memory() -> (FrameMemory, Vec<Frame>) {
            let memory = FrameMemory::new(4).unwrap();
            let frames = (0..4)
                // SAFETY: each frame of a memory that nothing else uses, once.
                .map(|index| unsafe { Frame::from_parts(index, 0, 0) })
                .collect();
            (memory, frames)
        }
    }

    fn sender(flows: u16, room: usize) -> (SkbSender, Arc<Mutex<Vec<Vec<u8>>>>) {
        sender_of(room, |spec| spec.flows = flows)
    }

    fn sender_of(
        room: usize,
        change: impl FnOnce(&mut BlastSpec),
    ) -> (SkbSender, Arc<Mutex<Vec<Vec<u8>>>>) {
        let mut spec = BlastSpec::new(SenderKind::Skb, "10.0.0.2:9".parse().unwrap());
        change(&mut spec);
        spec.check().unwrap();
        let path = Path::of_tests();
        let (memory, frames) = raw_frames::memory();
        let packets = Arc::default();
        let recorder = Recorder {
            memory: memory.clone(),
            room,
            queued: Vec::new(),
            done: Vec::new(),
            packets: Arc::clone(&packets),
        };
        (
            SkbSender::new(&spec, &path, Box::new(recorder), memory, frames).unwrap(),
            packets,
        )
    }

    fn ports(packets: &Mutex<Vec<Vec<u8>>>) -> Vec<u16> {
        let packets = packets.lock().unwrap();
        packets
            .iter()
            .map(|packet| {
                assert_eq!(packet.len(), 14 + 20 + 8 + 14);
                u16::from_be_bytes([packet[34], packet[35]]) - 49152
            })
            .collect()
    }

    #[test]
    fn flows_take_turns_whether_or_not_they_fit_the_frames() {
        for (flows, expected) in [
            (1, [0, 0, 0, 0, 0, 0, 0, 0, 0]),
            (3, [0, 1, 2, 0, 1, 2, 0, 1, 2]),
            (5, [0, 1, 2, 3, 4, 0, 1, 2, 3]),
        ] {
            let (mut sender, packets) = sender(flows, 2);
            for count in [1, 5, 3] {
                assert_eq!(
                    sender.send(count).unwrap(),
                    Sent {
                        sent: count.into(),
                        ring_full: 0
                    }
                );
            }
            assert_eq!(ports(&packets), expected, "{flows} flows");
        }
    }

    #[test]
    fn destination_ports_take_turns() {
        let (mut sender, packets) = sender_of(8, |spec| spec.ports = vec![9, 9, 700]);
        sender.send(7).unwrap();
        let packets = packets.lock().unwrap();
        let to = |packet: &Vec<u8>| u16::from_be_bytes([packet[36], packet[37]]);
        let ports: Vec<u16> = packets.iter().map(to).collect();
        assert_eq!(ports, [9, 9, 700, 9, 9, 700, 9]);
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let (mut sender, packets) = sender(1, 0);
        assert_eq!(
            sender.send(7).unwrap(),
            Sent {
                sent: 0,
                ring_full: 7
            }
        );
        assert!(packets.lock().unwrap().is_empty());
        assert_eq!(sender.free.len(), 4, "no frame is lost");
    }
}
