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

/// What a cookie answer offers, as the listener's own SYN-ACKs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieOffer {
    /// Window, unscaled as in every SYN segment (RFC 7323 §2.2).
    pub window: u16,
    /// Window scale, 0 to 14; `None` when window scaling is off.
    pub window_scale: Option<u8>,
    /// Take part in timestamps (RFC 7323). Without them a cookie keeps neither
    /// window scale nor SACK nor ECN.
    pub timestamps: bool,
    /// Permit SACK (RFC 2018).
    pub sack: bool,
    /// Agree to ECN (RFC 3168) when the SYN asks for it.
    pub ecn: bool,
}

/// What the driver does about SYN cookies at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CookieMode {
    /// No SYN is answered and no cookie taken: nobody can forge one.
    #[default]
    Off,
    /// SYNs go to the listener, but ACKs of earlier cookies are still taken: for
    /// two minutes after [`CookieMode::Answer`].
    Take,
    /// Every SYN is answered with a cookie by the driver.
    Answer,
}

/// What all cookies of an application are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieParameters {
    /// SipHash key, drawn at random: `tidewall_protocol::tcp::Secrets::cookie`.
    pub key: [u8; 16],
    /// CLOCK_MONOTONIC when the application's clock was zero. The cookies that
    /// the application checks carry the time of that clock.
    pub epoch: Duration,
    /// Maximum segment size to announce to IPv4 and to IPv6 peers: the MTU less
    /// 40, less 60 (RFC 9293 §3.7.1).
    pub mss: [u16; 2],
    /// Hop limit (time to live) of answers.
    pub hop_limit: u8,
}

impl ApplicationTables {
    /// As [`ApplicationTables::listen`] for TCP, and makes the port strict: from now on a
    /// segment reaches a channel only as a flow's ([`ApplicationTables::connect`]), as a
    /// SYN, or as the ACK of a valid cookie; the last two go to `channel`. Of
    /// the rest, ACKs go to the kernel within the rate of
    /// [`super::layout::Class::NoConnection`], so that its listening socket
    /// resets their senders, and others are dropped.
    ///
    /// So every half-open connection must be in the flow table. Segments of an
    /// established one may still be in the listener's channel when it gets its
    /// own.
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
        // Before the channel, to which segments of connections that the kernel has would go.
        let keep = OTHERS | LISTEN_COOKIES | LISTEN_COOKIES_VALID;
        self.change_flags(port, keep, flags)?;
        let listens = self.listen(Protocol::Tcp, address, port, channel);
        listens.inspect_err(|_| self.unlisten_tcp(address, port))
    }

    /// Undoes [`ApplicationTables::listen_tcp`]. With the last listener goes what it set;
    /// flows stay.
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

    /// Says what the driver does about SYN cookies at a port that
    /// [`ApplicationTables::listen_tcp`] made strict.
    ///
    /// On veth an answer reaches the peer only if that end has an XDP program of
    /// its own, such as one that passes everything, or GRO on and
    /// [`ApplicationTables::set_cookie_redirect`] here. Otherwise the kernel drops it, or
    /// leaves it in a ring until something else wakes its reader, and says
    /// nothing: no client gets in. Devices with a wire need nothing.
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

    /// Sets what cookies are made of; those sent before are void.
    pub fn set_cookie_parameters(&self, parameters: &CookieParameters) {
        let _state = self.state();
        let cookies = &self.map().cookies;
        let (halves, _) = parameters.key.as_chunks::<8>();
        for (place, half) in cookies.key.iter().zip(halves) {
            // As the memory of the C side: SipHash reads little-endian.
            place.store(u64::from_le_bytes(*half), Relaxed);
        }
        let epoch = u64::try_from(parameters.epoch.as_nanos()).unwrap_or(u64::MAX);
        cookies.epoch.store(epoch, Relaxed);
        for (place, mss) in cookies.mss.iter().zip(parameters.mss) {
            place.store(mss, Relaxed);
        }
        cookies.hop_limit.store(parameters.hop_limit, Release);
    }

    /// True: the driver sends its answers by XDP_REDIRECT to the interface they
    /// came by, in place of XDP_TX. For veth, where that reaches a peer with GRO
    /// on (`ethtool -K PEER gro on`) as well as one with an XDP program; other
    /// devices may lack the queues for it.
    pub fn set_cookie_redirect(&self, redirect: bool) {
        let cookies = &self.map().cookies;
        cookies.redirect.store(redirect.into(), Release);
    }

    /// Keeps the flags of `keep` and sets those of `set`.
    fn change_flags(&self, port: u16, keep: u32, set: u32) -> io::Result<()> {
        let _state = self.state();
        let listener = self.listener(Protocol::Tcp, port)?;
        let flags = listener.flags.load(Relaxed) & keep | set;
        listener.flags.store(flags, Release);
        Ok(())
    }
}

/// The flags that [`ApplicationTables::listen`] and [`ApplicationTables::connect`] look after.
const OTHERS: u32 = LISTEN_LOCAL | super::layout::LISTEN_CONNECTED;
