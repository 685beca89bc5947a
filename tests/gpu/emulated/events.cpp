// Events, and how other processes come to them and to device memory.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "device.hpp"

namespace emulated {
namespace {

struct Counts {
    std::atomic<long> recorded, reached;
};

struct Event {
    Counts* counts;
    int fd = -1;  // where other processes find the counts
    std::atomic<double> when{0};

    ~Event() {
        munmap(counts, 4096);
        close(fd);
    }
};

std::mutex& events_lock() {
    static auto* made = new std::mutex;
    return *made;
}
std::unordered_map<void*, std::shared_ptr<Event>>& events() {
    static auto* made = new std::unordered_map<void*, std::shared_ptr<Event>>;
    return *made;
}

cudaError_t keep(int fd, cudaEvent_t* handle) {
    auto event = std::make_shared<Event>();
    event->fd = fd;
    event->counts = (Counts*)mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *handle = (cudaEvent_t)event.get();
    std::lock_guard<std::mutex> guard(events_lock());
    events()[event.get()] = event;
    return cudaSuccess;
}

std::shared_ptr<Event> event_of(cudaEvent_t handle) {
    std::lock_guard<std::mutex> guard(events_lock());
    auto found = events().find((void*)handle);
    if (found != events().end()) return found->second;
    fprintf(stderr, "emulated device: an event that was destroyed, or never made\n");
    abort();
}

void await(const Event& event, long number) {
    while (event.counts->reached < number) usleep(30);
}

struct Handle {
    int pid, fd;
    size_t size;
};

template <class H>
void write_handle(H* handle, int fd, size_t size) {
    Handle found{getpid(), fd, size};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &found, sizeof found);
}

// Opens what another process offers; -1 where this one did, which CUDA refuses, or where it has gone.
template <class H>
int open_handle(const H& handle, size_t* size) {
    Handle given;
    memcpy(&given, &handle, sizeof given);
    *size = given.size;
    if (given.pid == getpid()) return -1;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", given.pid, given.fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

}  // namespace
}  // namespace emulated

using namespace emulated;

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    if (flags & cudaEventInterprocess && !(flags & cudaEventDisableTiming))
        return fail(cudaErrorInvalidValue, "an event for other processes takes no time");
    int fd = memfd_create("emulated-event", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 4096)) return fail(cudaErrorMemoryAllocation, "no memory");
    return keep(fd, event);
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
    std::lock_guard<std::mutex> guard(events_lock());
    events().erase((void*)event);  // steps that need it have it
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
    auto event = event_of(handle);
    long number = ++event->counts->recorded;
    put(stream, [=] {
        event->when = std::chrono::duration<double>(
            std::chrono::steady_clock::now().time_since_epoch()).count();
        long reached = event->counts->reached;
        while (reached < number && !event->counts->reached.compare_exchange_weak(reached, number)) {
        }
    });
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    return cudaEventRecord(event, stream);
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t handle) {
    Counts& counts = *event_of(handle)->counts;
    return counts.reached >= counts.recorded ? cudaSuccess : fail(cudaErrorNotReady, "");
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    auto event = event_of(handle);
    await(*event, event->counts->recorded);
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
    auto event = event_of(handle);
    long number = event->counts->recorded;
    put(stream, [=] { await(*event, number); });
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
    *ms = 1e3 * (event_of(end)->when - event_of(start)->when);
    return cudaSuccess;
}

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
    Area area;
    if (!find_area(pointer, &area) || !area.is_ours)
        return fail(cudaErrorInvalidValue, "no memory of this process's");
    write_handle(handle, area.fd, area.size);
    return cudaSuccess;
}

EXPORT cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned) {
    size_t size;
    int fd = open_handle(handle, &size);
    if (fd < 0) return fail(cudaErrorInvalidResourceHandle, "memory of this process's, or gone");
    *pointer = map_area(fd, size, false).base;
    return cudaSuccess;
}

EXPORT cudaError_t cudaIpcCloseMemHandle(void* pointer) { return unmap_area(pointer); }

EXPORT cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
    write_handle(handle, event_of(event)->fd, 4096);
    return cudaSuccess;
}

EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
    size_t size;
    int fd = open_handle(handle, &size);
    if (fd < 0) return fail(cudaErrorInvalidResourceHandle, "an event of this process's, or gone");
    return keep(fd, event);
}
