//! Bodies of messages about virtual circuits, and their meaning to `tidewall_atm`.

use tidewall_atm::calls::{CircuitOptions, Rates, Sap};
use tidewall_atm::signalling::CallId;
use tidewall_wire::atm::q2931::Opaque;
use tidewall_wire::atm::{Circuit, Nsap};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::body::bodies;

bodies! {
    /// A number, and the service access point there.
    AtmSap {
        /// The number.
        number: [u8; 20],
        /// Bytes of high and low layer information; 0: none.
        lengths: [u8; 2],
        /// High layer information.
        high_layer: [u8; 9],
        /// Low layer information.
        low_layer: [u8; 13],
    }

    /// The traffic of a circuit.
    AtmCarried {
        /// Bytes of the longest payload sent.
        send_max: u32,
        /// Bytes of the longest payload received.
        receive_max: u32,
        /// Constant sending rate, in cells per second; both 0: none.
        send_rate: u32,
        /// Constant receiving rate.
        receive_rate: u32,
    }

    /// A circuit of the interface.
    CircuitNumber {
        /// Virtual path.
        vpi: u16,
        /// Virtual channel.
        vci: u16,
    }

    /// The destination of the application's circuits.
    AtmAttached {
        /// The system's number.
        number: [u8; 20],
        /// IPv4 mapped: the neighbour that frames of circuits go to.
        next_hop: [u8; 16],
    }

    /// A request to accept calls.
    AtmListen {
        /// Names the listener; chosen by the application.
        listener: u32,
        /// Calls that may wait.
        backlog: u32,
        /// The traffic of its circuits.
        carried: AtmCarried,
        /// Its address.
        sap: AtmSap,
    }

    /// A listener.
    ListenerNumber {
        /// The application's number for it.
        listener: u32,
    }

    /// A call.
    CallNumber {
        /// The application's number for it.
        call: u32,
    }

    /// A request to place a call.
    AtmCall {
        /// Names the call; chosen by the application.
        call: u32,
        /// The traffic of the circuit.
        carried: AtmCarried,
        /// The called address.
        to: AtmSap,
        /// The calling number; zeros: the system's number.
        from: [u8; 20],
    }

    /// A request to accept or reject a waiting call.
    AtmAccept {
        /// The listener for which it waits.
        listener: u32,
        /// Names the call from now on.
        call: u32,
        /// The manager's name for it.
        reference: AtmReference,
        /// Cause of a rejection, from Q.2610; 0: it is accepted.
        cause: u8,
        /// Zero.
        pad: [u8; 3],
    }

    /// The end of a call.
    AtmRelease {
        /// The application's number for it.
        call: u32,
        /// From Q.2610.
        cause: u8,
        /// Zero.
        pad: [u8; 3],
    }

    /// The manager's name for a call.
    AtmReference {
        /// The call reference's value.
        value: u32,
        /// 1: this end set it up.
        ours: u8,
        /// 1: both ends are this manager's, and the circuit is a socket.
        local: u8,
        /// 1: the circuit is known.
        known: u8,
        /// Zero.
        pad: u8,
        /// The circuit, for a call that is not local.
        circuit: CircuitNumber,
    }

    /// A call that waits for a listener.
    AtmIncoming {
        /// The listener.
        listener: u32,
        /// The call.
        reference: AtmReference,
        /// The traffic that both ends agreed on.
        carried: AtmCarried,
        /// The called number.
        local: [u8; 20],
        /// The calling number; zeros: not given.
        peer: [u8; 20],
    }

    /// A call that waited for a listener.
    AtmWithdrawn {
        /// The listener.
        listener: u32,
        /// The call.
        reference: AtmReference,
    }

    /// A call that has ended.
    AtmEnded {
        /// The application's number for it.
        call: u32,
        /// The reason why the manager did not place it; 0: it did, and the cause is the
        /// reason for its end.
        errno: i32,
        /// From Q.2610.
        cause: u8,
        /// Zero.
        pad: [u8; 3],
    }

    /// An active call of an application that has presented itself.
    AtmPresent {
        /// The application's number for it.
        call: u32,
        /// An earlier run's name for it.
        reference: AtmReference,
    }

    /// The circuit of a call.
    AtmCircuit {
        /// The application's number for it.
        call: u32,
        /// The circuit to be opened.
        circuit: CircuitNumber,
    }

    /// A call is answered, or its caller has acknowledged that.
    AtmConnected {
        /// The application's number for it.
        call: u32,
        /// Bytes of the longest payload that the called end accepts.
        longest: u32,
        /// The manager's name for it.
        reference: AtmReference,
    }
}

impl AtmSap {
    /// Converts to the message's form.
    pub fn of(sap: &Sap) -> Self {
        let (high, low) = (sap.high_layer, sap.low_layer);
        let high = high.as_ref().map_or(&[][..], Opaque::as_bytes);
        let low = low.as_ref().map_or(&[][..], Opaque::as_bytes);
        AtmSap {
            number: sap.number.0,
            lengths: [high.len() as u8, low.len() as u8],
            high_layer: filled(high),
            low_layer: filled(low),
        }
    }

    /// Converts from the message's form; `None` for lengths out of range.
    pub fn sap(&self) -> Option<Sap> {
        let [high, low] = self.lengths.map(usize::from);
        Some(Sap {
            number: Nsap(self.number),
            high_layer: said(self.high_layer.get(..high)?)?,
            low_layer: said(self.low_layer.get(..low)?)?,
        })
    }
}

fn filled<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().zip(bytes) {
        *to = *from;
    }
    array
}

/// `Some(None)` if it is absent.
fn said<const N: usize>(bytes: &[u8]) -> Option<Option<Opaque<N>>> {
    match bytes.is_empty() {
        true => Some(None),
        false => Opaque::new(bytes).map(Some),
    }
}

impl AtmCarried {
    /// Converts to the message's form.
    pub fn of(options: &CircuitOptions) -> Self {
        let number = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        AtmCarried {
            send_max: number(options.send_max),
            receive_max: number(options.receive_max),
            send_rate: options.rates.map_or(0, |rates| rates.send),
            receive_rate: options.rates.map_or(0, |rates| rates.receive),
        }
    }

    /// Converts from the message's form; `None` for values out of range.
    pub fn options(&self) -> Option<CircuitOptions> {
        let (send, receive) = (self.send_rate, self.receive_rate);
        let options = CircuitOptions {
            send_max: self.send_max as usize,
            receive_max: self.receive_max as usize,
            rates: (send != 0 || receive != 0).then_some(Rates { send, receive }),
        };
        options.is_in_range().then_some(options)
    }
}

impl CircuitNumber {
    /// Converts to the message's form.
    pub fn of(circuit: Circuit) -> Self {
        let Circuit { vpi, vci } = circuit;
        CircuitNumber { vpi, vci }
    }

    /// The circuit.
    pub fn circuit(&self) -> Circuit {
        let CircuitNumber { vpi, vci } = *self;
        Circuit { vpi, vci }
    }
}

impl AtmReference {
    /// A call of the link, or between two applications of one manager.
    pub fn of(id: CallId, circuit: Option<Circuit>, local: bool) -> Self {
        AtmReference {
            value: id.value,
            ours: id.ours.into(),
            local: local.into(),
            known: circuit.is_some().into(),
            pad: 0,
            circuit: CircuitNumber::of(circuit.unwrap_or(Circuit { vpi: 0, vci: 0 })),
        }
    }

    /// The call.
    pub fn id(&self) -> CallId {
        CallId {
            ours: self.ours != 0,
            value: self.value,
        }
    }

    /// Its circuit, once known.
    pub fn circuit(&self) -> Option<Circuit> {
        (self.known != 0).then(|| self.circuit.circuit())
    }
}

/// A number, or `None` for zeros.
pub fn number(bytes: [u8; 20]) -> Option<Nsap> {
    (bytes != [0; 20]).then_some(Nsap(bytes))
}
