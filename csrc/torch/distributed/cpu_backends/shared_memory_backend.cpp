// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/cpu_backends/shared_memory_backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "runtime/base/interruption.h"
#include "torch/distributed/terms/combinations.h"
#include "torch/distributed/terms/terms.h"
#include "torch/distributed/terms/without_python.h"
#include "torch/distributed/works/simple_work.h"

namespace outboard::distributed {
namespace {

using c10d::OpType;

bool is_wanted() {
  const char* const text = std::getenv("OUTBOARD_SHARED_MEMORY");
  return text == nullptr || std::string_view(text) != "0";
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> SharedMemoryBackend::over(c10::intrusive_ptr<c10d::Backend> under,
                                                            std::chrono::milliseconds timeout) {
  const int ranks = under->getSize();
  if (ranks < 2 || under->getBackendName() != "gloo") return under;
  const WithoutPython released;
  std::unique_ptr<SharedMemory> memory;
  at::Tensor place = at::zeros({sizeof(SharedMemoryPlace)}, at::kByte);
  const bool first = under->getRank() == 0;
  if (first && is_wanted()) memory = SharedMemory::create(ranks);
  if (memory != nullptr) std::memcpy(place.data_ptr(), &memory->place(), sizeof(SharedMemoryPlace));
  Tensors tensors{place};
  c10d::BroadcastOptions from_first;
  from_first.timeout = timeout;
  under->broadcast(tensors, from_first)->wait();
  SharedMemoryPlace told;
  std::memcpy(&told, place.data_ptr(), sizeof(told));
  if (told.nonce == 0) return under;
  if (!first && is_wanted()) memory = SharedMemory::attach(told, under->getRank());
  Tensors verdict{at::empty({1}, at::kByte).fill_(memory != nullptr)};
  c10d::AllreduceOptions all;
  all.reduceOp = c10d::ReduceOp::MIN;
  all.timeout = timeout;
  under->allreduce(verdict, all)->wait();
  if (verdict[0].item<uint8_t>() == 0) return under;
  memory->seal();
  return c10::make_intrusive<SharedMemoryBackend>(std::move(under), std::move(memory), timeout);
}

SharedMemoryBackend::SharedMemoryBackend(c10::intrusive_ptr<c10d::Backend> under, std::unique_ptr<SharedMemory> memory,
                                         std::chrono::milliseconds timeout)
    : ForwardingBackend(std::move(under)), memory_(std::move(memory)), timeout_(timeout) {}

SharedMemoryBackend::~SharedMemoryBackend() {
  const WithoutPython released;
  // After Ctrl-C there is no waiting for other ranks.
  if (was_interrupted()) memory_->abort();
  issuer_.drain();
}

void SharedMemoryBackend::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  ForwardingBackend::setTimeout(timeout);
}

void SharedMemoryBackend::abort() { memory_->abort(); }

Terms SharedMemoryBackend::terms(std::string text, std::chrono::milliseconds timeout) const {
  return {std::move(text), timeout == c10d::kUnsetTimeout ? timeout_ : timeout};
}

WorkPointer SharedMemoryBackend::run(OpType kind, bool asynchronous, std::function<void()> body) {
  const auto work = c10::make_intrusive<SimpleWork>(rank_, kind);
  issuer_.put({nullptr, std::move(body), [work] { work->end(nullptr); },
               [work](const std::exception_ptr& error) { work->end(error); }, !asynchronous});
  return work;
}

WorkPointer SharedMemoryBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor tensor = tensors[0];
  const int root = static_cast<int>(options.rootRank);
  const Terms agreed = terms(terms_of::broadcast(tensor, root), options.timeout);
  return run(OpType::BROADCAST, options.asyncOp,
             [this, tensor, agreed, root] { memory_->broadcast(agreed, tensor.data_ptr(), tensor.nbytes(), root); });
}

WorkPointer SharedMemoryBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor tensor = tensors[0];
  const Combination combined = combination(options.reduceOp, tensor.scalar_type());
  const bool mean = options.reduceOp == c10d::ReduceOp::AVG;
  const Terms agreed = terms(terms_of::all_reduce(tensor, options.reduceOp), options.timeout);
  return run(OpType::ALLREDUCE, options.asyncOp, [this, tensor, agreed, combined, mean] {
    memory_->all_reduce(agreed, tensor.data_ptr(), tensor.numel(), combined);
    if (mean) tensor.div_(size_);
  });
}

WorkPointer SharedMemoryBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor tensor = tensors[0];
  const int root = static_cast<int>(options.rootRank);
  const Combination combined = combination(options.reduceOp, tensor.scalar_type());
  const bool mean = options.reduceOp == c10d::ReduceOp::AVG && root == rank_;
  const Terms agreed = terms(terms_of::reduce(tensor, options.reduceOp, root), options.timeout);
  return run(OpType::REDUCE, options.asyncOp, [this, tensor, agreed, combined, mean, root] {
    memory_->reduce(agreed, tensor.data_ptr(), tensor.numel(), combined, root);
    if (mean) tensor.div_(size_);
  });
}

WorkPointer SharedMemoryBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) {
  const at::Tensor input = inputs[0];
  const Tensors lists = outputs[0];
  const Terms agreed = terms(terms_of::all_gather(input, lists), options.timeout);
  return run(OpType::ALLGATHER, options.asyncOp, [this, input, lists, agreed] {
    std::vector<void*> addresses;
    for (const at::Tensor& output : lists) addresses.push_back(output.data_ptr());
    memory_->all_gather(agreed, input.data_ptr(), addresses, input.nbytes());
  });
}

WorkPointer SharedMemoryBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) {
  const Terms agreed = terms(terms_of::all_gather_into_tensor(input), options.timeout);
  return run(OpType::_ALLGATHER_BASE, options.asyncOp, [this, output, input, agreed] {
    std::vector<void*> addresses;
    for (int rank = 0; rank < size_; ++rank) {
      addresses.push_back(static_cast<char*>(output.data_ptr()) + rank * input.nbytes());
    }
    memory_->all_gather(agreed, input.data_ptr(), addresses, input.nbytes());
  });
}

WorkPointer SharedMemoryBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) {
  const auto sent = bytes_of_parts(input, input_splits, size_);
  const auto received = bytes_of_parts(output, output_splits, size_);
  const Terms agreed = terms(terms_of::all_to_all(input), options.timeout);
  return run(OpType::ALLTOALL_BASE, options.asyncOp, [this, output, input, sent, received, agreed] {
    memory_->all_to_all(agreed, input.data_ptr(), sent, output.data_ptr(), received);
  });
}

WorkPointer SharedMemoryBackend::barrier(const c10d::BarrierOptions& options) {
  const Terms agreed = terms(terms_of::barrier(), options.timeout);
  return run(OpType::BARRIER, options.asyncOp, [this, agreed] { memory_->barrier(agreed); });
}

WorkPointer SharedMemoryBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const at::Tensor input = inputs[0];
  const int root = static_cast<int>(options.rootRank);
  const Tensors lists = outputs.empty() ? Tensors() : outputs[0];
  const Terms agreed = terms(terms_of::gather(input, lists, root, rank_, size_), options.timeout);
  return run(OpType::GATHER, options.asyncOp, [this, input, lists, root, agreed] {
    const at::Tensor arrived = at::empty({static_cast<int64_t>(lists.size()), input.numel()}, input.options());
    std::vector<uint64_t> sent(size_), received(size_, root == rank_ ? input.nbytes() : 0);
    sent[root] = input.nbytes();
    memory_->all_to_all(agreed, input.data_ptr(), sent, arrived.data_ptr(), received);
    for (size_t rank = 0; rank < lists.size(); ++rank) lists[rank].copy_(arrived[rank].view(lists[rank].sizes()));
  });
}

WorkPointer SharedMemoryBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  const at::Tensor output = outputs[0];
  const int root = static_cast<int>(options.rootRank);
  const Tensors lists = inputs.empty() ? Tensors() : inputs[0];
  const Terms agreed = terms(terms_of::scatter(output, lists, root, rank_, size_), options.timeout);
  return run(OpType::SCATTER, options.asyncOp, [this, output, lists, root, agreed] {
    const at::Tensor leaving = at::empty({static_cast<int64_t>(lists.size()), output.numel()}, output.options());
    for (size_t rank = 0; rank < lists.size(); ++rank) leaving[rank].view(lists[rank].sizes()).copy_(lists[rank]);
    const at::Tensor arrived = at::empty(output.sizes(), output.options());
    std::vector<uint64_t> sent(size_, root == rank_ ? output.nbytes() : 0), received(size_);
    received[root] = output.nbytes();
    memory_->all_to_all(agreed, leaving.data_ptr(), sent, arrived.data_ptr(), received);
    at::Tensor(output).copy_(arrived);
  });
}

}  // namespace outboard::distributed
