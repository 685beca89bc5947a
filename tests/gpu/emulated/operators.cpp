// torch's operators on tensors of an emulated device, which has no kernels to launch.
//
// Each is computed when the current stream has come to it, on what is in the memory by then and in the
// memory itself; what results have which shape, torch's kernels for "meta" tensors tell beforehand. Where
// they do not (the values decide, or there is none), and where numbers are drawn, the call waits for the
// stream and computes on copies, and what it writes arrives as the stream's next step. What torch does by
// copies alone (contiguous ones, events, views) is left to torch.

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ParallelGuard.h>
#include <torch/library.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

extern "C" void emulated_put(cudaStream_t, std::function<void()>*);
extern "C" char* emulated_memory(const void*);

namespace {

using at::Tensor;
using c10::IValue;
using Values = std::vector<IValue>;

void have_bits_of(const Tensor& changed, const Tensor& tensor) {
    changed._set_conj(tensor.is_conj());
    changed._set_neg(tensor.is_neg());
}

// `tensor` as the device sees it. Keeps no memory alive, as a kernel does not.
Tensor there(const Tensor& tensor) {
    auto seen = at::from_blob(
        emulated_memory(tensor.data_ptr()), tensor.sizes(), tensor.strides(),
        tensor.options().device(at::kCPU).pinned_memory(false));
    have_bits_of(seen, tensor);
    return seen;
}

// `step`, when the device's current stream has come to it.
void later(c10::Device device, const std::string& name, std::function<void()> step) {
    c10::cuda::CUDAGuard guard(device);
    std::function<void()> kernel = [name, step = std::move(step)] {
        c10::ParallelGuard alone(true);  // a pool of threads for each stream would be too many
        at::AutoDispatchBelowADInplaceOrView below;
        try {
            step();
        } catch (const std::exception& error) {
            fprintf(stderr, "emulated device: %s has failed: %s\n", name.c_str(), error.what());
            abort();  // the call is over, and nobody asks
        }
    };
    emulated_put(c10::cuda::getCurrentCUDAStream(), &kernel);
}

// The values that `tensor` has when the current stream has done all it was asked to do.
Tensor on_the_host(const Tensor& tensor) {
    c10::cuda::CUDAGuard guard(tensor.device());
    c10::cuda::getCurrentCUDAStream().synchronize();
    int64_t span = tensor.numel() != 0;  // by memory and not by element: some may share theirs
    for (int64_t i = 0; span && i < tensor.dim(); i++)
        span += (tensor.size(i) - 1) * tensor.stride(i);
    auto host = there(tensor.as_strided({span}, {1})).clone().as_strided(tensor.sizes(), tensor.strides());
    have_bits_of(host, tensor);
    return host;
}

// What of the CPU an operator on a device reads: at the call.
Tensor kept(const Tensor& tensor) {
    auto copy = tensor.clone();
    bool is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    copy.unsafeGetTensorImpl()->set_wrapped_number(is_number);  // whose dtype counts less
    return copy;
}

void write(const Tensor& target, const Tensor& values) {
    later(target.device(), "a result", [seen = there(target), values] { seen.copy_(values); });
}

Tensor like(const Tensor& tensor, c10::Device device) {
    return at::empty_strided(
        tensor.sizes(), tensor.strides(), tensor.options().device(device).pinned_memory(false));
}

std::vector<Tensor> tensors_of(const Values& values) {
    std::vector<Tensor> found;
    for (const auto& value : values) {
        if (value.isTensor()) found.push_back(value.toTensor());
        if (value.isTensorList())
            for (const Tensor& each : value.toTensorVector()) found.push_back(each);
    }
    return found;
}

class Call {
    using Change = std::function<Tensor(const Tensor&)>;
    using Pairs = std::vector<std::pair<Tensor, Tensor>>;

  public:
    Call(const c10::OperatorHandle& op, Values arguments) : op(op), arguments(std::move(arguments)) {
        const auto& declared = op.schema().arguments();
        for (size_t i = 0; i < declared.size(); i++) {
            const auto* alias = declared[i].alias_info();
            for (const Tensor& tensor : tensors_of({this->arguments[i]}))
                if (alias && alias->isWrite() && tensor.defined()) written.push_back(tensor);
        }
    }

    Values run() {
        check_devices();
        auto results = foreseen();
        if (!results) return at_once();
        std::vector<Tensor> targets;
        for (const Tensor& result : tensors_of(*results)) {
            bool is_own = !result.defined() || was_written(result);
            targets.push_back(is_own ? Tensor() : there(result));
        }
        auto given = mapped(at::kCPU, [](const Tensor& t) { return t.is_cuda() ? there(t) : kept(t); });
        later(*device, op.schema().name(), [op = op, given, targets] {
            torch::jit::Stack stack(given);
            op.callBoxed(stack);
            auto results = tensors_of(stack);
            for (size_t i = 0; i < targets.size(); i++)
                if (targets[i].defined() && results[i].defined()) targets[i].copy_(results[i]);
        });
        return *results;
    }

  private:
    bool was_written(const Tensor& tensor) const {
        for (const Tensor& each : written)
            if (each.is_same(tensor)) return true;
        return false;
    }

    // What the call returns, still without values; nothing where only the values can tell.
    std::optional<Values> foreseen() {
        for (const auto& value : op.schema().returns())
            if (!value.type()->isSubtypeOf(*c10::TensorType::get()) &&
                !value.type()->isSubtypeOf(*c10::ListType::ofTensors()))
                return {};
        if (op.hasTag(at::Tag::nondeterministic_seeded)) return {};
        Pairs pairs;
        torch::jit::Stack stack = mapped(at::kMeta, [&](const Tensor& tensor) {
            return once(pairs, tensor, [](const Tensor& t) { return like(t, at::kMeta); });
        });
        TORCH_CHECK(device, "emulated device: ", op.schema().name(), " names none");
        try {
            op.callBoxed(stack);
        } catch (const std::exception&) {  // may be one of Python's
            return {};
        }
        for (auto& [tensor, meta] : pairs)
            if (tensor.sizes() != meta.sizes()) tensor.resize_(meta.sizes());
        return each_of(stack, [&](const Tensor& result) {
            for (auto& [tensor, meta] : pairs)
                if (meta.is_same(result)) return tensor;
            return like(result, *device);
        });
    }

    Values at_once() {
        Pairs pairs;
        torch::jit::Stack stack =
            mapped(at::kCPU, [&](const Tensor& tensor) { return once(pairs, tensor, on_the_host); });
        op.callBoxed(stack);
        for (auto& [tensor, host] : pairs) {
            if (!was_written(tensor)) continue;
            if (tensor.sizes() != host.sizes()) tensor.resize_(host.sizes());
            write(tensor, host);
        }
        return each_of(stack, [&](const Tensor& result) {
            for (auto& [tensor, host] : pairs)
                if (host.is_same(result)) return tensor;
            auto made = like(result, *device);
            write(made, result);
            return made;
        });
    }

    // CUDA tensors changed, each once, as often as it is given.
    static Tensor once(Pairs& pairs, const Tensor& tensor, const Change& change) {
        if (!tensor.is_cuda()) return tensor;
        for (auto& [known, changed] : pairs)
            if (known.is_same(tensor)) return changed;
        return pairs.emplace_back(tensor, change(tensor)).second;
    }

    // Raises where CUDA does; numbers, and what tells where to look, may be on the CPU.
    void check_devices() const {
        std::string name = op.schema().name();
        bool may_differ = name.find("index") != std::string::npos || name == "aten::_foreach_copy_";
        for (const Tensor& tensor : tensors_of(arguments))
            TORCH_CHECK(
                !tensor.defined() || tensor.is_cuda() || may_differ ||
                    (tensor.dim() == 0 && !was_written(tensor)),
                "Expected all tensors to be on the same device: ", name, " of one on ",
                tensor.device(), " and one on a device");
    }

    // The arguments, with `change` for each tensor and `place` for the device.
    Values mapped(c10::Device place, const Change& change) {
        auto checked = [&](const Tensor& tensor) {
            if (!tensor.is_cuda()) return change(tensor);
            TORCH_CHECK(
                !device || *device == tensor.device(),
                "Expected all tensors to be on the same device: ", op.schema().name(), " of ", *device,
                " and ", tensor.device());
            device = tensor.device();
            return change(tensor);
        };
        Values made = each_of(arguments, checked);
        for (auto& value : made) {
            if (value.isDevice() && value.toDevice().is_cuda()) {
                device = value.toDevice();
                value = place;
            } else if (value.isGenerator()) {
                value = IValue();
            }
        }
        return made;
    }

    static Values each_of(const Values& values, const Change& change) {
        auto changed = [&](const Tensor& tensor) { return tensor.defined() ? change(tensor) : tensor; };
        Values made;
        for (const auto& value : values) {
            if (value.isTensor()) {
                made.push_back(changed(value.toTensor()));
            } else if (value.isTensorList()) {
                c10::List<Tensor> list;
                for (const Tensor& each : value.toTensorVector()) list.push_back(changed(each));
                made.push_back(list);
            } else if (value.isOptionalTensorList()) {
                c10::List<std::optional<Tensor>> list;
                for (std::optional<Tensor> each : value.toOptionalTensorList().vec())
                    list.push_back(each ? std::optional(changed(*each)) : std::nullopt);
                made.push_back(list);
            } else {
                made.push_back(value);
            }
        }
        return made;
    }

    const c10::OperatorHandle& op;
    const Values arguments;
    std::vector<Tensor> written;
    std::optional<c10::Device> device;
};

void emulate(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    size_t count = op.schema().arguments().size();
    auto last = torch::jit::last(*stack, count);
    Values arguments(last.begin(), last.end());
    torch::jit::drop(*stack, count);
    for (auto& value : Call(op, std::move(arguments)).run()) stack->push_back(value);
}

bool is_plain(const Tensor& tensor) {
    return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
    TORCH_CHECK(
        at::is_expandable_to(source.sizes(), self.sizes()), "a tensor of sizes ", source.sizes(),
        " cannot be copied to ", self.sizes());
    if (!self.numel()) return self;
    if (self.scalar_type() == source.scalar_type() && is_plain(self) && is_plain(source) &&
        self.sizes() == source.sizes())
        return at::native::copy_(self, source, non_blocking);
    if (self.device() == source.device()) {
        later(self.device(), "a copy", [to = there(self), from = there(source)] { to.copy_(from); });
        return self;
    }
    // Made alike where the source is, and moved as a whole, as torch does.
    auto alike = at::empty(self.sizes(), source.options().dtype(self.scalar_type()).pinned_memory(false));
    alike.copy_(source);
    auto moved = is_plain(self) ? self : at::empty(self.sizes(), self.options().pinned_memory(false));
    at::native::copy_(moved, alike, non_blocking);
    if (!moved.is_same(self)) self.copy_(moved);
    return self;
}

// Which only allocate, look or arrange.
const std::set<std::string> kTorchs = {
    "aten::empty",  "aten::empty_strided", "aten::set_",      "aten::resize_",
    "aten::copy_",  "aten::record_stream", "aten::is_pinned", "aten::_local_scalar_dense",
    "aten::_pin_memory"};

bool is_a_view(const c10::FunctionSchema& schema) {
    for (const auto& value : schema.returns())
        if (value.alias_info() && !value.alias_info()->isWrite()) return true;
    return false;
}

struct Registration {
    torch::Library library{
        torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__};

    Registration() {
        library.impl("copy_", TORCH_FN(copy));
        auto& dispatcher = c10::Dispatcher::singleton();
        for (const auto& name : dispatcher.getAllOpNames()) {
            if (name.name.rfind("aten::", 0) || kTorchs.count(name.name)) continue;
            auto op = dispatcher.findSchema(name);
            if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) || is_a_view(op->schema()))
                continue;
            std::string full = name.name + (name.overload_name.empty() ? "" : ".") + name.overload_name;
            library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&emulate>());
        }
    }
};
auto* registration = new Registration;  // not given back before torch's own end

}  // namespace
