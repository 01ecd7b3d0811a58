//! Seccomp filters that a program installs (seccomp(2)): which of the stack's own system
//! calls they allow.
//!
//! The program chooses its filter, which holds whatever the stack would need. So the filter
//! is read first. Then either the stack continues to work under it, or has no sockets by
//! then.

use libc::{c_long, sock_filter};
use tidewall_sys::seccomp::{Call, allows, decide};

/// The purpose for which the stack makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// To serve its existing sockets.
    Data,
    /// To get more sockets.
    Sockets,
    /// To get more sockets without a manager.
    Embedded,
    /// To be created; its threads, for the interface's addresses and a new manager.
    Making,
    /// To follow priorities; the stack stops doing so if one of the calls is refused.
    Priorities,
    /// To send long segments; otherwise it sends packet by packet.
    Segments,
}

/// A call that the stack makes, with the arguments by which filters distinguish calls.
pub(crate) struct Needed {
    name: &'static str,
    number: c_long,
    arguments: &'static [(usize, u64)],
    what: For,
}

macro_rules! needed {
    ($($what:ident: $($number:ident ($($place:literal = $value:expr),*))*;)*) => {
        &[$($(Needed {
            name: stringify!($number),
            number: libc::$number,
            arguments: &[$(($place, $value as u64)),*],
            what: For::$what,
        },)*)*]
    };
}

const FUTEX_PRIVATE: i32 = libc::FUTEX_PRIVATE_FLAG;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const SEQPACKET: i32 = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
const STREAM: i32 = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
const DATAGRAM: i32 = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
const PACKET: i32 = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
/// The flags with which the C library creates a thread.
const THREAD: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;
/// A request of ioctl(2).
const SIOCETHTOOL: i32 = 0x8946;

const NEEDED: &[Needed] = needed! {
    Data:
        SYS_ppoll() SYS_epoll_pwait() SYS_epoll_create1(0 = libc::EPOLL_CLOEXEC) SYS_epoll_ctl()
        SYS_eventfd2(1 = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)
        SYS_read() SYS_write() SYS_close()
        SYS_sendto() SYS_recvfrom() SYS_sendmsg() SYS_recvmsg() SYS_accept4()
        SYS_getsockopt() SYS_setsockopt() SYS_getsockname() SYS_shutdown()
        SYS_fcntl(1 = libc::F_DUPFD_CLOEXEC) SYS_fcntl(1 = libc::F_DUPFD)
        SYS_dup3() SYS_ioctl(1 = libc::FIONBIO)
        SYS_futex(1 = libc::FUTEX_WAIT | FUTEX_PRIVATE)
        SYS_futex(1 = libc::FUTEX_WAIT_BITSET | FUTEX_PRIVATE)
        SYS_futex(1 = libc::FUTEX_WAKE | FUTEX_PRIVATE)
        SYS_rt_sigprocmask() SYS_rt_sigreturn()
        SYS_brk() SYS_mmap(0 = 0, 2 = READ_WRITE, 3 = ANONYMOUS, 4 = -1i64, 5 = 0) SYS_munmap()
        SYS_mremap(3 = libc::MREMAP_MAYMOVE) SYS_mprotect(2 = READ_WRITE)
        SYS_madvise(2 = libc::MADV_DONTNEED)
        SYS_getrandom() SYS_clock_gettime(0 = libc::CLOCK_MONOTONIC)
        SYS_clock_gettime(0 = libc::CLOCK_PROCESS_CPUTIME_ID);
    Sockets:
        SYS_socket(0 = libc::AF_INET, 1 = STREAM) SYS_socket(0 = libc::AF_INET, 1 = DATAGRAM)
        SYS_socket(0 = libc::AF_INET6, 1 = STREAM) SYS_socket(0 = libc::AF_INET6, 1 = DATAGRAM)
        SYS_socket(0 = libc::AF_NETLINK, 1 = libc::SOCK_RAW | libc::SOCK_CLOEXEC)
        SYS_connect() SYS_bind() SYS_listen() SYS_getpeername() SYS_fcntl(1 = libc::F_GETFL)
        SYS_fcntl(1 = libc::F_SETLK) SYS_fcntl(1 = libc::F_GETLK)
        SYS_getpid();
    Embedded:
        SYS_bpf();
    Making:
        SYS_socket(0 = libc::AF_UNIX, 1 = STREAM) SYS_socket(0 = libc::AF_UNIX, 1 = SEQPACKET)
        SYS_ioctl(1 = libc::SIOCGIFINDEX) SYS_ioctl(1 = SIOCETHTOOL)
        SYS_openat(0 = libc::AT_FDCWD, 2 = libc::O_CLOEXEC) SYS_fstat() SYS_newfstatat()
        SYS_statx() SYS_getdents64() SYS_lseek() SYS_fchmod()
        SYS_mmap(2 = READ_WRITE, 3 = libc::MAP_SHARED | libc::MAP_POPULATE)
        SYS_mmap(0 = 0, 2 = libc::PROT_NONE, 3 = ANONYMOUS | libc::MAP_STACK)
        SYS_madvise(2 = libc::MADV_DONTFORK)
        SYS_clone3() SYS_set_robust_list() SYS_rseq() SYS_sigaltstack() SYS_exit()
        SYS_prctl(0 = libc::PR_SET_NAME) SYS_prctl(0 = libc::PR_SET_TIMERSLACK)
        SYS_rt_sigaction() SYS_clock_nanosleep()
        SYS_clock_gettime(0 = libc::CLOCK_THREAD_CPUTIME_ID);
    Priorities:
        SYS_gettid() SYS_sched_getattr() SYS_sched_setattr() SYS_sched_yield();
    Segments:
        SYS_socket(0 = libc::AF_PACKET, 1 = PACKET);
};

/// A call that only one of two architectures has.
#[cfg(target_arch = "x86_64")]
const OLD: &[Needed] = needed! { Making: SYS_mkdir() SYS_unlink(); };
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[Needed] = needed! { Making: SYS_mkdirat() SYS_unlinkat(); };

impl Needed {
    /// Returns the name of the call.
    pub(crate) fn name(&self) -> &'static str {
        self.name.trim_start_matches("SYS_")
    }

    /// Reports whether the stack works without it.
    pub(crate) fn may_be_left(&self) -> bool {
        matches!(self.what, For::Priorities | For::Segments)
    }

    /// Reports whether only long segments need it.
    pub(crate) fn is_for_segments(&self) -> bool {
        self.what == For::Segments
    }

    /// Reports whether a report needs it.
    pub(crate) fn is_of_reports(&self) -> bool {
        matches!(
            self.number,
            libc::SYS_openat
                | libc::SYS_read
                | libc::SYS_write
                | libc::SYS_close
                | libc::SYS_fcntl
                | libc::SYS_getpid
                | libc::SYS_futex
                | libc::SYS_brk
                | libc::SYS_mmap
                | libc::SYS_munmap
        )
    }

    /// Returns the call with arguments that make it fail harmlessly, or create something
    /// that ends with the process. `None` for calls without such arguments.
    pub(crate) fn harmless(&self) -> Option<(c_long, [usize; 6])> {
        // No valid descriptor, address, or length.
        let mut arguments = [usize::MAX; 6];
        for &(place, value) in self.arguments {
            arguments[place] = value as usize;
        }
        let ends = matches!(self.number, libc::SYS_exit | libc::SYS_rt_sigreturn);
        (!ends && self.what != For::Embedded).then_some((self.number, arguments))
    }

    /// Reports whether the kernel's answer to [`Needed::harmless`] means that the call is
    /// allowed.
    pub(crate) fn is_allowed(&self, errno: i32) -> bool {
        match errno {
            // Without CAP_NET_RAW the kernel refuses it as well. The socket handles both.
            _ if self.is_for_segments() => true,
            // The C library falls back to another call.
            libc::ENOSYS => self.number == libc::SYS_clone3,
            errno => errno != libc::EPERM && errno != libc::EACCES,
        }
    }
}

/// Returns all of them.
pub(crate) fn needed() -> impl Iterator<Item = &'static Needed> {
    NEEDED.iter().chain(OLD)
}

/// AUDIT_ARCH_….
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// The confinement that a thread is about to enter.
pub(crate) enum Confinement<'a> {
    /// `read`, `write`, `exit` and `sigreturn`.
    Strict,
    /// The filter's result for calls from about this address.
    Filter(&'a [sock_filter], u64),
}

impl Confinement<'_> {
    fn allows(&self, needed: &Needed) -> bool {
        let Confinement::Filter(filter, address) = *self else {
            return matches!(
                needed.number,
                libc::SYS_read | libc::SYS_write | libc::SYS_exit | libc::SYS_rt_sigreturn
            );
        };
        let call = |number: c_long, arguments: &[(usize, u64)]| {
            // Descriptors, lengths and addresses may have any value.
            let mut call = Call {
                number: number as u32,
                architecture: ARCHITECTURE,
                address,
                arguments: [32; 6],
            };
            for &(place, value) in arguments {
                call.arguments[place] = value;
            }
            call
        };
        let asked = call(needed.number, needed.arguments);
        // The C library falls back to the other call, whose arguments filters can read.
        let missing = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
        let falls_back = needed.number == libc::SYS_clone3
            && decide(filter, &asked) == Some(missing)
            && allows(filter, &call(libc::SYS_clone, &[(0, THREAD as u64)]));
        allows(filter, &asked) || falls_back
    }

    /// Returns the name of a call that the stack makes for this purpose and that would be
    /// refused.
    pub(crate) fn refuses(&self, what: For) -> Option<&'static str> {
        let refused = needed().find(|it| it.what == what && !self.allows(it));
        refused.map(Needed::name)
    }
}
