//! The names that the library overrides, against those of the C library.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use super::common::host::library;
use super::common::text;

/// C library functions that take a descriptor, make a process or set a handler.
const TAKEN: &str = "
    socket listen accept accept4 connect shutdown getsockname getpeername getsockopt setsockopt sockatmark
    read readv write writev recv recvfrom recvmsg recvmmsg send sendto sendmsg sendmmsg preadv2
    pwritev2 __read_chk __recv_chk __recvfrom_chk __poll_chk __ppoll_chk
    splice sendfile sendfile64
    select pselect poll ppoll epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait
    epoll_pwait2
    close dup dup2 dup3 fcntl fcntl64 ioctl close_range closefrom
    vfork _Fork clone _exit _Exit
    sigaction signal bsd_signal sysv_signal siginterrupt sigset
    pthread_cancel
    setrlimit setrlimit64 prlimit prlimit64 chroot prctl
    fdopen dprintf vdprintf __dprintf_chk __vdprintf_chk fclose
    open openat creat __open_2 __open64_2 __openat_2 __openat64_2 pipe pipe2 socketpair
    eventfd memfd_create timerfd_create signalfd inotify_init inotify_init1
    syscall";

/// Functions of liburing that make a ring.
const OF_RINGS: &str = "
    io_uring_setup io_uring_queue_init io_uring_queue_init_params io_uring_queue_init_mem
    io_uring_get_probe";

/// The same, for functions whose results on the descriptor's placeholder, or on the
/// kernel's socket, are correct.
const PASSED_BY: &str = "
    bind isfdtype
    pread pread64 pwrite pwrite64 preadv preadv64 pwritev pwritev64 lseek lseek64
    __pread_chk __pread64_chk
    tee vmsplice copy_file_range
    fstat fstat64 __fxstat __fxstat64 fstatat fstatat64 statx
    __fdelt_chk
    fork posix_spawn posix_spawnp execve execv execvp execvpe execl execle execlp execveat
    fexecve daemon
    sigprocmask pthread_sigmask
    aio_read aio_write lio_listio";

/// Returns the functions of a library that a program may call, with their addresses in
/// it.
fn exported(library: &Path) -> BTreeMap<String, String> {
    let listed = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output()
        .unwrap();
    let listed = text(&listed.stdout);
    let names = listed.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (address, _, name) = (words.next()?, words.next()?, words.next()?);
        let (name, version) = name.split_once('@').unwrap_or((name, ""));
        (!version.contains("PRIVATE")).then(|| (name.to_owned(), address.to_owned()))
    });
    names.collect()
}

/// The C library of this program.
fn c_library() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let found = paths.find(|path| path.contains("/libc.so"));
    found.expect("a C library").to_owned()
}

#[test]
fn every_name_of_a_function_is_taken_that_is_one_of_a_taken_function() {
    let test = "every_name_of_a_function_is_taken_that_is_one_of_a_taken_function";
    if !tidewall_skip::has_programs(test, &["nm"]) {
        return;
    }
    let own = exported(&library());
    let theirs = exported(Path::new(&c_library()));
    let words = |list: &'static str| list.split_whitespace().collect::<BTreeSet<_>>();
    for name in words(TAKEN) {
        assert!(own.contains_key(name), "{name} is not taken");
    }
    for name in words(PASSED_BY) {
        assert!(theirs.contains_key(name), "there is no {name}");
        assert!(!own.contains_key(name), "{name} is taken");
    }
    let mut missing = Vec::new();
    let others = words(OF_RINGS);
    assert!(others.iter().all(|&name| own.contains_key(name)));
    let is_other = |name: &str| name.starts_with("tidewall_") || others.contains(name);
    for name in own.keys().filter(|name| !is_other(name)) {
        let Some(address) = theirs.get(name) else {
            panic!("{name} is none of the C library's");
        };
        let same = theirs.iter().filter(|(_, other)| *other == address);
        missing.extend(same.filter(|(other, _)| !own.contains_key(*other)));
    }
    assert!(missing.is_empty(), "not taken: {missing:?}");
    assert!(theirs.len() > 1000, "{}", theirs.len());
}

/// Overrides a function of the C library, as Erlang does: the functions that the library
/// exports under the names of the next definition must not call back here.
const OWN_SIGACTION: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
static int depth;
int sigaction(int signal, const struct sigaction *action, struct sigaction *old) {
    int (*next)(int, const struct sigaction *, struct sigaction *) = dlsym(RTLD_NEXT, "__sigaction");
    if (depth++) return fprintf(stderr, "called again\n"), 1;
    int done = next(signal, action, old);
    depth--;
    return done;
}
int close(int number) { return fprintf(stderr, "closes %d\n", number); }
int main(void) {
    struct sigaction ignored = {.sa_handler = SIG_IGN}, kept;
    if (sigaction(SIGUSR1, &ignored, 0) || sigaction(SIGUSR1, 0, &kept)) return 2;
    return kept.sa_handler == SIG_IGN && raise(SIGUSR1) == 0 ? 0 : 3;
}
"#;

#[test]
fn the_library_calls_no_function_of_the_programs_by_a_name_of_its_own() {
    let test = "the_library_calls_no_function_of_the_programs_by_a_name_of_its_own";
    if !tidewall_skip::has_programs(test, &["cc"]) {
        return;
    }
    let directory = std::env::temp_dir().join(format!("tw-own-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (source, program) = (directory.join("own.c"), directory.join("own"));
    std::fs::write(&source, OWN_SIGACTION).unwrap();
    let compiled = Command::new("cc")
        .args(["-rdynamic", "-o"])
        .args([&program, &source])
        .status();
    assert!(compiled.unwrap().success());
    let output = Command::new(&program).env("LD_PRELOAD", library()).output();
    std::fs::remove_dir_all(&directory).unwrap();
    let output = output.unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0), "{}", output.status);
}
