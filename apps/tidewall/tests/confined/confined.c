// Serves by TCP and UDP, and confines itself on the way. Usage: confined WHEN HOW EMPTY
// LIBRARY.
//
// - WHEN is "first", "waiting" (with sockets not served yet), "ours" or "before" (then
//   the program executes itself again, with the library).
// - HOW contains a way to confine, and "tsync", "thread" and "packet" if they apply.
// - EMPTY is a directory for chroot.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

extern int tidewall_owns(int) __attribute__((weak));

static const int calls[] = { CALLS };
static int result, error;

static int install(const char *how, const char *empty)
{
	struct rlimit none_more = { 0, 0 };
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { { 0 } };
	struct sock_filter filter[2 * sizeof calls / sizeof *calls + 6];
	struct sock_fprog program = { 0, filter };
	struct sock_filter *next = filter;

	*next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);
	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
		*next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
		*next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, THESE);
	}
	// Packet sockets, by the first argument's lower half.
	if (strstr(how, "packet")) {
		*next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3);
		*next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 16);
		*next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_PACKET, 0, 1);
		*next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, THESE);
	}
	*next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, OTHERS);
	program.len = next - filter;
	if (strstr(how, "chroot") && (chdir(empty) || chroot(".")))
		return -1;
	// No process and no thread more, by the other name; root is not limited.
	if (strstr(how, "limit"))
		return prlimit(0, RLIMIT_NPROC, &none_more, 0) || setgid(65534) || setuid(65534);
	if (strstr(how, "nobody"))
		return setgid(65534) || setuid(65534);
	if (strstr(how, "capabilities"))
		return syscall(SYS_capset, &header, none);
	if (!strcmp(how, "no") || !strcmp(how, "chroot"))
		return 0;
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (strstr(how, "strict"))
		return prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
	if (strstr(how, "prctl"))
		return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
		       strstr(how, "tsync") ? SECCOMP_FILTER_FLAG_TSYNC : 0, &program);
}

static int told[2], never[2];

static void *confined(void *words)
{
	char end;

	result = install(((char **)words)[2], ((char **)words)[3]);
	error = result ? errno : 0;
	// The calls left to a strict thread.
	(void)!write(told[1], "", 1);
	(void)!read(never[0], &end, 1);
	return 0;
}

static void confine(char **words)
{
	pthread_t thread;
	char byte;

	if (!strstr(words[2], "thread")) {
		result = install(words[2], words[3]);
		error = result ? errno : 0;
		return;
	}
	(void)!pipe(told);
	(void)!pipe(never);
	pthread_create(&thread, 0, confined, words);
	(void)!read(told[0], &byte, 1);
}

static int bound(int kind)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(8140) };
	int fd = socket(AF_INET, kind | SOCK_NONBLOCK, 0), on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(fd, (void *)&any, sizeof any) || (kind == SOCK_STREAM && listen(fd, 8)))
		_exit(3);
	return fd;
}

static void serve(int fd, int listener)
{
	char buffer[65536];
	struct iovec part = { buffer, sizeof buffer };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	int length = snprintf(buffer, sizeof buffer, "%d %d %d\n", result, error,
			      tidewall_owns && tidewall_owns(listener));
	int on = 1;

	setsockopt(fd, IPPROTO_TCP, 1, &on, sizeof on);
	do {
		for (int done = 0; done < length;)
			done += write(fd, buffer + done, length - done);
		struct pollfd asked = { fd, POLLIN, 0 };
		fd_set set;
		FD_ZERO(&set);
		FD_SET(fd, &set);
		poll(&asked, 1, 5000);
		select(fd + 1, &set, 0, 0, 0);
		length = recvmsg(fd, &message, 0);
	} while (length > 0);
	shutdown(fd, SHUT_WR);
	close(fd);
}

int main(int count, char **words)
{
	char *when = words[1];
	struct epoll_event event = { EPOLLIN, { 0 } };

	if (count != 5)
		return 2;
	if (!strcmp(when, "before")) {
		confine(words);
		setenv("LD_PRELOAD", words[4], 1);
		execl(words[0], words[0], "first", "no", words[3], words[4], (char *)0);
		return 4;
	}
	if (!strcmp(when, "first"))
		confine(words);
	int set = epoll_create1(EPOLL_CLOEXEC), listener = bound(SOCK_STREAM), datagrams = bound(SOCK_DGRAM);
	if (!strcmp(when, "ours"))
		accept(listener, 0, 0);
	if (strcmp(when, "first"))
		confine(words);
	event.data.fd = listener;
	epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
	event.data.fd = datagrams;
	epoll_ctl(set, EPOLL_CTL_ADD, datagrams, &event);
	while (epoll_wait(set, &event, 1, -1) >= 0 || errno == EINTR) {
		if (event.data.fd == listener) {
			int fd = accept(listener, 0, 0);
			if (fd >= 0)
				serve(fd, listener);
			continue;
		}
		struct sockaddr_in peer;
		socklen_t length = sizeof peer;
		char buffer[2048];
		int got = recvfrom(datagrams, buffer, sizeof buffer, 0, (void *)&peer, &length);
		if (got >= 0)
			sendto(datagrams, buffer, got, 0, (void *)&peer, length);
	}
	return 1;
}
