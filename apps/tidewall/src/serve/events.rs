//! How a connection server waits for events: `--events`, and the hosts that it stands
//! for.

use std::io;

use clap::ValueEnum;
use tidewall::Stack;
use tidewall::descriptor::Allocator;
use tidewall_service::descriptor_host::{DescriptorEpoll, DescriptorQueue};
use tidewall_service::descriptor_sockets::{DescriptorSockets, Select};
use tidewall_service::linux_sockets::LinuxSockets;
use tidewall_service::linux_stream::{self, LinuxStreams};
use tidewall_service::tidewall_stream::TidewallStreams;
use tidewall_service::{PollHost, SelectHost, StreamHost};

use super::http::Web;
use super::proxy::Proxy;
use super::{Arguments, On, Place};
use crate::end::{Failure, Outcome};

/// A way to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Events {
    /// Tidewall's own, for native sockets: the default there
    Selector,
    /// Edge-triggered epoll: the default on linux
    Epoll,
    /// select on bitmaps of any width; on tidewall it examines only what is new, hinted
    /// or was ready
    Select,
    /// On tidewall: the classical select, which examines everything; a comparator
    ClassicalSelect,
    /// poll
    Poll,
    /// On tidewall: declare_interest and get_next_event
    EventQueue,
}

/// How Tidewall finds the lowest free descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Numbers {
    /// A hierarchical bitmap
    #[default]
    Bitmap,
    /// A linear scan, as in classical kernels; a comparator
    Linear,
}

impl Events {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns the choices of a stack, the default first.
    fn on(on: On) -> &'static [Events] {
        match on {
            On::Linux => &[Events::Epoll, Events::Select, Events::Poll],
            On::Tidewall => &[
                Events::Selector,
                Events::Epoll,
                Events::Select,
                Events::ClassicalSelect,
                Events::Poll,
                Events::EventQueue,
            ],
        }
    }

    /// Returns the chosen one.
    fn of(arguments: &Arguments) -> Result<Self, Failure> {
        let there = Events::on(arguments.on);
        match arguments.events {
            None => Ok(there.first().copied().unwrap_or(Events::Epoll)),
            Some(events) if there.contains(&events) => Ok(events),
            Some(events) => {
                let names: Vec<String> = there.iter().map(|events| events.name()).collect();
                Err(Failure::usage(format!(
                    "--events {} is not there on this stack; there is {}",
                    events.name(),
                    names.join(", ")
                )))
            }
        }
    }
}

/// A connection server.
pub enum Server {
    Web(Web),
    Proxy(Proxy),
}

impl Server {
    pub fn port(&self) -> u16 {
        match self {
            Server::Web(web) => web.spec.port,
            Server::Proxy(proxy) => proxy.spec.port,
        }
    }

    fn on<H: StreamHost>(self, host: &H, place: &Place<'_>) -> Outcome {
        match self {
            Server::Web(web) => web.serve(host, place),
            Server::Proxy(proxy) => proxy.serve(host, place),
        }
    }

    /// Serves on Linux sockets.
    pub fn on_linux(self, mut place: Place<'_>) -> Outcome {
        let events = Events::of(place.arguments)?;
        if let Some(events) = place.arguments.events {
            place.what = format!("{} with {}", place.what, events.name());
        }
        match events {
            Events::Select => self.on(&SelectHost::new(LinuxSockets::new()), &place),
            Events::Poll => self.on(&PollHost::new(LinuxSockets::new()), &place),
            _ => {
                let host = LinuxStreams::new(linux_stream::Options::default());
                self.on(&host.map_err(failed)?, &place)
            }
        }
    }

    /// Serves on `stack`.
    pub fn on_tidewall(self, stack: &Stack, mut place: Place<'_>) -> Outcome {
        let events = Events::of(place.arguments)?;
        let (allocator, how) = match place.arguments.allocator.unwrap_or_default() {
            Numbers::Bitmap => (Allocator::Bitmap, ""),
            Numbers::Linear => (Allocator::Linear, " and a linear allocator"),
        };
        if let Some(events) = place.arguments.events {
            place.what = format!("{}, with {}{how}", place.what, events.name());
        }
        let sockets = |select| DescriptorSockets::new(stack, allocator, select).map_err(failed);
        match events {
            Events::Selector => self.on(&TidewallStreams::new(stack).map_err(failed)?, &place),
            Events::Epoll => {
                let host = DescriptorEpoll::new(stack, allocator);
                self.on(&host.map_err(failed)?, &place)
            }
            Events::Select => self.on(&SelectHost::new(sockets(Select::Hinted)?), &place),
            Events::ClassicalSelect => {
                self.on(&SelectHost::new(sockets(Select::Classical)?), &place)
            }
            Events::Poll => self.on(&PollHost::new(sockets(Select::Hinted)?), &place),
            Events::EventQueue => {
                let host = DescriptorQueue::new(stack, allocator);
                self.on(&host.map_err(failed)?, &place)
            }
        }
    }
}

fn failed(error: io::Error) -> Failure {
    Failure::io("waiting for connections", &error)
}

/// Rejects unusable arguments before anything begins.
pub fn check(arguments: &Arguments) -> Outcome {
    let events = Events::of(arguments)?;
    if arguments.allocator.is_some() && (arguments.on == On::Linux || events == Events::Selector) {
        return Err(Failure::usage(
            "--allocator is for Tidewall's descriptors, which the selector does without: name other \
             --events on tidewall, or leave it out",
        ));
    }
    Ok(())
}
