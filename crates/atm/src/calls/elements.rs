//! What calls say of themselves: from a circuit's options to a SETUP's elements and back.

use tidewall_wire::atm::Nsap;
use tidewall_wire::atm::q2931::{
    Aal, Bearer, Cause, ConnectionIdentifier, Elements, Number, Opaque, Party, QosClasses,
    TrafficDescriptor, TrafficParameter,
};

use super::{CircuitOptions, Rates};

/// What is called, and what a listener is bound to: a number, and who takes the call there
/// (Linux's `sockaddr_atmsvc` and `atm_sap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sap {
    /// The number. Its last byte, the selector, is the application's to choose.
    pub number: Nsap,
    /// What the application speaks: contents of the element of Q.2931 §4.5.8.
    pub high_layer: Option<Opaque<9>>,
    /// What is in the payloads, below the application: contents of that of §4.5.9.
    pub low_layer: Option<Opaque<13>>,
}

impl From<Nsap> for Sap {
    fn from(number: Nsap) -> Self {
        Sap {
            number,
            high_layer: None,
            low_layer: None,
        }
    }
}

impl Sap {
    /// What a SETUP calls; `None` for a number of another plan.
    pub(super) fn called(elements: &Elements) -> Option<Self> {
        Some(Sap {
            number: nsap(elements.called.as_ref())?,
            high_layer: elements.high_layer,
            low_layer: elements.low_layer,
        })
    }

    /// True where a call to `called` is for who is bound to this: what is not said here is
    /// as it may be.
    pub(super) fn takes(&self, called: &Sap) -> bool {
        self.number == called.number
            && (self.high_layer.is_none() || self.high_layer == called.high_layer)
            && (self.low_layer.is_none() || self.low_layer == called.low_layer)
    }

    /// How much of it is said: the closer of two is preferred.
    pub(super) fn said(&self) -> usize {
        usize::from(self.high_layer.is_some()) + usize::from(self.low_layer.is_some())
    }
}

/// A party's number, where it is an NSAP.
pub(super) fn nsap(party: Option<&Party>) -> Option<Nsap> {
    match party?.number {
        Number::Nsap(number) => Some(number),
        Number::E164(_) => None,
    }
}

/// The elements of a SETUP.
pub(super) fn setup(
    to: &Sap,
    from: Nsap,
    options: &CircuitOptions,
    connection: Option<ConnectionIdentifier>,
) -> Elements {
    Elements {
        aal: Some(aal(options.send_max, options.receive_max)),
        traffic: Some(match options.rates {
            None => TrafficDescriptor::best_effort(),
            Some(rates) => TrafficDescriptor::constant(rates.send, rates.receive),
        }),
        connection,
        qos: Some(QosClasses::default()),
        high_layer: to.high_layer,
        low_layer: to.low_layer,
        bearer: Some(Bearer::data()),
        called: Some(to.number.into()),
        calling: Some(from.into()),
        ..Elements::default()
    }
}

/// The longest payloads from and to the caller.
fn aal(forward: usize, backward: usize) -> Aal {
    let max = |bytes: usize| Some(u16::try_from(bytes).unwrap_or(u16::MAX));
    Aal::Five {
        forward_max: max(forward),
        backward_max: max(backward),
    }
}

/// The longest payloads from and to the caller, where they are said.
pub(super) fn longest(elements: &Elements) -> [usize; 2] {
    let said = match elements.aal {
        Some(Aal::Five {
            forward_max,
            backward_max,
        }) => [forward_max, backward_max],
        _ => [None; 2],
    };
    said.map(|bytes| usize::from(bytes.unwrap_or(u16::MAX)))
}

/// The constant rates of the called end, if the call has such.
fn rates(elements: &Elements) -> Option<Rates> {
    let traffic = elements.traffic.as_ref().filter(|it| !it.best_effort)?;
    Some(Rates {
        send: traffic.get(TrafficParameter::BackwardPeak)?,
        receive: traffic.get(TrafficParameter::ForwardPeak)?,
    })
}

/// What the called end has, of what it would take and what the caller wants, and how it says
/// so in its CONNECT.
pub(super) fn answer(elements: &Elements, own: &CircuitOptions) -> (CircuitOptions, Elements) {
    let [forward, backward] = longest(elements);
    let agreed = CircuitOptions {
        receive_max: own.receive_max.min(forward).max(1),
        send_max: own.send_max.min(backward),
        rates: rates(elements),
    };
    let connect = Elements {
        aal: Some(aal(agreed.receive_max, agreed.send_max)),
        ..Elements::default()
    };
    (agreed, connect)
}

/// Why a SETUP cannot be taken by who listens with such options: the cause to refuse it with.
pub(super) fn unsupported(elements: &Elements, own: &CircuitOptions) -> Option<u8> {
    let traffic = elements.traffic.as_ref();
    if matches!(elements.aal, Some(Aal::Other(_))) {
        return Some(Cause::AAL_NOT_SUPPORTED);
    }
    if traffic.is_some_and(|it| !it.is_simple()) {
        return Some(Cause::UNSUPPORTED_TRAFFIC);
    }
    let wanted = rates(elements)?;
    // Nothing at all in a direction is no circuit that both ends send on.
    if wanted.send == 0 || wanted.receive == 0 {
        return Some(Cause::UNSUPPORTED_TRAFFIC);
    }
    // Without rates of its own a listener has its sockets wait for no rate: the caller's would
    // have a payload wait for as long as that likes.
    let Some(most) = own.rates else {
        return Some(Cause::CELL_RATE_NOT_AVAILABLE);
    };
    let too_much = wanted.send > most.send || wanted.receive > most.receive;
    too_much.then_some(Cause::CELL_RATE_NOT_AVAILABLE)
}
