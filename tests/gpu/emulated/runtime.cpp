// The device itself, errors, and kernels, of which there are none: operators.cpp computes.

#include <cxxabi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>

#include "device.hpp"

namespace emulated {
namespace {

thread_local int device = 0;
thread_local cudaError_t last = cudaSuccess;

std::unordered_map<const void*, std::string>& kernels() {
    static auto* made = new std::unordered_map<const void*, std::string>;
    return *made;
}

cudaError_t refuse(const void* kernel) {
    int status;
    char* name = abi::__cxa_demangle(kernels()[kernel].c_str(), nullptr, nullptr, &status);
    return fail(cudaErrorNotSupported, name ? name : "an unknown kernel");
}

int nothing() { return cudaErrorNotSupported; }

}  // namespace

int devices() {
    static const char* given = getenv("EMULATED_DEVICES");
    return given ? atoi(given) : 1;
}

int current_device() { return device; }

cudaError_t fail(cudaError_t error, const char* what) {
    last = error;
    if (error != cudaErrorNotReady)
        fprintf(stderr, "emulated device, pid %d: error %d: %.300s\n", getpid(), error, what);
    return error;
}

}  // namespace emulated

using namespace emulated;

EXPORT cudaError_t cudaGetDeviceCount(int* count) {
    *count = devices();
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDevice(int* found) {
    *found = device;
    return cudaSuccess;
}

EXPORT cudaError_t cudaSetDevice(int chosen) {
    if (chosen < 0 || chosen >= devices()) return fail(cudaErrorInvalidDevice, "no such device");
    device = chosen;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

EXPORT cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int number) {
    memset(found, 0, sizeof *found);
    strcpy(found->name, "emulated device");
    memset(found->uuid.bytes, 1 + number, sizeof found->uuid.bytes);
    found->totalGlobalMem = size_t(8) << 30;
    found->major = 9;
    found->multiProcessorCount = 1;
    found->warpSize = 32;
    found->maxThreadsPerBlock = 1024;
    found->maxThreadsPerMultiProcessor = 2048;
    found->sharedMemPerBlock = 48 << 10;
    found->unifiedAddressing = 1;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9
             : attribute == cudaDevAttrUnifiedAddressing    ? 1
                                                            : 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int number) {
    snprintf(text, size, "0000:%02x:00.0", number + 1);
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int one, int other) {
    *can = one != other;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

EXPORT const char* cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorNotReady ? "cudaErrorNotReady" : "cudaErrorOfTheEmulatedDevice";
}

EXPORT const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorNotReady ? "device not ready" : "see what it wrote to stderr";
}

EXPORT cudaError_t cudaGetLastError() {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

EXPORT cudaError_t cudaPeekAtLastError() { return last; }

// torch asks for functions of the driver that it may never call.
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(
    const char*,
    void** function,
    unsigned,
    unsigned long long,
    cudaDriverEntryPointQueryResult* result) {
    *function = (void*)nothing;
    if (result) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

EXPORT void** __cudaRegisterFatBinary(void*) {
    static void* handle;
    return &handle;
}

EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT char __cudaInitModule(void**) { return 1; }
EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

EXPORT void __cudaRegisterFunction(
    void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
    kernels()[host] = name;
}

struct Call {
    dim3 grid, block;
    size_t memory;
    void* stream;
};
static thread_local Call call;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t memory, void* stream) {
    call = {grid, block, memory, stream};
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* memory, void* stream) {
    *grid = call.grid;
    *block = call.block;
    *memory = call.memory;
    *(void**)stream = call.stream;
    return cudaSuccess;
}

EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
    *kernel = (cudaKernel_t)host;
    return cudaSuccess;
}

EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
    return refuse((const void*)kernel);
}

EXPORT cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t) {
    return refuse(kernel);
}

EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void**) {
    return refuse(kernel);
}
