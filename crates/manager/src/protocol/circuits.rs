//! Bodies of messages about virtual circuits, and what they mean to `tidewall_atm`.

use tidewall_atm::calls::{CircuitOptions, Rates, Sap};
use tidewall_atm::signalling::CallId;
use tidewall_wire::atm::q2931::Opaque;
use tidewall_wire::atm::{Circuit, Nsap};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::body::bodies;

bodies! {
    /// A number, and who takes calls there.
    AtmSap {
        /// The number.
        number: [u8; 20],
        /// Bytes of high and low layer information that are said; 0: none.
        lengths: [u8; 2],
        /// High layer information.
        high_layer: [u8; 9],
        /// Low layer information.
        low_layer: [u8; 13],
    }

    /// What a circuit carries.
    AtmCarried {
        /// Bytes of the longest payload sent.
        send_max: u32,
        /// Bytes of the longest payload received.
        receive_max: u32,
        /// Constant rate of what is sent, in cells a second; both 0: none.
        send_rate: u32,
        /// Of what is received.
        receive_rate: u32,
    }

    /// A circuit of the interface.
    CircuitNumber {
        /// Virtual path.
        vpi: u16,
        /// Virtual channel.
        vci: u16,
    }

    /// Where the application's circuits lead.
    AtmAttached {
        /// The system's number.
        number: [u8; 20],
        /// IPv4 mapped: the neighbour that frames of circuits go to.
        next_hop: [u8; 16],
    }

    /// To take calls.
    AtmListen {
        /// Names the listener; the application chooses.
        listener: u32,
        /// Calls that may wait.
        backlog: u32,
        /// What its circuits carry.
        carried: AtmCarried,
        /// Where.
        sap: AtmSap,
    }

    /// A listener.
    ListenerNumber {
        /// As the application named it.
        listener: u32,
    }

    /// A call.
    CallNumber {
        /// As the application named it.
        call: u32,
    }

    /// To call.
    AtmCall {
        /// Names the call; the application chooses.
        call: u32,
        /// What the circuit carries.
        carried: AtmCarried,
        /// Whom.
        to: AtmSap,
        /// Who calls; zeros: the system's number.
        from: [u8; 20],
    }

    /// To take a call that waits.
    AtmAccept {
        /// For whom it waits.
        listener: u32,
        /// Names the call from now on.
        call: u32,
        /// As the manager names it.
        reference: AtmReference,
        /// Why it is refused, of Q.2610; 0: it is taken.
        cause: u8,
        /// Zero.
        pad: [u8; 3],
    }

    /// The end of a call.
    AtmRelease {
        /// As the application named it.
        call: u32,
        /// Of Q.2610.
        cause: u8,
        /// Zero.
        pad: [u8; 3],
    }

    /// A call as the manager names it.
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
        /// The circuit, of a call that is not local.
        circuit: CircuitNumber,
    }

    /// A call that waits for a listener.
    AtmIncoming {
        /// The listener.
        listener: u32,
        /// The call.
        reference: AtmReference,
        /// What both ends agree on.
        carried: AtmCarried,
        /// The number that was called.
        local: [u8; 20],
        /// Who called; zeros: not said.
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
        /// As the application named it.
        call: u32,
        /// Why the manager did not begin it; 0: it did, and the cause says why it ended.
        errno: i32,
        /// Of Q.2610.
        cause: u8,
        /// Zero.
        pad: [u8; 3],
    }

    /// A call that is active, of an application that has presented itself.
    AtmPresent {
        /// As the application names it.
        call: u32,
        /// As an earlier run named it.
        reference: AtmReference,
    }

    /// The circuit of a call.
    AtmCircuit {
        /// As the application named it.
        call: u32,
        /// Is to be opened.
        circuit: CircuitNumber,
    }

    /// A call is answered, or its caller has acknowledged that.
    AtmConnected {
        /// As the application named it.
        call: u32,
        /// Bytes of the longest payload that the called end takes.
        longest: u32,
        /// As the manager names it.
        reference: AtmReference,
    }
}

impl AtmSap {
    /// As a message has it.
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

    /// What it means; `None` for lengths out of range.
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

/// `Some(None)` for nothing.
fn said<const N: usize>(bytes: &[u8]) -> Option<Option<Opaque<N>>> {
    match bytes.is_empty() {
        true => Some(None),
        false => Opaque::new(bytes).map(Some),
    }
}

impl AtmCarried {
    /// As a message has it.
    pub fn of(options: &CircuitOptions) -> Self {
        let number = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        AtmCarried {
            send_max: number(options.send_max),
            receive_max: number(options.receive_max),
            send_rate: options.rates.map_or(0, |rates| rates.send),
            receive_rate: options.rates.map_or(0, |rates| rates.receive),
        }
    }

    /// What it means; `None` for what is out of range.
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
    /// As a message has it.
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
    /// A call of the link, or of two applications of one manager.
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

    /// Its circuit, once that is known.
    pub fn circuit(&self) -> Option<Circuit> {
        (self.known != 0).then(|| self.circuit.circuit())
    }
}

/// A number, or `None` for zeros.
pub fn number(bytes: [u8; 20]) -> Option<Nsap> {
    (bytes != [0; 20]).then_some(Nsap(bytes))
}
