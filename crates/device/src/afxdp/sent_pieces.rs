//! Packets of several frames being transmitted.

/// Packets of several frames that the device has not sent yet: the kernel completes each
/// frame separately.
#[derive(Default)]
pub(super) struct SentPieces {
    /// By frame index: 1 + the index of its packet's first frame; 0 if the frame is a
    /// packet by itself. Empty until the first packet of several frames.
    first: Vec<u32>,
    /// By the index of a packet's first frame: its frames that have not come back.
    left: Vec<u32>,
    /// Number of packets.
    packets: u32,
}

impl SentPieces {
    /// Records a packet that leaves in these frames of a memory of `frames` frames.
    #[cold]
    pub(super) fn add(&mut self, frames: u32, first: u32, pieces: impl Iterator<Item = u32>) {
        self.first.resize(frames as usize, 0);
        self.left.resize(frames as usize, 0);
        let mut count = 0;
        for index in std::iter::once(first).chain(pieces) {
            if let Some(place) = self.first.get_mut(index as usize) {
                *place = first + 1;
                count += 1;
            }
        }
        if let Some(left) = self.left.get_mut(first as usize) {
            *left = count;
            self.packets += 1;
        }
    }

    /// Returns the packet of a frame that has come back, once all its frames have.
    #[inline]
    pub(super) fn whole(&mut self, index: u32) -> Option<u32> {
        match self.packets {
            0 => Some(index),
            _ => self.take(index),
        }
    }

    #[cold]
    fn take(&mut self, index: u32) -> Option<u32> {
        let place = self.first.get_mut(index as usize);
        let first = match place.map(std::mem::take) {
            None | Some(0) => return Some(index),
            Some(first) => first - 1,
        };
        let left = self.left.get_mut(first as usize)?;
        *left = left.saturating_sub(1);
        if *left > 0 {
            return None;
        }
        self.packets = self.packets.saturating_sub(1);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_comes_back_once_with_its_last_frame() {
        let mut sent = SentPieces::default();
        assert_eq!(sent.whole(5), Some(5));
        sent.add(16, 3, [9, 1].into_iter());
        sent.add(16, 4, [8].into_iter());
        assert_eq!(sent.whole(9), None);
        assert_eq!(sent.whole(5), Some(5), "a packet of its own");
        assert_eq!(sent.whole(4), None);
        assert_eq!(sent.whole(3), None);
        assert_eq!(sent.whole(1), Some(3));
        assert_eq!(sent.whole(8), Some(4));
        // Both can be sent again, each by itself.
        assert_eq!([3, 9].map(|index| sent.whole(index)), [Some(3), Some(9)]);
    }
}
