//! TCP as shown to an operator.

use tidewall_protocol::tcp::State;
use tidewall_stack::core::Core;
use tidewall_stack::lock::lock;
use tidewall_stack::snapshot::{SocketSnapshot, StackSnapshot, TcpSnapshot};

use super::Tcp;
use super::connection::ConnectionInner;

/// Connections whose channels have dropped frames that are listed, at most.
const LOSING_MOST: usize = 64;

/// Adds listeners, connections that lose frames, and counters.
pub(super) fn describe(tcp: &Tcp, core: &Core, snapshot: &mut StackSnapshot) {
    let listeners = tcp.all_listeners();
    let sockets = listeners.iter().filter_map(|listener| {
        let number = listener.channel()?;
        let (occupancy, dropped_full) = core.channel_counts(number);
        Some({
            let mut described = SocketSnapshot::default();
            described.channel = number;
            described.protocol = "tcp".to_owned();
            described.local = listener.local().to_string();
            described.received = listener.counts().0 as u64;
            described.through_kernel = 0;
            described.occupancy = occupancy;
            described.limit = core.tables.limit(0, number);
            described.dropped_full = dropped_full;
            described
        })
    });
    snapshot.sockets.extend(sockets);
    let connections = tcp.flows.all();
    let losing = connections.iter().filter_map(|it| losing(core, it));
    snapshot.sockets.extend(losing.take(LOSING_MOST));
    snapshot.tcp = counts(tcp, core);
}

/// A connection, if its channel has dropped frames.
fn losing(core: &Core, connection: &ConnectionInner) -> Option<SocketSnapshot> {
    let (number, dropped) = connection.look().dropped_full(core)?;
    Some({
        let mut described = SocketSnapshot::default();
        described.channel = number;
        described.protocol = "tcp".to_owned();
        described.local = connection.flow().local.to_string();
        described.peer = Some(connection.flow().remote.to_string());
        described.occupancy = core.channel_counts(number).0;
        described.limit = core.tables.limit(0, number);
        described.dropped_full = dropped.into();
        described
    })
}

/// Connections by state, and counters.
fn counts(tcp: &Tcp, core: &Core) -> TcpSnapshot {
    let mut snapshot = TcpSnapshot::default();
    snapshot.orphans = tcp.orphans();
    snapshot.orphans_max = tcp.memory.orphans_max();
    snapshot.memory = tcp.memory.used();
    snapshot.memory_max = tcp.memory.limit();
    snapshot.timers = core.timers.armed() as u64;
    let counters = tcp.counters.values();
    snapshot.counters = counters
        .map(|(name, count)| (name.to_owned(), count))
        .into();
    let channels = &tcp.channels;
    for (name, channel) in [
        ("shared", &channels.shared),
        ("time-wait", &channels.time_wait),
    ] {
        let (_, dropped) = core.channel_counts(channel.id.index());
        if dropped > 0 {
            snapshot.dropped.insert(name.to_owned(), dropped);
        }
    }
    for connection in tcp.flows.all() {
        let state = connection.lock();
        let name = state_name(state.connection.state());
        *snapshot.states.entry(name.to_owned()).or_default() += 1;
        snapshot.with_channel += u64::from(state.has_channel());
    }
    let waiting = lock(&tcp.time_wait.table).len() as u64;
    if waiting > 0 {
        *snapshot
            .states
            .entry(state_name(State::TimeWait).to_owned())
            .or_default() += waiting;
    }
    for listener in tcp.all_listeners() {
        let (_, half_open, cookies) = listener.counts();
        snapshot.half_open += half_open as u64;
        snapshot.cookies += u64::from(cookies);
    }
    snapshot
}

/// A state's name.
fn state_name(state: State) -> &'static str {
    match state {
        State::Closed => "closed",
        State::SynSent => "syn-sent",
        State::SynReceived => "syn-received",
        State::Established => "established",
        State::FinWait1 => "fin-wait-1",
        State::FinWait2 => "fin-wait-2",
        State::CloseWait => "close-wait",
        State::Closing => "closing",
        State::LastAck => "last-ack",
        State::TimeWait => "time-wait",
    }
}
