/* A fake libnvidia-ml.so.1: the functions of NVML that gpushared uses, driven by a text file.
 *
 * The environment variable FAKE_NVML_STATE names the file. It is read anew with every call, so whoever
 * replaces it (by rename, so that no half of it is seen) changes the machine under a running daemon. Lines:
 *
 *   driver VERSION
 *   error FUNCTION CODE [TIMES]  before any gpu: for the machine; after one: for calls about that GPU;
 *                                with TIMES: only for so many calls after each nvmlInit
 *   hang FUNCTION                calls of the function do not return until this line is gone
 *   cgroups PATH                 where cgroup v2 is mounted; without it: cgroup v1, no memory limits
 *   unprivileged                 whoever calls is not root
 *   ignore_limits                memory limits are taken and forgotten
 *   gpu UUID NAME...             begins a GPU; the lines below are about it; missing ones: NOT_SUPPORTED
 *   lost                         every call about the GPU answers GPU_IS_LOST
 *   memory TOTAL RESERVED        bytes
 *   utilization PERCENT
 *   temperature CELSIUS
 *   power MILLIWATTS
 *   energy MILLIJOULES           since the driver was loaded
 *   mig CURRENT
 *   persistence MODE
 *   compute_mode MODE
 *   capability MAJOR MINOR
 *   nvlink GROUP                 NVLink joins the GPUs that say the same group
 *   numa NODE                    where it is; GPUs that do not say both tell nothing of how far they are apart
 *   xid NUMBER                   an error that the driver tells of; those that a program is told of by events are
 *                                the ones behind those that were there when it registered for them
 *   compute|mps|graphics PID BYTES     a process; "-" for bytes that the driver does not tell
 *   process_utilization WORD     "told": what processes do is told, by the lines below; where there are none,
 *                                the answer is NOT_FOUND; "silent": it is SUCCESS without any samples
 *   did PID TIMESTAMP SM         a sample of what a process did: microseconds, percent
 *   instance PLACE GPU_INSTANCE SLICES UUID NAME...   begins a MIG device of that GPU, in that place of its list;
 *                                      memory, processes and errors that follow are the MIG device's
 *
 * Where MIG is on, a GPU tells neither its utilization nor its processes (to callers without the privilege).
 *
 * Compute modes that were set are kept in a file of the same name with ".modes" behind it, "UUID MODE" a line,
 * the newest last: they win over "compute_mode". Setting one answers NO_PERMISSION for "unprivileged",
 * NOT_SUPPORTED where the GPU tells no mode, and INVALID_ARGUMENT for modes that do not exist any more (1).
 *
 * Memory limits that were set are kept in a file of the same name with ".limits" behind it, a line each:
 * UUID SOFT HARD CGROUP. As documented, only root may set them, with cgroup v2, and not on a GPU split by MIG.
 * That the answers then are NO_PERMISSION and NOT_SUPPORTED is documented for the latter; NOT_FOUND for a
 * cgroup that is not there, NOT_SUPPORTED for cgroup v1, and INVALID_ARGUMENT for a soft limit above the hard
 * one are assumptions.
 *
 * Without the file the driver is not loaded. Names and numbers are those of the public header nvml.h.
 */

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
};

enum { MAX_GPUS = 64, MAX_INSTANCES = 64, MAX_MIG_DEVICES = 7, MAX_PROCESSES = 256, MAX_ERRORS = 32, TEXT = 128, MAX_SAMPLES = 64 };
enum { MAX_XIDS = 256, XID_EVENTS = 8, TIMEOUT = 10 };
enum kind { COMPUTE, MPS, GRAPHICS };

static const unsigned long long NOT_AVAILABLE = ~0ULL;
static const unsigned MEMORY_V2 = 0x02000028, TEMPERATURE_V1 = 0x0100000C;

struct process {
    enum kind kind;
    unsigned pid;
    unsigned long long bytes;
};

struct sample {
    unsigned pid;
    unsigned long long at;
    unsigned sm, memory, encoder, decoder;
};

struct gpu {
    char uuid[TEXT], name[TEXT];
    int lost, has_memory, has_utilization, has_temperature, has_power, has_energy, has_mig;
    int has_persistence, has_compute_mode, has_capability, has_nvlink, has_numa;
    unsigned nvlink, numa;
    unsigned long long total, reserved, energy;
    unsigned utilization, temperature, power, mig, persistence, compute_mode;
    int major, minor;
    int parent; /* -1: it is a GPU; else a MIG device of that one */
    unsigned place, gpu_instance, slices;
    int xid_count;
    unsigned xids[MAX_XIDS];
    int process_count;
    struct process processes[MAX_PROCESSES];
    int tells_samples, silent_samples, sample_count;
    struct sample samples[MAX_SAMPLES];
};

struct error {
    int gpu; /* -1: the machine */
    int code, times; /* 0 times: always */
    char function[TEXT];
};

struct state {
    char driver[TEXT], hang[TEXT], cgroups[TEXT];
    int unprivileged, ignore_limits;
    int gpu_count, instance_count, error_count;
    struct error errors[MAX_ERRORS];
    struct gpu gpus[MAX_GPUS + MAX_INSTANCES]; /* MIG devices from MAX_GPUS on */
    struct gpu *newest;
};

/* As nvml.h has them; the handle is opaque there too. */
typedef struct handle *device_t;
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };
struct process_info { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; };
struct temperature_v1 { unsigned version, sensor; int celsius; };

/* One thread calls NVML in gpushared, so one state of each is enough; 400 KiB do not belong on its stack. */
static struct state state;
static int opened, served[MAX_ERRORS];
static char handles[MAX_GPUS], mig_handles[MAX_GPUS][MAX_MIG_DEVICES];

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("fake NVML: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

static void read_process(struct gpu *gpu, enum kind kind, const char *rest)
{
    char bytes[TEXT];
    if (gpu->process_count == MAX_PROCESSES)
        fail("too many processes");
    struct process *process = &gpu->processes[gpu->process_count++];
    process->kind = kind;
    if (sscanf(rest, "%u %127s", &process->pid, bytes) != 2)
        fail("bad process: %s", rest);
    process->bytes = strcmp(bytes, "-") == 0 ? NOT_AVAILABLE : strtoull(bytes, NULL, 10);
}

static void read_sample(struct gpu *gpu, const char *rest)
{
    if (gpu->sample_count == MAX_SAMPLES)
        fail("too many samples");
    struct sample *sample = &gpu->samples[gpu->sample_count++];
    *sample = (struct sample){0};
    if (sscanf(rest, "%u %llu %u", &sample->pid, &sample->at, &sample->sm) != 3)
        fail("bad sample: %s", rest);
}

static int read_gpu_line(struct gpu *gpu, const char *word, const char *rest)
{
    if (strcmp(word, "lost") == 0)
        gpu->lost = 1;
    else if (strcmp(word, "xid") == 0 && gpu->xid_count < MAX_XIDS)
        gpu->xids[gpu->xid_count++] = (unsigned)strtoul(rest, NULL, 10);
    else if (strcmp(word, "memory") == 0)
        gpu->has_memory = sscanf(rest, "%llu %llu", &gpu->total, &gpu->reserved) == 2;
    else if (strcmp(word, "utilization") == 0)
        gpu->has_utilization = sscanf(rest, "%u", &gpu->utilization) == 1;
    else if (strcmp(word, "temperature") == 0)
        gpu->has_temperature = sscanf(rest, "%u", &gpu->temperature) == 1;
    else if (strcmp(word, "power") == 0)
        gpu->has_power = sscanf(rest, "%u", &gpu->power) == 1;
    else if (strcmp(word, "energy") == 0)
        gpu->has_energy = sscanf(rest, "%llu", &gpu->energy) == 1;
    else if (strcmp(word, "mig") == 0)
        gpu->has_mig = sscanf(rest, "%u", &gpu->mig) == 1;
    else if (strcmp(word, "persistence") == 0)
        gpu->has_persistence = sscanf(rest, "%u", &gpu->persistence) == 1;
    else if (strcmp(word, "compute_mode") == 0)
        gpu->has_compute_mode = sscanf(rest, "%u", &gpu->compute_mode) == 1;
    else if (strcmp(word, "capability") == 0)
        gpu->has_capability = sscanf(rest, "%d %d", &gpu->major, &gpu->minor) == 2;
    else if (strcmp(word, "nvlink") == 0)
        gpu->has_nvlink = sscanf(rest, "%u", &gpu->nvlink) == 1;
    else if (strcmp(word, "numa") == 0)
        gpu->has_numa = sscanf(rest, "%u", &gpu->numa) == 1;
    else if (strcmp(word, "compute") == 0)
        read_process(gpu, COMPUTE, rest);
    else if (strcmp(word, "mps") == 0)
        read_process(gpu, MPS, rest);
    else if (strcmp(word, "graphics") == 0)
        read_process(gpu, GRAPHICS, rest);
    else if (strcmp(word, "process_utilization") == 0)
        gpu->tells_samples = 1, gpu->silent_samples = strcmp(rest, "silent") == 0;
    else if (strcmp(word, "did") == 0)
        read_sample(gpu, rest);
    else
        return 0;
    return 1;
}

static void read_line(char *line)
{
    char word[TEXT] = "";
    int length = 0;
    line[strcspn(line, "\n")] = '\0';
    if (sscanf(line, "%127s%n", word, &length) != 1)
        return;
    const char *rest = line + length + (line[length] == ' ');
    if (strcmp(word, "driver") == 0) {
        snprintf(state.driver, TEXT, "%s", rest);
    } else if (strcmp(word, "hang") == 0) {
        snprintf(state.hang, TEXT, "%s", rest);
    } else if (strcmp(word, "cgroups") == 0) {
        snprintf(state.cgroups, TEXT, "%s", rest);
    } else if (strcmp(word, "unprivileged") == 0) {
        state.unprivileged = 1;
    } else if (strcmp(word, "ignore_limits") == 0) {
        state.ignore_limits = 1;
    } else if (strcmp(word, "error") == 0) {
        if (state.error_count == MAX_ERRORS)
            fail("too many errors");
        struct error *error = &state.errors[state.error_count++];
        error->gpu = state.newest ? (int)(state.newest - state.gpus) : -1;
        error->times = 0;
        if (sscanf(rest, "%127s %d %d", error->function, &error->code, &error->times) < 2)
            fail("bad error: %s", rest);
    } else if (strcmp(word, "gpu") == 0) {
        if (state.gpu_count == MAX_GPUS)
            fail("too many GPUs");
        struct gpu *gpu = state.newest = &state.gpus[state.gpu_count++];
        memset(gpu, 0, sizeof *gpu);
        gpu->parent = -1;
        if (sscanf(rest, "%127s %127[^\n]", gpu->uuid, gpu->name) != 2)
            fail("bad gpu: %s", rest);
    } else if (strcmp(word, "instance") == 0) {
        if (state.gpu_count == 0 || state.instance_count == MAX_INSTANCES)
            fail("too many MIG devices, or one of no GPU");
        struct gpu *device = state.newest = &state.gpus[MAX_GPUS + state.instance_count++];
        memset(device, 0, sizeof *device);
        device->parent = state.gpu_count - 1;
        if (sscanf(rest, "%u %u %u %127s %127[^\n]", &device->place, &device->gpu_instance, &device->slices,
                   device->uuid, device->name) != 5)
            fail("bad instance: %s", rest);
    } else if (state.newest == NULL || !read_gpu_line(state.newest, word, rest)) {
        fail("unknown line: %s", line);
    }
}

/* 0 where there is no file, which is a machine whose driver is not loaded. */
static int read_state(void)
{
    char line[4 * TEXT];
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file == NULL)
        return 0;
    state.driver[0] = state.hang[0] = state.cgroups[0] = '\0';
    state.unprivileged = state.ignore_limits = 0;
    state.gpu_count = state.instance_count = state.error_count = 0;
    state.newest = NULL;
    while (fgets(line, sizeof line, file))
        read_line(line);
    fclose(file);
    return 1;
}

static int wanted_error(const char *function, int gpu)
{
    for (int i = 0; i < state.error_count; i++) {
        const struct error *error = &state.errors[i];
        if ((error->gpu == -1 || error->gpu == gpu) && strcmp(error->function, function) == 0)
            return error->times && served[i]++ >= error->times ? SUCCESS : error->code;
    }
    return SUCCESS;
}

/* What every function does first: read the state, hang while it says so, answer the error it asks for. */
static int enter(const char *function, int gpu)
{
    const struct timespec pause = {0, 5 * 1000 * 1000};
    for (;;) {
        if (!read_state()) {
            /* What was opened before is of no use with the next driver. */
            opened = 0;
            return DRIVER_NOT_LOADED;
        }
        if (strcmp(state.hang, function) != 0)
            break;
        nanosleep(&pause, NULL);
    }
    if (!opened && strcmp(function, "nvmlInitWithFlags") != 0)
        return UNINITIALIZED;
    if (gpu >= state.gpu_count || (gpu >= 0 && state.gpus[gpu].lost))
        return GPU_IS_LOST;
    return wanted_error(function, gpu);
}

#define ENTER(gpu)                                   \
    do {                                             \
        int code_ = enter(__func__, gpu);            \
        if (code_ != SUCCESS)                        \
            return code_;                            \
    } while (0)

/* The place in state.gpus of a GPU, or of the GPU of a MIG device; -1 for what is no handle. */
static int gpu_of(device_t device, int *place)
{
    long index = (char *)device - handles, mig = (char *)device - &mig_handles[0][0];
    *place = mig >= 0 && mig < (long)sizeof mig_handles ? (int)(mig % MAX_MIG_DEVICES) : -1;
    if (*place >= 0)
        return (int)(mig / MAX_MIG_DEVICES);
    return index >= 0 && index < MAX_GPUS ? (int)index : -1;
}

/* NULL where there is no such MIG device (any more). */
static struct gpu *mig_device(int gpu, unsigned place)
{
    for (int i = MAX_GPUS; i < MAX_GPUS + state.instance_count; i++)
        if (state.gpus[i].parent == gpu && state.gpus[i].place == place)
            return &state.gpus[i];
    return NULL;
}

#define ENTER_DEVICE(device, gpu)                                                                       \
    int place_, index_ = gpu_of(device, &place_);                                                       \
    if (index_ < 0)                                                                                     \
        return INVALID_ARGUMENT;                                                                        \
    ENTER(index_);                                                                                      \
    struct gpu *gpu = place_ < 0 ? &state.gpus[index_] : mig_device(index_, (unsigned)place_);          \
    if (gpu == NULL)                                                                                    \
        return INVALID_ARGUMENT;                                                                        \
    int own_error_ = place_ < 0 ? SUCCESS : wanted_error(__func__, (int)(gpu - state.gpus));            \
    if (own_error_ != SUCCESS)                                                                          \
        return own_error_

static int copy_text(const char *text, char *out, unsigned length)
{
    return snprintf(out, length, "%s", text) < (int)length ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    ENTER(-1);
    opened++;
    memset(served, 0, sizeof served);
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    ENTER(-1);
    opened--;
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    static char text[TEXT];
    snprintf(text, TEXT, "fake NVML error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    ENTER(-1);
    return copy_text(state.driver, version, length);
}

int nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    ENTER(-1);
    return copy_text(state.driver, version, length);
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER(-1);
    *count = (unsigned)state.gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device)
{
    if (index >= MAX_GPUS)
        return INVALID_ARGUMENT;
    ENTER((int)index);
    *device = (device_t)&handles[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device)
{
    ENTER(-1);
    for (int i = 0; i < state.gpu_count; i++)
        if (strcmp(state.gpus[i].uuid, uuid) == 0)
            return nvmlDeviceGetHandleByIndex_v2((unsigned)i, device);
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(device_t device, unsigned *index)
{
    ENTER_DEVICE(device, gpu);
    *index = (unsigned)(gpu - state.gpus);
    return SUCCESS;
}

int nvmlDeviceGetUUID(device_t device, char *uuid, unsigned length)
{
    ENTER_DEVICE(device, gpu);
    return copy_text(gpu->uuid, uuid, length);
}

int nvmlDeviceGetName(device_t device, char *name, unsigned length)
{
    ENTER_DEVICE(device, gpu);
    return copy_text(gpu->name, name, length);
}

/* A process counts once, however many lists it is in. */
static unsigned long long used_by_processes(const struct gpu *gpu)
{
    unsigned long long used = 0;
    for (int i = MAX_GPUS; i < MAX_GPUS + state.instance_count; i++)
        if (gpu->parent < 0 && state.gpus[i].parent == gpu - state.gpus)
            used += used_by_processes(&state.gpus[i]);
    for (int i = 0; i < gpu->process_count; i++) {
        int seen = 0;
        for (int j = 0; j < i; j++)
            seen |= gpu->processes[j].pid == gpu->processes[i].pid;
        if (!seen && gpu->processes[i].bytes != NOT_AVAILABLE)
            used += gpu->processes[i].bytes;
    }
    return used;
}

int nvmlDeviceGetMemoryInfo(device_t device, struct memory *memory)
{
    ENTER_DEVICE(device, gpu);
    if (!gpu->has_memory)
        return NOT_SUPPORTED;
    /* The older form counts the driver's own part as used. */
    memory->total = gpu->total;
    memory->used = gpu->reserved + used_by_processes(gpu);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(device_t device, struct memory_v2 *memory)
{
    ENTER_DEVICE(device, gpu);
    if (memory->version != MEMORY_V2)
        return ARGUMENT_VERSION_MISMATCH;
    if (!gpu->has_memory)
        return NOT_SUPPORTED;
    memory->total = gpu->total;
    memory->reserved = gpu->reserved;
    memory->used = used_by_processes(gpu);
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device_t device, struct utilization *utilization)
{
    ENTER_DEVICE(device, gpu);
    if (!gpu->has_utilization || gpu->mig)
        return NOT_SUPPORTED;
    utilization->gpu = utilization->memory = gpu->utilization;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *celsius)
{
    ENTER_DEVICE(device, gpu);
    if (!gpu->has_temperature || sensor != 0)
        return NOT_SUPPORTED;
    *celsius = gpu->temperature;
    return SUCCESS;
}

int nvmlDeviceGetTemperatureV(device_t device, struct temperature_v1 *temperature)
{
    ENTER_DEVICE(device, gpu);
    if (temperature->version != TEMPERATURE_V1)
        return ARGUMENT_VERSION_MISMATCH;
    if (!gpu->has_temperature || temperature->sensor != 0)
        return NOT_SUPPORTED;
    temperature->celsius = (int)gpu->temperature;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(device_t device, unsigned *milliwatts)
{
    ENTER_DEVICE(device, gpu);
    if (!gpu->has_power)
        return NOT_SUPPORTED;
    *milliwatts = gpu->power;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(device_t device, unsigned long long *millijoules)
{
    ENTER_DEVICE(device, gpu);
    if (!gpu->has_energy)
        return NOT_SUPPORTED;
    *millijoules = gpu->energy;
    return SUCCESS;
}

enum { P2P_NVLINK = 2, P2P_OK = 0, P2P_NOT_SUPPORTED = 5, TOPOLOGY_NODE = 40, TOPOLOGY_SYSTEM = 50 };

/* The other GPU of a question about two; NULL where it is not one. */
static struct gpu *other_gpu(device_t device)
{
    int place, index = gpu_of(device, &place);
    return index < 0 || place >= 0 ? NULL : &state.gpus[index];
}

int nvmlDeviceGetP2PStatus(device_t device, device_t other, int capability, int *status)
{
    ENTER_DEVICE(device, gpu);
    struct gpu *peer = other_gpu(other);
    if (peer == NULL || capability != P2P_NVLINK)
        return INVALID_ARGUMENT;
    if (!gpu->has_nvlink && !peer->has_nvlink && !gpu->has_numa)
        return NOT_SUPPORTED;
    *status = gpu->has_nvlink && peer->has_nvlink && gpu->nvlink == peer->nvlink ? P2P_OK : P2P_NOT_SUPPORTED;
    return SUCCESS;
}

int nvmlDeviceGetTopologyCommonAncestor(device_t device, device_t other, int *level)
{
    ENTER_DEVICE(device, gpu);
    struct gpu *peer = other_gpu(other);
    if (peer == NULL)
        return INVALID_ARGUMENT;
    if (!gpu->has_numa || !peer->has_numa)
        return NOT_SUPPORTED;
    *level = gpu->numa == peer->numa ? TOPOLOGY_NODE : TOPOLOGY_SYSTEM;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE(device, gpu);
    if (!gpu->has_mig)
        return NOT_SUPPORTED;
    *current = *pending = gpu->mig;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *count)
{
    ENTER_DEVICE(device, gpu);
    *count = gpu->has_mig ? MAX_MIG_DEVICES : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned place, device_t *found)
{
    ENTER_DEVICE(device, gpu);
    if (gpu->parent >= 0 || place >= MAX_MIG_DEVICES)
        return INVALID_ARGUMENT;
    if (!gpu->has_mig || !gpu->mig)
        return NOT_SUPPORTED;
    if (mig_device(index_, place) == NULL)
        return NOT_FOUND;
    *found = (device_t)&mig_handles[index_][place];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(device_t device, unsigned *id)
{
    ENTER_DEVICE(device, gpu);
    if (gpu->parent < 0)
        return NOT_SUPPORTED;
    *id = gpu->gpu_instance;
    return SUCCESS;
}

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    unsigned long long memory_mb;
};

int nvmlDeviceGetAttributes_v2(device_t device, struct attributes *attributes)
{
    ENTER_DEVICE(device, gpu);
    if (gpu->parent < 0)
        return NOT_SUPPORTED;
    memset(attributes, 0, sizeof *attributes);
    attributes->gpu_slices = attributes->compute_slices = gpu->slices;
    attributes->memory_mb = gpu->total >> 20;
    return SUCCESS;
}

int nvmlDeviceGetPersistenceMode(device_t device, unsigned *mode)
{
    ENTER_DEVICE(device, gpu);
    if (!gpu->has_persistence)
        return NOT_SUPPORTED;
    *mode = gpu->persistence;
    return SUCCESS;
}

static FILE *open_modes(const char *how)
{
    char path[4 * TEXT];
    snprintf(path, sizeof path, "%s.modes", getenv("FAKE_NVML_STATE"));
    return fopen(path, how);
}

static unsigned mode_of(const struct gpu *gpu)
{
    char uuid[TEXT];
    unsigned mode = gpu->compute_mode, kept;
    FILE *file = open_modes("r");
    while (file && fscanf(file, "%127s %u", uuid, &kept) == 2)
        if (strcmp(uuid, gpu->uuid) == 0)
            mode = kept;
    if (file)
        fclose(file);
    return mode;
}

int nvmlDeviceSetComputeMode(device_t device, unsigned mode)
{
    ENTER_DEVICE(device, gpu);
    if (state.unprivileged)
        return NO_PERMISSION;
    if (!gpu->has_compute_mode)
        return NOT_SUPPORTED;
    if (mode > 3 || mode == 1)
        return INVALID_ARGUMENT;
    FILE *file = open_modes("a");
    if (file == NULL)
        fail("cannot keep compute modes");
    fprintf(file, "%s %u\n", gpu->uuid, mode);
    fclose(file);
    return SUCCESS;
}

int nvmlDeviceGetComputeMode(device_t device, unsigned *mode)
{
    ENTER_DEVICE(device, gpu);
    if (!gpu->has_compute_mode)
        return NOT_SUPPORTED;
    *mode = mode_of(gpu);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor)
{
    ENTER_DEVICE(device, gpu);
    if (!gpu->has_capability)
        return NOT_SUPPORTED;
    *major = gpu->major;
    *minor = gpu->minor;
    return SUCCESS;
}

/* As the driver does it: the count first (too small a room), then the list. */
static int list_processes(const struct gpu *gpu, enum kind kind, unsigned *count, struct process_info *infos)
{
    unsigned found = 0, room = *count;
    if (gpu->mig)
        return NO_PERMISSION;
    for (int i = 0; i < gpu->process_count; i++) {
        if (gpu->processes[i].kind != kind)
            continue;
        if (found < room && infos)
            infos[found] = (struct process_info){gpu->processes[i].pid, gpu->processes[i].bytes, ~0U, ~0U};
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESS_LIST(function, kind)                                                 \
    int function(device_t device, unsigned *count, struct process_info *infos)       \
    {                                                                                \
        ENTER_DEVICE(device, gpu);                                                   \
        return list_processes(gpu, kind, count, infos);                              \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS)

/* Only samples after a time; the count first (INSUFFICIENT_SIZE), then the list. */
int nvmlDeviceGetProcessUtilization(
    device_t device, struct sample *samples, unsigned *count, unsigned long long since)
{
    unsigned found = 0, room = samples ? *count : 0;
    ENTER_DEVICE(device, gpu);
    if (!gpu->tells_samples || gpu->mig || gpu->parent >= 0)
        return NOT_SUPPORTED;
    for (int i = 0; i < gpu->sample_count; i++) {
        if (gpu->samples[i].at <= since)
            continue;
        if (found < room)
            samples[found] = gpu->samples[i];
        found++;
    }
    *count = found;
    if (found == 0)
        return gpu->silent_samples ? SUCCESS : NOT_FOUND;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* As nvml.h has them since r615. */
struct set_memory_limits { const char *cgroup; unsigned long long soft, hard; };
struct get_memory_limits { const char *cgroup; unsigned long long soft, hard, used; };

enum { MAX_LIMITS = 256, LONG_TEXT = 512 };
static const unsigned long long NO_LIMIT = ~0ULL;

struct limit {
    char uuid[TEXT], cgroup[LONG_TEXT];
    unsigned long long soft, hard;
};

/* The same in every process, as the kernel's would be. */
static struct limit limits[MAX_LIMITS];
static int limit_count;

static FILE *open_limits(void)
{
    char path[LONG_TEXT];
    snprintf(path, sizeof path, "%s.limits", getenv("FAKE_NVML_STATE"));
    FILE *file = fopen(path, "a+");
    if (file == NULL || flock(fileno(file), LOCK_EX) != 0)
        fail("cannot keep limits in %s", path);
    rewind(file);
    struct limit one;
    limit_count = 0;
    while (fscanf(file, "%127s %llu %llu %511[^\n]", one.uuid, &one.soft, &one.hard, one.cgroup) == 4) {
        if (limit_count == MAX_LIMITS)
            fail("too many limits");
        limits[limit_count++] = one;
    }
    return file;
}

static void keep_limits(FILE *file)
{
    if (ftruncate(fileno(file), 0) != 0)
        fail("cannot write limits");
    for (int i = 0; i < limit_count; i++)
        fprintf(file, "%s %llu %llu %s\n", limits[i].uuid, limits[i].soft, limits[i].hard, limits[i].cgroup);
}

static struct limit *find_limit(const char *uuid, const char *cgroup)
{
    for (int i = 0; i < limit_count; i++)
        if (strcmp(limits[i].uuid, uuid) == 0 && strcmp(limits[i].cgroup, cgroup) == 0)
            return &limits[i];
    return NULL;
}

static int check_cgroup(const struct gpu *gpu, const char *cgroup)
{
    struct stat found;
    size_t length = strlen(state.cgroups);
    if (length == 0 || (gpu->has_mig && gpu->mig))
        return NOT_SUPPORTED;
    if (cgroup == NULL || strncmp(cgroup, state.cgroups, length) != 0)
        return INVALID_ARGUMENT;
    return stat(cgroup, &found) == 0 && S_ISDIR(found.st_mode) ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceSetMemoryLimits_v1(device_t device, const struct set_memory_limits *wanted)
{
    ENTER_DEVICE(device, gpu);
    int code = check_cgroup(gpu, wanted->cgroup);
    if (code != SUCCESS)
        return code;
    if (state.unprivileged)
        return NO_PERMISSION;
    if (wanted->soft > wanted->hard)
        return INVALID_ARGUMENT;
    if (state.ignore_limits)
        return SUCCESS;
    FILE *file = open_limits();
    struct limit *limit = find_limit(gpu->uuid, wanted->cgroup);
    if (wanted->soft == 0 && wanted->hard == NO_LIMIT) {
        if (limit)
            *limit = limits[--limit_count];
    } else {
        if (limit == NULL && limit_count == MAX_LIMITS)
            fail("too many limits");
        if (limit == NULL)
            limit = &limits[limit_count++];
        snprintf(limit->uuid, TEXT, "%s", gpu->uuid);
        snprintf(limit->cgroup, LONG_TEXT, "%s", wanted->cgroup);
        limit->soft = wanted->soft;
        limit->hard = wanted->hard;
    }
    keep_limits(file);
    fclose(file);
    return SUCCESS;
}

int nvmlDeviceGetMemoryLimits_v1(device_t device, struct get_memory_limits *answer)
{
    ENTER_DEVICE(device, gpu);
    int code = check_cgroup(gpu, answer->cgroup);
    if (code != SUCCESS)
        return code;
    FILE *file = open_limits();
    const struct limit *limit = find_limit(gpu->uuid, answer->cgroup);
    answer->soft = limit ? limit->soft : 0;
    answer->hard = limit ? limit->hard : NO_LIMIT;
    answer->used = 0;
    fclose(file);
    return SUCCESS;
}

/* One event set is enough for one program; of each GPU it knows how many errors it told. */
struct event { device_t device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
static struct event_set { int registered[MAX_GPUS], told[MAX_GPUS]; } event_set;

int nvmlEventSetCreate(struct event_set **set)
{
    ENTER(-1);
    memset(&event_set, 0, sizeof event_set);
    *set = &event_set;
    return SUCCESS;
}

int nvmlEventSetFree(struct event_set *set)
{
    ENTER(-1);
    memset(set, 0, sizeof *set);
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(device_t device, unsigned long long *types)
{
    ENTER_DEVICE(device, gpu);
    *types = gpu->parent < 0 ? XID_EVENTS : 0;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(device_t device, unsigned long long types, struct event_set *set)
{
    ENTER_DEVICE(device, gpu);
    if (gpu->parent >= 0 || types != XID_EVENTS)
        return NOT_SUPPORTED;
    set->registered[index_] = 1;
    set->told[index_] = gpu->xid_count;
    return SUCCESS;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event *event, unsigned milliseconds)
{
    (void)milliseconds; /* a test never waits: what is not there is not there */
    ENTER(-1);
    for (int i = 0; i < state.gpu_count; i++) {
        if (!set->registered[i] || set->told[i] >= state.gpus[i].xid_count)
            continue;
        unsigned number = state.gpus[i].xids[set->told[i]++];
        *event = (struct event){(device_t)&handles[i], XID_EVENTS, number, ~0U, ~0U};
        return SUCCESS;
    }
    return TIMEOUT;
}
