/* Calls of libtidewall.so beyond POSIX (docs/preload.md).
 *
 * A program only has to link the library: it then uses the library's socket(), epoll_wait()
 * and similar calls. For sockets that are not Tidewall's they behave as the C library's. A
 * program under `tidewall run` needs none of the calls below. */
#ifndef TIDEWALL_H
#define TIDEWALL_H

#ifdef __cplusplus
extern "C" {
#endif

/* Creates this process's stack on a network interface, before the process uses a socket.
 * The process becomes an application of the manager at /run/tidewall/INTERFACE.manager. If no
 * manager listens there, it takes the interface itself, which needs CAP_NET_ADMIN,
 * CAP_NET_RAW, CAP_BPF and CAP_PERFMON. NULL selects the manager or interface of the
 * environment (TIDEWALL_MANAGER, TIDEWALL_INTERFACE). The first socket would create that
 * stack too, but without an error if it fails.
 *
 * Returns 0, also if the process already has this stack. Returns -1 and sets errno on error:
 *   EINVAL      no interface is named
 *   EBUSY       the process has another stack
 *   EOPNOTSUPP  the process was forked from one that has a stack
 *   others      as the kernel or the manager reports (EPERM, ENODEV, EAGAIN ...)
 * After an error all sockets are kernel sockets. */
int tidewall_start(const char *interface);

/* Returns 1 if the socket is the stack's. Returns 0 if it is the kernel's, is not yet in use,
 * or is not a socket. Safe in a signal handler; leaves errno unchanged. */
int tidewall_owns(int fd);

#ifdef __cplusplus
}
#endif

#endif
