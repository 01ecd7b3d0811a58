//! How a server of connections waits for what happens: `--events`, and the
//! hosts that it stands for.

use std::sync::atomic::AtomicBool;

use clap::ValueEnum;
use tidewall_service::descriptor_host::{DescriptorEpoll, DescriptorQueue};
use tidewall_service::descriptor_sockets::{DescriptorSockets, Select};
use tidewall_service::linux_sockets::LinuxSockets;
use tidewall_service::linux_stream::{self, LinuxStreams};
use tidewall_service::tidewall_stream::TidewallStreams;
use tidewall_service::{PollHost, SelectHost, StreamHost};
use tidewall_socket::Stack;
use tidewall_socket::descriptor::Allocator;

use super::http::Web;
use super::proxy::Proxy;
use super::{Arguments, On};
use crate::end::{Failure, Outcome};

/// A way to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Events {
    /// Tidewall's own, of native sockets: the default there
    Selector,
    /// Edge-triggered epoll: the default on linux
    Epoll,
    /// select on bitmaps of any width; on tidewall it examines only what is new, hinted or was ready
    Select,
    /// On tidewall: select that examines everything, as it used to be, to be compared with
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
    /// A linear scan, as it used to be, to be compared with
    Linear,
}

impl Events {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// What there is on a stack, the default first.
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

    /// What was chosen.
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

/// A server of connections.
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

    fn on<H: StreamHost>(
        self,
        arguments: &Arguments,
        host: &H,
        what: &str,
        stack: Option<Stack>,
        stop: &AtomicBool,
    ) -> Outcome {
        match self {
            Server::Web(web) => web.serve(arguments, host, what, stack, stop),
            Server::Proxy(proxy) => proxy.serve(arguments, host, what, stack, stop),
        }
    }

    /// Serves on Linux sockets.
    pub fn on_linux(self, arguments: &Arguments, stop: &AtomicBool) -> Outcome {
        let events = Events::of(arguments)?;
        let what = match arguments.events {
            Some(events) => format!("Linux sockets with {}", events.name()),
            None => "Linux sockets".to_owned(),
        };
        match events {
            Events::Select => {
                let host = SelectHost::new(LinuxSockets::new());
                self.on(arguments, &host, &what, None, stop)
            }
            Events::Poll => {
                let host = PollHost::new(LinuxSockets::new());
                self.on(arguments, &host, &what, None, stop)
            }
            _ => {
                let host = LinuxStreams::new(linux_stream::Options::default())
                    .map_err(|error| Failure::io("using epoll", &error))?;
                self.on(arguments, &host, &what, None, stop)
            }
        }
    }

    /// Serves on `stack`, which is described by `what`.
    pub fn on_tidewall(
        self,
        arguments: &Arguments,
        stack: &Stack,
        what: &str,
        stop: &AtomicBool,
    ) -> Outcome {
        let events = Events::of(arguments)?;
        let numbers = arguments.allocator.unwrap_or_default();
        let allocator = match numbers {
            Numbers::Bitmap => Allocator::Bitmap,
            Numbers::Linear => Allocator::Linear,
        };
        let what = match (arguments.events, numbers) {
            (None, _) => what.to_owned(),
            (Some(events), Numbers::Bitmap) => format!("{what}, with {}", events.name()),
            (Some(events), Numbers::Linear) => {
                format!("{what}, with {} and a linear allocator", events.name())
            }
        };
        let failed = |error| Failure::io("waiting for connections", &error);
        let sockets = |select| DescriptorSockets::new(stack, allocator, select).map_err(failed);
        let watched = Some(stack.clone());
        match events {
            Events::Selector => {
                let host = TidewallStreams::new(stack).map_err(failed)?;
                self.on(arguments, &host, &what, watched, stop)
            }
            Events::Epoll => {
                let host = DescriptorEpoll::new(stack, allocator).map_err(failed)?;
                self.on(arguments, &host, &what, watched, stop)
            }
            Events::Select => {
                let host = SelectHost::new(sockets(Select::Hinted)?);
                self.on(arguments, &host, &what, watched, stop)
            }
            Events::ClassicalSelect => {
                let host = SelectHost::new(sockets(Select::Classical)?);
                self.on(arguments, &host, &what, watched, stop)
            }
            Events::Poll => {
                let host = PollHost::new(sockets(Select::Hinted)?);
                self.on(arguments, &host, &what, watched, stop)
            }
            Events::EventQueue => {
                let host = DescriptorQueue::new(stack, allocator).map_err(failed)?;
                self.on(arguments, &host, &what, watched, stop)
            }
        }
    }
}

/// Refuses, before anything is begun, what will not do.
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
