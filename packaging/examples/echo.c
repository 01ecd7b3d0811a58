/* A TCP echo server for one connection at a time, on Tidewall:
 *   cc echo.c $(pkg-config --cflags --libs tidewall) -o echo && ./echo eth0 7 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <tidewall.h>
#include <unistd.h>

static int serve(int connection)
{
	char buffer[65536];
	ssize_t length;

	while ((length = read(connection, buffer, sizeof(buffer))) > 0) {
		for (ssize_t sent = 0; sent < length;) {
			ssize_t more = write(connection, buffer + sent, length - sent);
			if (more < 0)
				return -1;
			sent += more;
		}
	}
	return length < 0 ? -1 : 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	int listener, connection;

	if (argc != 3) {
		fprintf(stderr, "usage: echo INTERFACE PORT\n");
		return 2;
	}
	if (tidewall_start(argv[1]) < 0)
		fprintf(stderr, "%s: %s; going on by the kernel\n", argv[1], strerror(errno));
	address.sin_port = htons((uint16_t)atoi(argv[2]));
	listener = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(listener, 16) < 0) {
		perror(argv[2]);
		return 1;
	}
	while ((connection = accept(listener, NULL, NULL)) >= 0) {
		printf("a connection of %s\n", tidewall_owns(connection) ? "Tidewall's" : "the kernel's");
		fflush(stdout);
		if (serve(connection) < 0)
			perror("connection");
		close(connection);
	}
	perror("accept");
	return 1;
}
