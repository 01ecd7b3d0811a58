//! TCP listeners in the tables: strict ports and SYN cookies.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use super::layout::{
    LISTEN_COOKIES, LISTEN_COOKIES_VALID, LISTEN_ECN, LISTEN_LOCAL, LISTEN_SACK,
    LISTEN_SCALE_SHIFT, LISTEN_TCP_STRICT, LISTEN_TIMESTAMPS, LISTEN_WINDOW_SHIFT, Protocol,
};
use super::tables::invalid;
use super::{ApplicationTables, ChannelId};

/// The options that a cookie answer offers, like the listener's own SYN-ACKs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieOffer {
    /// Window, unscaled as in every SYN segment (RFC 7323 §2.2).
    pub window: u16,
    /// Window scale, 0 to 14; `None` when window scaling is off.
    pub window_scale: Option<u8>,
    /// Use timestamps (RFC 7323). Without them a cookie keeps neither window scale nor
    /// SACK nor ECN.
    pub timestamps: bool,
    /// Permit SACK (RFC 2018).
    pub sack: bool,
    /// Agree to ECN (RFC 3168) when the SYN asks for it.
    pub ecn: bool,
}

/// The driver's use of SYN cookies at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CookieMode {
    /// No SYN is answered and no cookie accepted, so none can be forged.
    #[default]
    Off,
    /// SYNs go to the listener, but ACKs of earlier cookies are still accepted: for two
    /// minutes after [`CookieMode::Answer`].
    Take,
    /// The driver answers every SYN with a cookie.
    Answer,
}

/// Parameters common to all cookies of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieParameters {
    /// Random SipHash key: `tidewall_protocol::tcp::Secrets::cookie`.
    pub key: [u8; 16],
    /// CLOCK_MONOTONIC at the application clock's zero. The cookies that the application
    /// checks carry that clock's time.
    pub epoch: Duration,
    /// Maximum segment size to announce to IPv4 and to IPv6 peers: the MTU less
    /// 40, less 60 (RFC 9293 §3.7.1).
    pub mss: [u16; 2],
    /// Hop limit (time to live) of answers.
    pub hop_limit: u8,
}

impl ApplicationTables {
    /// As [`ApplicationTables::listen`] for TCP, and makes the port strict. From now on a
    /// segment reaches a channel in one of three ways only:
    ///
    /// - as a segment of a flow ([`ApplicationTables::connect`]);
    /// - as a SYN, which goes to `channel`;
    /// - as the ACK of a valid cookie, which also goes to `channel`.
    ///
    /// Other ACKs go to the kernel within the rate of
    /// [`super::layout::Class::NoConnection`], so that its listening socket resets their
    /// senders. The rest is dropped.
    ///
    /// So every half-open connection must be in the flow table. Segments of an
    /// established one may still be in the listener's channel when it gets its own.
    ///
    /// # Errors
    /// As [`ApplicationTables::listen`]; EINVAL for a window scale over 14.
    pub fn listen_tcp(
        &self,
        address: Option<IpAddr>,
        port: u16,
        channel: ChannelId,
        offer: &CookieOffer,
    ) -> io::Result<()> {
        let scale = match offer.window_scale {
            None => 15,
            Some(scale @ 0..=14) => u32::from(scale),
            Some(_) => return Err(invalid("window scale over 14")),
        };
        let mut flags = LISTEN_TCP_STRICT
            | scale << LISTEN_SCALE_SHIFT
            | u32::from(offer.window) << LISTEN_WINDOW_SHIFT;
        if offer.timestamps {
            flags |= LISTEN_TIMESTAMPS;
        }
        if offer.sack {
            flags |= LISTEN_SACK;
        }
        if offer.ecn {
            flags |= LISTEN_ECN;
        }
        // This precedes the channel, which would otherwise receive segments of the
        // kernel's connections.
        let keep = OTHERS | LISTEN_COOKIES | LISTEN_COOKIES_VALID;
        self.change_flags(port, keep, flags)?;
        let listens = self.listen(Protocol::Tcp, address, port, channel);
        listens.inspect_err(|_| self.unlisten_tcp(address, port))
    }

    /// Undoes [`ApplicationTables::listen_tcp`]. Removing the last listener clears its
    /// settings; flows stay.
    pub fn unlisten_tcp(&self, address: Option<IpAddr>, port: u16) {
        self.unlisten(Protocol::Tcp, address, port);
        let Ok(listener) = self.listener(Protocol::Tcp, port) else {
            return;
        };
        let any = listener.channel.iter();
        if listener.flags.load(Relaxed) & LISTEN_LOCAL == 0
            && any.into_iter().all(|channel| channel.load(Relaxed) == 0)
        {
            // Port 0 alone could fail, and it was refused above.
            let _ = self.change_flags(port, OTHERS, 0);
        }
    }

    /// Sets the driver's use of SYN cookies at a port that
    /// [`ApplicationTables::listen_tcp`] made strict.
    ///
    /// On veth an answer reaches the peer in two cases only. That end has an XDP program
    /// of its own, such as one that passes everything. Or it has GRO on, and
    /// [`ApplicationTables::set_cookie_redirect`] is set here. Otherwise the kernel
    /// silently drops the answer, or leaves it in a ring until something else wakes its
    /// reader: no client can connect. Devices with a wire need nothing.
    ///
    /// # Errors
    /// EINVAL for port 0, and when there is no key
    /// ([`ApplicationTables::set_cookie_parameters`]).
    pub fn set_cookies(&self, port: u16, mode: CookieMode) -> io::Result<()> {
        let key = &self.map().cookies.key;
        if mode != CookieMode::Off && key.iter().all(|word| word.load(Relaxed) == 0) {
            return Err(invalid("no cookie key"));
        }
        let flags = match mode {
            CookieMode::Off => 0,
            CookieMode::Take => LISTEN_COOKIES_VALID,
            CookieMode::Answer => LISTEN_COOKIES_VALID | LISTEN_COOKIES,
        };
        self.change_flags(port, !(LISTEN_COOKIES_VALID | LISTEN_COOKIES), flags)
    }

    /// Sets the cookie parameters; cookies sent before become invalid.
    pub fn set_cookie_parameters(&self, parameters: &CookieParameters) {
        let _state = self.state();
        let cookies = &self.map().cookies;
        let (halves, _) = parameters.key.as_chunks::<8>();
        for (place, half) in cookies.key.iter().zip(halves) {
            // Matches the memory of the C side: SipHash reads little-endian.
            place.store(u64::from_le_bytes(*half), Relaxed);
        }
        let epoch = u64::try_from(parameters.epoch.as_nanos()).unwrap_or(u64::MAX);
        cookies.epoch.store(epoch, Relaxed);
        for (place, mss) in cookies.mss.iter().zip(parameters.mss) {
            place.store(mss, Relaxed);
        }
        cookies.hop_limit.store(parameters.hop_limit, Release);
    }

    /// If true, the driver sends its answers by XDP_REDIRECT, instead of XDP_TX, to the
    /// interface that they arrived on. For veth, where that reaches a peer with GRO on
    /// (`ethtool -K PEER gro on`) as well as one with an XDP program. Other devices may
    /// lack the queues for it.
    pub fn set_cookie_redirect(&self, redirect: bool) {
        let cookies = &self.map().cookies;
        cookies.redirect.store(redirect.into(), Release);
    }

    /// Keeps the flags in `keep` and sets those in `set`.
    fn change_flags(&self, port: u16, keep: u32, set: u32) -> io::Result<()> {
        let _state = self.state();
        let listener = self.listener(Protocol::Tcp, port)?;
        let flags = listener.flags.load(Relaxed) & keep | set;
        listener.flags.store(flags, Release);
        Ok(())
    }
}

/// The flags that [`ApplicationTables::listen`] and [`ApplicationTables::connect`]
/// maintain.
const OTHERS: u32 = LISTEN_LOCAL | super::layout::LISTEN_CONNECTED;
