// Corners that few programs reach: registrations that outlive their socket, duplicate
// entries, masks, families, flags, contexts of handlers, small stacks.
#include <dlfcn.h>
#include <ucontext.h>

// The C library's own function, found through a separate handle.
static void *own(const char *name)
{
	return dlsym(dlopen("libc.so.6", RTLD_NOW), name);
}

// ---- Registrations -------------------------------------------------------------

// The descriptor's next socket is in the set only by its own registration.
static void next(int set, int number)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 2 };
	int s = asked("say x");

	SAY(s == number);
	usleep(PAUSE);
	SAY(epoll_wait(set, &event, 1, 0));
	event.events = EPOLLIN, event.data.u64 = 2;
	SAY(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
	SAY(epoll_wait(set, &event, 1, 5000));
	SAY(event.data.u64);
	close(s);
}

static void stale(void)
{
	int set = epoll_create1(0), s = socket(AF_INET, SOCK_STREAM, 0);
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 1 };
	struct sockaddr_in here = to("127.0.0.1", 7200);
	int (*closes)(int) = own("close");

	SAY(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
	SAY(connected(s, "127.0.0.1", 9));
	close(s);
	next(set, s);
	s = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	SAY(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
	SAY(bind(s, (void *)&here, sizeof here));
	SAY(recv(s, buffer, 1, 0));
	close(s);
	next(set, s);
	s = socket(AF_INET, SOCK_STREAM, 0);
	SAY(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
	closes(s);
	next(set, s);
}

// ---- Readiness -----------------------------------------------------------------

static void *writes_later(void *fd)
{
	usleep(PAUSE);
	write(*(int *)fd, "x", 1);
	return NULL;
}

static void doubled(void)
{
	int s = accepted("hold"), later, pair[2];
	pthread_t thread;

	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	struct pollfd asks[] = { { s, POLLIN }, { pair[0], POLLIN }, { pair[0], POLLPRI } };
	pthread_create(&thread, NULL, writes_later, &pair[1]);
	SAY(poll(asks, 3, -1));
	printf("%d %d %d\n", asks[0].revents, asks[1].revents, asks[2].revents);
	later = accepted("say later");
	struct pollfd both[] = { { later, POLLIN }, { later, POLLPRI }, { later, POLLIN } };
	SAY(poll(both, 3, -1));
	printf("%d %d %d\n", both[0].revents, both[1].revents, both[2].revents);
}

static void pending(void)
{
	int s = accepted("hold"), set = epoll_create1(0), ends[2];
	struct pollfd asks[] = { { s, POLLIN }, { -1, POLLIN } };
	struct epoll_event event = { .events = EPOLLIN };
	struct timespec zero = { 0 };
	sigset_t none, blocked;
	fd_set readable;

	handles(SIGUSR1, handler, 0);
	epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	raise(SIGUSR1);
	SAY(ppoll(asks, 1, &zero, &none));
	SAY(handled);
	raise(SIGUSR1);
	FD_ZERO(&readable);
	FD_SET(s, &readable);
	SAY(pselect(s + 1, &readable, NULL, NULL, &zero, &none));
	SAY(handled);
	raise(SIGUSR1);
	SAY(epoll_pwait(set, &event, 1, 0, &none));
	SAY(handled);
	raise(SIGUSR1);
	SAY(ppoll(asks, 1, &zero, &blocked));
	SAY(handled);
	pipe(ends);
	write(ends[1], "x", 1);
	asks[1].fd = ends[0];
	SAY(ppoll(asks, 2, &zero, &none));
	SAY(handled);
}

// ---- Arguments -----------------------------------------------------------------

static struct sockaddr_in6 to6(const char *address, int port)
{
	struct sockaddr_in6 made = { .sin6_family = AF_INET6, .sin6_port = htons(port) };

	inet_pton(AF_INET6, address, &made.sin6_addr);
	return made;
}

static void families(void)
{
	int first = asked("hold"), four = socket(AF_INET, SOCK_STREAM, 0);
	int six = socket(AF_INET6, SOCK_STREAM, 0), on = 1;
	struct sockaddr_in6 mapped = to6("::ffff:" PEER, CONTROL);
	struct sockaddr none = { AF_UNSPEC };

	for (int i = 0; i < 2; i++) {
		SAY(connect(four, (void *)&mapped, sizeof mapped));
		SAY(connected(six, PEER, CONTROL));
		if (i == 0)
			SAY(setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on));
		SAY(connect(six, (void *)&mapped, sizeof mapped));
		on = 0;
		if (i == 0)
			SAY(setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on));
		SAY(connect(six, (void *)&mapped, sizeof mapped));
		SAY(connected(four, PEER, CONTROL));
		SAY(write(six, "echo\nabc", 8));
		SAY(read(six, buffer, 3));
		SAY(connect(four, &none, sizeof none));
		SAY(connect(six, &none, sizeof none));
	}
	close(first);
}

static void together(void)
{
	int control = asked("lengths 9701"), s = datagrams(7201), first;
	struct sockaddr_in it = to(PEER, 9701);
	struct msghdr message = { .msg_iov = &(struct iovec){ "abc", 3 }, .msg_iovlen = 1 };

	recv(control, &first, 1, 0);
	SAY(sendto(s, "ab", 2, MSG_MORE, (void *)&it, sizeof it));
	SAY(sendto(s, "cde", 3, 0, (void *)&it, sizeof it));
	SAY(connect(s, (void *)&it, sizeof it));
	SAY(send(s, "a", 1, MSG_MORE));
	SAY(write(s, "b", 1));
	SAY(send(s, "abcd", 4, MSG_EOR));
	SAY(send(s, "abcde", 5, MSG_ZEROCOPY));
	SAY(sendmsg(s, &message, MSG_MORE));
	SAY(sendmsg(s, &message, MSG_MORE));
	SAY(sendmsg(s, &message, 0));
	SAY(send(s, "a", 1, MSG_CONFIRM | MSG_DONTROUTE));
	SAY(send(s, buffer, 60000, MSG_MORE));
	SAY(send(s, buffer, 10000, 0));
	SAY(send(s, "ab", 2, 0));
	buffer[recv(control, buffer, 100, MSG_WAITALL)] = 0;
	printf("%s\n", buffer);
}

static void peeks(void)
{
	int s = accepted("say abcdef");
	struct iovec into[] = { { buffer, 2 }, { NULL, 0 }, { buffer + 10, 10 } };
	struct msghdr message = { .msg_iov = into, .msg_iovlen = 3 };

	usleep(PAUSE);
	SAY(recvmsg(s, &message, MSG_PEEK));
	printf("%.2s %.4s\n", buffer, buffer + 10);
	memset(buffer, 0, 20);
	into[0].iov_len = 20;
	SAY(recvmsg(s, &message, MSG_PEEK));
	printf("%.6s\n", buffer);
	into[0].iov_len = 3;
	into[2].iov_len = 3;
	SAY(recvmsg(s, &message, MSG_PEEK | MSG_WAITALL));
	SAY(recvmsg(s, &message, 0));
	printf("%.3s %.3s\n", buffer, buffer + 10);
	SAY(recvmsg(s, &message, MSG_PEEK | MSG_DONTWAIT));
}

// ---- Options -------------------------------------------------------------------

static int asks(int fd, int level, int name)
{
	int value = -2;
	socklen_t length = sizeof value;

	return getsockopt(fd, level, name, &value, &length) ? -errno : value;
}

// Options with one name to set and another to read.
static void forced(void)
{
	int bytes = 50000, s = socket(AF_INET, SOCK_STREAM, 0), usual;

	SAY(setsockopt(s, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes));
	SAY(setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes));
	SAY(connected(s, PEER, CONTROL));
	SAY(asks(s, SOL_SOCKET, SO_SNDBUF));
	SAY(asks(s, SOL_SOCKET, SO_RCVBUF));
	SAY(asks(s, SOL_SOCKET, SO_SNDBUFFORCE));
	s = socket(AF_INET, SOCK_STREAM, 0);
	SAY(asks(s, SOL_SOCKET, SO_SNDBUF));
	SAY(connected(s, PEER, CONTROL));
	// It grows with the connection.
	usual = asks(s, SOL_SOCKET, SO_SNDBUF);
	SAY(usual > 40000 && usual < 200000);
}

// The first control message of what is received.
static void stamped(int s)
{
	char control[200];
	struct msghdr message = { .msg_iov = &(struct iovec){ buffer, 1 }, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof control };
	struct timespec now;
	long time[2] = { 0 };

	SAY(recvmsg(s, &message, 0));
	struct cmsghdr *first = CMSG_FIRSTHDR(&message);
	SAY(message.msg_controllen);
	if (!first)
		return;
	SAY(first->cmsg_type);
	memcpy(time, CMSG_DATA(first), sizeof time);
	clock_gettime(CLOCK_REALTIME, &now);
	SAY(now.tv_sec - time[0] >= 0 && now.tv_sec - time[0] < 5);
	SAY(time[1] < (first->cmsg_type == SO_TIMESTAMP ? 1000000 : 1000000000));
}

static void stamps(void)
{
	int s = accepted("echo"), on = 1;

	write(s, "a", 1);
	stamped(s);
	SAY(setsockopt(s, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
	// The kernel begins to record times a little later.
	usleep(PAUSE);
	write(s, "abcd", 4);
	usleep(PAUSE);
	recv(s, buffer, 1, MSG_WAITALL);
	stamped(s);
	SAY(asks(s, SOL_SOCKET, SO_TIMESTAMP));
	SAY(setsockopt(s, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on));
	SAY(asks(s, SOL_SOCKET, SO_TIMESTAMP));
	SAY(asks(s, SOL_SOCKET, SO_TIMESTAMPNS));
	stamped(s);
	on = 0;
	SAY(setsockopt(s, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
	SAY(asks(s, SOL_SOCKET, SO_TIMESTAMPNS));
	stamped(s);
}

// A stream that reads and writes.
static void streams(void)
{
	FILE *both = fdopen(accepted("echo"), "r+");
	char line[10];

	SAY(fputs("one\ntwo\n", both));
	SAY(fflush(both));
	usleep(PAUSE);
	SAY(fgets(line, sizeof line, both) == line);
	SAY(fflush(both));
	SAY(fseek(both, 0, SEEK_CUR));
	SAY(ftell(both));
	SAY(fputs("three\n", both));
	SAY(fflush(both));
	SAY(fgets(line, sizeof line, both) == line);
	printf("%s", line);
	SAY(fclose(both));
}

// A connection without data waits to be accepted.
static void deferred(void)
{
	int first = accepted("hold"), seconds = 10, s;
	struct pollfd asked_of = { listener, POLLIN };

	SAY(asks(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT));
	SAY(setsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds));
	SAY(asks(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT));
	SAY(asks(first, IPPROTO_TCP, TCP_DEFER_ACCEPT));
	asked("call %d hold", PORT);
	SAY(poll(&asked_of, 1, 500));
	asked("call %d say abc", PORT);
	SAY(poll(&asked_of, 1, 5000));
	s = accept(listener, NULL, NULL);
	SAY(recv(s, buffer, 9, MSG_DONTWAIT));
	SAY(asks(s, IPPROTO_TCP, TCP_DEFER_ACCEPT));
	SAY(poll(&asked_of, 1, 100));
	// One is accepted without data when its time is over.
	seconds = 1;
	SAY(setsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds));
	asked("call %d hold", PORT);
	SAY(poll(&asked_of, 1, 300));
	SAY(poll(&asked_of, 1, 5000));
	s = accept(listener, NULL, NULL);
	SAY(recv(s, buffer, 9, MSG_DONTWAIT));
}

// ---- Numbers -------------------------------------------------------------------

static int conversation = -1;
static pthread_barrier_t both;

// Waits before and after the program closes descriptors that it does not know.
static void *waits_twice(void *asks)
{
	struct pollfd *list = asks;

	poll(list, 2, 10);
	pthread_barrier_wait(&both);
	pthread_barrier_wait(&both);
	SAY(poll(list, 1, 5000));
	SAY(recv(conversation, buffer, 9, 0));
	SAY(connected(socket(AF_INET, SOCK_STREAM, 0), PEER, CONTROL));
	return NULL;
}

static void threads(void)
{
	int pair[2];
	pthread_t thread;

	conversation = accepted("echo");
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	struct pollfd asks[] = { { conversation, POLLIN }, { pair[0], POLLIN } };
	poll(asks, 2, 10);
	pthread_barrier_init(&both, NULL, 2);
	pthread_create(&thread, NULL, waits_twice, asks);
	pthread_barrier_wait(&both);
	SAY(close_range(conversation + 1, ~0U, 0));
	pthread_barrier_wait(&both);
	SAY(write(conversation, "abc", 3));
	pthread_join(thread, NULL);
	SAY(connected(socket(AF_INET, SOCK_STREAM, 0), PEER, CONTROL));
}

static void ranges(void)
{
	int s = accepted("echo"), pair[2];
	struct pollfd asks[] = { { s, POLLIN }, { -1, POLLIN } };
	struct epoll_event event = { .events = EPOLLIN };
	fd_set readable;
	struct timeval soon = { 0, 1000 };

	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	asks[1].fd = pair[0];
	FD_ZERO(&readable);
	FD_SET(s, &readable);
	SAY(poll(asks, 2, 10));
	SAY(select(s + 1, &readable, NULL, NULL, &soon));
	SAY(close_range(s + 1, ~0U, 0));
	SAY(write(s, "abc", 3));
	SAY(poll(asks, 1, 5000));
	SAY(read(s, buffer, 9));
	close(asked("hold"));
	int set = epoll_create1(0);
	epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
	SAY(epoll_wait(set, &event, 1, 10));
	for (int fd = s + 1; fd < 2000; fd++)
		close(fd);
	SAY(write(s, "abc", 3));
	SAY(poll(asks, 1, 5000));
	SAY(read(s, buffer, 9));
	SAY(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	asks[1].fd = pair[0];
	SAY(poll(asks, 2, 10));
	SAY(read(asked("say x"), buffer, 9));
}

static void closed(void)
{
	int s = accepted("hold"), (*closes)(int) = own("close"), file, control;

	closes(s);
	SAY((file = open("/etc/passwd", O_RDONLY)) == s);
	SAY(read(file, buffer, 4));
	printf("%.4s\n", buffer);
	SAY(lseek(file, 0, SEEK_CUR));
	close(file);
	s = accepted("hold");
	closes(s);
	SAY((file = openat(AT_FDCWD, "/etc/passwd", O_RDONLY)) == s);
	SAY(read(file, buffer, 4));
	close(file);
	// The peer learns of the end.
	s = asked("keep");
	dprintf(s, "by a stream");
	dup2(s, 0);
	close(s);
	SAY(fclose(stdin));
	control = asked("kept");
	buffer[0] = 0;
	buffer[recv(control, buffer, 100, MSG_WAITALL)] = 0;
	printf("%s\n", buffer);
	close(control);
	SAY(open("/etc/passwd", O_RDONLY));
	SAY(read(0, buffer, 4));
	printf("%.4s\n", buffer);
}

// ---- Signals -------------------------------------------------------------------

static sigjmp_buf left;

static void leaves(int number)
{
	siglongjmp(left, 1);
}

static void jumped(void)
{
	int s = accepted("hold"), set = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	struct pollfd asks = { s, POLLIN };

	epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
	handles(SIGALRM, leaves, 0);
	for (volatile int i = 0; i < 3; i++) {
		if (sigsetjmp(left, 1) == 0) {
			after(100);
			if (i == 0)
				SAY(recv(s, buffer, 9, 0));
			else if (i == 1)
				SAY(epoll_wait(set, &event, 1, 5000));
			else
				SAY(poll(&asks, 1, 5000));
		}
		SAY(epoll_wait(set, &event, 1, 100));
		SAY(poll(&asks, 1, 100));
	}
}

static void *kills(void *whom)
{
	usleep(PAUSE);
	pthread_kill(*(pthread_t *)whom, SIGUSR1);
	return NULL;
}

// The peer's data arrive after the signal.
static void receives(void)
{
	int s = accepted("say later");
	pthread_t self = pthread_self(), thread;

	pthread_create(&thread, NULL, kills, &self);
	SAY(recv(s, buffer, 9, 0));
	pthread_join(thread, NULL);
	close(s);
}

static volatile int out_of_order, latest;

static void counts(int number, siginfo_t *about, void *place)
{
	out_of_order += about->si_value.sival_int != latest + 1;
	latest = about->si_value.sival_int;
}

enum { SIGNALS = 2000 };

static void *sends(void *whom)
{
	pthread_t thread = *(pthread_t *)whom;

	for (int i = 1; i <= SIGNALS; i++) {
		while (pthread_sigqueue(thread, SIGRTMIN, (union sigval){ .sival_int = i }))
			usleep(1000);
		pthread_kill(thread, SIGUSR1);
		pthread_kill(thread, SIGUSR2);
		if (i % 8 == 0)
			usleep(100);
	}
	return NULL;
}

static void ordered(void)
{
	int s = accepted("echo");
	pthread_t self = pthread_self(), thread;
	struct sigaction action = { .sa_sigaction = counts, .sa_flags = SA_SIGINFO | SA_RESTART };

	sigaction(SIGRTMIN, &action, NULL);
	handles(SIGUSR1, handler, SA_RESTART);
	handles(SIGUSR2, other, SA_RESTART);
	pthread_create(&thread, NULL, sends, &self);
	while (latest < SIGNALS)
		if (send(s, "x", 1, 0) != 1 || recv(s, buffer, 1, 0) != 1) {
			SAY(errno);
			break;
		}
	pthread_join(thread, NULL);
	SAY(latest);
	SAY(out_of_order);
}

static char other_stack[1 << 16];
static volatile int stands_there;

static void stands(int number)
{
	char here;
	uintptr_t from = (uintptr_t)&here - (uintptr_t)other_stack;

	stands_there = from < sizeof other_stack;
}

static void elsewhere(void)
{
	stack_t stack = { .ss_sp = other_stack, .ss_size = sizeof other_stack };

	SAY(sigaltstack(&stack, NULL));
	for (int i = 0; i < 2; i++) {
		handles(SIGUSR1, stands, SA_RESTART | (i ? 0 : SA_ONSTACK));
		receives();
		SAY(stands_there);
		SAY(sigaltstack(NULL, &stack));
		SAY(stack.ss_flags);
	}
	// A handler that jumps leaves the stack free for the next one.
	SAY(sigaltstack(&(stack_t){ .ss_sp = other_stack, .ss_size = sizeof other_stack }, NULL));
	handles(SIGUSR1, leaves, SA_ONSTACK);
	for (volatile int i = 0; i < 3; i++)
		if (sigsetjmp(left, 1) == 0)
			receives();
		else
			SAY(sigaltstack(NULL, &stack) + stack.ss_flags);
}

static volatile int is_there, is_code, is_stack, was_blocked;

static void looks(int number, siginfo_t *about, void *place)
{
	ucontext_t *context = place;
	Dl_info where;
	uintptr_t code, stack;
	char here;

	is_there = place != NULL;
	if (!place)
		return;
#ifdef __x86_64__
	code = context->uc_mcontext.gregs[REG_RIP];
	stack = context->uc_mcontext.gregs[REG_RSP];
#else
	code = context->uc_mcontext.pc;
	stack = context->uc_mcontext.sp;
#endif
	is_code = dladdr((void *)code, &where) != 0;
	is_stack = stack > (uintptr_t)&here && stack - (uintptr_t)&here < 1 << 20;
	was_blocked = sigismember(&context->uc_sigmask, SIGUSR1);
	// Its changes here take effect once the handler has returned.
	sigaddset(&context->uc_sigmask, SIGUSR2);
}

static void contexts(void)
{
	struct sigaction action = { .sa_sigaction = looks, .sa_flags = SA_RESTART | SA_SIGINFO };
	sigset_t mask;

	sigaction(SIGUSR1, &action, NULL);
	receives();
	printf("%d %d %d %d\n", is_there, is_code, is_stack, was_blocked);
	sigprocmask(SIG_BLOCK, NULL, &mask);
	SAY(sigismember(&mask, SIGUSR1));
	SAY(sigismember(&mask, SIGUSR2));
}

// The kernel's own structure: a program that bypasses the C library sets the return
// address of its handler.
struct kernel_action { void (*handler)(int); unsigned long flags; void (*restorer)(void);
	unsigned long mask; };

#ifdef __x86_64__
void returns(void);
__asm__("returns: mov $15, %eax\n\tsyscall");
#endif

static int talks = -1;

static void answers(int number)
{
	handled += write(talks, "h", 1);
}

static void numbered(void)
{
	struct kernel_action action = { answers, SA_RESTART, NULL, 0 }, old;

#ifdef __x86_64__
	action.flags |= 0x04000000;
	action.restorer = returns;
#endif
	talks = accepted("echo");
	SAY(syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 8));
	receives();
	SAY(handled);
	SAY(recv(talks, buffer, 9, 0));
	SAY(syscall(SYS_rt_sigaction, SIGUSR1, NULL, &old, 8));
	SAY(old.handler == answers);
	SAY(old.flags == action.flags);
	SAY(syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 4));
}

// ---- Stacks --------------------------------------------------------------------

static void *in_little_room(void *nothing)
{
	char few[8];
	struct pollfd asks = { .events = POLLIN };
	struct sockaddr_in it = to(PEER, CONTROL);

	asks.fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(asks.fd, (void *)&it, sizeof it) || write(asks.fd, "echo\nabc", 8) != 8)
		return NULL;
	if (poll(&asks, 1, 5000) != 1 || recv(asks.fd, few, 8, 0) != 3)
		return NULL;
	close(asks.fd);
	return nothing;
}

static void small(void)
{
	pthread_attr_t how;
	pthread_t thread;
	void *result;

	pthread_attr_init(&how);
	SAY(pthread_attr_setstacksize(&how, 16384));
	// The first makes the stack.
	for (int i = 0; i < 3; i++) {
		SAY(pthread_create(&thread, &how, in_little_room, buffer));
		pthread_join(thread, &result);
		SAY(result == buffer);
	}
}

// ---- Ends ----------------------------------------------------------------------

static void *accepts(void *fd)
{
	long result = accept(*(int *)fd, NULL, NULL);

	dprintf(1, "accept has returned %ld\n", result);
	return NULL;
}

static void *polls(void *fd)
{
	struct pollfd asks = { *(int *)fd, POLLIN };

	dprintf(1, "poll has returned %d\n", poll(&asks, 1, -1));
	return NULL;
}

static void *receives_on(void *fd)
{
	dprintf(1, "recv has returned %zd\n", recv(*(int *)fd, buffer, 1, 0));
	return NULL;
}

static void unreturned(void)
{
	static int s;
	pthread_t threads[3];

	s = accepted("hold");
	pthread_create(&threads[0], NULL, accepts, &listener);
	pthread_create(&threads[1], NULL, polls, &s);
	pthread_create(&threads[2], NULL, receives_on, &s);
	usleep(PAUSE);
}

// ---- Nothing there -------------------------------------------------------------

static void absent(void)
{
	int s = accepted("say x"), set = epoll_create1(0), ended;
	struct epoll_event event = { .events = EPOLLIN }, *volatile nowhere = NULL;
	struct sockaddr_in name = { 0 };
	struct msghdr message = { .msg_iov = &(struct iovec){ buffer, 9 }, .msg_iovlen = 1,
		.msg_name = &name, .msg_namelen = sizeof name };

	epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
	SAY(recvmsg(s, &message, 0));
	SAY(message.msg_namelen);
	SAY(epoll_wait(set, nowhere, 1, 0));
	ended = accepted("end");
	usleep(PAUSE);
	SAY(recv(ended, NULL, 9, 0));
	// Disconnected sockets.
	struct sockaddr none = { AF_UNSPEC };
	s = asked("hold");
	SAY(connect(s, &none, sizeof none));
	SAY(read(s, buffer, 9));
	SAY(send(s, buffer, 9, MSG_NOSIGNAL));
	SAY(recv(s, buffer, 9, 0));
	SAY(connected(s, PEER, CONTROL));
	SAY(connect(s, &none, sizeof none));
	SAY(asks(s, SOL_SOCKET, SO_ERROR));
	SAY(recv(s, buffer, 9, 0));
	SAY(connected(socket(AF_INET, SOCK_STREAM, 0), PEER, 0));
}

int main(int count, char **words)
{
	static const struct group groups[] = {
		GROUP(stale), GROUP(doubled), GROUP(pending), GROUP(families), GROUP(together),
		GROUP(peeks), GROUP(forced), GROUP(stamps), GROUP(streams), GROUP(deferred), GROUP(ranges), GROUP(threads), GROUP(closed), GROUP(jumped), GROUP(ordered),
		GROUP(elsewhere), GROUP(contexts), GROUP(numbered), GROUP(small), GROUP(unreturned),
		GROUP(absent),
	};

	return run(groups, sizeof groups / sizeof *groups, count, words);
}
