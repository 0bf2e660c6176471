/* pipe HOST PORT: connects to what getaddrinfo says of HOST, and moves standard input and output through the
 * connection. Linked statically with musl, whose resolver asks as no other does: A and AAAA at once, all
 * nameservers at once, and (before 1.2.4) never over TCP. */
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Moves what there is, or returns 0 at the end. */
static int move(int from, int to)
{
	char buf[16384];
	ssize_t n = read(from, buf, sizeof buf);
	for (ssize_t done = 0, w; done < n; done += w)
		if ((w = write(to, buf + done, n - done)) < 0)
			return 0;
	return n > 0;
}

int main(int argc, char **argv)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list, *a;
	int fd = -1, err;

	if (argc != 3) {
		fprintf(stderr, "usage: pipe HOST PORT\n");
		return 2;
	}
	if ((err = getaddrinfo(argv[1], argv[2], &hints, &list)) != 0) {
		fprintf(stderr, "%s: %s\n", argv[1], gai_strerror(err));
		return 1;
	}
	for (a = list; a != NULL; a = a->ai_next) {
		if ((fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol)) < 0)
			continue;
		if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
			break;
		close(fd);
		fd = -1;
	}
	if (fd < 0) {
		perror(argv[1]);
		return 1;
	}
	struct pollfd p[2] = {{.fd = 0, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
	while (poll(p, 2, -1) >= 0) {
		if (p[1].revents && !move(fd, 1))
			break;
		if (p[0].revents && !move(0, fd)) {
			shutdown(fd, SHUT_WR);
			p[0].fd = -1;
		}
	}
	return 0;
}
