//! Converts a circuit's options to a SETUP's elements and back.

use tidewall_wire::atm::Nsap;
use tidewall_wire::atm::q2931::{
    Aal, Bearer, Cause, ConnectionIdentifier, Elements, Number, Opaque, Party, QosClasses,
    TrafficDescriptor, TrafficParameter,
};

use super::{CircuitOptions, Rates};

/// A called address, or one that a listener is bound to: a number, and the service that
/// accepts the call there (Linux's `sockaddr_atmsvc` and `atm_sap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sap {
    /// The number. The application chooses its last byte, the selector.
    pub number: Nsap,
    /// The application's protocol: contents of the element of Q.2931 §4.5.8.
    pub high_layer: Option<Opaque<9>>,
    /// The protocol of the payloads, below the application: contents of the element of
    /// §4.5.9.
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
    /// The address that a SETUP calls; `None` for a number of another plan.
    pub(super) fn called(elements: &Elements) -> Option<Self> {
        Some(Sap {
            number: nsap(elements.called.as_ref())?,
            high_layer: elements.high_layer,
            low_layer: elements.low_layer,
        })
    }

    /// True if a call to `called` is for a listener bound to this address: an absent part
    /// matches anything.
    pub(super) fn takes(&self, called: &Sap) -> bool {
        self.number == called.number
            && (self.high_layer.is_none() || self.high_layer == called.high_layer)
            && (self.low_layer.is_none() || self.low_layer == called.low_layer)
    }

    /// Number of its parts that are present: the more specific of two is preferred.
    pub(super) fn said(&self) -> usize {
        usize::from(self.high_layer.is_some()) + usize::from(self.low_layer.is_some())
    }
}

/// A party's number, if it is an NSAP.
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

/// The longest payloads from and to the caller, if present.
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

/// The constant rates of the called end, if the call has any.
fn rates(elements: &Elements) -> Option<Rates> {
    let traffic = elements.traffic.as_ref().filter(|it| !it.best_effort)?;
    Some(Rates {
        send: traffic.get(TrafficParameter::BackwardPeak)?,
        receive: traffic.get(TrafficParameter::ForwardPeak)?,
    })
}

/// Decides what the called end uses, from its own options and the caller's request, and
/// the elements of its CONNECT.
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

/// Why a listener with such options cannot accept a SETUP: the cause of the rejection.
pub(super) fn unsupported(elements: &Elements, own: &CircuitOptions) -> Option<u8> {
    let traffic = elements.traffic.as_ref();
    if matches!(elements.aal, Some(Aal::Other(_))) {
        return Some(Cause::AAL_NOT_SUPPORTED);
    }
    if traffic.is_some_and(|it| !it.is_simple()) {
        return Some(Cause::UNSUPPORTED_TRAFFIC);
    }
    let wanted = rates(elements)?;
    // A direction without any payload is not a circuit that both ends send on.
    if wanted.send == 0 || wanted.receive == 0 {
        return Some(Cause::UNSUPPORTED_TRAFFIC);
    }
    // A listener without rates does not make its sockets wait for one. With the caller's
    // rate, a payload would wait for as long as the caller likes.
    let Some(most) = own.rates else {
        return Some(Cause::CELL_RATE_NOT_AVAILABLE);
    };
    let too_much = wanted.send > most.send || wanted.receive > most.receive;
    too_much.then_some(Cause::CELL_RATE_NOT_AVAILABLE)
}
