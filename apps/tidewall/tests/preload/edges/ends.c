// Ends of processes at bad moments: by a handler that has interrupted the allocator,
// whose lock its thread holds forever.
#include <malloc.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static pthread_mutex_t heap = PTHREAD_MUTEX_INITIALIZER;

static void *unlocked(void *memory)
{
	pthread_mutex_unlock(&heap);
	return memory;
}

#define LOCKED(call) (pthread_mutex_lock(&heap), unlocked(call))

void *malloc(size_t size)
{
	return LOCKED(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
	return LOCKED(__libc_calloc(count, size));
}

void *realloc(void *memory, size_t size)
{
	return LOCKED(__libc_realloc(memory, size));
}

void *memalign(size_t align, size_t size)
{
	return LOCKED(__libc_memalign(align, size));
}

void *aligned_alloc(size_t align, size_t size)
{
	return LOCKED(__libc_memalign(align, size));
}

int posix_memalign(void **place, size_t align, size_t size)
{
	*place = LOCKED(__libc_memalign(align, size));
	return *place ? 0 : ENOMEM;
}

void free(void *memory)
{
	LOCKED((__libc_free(memory), NULL));
}

static void exits(int number)
{
	_exit(0);
}

static void waits(const char *request)
{
	int s = accepted(request), set = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };

	epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
	epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
	epoll_wait(set, &event, 1, 0);
	SAY(write(s, "sent", 4));
	handles(SIGTERM, exits, 0);
}

static void allocating(void)
{
	waits("keep");
	pthread_mutex_lock(&heap);
	raise(SIGTERM);
}

// Another thread waits for the allocator, in the stack.
static void *calls(void *set)
{
	struct epoll_event event;

	for (;;)
		epoll_wait(*(int *)set, &event, 1, 1), close(asked("hold"));
	return NULL;
}

static void beside(void)
{
	static int set;
	pthread_t thread;

	waits("hold");
	set = epoll_create1(0);
	pthread_create(&thread, NULL, calls, &set);
	usleep(PAUSE);
	pthread_mutex_lock(&heap);
	usleep(PAUSE);
	raise(SIGTERM);
}

// The data of the last ones have arrived, and their end.
static void kept(void)
{
	int control = asked("kept");

	buffer[recv(control, buffer, 100, MSG_WAITALL)] = 0;
	printf("%s\n", buffer);
}

// A handler that calls exit(3) while nothing is locked.
static void orderly(int number)
{
	exit(0);
}

static void terminated(void)
{
	waits("keep");
	handles(SIGTERM, orderly, 0);
	raise(SIGTERM);
}

int main(int count, char **words)
{
	static const struct group groups[] = {
		GROUP(allocating), GROUP(kept), GROUP(terminated), GROUP(kept), GROUP(beside),
	};

	return run(groups, sizeof groups / sizeof *groups, count, words);
}
