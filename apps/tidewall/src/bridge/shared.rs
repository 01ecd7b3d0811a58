//! A connection to the switch, and the programs that share it.
//!
//! Requests made at the same time leave together, in segments as full as possible:
//! switch, member and server then pay per segment for each member, not per program. A
//! program that does not read its replies must not delay the others, so its replies are
//! kept, within bounds.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::net::TcpStream;

use super::client::{Client, HELD_MAX};
use super::ends::{ByteEnd, Event, FrameEnd, Next, is_connected, said};
use super::pair::{FRAMES, ROUNDS};
use super::queue::{Messages, QUEUE_MAX};
use super::requests::Requests;

/// Programs that have ended, by number, with the error of those that were broken off.
pub type Over = Vec<(u64, Option<String>)>;

#[derive(Debug)]
pub struct Shared {
    frames: FrameEnd,
    requests: Requests,
    messages: Messages,
    programs: HashMap<u64, Program>,
    /// Programs that can do more, the longest-waiting first.
    due: VecDeque<u64>,
    connecting: bool,
}

#[derive(Debug)]
struct Program {
    bytes: ByteEnd,
    client: Client,
    is_due: bool,
}

impl Shared {
    /// Wraps a connection that is being established.
    pub fn new(frames: TcpStream, messages: Messages) -> io::Result<Self> {
        Ok(Self {
            frames: FrameEnd::new(frames)?,
            requests: Requests::new(0),
            messages,
            programs: HashMap::new(),
            due: VecDeque::new(),
            connecting: true,
        })
    }

    pub const fn frames(&self) -> &FrameEnd {
        &self.frames
    }

    /// Returns how many programs share it; `None` if it accepts no more.
    pub fn load(&self) -> Option<usize> {
        (!self.frames.has_ended()).then_some(self.programs.len())
    }

    /// Returns all programs that share it.
    pub fn programs(&self) -> impl Iterator<Item = u64> {
        self.programs.keys().copied()
    }

    pub fn add(&mut self, number: u64, plain: File) {
        let program = Program {
            bytes: ByteEnd::new(plain),
            client: Client::new(self.messages, number),
            is_due: true,
        };
        self.programs.insert(number, program);
        self.due.push_back(number);
    }

    pub fn frames_event(&mut self, event: Event) -> Result<(), String> {
        self.frames.event(event);
        if self.connecting && event.writable && is_connected(self.frames.socket())? {
            self.connecting = false;
            self.requests.frame_max = self.frames.frame_max().map_err(said("segments"))?;
        }
        Ok(())
    }

    pub fn program_event(&mut self, number: u64, event: Event) {
        if let Some(program) = self.programs.get_mut(&number) {
            program.bytes.event(event);
            program.becomes_due(number, &mut self.due);
        }
    }

    /// Reads and sends what there is, within bounds; `buffer` is scratch space for
    /// reading. Programs that end are removed and listed in `over`.
    pub fn turn(&mut self, buffer: &mut [u8], over: &mut Over) -> Result<Next, String> {
        if self.connecting {
            return Ok(Next::Wait);
        }
        for _ in 0..ROUNDS {
            let mut moved = self.receive(over)?;
            moved |= self.serve(buffer, over);
            if self.programs.is_empty() {
                if !self.requests.is_idle() {
                    // The bytes on their way to members may end within a frame.
                    self.frames.reset();
                }
                return Ok(Next::Over);
            }
            if !self.frames.has_ended() {
                moved |= self.frames.send(&mut self.requests.frames)?;
            }
            if !moved {
                return Ok(Next::Wait);
            }
        }
        Ok(Next::Again)
    }

    /// Hands programs the replies that have arrived.
    fn receive(&mut self, over: &mut Over) -> Result<bool, String> {
        let ended = self.frames.has_ended();
        let mut moved = false;
        for _ in 0..FRAMES {
            // With a lone program, receiving waits for it.
            let full = |it: &Program| it.bytes.queue.len() >= QUEUE_MAX;
            if self.programs.len() == 1 && self.programs.values().any(full) {
                break;
            }
            let Some(payload) = self.frames.receive() else {
                break;
            };
            moved = true;
            let reply = self.requests.reply(payload)?;
            let number = reply.program;
            // A program that has gone wants no reply.
            let Some(program) = self.programs.get_mut(&number) else {
                continue;
            };
            match program.client.reply(&reply, &mut program.bytes.queue) {
                Ok(()) => {
                    program.becomes_due(number, &mut self.due);
                    if program.kept() > QUEUE_MAX {
                        self.bound(over);
                    }
                }
                Err(what) => {
                    self.programs.remove(&number);
                    over.push((number, Some(what)));
                }
            }
        }
        let ends = self.frames.has_ended() != ended;
        if ends {
            for (&number, program) in &mut self.programs {
                program.becomes_due(number, &mut self.due);
            }
        }
        Ok(moved || ends)
    }

    /// Breaks off the program with the most kept bytes, once the total exceeds the bound.
    fn bound(&mut self, over: &mut Over) {
        let kept: usize = self.programs.values().map(Program::kept).sum();
        let most = self.programs.iter().max_by_key(|(_, it)| it.kept());
        if kept > HELD_MAX
            && let Some((&number, _)) = most
        {
            self.programs.remove(&number);
            let what = format!("more than {HELD_MAX} bytes of replies are kept, most for this one");
            over.push((number, Some(what)));
        }
    }

    /// Serves each program that can do more, once; returns whether more can be done at
    /// once.
    fn serve(&mut self, buffer: &mut [u8], over: &mut Over) -> bool {
        let mut moved = false;
        for _ in 0..self.due.len() {
            let Some(number) = self.due.pop_front() else {
                break;
            };
            let Some(program) = self.programs.get_mut(&number) else {
                continue;
            };
            program.is_due = false;
            let next = match self.frames.has_ended() {
                false => program.turn(&mut self.requests, buffer),
                true => program.last_turn(self.frames.failed()),
            };
            match next {
                Ok(Next::Wait) if !program.client.is_paused() => {}
                Ok(next @ (Next::Wait | Next::Again)) => {
                    moved |= next == Next::Again;
                    program.becomes_due(number, &mut self.due);
                }
                Ok(Next::Over) => {
                    self.programs.remove(&number);
                    over.push((number, None));
                }
                Err(what) => {
                    self.programs.remove(&number);
                    over.push((number, Some(what)));
                }
            }
        }
        moved
    }
}

impl Program {
    /// Returns the bytes of replies that it has not read, or that wait for earlier ones.
    fn kept(&self) -> usize {
        self.bytes.queue.len() + self.client.held()
    }

    fn becomes_due(&mut self, number: u64, due: &mut VecDeque<u64>) {
        if !self.is_due {
            self.is_due = true;
            due.push_back(number);
        }
    }

    /// Makes frames of the program's requests, and sends it the replies.
    fn turn(&mut self, requests: &mut Requests, buffer: &mut [u8]) -> Result<Next, String> {
        let queue = &mut self.bytes.queue;
        // Messages that the limits kept back may continue now.
        self.client.resume(requests, queue)?;
        if self.client.wants_bytes()
            && let Some(read) = self.bytes.read(buffer)?
        {
            if read.is_empty() {
                self.client.end();
            }
            self.client.bytes(read, requests, &mut self.bytes.queue)?;
        }
        // Replies may wait for room here, which no event reports.
        let full = self.bytes.queue.len() >= QUEUE_MAX;
        let room = self.bytes.send()? && full;
        let done = self.client.is_done() && self.bytes.queue.is_empty();
        let more = room || self.client.wants_bytes() && self.bytes.is_readable();
        Ok(match (done, more) {
            (true, _) => Next::Over,
            (false, true) => Next::Again,
            (false, false) => Next::Wait,
        })
    }

    /// Sends the program the replies that arrived before the connection with the switch
    /// ended.
    fn last_turn(&mut self, failed: Option<&str>) -> Result<Next, String> {
        self.bytes.send()?;
        if !self.bytes.queue.is_empty() {
            return Ok(Next::Wait);
        }
        match failed {
            _ if self.client.is_done() => Ok(Next::Over),
            Some(what) => Err(what.to_owned()),
            None => Err("members ended the connection".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use tidewall_acp::{FrameReader, FrameStream, FrameWriter};

    use super::super::queue::{Header, Queue};
    use super::*;

    /// Returns the two ends of a connection over loopback.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        far.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        near.set_nonblocking(true).unwrap();
        (near, far)
    }

    const EVENT: Event = Event {
        readable: true,
        writable: true,
        hung_up: false,
    };

    /// A connection that programs share, the switch's end of it, and the programs' own
    /// ends.
    struct System {
        shared: Shared,
        reader: FrameReader<TcpStream>,
        writer: FrameWriter,
        programs: Vec<TcpStream>,
        over: Over,
        /// Offsets at which unfinished replies continue.
        offsets: HashMap<u32, u32>,
    }

    impl System {
        fn new(programs: u64) -> Self {
            let (near, switch) = connection();
            let mut shared = Shared::new(near, Messages::Resp).unwrap();
            shared.frames_event(EVENT).unwrap();
            let add = |number| {
                let (plain, program) = connection();
                shared.add(number, File::from(OwnedFd::from(plain)));
                program
            };
            let programs = (0..programs).map(add).collect();
            let (reader, writer) = FrameStream::new(switch).unwrap().split();
            Self {
                shared,
                reader,
                writer,
                programs,
                over: Vec::new(),
                offsets: HashMap::new(),
            }
        }

        fn turn(&mut self) {
            self.shared.frames_event(EVENT).unwrap();
            // A program that has gone has no events.
            for number in 0..3 {
                self.shared.program_event(number, EVENT);
            }
            let buffer = &mut [0; 1 << 16];
            while self.shared.turn(buffer, &mut self.over).unwrap() == Next::Again {}
        }

        fn asked(&mut self) -> u32 {
            let payload = self.reader.receive().unwrap().unwrap();
            Header::parse(payload).unwrap().0.id
        }

        fn reply(&mut self, id: u32, bytes: &[u8]) {
            self.part(id, true, bytes);
        }

        /// Sends a part of a reply.
        fn part(&mut self, id: u32, last: bool, bytes: &[u8]) {
            let header = Header {
                id,
                last,
                route: 0,
                offset: self.offsets.remove(&id),
            };
            let next = header.next_offset(bytes.len());
            self.offsets.extend(next.map(|next| (id, next)));
            let mut payload = Queue::default();
            header.push(&[], bytes, &mut payload);
            self.writer.send(payload.as_slice()).unwrap();
        }

        fn hears(&mut self, program: usize, bytes: &[u8]) {
            let mut answer = vec![0; bytes.len()];
            self.programs[program].read_exact(&mut answer).unwrap();
            assert_eq!(answer, bytes);
        }
    }

    /// Messages that were kept back leave in the same turn in which replies make room for
    /// them: no event would bring another turn.
    #[test]
    fn what_limits_kept_back_is_sent_when_replies_come() {
        const COMMANDS: usize = 1500;
        let mut system = System::new(1);
        let commands = b"GET a\r\n".repeat(COMMANDS);
        system.programs[0].write_all(&commands).unwrap();
        system.turn();
        // As many as may be unanswered.
        let first: Vec<_> = (0..1024).map(|_| system.asked()).collect();
        assert_eq!(first, (0..1024).collect::<Vec<_>>());
        system.reply(0, b"$-1\r\n");
        system.turn();
        assert_eq!(system.asked(), 0);
        system.hears(0, b"$-1\r\n");
    }

    /// Unread replies are bounded for all programs together, and programs that read
    /// continue.
    #[test]
    fn who_reads_nothing_is_broken_off_and_nobody_else() {
        const PIECE: usize = 30_000;
        let mut system = System::new(3);
        for program in 0..3 {
            system.programs[program].write_all(b"GET a\r\n").unwrap();
        }
        system.turn();
        let ids: Vec<_> = (0..3).map(|_| system.asked()).collect();
        // An endless reply, twice as fast to the first program.
        let piece = |system: &mut System, id, first: bool| {
            let start = if first { "$1000000000\r\n" } else { "" };
            system.part(id, false, &[start.as_bytes(), &[b'x'; PIECE]].concat());
            system.turn();
        };
        let mut sent = 0;
        while system.over.is_empty() {
            for id in [ids[0], ids[0], ids[1]] {
                piece(&mut system, id, sent < 3 && id != ids[0] || sent == 0);
                sent += 1;
            }
            assert!(sent * PIECE < HELD_MAX * 5 / 4, "{sent}");
        }
        let [(0, Some(why))] = &system.over[..] else {
            panic!("{:?}", system.over);
        };
        assert!(why.contains("are kept"), "{why}");
        system.reply(ids[2], b":7\r\n");
        system.turn();
        system.hears(2, b":7\r\n");
        assert_eq!(system.shared.load(), Some(2));
    }

    /// Programs ask in one segment; each receives its own replies, in the order of its
    /// requests, even if another leaves or does not read.
    #[test]
    fn each_of_several_programs_hears_what_it_asked() {
        let mut system = System::new(3);
        for program in 0..3 {
            system.programs[program]
                .write_all(b"GET a\r\nGET b\r\n")
                .unwrap();
        }
        system.turn();
        let ids: Vec<_> = (0..6).map(|_| system.asked()).collect();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
        // One leaves at once: no program receives its reply.
        drop(system.programs.remove(1));
        for id in [5, 3, 1, 4, 2, 0] {
            system.reply(id, format!(":{id}\r\n").as_bytes());
        }
        let event = Event {
            hung_up: true,
            ..EVENT
        };
        system.shared.program_event(1, event);
        system.turn();
        system.turn();
        system.hears(0, b":0\r\n:1\r\n");
        system.hears(1, b":4\r\n:5\r\n");
        assert_eq!(system.over.iter().map(|it| it.0).collect::<Vec<_>>(), [1]);
        assert_eq!(system.shared.load(), Some(2));
        // More than one program that does not read can hold: the other continues.
        let long = [b"$1000000\r\n", &[b'x'; 1_000_000][..], b"\r\n"].concat();
        system.programs[0]
            .write_all(&b"GET long\r\n".repeat(3))
            .unwrap();
        system.programs[1].write_all(b"GET a\r\n").unwrap();
        system.turn();
        let ids: Vec<_> = (0..4).map(|_| system.asked()).collect();
        let pieces: Vec<&[u8]> = long.chunks(30_000).collect();
        for (place, piece) in pieces.iter().enumerate() {
            system.part(ids[0], place + 1 == pieces.len(), piece);
            system.turn();
        }
        system.reply(ids[3], b":7\r\n");
        system.turn();
        system.hears(1, b":7\r\n");
        // The connection's end reaches every program, after the earlier replies.
        drop((system.reader, system.writer));
        let (mut shared, mut over) = (system.shared, Vec::new());
        let mut said = Vec::new();
        let mut reader = system.programs.swap_remove(0);
        let reading = std::thread::spawn(move || {
            let _ = reader.read_to_end(&mut said);
            said
        });
        let buffer = &mut [0; 1 << 16];
        for _ in 0..1000 {
            shared.frames_event(EVENT).unwrap();
            (0..3).for_each(|number| shared.program_event(number, EVENT));
            if shared.turn(buffer, &mut over).unwrap() == Next::Over {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(over.len(), 2);
        assert!(over.iter().all(|(_, why)| why.is_some()));
        assert_eq!(reading.join().unwrap(), long);
    }
}
