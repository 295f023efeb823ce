// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/cpu_backends/transport_backend.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <stdexcept>
#include <utility>

#include "torch/distributed/terms/combinations.h"
#include "torch/distributed/terms/without_python.h"
#include "torch/distributed/works/simple_work.h"

namespace outboard::distributed {
namespace {

namespace py = pybind11;
using c10d::OpType;

/// Calls a function with the GIL held. What Python raises is thrown as text: it may end up on a thread without Python.
template <typename Function>
auto with_python(Function&& function) {
  const py::gil_scoped_acquire held;
  try {
    return function();
  } catch (const py::error_already_set& error) {
    throw std::runtime_error(error.what());
  }
}

/// What a transport calls at the end, also long after its backend is gone.
py::cpp_function end_of(const c10::intrusive_ptr<SimpleWork>& work) {
  return [work](const std::optional<std::string>& error, int source) {
    const WithoutPython released;
    work->end(error.has_value() ? std::make_exception_ptr(std::runtime_error(*error)) : nullptr, source);
  };
}

}  // namespace

TransportBackend::TransportBackend(std::string name, py::object transport, int rank, int size,
                                   std::chrono::milliseconds timeout)
    : Backend(rank, size), name_(std::move(name)), transport_(std::move(transport)), timeout_(timeout) {}

TransportBackend::~TransportBackend() {
  const py::gil_scoped_acquire held;
  try {
    transport_.attr("close")();
  } catch (const py::error_already_set& error) {
    TORCH_WARN(name_, ": the group could not be given back: ", error.what());
  }
  transport_ = py::object();
}

void TransportBackend::abort() {
  with_python([&] { transport_.attr("abort")(); });
}

double TransportBackend::seconds(std::chrono::milliseconds timeout) const {
  return std::chrono::duration<double>(timeout == c10d::kUnsetTimeout ? timeout_ : timeout).count();
}

WorkPointer TransportBackend::run(OpType kind, const char* method, std::chrono::milliseconds timeout,
                                  const std::function<py::tuple()>& arguments) {
  ++number_;
  auto work = c10::make_intrusive<SimpleWork>(rank_, kind);
  with_python([&] { transport_.attr(method)(*arguments(), seconds(timeout), end_of(work)); });
  return work;
}

WorkPointer TransportBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return run(OpType::BROADCAST, "broadcast", options.timeout,
             [&] { return py::make_tuple(tensors[0], options.rootRank); });
}

WorkPointer TransportBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  combination(options.reduceOp, tensors[0].scalar_type());  // throws where there is none
  return run(OpType::ALLREDUCE, "all_reduce", options.timeout,
             [&] { return py::make_tuple(tensors[0], name_of(options.reduceOp)); });
}

WorkPointer TransportBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  combination(options.reduceOp, tensors[0].scalar_type());
  return run(OpType::REDUCE, "reduce", options.timeout,
             [&] { return py::make_tuple(tensors[0], name_of(options.reduceOp), options.rootRank); });
}

WorkPointer TransportBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return run(OpType::ALLGATHER, "all_gather", options.timeout, [&] { return py::make_tuple(outputs[0], inputs[0]); });
}

WorkPointer TransportBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::AllgatherOptions& options) {
  return run(OpType::_ALLGATHER_BASE, "all_gather", options.timeout,
             [&] { return py::make_tuple(output.view({size_, input.numel()}).unbind(), input); });
}

WorkPointer TransportBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  return run(OpType::ALLTOALL_BASE, "all_to_all", options.timeout,
             [&] { return py::make_tuple(output, input, output_splits, input_splits); });
}

WorkPointer TransportBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return run(OpType::GATHER, "gather", options.timeout,
             [&] { return py::make_tuple(outputs.empty() ? Tensors() : outputs[0], inputs[0], options.rootRank); });
}

WorkPointer TransportBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  return run(OpType::SCATTER, "scatter", options.timeout,
             [&] { return py::make_tuple(outputs[0], inputs.empty() ? Tensors() : inputs[0], options.rootRank); });
}

WorkPointer TransportBackend::send(Tensors& tensors, int target, int tag) {
  return run(OpType::SEND, "send", timeout_, [&] { return py::make_tuple(tensors[0], target, tag); });
}

WorkPointer TransportBackend::recv(Tensors& tensors, int source, int tag) {
  return run(OpType::RECV, "receive", timeout_, [&] { return py::make_tuple(tensors[0], source, tag); });
}

WorkPointer TransportBackend::recvAnysource(Tensors& tensors, int tag) {
  return run(OpType::RECVANYSOURCE, "receive", timeout_, [&] { return py::make_tuple(tensors[0], py::none(), tag); });
}

WorkPointer TransportBackend::barrier(const c10d::BarrierOptions& options) {
  return run(OpType::BARRIER, "barrier", options.timeout, [] { return py::tuple(); });
}

void TransportBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  with_python([&] { transport_.attr("monitored_barrier")(seconds(options.timeout), wait_all_ranks); });
}

}  // namespace outboard::distributed
