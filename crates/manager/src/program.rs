//! The driver program: loaded, attached, and its maps.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use aya::maps::{ArrayOfMaps, HashMap, Map, MapData, RingBuf, XskMap};
use aya::programs::{TestRun, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfError, EbpfLoader};
use zerocopy::FromBytes;

use tidewall_device::demux::layout::{
    APPLICATIONS, METADATA_LENGTH, Metadata, QUEUES, TraceRecord, WAITING_SOCKETS,
};
use tidewall_device::demux::{
    ApplicationTables, EMBEDDED_APPLICATION, KernelMaps, Tables, TrustedTables, programs,
};
use tidewall_device::forked::Unshared;
use tidewall_sys::{Attach, attach_xdp, find_no_files, interface as sys_interface};

use crate::XdpMode;
use crate::refusal::{attach_error, check_generic, describe, native};

/// The demultiplexer in the driver (`bpf/demux.bpf.c`) and its maps.
///
/// The link that attaches it is not pinned: the kernel detaches the program when the last
/// descriptor is closed. That is when this value is dropped or the process dies, however
/// it dies.
pub struct Program {
    // Dropped first, which detaches: no frame may meet the program without its sockets.
    link: Option<Unshared<OwnedFd>>,
    loaded: Ebpf,
    tables: Tables,
    sockets: XskMap<MapData>,
    traces: Traces,
    embedded: MapData,
    // The outer map keeps the application's tables reachable for the program.
    _applications: ArrayOfMaps<MapData, MapData>,
}

/// The result of `BPF_PROG_TEST_RUN` on a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestResult {
    /// `enum xdp_action`: 1 drop, 2 pass, 3 transmit, 4 redirect.
    pub action: u32,
    /// The frame afterwards, without metadata.
    pub frame: Vec<u8>,
    /// Metadata, if the program wrote any.
    pub metadata: Option<Metadata>,
}

/// Records of sampled frames, as the driver program saw them.
pub struct Traces {
    ring: RingBuf<MapData>,
}

impl fmt::Debug for Program {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // aya's socket map and ring buffer do not implement Debug.
        formatter
            .debug_struct("Program")
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("Traces")
            .field(&self.as_fd())
            .finish()
    }
}

impl Traces {
    /// Opens a map that another process has made.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn of_map(map: MapData) -> io::Result<Self> {
        let ring = RingBuf::try_from(Map::RingBuf(map))
            .map_err(|error| describe("open map traces", error))?;
        Ok(Traces { ring })
    }
}

impl Iterator for Traces {
    type Item = TraceRecord;

    /// The oldest record not yet taken; `None` when there is none now.
    fn next(&mut self) -> Option<TraceRecord> {
        let item = self.ring.next()?;
        TraceRecord::read_from_prefix(&item)
            .ok()
            .map(|(record, _)| record)
    }
}

impl AsFd for Traces {
    /// Becomes readable, for `poll(2)`, when there are records.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl Program {
    /// Loads the program and creates its maps, empty. Attaches it to nothing.
    ///
    /// # Errors
    /// [`Refused`](crate::Refused) in an `io::Error`. PermissionDenied where privileges
    /// are missing. Unsupported where the kernel's verifier refuses the program, with the
    /// end of its log. Another kind where the kernel reports that.
    pub fn load() -> io::Result<Self> {
        let key = random_bytes()?;
        Self::load_with_key(zerocopy::transmute!(key))
    }

    /// As [`Program::load`] with a given key for the flow table's hash, for comparisons
    /// that must be reproducible.
    ///
    /// # Errors
    /// As [`Program::load`].
    pub fn load_with_key(hash_key: [u64; 2]) -> io::Result<Self> {
        let mut loaded = load(programs::DEMUX)
            .map_err(|error| describe("load the driver program's maps", error))?;
        let xdp = xdp(&mut loaded)?;
        xdp.load()
            .map_err(|error| describe("load the driver program", error))?;
        let device = array(&mut loaded, "device")?;
        let queues = array(&mut loaded, "queues")?;
        let embedded = array(&mut loaded, "embedded")?;
        let mut applications: ArrayOfMaps<MapData, MapData> = take(&mut loaded, "applications")?
            .try_into()
            .map_err(|error| describe("open map applications", error))?;
        applications
            .set(u32::from(EMBEDDED_APPLICATION), &embedded, 0)
            .map_err(|error| describe("enter the application's tables", error))?;
        let owners = HashMap::try_from(take(&mut loaded, "owners")?)
            .map_err(|error| describe("open map owners", error))?;
        let fragments = HashMap::try_from(take(&mut loaded, "fragments")?)
            .map_err(|error| describe("open map fragments", error))?;
        let maps = KernelMaps { owners, fragments };
        let trusted =
            TrustedTables::of_maps(device.fd().as_fd(), queues.fd().as_fd(), maps, hash_key)?;
        let application =
            ApplicationTables::of_map(embedded.fd().as_fd(), EMBEDDED_APPLICATION, hash_key)?;
        let sockets = XskMap::try_from(take(&mut loaded, "sockets")?)
            .map_err(|error| describe("open map sockets", error))?;
        let ring = RingBuf::try_from(take(&mut loaded, "traces")?)
            .map_err(|error| describe("open map traces", error))?;
        Ok(Program {
            link: None,
            loaded,
            tables: Tables {
                trusted: Arc::new(trusted),
                embedded: Arc::new(application),
            },
            sockets,
            traces: Traces { ring },
            embedded,
            _applications: applications,
        })
    }

    /// Attaches the program to an interface of the caller's network namespace. Replaces
    /// this program's earlier attachment.
    ///
    /// # Errors
    /// - NotFound: there is no such interface
    /// - ResourceBusy: another program is attached
    /// - Unsupported: the driver has no native XDP or the kernel no XDP links
    /// - InvalidInput or another: the driver refuses the interface's MTU or settings (the
    ///   kernel's log says why)
    pub fn attach(&mut self, interface: &str, mode: XdpMode) -> io::Result<()> {
        self.detach();
        self.link = Some(attach(xdp(&mut self.loaded)?, interface, mode)?);
        Ok(())
    }

    /// Attaches the program in the driver. If that has no native XDP and generic XDP
    /// helps, attaches it generically.
    ///
    /// # Errors
    /// As [`Program::attach`].
    pub fn attach_where_possible(&mut self, interface: &str) -> io::Result<XdpMode> {
        let refused = match self.attach(interface, XdpMode::Native) {
            Ok(()) => return Ok(XdpMode::Native),
            Err(refused) => refused,
        };
        if refused.kind() != io::ErrorKind::Unsupported || native(interface) == Some(true) {
            return Err(refused);
        }
        check_generic(interface)?;
        self.attach(interface, XdpMode::Generic)?;
        Ok(XdpMode::Generic)
    }

    /// Detaches the program; every frame goes to the kernel again.
    pub fn detach(&mut self) {
        self.link = None;
    }

    /// The demux tables.
    pub fn tables(&self) -> Tables {
        self.tables.clone()
    }

    /// The map of the embedded application's tables. [`ApplicationTables::of_map`] needs
    /// nothing else in another process. None of the trusted level's maps can be reached
    /// by it.
    pub fn embedded(&self) -> BorrowedFd<'_> {
        self.embedded.fd().as_fd()
    }

    /// Sets the AF_XDP socket that receives an application's frames of a queue. The
    /// program delivers to it once it is bound to that queue; it leaves the map when it
    /// is closed.
    ///
    /// # Errors
    /// EINVAL for a number out of range; EOPNOTSUPP for a descriptor that is not an
    /// AF_XDP socket.
    pub fn set_socket(
        &mut self,
        application: u16,
        queue: u32,
        socket: BorrowedFd<'_>,
    ) -> io::Result<()> {
        self.enter_socket(socket_index(application, queue)?, socket)
    }

    /// Sets the AF_XDP socket for those of these frames that may wait, up to the
    /// application's limit
    /// ([`set_waiting_limit`](tidewall_device::demux::ApplicationTables::set_waiting_limit)).
    ///
    /// # Errors
    /// As [`Program::set_socket`].
    pub fn set_waiting_socket(
        &mut self,
        application: u16,
        queue: u32,
        socket: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let index = WAITING_SOCKETS as u32 + socket_index(application, queue)?;
        self.enter_socket(index, socket)
    }

    fn enter_socket(&mut self, index: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.sockets
            .set(index, socket.as_raw_fd(), 0)
            .map_err(|error| describe("enter an AF_XDP socket", error))
    }

    /// Records of frames sampled since [`TrustedTables::start_trace`].
    pub fn traces(&mut self) -> &mut Traces {
        &mut self.traces
    }

    /// Runs the program on a frame of queue 0 without a device, for tests
    /// (BPF_PROG_TEST_RUN). Nothing is delivered; counters and heads move.
    ///
    /// # Errors
    /// EINVAL for a frame under 14 bytes or over a page less headroom; what the
    /// kernel reports otherwise.
    pub fn test_run(&mut self, frame: &[u8]) -> io::Result<TestResult> {
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex,
        // rx_queue_index, egress_ifindex.
        let length = u32::try_from(frame.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let context: [u32; 6] = [0, length, 0, 0, 0, 0];
        let context: [u8; 24] = zerocopy::transmute!(context);
        let mut context_out = [0u8; 24];
        let mut data_out = vec![0; (frame.len() + METADATA_LENGTH).max(ANSWER_LONGEST)];
        let xdp = xdp(&mut self.loaded)?;
        let result = xdp
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut data_out),
                ctx_in: Some(&context),
                ctx_out: Some(&mut context_out),
                ..TestRunOptions::new()
            })
            .map_err(|error| describe("run the driver program on a test frame", error))?;
        data_out.truncate(result.data_size_out as usize);
        let context_out: [u32; 6] = zerocopy::transmute!(context_out);
        let metadata_length = context_out[0] as usize;
        let (metadata, frame) = data_out
            .split_at_checked(metadata_length)
            .unwrap_or_default();
        Ok(TestResult {
            action: result.return_value,
            frame: frame.to_vec(),
            metadata: (!metadata.is_empty()).then(|| Metadata::from_bytes(metadata)),
        })
    }

    /// Runs the program `repeat` times on a frame of queue 0, as [`Program::test_run`]
    /// does once. Returns the mean time of a run as measured by the kernel, in whole
    /// nanoseconds. Each run meets the previous run's result: meant for frames that the
    /// program leaves alone.
    ///
    /// # Errors
    /// As [`Program::test_run`].
    pub fn test_time(&mut self, frame: &[u8], repeat: u32) -> io::Result<Duration> {
        let xdp = xdp(&mut self.loaded)?;
        let result = xdp
            .test_run(TestRunOptions {
                data_in: Some(frame),
                repeat,
                ..TestRunOptions::new()
            })
            .map_err(|error| describe("time the driver program on a test frame", error))?;
        Ok(result.duration)
    }
}

/// One for the whole process: creating one reads the kernel's own BTF, even where
/// `btf(None)` follows. That takes longer than everything else in loading except the
/// verifier, and our programs do not refer to it.
static LOADER: OnceLock<Mutex<EbpfLoader<'static>>> = OnceLock::new();

/// Creates the maps of an object and reads its programs.
pub(crate) fn load(object: &[u8]) -> Result<Ebpf, EbpfError> {
    let loader = LOADER.get_or_init(|| Mutex::new(EbpfLoader::new()));
    let mut loader = loader.lock().unwrap_or_else(PoisonError::into_inner);
    loader.btf(None).load(object)
}

/// Makes [`load`] work without reading BTF, in a process that is the manager's own: the
/// loader is created in a thread whose openat(2) fails. An application's process may have
/// a seccomp filter that forbids this, and libtidewall.so intercepts the calls for it.
pub(crate) fn read_no_btf() {
    LOADER.get_or_init(|| Mutex::new(without_btf()));
}

fn without_btf() -> EbpfLoader<'static> {
    let made = thread::Builder::new().spawn(|| {
        let _ = find_no_files();
        EbpfLoader::new()
    });
    let made = made.ok().and_then(|thread| thread.join().ok());
    made.unwrap_or_default()
}

/// Attaches a loaded program through a link, which ends with its descriptor.
pub(crate) fn attach(
    xdp: &mut Xdp,
    interface: &str,
    mode: XdpMode,
) -> io::Result<Unshared<OwnedFd>> {
    let place = match mode {
        XdpMode::Native => Attach::Native,
        XdpMode::Generic => Attach::Generic,
    };
    let index = match sys_interface::index(interface) {
        Ok(index) => index,
        // Not a name at all.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
        Err(_) => {
            let text = format!("no interface {interface} in this network namespace (see: ip link)");
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
    };
    let program = xdp
        .fd()
        .map_err(|error| describe("find the driver program", error))?;
    // A link is used, since an attachment without one would outlive a killed process.
    let link = attach_xdp(program.as_fd(), index, place)
        .map_err(|error| attach_error(interface, error))?;
    Unshared::new(link)
}

/// Unguessable random bytes.
pub(crate) fn random_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The longest frame with which the program answers a SYN.
const ANSWER_LONGEST: usize = 128;

fn xdp(loaded: &mut Ebpf) -> io::Result<&mut Xdp> {
    xdp_named(loaded, "demux")
}

pub(crate) fn xdp_named<'a>(loaded: &'a mut Ebpf, name: &str) -> io::Result<&'a mut Xdp> {
    let program = loaded.program_mut(name).ok_or(io::ErrorKind::NotFound)?;
    program
        .try_into()
        .map_err(|error| describe("find the driver program", error))
}

/// Index of an application's socket of a queue in the map of sockets; EINVAL out of
/// range.
fn socket_index(application: u16, queue: u32) -> io::Result<u32> {
    if usize::from(application) >= APPLICATIONS || queue as usize >= QUEUES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(u32::from(application) * QUEUES as u32 + queue)
}

fn take(loaded: &mut Ebpf, name: &str) -> io::Result<Map> {
    loaded.take_map(name).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("the driver program has no map {name}"),
        )
    })
}

fn array(loaded: &mut Ebpf, name: &str) -> io::Result<MapData> {
    match take(loaded, name)? {
        Map::Array(map) => Ok(map),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that this process has read.
    fn read_so_far() -> u64 {
        let said = std::fs::read_to_string("/proc/self/io").unwrap();
        let line = said.lines().find_map(|line| line.strip_prefix("rchar: "));
        line.unwrap().parse().unwrap()
    }

    #[test]
    fn the_kernels_own_btf_is_not_read() {
        let whole = std::fs::metadata("/sys/kernel/btf/vmlinux").map_or(0, |file| file.len());
        let before = read_so_far();
        let _loader = without_btf();
        let read = read_so_far() - before;
        assert!(whole == 0 || read < whole / 2, "{read} of {whole} bytes");
    }
}
