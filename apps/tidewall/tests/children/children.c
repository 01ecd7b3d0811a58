// Echoes over one connection while it makes children in every possible way, and reports
// the results on another one. With "check", it is such a child; with "early" it has no
// connection yet.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMES = 100, NUMBERS = 1024 };
static char *self, words[3][16], command[512];
static int listener, data, control;

// An inherited descriptor of a connection: a socket that is not connected.
static int refused(int fd)
{
	struct stat about;
	char byte = 'c';

	return fstat(fd, &about) || !S_ISSOCK(about.st_mode) ? 11
		: write(fd, &byte, 1) != -1 || errno != ENOTCONN ? 12
		: read(fd, &byte, 1) != -1 || errno != EINVAL ? 13
		: 0;
}

static int check(char **numbers)
{
	int inherited = atoi(numbers[0]), listens = atoi(numbers[1]), closed = atoi(numbers[2]);

	if (fcntl(closed, F_GETFD) != -1)
		return 10;
	for (int fd = 3; fd < NUMBERS; fd++)
		if (fd != inherited && fd != listens && fcntl(fd, F_GETFD) != -1)
			return 14;
	return refused(inherited);
}

static void *echo(void *none)
{
	char buffer[4096];
	ssize_t got;

	while ((got = read(data, buffer, sizeof buffer)) > 0)
		if (write(data, buffer, got) != got)
			_exit(4);
	return none;
}

// A socket that may become the stack's, and a set to which it is added and removed
// meanwhile.
static int unbound, set;

static void *registers(void *none)
{
	struct epoll_event event = { EPOLLIN, { 0 } };

	for (;;) {
		epoll_ctl(set, EPOLL_CTL_ADD, unbound, &event);
		epoll_ctl(set, EPOLL_CTL_DEL, unbound, 0);
	}
	return none;
}

static char *arguments[] = { "children", "check", words[0], words[1], words[2], 0 };
static char *nothing[] = { 0 };

static int ended(pid_t child)
{
	int status = 0;

	return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

static int by_fork(void)
{
	pid_t child = fork();

	if (child == 0) {
		int wrong = refused(data);
		shutdown(data, SHUT_RDWR);
		close(data);
		close(control);
		close(listener);
		_exit(wrong);
	}
	return ended(child);
}

// Runs in a child that was made by less than the C library's fork.
static int closes(void *none)
{
	int wrong;

	alarm(5);
	wrong = refused(data);
	close(unbound);
	close(set);
	close(data);
	_exit(wrong);
}

static int (*does)(void *) = closes;

static int closed(pid_t child)
{
	return child == 0 ? does(0) : ended(child);
}

static int by_fork_and_close(void)
{
	return closed(fork());
}

static int by_fork_of_signals(void)
{
	return closed(_Fork());
}

static int by_number_of_fork(void)
{
	return closed(syscall(SYS_fork));
}

static int by_number_of_clone(void)
{
	return closed(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
}

static int by_number_of_clone3(void)
{
	unsigned long long how[8] = { [4] = SIGCHLD };

	return closed(syscall(SYS_clone3, how, sizeof how));
}

static char stack[1 << 16] __attribute__((aligned(16)));

static int by_clone(void)
{
	return ended(clone(does, stack + sizeof stack, SIGCHLD, 0));
}

// A socket whose options children set before it becomes the stack's.
static int shared;

static int sets(void *none)
{
	int seconds = 77;

	alarm(5);
	_exit(setsockopt(shared, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds) != 0);
}

static int by_options(void)
{
	int (*makers[])(void) = {
		by_fork_and_close, by_fork_of_signals, by_number_of_fork, by_number_of_clone,
		by_number_of_clone3, by_clone,
	};
	struct sockaddr_in peer = { .sin_family = AF_INET, .sin_port = htons(9),
				    .sin_addr = { inet_addr("10.99.0.1") } };
	int wrong = 0;

	does = sets;
	for (unsigned i = 0; i < sizeof makers / sizeof *makers; i++) {
		int seconds = 0;
		socklen_t length = sizeof seconds;

		shared = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		wrong |= makers[i]() != 0
			|| connect(shared, (void *)&peer, sizeof peer) != -1 || errno != EINPROGRESS
			|| getsockopt(shared, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, &length)
			|| seconds != 77 ? 1 << i : 0;
		close(shared);
	}
	does = closes;
	return wrong;
}

static int executes(void *none)
{
	execve(self, arguments, nothing);
	_exit(20);
}

static int by_clone_and_exec(void)
{
	return ended(clone(executes, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, 0));
}

static int by_fork_and_exit(void)
{
	pid_t child = fork();

	if (child == 0)
		exit(0);
	return ended(child);
}

static int by_fork_and_exec(void)
{
	pid_t child = fork();

	if (child == 0) {
		execve(self, arguments, nothing);
		_exit(20);
	}
	return ended(child);
}

static int by_vfork(void)
{
	pid_t child = vfork();

	if (child == 0) {
		execve(self, arguments, nothing);
		_exit(20);
	}
	return ended(child);
}

static int by_vfork_and_close(void)
{
	pid_t child = vfork();

	if (child == 0) {
		close(data);
		close_range(3, ~0u, 0);
		_exit(0);
	}
	return ended(child);
}

// A handler that a child of vfork sets is not its parent's, whose memory it has.
static volatile int handled, expected;

static void own(int signal)
{
	handled += signal == SIGUSR1;
}

static void childs(int signal)
{
	handled += 100;
}

static int by_vfork_and_handle(void)
{
	struct sigaction action = { .sa_handler = own }, childs_action = { .sa_handler = childs }, old;
	int before = handled;

	sigaction(SIGUSR1, &action, 0);
	pid_t child = vfork();

	if (child == 0) {
		raise(SIGUSR1);
		sigaction(SIGUSR1, &childs_action, &old);
		expected = old.sa_handler == own;
		raise(SIGUSR1);
		sigaction(SIGUSR1, 0, &old);
		expected += old.sa_handler == childs;
		_exit(expected == 2 && handled == before + 101 ? 0 : 21);
	}
	raise(SIGUSR1);
	sigaction(SIGUSR1, 0, &old);
	return ended(child) || handled != before + 102 || old.sa_handler != own;
}

static int by_spawn(void)
{
	pid_t child;

	return posix_spawn(&child, self, 0, 0, arguments, nothing) ? -1 : ended(child);
}

static int by_system(void)
{
	return system(command);
}

static int by_popen(void)
{
	FILE *stream = popen(command, "r");

	return stream ? pclose(stream) : -1;
}

static const struct {
	const char *name;
	int (*make)(void);
} ways[] = {
	{ "fork", by_fork }, { "fork, close", by_fork_and_close }, { "fork, exit", by_fork_and_exit }, { "fork, exec", by_fork_and_exec },
	{ "_Fork, close", by_fork_of_signals }, { "SYS_fork, close", by_number_of_fork },
	{ "SYS_clone, close", by_number_of_clone }, { "SYS_clone3, close", by_number_of_clone3 },
	{ "clone, close", by_clone }, { "clone, exec", by_clone_and_exec },
	{ "options", by_options },
	{ "vfork", by_vfork }, { "vfork, close", by_vfork_and_close }, { "vfork, handle", by_vfork_and_handle },
	{ "spawn", by_spawn }, { "system", by_system }, { "popen", by_popen },
};

// Receives on a socket that stays the kernel's.
static int attends(void *none)
{
	struct sockaddr_in local = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	char byte;
	int wrong = bind(fd, (void *)&local, sizeof local)
		|| recv(fd, &byte, 1, MSG_DONTWAIT) != -1 || errno != EAGAIN;

	close(fd);
	return wrong;
}

static void *attends_always(void *none)
{
	for (;;)
		attends(0);
	return none;
}

static int attends_at_once(void *none)
{
	alarm(5);
	_exit(attends(0));
}

// Children of a program whose other thread is about to promote the first socket.
static int early(void)
{
	pthread_t thread;
	int wrong = 0;

	pthread_create(&thread, 0, attends_always, 0);
	for (int i = 0; i < 3 * TIMES; i++) {
		pid_t child = i % 3 == 2 ? clone(attends_at_once, stack + sizeof stack, SIGCHLD, 0)
			: i % 3 ? _Fork() : fork();

		if (child == 0)
			attends_at_once(0);
		wrong += ended(child) != 0;
	}
	printf("%d wrong\n", wrong);
	return 0;
}

int main(int count, char **all)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(8150) };
	pthread_t thread;
	char said[2048];
	int on = 1, used = 0;

	self = all[0];
	if (count == 2)
		return early();
	if (count > 1)
		return check(all + 2);
	// The process that started this one may have left some open.
	close_range(3, ~0u, 0);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (void *)&any, sizeof any) || listen(listener, 8))
		return 3;
	// Connections before the first accept are the kernel's.
	fcntl(listener, F_SETFL, O_NONBLOCK);
	accept(listener, 0, 0);
	fcntl(listener, F_SETFL, 0);
	data = accept4(listener, 0, 0, 0);
	control = accept4(listener, 0, 0, SOCK_CLOEXEC);
	int numbers[] = { data, listener, control };
	for (int i = 0; i < 3; i++)
		snprintf(words[i], sizeof words[i], "%d", numbers[i]);
	snprintf(command, sizeof command, "exec env -i %s check %s %s %s", self, words[0], words[1], words[2]);
	unbound = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	set = epoll_create1(EPOLL_CLOEXEC);
	pthread_create(&thread, 0, registers, 0);
	pthread_create(&thread, 0, echo, 0);
	for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++) {
		int wrong = 0, status = 0;

		for (int i = 0; i < TIMES; i++) {
			int ends = ways[way].make();
			if (ends != 0) {
				wrong++;
				status = ends;
			}
		}
		used += snprintf(said + used, sizeof said - used, "%s: %d of %d wrong, %#x\n",
				 ways[way].name, wrong, TIMES, status);
	}
	if (write(control, said, used) != used)
		return 5;
	pthread_join(thread, 0);
	return 0;
}
