//! Converts congestion control to bytes and back (see [`super::super::freeze`]).

use super::super::freeze::Codec;
use super::super::send::milliseconds;
use super::{Algorithm, Congestion, Controller, Cubic, HyStart, NewReno};

impl Congestion {
    pub(in super::super) fn with<C: Codec>(self, codec: &mut C) -> Self {
        let number = codec.u8(self as u8);
        let known = Self::ALL.get(usize::from(number)).copied();
        known.unwrap_or_else(|| {
            codec.damaged();
            self
        })
    }
}

impl Controller {
    /// Passes every field through a codec.
    pub(in super::super) fn with<C: Codec>(&self, codec: &mut C) -> Self {
        Self {
            window: codec.u32(self.window),
            threshold: codec.u32(self.threshold),
            before: (codec.u32(self.before.0), codec.u32(self.before.1)),
            algorithm: algorithm(self.algorithm, codec),
        }
    }
}

fn algorithm<C: Codec>(algorithm: Algorithm, codec: &mut C) -> Algorithm {
    let kind = codec.u8(match algorithm {
        Algorithm::HyStart(_) => 0,
        Algorithm::Cubic(_) => 1,
        Algorithm::NewReno(_) => 2,
    });
    // When thawing, the values read replace the defaults.
    match kind {
        0 => {
            let hystart = match algorithm {
                Algorithm::HyStart(hystart) => hystart,
                _ => HyStart::default(),
            };
            Algorithm::HyStart(HyStart {
                end: codec.u32(hystart.end),
                last: codec.u32(hystart.last),
                current: codec.u32(hystart.current),
                baseline: codec.u32(hystart.baseline),
                samples: codec.u8(hystart.samples),
                rounds: codec.u8(hystart.rounds),
                begun: codec.flag(hystart.begun),
            })
        }
        1 => {
            let cubic = match algorithm {
                Algorithm::Cubic(cubic) => cubic,
                _ => Cubic::default(),
            };
            Algorithm::Cubic(with_cubic(&cubic, codec))
        }
        2 => {
            let reno = match algorithm {
                Algorithm::NewReno(reno) => reno,
                _ => NewReno::default(),
            };
            Algorithm::NewReno(NewReno {
                counted: codec.u32(reno.counted),
            })
        }
        _ => {
            codec.damaged();
            algorithm
        }
    }
}

fn with_cubic<C: Codec>(cubic: &Cubic, codec: &mut C) -> Cubic {
    Cubic {
        maximum: codec.u32(cubic.maximum),
        estimate: codec.u32(cubic.estimate),
        until_flat: codec.u32(cubic.until_flat),
        elapsed: codec.u32(cubic.elapsed),
        last: {
            let now = milliseconds(codec.now());
            now.wrapping_sub(codec.u32(now.wrapping_sub(cubic.last)))
        },
        counted: codec.u32(cubic.counted),
        before: codec.u32(cubic.before),
        running: codec.flag(cubic.running),
        blind: codec.flag(cubic.blind),
        before_flags: (
            codec.flag(cubic.before_flags.0),
            codec.flag(cubic.before_flags.1),
        ),
    }
}
