//! Frames that no thread waits for wake no thread, and do not wait for long.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tidewall::{Stack, TcpListener, TcpStream, VirtualTime};
use tidewall_device::demux::Tables;
use tidewall_device::memory::{Link, LinkConfig, Side, pair_on_clock};

use super::clock::{Clock, stacks};
use super::support::{FAR4, at};

const PORT: u16 = 80;
/// How long what comes for a closed connection may wait.
const LONGEST: Duration = Duration::from_millis(15);

/// A service at the far end, whose one thread sleeps on the clock.
struct Bed {
    clock: Arc<Clock>,
    link: Link,
    near: Stack,
    far: Stack,
    tables: Tables,
    service: Option<JoinHandle<()>>,
}

impl Bed {
    fn new(serve: impl FnOnce(TcpListener) + Send + 'static) -> Bed {
        let clock = Arc::new(Clock::default());
        let of_link = clock.clone();
        let (link, a, b) = pair_on_clock(LinkConfig::default(), move || of_link.now()).unwrap();
        let tables = b.tables.clone();
        let (near, far) = stacks(&clock, a, b);
        let listener = TcpListener::bind(&far, at(FAR4, PORT)).unwrap();
        let end = clock.clone();
        let service = std::thread::spawn(move || {
            serve(listener);
            end.end();
        });
        let bed = Bed {
            clock,
            link,
            near,
            far,
            tables,
            service: Some(service),
        };
        bed.step();
        bed
    }

    /// The service's turn. How often it was woken.
    fn step(&self) -> usize {
        self.clock.advance(Duration::ZERO)
    }

    /// The client's turn.
    fn attend(&self) {
        while self.near.attend() {}
    }

    /// Frames that were put aside, ever.
    fn put_aside(&self) -> u32 {
        self.tables.embedded.waiting_head(0)
    }

    /// Those that the service has taken.
    fn taken(&self) -> u32 {
        let waiting = &self.tables.embedded.map().waiting[0];
        waiting.tail.load(Ordering::Relaxed)
    }

    /// A connection whose client has spoken first, as all before it.
    fn connect(&self) -> TcpStream {
        let client = TcpStream::connect_nonblocking(&self.near, at(FAR4, PORT)).unwrap();
        self.attend();
        self.step();
        self.attend();
        client
    }

    fn states(&self, stack: &Stack) -> Vec<String> {
        stack.snapshot().tcp.states.into_keys().collect()
    }

    fn finish(mut self) {
        self.service.take().unwrap().join().unwrap();
    }
}

/// Answers each question with one of 2,000 bytes, two segments.
fn answer(stream: &TcpStream) -> bool {
    let mut stream = stream;
    let mut question = [0; 64];
    match stream.read(&mut question).unwrap() {
        0 => false,
        _ => {
            stream.write_all(&[7; 2000]).unwrap();
            true
        }
    }
}

fn read_answer(client: &mut TcpStream) {
    let mut left = 2000;
    let mut buffer = [0; 4096];
    while left > 0 {
        left -= client.read(&mut buffer).unwrap();
    }
}

#[test]
fn an_acknowledgment_alone_wakes_nobody() {
    let server = Arc::new(Mutex::new(None));
    let shared = server.clone();
    let bed = Bed::new(move |listener| {
        let stream = Arc::new(listener.accept().unwrap().0);
        *shared.lock().unwrap() = Some(stream.clone());
        while answer(&stream) {}
    });
    let mut client = bed.connect();
    bed.step();
    let tap = bed.link.tap();
    for round in 1..=20 {
        client.write_all(b"question").unwrap();
        assert_eq!(bed.step(), 1, "the question wakes");
        bed.attend();
        read_answer(&mut client);
        bed.attend();
        // The acknowledgment is there, and no thread has polled.
        assert_eq!(bed.step(), 0, "round {round}");
        assert_eq!((bed.put_aside(), bed.taken()), (round, round - 1));
        bed.clock.advance(Duration::from_millis(1));
        // A query processes it, and so does the next frame.
        if round % 2 == 0 {
            continue;
        }
        let info = server.lock().unwrap().as_ref().unwrap().info().unwrap();
        assert_eq!(bed.taken(), round);
        assert!(info.round_trip < Duration::from_micros(50), "{info:?}");
        assert_eq!(info.retransmissions + info.loss_probes, 0);
    }
    assert_eq!(bed.taken(), 19);
    client.write_all(b"question").unwrap();
    bed.step();
    assert_eq!(bed.taken(), 20);
    let stream = server.lock().unwrap().take().unwrap();
    assert_eq!(stream.info().unwrap().bytes_acknowledged, 20 * 2000);
    // Nor is anything sent again when nothing comes.
    bed.attend();
    read_answer(&mut client);
    bed.attend();
    tap.take();
    let mut woken = 0;
    for _ in 0..100 {
        woken += bed.clock.advance(Duration::from_millis(10));
    }
    assert_eq!(stream.info().unwrap().unacknowledged, 0);
    assert_eq!(stream.info().unwrap().retransmissions, 0);
    assert!(woken <= 3, "{woken}");
    let sent = tap.take();
    assert!(sent.iter().all(|frame| frame.from != Side::B), "{sent:?}");
    drop((client, stream));
    bed.attend();
    bed.step();
    bed.finish();
}

#[test]
fn a_writer_without_space_is_woken_at_once() {
    let bed = Bed::new(move |listener| {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_send_buffer(16_384).unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
        stream.write_all(&vec![1; 1_000_000]).unwrap();
    });
    let mut client = bed.connect();
    client.write_all(b"question").unwrap();
    bed.step();
    let (mut left, mut buffer) = (1_000_000, vec![0; 65_536]);
    let mut steps = 0;
    while left > 0 {
        bed.attend();
        while left > 0
            && let Ok(length) = client.read(&mut buffer)
        {
            left -= length;
        }
        bed.attend();
        let before = bed.put_aside();
        if left > 100_000 {
            // Its acknowledgments are waited for.
            assert!(bed.step() > 0, "{left} bytes left, {before} put aside");
        } else {
            bed.clock.advance(Duration::from_millis(1));
        }
        steps += 1;
        assert!(steps < 10_000);
    }
    drop(client);
    bed.finish();
}

#[test]
fn the_fin_after_a_close_is_acknowledged_soon_and_wakes_once() {
    let bed = Bed::new(move |listener| {
        for _ in 0..2 {
            let (stream, _) = listener.accept().unwrap();
            assert!(answer(&stream));
        }
        // Sleeps in the stack, for nothing that has to do with them.
        let _ = listener.accept();
    });
    for _ in 0..2 {
        let mut client = bed.connect();
        client.write_all(b"question").unwrap();
        bed.step();
        bed.attend();
        read_answer(&mut client);
        drop(client);
        bed.attend();
        // Its FIN lies there.
        assert_eq!(bed.step(), 0);
        assert_eq!(bed.states(&bed.near), ["last-ack"]);
        assert!(bed.clock.advance(LONGEST) <= 1);
        bed.attend();
        assert_eq!(bed.states(&bed.near), [""; 0]);
        assert_eq!(bed.states(&bed.far), ["time-wait"]);
    }
    // A peer that takes its time wakes.
    drop(bed.connect());
    bed.attend();
    bed.step();
    bed.finish();
}
