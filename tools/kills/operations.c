/* What a process does to files below a folder, counted: a library to be preloaded, which at one of the operations kills
   its process, in the middle of what is written, or lets this and all later ones fail as a full disk does.

       cc -shared -fPIC -O1 -o operations.so operations.c -ldl

   `plan(folder, at, what, log)` begins to count: `what` is 0 (count alone), -1 (kill) or an errno (from there on,
   where the disk is full or may not be written); `log` is a descriptor that gets a line for each operation, or -1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[4096];
static long at;
static int what, log_to = -1;
static int on;
static long counted;

#define REAL(type, name) ((type)dlsym(RTLD_NEXT, name))

void plan(const char *below, long when, int action, int log) {
    strncpy(folder, below, sizeof folder - 1);
    at = when, what = action, log_to = log, counted = 0, on = 1;
}

long operations(void) { return counted; }

static void as_written(int place, const char *path, char *full) {
    char link[64];
    ssize_t length = 0;
    if (path[0] == '/') {
        snprintf(full, 8192, "%s", path);
        return;
    }
    if (place == AT_FDCWD) {
        if (getcwd(full, 4096)) length = strlen(full);
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", place);
        length = readlink(link, full, 4096);
    }
    if (length < 0) length = 0;
    snprintf(full + length, 8192 - length, path[0] ? "/%s" : "%s", path);
}

/* -1: kill in the middle; an errno: fail; 0: go on. `grows`: whether a full disk refuses it. `opens`: whether a folder
   that may not be written does. */
static int next(const char *kind, int place, const char *path, int grows, int opens) {
    char full[8192];
    if (!on) return 0;
    int before = errno;
    as_written(place, path, full);
    if (strncmp(full, folder, strlen(folder))) {
        errno = before;
        return 0;
    }
    long number = __sync_add_and_fetch(&counted, 1);
    if (log_to >= 0) {
        char line[8400];
        int length = snprintf(line, sizeof line, "%s %s\n", kind, full);
        REAL(ssize_t(*)(int, const void *, size_t), "write")(log_to, line, length);
    }
    errno = before;
    if (what == -1) return number == at ? -1 : 0;
    if (what == 0 || number < at) return 0;
    if (what == ENOSPC || what == EFBIG || what == EDQUOT) return grows ? what : 0;
    return opens ? what : 0;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

#define STOP(kind, place, path, grows, opens)                   \
    do {                                                        \
        int stop = next(kind, place, path, grows, opens);       \
        if (stop == -1) die();                                  \
        if (stop) {                                             \
            errno = stop;                                       \
            return -1;                                          \
        }                                                       \
    } while (0)

#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT))

#define OPEN(name)                                                                   \
    int name(const char *path, int flags, ...) {                                     \
        va_list more;                                                                \
        va_start(more, flags);                                                       \
        mode_t mode = va_arg(more, int);                                             \
        va_end(more);                                                                \
        if (WRITES(flags)) STOP("open", AT_FDCWD, path, (flags & O_CREAT) != 0, 1);  \
        return REAL(int (*)(const char *, int, ...), #name)(path, flags, mode);      \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                  \
    int name(int place, const char *path, int flags, ...) {                           \
        va_list more;                                                                 \
        va_start(more, flags);                                                        \
        mode_t mode = va_arg(more, int);                                              \
        va_end(more);                                                                 \
        if (WRITES(flags)) STOP("open", place, path, (flags & O_CREAT) != 0, 1);      \
        return REAL(int (*)(int, const char *, int, ...), #name)(place, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

/* Half of it is written before the process dies, or the disk is full. */
ssize_t write(int file, const void *bytes, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = REAL(ssize_t(*)(int, const void *, size_t), "write");
    int stop = on && file > 2 && file != log_to ? next("write", file, "", 1, 0) : 0;
    if (!stop) return real(file, bytes, size);
    if (size > 1) real(file, bytes, size / 2);
    if (stop == -1) die();
    errno = stop;
    return -1;
}

#define PWRITE(name, offset_t)                                                        \
    ssize_t name(int file, const void *bytes, size_t size, offset_t offset) {         \
        ssize_t (*real)(int, const void *, size_t, offset_t) =                        \
            REAL(ssize_t(*)(int, const void *, size_t, offset_t), #name);             \
        int stop = on ? next("write", file, "", 1, 0) : 0;                            \
        if (!stop) return real(file, bytes, size, offset);                            \
        if (size > 1) real(file, bytes, size / 2, offset);                            \
        if (stop == -1) die();                                                        \
        errno = stop;                                                                 \
        return -1;                                                                    \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

int rename(const char *from, const char *to) {
    STOP("rename", AT_FDCWD, to, 0, 1);
    return REAL(int (*)(const char *, const char *), "rename")(from, to);
}

int renameat(int of, const char *from, int in, const char *to) {
    STOP("rename", in, to, 0, 1);
    return REAL(int (*)(int, const char *, int, const char *), "renameat")(of, from, in, to);
}

int mkdir(const char *path, mode_t mode) {
    STOP("mkdir", AT_FDCWD, path, 1, 1);
    return REAL(int (*)(const char *, mode_t), "mkdir")(path, mode);
}

int unlink(const char *path) {
    STOP("unlink", AT_FDCWD, path, 0, 1);
    return REAL(int (*)(const char *), "unlink")(path);
}

int unlinkat(int place, const char *path, int flags) {
    STOP("unlink", place, path, 0, 1);
    return REAL(int (*)(int, const char *, int), "unlinkat")(place, path, flags);
}

int rmdir(const char *path) {
    STOP("rmdir", AT_FDCWD, path, 0, 1);
    return REAL(int (*)(const char *), "rmdir")(path);
}

int fsync(int file) {
    STOP("fsync", file, "", 1, 0);
    return REAL(int (*)(int), "fsync")(file);
}

int fdatasync(int file) {
    STOP("fsync", file, "", 1, 0);
    return REAL(int (*)(int), "fdatasync")(file);
}

#define TRUNCATE(name, offset_t)                                         \
    int name(int file, offset_t size) {                                  \
        STOP("truncate", file, "", 1, 0);                                \
        return REAL(int (*)(int, offset_t), #name)(file, size);          \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)
