//! The process behind [`crate::restore::Restorer`]: forked early, it keeps a table of
//! undo steps and carries them out when its parent is gone.
//!
//! The parent may have other threads. So between `fork` and `_exit` this code calls only
//! async-signal-safe functions (signal-safety(7)) and plain system calls, which those of
//! rustix are. It uses memory allocated before the fork: no allocation, no locks, no
//! panics (every access is checked).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use tidewall_sys::{SignalSet, ethtool, interface};

/// Maximum number of undo steps at one time.
pub(crate) const STEPS: usize = 64;
/// Maximum bytes of one step: path and contents, or all arguments, each text terminated
/// by a zero byte.
pub(crate) const STEP_BYTES: usize = 4096;
/// Maximum number of arguments of a command, including its name.
pub(crate) const ARGUMENTS: usize = 64;
/// Bytes before a message's payload: operation (4), payload length (4),
/// number of the step (8), all in native order.
pub(crate) const HEADER: usize = 16;

/// Message: remember to write the payload's second part to the path in its
/// first.
pub(crate) const WRITE: u32 = 1;
/// Message: remember to run the payload's texts as a command.
pub(crate) const RUN: u32 = 2;
/// Message: forget a step.
pub(crate) const FORGET: u32 = 3;
/// Message: remember to carry out an ethtool request: an interface name of
/// [`ethtool::NAME_BYTES`], then the argument of [`ethtool::call`].
pub(crate) const REQUEST: u32 = 4;
/// Message: remember to remove the file at the path that is the payload.
pub(crate) const REMOVE: u32 = 6;
/// Message: the parent lives on, and sends nothing more.
pub(crate) const END: u32 = 5;

/// The environment that undo commands run in.
pub(crate) const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
const ENVIRONMENT: &[u8] = b"PATH=/usr/sbin:/usr/bin:/sbin:/bin\0";
/// How long one undo command may take before it is killed, so that a hanging one does not
/// block undoing the older steps.
const COMMAND_LIMIT: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// The descriptors that the child uses start here; all higher ones are closed.
const SOCKET: RawFd = 3;
const PARENT: RawFd = 4;
/// The lock on the undo record, if there is one.
const LOCK: RawFd = 5;
const FIRST_CLOSED: RawFd = 6;

struct Step {
    /// [`WRITE`], [`RUN`], or 0 for a free slot.
    operation: u32,
    length: u32,
    number: u64,
    bytes: [u8; STEP_BYTES],
}

/// Forks the child. Returns once it is safe from signals sent to the parent's process
/// group or terminal: the socket for messages, and its pid. A `lock` (flock(2)) is kept
/// until everything is undone, and then released, whichever other process has inherited
/// it.
///
/// # Errors
/// Those `socketpair`, `fork` or the child's own start report.
pub(crate) fn start(lock: Option<BorrowedFd<'_>>) -> io::Result<(UnixStream, Pid)> {
    let (ours, theirs) = UnixStream::pair()?;
    let parent = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    // Everything that the child will need, allocated and written (so mapped) now.
    let mut steps: Vec<Step> = (0..STEPS)
        .map(|_| Step {
            operation: 0,
            length: 0,
            number: 0,
            bytes: [0; STEP_BYTES],
        })
        .collect();
    let mut buffer = vec![0u8; HEADER + STEP_BYTES];

    // No signal handler of the parent may run in the child before it has reset them all,
    // so every signal is blocked over the fork.
    let before = SignalSet::full().block();
    // SAFETY: the child calls only `child`, which keeps to what is allowed after a fork
    // of a process with threads (module comment) and never returns.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child(
            theirs.as_fd(),
            parent.as_fd(),
            lock,
            &mut steps,
            &mut buffer,
        );
    }
    let failure = io::Error::last_os_error();
    before.set();
    let Some(pid) = Pid::from_raw(pid.max(0)) else {
        return Err(failure);
    };
    drop(theirs);
    let mut ready = [0u8];
    let started = io::Read::read_exact(&mut &ours, &mut ready);
    if let Err(error) = started {
        reap(pid);
        return Err(error);
    }
    Ok((ours, pid))
}

/// A message to the child.
pub(crate) fn message(operation: u32, number: u64, payload: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + payload.len());
    message.extend_from_slice(&operation.to_ne_bytes());
    message.extend_from_slice(&(payload.len() as u32).to_ne_bytes());
    message.extend_from_slice(&number.to_ne_bytes());
    message.extend_from_slice(payload);
    message
}

/// Sends all of `bytes` without SIGPIPE, whatever the process does about it.
pub(crate) fn send_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = retry_on_intr(|| rustix::net::send(fd, bytes, SendFlags::NOSIGNAL))?;
        bytes = bytes.get(sent..).unwrap_or(&[]);
    }
    Ok(())
}

/// Waits for a child to end. It is a success if other code has waited for it.
pub(crate) fn reap(pid: Pid) {
    let _ = retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty()));
}

/// The child, from fork to exit.
fn child(
    socket: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    lock: Option<BorrowedFd<'_>>,
    steps: &mut [Step],
    buffer: &mut [u8],
) -> ! {
    detach(
        socket.as_raw_fd(),
        parent.as_raw_fd(),
        lock.map(|lock| lock.as_raw_fd()),
    );
    // SAFETY: `detach` has put them there, and nothing closes them.
    let placed = |fd| unsafe { BorrowedFd::borrow_raw(fd) };
    let (socket, parent, lock) = (placed(SOCKET), placed(PARENT), lock.map(|_| placed(LOCK)));
    if write_all(socket, &[1]) {
        listen(socket, parent, steps, buffer);
    }
    while let Some(newest) = newest(steps) {
        let Some(step) = steps.get_mut(newest) else {
            break;
        };
        let bytes = step.bytes.get_mut(..step.length as usize);
        let bytes = bytes.unwrap_or_default();
        match step.operation {
            WRITE => write_back(bytes),
            RUN => run(bytes),
            REQUEST => request(bytes),
            REMOVE => remove(bytes),
            _ => {}
        }
        step.operation = 0;
    }
    if let Some(lock) = lock {
        let _ = rustix::fs::flock(lock, FlockOperation::Unlock);
    }
    // SAFETY: ends the process without running exit handlers, which belong to the
    // parent.
    unsafe { libc::_exit(0) }
}

/// Cuts every tie to the parent except the socket and the two shared namespaces.
fn detach(socket: RawFd, parent: RawFd, lock: Option<RawFd>) {
    // SAFETY: system calls with valid constant strings and integers only. Failures leave
    // the child less well hidden but still useful, so they are ignored. If the
    // descriptors could not be placed, the first write fails and `start` reports it.
    unsafe {
        libc::setsid();
        for signal in 1..=64 {
            // SIGKILL, SIGSTOP and the C library's own two are refused.
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        SignalSet::empty().set();
        libc::prctl(libc::PR_SET_NAME, c"tw-restorer".as_ptr());
        libc::chdir(c"/".as_ptr());
        // First above their final places, so that neither overwrites the other; dup2 also
        // makes copies that no longer close on exec.
        let socket = libc::fcntl(socket, libc::F_DUPFD_CLOEXEC, FIRST_CLOSED);
        let parent = libc::fcntl(parent, libc::F_DUPFD_CLOEXEC, FIRST_CLOSED);
        let lock = lock.map(|lock| libc::fcntl(lock, libc::F_DUPFD_CLOEXEC, FIRST_CLOSED));
        libc::dup2(socket, SOCKET);
        libc::dup2(parent, PARENT);
        match lock {
            Some(lock) => libc::dup2(lock, LOCK),
            None => libc::close(LOCK),
        };
        // The standard three stay open on /dev/null: a command run later must not find
        // its files there, and a pipe of the parent must end.
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for standard in 0..3 {
            libc::dup2(null, standard);
        }
        close_from(FIRST_CLOSED);
    }
}

fn close_from(first: RawFd) {
    // SAFETY: closes descriptors of this process only; nothing here owns one that it
    // closes later. A kernel before 5.9 refuses: then one by one.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first as libc::c_uint, u32::MAX, 0) < 0 {
            for fd in first..4096 {
                libc::close(fd);
            }
        }
    }
}

/// Takes messages until the parent is gone: its socket is closed, or its process has
/// ended while a forked copy of the socket lives on elsewhere.
fn listen(socket: BorrowedFd<'_>, parent: BorrowedFd<'_>, steps: &mut [Step], buffer: &mut [u8]) {
    let mut filled = 0;
    loop {
        let mut waits = [socket, parent].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        if retry_on_intr(|| poll(&mut waits, None)).is_err() {
            return;
        }
        let parent_gone = !waits[1].revents().is_empty();
        // Everything that the parent managed to send counts, so read until empty.
        loop {
            let Some(free) = buffer.get_mut(filled..).filter(|free| !free.is_empty()) else {
                return;
            };
            match retry_on_intr(|| rustix::net::recv(socket, &mut *free, RecvFlags::DONTWAIT)) {
                // A dying process closes its descriptors in an unspecified order. It may
                // still hold what was changed, such as a program that keeps a feature
                // off.
                Ok((0, _)) => {
                    let _ = poll(&mut waits[1..], Some(&COMMAND_LIMIT));
                    return;
                }
                Ok((_, read)) => filled += read,
                Err(Errno::AGAIN) => break,
                Err(_) => return,
            }
            match take_messages(steps, buffer, filled) {
                Some(left) => filled = left,
                None => return,
            }
        }
        if parent_gone {
            return;
        }
    }
}

/// Applies the whole messages among the first `filled` bytes and moves the
/// rest to the front. Returns how many bytes are left; `None` after [`END`].
fn take_messages(steps: &mut [Step], buffer: &mut [u8], filled: usize) -> Option<usize> {
    let mut start = 0;
    loop {
        let message = buffer.get(start..filled)?;
        let Some((operation, length, number)) = header(message) else {
            break;
        };
        let Some(payload) = message.get(HEADER..HEADER + length as usize) else {
            break;
        };
        match operation {
            END => return None,
            WRITE | RUN | REQUEST | REMOVE => {
                let free = steps.iter_mut().find(|step| step.operation == 0);
                if let Some(step) = free
                    && let Some(place) = step.bytes.get_mut(..payload.len())
                {
                    place.copy_from_slice(payload);
                    step.operation = operation;
                    step.length = length;
                    step.number = number;
                }
            }
            FORGET => {
                let named = |step: &&mut Step| step.operation != 0 && step.number == number;
                if let Some(step) = steps.iter_mut().find(named) {
                    step.operation = 0;
                }
            }
            _ => {}
        }
        start += HEADER + payload.len();
    }
    buffer.copy_within(start..filled, 0);
    Some(filled - start)
}

/// Operation, payload length and number of the message that begins with these bytes, if
/// its header is complete.
pub(crate) fn header(message: &[u8]) -> Option<(u32, u32, u64)> {
    let (operation, rest) = message.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (number, _) = rest.split_first_chunk::<8>()?;
    let length = u32::from_ne_bytes(*length).min(STEP_BYTES as u32);
    Some((
        u32::from_ne_bytes(*operation),
        length,
        u64::from_ne_bytes(*number),
    ))
}

fn newest(steps: &[Step]) -> Option<usize> {
    let live = steps
        .iter()
        .enumerate()
        .filter(|(_, step)| step.operation != 0);
    live.max_by_key(|(_, step)| step.number)
        .map(|(index, _)| index)
}

fn write_all(fd: impl AsFd, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match retry_on_intr(|| rustix::io::write(&fd, bytes)) {
            Ok(0) | Err(_) => return false,
            Ok(written) => bytes = bytes.get(written..).unwrap_or(&[]),
        }
    }
    true
}

/// `path 0 contents`
fn write_back(bytes: &[u8]) {
    let Ok(path) = CStr::from_bytes_until_nul(bytes) else {
        return;
    };
    let contents = bytes.get(path.count_bytes() + 1..).unwrap_or_default();
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) {
        write_all(file, contents);
    }
}

/// `path 0`
fn remove(bytes: &[u8]) {
    if let Ok(path) = CStr::from_bytes_with_nul(bytes) {
        let _ = rustix::fs::unlink(path);
    }
}

/// `name request`, in the network namespace of the fork.
fn request(bytes: &mut [u8]) {
    let Some((name, request)) = bytes.split_first_chunk_mut() else {
        return;
    };
    if let Ok(socket) = interface::any_socket() {
        // There is no process left to report to.
        let _ = ethtool::call(socket.as_fd(), name, request);
    }
}

/// `argument 0 argument 0 …`; the first names the program.
fn run(bytes: &[u8]) {
    // One more than the maximum number of arguments: the list ends with a null.
    let mut arguments = [ptr::null::<c_char>(); ARGUMENTS + 1];
    let mut start = 0;
    for slot in arguments.iter_mut().take(ARGUMENTS) {
        let Some(rest) = bytes.get(start..) else {
            break;
        };
        let Some(end) = rest.iter().position(|&byte| byte == 0) else {
            break;
        };
        *slot = rest.as_ptr().cast();
        start += end + 1;
    }
    let environment = [ENVIRONMENT.as_ptr().cast::<c_char>(), ptr::null()];
    if arguments[0].is_null() {
        return;
    }
    // SAFETY: clone with only a signal is fork, without the C library's fork handlers,
    // which may lock. The new process shares no memory with us. It calls only
    // async-signal-safe functions on valid, null-terminated lists of C strings.
    let pid = unsafe {
        let none = ptr::null::<c_void>();
        let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, none, none, none, none);
        if pid == 0 {
            // Ignored signals stay ignored over an exec; the command must find the
            // defaults.
            for signal in 1..=64 {
                libc::signal(signal, libc::SIG_DFL);
            }
            close_from(SOCKET);
            libc::execve(arguments[0], arguments.as_ptr(), environment.as_ptr());
            libc::_exit(127);
        }
        pid as c_int
    };
    let Some(pid) = Pid::from_raw(pid.max(0)) else {
        return;
    };
    // The pid is our child's until it is waited for, so neither pidfd nor kill can
    // hit another's.
    if let Ok(ended) = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        && poll(
            &mut [PollFd::new(&ended, PollFlags::IN)],
            Some(&COMMAND_LIMIT),
        ) == Ok(0)
    {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    reap(pid);
}
