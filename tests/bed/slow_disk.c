/*
 * slow_disk FILE PROGRAM WORD...: runs a program whose flushes (fsync, fdatasync) each take longer by what FILE
 * holds, one double in seconds, which may change at any time. Flushes wait for each other, as at one disk.
 *
 * The kernel asks a second process about each flush (seccomp's user notification), so that programs without a
 * C library are reached, too. The program keeps the process id; the second process ends with it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

static void die(const char *what)
{
    perror(what);
    exit(126);
}

static int notifications(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fdatasync, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fsync, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof(rules) / sizeof(rules[0]), rules};
    unsigned long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        die("no_new_privs");
    /* Go sends its threads signals, which would begin the wait anew. */
    int found = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &filter);
    if (found < 0)
        found = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
    if (found < 0)
        die("seccomp");
    return found;
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void answer(int listener, pid_t program, const volatile double *flush_seconds)
{
    while (getppid() == program) {
        struct pollfd ready = {listener, POLLIN, 0};
        if (poll(&ready, 1, 200) <= 0 || !(ready.revents & POLLIN))
            continue;
        struct seccomp_notif asked = {0};
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked))
            continue;
        double began = now();
        while (now() < began + *flush_seconds && getppid() == program)
            usleep(2000);
        struct seccomp_notif_resp told = {.id = asked.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &told);
    }
}

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    int file = open(words[1], O_RDONLY | O_CLOEXEC);
    if (file < 0)
        die(words[1]);
    const volatile double *flush_seconds = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    if (flush_seconds == MAP_FAILED)
        die("mmap");
    pid_t program = getpid();
    int listener = notifications();
    pid_t other = fork();
    if (other < 0)
        die("fork");
    if (other == 0) {
        answer(listener, program, flush_seconds);
        _exit(0);
    }
    execv(words[2], words + 2);
    die(words[2]);
}
