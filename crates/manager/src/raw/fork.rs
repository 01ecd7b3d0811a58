//! The process behind [`crate::restore::Restorer`]: forked early, it keeps a
//! table of undo steps and carries them out when its parent is gone.
//!
//! The parent may have other threads, so between `fork` and `_exit` this code
//! calls only async-signal-safe functions (signal-safety(7)) and plain system
//! calls, on memory allocated before the fork: no allocation, no locks, no
//! panics (every access is checked).

use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr;

use tidewall_sys::{ethtool, interface};

/// Most undo steps at one time.
pub(crate) const STEPS: usize = 64;
/// Most bytes of one step: path and contents, or all arguments, each text
/// closed by a zero byte.
pub(crate) const STEP_BYTES: usize = 4096;
/// Most arguments of a command, its name included.
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
/// [`ethtool::NAME_BYTES`], then what [`ethtool::call`] takes.
pub(crate) const REQUEST: u32 = 4;
/// Message: remember to remove the file at the path that is the payload.
pub(crate) const REMOVE: u32 = 6;
/// Message: the parent lives on, and has nothing more to say.
pub(crate) const END: u32 = 5;

/// The environment that undo commands run in.
pub(crate) const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
const ENVIRONMENT: &[u8] = b"PATH=/usr/sbin:/usr/bin:/sbin:/bin\0";
/// How long one undo command may take before it is killed, so that one that
/// hangs does not keep the older steps from being undone.
const COMMAND_LIMIT_MS: c_int = 10_000;

/// Where the child puts its descriptors; everything above is closed.
const SOCKET: RawFd = 3;
const PARENT: RawFd = 4;
/// The lock on the record of what is to be undone, where there is one.
const LOCK: RawFd = 5;
const FIRST_CLOSED: RawFd = 6;

struct Step {
    /// [`WRITE`], [`RUN`], or 0 for a free slot.
    operation: u32,
    length: u32,
    number: u64,
    bytes: [u8; STEP_BYTES],
}

/// Forks the child. Returns once it is safe from signals sent to the parent's
/// process group or terminal: the socket to send messages to, and its pid. A
/// `lock` (flock(2)) is kept until all is undone, and then released, whichever other process
/// has inherited it.
///
/// # Errors
/// What `socketpair`, `fork` or the child's own start report.
pub(crate) fn start(lock: Option<BorrowedFd<'_>>) -> io::Result<(UnixStream, i32)> {
    let (ours, theirs) = UnixStream::pair()?;
    // SAFETY: no pointers. The flag-free pidfd_open (Linux 5.3) of ourselves.
    let parent = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } as RawFd;
    if parent < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just returned to us, owned by nobody else.
    let parent = unsafe { OwnedFd::from_raw_fd(parent) };
    // All that the child will need, allocated and written (so mapped) now.
    let mut steps: Vec<Step> = (0..STEPS)
        .map(|_| Step {
            operation: 0,
            length: 0,
            number: 0,
            bytes: [0; STEP_BYTES],
        })
        .collect();
    let mut buffer = vec![0u8; HEADER + STEP_BYTES];

    // No handler of the parent's may run in the child before it has reset
    // them all, so every signal is blocked over the fork.
    // SAFETY: all-zero is a valid sigset_t; sigfillset then defines it.
    let mut every: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are valid for the calls' duration.
    unsafe {
        libc::sigfillset(&mut every);
        libc::pthread_sigmask(libc::SIG_SETMASK, &every, &mut before);
    }
    // SAFETY: the child calls only `child`, which keeps to what is allowed
    // after a fork of a process with threads (module comment) and never
    // returns.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child(
            theirs.as_raw_fd(),
            parent.as_raw_fd(),
            lock.map(|lock| lock.as_raw_fd()),
            &mut steps,
            &mut buffer,
        );
    }
    let failure = io::Error::last_os_error();
    // SAFETY: `before` was filled by the first call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
    if pid < 0 {
        return Err(failure);
    }
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
        // SAFETY: `bytes` is valid for reads of its length.
        let sent = unsafe {
            libc::send(
                fd.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_NOSIGNAL,
            )
        };
        if sent < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        bytes = bytes.get(sent as usize..).unwrap_or(&[]);
    }
    Ok(())
}

/// Waits for a child to end. Somebody else having waited for it is success.
pub(crate) fn reap(pid: i32) {
    loop {
        // SAFETY: a null status is allowed.
        let result = unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
        if result >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// The child, from fork to exit.
fn child(
    socket: RawFd,
    parent: RawFd,
    lock: Option<RawFd>,
    steps: &mut [Step],
    buffer: &mut [u8],
) -> ! {
    detach(socket, parent, lock);
    if write_all(SOCKET, &[1]) {
        listen(steps, buffer);
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
    // SAFETY: no pointers; without a lock nothing is open there. Then ends the
    // process without running exit handlers, which belong to the parent.
    unsafe {
        libc::flock(LOCK, libc::LOCK_UN);
        libc::_exit(0)
    }
}

/// Cuts every tie to the parent but the socket and the two shared namespaces.
fn detach(socket: RawFd, parent: RawFd, lock: Option<RawFd>) {
    // SAFETY: system calls with valid constant strings and integers only.
    // Failures leave the child less well hidden but still useful, so they are
    // not looked at; if the descriptors could not be placed, the first write
    // fails and `start` reports it.
    unsafe {
        libc::setsid();
        for signal in 1..=64 {
            // SIGKILL, SIGSTOP and the C library's own two are refused.
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, c"tw-restorer".as_ptr());
        libc::chdir(c"/".as_ptr());
        // First above the places they go to, so that neither overwrites the
        // other; dup2 also makes copies that no longer close on exec.
        let socket = libc::fcntl(socket, libc::F_DUPFD_CLOEXEC, FIRST_CLOSED);
        let parent = libc::fcntl(parent, libc::F_DUPFD_CLOEXEC, FIRST_CLOSED);
        let lock = lock.map(|lock| libc::fcntl(lock, libc::F_DUPFD_CLOEXEC, FIRST_CLOSED));
        libc::dup2(socket, SOCKET);
        libc::dup2(parent, PARENT);
        match lock {
            Some(lock) => libc::dup2(lock, LOCK),
            None => libc::close(LOCK),
        };
        // The standard three stay open on /dev/null: a command run later must
        // not find its files there, and a pipe of the parent's must end.
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for standard in 0..3 {
            libc::dup2(null, standard);
        }
        close_from(FIRST_CLOSED);
    }
}

fn close_from(first: RawFd) {
    // SAFETY: closes descriptors of this process only; nothing here owns one
    // that it closes later. A kernel before 5.9 refuses: then one by one.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first as libc::c_uint, u32::MAX, 0) < 0 {
            for fd in first..4096 {
                libc::close(fd);
            }
        }
    }
}

fn errno() -> c_int {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// Takes messages until the parent is gone: its socket closed, or its process
/// ended while a forked copy of the socket lives on elsewhere.
fn listen(steps: &mut [Step], buffer: &mut [u8]) {
    let mut filled = 0;
    loop {
        let mut waits = [
            libc::pollfd {
                fd: SOCKET,
                events: libc::POLLIN,
                revents: 0,
            },
            libc::pollfd {
                fd: PARENT,
                events: libc::POLLIN,
                revents: 0,
            },
        ];
        // SAFETY: an array of two, valid for the call's duration.
        if unsafe { libc::poll(waits.as_mut_ptr(), 2, -1) } < 0 {
            if errno() == libc::EINTR {
                continue;
            }
            return;
        }
        let parent_gone = waits[1].revents != 0;
        // Everything the parent managed to say counts, so read until empty.
        loop {
            let Some(free) = buffer.get_mut(filled..).filter(|free| !free.is_empty()) else {
                return;
            };
            // SAFETY: `free` is valid for writes of its length.
            let read = unsafe {
                libc::recv(
                    SOCKET,
                    free.as_mut_ptr().cast(),
                    free.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            if read == 0 {
                // A dying process closes its descriptors in no order that
                // counts: it may still hold what was changed, such as a program
                // that keeps a feature off.
                waits[1].revents = 0;
                // SAFETY: one of the array, valid for the call's duration.
                unsafe { libc::poll(&mut waits[1], 1, COMMAND_LIMIT_MS) };
                return;
            }
            if read < 0 {
                match errno() {
                    libc::EINTR => continue,
                    libc::EAGAIN => break,
                    _ => return,
                }
            }
            filled += read as usize;
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

/// Operation, length of the payload and number of the message that begins with
/// these bytes, if all of its header is there.
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

fn write_all(fd: RawFd, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: `bytes` is valid for reads of its length.
        let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        if written < 0 && errno() == libc::EINTR {
            continue;
        }
        if written <= 0 {
            return false;
        }
        bytes = bytes.get(written as usize..).unwrap_or(&[]);
    }
    true
}

/// `path 0 contents`
fn write_back(bytes: &[u8]) {
    let Some(end) = bytes.iter().position(|&byte| byte == 0) else {
        return;
    };
    let Some(contents) = bytes.get(end + 1..) else {
        return;
    };
    let flags = libc::O_WRONLY | libc::O_TRUNC | libc::O_CLOEXEC;
    // SAFETY: `bytes` holds a zero byte at `end`, so the path is a C string.
    let fd = unsafe { libc::open(bytes.as_ptr().cast(), flags) };
    if fd >= 0 {
        write_all(fd, contents);
        // SAFETY: opened above, closed once.
        unsafe { libc::close(fd) };
    }
}

/// `path 0`
fn remove(bytes: &[u8]) {
    if bytes.last() == Some(&0) {
        // SAFETY: `bytes` ends with a zero byte, so it holds a C string.
        unsafe { libc::unlink(bytes.as_ptr().cast()) };
    }
}

/// `name request`, in the network namespace that we were forked in.
fn request(bytes: &mut [u8]) {
    let Some((name, request)) = bytes.split_first_chunk_mut() else {
        return;
    };
    if let Ok(socket) = interface::any_socket() {
        // Nobody is left to report to.
        let _ = ethtool::call(socket.as_fd(), name, request);
    }
}

/// `argument 0 argument 0 …`; the first names the program.
fn run(bytes: &[u8]) {
    // One more than there may be arguments: the list ends with a null.
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
    // SAFETY: clone with only a signal is fork, without the C library's fork
    // handlers, which may lock. The new process shares no memory with us and
    // calls only async-signal-safe functions on valid, null-terminated lists
    // of C strings.
    let pid = unsafe {
        let none = ptr::null::<c_void>();
        let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, none, none, none, none);
        if pid == 0 {
            // Ignored signals stay ignored over an exec; the command is to
            // find the defaults.
            for signal in 1..=64 {
                libc::signal(signal, libc::SIG_DFL);
            }
            close_from(SOCKET);
            libc::execve(arguments[0], arguments.as_ptr(), environment.as_ptr());
            libc::_exit(127);
        }
        pid as c_int
    };
    if pid < 0 {
        return;
    }
    // SAFETY: no pointers but the one valid pollfd. The pid is our child's
    // until it is waited for, so neither pidfd nor kill can hit another's.
    unsafe {
        let ended = libc::syscall(libc::SYS_pidfd_open, pid, 0) as RawFd;
        let mut wait = libc::pollfd {
            fd: ended,
            events: libc::POLLIN,
            revents: 0,
        };
        if libc::poll(&mut wait, 1, COMMAND_LIMIT_MS) == 0 {
            libc::kill(pid, libc::SIGKILL);
        }
        libc::close(ended);
        while libc::waitpid(pid, ptr::null_mut(), 0) < 0 && errno() == libc::EINTR {}
    }
}
