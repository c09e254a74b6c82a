/* A program that holds GPU memory, for containers of tests: as much of CUDA as decides what a process may hold.
 *
 *   gpu-work hold SIZE     allocate, say so, and hold it until a signal; exit 2 where it is refused
 *   gpu-work daemon SIZE   the same from a grandchild in a session of its own; comes back at once
 *   gpu-work wedge         connect to the MPS control daemon, send nothing, and hold the connection
 *
 * The driver is a socket for each GPU, /dev/fake-nvidia/<uuid> (see fake_driver.py): the kernel tells the other
 * end who connects, by the PID of the host, and when the process ends. The rules are those of NVIDIA's MPS
 * documentation: a process whose pipe directory has no daemon that answers goes on without MPS, where nothing
 * limits it; a client's limit is the one in its environment; and a limit that names a GPU which the process
 * cannot see makes it lose every limit.
 */

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { TEXT = 256, OUT_OF_MEMORY = 2, NO_DEVICE = 3 };
static const char DEVICES[] = "/dev/fake-nvidia";

static void on_term(int signal_number)
{
    (void)signal_number;
    _exit(143);
}

static int connect_to(const char *path, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static int control_daemon(void)
{
    char path[TEXT];
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    snprintf(path, sizeof path, "%s/control", directory ? directory : "/tmp/nvidia-mps");
    return connect_to(path, SOCK_SEQPACKET);
}

static int is_client(void)
{
    int fd = control_daemon();
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* Bytes, or 0 for none. One GPU is visible, so that its ordinal is 0. */
static unsigned long long limit(void)
{
    char text[TEXT];
    const char *set = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    unsigned long long mine = 0;
    snprintf(text, sizeof text, "%s", set ? set : "");
    for (char *entry = strtok(text, ","); entry; entry = strtok(NULL, ",")) {
        char *end;
        if (strncmp(entry, "0=", 2) != 0)
            return 0;
        mine = strtoull(entry + 2, &end, 10);
        mine <<= *end == 'G' ? 30 : 20;
    }
    return mine;
}

/* The first GPU that the environment names, else the first that there is. */
static int device(char *path, size_t size)
{
    const char *set = getenv("CUDA_VISIBLE_DEVICES");
    if (set && strncmp(set, "GPU-", 4) == 0) {
        snprintf(path, size, "%s/%.*s", DEVICES, (int)strcspn(set, ","), set);
        return 0;
    }
    DIR *directory = opendir(DEVICES);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        if (entry->d_name[0] != '.') {
            snprintf(path, size, "%s/%s", DEVICES, entry->d_name);
            closedir(directory);
            return 0;
        }
    return -1;
}

static int hold(const char *size)
{
    char path[2 * TEXT], answer[TEXT] = "";
    char *unit;
    unsigned long long bytes = strtoull(size, &unit, 10) << (*unit == 'g' ? 30 : 20);
    int client = is_client(), fd;
    if (client && limit() && bytes > limit()) {
        printf("out of memory: %llu MiB is the limit\n", limit() >> 20);
        return OUT_OF_MEMORY;
    }
    if (device(path, sizeof path) != 0 || (fd = connect_to(path, SOCK_STREAM)) < 0) {
        printf("no CUDA-capable device is detected\n");
        return NO_DEVICE;
    }
    dprintf(fd, "%s %llu\n", client ? "mps" : "compute", bytes);
    if (read(fd, answer, sizeof answer - 1) <= 0 || strcmp(answer, "held\n") != 0) {
        printf("out of memory\n");
        return OUT_OF_MEMORY;
    }
    printf("holding %s\n", size);
    fflush(stdout);
    for (;;)
        pause();
}

int main(int count, char **words)
{
    signal(SIGTERM, on_term);
    if (count == 3 && strcmp(words[1], "hold") == 0)
        return hold(words[2]);
    if (count == 3 && strcmp(words[1], "daemon") == 0)
        return fork() || (setsid(), fork()) ? 0 : hold(words[2]);
    if (count == 2 && strcmp(words[1], "wedge") == 0 && control_daemon() >= 0)
        for (printf("connected\n"), fflush(stdout);;)
            pause();
    return 1;
}
