// An emulated CUDA device, for a torch that was built for real ones.
//
// What a host must not do is impossible here: its pointers to device memory lead to pages it may not
// touch, and the device itself sees the same memory through a second mapping. What a device does later
// is done later: each stream is a thread that waits a random moment before each step. So a copy that is
// read before its event, or memory that is used again too early, shows as wrong data or a crash.
//
// EMULATED_DEVICES: how many there are (1). EMULATED_DELAY: the longest of those moments, in us (300).

#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace emulated {

int devices();

// -- memory

struct Area {
    char* base;  // what the host gets; its pages are closed to it
    size_t size;
    char* shadow;  // the same memory, as the device sees it
    int fd;
    int device;
    bool is_ours;  // not another process's
};

// Whether `pointer` is into device memory, and into which.
bool find_area(const void* pointer, Area* found);
// Where the device finds what `pointer` means; pointers of the host mean themselves.
char* as_the_device_sees(const void* pointer);
// Maps the memory behind `fd`, which it then owns, on the current device.
Area map_area(int fd, size_t size, bool is_ours);
cudaError_t unmap_area(void* base);

// -- streams

// `step` runs on the stream's thread, after all that was put there before and a moment more.
void put(cudaStream_t stream, std::function<void()> step);
void wait_for(cudaStream_t stream);

// -- errors

int current_device();
// Remembers the error, and says on stderr what went wrong.
cudaError_t fail(cudaError_t error, const char* what);

}  // namespace emulated
