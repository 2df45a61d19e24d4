/* Preloaded: a sync that fails once and drops its pages, as Linux does. $LYING_DISK/INODE has what the disk has of
 * a file below $LYING_OF since its last successful sync, INODE.failed the file at the failed one: pages that are
 * still the same then are not written by later syncs. INODE.kept keeps the number of the inode in use. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096 };

static void copy(int source, const char *target, const char *without) {
    char page[PAGE], old[PAGE];
    int to = open(target, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int failed = without == NULL ? -1 : open(without, O_RDONLY | O_CLOEXEC);
    for (off_t at = 0;; at += PAGE) {
        ssize_t have = pread(source, page, PAGE, at);
        if (have <= 0 || to < 0) {
            if (to >= 0 && ftruncate(to, lseek(source, 0, SEEK_END)) < 0)
                abort();
            break;
        }
        ssize_t had = failed < 0 ? -1 : pread(failed, old, PAGE, at);
        if ((had != have || memcmp(page, old, (size_t) have) != 0) && pwrite(to, page, (size_t) have, at) != have)
            abort();
    }
    close(to);
    if (failed >= 0)
        close(failed);
}

int fsync(int fd) {
    const char *disk = getenv("LYING_DISK"), *of = getenv("LYING_OF");
    char link_path[64], path[4096], shadow[4200], failed[4300], trigger[4300];
    struct stat about;
    snprintf(link_path, sizeof link_path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link_path, path, sizeof path - 1);
    if (disk == NULL || of == NULL || length < 0 || fstat(fd, &about) < 0 || !S_ISREG(about.st_mode))
        return 0;
    path[length] = 0;
    if (strncmp(path, of, strlen(of)) != 0)
        return 0;
    int source = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(shadow, sizeof shadow, "%s/%lu", disk, (unsigned long) about.st_ino);
    snprintf(failed, sizeof failed, "%s.kept", shadow);
    if (link(path, failed) < 0 && errno != EEXIST)
        abort();
    snprintf(failed, sizeof failed, "%s.failed", shadow);
    snprintf(trigger, sizeof trigger, "%s/fail", disk);
    int fails = strstr(path, "-wal") != NULL && unlink(trigger) == 0;
    copy(source, fails ? failed : shadow, fails ? NULL : failed);
    close(source);
    errno = EIO;
    return fails ? -1 : 0;
}

int fdatasync(int fd) { return fsync(fd); }
