// A name of the host that tests set: that in FAKE_NAME, where this variable is set.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

int uname(struct utsname *system)
{
	int failed = (int)syscall(SYS_uname, system);
	const char *name = getenv("FAKE_NAME");

	if (!failed && name)
		snprintf(system->nodename, sizeof(system->nodename), "%s", name);
	return failed;
}

int gethostname(char *name, size_t size)
{
	struct utsname system;

	if (uname(&system))
		return -1;
	snprintf(name, size, "%s", system.nodename);
	return 0;
}
