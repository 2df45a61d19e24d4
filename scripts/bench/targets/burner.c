// A job that uses a known amount of CPU time, in processes that it starts: burner FILE MILLISECONDS CHILDREN.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static double used(int who)
{
	struct rusage use;

	getrusage(who, &use);
	return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
	       (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static void burn(double seconds)
{
	char text[64];

	while (used(RUSAGE_SELF) < seconds)
		for (int number = 0; number < 1000; number++)
			snprintf(text, sizeof(text), "%d", number);
}

int main(int count, char **words)
{
	double seconds = count > 2 ? atof(words[2]) / 1000 : 0;
	int children = count > 3 ? atoi(words[3]) : 0, file;
	char line[128];

	for (int number = 0; number < children; number++)
		if (fork() == 0) {
			burn(seconds / (children + 1));
			_exit(0);
		}
	burn(seconds / (children + 1));
	while (wait(NULL) > 0)
		;
	file = open(words[1], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	snprintf(line, sizeof(line), "%s %.6f\n", getenv("FG_JOB_ID"), used(RUSAGE_SELF) + used(RUSAGE_CHILDREN));
	return file < 0 || write(file, line, strlen(line)) < 0;
}
