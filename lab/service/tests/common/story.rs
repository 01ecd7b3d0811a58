//! One story for every host of either stack: a web server, a proxy in front of it, and a
//! client that makes many requests among many idle ones.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tidewall_service::StreamHost;
use tidewall_service::http::{self, Limits, proxy};

use super::{Running, Start, get, path, proxying_at, running, text};

/// Longer than any window.
const LARGE: usize = 1024 * 1024;

/// A client's connection.
pub trait Client: Read + Write {
    /// Ends its side.
    fn end(&mut self);
}

/// The addresses and sizes of the story.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// The web server's address.
    pub web: IpAddr,
    /// The proxy's.
    pub proxy: IpAddr,
    /// Connections that do nothing.
    pub cold: usize,
}

/// Runs it, with a web server on `origin`, a proxy on `host`, and clients that
/// `connect`.
pub fn among_idle_clients<O: StreamHost, H: StreamHost, C: Client>(
    stage: Stage,
    origin: impl FnOnce() -> O + Send,
    host: impl FnOnce() -> H + Send,
    connect: impl Fn(SocketAddr) -> C,
) {
    let root = path("root");
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("a.txt"), text(1259)).unwrap();
    fs::write(root.join("large.bin"), text(LARGE)).unwrap();
    let web = http::Spec {
        root: root.clone(),
        port: 0,
        work: 0,
        limits: Limits::default(),
    };
    let serve = |start: &Start<'_>| {
        let (counters, stop) = (start.counters, start.stop);
        http::serve(
            &origin(),
            stage.web,
            &web,
            None,
            counters,
            stop,
            start.ready(),
        )
    };
    let within = web.limits.grace + Duration::from_secs(2);
    running(1, within, serve, |web| {
        let spec = proxy::Spec::new(0, Some(web.address));
        proxying_at(stage.proxy, host, &spec, |proxy| {
            run_stage(stage, proxy, || connect(proxy.address));
        });
    });
    let _ = fs::remove_dir_all(root);
}

fn run_stage<C: Client>(stage: Stage, proxy: &Running<'_>, connect: impl Fn() -> C) {
    let small = |stream: &mut C| {
        let got = get(stream, "/a.txt", "");
        assert_eq!((got.status, got.body), (200, text(1259)));
    };
    let open = |what: &str, count: usize| {
        proxy.until(what, |_, reader| reader.read()[0].open == count as u64);
    };
    let cold: Vec<C> = (0..stage.cold).map(|_| connect()).collect();
    open("all are there", stage.cold);
    let mut warm = connect();
    for _ in 0..20 {
        small(&mut warm);
    }
    // One connection for each, like the paper's clients.
    for _ in 0..20 {
        small(&mut connect());
    }
    for _ in 0..2 {
        let got = get(&mut warm, "/large.bin", "");
        let whole = got.status == 200 && got.body == text(LARGE);
        assert!(whole, "every byte in its place");
    }
    proxy.until("counted", |uses, _| {
        uses.upstream_connections == 42 && uses.upstream_open == 0
    });
    assert_eq!(proxy.proxy().upstream_errors, 0);
    // The cold ones leave, and their descriptors are reused.
    drop(cold);
    open("all are gone", 1);
    let mut again: Vec<C> = (0..stage.cold / 2).map(|_| connect()).collect();
    for stream in again.iter_mut().step_by(10) {
        small(stream);
    }
    // A client that ends its side is answered, and disconnected.
    let request = b"GET /a.txt HTTP/1.1\r\nHost: x\r\n\r\n";
    warm.write_all(request).unwrap();
    warm.end();
    let mut rest = Vec::new();
    warm.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(&text(1259)));
    drop(again);
    open("nobody is left", 0);
}

/// `origin` has no listener: the proxy on `host` reports that.
pub fn an_absent_origin<H: StreamHost, C: Client>(
    address: IpAddr,
    origin: SocketAddr,
    host: impl FnOnce() -> H + Send,
    connect: impl Fn(SocketAddr) -> C,
) {
    proxying_at(address, host, &proxy::Spec::new(0, Some(origin)), |proxy| {
        let status = get(&mut connect(proxy.address), "/", "").status;
        assert!(matches!(status, 502 | 504), "{status}");
    });
}
