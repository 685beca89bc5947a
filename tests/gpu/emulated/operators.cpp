// torch's operators on tensors of an emulated device, which has no kernels to launch.
//
// Each is computed on copies in host memory; what it writes arrives as the next step of the current
// stream. What torch does by copies alone (contiguous ones, events, views) is left to torch.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

extern "C" void emulated_write(
    cudaStream_t, void*, const void*, int, const long*, const long*, int);

namespace {

using at::Tensor;
using c10::IValue;

// The values that `tensor` has when the current stream has done all it was asked to do.
Tensor on_the_host(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    c10::cuda::CUDAGuard guard(tensor.device());
    int64_t span = tensor.numel() != 0;
    for (int64_t i = 0; span && i < tensor.dim(); i++)
        span += (tensor.size(i) - 1) * tensor.stride(i);
    auto host = at::empty({span}, tensor.options().device(at::kCPU).pinned_memory(false));
    if (span) {
        auto stream = c10::cuda::getCurrentCUDAStream();
        cudaMemcpyAsync(
            host.data_ptr(), tensor.data_ptr(), host.nbytes(), cudaMemcpyDeviceToHost, stream);
        cudaStreamSynchronize(stream);
    }
    auto same = host.as_strided(tensor.sizes(), tensor.strides(), 0);
    same._set_conj(tensor.is_conj());
    same._set_neg(tensor.is_neg());
    return same;
}

void write(const Tensor& target, const Tensor& values) {
    if (!target.numel()) return;
    c10::cuda::CUDAGuard guard(target.device());
    auto plain = values.resolve_conj().resolve_neg().contiguous();
    TORCH_CHECK(
        plain.sizes() == target.sizes() && plain.scalar_type() == target.scalar_type(),
        "emulated device: ", plain.sizes(), " is not ", target.sizes());
    emulated_write(
        c10::cuda::getCurrentCUDAStream(), target.data_ptr(), plain.data_ptr(), target.dim(),
        target.sizes().data(), target.strides().data(), target.itemsize());
}

Tensor on_the_device(const Tensor& host, c10::Device device) {
    auto made = at::empty_strided(host.sizes(), host.strides(), host.options().device(device));
    write(made, host);
    return made;
}

class Call {
  public:
    Call(const c10::OperatorHandle& op, std::vector<IValue> arguments) : op(op) {
        const auto& declared = op.schema().arguments();
        for (size_t i = 0; i < arguments.size(); i++) {
            const auto* alias = declared[i].alias_info();
            given.push_back(argument(arguments[i], alias && alias->isWrite()));
        }
    }

    std::vector<IValue> run() {
        torch::jit::Stack stack(given);
        op.callBoxed(stack);
        for (auto& [device, host] : written) {
            if (device.sizes() != host.sizes()) device.resize_(host.sizes());
            write(device, host);
        }
        for (auto& value : stack) value = result(value);
        return stack;
    }

  private:
    IValue argument(const IValue& value, bool is_written) {
        if (value.isTensor()) return tensor(value.toTensor(), is_written);
        if (value.isTensorList()) {
            c10::List<Tensor> list;
            for (const Tensor& each : value.toTensorVector()) list.push_back(tensor(each, is_written));
            return list;
        }
        if (value.isOptionalTensorList()) {
            c10::List<std::optional<Tensor>> list;
            for (std::optional<Tensor> each : value.toOptionalTensorList().vec())
                list.push_back(each ? std::optional(tensor(*each, is_written)) : std::nullopt);
            return list;
        }
        if (value.isDevice() && value.toDevice().is_cuda()) {
            device = value.toDevice();
            return c10::Device(at::kCPU);
        }
        return value.isGenerator() ? IValue() : value;
    }

    Tensor tensor(const Tensor& tensor, bool is_written) {
        if (!tensor.defined() || !tensor.is_cuda()) return tensor;
        TORCH_CHECK(
            !device || *device == tensor.device(), "Expected all tensors to be on the same device: ",
            op.schema().name(), " of ", *device, " and ", tensor.device());
        device = tensor.device();
        auto host = on_the_host(tensor);
        if (is_written) written.emplace_back(tensor, host);
        return host;
    }

    IValue result(const IValue& value) {
        if (value.isTensor()) return result(value.toTensor());
        if (!value.isTensorList()) return value;
        c10::List<Tensor> list;
        for (const Tensor& each : value.toTensorVector()) list.push_back(result(each));
        return list;
    }

    Tensor result(const Tensor& host) {
        for (auto& [target, values] : written)
            if (values.is_same(host)) return target;
        return host.defined() && device ? on_the_device(host, *device) : host;
    }

    const c10::OperatorHandle& op;
    std::vector<IValue> given;
    std::vector<std::pair<Tensor, Tensor>> written;  // on the device, and on the host
    std::optional<c10::Device> device;
};

void emulate(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    size_t count = op.schema().arguments().size();
    auto last = torch::jit::last(*stack, count);
    std::vector<IValue> arguments(last.begin(), last.end());
    torch::jit::drop(*stack, count);
    for (auto& value : Call(op, arguments).run()) stack->push_back(value);
}

Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
    if (!self.numel()) return self;
    if (self.scalar_type() == source.scalar_type() && self.is_contiguous() &&
        source.is_contiguous() && self.sizes() == source.sizes() &&
        self.is_conj() == source.is_conj() && self.is_neg() == source.is_neg())
        return at::native::copy_(self, source, non_blocking);
    if (!self.is_cuda()) return self.copy_(on_the_host(source));
    auto values = on_the_host(self);
    values.copy_(on_the_host(source));
    write(self, values);
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
