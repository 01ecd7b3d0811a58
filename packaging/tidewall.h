/* What programs that link libtidewall.so can say beyond POSIX (docs/preload.md).
 *
 * To link the library is all that is needed: socket(), epoll_wait() and the others are
 * then its own, and do for sockets that are not Tidewall's what the C library does. A
 * program under `tidewall run` need not call anything here. */
#ifndef TIDEWALL_H
#define TIDEWALL_H

#ifdef __cplusplus
extern "C" {
#endif

/* Makes this process's stack now, on a network interface, before a socket is attended to:
 * as an application of the manager that listens at /run/tidewall/INTERFACE.manager if one
 * does, else by taking the interface, which needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and
 * CAP_PERFMON. NULL: that of the environment (TIDEWALL_MANAGER, TIDEWALL_INTERFACE), which
 * the first socket would make too, but without saying why it cannot be made.
 *
 * 0, also where it is there already. -1 and errno: EINVAL, no interface is named; EBUSY, the
 * process has another; EOPNOTSUPP, it was forked off one that has a stack; what the kernel or
 * the manager says otherwise (EPERM, ENODEV, EAGAIN ...). Sockets are the kernel's then. */
int tidewall_start(const char *interface);

/* 1 if the socket is the stack's, 0 if it is the kernel's, is not yet attended to, or is no
 * socket. Safe in a handler of a signal; does not touch errno. */
int tidewall_owns(int fd);

#ifdef __cplusplus
}
#endif

#endif
