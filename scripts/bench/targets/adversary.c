// A job that does what it can to survive its end: adversary SEED. For scripts/bench/campaign, target T7.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 40 }; // processes that one trick forks

static void deafen(void)
{
	for (int number = 1; number < 32; number++)
		signal(number, SIG_IGN);
	signal(SIGCHLD, SIG_DFL);
}

static void hang(void)
{
	for (;;)
		pause();
}

static void in_child(void (*act)(void))
{
	if (fork() == 0) {
		act();
		hang();
	}
}

static void detach(void) // fork twice, in sessions of their own
{
	setsid();
	if (fork() == 0) {
		setsid();
		deafen();
		if (fork())
			_exit(0);
		hang();
	}
	_exit(0);
}

static void breed(void) // each child replaces itself by another one, again and again
{
	for (int number = 0; number < 400; number++) {
		if (fork())
			_exit(0);
		usleep(1000);
	}
}

static void multiply(void)
{
	for (int number = 0; number < MOST; number++)
		if (fork() == 0) {
			deafen();
			hang();
		}
}

static void stop_parents(void)
{
	kill(getppid(), SIGSTOP);
	kill(-getpgrp(), SIGTTOU);
}

static void stop_itself(void)
{
	raise(SIGSTOP);
}

static void close_all(void)
{
	for (int number = 0; number < 1024; number++)
		close(number);
}

static void lock_directory(void)
{
	chmod(".", 0);
}

static void write_without_end(void)
{
	static char text[65536];

	for (int number = 0; number < 300; number++) // 19 MiB
		if (write(1, text, sizeof(text)) < 0)
			break;
}

static void trace_a_child(void)
{
	pid_t pid = fork();

	if (pid == 0)
		hang();
	ptrace(PTRACE_SEIZE, pid, NULL, (void *)0x40); // PTRACE_O_TRACEEXIT
	ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
}

static void rename_itself(void)
{
	prctl(PR_SET_NAME, "fg-1.1\n) S 1 (");
	prctl(PR_SET_DUMPABLE, 0);
}

static void adopt(void) // orphans of its children become its own
{
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	multiply();
}

static void leave_namespaces(void)
{
	if (unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0 && fork() == 0) {
		deafen();
		multiply();
		hang();
	}
}

static void forget(void)
{
	clearenv();
	execl("/proc/self/exe", "sh", "0", (char *)NULL);
}

static void leave_group(void)
{
	FILE *file = fopen("/sys/fs/cgroup/memory/cgroup.procs", "w");

	if (file) {
		fprintf(file, "%d\n", getpid());
		fclose(file);
	}
}

static void block(void) // a vfork child that never executes blocks its parent beyond signals
{
	if (vfork() == 0)
		hang();
}

static void (*const tricks[])(void) = {
	detach, breed,	    multiply, stop_parents,	stop_itself, close_all, lock_directory, write_without_end,
	trace_a_child, rename_itself, adopt,	  leave_namespaces, forget,	  leave_group, block,	   deafen,
};

int main(int count, char **words)
{
	unsigned seed = count > 1 ? (unsigned)atoi(words[1]) : 0;
	int ready = open("ready", O_WRONLY);

	if (!seed)
		hang();
	srand(seed);
	for (size_t number = 0; number < sizeof(tricks) / sizeof(*tricks); number++)
		if (rand() % 3)
			in_child(tricks[number]);
	if (rand() % 2)
		deafen();
	if (ready >= 0 && write(ready, "r", 1) < 0)
		return 1;
	if (rand() % 3 == 0)
		return 3; // the rest is left behind
	hang();
}
