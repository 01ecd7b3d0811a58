// The results of socket calls in rarely examined cases: wrong arguments, no bytes,
// signals, cancelled threads, ends.

// ---- Arguments -----------------------------------------------------------------

static void vectors(void)
{
	int s = accepted("echo");
	struct iovec gaps[] = { { "ab", 2 }, { NULL, 0 }, { "cd", 2 } };
	struct iovec into[] = { { NULL, 0 }, { buffer, 3 }, { buffer + 10, 10 } };
	struct iovec negative[] = { { buffer, 2 }, { buffer, -1 } };
	struct msghdr message = { .msg_iov = gaps, .msg_iovlen = 3 };

	SAY(writev(s, gaps, 3));
	usleep(PAUSE);
	SAY(readv(s, into, 3));
	SAY(sendmsg(s, &message, 0));
	usleep(PAUSE);
	message.msg_iov = into;
	SAY(recvmsg(s, &message, 0));
	fcntl(s, F_SETFL, O_NONBLOCK);
	SAY(readv(s, negative, 2));
	SAY(writev(s, negative, 2));
	SAY(readv(s, into, 1025));
	SAY(preadv2(s, into, 1, -2, 0));
	message.msg_iovlen = 1025;
	SAY(recvmsg(s, &message, 0));
	SAY(sendmsg(s, &message, 0));
	message.msg_iovlen = 1;
	message.msg_name = buffer;
	message.msg_namelen = -1;
	SAY(recvmsg(s, &message, 0));
	SAY(sendmsg(s, &message, 0));
}

static void lengths(void)
{
	int s = accepted("hold"), control, value = 1;
	socklen_t length = -1;
	struct sockaddr_in name;

	SAY(getsockopt(s, SOL_SOCKET, SO_TYPE, &value, &length));
	SAY(setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &value, 1));
	SAY(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &value, 3));
	SAY(setsockopt(s, IPPROTO_IP, IP_TOS, &value, 1));
	SAY(setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &value, -1));
	SAY(getsockname(s, (void *)&name, &length));
	SAY(getpeername(s, (void *)&name, &length));
	control = asked("call %d hold", PORT);
	SAY(accept(listener, (void *)&name, &length));
	close(control);
	control = asked("call %d hold", PORT);
	SAY(accept(listener, (void *)&name, NULL));
	close(control);
}

static void nothing(void)
{
	int s = accepted("echo");
	struct iovec none = { buffer, 0 };
	struct msghdr message = { .msg_iov = &none, .msg_iovlen = 1 };

	signal(SIGPIPE, handler);
	fcntl(s, F_SETFL, O_NONBLOCK);
	SAY(read(s, buffer, 0));
	SAY(recv(s, buffer, 0, 0));
	SAY(readv(s, &none, 1));
	SAY(recvmsg(s, &message, 0));
	send(s, "q", 1, 0);
	usleep(PAUSE);
	SAY(read(s, buffer, 0));
	SAY(recv(s, buffer, 0, 0));
	SAY(recv(s, buffer, 1, MSG_OOB));
	SAY(recv(s, buffer, 9, 0));
	shutdown(s, SHUT_WR);
	SAY(writev(s, &none, 1));
	SAY(write(s, buffer, 0));
	usleep(PAUSE);
	SAY(recv(s, buffer, 0, 0));
	SAY(handled);
}

static void files(void)
{
	int s = accepted("hold"), file = open("/etc/passwd", O_RDONLY);
	off_t offset = -5;

	SAY(sendfile(s, 999, NULL, 10));
	SAY(sendfile(s, open("/", O_RDONLY), NULL, 10));
	SAY(sendfile(s, file, &offset, 10));
	SAY(sendfile(s, file, NULL, 10));
	SAY(lseek(file, 0, SEEK_CUR));
}

// ---- Datagrams -----------------------------------------------------------------

static void counted(void)
{
	int s = datagrams(7101), count = -1;
	struct iovec none = { buffer, 0 };

	close(asked("datagrams 7101 3"));
	usleep(2 * PAUSE);
	SAY(read(s, buffer, 0));
	SAY(readv(s, &none, 1));
	for (int i = 0; i < 4; i++) {
		SAY(ioctl(s, FIONREAD, &count));
		SAY(count);
		SAY(recv(s, buffer, i == 0 ? 0 : 100, 0));
	}
}

static void addressed(void)
{
	int s = datagrams(7102), both = socket(AF_INET6, SOCK_DGRAM, 0);
	struct sockaddr_in it = to(PEER, DATAGRAMS);
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(7103) };
	struct msghdr message = { .msg_iov = &(struct iovec){ "a", 1 }, .msg_iovlen = 1,
		.msg_name = &it, .msg_namelen = 8 };

	SAY(sendto(s, "a", 1, 0, (void *)&it, 8));
	SAY(sendmsg(s, &message, 0));
	message.msg_namelen = 0;
	SAY(sendmsg(s, &message, 0));
	SAY(sendto(s, "a", 1, MSG_OOB, (void *)&it, sizeof it));
	it.sin_family = AF_UNIX;
	SAY(sendto(s, "a", 1, 0, (void *)&it, sizeof it));
	it.sin_family = AF_UNSPEC;
	SAY(sendto(s, "a", 1, 0, (void *)&it, sizeof it));
	bind(both, (void *)&any, sizeof any);
	recv(both, buffer, 1, MSG_DONTWAIT);
	it.sin_family = AF_INET;
	SAY(sendto(both, "a", 1, 0, (void *)&it, sizeof it));
	SAY(connect(both, (void *)&it, sizeof it));
	SAY(send(both, "a", 1, 0));
}

static void parted(void)
{
	int s = datagrams(7104);
	struct sockaddr none = { AF_UNSPEC };
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	struct pollfd asks = { s, POLLIN, 0 };

	signal(SIGPIPE, handler);
	// Nothing arrives from another port.
	SAY(connected(s, PEER, 9555));
	SAY(connect(s, &none, sizeof none));
	SAY(getpeername(s, (void *)&name, &length));
	SAY(send(s, "a", 1, 0));
	SAY(getsockname(s, (void *)&name, &length));
	printf("%s:%d\n", inet_ntoa(name.sin_addr), ntohs(name.sin_port));
	close(asked("datagrams 7104 1"));
	SAY(poll(&asks, 1, 5000));
	SAY(recv(s, buffer, 100, 0));
	SAY(connected(s, PEER, DATAGRAMS));
	SAY(shutdown(s, SHUT_WR));
	SAY(send(s, "a", 1, 0));
	SAY(handled);
}

static void segmented(void)
{
	int s = socket(AF_INET, SOCK_DGRAM, 0), size = 100, zero = 0, control = asked("lengths 9700");
	struct sockaddr_in here = to(HERE, 7105), it = to(PEER, 9700);

	// It is ready.
	recv(control, buffer, 1, 0);
	bind(s, (void *)&here, sizeof here);
	setsockopt(s, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof size);
	recv(s, buffer, 1, MSG_DONTWAIT);
	SAY(sendto(s, buffer, 250, 0, (void *)&it, sizeof it));
	SAY(setsockopt(s, IPPROTO_UDP, UDP_SEGMENT, &zero, sizeof zero));
	SAY(sendto(s, buffer, 250, 0, (void *)&it, sizeof it));
	buffer[recv(control, buffer, 100, MSG_WAITALL)] = 0;
	printf("%s\n", buffer);
}

// ---- Readiness -----------------------------------------------------------------

static void times(void)
{
	int s = accepted("hold"), set = epoll_create1(0);
	struct pollfd asks = { s, POLLIN, 0 };
	struct timespec negative = { -1, 0 }, parts = { 0, 1000000000 };
	struct timeval past = { -1, 0 }, below = { 0, -1 };
	struct epoll_event event = { .events = EPOLLIN };
	struct mmsghdr messages[2] = { 0 };
	fd_set readable;

	FD_ZERO(&readable);
	FD_SET(s, &readable);
	epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
	SAY(ppoll(&asks, 1, &negative, NULL));
	SAY(ppoll(&asks, 1, &parts, NULL));
	SAY(select(s + 1, &readable, NULL, NULL, &past));
	SAY(select(s + 1, &readable, NULL, NULL, &below));
	SAY(pselect(s + 1, &readable, NULL, NULL, &parts, NULL));
	SAY(epoll_pwait2(set, &event, 1, &negative, NULL));
	SAY(recvmmsg(s, messages, 2, MSG_DONTWAIT, &negative));
}

static void longer(void)
{
	int s = accepted("say x"), ends[2];
	struct pollfd asks = { s, POLLIN, 0 };
	struct { fd_set set; unsigned char behind[8000]; } readable = { 0 };
	struct timeval soon = { 0, 1000 };

	usleep(PAUSE);
	SAY(poll(&asks, -1, 0));
	SAY(poll(&asks, 1u << 30, 0));
	memset(readable.behind, 0xff, sizeof readable.behind);
	dup2(open("/dev/null", O_RDONLY), 1000);
	FD_SET(s, &readable.set);
	SAY(select(60000, &readable.set, NULL, NULL, &soon));
	SAY(FD_ISSET(s, &readable.set));
	SAY(readable.behind[0] & readable.behind[7000]);
	FD_ZERO(&readable.set);
	SAY(pipe(ends));
	FD_SET(ends[0], &readable.set);
	SAY(select(INT_MAX, &readable.set, NULL, NULL, &soon));
}

static void numbered(void)
{
	int s = accepted("say xyz"), set = syscall(SYS_epoll_create1, 0);
	struct epoll_event event = { .events = EPOLLIN };
	struct timespec soon = { 1, 0 };
	struct pollfd asks = { s, POLLIN, 0 };
	struct iovec into = { buffer, 1 };
	fd_set readable;

	FD_ZERO(&readable);
	FD_SET(s, &readable);
	usleep(PAUSE);
	epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
	SAY(syscall(SYS_epoll_pwait2, set, &event, 1, &soon, NULL, 8));
	SAY(syscall(SYS_ppoll, &asks, 1, &soon, NULL, 8));
	SAY(asks.revents);
	SAY(syscall(SYS_pselect6, s + 1, &readable, NULL, NULL, &soon, NULL));
	SAY(syscall(SYS_preadv2, s, &into, 1, -1L, 0L, 0));
	SAY(syscall(SYS_pwritev2, s, &into, 1, -1L, 0L, 0));
}

// ---- Connecting ----------------------------------------------------------------

static void limited(void)
{
	int s = socket(AF_INET, SOCK_STREAM, 0);
	struct timeval limit = { 0, 300000 };

	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	SAY(connected(s, NOBODY, 9));
	SAY(connected(s, NOBODY, 9));
}

static void *interrupts(void *whom)
{
	usleep(4 * PAUSE);
	pthread_kill(*(pthread_t *)whom, SIGUSR1);
	return NULL;
}

static void interrupted(void)
{
	int s = socket(AF_INET, SOCK_STREAM, 0);
	pthread_t self = pthread_self(), thread;

	// The first restarts it, the other does not.
	handles(SIGALRM, handler, SA_RESTART);
	handles(SIGUSR1, other, 0);
	pthread_create(&thread, NULL, interrupts, &self);
	after(300);
	SAY(connected(s, NOBODY, 9));
	SAY(handled);
	SAY(second);
	fcntl(s, F_SETFL, O_NONBLOCK);
	SAY(connected(s, NOBODY, 9));
}

static void duplicated(void)
{
	int s = socket(AF_INET, SOCK_STREAM, 0), copy = dup(s);

	SAY(connected(s, PEER, CONTROL));
	SAY(close(s));
	SAY(write(copy, "echo\nabc", 8));
	SAY(read(copy, buffer, 3));
}

static void again(void)
{
	struct sockaddr none = { AF_UNSPEC };
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	int s = accepted("hold"), c = asked("hold");

	SAY(connect(s, &none, sizeof none));
	SAY(getpeername(s, (void *)&name, &length));
	SAY(connected(s, PEER, CONTROL));
	SAY(write(s, "echo\nabc", 8));
	SAY(read(s, buffer, 3));
	SAY(connect(c, &none, sizeof none));
	SAY(connected(c, PEER, CONTROL));
	SAY(connected(c, PEER, CONTROL));
}

// ---- Signals -------------------------------------------------------------------

static void masks(int number)
{
	inside = 1;
	raise(SIGUSR2);
	inside = 0;
	handled++;
}

static void nests(int number)
{
	if (handled++ == 0) {
		raise(SIGUSR1);
		printf("nested: %d\n", handled);
	}
}

static void keeps(int number, siginfo_t *about, void *place)
{
	values[valued++ % 8] = about->si_value.sival_int;
}

static sigjmp_buf left;

static void leaves(int number)
{
	siglongjmp(left, 1);
}

static void jumps(int s)
{
	volatile int times = 0;

	handles(SIGALRM, leaves, 0);
	while (times++ < 4)
		if (sigsetjmp(left, 1) == 0) {
			after(100);
			SAY(recv(s, buffer, 9, 0));
		} else {
			printf("left\n");
		}
}

static void *queues(void *whom)
{
	usleep(PAUSE);
	for (int i = 1; i < 7; i++)
		pthread_sigqueue(*(pthread_t *)whom, SIGRTMIN, (union sigval){ .sival_int = i });
	return NULL;
}

static void *kills(void *whom)
{
	usleep(PAUSE);
	pthread_kill(*(pthread_t *)whom, SIGUSR1);
	return NULL;
}

// The peer's data arrive after the signal.
static void receives(void *(*disturbs)(void *))
{
	int s = accepted("say later");
	pthread_t self = pthread_self(), thread;

	pthread_create(&thread, NULL, disturbs, &self);
	SAY(recv(s, buffer, 9, 0));
	pthread_join(thread, NULL);
	close(s);
}

static void delivered(void)
{
	struct sigaction action = { .sa_handler = masks, .sa_flags = SA_RESTART };
	struct sigaction queued = { .sa_sigaction = keeps, .sa_flags = SA_RESTART | SA_SIGINFO };

	handles(SIGUSR2, other, SA_RESTART);
	sigaddset(&action.sa_mask, SIGUSR2);
	sigaction(SIGUSR1, &action, NULL);
	receives(kills);
	printf("%d %d, %d nested\n", handled, second, nested);
	handled = 0;
	handles(SIGUSR1, nests, SA_RESTART | SA_NODEFER);
	receives(kills);
	handles(SIGUSR1, handler, SA_RESTART | SA_RESETHAND);
	receives(kills);
	sigaction(SIGUSR1, NULL, &action);
	SAY(action.sa_handler == SIG_DFL);
	sigaction(SIGRTMIN, &queued, NULL);
	receives(queues);
	for (int i = 0; i < valued; i++)
		printf("%d ", values[i]);
	SAY(sigset(SIGUSR1, handler) == SIG_DFL);
	receives(kills);
	SAY(sigset(SIGUSR1, SIG_HOLD) == handler);
	SAY(sigset(SIGUSR1, other) == SIG_HOLD);
	SAY(sigset(SIGUSR1, SIG_DFL) == other);
	jumps(accepted("hold"));
	handles(SIGUSR1, handler, SA_RESTART);
	receives(kills);
}

// ---- Cancellation --------------------------------------------------------------

static void *reads(void *fd)
{
	read(*(int *)fd, buffer, 9);
	return NULL;
}

static void *accepts(void *fd)
{
	accept(*(int *)fd, NULL, NULL);
	return NULL;
}

static void *polls(void *fd)
{
	struct pollfd asks = { *(int *)fd, POLLIN, 0 };

	poll(&asks, 1, -1);
	return NULL;
}

static void *selects(void *fd)
{
	fd_set readable;

	FD_ZERO(&readable);
	FD_SET(*(int *)fd, &readable);
	select(*(int *)fd + 1, &readable, NULL, NULL, NULL);
	return NULL;
}

static void *waits(void *fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	int set = epoll_create1(0);

	epoll_ctl(set, EPOLL_CTL_ADD, *(int *)fd, &event);
	epoll_wait(set, &event, 1, -1);
	return NULL;
}

static void *writes(void *fd)
{
	while (write(*(int *)fd, buffer, sizeof buffer) > 0)
		;
	return NULL;
}

static void *connects(void *fd)
{
	connected(*(int *)fd, NOBODY, 9);
	return NULL;
}

static void *later(void *fd)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	usleep(2 * PAUSE);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	recv(*(int *)fd, buffer, 9, MSG_DONTWAIT);
	return NULL;
}

static void *insists(void *fd)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	SAY(read(*(int *)fd, buffer, 9));
	return NULL;
}

static volatile int cleaned;

static void cleans(void *none)
{
	cleaned++;
}

struct way { void *(*call)(void *); int fd; };

static void *begins(void *how)
{
	struct way *way = how;
	void *result;

	pthread_cleanup_push(cleans, NULL);
	result = way->call(&way->fd);
	pthread_cleanup_pop(0);
	return result;
}

static void cancels(const char *name, void *(*call)(void *), int fd)
{
	struct way way = { call, fd };
	struct timespec end;
	pthread_t thread;
	void *result;

	pthread_create(&thread, NULL, begins, &way);
	usleep(PAUSE);
	pthread_cancel(thread);
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 5;
	printf("%s: %d", name, pthread_timedjoin_np(thread, &result, &end));
	printf(" %d, %d cleaned\n", result == PTHREAD_CANCELED, cleaned);
}

static void cancelled(void)
{
	int s = accepted("hold"), pair[2];

	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	for (int i = 0; i < 2; i++) {
		int fd = i ? s : pair[0];

		cancels("read", reads, fd);
		cancels("poll", polls, fd);
		cancels("select", selects, fd);
		cancels("epoll_wait", waits, fd);
		cancels("later", later, fd);
		cancels("write", writes, fd);
	}
	cancels("accept", accepts, listener);
	cancels("connect", connects, socket(AF_INET, SOCK_STREAM, 0));
	cancels("insists", insists, accepted("say later"));
	// The stack continues.
	s = accepted("say x");
	SAY(recv(s, buffer, 9, 0));
}

// ---- Ends ----------------------------------------------------------------------

static void flushed(void)
{
	fprintf(fdopen(accepted("keep"), "w"), "written at the end");
}

static void quick(void)
{
	dprintf(accepted("keep"), "sent");
	quick_exit(0);
}

static void kept(void)
{
	int control = asked("kept");

	buffer[recv(control, buffer, 100, MSG_WAITALL)] = 0;
	printf("%s\n", buffer);
}
int main(int count, char **words)
{
	static const struct group groups[] = {
		GROUP(vectors), GROUP(lengths), GROUP(nothing), GROUP(files), GROUP(counted),
		GROUP(addressed), GROUP(parted), GROUP(segmented), GROUP(times), GROUP(longer),
		GROUP(numbered), GROUP(limited), GROUP(interrupted), GROUP(duplicated), GROUP(again),
		GROUP(delivered), GROUP(cancelled), GROUP(flushed), GROUP(kept), GROUP(quick),
		GROUP(kept),
	};

	return run(groups, sizeof groups / sizeof *groups, count, words);
}
