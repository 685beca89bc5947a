// Device memory, pinned memory, and copies.

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device.hpp"

namespace emulated {
namespace {

// Never destroyed: torch frees memory while the process ends.
std::mutex& lock() {
    static auto* made = new std::mutex;
    return *made;
}
std::map<char*, Area>& areas() {
    static auto* made = new std::map<char*, Area>;
    return *made;
}
std::map<char*, size_t>& pinned() {
    static auto* made = new std::map<char*, size_t>;
    return *made;
}

// The last entry that begins at or before `pointer`, or the end.
template <class Map>
typename Map::iterator before(Map& map, const void* pointer) {
    auto next = map.upper_bound((char*)pointer);
    return next == map.begin() ? map.end() : std::prev(next);
}

size_t whole_pages(size_t size) { return size ? (size + 4095) / 4096 * 4096 : 4096; }

bool is_pinned(const void* pointer) {
    std::lock_guard<std::mutex> guard(lock());
    auto entry = before(pinned(), pointer);
    return entry != pinned().end() && (char*)pointer < entry->first + entry->second;
}

}  // namespace

bool find_area(const void* pointer, Area* found) {
    std::lock_guard<std::mutex> guard(lock());
    auto entry = before(areas(), pointer);
    if (entry == areas().end() || (char*)pointer >= entry->first + entry->second.size) return false;
    *found = entry->second;
    return true;
}

char* as_the_device_sees(const void* pointer) {
    Area area;
    return find_area(pointer, &area) ? area.shadow + ((char*)pointer - area.base) : (char*)pointer;
}

Area map_area(int fd, size_t size, bool is_ours) {
    void* shadow = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    void* base = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    Area area{(char*)base, size, (char*)shadow, fd, current_device(), is_ours};
    std::lock_guard<std::mutex> guard(lock());
    areas()[area.base] = area;
    return area;
}

cudaError_t unmap_area(void* base) {
    Area area;
    if (!find_area(base, &area) || area.base != base)
        return fail(cudaErrorInvalidValue, "not the beginning of device memory");
    cudaDeviceSynchronize();
    std::lock_guard<std::mutex> guard(lock());
    areas().erase(area.base);
    munmap(area.shadow, area.size);
    munmap(area.base, area.size);
    close(area.fd);
    return cudaSuccess;
}

}  // namespace emulated

using namespace emulated;

EXPORT cudaError_t cudaMalloc(void** pointer, size_t size) {
    size = whole_pages(size);
    int fd = memfd_create("emulated-device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, size)) return fail(cudaErrorMemoryAllocation, "no memory");
    Area area = map_area(fd, size, true);
    memset(area.shadow, 0xA5, size);  // new memory is not zero
    *pointer = area.base;
    return cudaSuccess;
}

EXPORT cudaError_t cudaFree(void* pointer) { return pointer ? unmap_area(pointer) : cudaSuccess; }

EXPORT cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned) {
    size = whole_pages(size);
    void* made = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(made, 0x5A, size);
    std::lock_guard<std::mutex> guard(lock());
    pinned()[(char*)made] = size;
    *pointer = made;
    return cudaSuccess;
}

EXPORT cudaError_t cudaFreeHost(void* pointer) {
    std::lock_guard<std::mutex> guard(lock());
    auto entry = pinned().find((char*)pointer);
    if (entry == pinned().end()) return fail(cudaErrorInvalidValue, "not pinned memory");
    munmap(pointer, entry->second);
    pinned().erase(entry);
    return cudaSuccess;
}

EXPORT cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned) {
    std::lock_guard<std::mutex> guard(lock());
    pinned()[(char*)pointer] = size;
    return cudaSuccess;
}

EXPORT cudaError_t cudaHostUnregister(void* pointer) {
    std::lock_guard<std::mutex> guard(lock());
    pinned().erase((char*)pointer);
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *free = size_t(6) << 30;
    *total = size_t(8) << 30;
    return cudaSuccess;
}

EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* pointer) {
    memset(found, 0, sizeof *found);
    Area area;
    if (find_area(pointer, &area)) {
        found->type = cudaMemoryTypeDevice;
        found->device = area.device;
        found->devicePointer = (void*)pointer;
    } else {
        found->type = is_pinned(pointer) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
        found->hostPointer = (void*)pointer;
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpyAsync(
    void* target, const void* source, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
    if (!size) return cudaSuccess;
    Area area;
    bool to_device = find_area(target, &area), from_device = find_area(source, &area);
    bool fits = kind == cudaMemcpyDefault ||
                (to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
                 from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
    if (!fits) return fail(cudaErrorInvalidValue, "a copy of another kind than its pointers are");
    char *to = as_the_device_sees(target), *from = as_the_device_sees(source);
    if (from_device || is_pinned(source)) {
        put(stream, [=] { memcpy(to, from, size); });
    } else {  // ordinary memory of the host may change after the call
        auto data = std::make_shared<std::vector<char>>(from, from + size);
        put(stream, [=] { memcpy(to, data->data(), size); });
    }
    if (!to_device && !is_pinned(target)) wait_for(stream);
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpy(void* target, const void* source, size_t size, cudaMemcpyKind kind) {
    cudaError_t error = cudaMemcpyAsync(target, source, size, kind, nullptr);
    wait_for(nullptr);
    return error;
}

EXPORT cudaError_t cudaMemcpyPeerAsync(
    void* target, int, const void* source, int, size_t size, cudaStream_t stream) {
    return cudaMemcpyAsync(target, source, size, cudaMemcpyDeviceToDevice, stream);
}

EXPORT cudaError_t cudaMemsetAsync(void* target, int value, size_t size, cudaStream_t stream) {
    char* to = as_the_device_sees(target);
    put(stream, [=] { memset(to, value, size); });
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemset(void* target, int value, size_t size) {
    return cudaMemsetAsync(target, value, size, nullptr);
}
