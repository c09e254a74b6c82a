/* FAKE libcuda.so.1 for checkpoints: the state of each "process" is a file $FAKE_CUDA/<pid>, one word.
 *
 * A process without a file uses no CUDA. "running" "locked" "checkpointed"; a file <pid>.refuse makes its
 * checkpoint fail. Calls are appended to $FAKE_CUDA/calls. Touches nothing else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, ILLEGAL_STATE = 401, NOT_SUPPORTED = 801 };
static const char *NAMES[] = {"running", "locked", "checkpointed", "failed"};

static FILE *file(int pid, const char *suffix, const char *mode) {
    char path[512];
    snprintf(path, sizeof path, "%s/%d%s", getenv("FAKE_CUDA"), pid, suffix);
    return fopen(path, mode);
}

static void note(const char *what, int pid) {
    char path[512];
    snprintf(path, sizeof path, "%s/calls", getenv("FAKE_CUDA"));
    FILE *calls = fopen(path, "a");
    fprintf(calls, "%s %d\n", what, pid);
    fclose(calls);
}

static int state(int pid) {
    char word[32] = "";
    FILE *found = file(pid, "", "r");
    if (!found)
        return -1;
    fscanf(found, "%31s", word);
    fclose(found);
    for (int at = 0; at < 4; at++)
        if (strcmp(word, NAMES[at]) == 0)
            return at;
    return -1;
}

static int move(const char *what, int pid, int from, int to) {
    note(what, pid);
    if (state(pid) != from)
        return ILLEGAL_STATE;
    FILE *written = file(pid, "", "w");
    fprintf(written, "%s", NAMES[to]);
    fclose(written);
    return SUCCESS;
}

int cuInit(unsigned int flags) { (void)flags; return SUCCESS; }
int cuDriverGetVersion(int *version) {
    const char *wanted = getenv("FAKE_CUDA_VERSION");
    *version = wanted ? atoi(wanted) : 13000;
    return SUCCESS;
}
int cuCheckpointProcessGetState(int pid, int *found) {
    int now = state(pid);
    if (now < 0)
        return NOT_INITIALIZED;
    *found = now;
    return SUCCESS;
}
int cuCheckpointProcessLock(int pid, void *args) { (void)args; return move("lock", pid, 0, 1); }
int cuCheckpointProcessCheckpoint(int pid, void *args) {
    (void)args;
    FILE *refused = file(pid, ".refuse", "r");
    if (refused) {
        fclose(refused);
        return NOT_SUPPORTED;
    }
    return move("checkpoint", pid, 1, 2);
}
int cuCheckpointProcessRestore(int pid, void *args) { (void)args; return move("restore", pid, 2, 1); }
int cuCheckpointProcessUnlock(int pid, void *args) { (void)args; return move("unlock", pid, 1, 0); }

/* The bindings ask for every function by this one. */
int cuGetProcAddress_v2(const char *symbol, void **found, int version, unsigned long long flags, int *status) {
    static const struct { const char *name; void *at; } known[] = {
        {"cuInit", cuInit},
        {"cuDriverGetVersion", cuDriverGetVersion},
        {"cuCheckpointProcessGetState", cuCheckpointProcessGetState},
        {"cuCheckpointProcessLock", cuCheckpointProcessLock},
        {"cuCheckpointProcessCheckpoint", cuCheckpointProcessCheckpoint},
        {"cuCheckpointProcessRestore", cuCheckpointProcessRestore},
        {"cuCheckpointProcessUnlock", cuCheckpointProcessUnlock},
        {"cuGetProcAddress", cuGetProcAddress_v2},
    };
    (void)version, (void)flags;
    *found = NULL;
    for (size_t at = 0; at < sizeof known / sizeof *known; at++)
        if (strcmp(symbol, known[at].name) == 0)
            *found = known[at].at;
    if (status)
        *status = *found ? 0 : 1;
    return SUCCESS;
}
