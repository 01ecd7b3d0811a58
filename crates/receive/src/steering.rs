//! Decides when a flooded port is moved to its own receive queue, and when it is moved
//! back.
//!
//! A host that demultiplexes pays for each frame that it drops. A card that steers
//! demultiplexes before the host pays (NI-LRP, Druschel & Banga, OSDI 1996, section 3.1):
//! the frames of a port with its own queue die in that queue's ring. So a port is *moved*
//! to the last queue while it costs the others, by these rules:
//!
//! 1. A port is *under pressure* when it has most of the frames, and one of two holds. A
//!    part in 32 of the time goes into frames that full channels drop, or half of the
//!    polls use up their budget. The second holds while the ring loses frames that are
//!    not polled.
//! 2. Pressure that persists for [`PERSISTS`] moves the port. A burst is over by then.
//! 3. A moved port is still flooded while half of its queue's polls use up their budget,
//!    or its channel drops frames. After [`STAY`] without that it is moved back.
//! 4. A port that is moved again soon after it was moved back stays twice as long as the
//!    last time, up to [`STAY_MOST`]. A flood that pauses costs one move per pause, and
//!    fewer and fewer of its pauses are noticed.
//! 5. A device that refuses a rule is asked again after [`RETRY`], one that cannot steer
//!    never.
//!
//! One port is moved at a time: one queue is reserved. The machine performs no I/O: it
//! receives a [`Look`] now and then, and returns an order.

/// Pressure for this long moves a port, ns.
pub const PERSISTS: u64 = 100_000_000;
/// A moved port is moved back after this long without a flood, ns.
pub const STAY: u64 = 1_000_000_000;
/// The longest such time for a port that flaps, ns.
pub const STAY_MOST: u64 = 64 * STAY;
/// A port flaps if it is under pressure within this many stays after it was moved back.
const SOON: u64 = 8;
/// A refused rule is retried after this long, ns.
pub const RETRY: u64 = 60_000_000_000;
/// Least share of the time that dropped frames cost under pressure: one part in this
/// many.
const WASTED: u64 = 32;
/// Minimum number of polls of a look for their share to be meaningful.
const POLLS: u64 = 4;

/// Polls of queues since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polls {
    /// Their number.
    pub polls: u64,
    /// Polls among them that used up their budget.
    pub exhausted: u64,
}

impl Polls {
    /// True when half of them left frames behind.
    fn are_behind(self) -> bool {
        self.polls >= POLLS && self.exhausted.saturating_mul(2) >= self.polls
    }
}

/// The frames of a port since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortLoad {
    /// The UDP port.
    pub port: u16,
    /// Frames for it that the driver program saw, including dropped ones.
    pub frames: u64,
    /// Frames that found its channel full.
    pub dropped: u64,
}

/// A look at the device. All counts are since the last look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look<'a> {
    /// Its time, ns since any fixed moment.
    pub now: u64,
    /// Time that any thread spent on frames that full channels dropped, ns. This and the
    /// next two are of the shared queues.
    pub wasted: u64,
    /// Polls.
    pub polls: Polls,
    /// Frames that the driver program saw.
    pub frames: u64,
    /// Polls of the reserved queue.
    pub reserved: Polls,
    /// Ports that may be moved.
    pub ports: &'a [PortLoad],
    /// There are other sockets. A port without neighbours harms none.
    pub has_neighbours: bool,
}

/// An order to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Make the device put this port's frames on the reserved queue.
    Move(u16),
    /// Remove that rule.
    PutBack(u16),
}

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The device cannot steer.
    ForGood,
    /// Its table is full, or it was busy.
    ForNow,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// No port is moved.
    #[default]
    Shared,
    /// A port has been under pressure since then.
    Pressed { port: u16, since: u64 },
    /// A port is moved, and was last seen flooded then.
    Moved { port: u16, flooded: u64 },
}

/// The decisions about one device.
#[derive(Clone, Copy, Debug)]
pub struct Steering {
    state: State,
    /// Time of the last look.
    looked: Option<u64>,
    /// How long a moved port stays without a flood.
    stay: u64,
    /// The port that was last moved back, and when.
    put_back: Option<(u16, u64)>,
    /// No rule is tried before this.
    not_before: u64,
}

impl Default for Steering {
    fn default() -> Self {
        Steering {
            state: State::Shared,
            looked: None,
            stay: STAY,
            put_back: None,
            not_before: 0,
        }
    }
}

impl Steering {
    /// The port that is moved.
    pub fn moved(&self) -> Option<u16> {
        match self.state {
            State::Moved { port, .. } => Some(port),
            _ => None,
        }
    }

    /// True while further looks are needed, whether or not frames arrive.
    pub fn is_busy(&self) -> bool {
        !matches!(self.state, State::Shared)
    }

    /// True once the device is known not to steer: further looks are useless.
    pub fn has_ended(&self) -> bool {
        self.not_before == u64::MAX
    }

    /// Whether a look is worth the cost of counting each port's frames.
    pub fn needs_ports(&self, look: &Look<'_>) -> bool {
        self.is_busy() || Self::costs(look, self.elapsed(look))
    }

    fn elapsed(&self, look: &Look<'_>) -> u64 {
        look.now.saturating_sub(self.looked.unwrap_or(look.now))
    }

    /// Records a look. The caller carries out the order, or calls [`Steering::refused`].
    pub fn look(&mut self, look: &Look<'_>) -> Option<Order> {
        let now = look.now;
        let elapsed = self.elapsed(look);
        self.looked.replace(now)?;
        match self.state {
            State::Moved { port, flooded } => {
                let load = look.ports.iter().find(|load| load.port == port);
                let flooded = match load {
                    Some(load) if look.reserved.are_behind() || load.dropped > 0 => now,
                    Some(_) => flooded,
                    // Its socket was closed.
                    None => return Some(self.put_back(port, now)),
                };
                self.state = State::Moved { port, flooded };
                (now - flooded >= self.stay).then(|| self.put_back(port, now))
            }
            State::Shared | State::Pressed { .. } => {
                let pressed = Self::pressed(look, elapsed).filter(|_| now >= self.not_before);
                let Some(port) = pressed else {
                    self.state = State::Shared;
                    return None;
                };
                match self.state {
                    State::Pressed { port: same, since } if same == port => {
                        if now.saturating_sub(since) < PERSISTS {
                            return None;
                        }
                        self.move_port(port, now);
                        Some(Order::Move(port))
                    }
                    _ => {
                        self.state = State::Pressed { port, since: now };
                        None
                    }
                }
            }
        }
    }

    /// Records that the last order could not be carried out.
    pub fn refused(&mut self, how: Refusal) {
        self.state = State::Shared;
        self.not_before = match how {
            Refusal::ForGood => u64::MAX,
            Refusal::ForNow => self.looked.unwrap_or(0).saturating_add(RETRY),
        };
    }

    /// The port whose frames cost the others, if there is one.
    fn pressed(look: &Look<'_>, elapsed: u64) -> Option<u16> {
        if !look.has_neighbours || !Self::costs(look, elapsed) {
            return None;
        }
        let most = look.ports.iter().max_by_key(|load| load.frames)?;
        (most.frames > 0 && most.frames.saturating_mul(2) >= look.frames).then_some(most.port)
    }

    /// Whether a flooded port costs the others.
    fn costs(look: &Look<'_>, elapsed: u64) -> bool {
        look.wasted.saturating_mul(WASTED) >= elapsed.max(1) || look.polls.are_behind()
    }

    fn move_port(&mut self, port: u16, now: u64) {
        let flaps = self.put_back.is_some_and(|(before, at)| {
            before == port && now.saturating_sub(at) < self.stay.saturating_mul(SOON)
        });
        self.stay = if flaps {
            self.stay.saturating_mul(2).min(STAY_MOST)
        } else {
            STAY
        };
        self.state = State::Moved { port, flooded: now };
    }

    fn put_back(&mut self, port: u16, now: u64) -> Order {
        self.state = State::Shared;
        self.put_back = Some((port, now));
        Order::PutBack(port)
    }
}

#[cfg(test)]
mod tests;
