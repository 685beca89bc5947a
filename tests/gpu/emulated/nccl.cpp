// NCCL for emulated devices: operations are steps of the stream, and meet in a file that ranks share.
//
// As with NCCL a send ends when its receive has taken it, and two ranks on one device of one host are refused.

#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" void emulated_put(cudaStream_t, std::function<void()>*);
extern "C" char* emulated_memory(const void*);

namespace {

constexpr int kRanks = 8;
constexpr size_t kBytes = size_t(512) << 20;  // the longest operand; the file is sparse

struct Letter {
    std::atomic<long> sent, taken;
    size_t size;
};

struct Head {
    std::atomic<long> arrived;
    int device[kRanks];
    Letter letters[kRanks][kRanks];
};

enum class Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kRecv };

struct Operation {
    Kind kind;
    ncclComm* group;
    cudaStream_t stream;
    const void* input;
    void* output;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t reduction = ncclSum;
    int rank = 0;  // the root, or the other end
    bool is_over = false;
};

thread_local std::string error;
thread_local int depth = 0;
thread_local std::vector<Operation> gathered;

}  // namespace

struct ncclComm {
    int rank, size;
    Head* head;
    char* data;
    std::atomic<bool> is_aborted{false};
    long meetings = 0;

    char* operand(int of) { return data + of * kBytes; }
    char* letter(int from, int to) { return data + (kRanks + from * kRanks + to) * kBytes; }
    Letter& between(int from, int to) { return head->letters[from][to]; }

    // False where the group is given up while the others are awaited.
    template <class Condition>
    bool until(Condition is_so) {
        while (!is_so() && !is_aborted) usleep(30);
        return !is_aborted;
    }
    bool meet() {
        long all = ++meetings * size;
        head->arrived++;
        return until([&] { return head->arrived >= all; });
    }
};

namespace {

template <class T>
struct Plain {
    using Value = T;
    static T get(const char* data, size_t i) { return ((const T*)data)[i]; }
    static void set(char* data, size_t i, T value) { ((T*)data)[i] = value; }
};

struct Half {
    using Value = float;
    static float get(const char* data, size_t i) { return ((const _Float16*)data)[i]; }
    static void set(char* data, size_t i, float value) { ((_Float16*)data)[i] = value; }
};

struct Brain {
    using Value = float;
    static float get(const char* data, size_t i) {
        uint32_t bits = uint32_t(((const uint16_t*)data)[i]) << 16;
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
    static void set(char* data, size_t i, float value) {
        uint32_t bits;
        memcpy(&bits, &value, 4);
        ((uint16_t*)data)[i] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
};

template <class T>
T combine(T one, T other, ncclRedOp_t reduction) {
    switch (reduction) {
        case ncclProd: return one * other;
        case ncclMax: return other > one ? other : one;
        case ncclMin: return other < one ? other : one;
        default: return one + other;
    }
}

template <class Access>
void reduce_as(const Operation& op, size_t start, char* output) {
    for (size_t i = 0; i < op.count; i++) {
        auto value = Access::get(op.group->operand(0), start + i);
        for (int rank = 1; rank < op.group->size; rank++)
            value = combine<typename Access::Value>(
                value, Access::get(op.group->operand(rank), start + i), op.reduction);
        Access::set(output, i, value);
    }
}

void reduce(const Operation& op, size_t start, char* output) {
    switch (op.type) {
        case ncclInt8: return reduce_as<Plain<int8_t>>(op, start, output);
        case ncclUint8: return reduce_as<Plain<uint8_t>>(op, start, output);
        case ncclInt32: return reduce_as<Plain<int32_t>>(op, start, output);
        case ncclInt64: return reduce_as<Plain<int64_t>>(op, start, output);
        case ncclFloat16: return reduce_as<Half>(op, start, output);
        case ncclBfloat16: return reduce_as<Brain>(op, start, output);
        case ncclFloat32: return reduce_as<Plain<float>>(op, start, output);
        case ncclFloat64: return reduce_as<Plain<double>>(op, start, output);
        default: fprintf(stderr, "emulated NCCL reduces no type %d\n", op.type), abort();
    }
}

size_t itemsize(ncclDataType_t type) {
    switch (type) {
        case ncclFloat16: case ncclBfloat16: return 2;
        case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
        case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
        default: return 1;
    }
}

void collective(const Operation& op) {
    ncclComm& group = *op.group;
    char* output = emulated_memory(op.output);
    size_t size = op.count * itemsize(op.type);
    size_t given = op.kind == Kind::kReduceScatter ? size * group.size : size;
    if (given > kBytes) fprintf(stderr, "emulated NCCL: too long an operand\n"), abort();
    bool is_root = op.rank == group.rank;
    if (op.kind != Kind::kBroadcast || is_root)
        memcpy(group.operand(group.rank), emulated_memory(op.input), given);
    if (!group.meet()) return;
    switch (op.kind) {
        case Kind::kReduce:
            if (!is_root) break;
            [[fallthrough]];
        case Kind::kAllReduce: reduce(op, 0, output); break;
        case Kind::kReduceScatter: reduce(op, group.rank * op.count, output); break;
        case Kind::kBroadcast: memcpy(output, group.operand(op.rank), size); break;
        default:
            for (int rank = 0; rank < group.size; rank++)
                memcpy(output + rank * size, group.operand(rank), size);
    }
    group.meet();  // nobody fills an operand anew before all have read it
}

// One step of a message, if it can be made now; whether any was.
bool advance(Operation& op) {
    ncclComm& group = *op.group;
    size_t size = op.count * itemsize(op.type);
    if (op.kind == Kind::kSend) {
        Letter& letter = group.between(group.rank, op.rank);
        if (letter.sent != letter.taken) return false;
        letter.size = size;
        memcpy(group.letter(group.rank, op.rank), emulated_memory(op.input), size);
        letter.sent++;
    } else {
        Letter& letter = group.between(op.rank, group.rank);
        if (letter.sent == letter.taken) return false;
        if (letter.size != size) fprintf(stderr, "emulated NCCL: the sizes differ\n"), abort();
        memcpy(emulated_memory(op.output), group.letter(op.rank, group.rank), size);
        letter.taken++;
    }
    op.is_over = true;
    return true;
}

// Messages that were started as one go on beside each other; those between two ranks in their order.
void run(std::vector<Operation> together) {
    std::vector<Operation*> messages;
    for (auto& op : together) {
        if (op.kind < Kind::kSend) collective(op);
        else messages.push_back(&op);
    }
    for (size_t left = messages.size(); left;) {
        bool went_on = false, is_held[2][kRanks] = {};
        for (Operation* op : messages) {
            bool& held = is_held[op->kind == Kind::kSend][op->rank];
            if (op->is_over || held) continue;
            held = !advance(*op);
            if (!held) went_on = true, left--;
        }
        if (!went_on && !together[0].group->until([n = 0]() mutable { return n++; })) return;
    }
    for (Operation* op : messages)
        if (op->kind == Kind::kSend) {
            Letter& letter = op->group->between(op->group->rank, op->rank);
            if (!op->group->until([&] { return letter.sent == letter.taken; })) return;
        }
}

void start() {
    while (!gathered.empty()) {
        std::vector<Operation> together, others;
        for (auto& op : gathered)
            (op.stream == gathered[0].stream && op.group == gathered[0].group ? together : others)
                .push_back(op);
        std::function<void()> step = [together] { run(together); };
        emulated_put(together[0].stream, &step);
        gathered = others;
    }
}

ncclResult_t add(Operation op) {
    gathered.push_back(op);
    if (!depth) start();
    return ncclSuccess;
}

}  // namespace

EXPORT ncclResult_t ncclGetVersion(int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    static std::atomic<int> number{0};
    memset(id, 0, sizeof *id);
    snprintf(id->internal, 64, "/dev/shm/emulated-nccl-%d-%d", getpid(), ++number);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* made, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
    if (size > kRanks) return ncclInvalidArgument;
    size_t bytes = 65536 + kBytes * (kRanks + kRanks * kRanks);
    int fd = open(id.internal, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, bytes)) return ncclSystemError;
    int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_NORESERVE;
    char* memory = (char*)mmap(nullptr, bytes, protection, flags, fd, 0);
    close(fd);
    auto* group = new ncclComm{rank, size, (Head*)memory, memory + 65536};
    cudaGetDevice(&group->head->device[rank]);
    if (const char* host = getenv("NCCL_HOSTID"))
        group->head->device[rank] += std::hash<std::string_view>{}(host) % 100000 * 100;
    group->meet();
    if (rank == 0) unlink(id.internal);
    for (int other = 0; other < size; other++)
        for (int one = 0; one < other; one++)
            if (group->head->device[one] == group->head->device[other]) {
                error = "Duplicate GPU detected : rank " + std::to_string(one) + " and rank " +
                        std::to_string(other) + " both on CUDA device 1000";
                return ncclInvalidUsage;
            }
    *made = group;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* made, int size, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(made, size, id, rank, nullptr);
}

// Its operations may still run, so its memory stays until the process ends.
EXPORT ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
EXPORT ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }

EXPORT ncclResult_t ncclCommAbort(ncclComm_t group) {
    group->is_aborted = true;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* result) {
    *result = ncclSuccess;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommCount(const ncclComm_t group, int* size) {
    *size = group->size;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t group, int* rank) {
    *rank = group->rank;
    return ncclSuccess;
}

EXPORT const char* ncclGetErrorString(ncclResult_t result) {
    return result == ncclInvalidUsage ? "invalid usage" : "an error of the emulated NCCL";
}

EXPORT const char* ncclGetLastError(ncclComm_t) { return error.c_str(); }

EXPORT ncclResult_t ncclGroupStart() {
    depth++;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd() {
    if (!--depth) start();
    return ncclSuccess;
}

EXPORT ncclResult_t ncclAllReduce(
    const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
    ncclComm_t group, cudaStream_t stream) {
    return add({Kind::kAllReduce, group, stream, input, output, count, type, reduction});
}

EXPORT ncclResult_t ncclReduce(
    const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
    int root, ncclComm_t group, cudaStream_t stream) {
    return add({Kind::kReduce, group, stream, input, output, count, type, reduction, root});
}

EXPORT ncclResult_t ncclBroadcast(
    const void* input, void* output, size_t count, ncclDataType_t type, int root,
    ncclComm_t group, cudaStream_t stream) {
    return add({Kind::kBroadcast, group, stream, input, output, count, type, ncclSum, root});
}

EXPORT ncclResult_t ncclBcast(
    void* data, size_t count, ncclDataType_t type, int root, ncclComm_t group,
    cudaStream_t stream) {
    return ncclBroadcast(data, data, count, type, root, group, stream);
}

EXPORT ncclResult_t ncclAllGather(
    const void* input, void* output, size_t count, ncclDataType_t type, ncclComm_t group,
    cudaStream_t stream) {
    return add({Kind::kAllGather, group, stream, input, output, count, type});
}

EXPORT ncclResult_t ncclReduceScatter(
    const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
    ncclComm_t group, cudaStream_t stream) {
    return add({Kind::kReduceScatter, group, stream, input, output, count, type, reduction});
}

EXPORT ncclResult_t ncclSend(
    const void* input, size_t count, ncclDataType_t type, int to, ncclComm_t group,
    cudaStream_t stream) {
    return add({Kind::kSend, group, stream, input, nullptr, count, type, ncclSum, to});
}

EXPORT ncclResult_t ncclRecv(
    void* output, size_t count, ncclDataType_t type, int from, ncclComm_t group,
    cudaStream_t stream) {
    return add({Kind::kRecv, group, stream, nullptr, output, count, type, ncclSum, from});
}
