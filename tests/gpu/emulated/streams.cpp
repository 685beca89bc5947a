// Streams: each a thread that takes one step after the other.

#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "device.hpp"

namespace emulated {
namespace {

class Stream {
  public:
    explicit Stream(int device) : device(device) {
        std::thread([this] { live(); }).detach();
    }

    const int device;

    void put(std::function<void()> step) {
        std::lock_guard<std::mutex> guard(lock);
        steps.push_back(std::move(step));
        changed.notify_all();
    }

    void wait() {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [&] { return is_idle(); });
    }

    bool is_over() {
        std::lock_guard<std::mutex> guard(lock);
        return is_idle();
    }

  private:
    bool is_idle() const { return steps.empty() && !is_busy; }

    void live() {
        const char* given = getenv("EMULATED_DELAY");
        const int longest = given ? atoi(given) : 300;
        std::mt19937 random{std::random_device{}()};
        for (;;) {
            std::function<void()> step;
            {
                std::unique_lock<std::mutex> guard(lock);
                is_busy = false;
                changed.notify_all();
                changed.wait(guard, [&] { return !steps.empty(); });
                step = std::move(steps.front());
                steps.pop_front();
                is_busy = true;
            }
            if (longest) usleep(random() % (longest + 1));
            step();
        }
    }

    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> steps;
    bool is_busy = false;
};

// Never destroyed: their threads run until the process ends.
std::mutex& streams_lock() {
    static auto* made = new std::mutex;
    return *made;
}
std::vector<Stream*>& streams() {
    static auto* made = new std::vector<Stream*>;
    return *made;
}

Stream* make_stream(int device) {
    streams().push_back(new Stream(device));
    return streams().back();
}

// The default stream waits for no other one, as torch has none that would wait for it.
Stream* stream_of(cudaStream_t handle) {
    if (handle != nullptr && handle != cudaStreamLegacy && handle != cudaStreamPerThread)
        return (Stream*)handle;
    static auto* made = new std::map<int, Stream*>;
    std::lock_guard<std::mutex> guard(streams_lock());
    Stream*& stream = (*made)[current_device()];
    if (!stream) stream = make_stream(current_device());
    return stream;
}

}  // namespace

void put(cudaStream_t stream, std::function<void()> step) { stream_of(stream)->put(std::move(step)); }
void wait_for(cudaStream_t stream) { stream_of(stream)->wait(); }

}  // namespace emulated

using namespace emulated;

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
    std::lock_guard<std::mutex> guard(streams_lock());
    *stream = (cudaStream_t)make_stream(current_device());
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return stream_of(stream)->is_over() ? cudaSuccess : fail(cudaErrorNotReady, "");
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    wait_for(stream);
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaStreamSynchronize(stream); }

EXPORT cudaError_t cudaDeviceSynchronize() {
    std::vector<Stream*> all;
    {
        std::lock_guard<std::mutex> guard(streams_lock());
        all = streams();
    }
    for (Stream* stream : all)
        if (stream->device == current_device()) stream->wait();
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
    *priority = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t,
    cudaStreamCaptureStatus* status,
    unsigned long long* id,
    cudaGraph_t*,
    const cudaGraphNode_t**,
    const cudaGraphEdgeData**,
    size_t*) {
    *status = cudaStreamCaptureStatusNone;
    if (id) *id = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    static thread_local cudaStreamCaptureMode own = cudaStreamCaptureModeGlobal;
    std::swap(*mode, own);
    return cudaSuccess;
}

EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    put(stream, [=] { function(data); });
    return cudaSuccess;
}

// For nccl.cpp and operators.cpp.
EXPORT void emulated_put(cudaStream_t stream, std::function<void()>* step) { put(stream, *step); }
EXPORT char* emulated_memory(const void* pointer) { return as_the_device_sees(pointer); }
