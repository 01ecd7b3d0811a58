//! The client side: a program's messages into frames, and replies in the order of the
//! requests.

use std::collections::VecDeque;

use tidewall_wire::resp;

use super::commands::{Merge, Plan, array, error, merge, plan};
use super::queue::{HEADER_LEN, Messages, OFFSET_LEN, QUEUE_MAX, Queue, Scanner};
use super::requests::{Reply, Requests};

/// Largest command in bytes, and so the most input read but not yet sent.
pub const COMMAND_MAX: usize = 4 << 20;
/// Parts of requests that are unanswered or wait for earlier replies; beyond this, no
/// command is read. At most this many parts of one command are sent before replies
/// arrive.
pub const PARTS_MAX: usize = 1024;
/// Bytes of replies that wait for earlier ones; beyond this, no command is read.
const HELD_PAUSE: usize = 1 << 20;
/// Most bytes of replies, per connection to the switch, that wait for earlier ones or to
/// be read.
pub const HELD_MAX: usize = 64 << 20;

/// A part of a request, and its reply as far as received.
#[derive(Debug)]
struct Part {
    reply: Vec<u8>,
    ended: bool,
}

#[derive(Debug)]
struct Request {
    merge: Merge,
    /// Number of parts that belong to this request, in order.
    parts: usize,
}

/// A program's connection.
#[derive(Debug)]
pub struct Client {
    messages: Messages,
    /// Its number among programs.
    number: u64,
    input: Queue,
    scanner: Scanner,
    /// Bytes of the input that the scanner has seen: all part of one unfinished message.
    scanned: usize,
    /// The number of the next part.
    next: u32,
    requests: VecDeque<Request>,
    parts: VecDeque<Part>,
    /// Number of parts without a whole reply.
    unanswered: usize,
    /// Number of the oldest request's parts, from its first on, known to have a reply.
    ready: usize,
    /// Parts of the last request, to be sent as others are answered.
    unsent: VecDeque<Vec<u8>>,
    /// Bytes of replies in the parts.
    held: usize,
    /// The input may hold messages that the limits keep back.
    paused: bool,
    /// The program sends nothing more.
    ended: bool,
    /// No further message is accepted.
    closing: bool,
}

impl Client {
    pub fn new(messages: Messages, number: u64) -> Self {
        Self {
            messages,
            number,
            input: Queue::default(),
            scanner: Scanner::new(messages),
            scanned: 0,
            next: 0,
            requests: VecDeque::new(),
            parts: VecDeque::new(),
            unanswered: 0,
            ready: 0,
            unsent: VecDeque::new(),
            held: 0,
            paused: false,
            ended: false,
            closing: false,
        }
    }

    /// Returns whether more of the program's bytes may be read.
    pub const fn wants_bytes(&self) -> bool {
        !self.paused && !self.closing
    }

    /// Returns whether every message was answered and no other will be accepted.
    pub fn is_done(&self) -> bool {
        self.closing && self.requests.is_empty()
    }

    /// Marks the end of the program's input; call [`Client::resume`] next.
    pub const fn end(&mut self) {
        self.ended = true;
    }

    /// Returns whether limits may keep messages in the input.
    pub const fn is_paused(&self) -> bool {
        self.paused
    }

    /// Accepts bytes from the program.
    pub fn bytes(
        &mut self,
        bytes: &[u8],
        requests: &mut Requests,
        program: &mut Queue,
    ) -> Result<(), String> {
        self.input.push(bytes);
        self.resume(requests, program)
    }

    /// Makes frames of the messages received, as far as the limits allow.
    pub fn resume(&mut self, requests: &mut Requests, program: &mut Queue) -> Result<(), String> {
        loop {
            let full = match self.unsent.is_empty() {
                true => self.parts.len() >= PARTS_MAX || self.held >= HELD_PAUSE,
                // Replies to a command with an unsent part wait for that part.
                false => self.unanswered >= PARTS_MAX,
            };
            self.paused = full || requests.frames.len() >= QUEUE_MAX || program.len() >= QUEUE_MAX;
            if self.paused {
                break;
            }
            if let Some(part) = self.unsent.pop_front() {
                if !self.send(&part, requests) {
                    return Err("a key is longer than a frame".to_owned());
                }
                continue;
            }
            if self.closing || !self.message(requests)? {
                break;
            }
            self.answer(program);
        }
        self.closing |= self.ended && !self.paused;
        self.answer(program);
        Ok(())
    }

    /// Takes a message from the input; returns false without a whole one.
    fn message(&mut self, requests: &mut Requests) -> Result<bool, String> {
        let input = self.input.as_slice();
        let inline = self.messages == Messages::Resp && !input.starts_with(b"*");
        if inline {
            return Ok(self.inline(requests));
        }
        let (taken, ended) = match self
            .scanner
            .scan(input.get(self.scanned..).unwrap_or_default())
        {
            Ok(scan) => scan,
            Err(what) if self.messages == Messages::Resp => {
                self.refuse(&format!("Protocol error: {what}"));
                return Ok(true);
            }
            Err(what) => return Err(what),
        };
        let length = self.scanned + taken;
        self.scanned = if ended { 0 } else { length };
        if length > COMMAND_MAX {
            let what = format!("a message of more than {COMMAND_MAX} bytes");
            return match self.messages {
                Messages::Resp => {
                    self.refuse(&what);
                    Ok(true)
                }
                Messages::Length => Err(what),
            };
        }
        if !ended {
            return Ok(false);
        }
        match self.messages {
            Messages::Resp => self.command(length, requests),
            Messages::Length => {
                let message = self.input.as_slice().get(..length).unwrap_or_default();
                if message.len() + HEADER_LEN > requests.frame_max {
                    return Err(format!(
                        "a message of {length} bytes is longer than a frame"
                    ));
                }
                requests.push(self.number, self.next, &[], message);
                self.wait_for_part();
                self.ask(Merge::One, 1);
            }
        }
        self.input.consume(length);
        Ok(true)
    }

    /// Handles a command as people type it: words on a line.
    fn inline(&mut self, requests: &mut Requests) -> bool {
        let input = self.input.as_slice();
        let Some(length) = input.iter().position(|&byte| byte == b'\n') else {
            if input.len() > QUEUE_MAX {
                self.refuse("Protocol error: a line is too long");
                return true;
            }
            return false;
        };
        let words = input.get(..length).unwrap_or_default();
        let words: Vec<_> = words
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .collect();
        let command = array(&words);
        if !words.is_empty() {
            self.carry_out(plan(&command), &command, requests);
        }
        self.input.consume(length + 1);
        true
    }

    /// Handles the command at the start of the input.
    fn command(&mut self, length: usize, requests: &mut Requests) {
        let input = std::mem::take(&mut self.input);
        let command = input.as_slice().get(..length).unwrap_or_default();
        self.carry_out(plan(command), command, requests);
        self.input = input;
    }

    fn carry_out(&mut self, plan: Plan, command: &[u8], requests: &mut Requests) {
        match plan {
            Plan::Whole => match self.send(command, requests) {
                true => self.ask(Merge::One, 1),
                false => self.say(error("the key is longer than a frame")),
            },
            Plan::Parts(merge, parts) => {
                // All or none: a request sent in part would be executed in part.
                if parts.iter().any(|part| !fits(part, requests.frame_max)) {
                    self.say(error("a key is longer than a frame"));
                    return;
                }
                self.ask(merge, parts.len());
                self.unsent = parts.into();
            }
            Plan::Answer(reply) => self.say(reply),
            Plan::Quit(reply) => {
                self.say(reply);
                self.closing = true;
            }
        }
    }

    /// Sends a command as the next part.
    fn send(&mut self, command: &[u8], requests: &mut Requests) -> bool {
        let route = route(command, requests.frame_max);
        let sent = requests.push(self.number, self.next, &route, command);
        if sent {
            self.wait_for_part();
        }
        sent
    }

    /// Records that the next part has been sent.
    fn wait_for_part(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.unanswered += 1;
        self.parts.push_back(Part {
            reply: Vec::new(),
            ended: false,
        });
    }

    /// Queues a request of this many parts, which waits for their replies.
    fn ask(&mut self, merge: Merge, parts: usize) {
        self.requests.push_back(Request { merge, parts });
    }

    /// Queues a reply that is known already, in its turn. It takes a number that is never
    /// sent.
    fn say(&mut self, reply: Vec<u8>) {
        self.ask(Merge::One, 1);
        self.next = self.next.wrapping_add(1);
        self.held += reply.len();
        self.parts.push_back(Part { reply, ended: true });
    }

    /// Replies with an error after which nothing can be read.
    fn refuse(&mut self, what: &str) {
        self.say(error(what));
        self.closing = true;
    }

    /// Returns the bytes of replies that wait for earlier ones.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Accepts a reply, or a part of one.
    pub fn reply(&mut self, reply: &Reply<'_>, program: &mut Queue) -> Result<(), String> {
        // Numbers count up by one; a number that nothing waits for gives a large
        // difference.
        let oldest = self.next.wrapping_sub(self.parts.len() as u32);
        let place = reply.part.wrapping_sub(oldest) as usize;
        let part = self.parts.get_mut(place).filter(|part| !part.ended);
        let part = part.ok_or("a reply that nothing was asked for")?;
        part.reply.extend_from_slice(reply.bytes);
        part.ended = reply.last;
        self.unanswered -= usize::from(reply.last);
        self.held += reply.bytes.len();
        self.answer(program);
        if self.held > HELD_MAX {
            return Err(format!(
                "more than {HELD_MAX} bytes of replies wait for one"
            ));
        }
        Ok(())
    }

    /// Sends the program what is due: everything available of the oldest requests.
    fn answer(&mut self, program: &mut Queue) {
        while let Some(Request { merge: how, parts }) = self.requests.front() {
            if let (Merge::One, Some(part)) = (how, self.parts.front_mut()) {
                program.push(&part.reply);
                self.held -= part.reply.len();
                part.reply.clear();
                if !part.ended {
                    return;
                }
                self.parts.pop_front();
            } else {
                // Each part is examined once, however many replies arrive.
                let rest = self.parts.range(self.ready.min(self.parts.len())..);
                let rest = rest.take(*parts - self.ready);
                self.ready += rest.take_while(|part| part.ended).count();
                if self.ready < *parts {
                    return;
                }
                self.ready = 0;
                let mine = self.parts.iter().take(*parts);
                program.push(&merge(*how, mine.map(|part| part.reply.as_slice())));
                let gone = self.parts.drain(..*parts);
                self.held -= gone.map(|part| part.reply.len()).sum::<usize>();
            }
            self.requests.pop_front();
        }
    }
}

/// Returns the route of each part of a command longer than a frame: a command that the
/// switch steers to the same member.
fn route(command: &[u8], frame_max: usize) -> Vec<u8> {
    if command.len() + HEADER_LEN <= frame_max {
        return Vec::new();
    }
    let key = resp::key(command).unwrap_or_default();
    array(&[b"GET", key])
}

fn fits(command: &[u8], frame_max: usize) -> bool {
    let route = route(command, frame_max);
    let offset = if route.is_empty() { 0 } else { OFFSET_LEN };
    HEADER_LEN + route.len() + offset < frame_max
}
