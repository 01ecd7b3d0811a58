//! Sockets on the in-memory device: two stacks on one link, a virtual clock, no
//! sleeping thread. Frames that a stack would never send are injected.

mod acp;
mod calls;
mod circuits;
mod clock;
mod connections;
mod descriptors;
mod errors;
mod event_loop;
mod exchange;
mod fast_open;
mod fragments;
mod hostile;
mod lifetime;
mod limits;
mod model;
mod notifications;
mod options;
mod panics;
mod pressure;
mod sending;
mod support;
mod tcp;
mod tcp_memory;
mod virtual_time;
mod waiting;
mod waits;
