// Common parts of the programs of edges.rs: each group of calls is a separate program,
// which prints what its calls return. The peer belongs to edges.rs: it reads one line per
// connection, which states what to do with it.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>
// Wrong arguments are the subject, and no program uses all of this.
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wstringop-overread"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define PEER "10.99.0.1"
#define HERE "10.99.0.2"
// There is no host at this address.
#define NOBODY "10.99.0.50"

enum { PORT = 7000, CONTROL = 9000, DATAGRAMS = 9001, PAUSE = 300000 };

static int listener = -1;
static char buffer[70000];

static void say(const char *what, long result)
{
	printf("%s: %ld %s\n", what, result, result == -1 ? strerrorname_np(errno) : "");
}

#define SAY(call) (errno = 0, say(#call, call))

static struct sockaddr_in to(const char *address, int port)
{
	struct sockaddr_in made = { .sin_family = AF_INET, .sin_port = htons(port) };

	inet_pton(AF_INET, address, &made.sin_addr);
	return made;
}

static int connected(int fd, const char *address, int port)
{
	struct sockaddr_in it = to(address, port);

	return connect(fd, (void *)&it, sizeof it);
}

// A connection to the peer, which treats it as requested.
static int asked(const char *format, ...)
{
	char line[100];
	va_list list;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	va_start(list, format);
	vsnprintf(line, sizeof line, format, list);
	va_end(list);
	if (connected(fd, PEER, CONTROL) || dprintf(fd, "%s\n", line) < 0)
		exit(9);
	return fd;
}

// A connection that the peer makes.
static int accepted(const char *request)
{
	int control, fd, on = 1;
	struct sockaddr_in here = to(HERE, PORT);

	if (listener == -1) {
		listener = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		if (bind(listener, (void *)&here, sizeof here) || listen(listener, 50))
			exit(8);
		// The program calls accept before the peer connects.
		fcntl(listener, F_SETFL, O_NONBLOCK);
		accept(listener, NULL, NULL);
		fcntl(listener, F_SETFL, 0);
	}
	control = asked("call %d %s", PORT, request);
	fd = accept(listener, NULL, NULL);
	close(control);
	return fd;
}

static int datagrams(int port)
{
	struct sockaddr_in here = to(HERE, port);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);

	if (bind(fd, (void *)&here, sizeof here))
		exit(7);
	// The program calls recv before the peer sends.
	recv(fd, buffer, 1, 0);
	return fd;
}

static volatile int handled, second, inside, nested, values[8], valued;

static void handler(int number)
{
	handled++;
}

static void other(int number)
{
	second++;
	nested += inside;
}

static void handles(int number, void (*function)(int), int flags)
{
	struct sigaction action = { .sa_handler = function, .sa_flags = flags };

	sigaction(number, &action, NULL);
}

static void after(int milliseconds)
{
	struct itimerval timer = { .it_value.tv_usec = milliseconds * 1000 };

	setitimer(ITIMER_REAL, &timer, NULL);
}

struct group { const char *name; void (*run)(void); };

#define GROUP(name) { #name, name }

// Runs the named group; prints the names without one.
static int run(const struct group *groups, unsigned length, int count, char **words)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (unsigned i = 0; i < length; i++)
		if (count < 2) {
			puts(groups[i].name);
		} else if (!strcmp(groups[i].name, words[1])) {
			groups[i].run();
			return 0;
		}
	return count < 2 ? 0 : 1;
}

