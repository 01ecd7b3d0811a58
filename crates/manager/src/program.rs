//! The driver program: loaded, attached, and its maps.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use aya::maps::{ArrayOfMaps, HashMap, Map, MapData, RingBuf, XskMap};
use aya::programs::{ProgramError, TestRun, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use zerocopy::FromBytes;

use tidewall_device::capabilities::{self, Set};
use tidewall_device::demux::layout::{
    APPLICATIONS, METADATA_LENGTH, Metadata, QUEUES, TraceRecord,
};
use tidewall_device::demux::{
    ApplicationTables, EMBEDDED_APPLICATION, KernelMaps, Tables, TrustedTables, programs,
};
use tidewall_device::forked::Unshared;
use tidewall_device::interface::is_physical;
use tidewall_device::system as syscall;
use tidewall_sys::netlink::{Netdev, XDP_BASIC};

use crate::XdpMode;

/// The demultiplexer in the driver (`bpf/demux.bpf.c`) and its maps.
///
/// The link that attaches it is not pinned: the kernel detaches the program
/// when the last descriptor is closed, so when this value is dropped or the
/// process dies, however it dies.
pub struct Program {
    // Detaches first: no frame may meet the program without its sockets.
    link: Option<Unshared<OwnedFd>>,
    loaded: Ebpf,
    tables: Tables,
    sockets: XskMap<MapData>,
    traces: Traces,
    embedded: MapData,
    // The outer map keeps the application's tables reachable for the program.
    _applications: ArrayOfMaps<MapData, MapData>,
}

/// What `BPF_PROG_TEST_RUN` made of a frame.
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
        // aya's socket map and ring buffer cannot print themselves.
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
    /// Readable, for `poll(2)`, when there are records.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl Program {
    /// Loads the program and makes its maps, empty; attaches it to nothing.
    ///
    /// # Errors
    /// [`Refused`] in an `io::Error`: PermissionDenied where privileges are
    /// missing; Unsupported where the kernel's verifier refuses the program,
    /// with the end of its log; of another kind where the kernel reports that.
    pub fn load() -> io::Result<Self> {
        let mut key = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        let [k0, k1]: [u64; 2] = zerocopy::transmute!(key);
        Self::load_with_key([k0, k1])
    }

    /// As [`Program::load`] with a given key for the flow table's hash, for
    /// comparisons that must come out the same every time.
    ///
    /// # Errors
    /// As [`Program::load`].
    pub fn load_with_key(hash_key: [u64; 2]) -> io::Result<Self> {
        // Without the kernel's own BTF, which the program does not refer to and
        // which takes long to read.
        let mut loaded = EbpfLoader::new()
            .btf(None)
            .load(programs::DEMUX)
            .map_err(|error| describe("load the driver program's maps", error))?;
        let xdp = xdp(&mut loaded)?;
        xdp.load()
            .map_err(|error| describe("load the driver program", error))?;
        let device = array(&mut loaded, "device")?;
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
        let trusted = TrustedTables::of_maps(device.fd().as_fd(), maps, hash_key)?;
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

    /// Attaches the program to an interface of the caller's network namespace.
    /// Replaces this program's earlier attachment.
    ///
    /// # Errors
    /// NotFound when there is no such interface; ResourceBusy when another
    /// program is attached; Unsupported when the driver has no native XDP or
    /// the kernel no XDP links; InvalidInput or another when the driver refuses
    /// the interface's MTU or settings (the kernel's log says why).
    pub fn attach(&mut self, interface: &str, mode: XdpMode) -> io::Result<()> {
        self.detach();
        self.link = Some(attach(xdp(&mut self.loaded)?, interface, mode)?);
        Ok(())
    }

    /// Attaches the program in the driver, or, where that has no native XDP and
    /// generic XDP helps, generically.
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

    /// Detaches the program; the kernel gets every frame again.
    pub fn detach(&mut self) {
        self.link = None;
    }

    /// The demux tables.
    pub fn tables(&self) -> Tables {
        self.tables.clone()
    }

    /// The map of the embedded application's tables, which is all that
    /// [`ApplicationTables::of_map`] needs in another process. None of the trusted level's
    /// maps can be reached by it.
    pub fn embedded(&self) -> BorrowedFd<'_> {
        self.embedded.fd().as_fd()
    }

    /// Sets the AF_XDP socket that gets an application's frames of a queue. The
    /// program delivers to it once it is bound to that queue; it leaves the
    /// map when it is closed.
    ///
    /// # Errors
    /// EINVAL for a number out of range; EOPNOTSUPP for a descriptor that is no
    /// AF_XDP socket.
    pub fn set_socket(
        &mut self,
        application: u16,
        queue: u32,
        socket: BorrowedFd<'_>,
    ) -> io::Result<()> {
        if usize::from(application) >= APPLICATIONS || queue as usize >= QUEUES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let index = u32::from(application) * QUEUES as u32 + queue;
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

    /// Runs the program `repeat` times on a frame of queue 0, as
    /// [`Program::test_run`] does once, and returns the mean time of a run as
    /// the kernel measured it, in whole nanoseconds. The program meets what it
    /// made of the frame the time before: meant for frames that it leaves alone.
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

/// Attaches a loaded program by a link, which ends with its descriptor.
pub(crate) fn attach(
    xdp: &mut Xdp,
    interface: &str,
    mode: XdpMode,
) -> io::Result<Unshared<OwnedFd>> {
    let flags = match mode {
        XdpMode::Native => syscall::XDP_FLAGS_DRV_MODE,
        XdpMode::Generic => syscall::XDP_FLAGS_SKB_MODE,
    };
    let index = match syscall::interface_index(interface) {
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
    // A link, since an attachment without one would outlive a killed process.
    let link = syscall::attach_xdp(program.as_fd(), index, flags)
        .map_err(|error| attach_error(interface, error))?;
    Unshared::new(link)
}

/// The program answers a SYN with no longer frame than this.
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

/// Why the kernel refused the driver program or what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What was refused, and why.
    pub cause: String,
    /// The last lines of the verifier's log, if it was the verifier.
    pub log: Vec<String>,
    /// What helps.
    pub remedy: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.cause)?;
        for line in &self.log {
            write!(formatter, "\n    {line}")?;
        }
        write!(formatter, "\n  {}", self.remedy)
    }
}

impl std::error::Error for Refused {}

/// The oldest kernel that the program is tested on: major, minor.
pub const KERNEL_MINIMUM: (u32, u32) = (6, 1);
/// Lines of the verifier's log that are shown: the instruction, its registers
/// and the complaint are within them.
const LOG_LINES: usize = 6;
/// How the lines begin with which the verifier ends every log.
const STATISTICS: [&str; 3] = ["verification time", "stack depth", "processed "];

/// Major and minor number of a kernel release, such as 6.1.0-50-amd64.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The first error of a type on the way to an error's root.
fn find<'a, T: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a T> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| error.downcast_ref())
}

/// The errno at the root of one of aya's errors.
fn root_errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error())
}

fn kind_of(errno: Option<i32>) -> io::ErrorKind {
    errno.map_or(io::ErrorKind::Other, |errno| {
        io::Error::from_raw_os_error(errno).kind()
    })
}

pub(crate) fn describe(what: &str, error: impl std::error::Error + 'static) -> io::Error {
    let errno = root_errno(&error);
    if errno == Some(libc::EPERM) {
        return unprivileged(what);
    }
    if let Some(ProgramError::LoadError {
        io_error,
        verifier_log,
    }) = find(&error)
    {
        let log = verifier_log.to_string();
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let missing = Set::effective().missing(&capabilities::LOAD);
        // Without CAP_PERFMON the verifier forbids what it allows otherwise.
        if missing.is_empty() {
            return refused(what, io_error, &log, release.trim());
        }
        return unprivileged(what);
    }
    let mut text = format!("cannot {what}: {error}");
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    io::Error::new(kind_of(errno), text)
}

fn unprivileged(what: &str) -> io::Error {
    let (cause, remedy) = capabilities::refusal(&capabilities::LOAD);
    let refused = Refused {
        cause: format!("cannot {what}: {cause}"),
        log: Vec::new(),
        remedy,
    };
    io::Error::new(io::ErrorKind::PermissionDenied, refused)
}

/// A program that the kernel did not load, privileges aside.
fn refused(what: &str, error: &io::Error, log: &str, release: &str) -> io::Error {
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| !line.trim().is_empty())
        .filter(|line| !STATISTICS.iter().any(|start| line.starts_with(start)))
        .collect();
    if lines.is_empty() {
        let refused = Refused {
            cause: format!(
                "cannot {what}: Linux {release} refused it ({error}) before its verifier said a word"
            ),
            log: Vec::new(),
            remedy: "a security module may forbid it (see: dmesg), or memory is short".to_owned(),
        };
        return io::Error::new(error.kind(), refused);
    }
    let (major, minor) = KERNEL_MINIMUM;
    let remedy = match version(release) {
        Some(found) if found < KERNEL_MINIMUM => format!(
            "Tidewall is tested on Linux {major}.{minor} and later: install a newer kernel \
             (Debian: apt-get install linux-image-amd64)"
        ),
        _ => format!(
            "Linux {major}.{minor} and later should take it: please report this text; \
             another kernel may help meanwhile"
        ),
    };
    let first = lines.len().saturating_sub(LOG_LINES);
    let refused = Refused {
        cause: format!("cannot {what}: the verifier of Linux {release} refused it ({error})"),
        log: lines
            .get(first..)
            .unwrap_or_default()
            .iter()
            .map(|&line| line.to_owned())
            .collect(),
        remedy,
    };
    io::Error::new(io::ErrorKind::Unsupported, refused)
}

/// Whether the driver runs XDP programs, where the kernel says so (Linux 6.3).
fn native(interface: &str) -> Option<bool> {
    let features =
        syscall::interface_index(interface).and_then(|index| Netdev::open()?.xdp_features(index));
    Some(features.ok()? & XDP_BASIC != 0)
}

/// Whether generic XDP helps on an interface.
///
/// # Errors
/// Unsupported for virtual interfaces: their frames were merged (GRO) and
/// counted against the host by the interface below before the program sees them.
/// The text names that interface.
pub fn check_generic(interface: &str) -> io::Result<()> {
    if is_physical(interface) {
        return Ok(());
    }
    let lower = lower_interfaces(interface);
    let text = if lower.is_empty() {
        format!(
            "the driver of {interface} has no native XDP, and generic XDP protects only a network card"
        )
    } else {
        format!(
            "{interface} has no native XDP, and generic XDP would see its frames only after the interface \
             below has merged them; take over that one: {}",
            lower.join(" or ")
        )
    };
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}

/// What a VLAN, a bond or a bridge stands on: its parent or its ports.
fn lower_interfaces(interface: &str) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/sys/class/net/{interface}"));
    let names = entries.into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        Some(name.to_str()?.strip_prefix("lower_")?.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn attach_error(interface: &str, error: io::Error) -> io::Error {
    let errno = error.raw_os_error();
    let refuses = |what: &str| {
        format!(
            "the driver of {interface} refuses the program {what}; dmesg may say why, often it is an offload \
             (ethtool -K {interface} lro off rx-gro-hw off) or the MTU"
        )
    };
    let text = match errno {
        Some(libc::EBUSY) => format!(
            "another XDP program is attached to {interface} (see: ip -details link show dev {interface})"
        ),
        Some(libc::EOPNOTSUPP) if native(interface) == Some(true) => refuses("as it is set up now"),
        Some(libc::EOPNOTSUPP) => match check_generic(interface) {
            Err(refused) => return refused,
            Ok(()) => {
                format!("the driver of {interface} has no native XDP; generic XDP helps there")
            }
        },
        Some(libc::EINVAL) => refuses("as invalid"),
        Some(libc::ERANGE) => format!(
            "the driver of {interface} takes no XDP program at this MTU (at most 3506 on veth, on both ends): \
             ip link set dev {interface} mtu 1500, and the other end of a veth likewise"
        ),
        _ => return describe(&format!("attach to {interface}"), error),
    };
    io::Error::new(kind_of(errno), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(error: &io::Error) -> &Refused {
        let inner = error.get_ref().unwrap();
        inner.downcast_ref().unwrap()
    }

    #[test]
    fn the_verifier_s_refusal_shows_the_end_of_its_log() {
        let log: String = (0..40)
            .map(|line| format!("{line}: (bf) r1 = r2\n\n"))
            .collect();
        let log = format!("{log}R3 unbounded memory access\nprocessed 41 insns\n");
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        let error = refused("load it", &denied, &log, "6.12.95+deb12-amd64");
        // Not a matter of privileges, though the kernel's answer reads so.
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        let found = parts(&error);
        assert!(
            found
                .cause
                .contains("verifier of Linux 6.12.95+deb12-amd64")
        );
        assert_eq!(found.log.len(), LOG_LINES);
        assert_eq!(found.log[LOG_LINES - 1], "R3 unbounded memory access");
        assert!(found.remedy.contains("report"), "{}", found.remedy);
        let text = error.to_string();
        assert!(
            text.contains("\n    R3 unbounded memory access\n"),
            "{text}"
        );
        assert!(!text.contains("root"), "{text}");
        let old = refused("load it", &denied, &log, "5.10.0-28-amd64");
        assert!(parts(&old).remedy.contains("6.1 and later: install"));
    }

    #[test]
    fn a_refusal_without_a_log_is_not_the_verifier_s() {
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        let error = refused("load it", &denied, "", "6.12.0");
        assert!(!error.to_string().contains("the verifier of"), "{error}");
        assert!(parts(&error).remedy.contains("security module"));
    }

    #[test]
    fn releases_are_read() {
        assert_eq!(version("6.1.0-50-amd64"), Some((6, 1)));
        assert_eq!(version("6.18.44-fc"), Some((6, 18)));
        assert_eq!(version("unheard of"), None);
    }
}
