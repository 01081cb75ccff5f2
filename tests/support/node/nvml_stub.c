/* A libnvidia-ml.so.1 for tests: it says what a file of lines says, read anew in each call.
 *
 *   driver VERSION
 *   gpu UUID MINOR BYTES BUS NAME...
 *   process GPU PID PERCENT BYTES
 *   xid GPU CODE           an event, delivered once to each process that loads the library
 *   lost GPU               its calls fail with "GPU is lost"
 *   unchecked GPU          its health cannot be checked
 *   hang FUNCTION          a call of it does not return
 *
 * GPU is an index. Functions and structures are those of the NVML API reference. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9, TIMED_OUT = 10, LOST = 15 };
enum { MOST = 64 };

struct gpu { char uuid[96], name[96], bus[32]; unsigned minor; unsigned long long memory; int lost, unchecked; };
struct process { unsigned gpu, pid, percent; unsigned long long bytes; };
struct xid { unsigned gpu; unsigned long long code; };
static struct { char driver[80], hang[64]; struct gpu gpus[MOST]; struct process processes[MOST]; struct xid xids[MOST];
                unsigned gpu_count, process_count, xid_count; } state;
static unsigned delivered;
static unsigned long long now;

static int look(const char *function) {
    char line[512];
    FILE *file = fopen(STATE, "r");
    memset(&state, 0, sizeof state);
    if (!file) return NO_DRIVER;
    while (fgets(line, sizeof line, file)) {
        struct gpu *gpu = &state.gpus[state.gpu_count];
        struct process *process = &state.processes[state.process_count];
        struct xid *xid = &state.xids[state.xid_count];
        unsigned index;
        if (sscanf(line, "driver %79s", state.driver) == 1) continue;
        if (sscanf(line, "gpu %95s %u %llu %31s %95[^\n]", gpu->uuid, &gpu->minor, &gpu->memory, gpu->bus, gpu->name) == 5)
            state.gpu_count++;
        else if (sscanf(line, "process %u %u %u %llu", &process->gpu, &process->pid, &process->percent, &process->bytes) == 4)
            state.process_count++;
        else if (sscanf(line, "xid %u %llu", &xid->gpu, &xid->code) == 2) state.xid_count++;
        else if (sscanf(line, "lost %u", &index) == 1) state.gpus[index].lost = 1;
        else if (sscanf(line, "unchecked %u", &index) == 1) state.gpus[index].unchecked = 1;
        else sscanf(line, "hang %63s", state.hang);
    }
    fclose(file);
    while (!strcmp(state.hang, function)) pause();
    return state.driver[0] ? OK : NO_DRIVER;
}

#define LOOK() do { int found = look(__func__); if (found) return found; } while (0)
#define GPU(handle) (&state.gpus[(unsigned long)(handle) - 1])

int nvmlInitWithFlags(unsigned flags) { (void)flags; LOOK(); return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    return code == NO_DRIVER ? "Driver Not Loaded" : code == LOST ? "GPU is lost" : "an error";
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) { LOOK(); snprintf(text, size, "%s", state.driver); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { LOOK(); *count = state.gpu_count; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { LOOK(); *handle = (void *)(unsigned long)(index + 1); return OK; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) { LOOK(); snprintf(text, size, "%s", GPU(handle)->uuid); return OK; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) { LOOK(); snprintf(text, size, "%s", GPU(handle)->name); return OK; }
int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) { LOOK(); *minor = GPU(handle)->minor; return OK; }

struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) { LOOK(); memory->total = GPU(handle)->memory; return OK; }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci) { LOOK(); strcpy(pci->bus_id, GPU(handle)->bus); return OK; }

int nvmlEventSetCreate(void **set) { *set = &state; return OK; }
int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) {
    (void)types; (void)set; LOOK();
    return GPU(handle)->unchecked ? UNSUPPORTED : OK;
}
struct event { void *device; unsigned long long type, data; unsigned gi, ci; };
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned ms) {
    (void)set; (void)ms; LOOK();
    if (delivered >= state.xid_count) return TIMED_OUT;
    event->device = (void *)(unsigned long)(state.xids[delivered].gpu + 1);
    event->type = 8; /* nvmlEventTypeXidCriticalError */
    event->data = state.xids[delivered++].code;
    return OK;
}

struct running { unsigned pid; unsigned long long bytes; unsigned gi, ci; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct running *found) {
    unsigned room = *count, used = 0, i;
    LOOK();
    if (GPU(handle)->lost) return LOST;
    for (i = 0; i < state.process_count; i++)
        if (state.processes[i].gpu + 1 == (unsigned long)handle) {
            if (found && used < room) { found[used].pid = state.processes[i].pid; found[used].bytes = state.processes[i].bytes; }
            used++;
        }
    *count = used;
    return used > room ? TOO_SMALL : OK;
}

struct sample { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; };
int nvmlDeviceGetProcessUtilization(void *handle, struct sample *found, unsigned *count, unsigned long long seen) {
    unsigned room = *count, used = 0, i;
    (void)seen; LOOK();
    now++;
    for (i = 0; i < state.process_count; i++)
        if (state.processes[i].gpu + 1 == (unsigned long)handle && state.processes[i].percent) {
            if (found && used < room) { found[used].pid = state.processes[i].pid; found[used].sm = state.processes[i].percent; found[used].time = now; }
            used++;
        }
    *count = used;
    return !used ? NOT_FOUND : used > room ? TOO_SMALL : OK;
}
