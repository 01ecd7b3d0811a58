//! The requests of several programs over one connection, and the owner of each reply.

use super::queue::{Header, Queue, push_frames};

/// Frames on their way to members, and the programs that wait for their answers.
///
/// An id is an index here, and is reused once answered. So state is bounded by the number
/// of unanswered requests, however long one of many takes.
#[derive(Debug, Default)]
pub struct Requests {
    pub frames: Queue,
    /// Largest payload of a frame.
    pub frame_max: usize,
    waiting: Vec<Option<Waiting>>,
    /// Free indices.
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    program: u64,
    part: u32,
    /// Offset at which the reply continues, once part of it has arrived.
    offset: Option<u32>,
}

/// A reply, or a part of one.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The program that sent the request; `part` is the part of its requests.
    pub program: u64,
    pub part: u32,
    pub last: bool,
    pub bytes: &'a [u8],
}

impl Requests {
    /// Creates an empty set, with frames of at most `frame_max` bytes of payload; the
    /// limit may become known later.
    pub fn new(frame_max: usize) -> Self {
        Self {
            frame_max,
            ..Self::default()
        }
    }

    /// Returns whether no request is waiting.
    pub const fn is_idle(&self) -> bool {
        self.waiting.len() == self.free.len()
    }

    /// Acts as [`push_frames`], for a part of a program's requests.
    pub fn push(&mut self, program: u64, part: u32, route: &[u8], bytes: &[u8]) -> bool {
        let id = self.free.last().copied();
        let id = id.unwrap_or(self.waiting.len() as u32);
        let (frames, frame_max) = (&mut self.frames, self.frame_max);
        let pushed = push_frames(frames, frame_max, id, &mut None, true, route, bytes);
        if pushed {
            let offset = None;
            let waiting = Some(Waiting {
                program,
                part,
                offset,
            });
            match self.free.pop().and(self.waiting.get_mut(id as usize)) {
                Some(place) => *place = waiting,
                None => self.waiting.push(waiting),
            }
        }
        pushed
    }

    /// Finds the owner of the reply in a frame.
    pub fn reply<'a>(&mut self, payload: &'a [u8]) -> Result<Reply<'a>, String> {
        let (header, bytes) = Header::parse(payload).ok_or("a frame without a bridge's header")?;
        let place = self.waiting.get_mut(header.id as usize);
        let unasked = "a reply that nothing was asked for";
        let place = place.filter(|it| it.is_some()).ok_or(unasked)?;
        let waiting = place.as_mut().ok_or(unasked)?;
        let Waiting { program, part, .. } = *waiting;
        if header.offset != waiting.offset {
            return Err("a part of a reply that does not follow what came of it".to_owned());
        }
        waiting.offset = header.next_offset(bytes.len());
        if header.last {
            *place = None;
            self.free.push(header.id);
        }
        Ok(Reply {
            program,
            part,
            last: header.last,
            bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_taken_again_once_answered() {
        let mut requests = Requests::new(100);
        let reply = |id, last, offset| {
            let mut payload = Queue::default();
            let header = Header {
                id,
                last,
                route: 0,
                offset,
            };
            header.push(&[], b"ab", &mut payload);
            payload.as_slice().to_vec()
        };
        assert!(!requests.push(7, 0, &[b'k'; 100], b"GET"));
        assert!(requests.push(7, 0, &[], b"GET") && requests.push(8, 5, &[], b"GET"));
        // A reply in two frames, out of order.
        for (last, offset) in [(false, None), (true, Some(2))] {
            assert!(requests.reply(&reply(1, last, Some(7))).is_err());
            let payload = reply(1, last, offset);
            let came = requests.reply(&payload).unwrap();
            assert_eq!((came.program, came.part, came.last), (8, 5, last));
        }
        for payload in [&reply(1, true, None)[..], &reply(2, true, None), b"short"] {
            assert!(requests.reply(payload).is_err());
        }
        assert!(requests.push(9, 1, &[], b"GET"));
        assert_eq!(requests.reply(&reply(1, true, None)).unwrap().program, 9);
        assert_eq!(requests.reply(&reply(0, true, None)).unwrap().program, 7);
        assert_eq!(requests.waiting.len(), 2);
    }
}
