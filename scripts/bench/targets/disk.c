// A layer between a program and its disk, for scripts/bench/campaign: it records or fails calls.
//
// FGDISK_UNDER: the directory whose files count; FGDISK_ALSO: the beginning of further paths. FGDISK_LOG: each change of these files is appended to this
// file, with its data, so that any state that a power cut can leave can be built from it.
// FGDISK_CONTROL: a file with `struct control`, by which the next calls of a kind are made to fail.
// FGDISK_PROGRAM: fail calls only in programs whose command line has this word.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, SYNC, RENAME, UNLINK, FORK, SOCKET, MKDIR, TRUNCATE };

struct control {
	int32_t call, error;
	int64_t skip, times, hits; // calls before the first failure; failures that are left; failures so far
};

struct record {
	char kind, unused[3];
	uint32_t length; // of what follows
	uint64_t file, offset, began;
};

static char under[PATH_MAX], also[PATH_MAX];
static size_t under_length, also_length;
static int log_file = -1;
static struct control *control;

static int has_word(const char *word)
{
	char text[8192];
	int file = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0);
	ssize_t length = file < 0 ? 0 : syscall(SYS_read, file, text, sizeof(text));

	if (file >= 0)
		syscall(SYS_close, file);
	return length > 0 && memmem(text, (size_t)length, word, strlen(word)) != NULL;
}

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("FGDISK_UNDER"), *name = getenv("FGDISK_LOG"), *word = getenv("FGDISK_PROGRAM");
	int file;

	if (!path)
		return;
	under_length = strlen(strncpy(under, path, sizeof(under) - 1));
	if ((path = getenv("FGDISK_ALSO")))
		also_length = strlen(strncpy(also, path, sizeof(also) - 1));
	if (name && (file = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_APPEND | O_CLOEXEC, 0)) >= 0) {
		log_file = fcntl(file, F_DUPFD_CLOEXEC, 800);
		syscall(SYS_close, file);
	}
	name = getenv("FGDISK_CONTROL");
	if (name && (!word || has_word(word)) &&
	    (file = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC, 0)) >= 0) {
		void *memory = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

		control = memory == MAP_FAILED ? NULL : memory;
		syscall(SYS_close, file);
	}
}

static int counts_path(const char *path)
{
	return (under_length && strncmp(path, under, under_length) == 0) ||
	       (also_length && strncmp(path, also, also_length) == 0);
}

// Write the absolute path that (directory, path) names into `out`.
static int resolve(int directory, const char *path, char *out)
{
	char name[64];
	ssize_t length;

	if (path[0] == '/')
		return snprintf(out, PATH_MAX, "%s", path) < PATH_MAX;
	if (directory == AT_FDCWD) {
		if (syscall(SYS_getcwd, out, PATH_MAX) <= 0)
			return 0;
		length = (ssize_t)strlen(out);
	} else {
		snprintf(name, sizeof(name), "/proc/self/fd/%d", directory);
		length = readlink(name, out, PATH_MAX - 1);
	}
	if (length <= 0)
		return 0;
	return snprintf(out + length, (size_t)(PATH_MAX - length), "/%s", path) < PATH_MAX - length;
}

static int counts(int directory, const char *path, char *out)
{
	int error = errno, found = (under_length || control) && resolve(directory, path, out) && counts_path(out);

	errno = error;
	return found;
}

static int counts_fd(int fd, struct stat *about)
{
	char name[64], path[PATH_MAX];
	ssize_t length;
	int error = errno, found = 0;

	if (under_length && fstat(fd, about) == 0 && (S_ISREG(about->st_mode) || S_ISDIR(about->st_mode))) {
		snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
		length = readlink(name, path, sizeof(path) - 1);
		if (length > 0) {
			path[length] = 0;
			found = counts_path(path);
		}
	}
	errno = error;
	return found;
}

static int fails(int call)
{
	if (!control || control->call != call)
		return 0;
	if (__atomic_sub_fetch(&control->skip, 1, __ATOMIC_SEQ_CST) >= 0)
		return 0;
	if (__atomic_sub_fetch(&control->times, 1, __ATOMIC_SEQ_CST) < 0)
		return 0;
	__atomic_add_fetch(&control->hits, 1, __ATOMIC_SEQ_CST);
	errno = control->error;
	return 1;
}

static uint64_t position(void)
{
	off_t end = log_file < 0 ? 0 : lseek(log_file, 0, SEEK_END);

	return end < 0 ? 0 : (uint64_t)end;
}

static void note(char kind, uint64_t file, uint64_t offset, uint64_t began, const void *data, size_t length)
{
	int error = errno;
	struct record head = {.kind = kind, .length = (uint32_t)length, .file = file, .offset = offset, .began = began};
	struct iovec parts[] = {{&head, sizeof(head)}, {(void *)data, length}};

	if (log_file >= 0 && syscall(SYS_writev, log_file, parts, length ? 2 : 1) < 0)
		abort(); // a record with a hole proves nothing
	errno = error;
}

static uint64_t file_at(const char *path)
{
	struct stat about;
	int error = errno;
	uint64_t found = lstat(path, &about) ? 0 : about.st_ino;

	errno = error;
	return found;
}

static void note_two(char kind, const char *old, const char *new)
{
	char both[2 * PATH_MAX];
	size_t first = strlen(old) + 1, second = strlen(new);

	memcpy(both, old, first);
	memcpy(both + first, new, second);
	note(kind, file_at(new), 0, 0, both, first + second);
}

#define REAL(type, name, ...)                                                                                          \
	static type (*real)(__VA_ARGS__);                                                                              \
	if (!real)                                                                                                     \
	real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static int open_any(int directory, const char *path, int flags, mode_t mode)
{
	char whole[PATH_MAX];
	int is_ours = counts(directory, path, whole), was = 1, fd;

	if (is_ours && fails(OPEN))
		return -1;
	if (is_ours && (flags & O_CREAT) && log_file >= 0)
		was = file_at(whole) != 0;
	fd = (int)syscall(SYS_openat, directory, path, flags, mode);
	if (fd >= 0 && is_ours && log_file >= 0) {
		if (!was)
			note('C', file_at(whole), 0, 0, whole, strlen(whole));
		else if (flags & O_TRUNC)
			note('T', file_at(whole), 0, 0, NULL, 0);
	}
	return fd;
}

#define MODE                                                                                                           \
	va_list more;                                                                                                  \
	mode_t mode = 0;                                                                                               \
	if (flags & (O_CREAT | __O_TMPFILE)) {                                                                         \
		va_start(more, flags);                                                                                 \
		mode = va_arg(more, mode_t);                                                                           \
		va_end(more);                                                                                          \
	}

int open(const char *path, int flags, ...)
{
	MODE return open_any(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
	MODE return open_any(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
	MODE return open_any(directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...)
{
	MODE return open_any(directory, path, flags | O_LARGEFILE, mode);
}

static void note_write(int fd, const struct stat *about, off_t offset, const void *data, ssize_t length)
{
	if (length > 0)
		note('W', about->st_ino, (uint64_t)offset, 0, data, (size_t)length);
	(void)fd;
}

ssize_t write(int fd, const void *data, size_t length)
{
	struct stat about;
	int is_ours = counts_fd(fd, &about);
	ssize_t done;

	if (is_ours && fails(WRITE))
		return -1;
	done = syscall(SYS_write, fd, data, length);
	if (is_ours && done > 0 && log_file >= 0)
		note_write(fd, &about, lseek(fd, 0, SEEK_CUR) - done, data, done);
	return done;
}

static ssize_t pwrite_any(int fd, const void *data, size_t length, off_t offset)
{
	struct stat about;
	int is_ours = counts_fd(fd, &about);
	ssize_t done;

	if (is_ours && fails(WRITE))
		return -1;
	done = syscall(SYS_pwrite64, fd, data, length, offset);
	if (is_ours && done > 0 && log_file >= 0)
		note_write(fd, &about, offset, data, done);
	return done;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset)
{
	return pwrite_any(fd, data, length, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off_t offset)
{
	return pwrite_any(fd, data, length, offset);
}

static int sync_any(int fd, long number)
{
	struct stat about;
	char name[64], path[PATH_MAX];
	int is_ours = counts_fd(fd, &about), failed;
	uint64_t began = position();
	ssize_t length;

	if (is_ours && fails(SYNC))
		return -1;
	failed = (int)syscall(number, fd);
	if (is_ours && !failed && log_file >= 0) {
		snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
		length = readlink(name, path, sizeof(path));
		note(S_ISDIR(about.st_mode) ? 'D' : 'S', about.st_ino, 0, began, path, length > 0 ? (size_t)length : 0);
	}
	return failed;
}

int fsync(int fd)
{
	return sync_any(fd, SYS_fsync);
}

int fdatasync(int fd)
{
	return sync_any(fd, SYS_fdatasync);
}

static int truncate_any(int fd, off_t length)
{
	struct stat about;
	int is_ours = counts_fd(fd, &about), failed;

	if (is_ours && fails(TRUNCATE))
		return -1;
	failed = (int)syscall(SYS_ftruncate, fd, length);
	if (is_ours && !failed && log_file >= 0)
		note('T', about.st_ino, (uint64_t)length, 0, NULL, 0);
	return failed;
}

int ftruncate(int fd, off_t length)
{
	return truncate_any(fd, length);
}

int ftruncate64(int fd, off_t length)
{
	return truncate_any(fd, length);
}

static int two_names(char kind, long number, int from, const char *old, int to, const char *new, unsigned flags)
{
	char first[PATH_MAX], second[PATH_MAX];
	int is_ours = counts(to, new, second), failed;

	if (is_ours && fails(RENAME))
		return -1;
	is_ours = is_ours && resolve(from, old, first);
	failed = (int)syscall(number, from, old, to, new, flags);
	if (is_ours && !failed && log_file >= 0)
		note_two(kind, first, second);
	return failed;
}

int rename(const char *old, const char *new)
{
	return two_names('R', SYS_renameat2, AT_FDCWD, old, AT_FDCWD, new, 0);
}

int renameat(int from, const char *old, int to, const char *new)
{
	return two_names('R', SYS_renameat2, from, old, to, new, 0);
}

int renameat2(int from, const char *old, int to, const char *new, unsigned flags)
{
	return two_names('R', SYS_renameat2, from, old, to, new, flags);
}

int link(const char *old, const char *new)
{
	return two_names('L', SYS_linkat, AT_FDCWD, old, AT_FDCWD, new, 0);
}

int linkat(int from, const char *old, int to, const char *new, int flags)
{
	return two_names('L', SYS_linkat, from, old, to, new, (unsigned)flags);
}

static int symlink_any(const char *text, int directory, const char *path)
{
	char whole[PATH_MAX];

	if (counts(directory, path, whole) && fails(RENAME))
		return -1;
	return (int)syscall(SYS_symlinkat, text, directory, path);
}

int symlink(const char *text, const char *path)
{
	return symlink_any(text, AT_FDCWD, path);
}

int symlinkat(const char *text, int directory, const char *path)
{
	return symlink_any(text, directory, path);
}

static int unlink_any(int directory, const char *path, int flags)
{
	char whole[PATH_MAX];
	int is_ours = counts(directory, path, whole), failed;
	uint64_t file = is_ours ? file_at(whole) : 0;

	if (is_ours && fails(UNLINK))
		return -1;
	failed = (int)syscall(SYS_unlinkat, directory, path, flags);
	if (is_ours && !failed && log_file >= 0)
		note('U', file, 0, 0, whole, strlen(whole));
	return failed;
}

int unlink(const char *path)
{
	return unlink_any(AT_FDCWD, path, 0);
}

int unlinkat(int directory, const char *path, int flags)
{
	return unlink_any(directory, path, flags);
}

int rmdir(const char *path)
{
	return unlink_any(AT_FDCWD, path, AT_REMOVEDIR);
}

static int mkdir_any(int directory, const char *path, mode_t mode)
{
	char whole[PATH_MAX];
	int is_ours = counts(directory, path, whole), failed;

	if (is_ours && fails(MKDIR))
		return -1;
	failed = (int)syscall(SYS_mkdirat, directory, path, mode);
	if (is_ours && !failed && log_file >= 0)
		note('M', file_at(whole), 0, 0, whole, strlen(whole));
	return failed;
}

int mkdir(const char *path, mode_t mode)
{
	return mkdir_any(AT_FDCWD, path, mode);
}

int mkdirat(int directory, const char *path, mode_t mode)
{
	return mkdir_any(directory, path, mode);
}

pid_t fork(void)
{
	REAL(pid_t, "fork", void);
	return fails(FORK) ? -1 : real();
}

pid_t vfork(void) // a function that returns twice cannot be called by another one that returns
{
	return fork();
}

int socket(int family, int kind, int protocol)
{
	return fails(SOCKET) ? -1 : (int)syscall(SYS_socket, family, kind, protocol);
}

int socketpair(int family, int kind, int protocol, int pair[2])
{
	return fails(SOCKET) ? -1 : (int)syscall(SYS_socketpair, family, kind, protocol, pair);
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
	return fails(SOCKET) ? -1 : (int)syscall(SYS_accept4, fd, address, length, flags);
}

int pipe2(int pair[2], int flags)
{
	return fails(SOCKET) ? -1 : (int)syscall(SYS_pipe2, pair, flags);
}
