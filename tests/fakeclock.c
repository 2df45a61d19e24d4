// A clock that tests set: CLOCK_REALTIME is shifted by the seconds in the file FAKE_CLOCK names, or stands
// still at these seconds after 1970 where the text begins with '@'.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int failed = (int)syscall(SYS_clock_gettime, clock, now);
	const char *path = getenv("FAKE_CLOCK");
	char text[32] = "";
	int file;

	if (failed || clock != CLOCK_REALTIME || !path)
		return failed;
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file >= 0) {
		if (read(file, text, sizeof(text) - 1) > 0 && *text == '@')
			*now = (struct timespec){ .tv_sec = atol(text + 1) };
		else
			now->tv_sec += atol(text);
		close(file);
	}
	return 0;
}
