// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/cpu_backends/agreeing_backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "distributed/shared_memory.h"
#include "torch/distributed/terms/terms.h"
#include "torch/distributed/terms/without_python.h"
#include "torch/distributed/works/simple_work.h"

namespace outboard::distributed {
namespace {

using c10::ivalue::Future;
using c10d::OpType;

/// Bytes of the text of what a rank asks for.
constexpr int64_t kText = 128;

at::Tensor text_of(const std::string& terms) {
  at::Tensor text = at::zeros({kText}, at::kByte);
  std::memcpy(text.data_ptr(), terms.data(), std::min<size_t>(terms.size(), kText - 1));
  return text;
}

std::exception_ptr error_of(Future& future) { return future.hasError() ? future.exception_ptr() : nullptr; }

}  // namespace

/// A collective that ranks compare.
struct AgreeingBackend::Call {
  c10::intrusive_ptr<SimpleWork> work;
  std::chrono::milliseconds timeout;
  Issue issue;
  at::Tensor text;
  at::Tensor texts;  ///< of all ranks
  at::Tensor bytes;  ///< to each rank, then from each, if they are to be compared
  at::Tensor all_bytes;
};

c10::intrusive_ptr<c10d::Backend> AgreeingBackend::over(c10::intrusive_ptr<c10d::Backend> under) {
  const char* const wanted = std::getenv("OUTBOARD_COMPARE_COLLECTIVES");
  if (wanted == nullptr || std::string_view(wanted) != "1") return under;
  if (under->getSize() < 2 || under->getBackendName() != "gloo") return under;
  return c10::make_intrusive<AgreeingBackend>(std::move(under));
}

AgreeingBackend::~AgreeingBackend() {
  const WithoutPython released;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return calls_.empty(); });
}

WorkPointer AgreeingBackend::run(OpType kind, const std::string& terms, std::chrono::milliseconds timeout, Issue issue,
                                 const std::vector<uint64_t>& bytes) {
  auto call = std::make_shared<Call>();
  call->work = c10::make_intrusive<SimpleWork>(rank_, kind);
  call->timeout = timeout;
  call->issue = std::move(issue);
  call->text = text_of(terms);
  call->texts = at::empty({size_ * kText}, at::kByte);
  if (!bytes.empty()) {
    call->bytes = at::empty({2 * size_}, at::kLong);
    std::memcpy(call->bytes.data_ptr(), bytes.data(), bytes.size() * sizeof(uint64_t));
    call->all_bytes = at::empty({size_ * 2 * size_}, at::kLong);
  }
  WorkPointer work = call->work;
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    is_first = calls_.empty();
    calls_.push_back(std::move(call));
  }
  if (is_first) compare_next();
  return work;
}

void AgreeingBackend::compare_next() {
  std::shared_ptr<Call> call;
  {
    const std::lock_guard lock(mutex_);
    call = calls_.front();
  }
  gather_from_all(call, call->texts, call->text, &AgreeingBackend::compared);
}

void AgreeingBackend::gather_from_all(const std::shared_ptr<Call>& call, at::Tensor& all, at::Tensor& own,
                                      void (AgreeingBackend::*then)(const std::shared_ptr<Call>&,
                                                                    const std::exception_ptr&)) {
  WorkPointer gathered;
  try {
    c10d::AllgatherOptions options;
    options.timeout = call->timeout;
    gathered = below()._allgather_base(all, own, options);
  } catch (...) {
    return proceed(call, std::current_exception());
  }
  gathered->getFuture()->addCallback([this, call, then](Future& future) { (this->*then)(call, error_of(future)); },
                                     /*uses_future=*/false);
}

void AgreeingBackend::compared(const std::shared_ptr<Call>& call, const std::exception_ptr& error) {
  if (error != nullptr) return proceed(call, error);
  std::vector<std::string> texts;
  bool same = true;
  for (int rank = 0; rank < size_; ++rank) {
    const char* const text = static_cast<const char*>(call->texts.data_ptr()) + rank * kText;
    texts.emplace_back(text, strnlen(text, kText));
    same = same && texts[rank] == texts[0];
  }
  if (!same) return proceed(call, std::make_exception_ptr(MismatchError(unlike_calls(texts))));
  if (!call->bytes.defined()) return proceed(call, nullptr);
  gather_from_all(call, call->all_bytes, call->bytes, &AgreeingBackend::bytes_compared);
}

void AgreeingBackend::bytes_compared(const std::shared_ptr<Call>& call, const std::exception_ptr& error) {
  if (error != nullptr) return proceed(call, error);
  std::vector<std::vector<uint64_t>> sent, received;
  for (int rank = 0; rank < size_; ++rank) {
    const auto* const row = static_cast<const uint64_t*>(call->all_bytes.data_ptr()) + rank * 2 * size_;
    sent.emplace_back(row, row + size_);
    received.emplace_back(row + size_, row + 2 * size_);
  }
  const std::string text = unlike_bytes(sent, received);
  proceed(call, text.empty() ? nullptr : std::make_exception_ptr(MismatchError(text)));
}

void AgreeingBackend::proceed(const std::shared_ptr<Call>& call, std::exception_ptr error) {
  WorkPointer begun;
  try {
    if (error == nullptr) begun = call->issue(below());
  } catch (...) {
    error = std::current_exception();
  }
  bool is_there_more = false;
  {
    const std::lock_guard lock(mutex_);
    calls_.pop_front();
    is_there_more = !calls_.empty();
    if (!is_there_more) changed_.notify_all();  // the destructor waits for that
  }
  if (is_there_more) compare_next();
  if (begun == nullptr) return call->work->end(error);
  begun->getFuture()->addCallback([work = call->work](Future& future) { work->end(error_of(future)); },
                                  /*uses_future=*/false);
}

WorkPointer AgreeingBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return run(OpType::BROADCAST, terms_of::broadcast(tensors[0], static_cast<int>(options.rootRank)), options.timeout,
             [values = tensors, options](Backend& under) mutable { return under.broadcast(values, options); });
}

WorkPointer AgreeingBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return run(OpType::ALLREDUCE, terms_of::all_reduce(tensors[0], options.reduceOp), options.timeout,
             [values = tensors, options](Backend& under) mutable { return under.allreduce(values, options); });
}

WorkPointer AgreeingBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const int root = static_cast<int>(options.rootRank);
  return run(OpType::REDUCE, terms_of::reduce(tensors[0], options.reduceOp, root), options.timeout,
             [values = tensors, options](Backend& under) mutable { return under.reduce(values, options); });
}

WorkPointer AgreeingBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return run(OpType::ALLGATHER, terms_of::all_gather(inputs[0], outputs[0]), options.timeout,
             [values = outputs, own = inputs, options](Backend& under) mutable {
               return under.allgather(values, own, options);
             });
}

WorkPointer AgreeingBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::AllgatherOptions& options) {
  return run(
      OpType::_ALLGATHER_BASE, terms_of::all_gather_into_tensor(input), options.timeout,
      [output, input, options](Backend& under) mutable { return under._allgather_base(output, input, options); });
}

WorkPointer AgreeingBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                           std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  std::vector<uint64_t> bytes = bytes_of_parts(input, input_splits, size_);
  const std::vector<uint64_t> received = bytes_of_parts(output, output_splits, size_);
  bytes.insert(bytes.end(), received.begin(), received.end());
  return run(
      OpType::ALLTOALL_BASE, terms_of::all_to_all(input), options.timeout,
      [output, input, output_splits, input_splits, options](Backend& under) mutable {
        return under.alltoall_base(output, input, output_splits, input_splits, options);
      },
      bytes);
}

WorkPointer AgreeingBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const int root = static_cast<int>(options.rootRank);
  return run(OpType::GATHER, terms_of::gather(inputs[0], outputs.empty() ? Tensors() : outputs[0], root, rank_, size_),
             options.timeout, [values = outputs, own = inputs, options](Backend& under) mutable {
               return under.gather(values, own, options);
             });
}

WorkPointer AgreeingBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  const int root = static_cast<int>(options.rootRank);
  return run(OpType::SCATTER, terms_of::scatter(outputs[0], inputs.empty() ? Tensors() : inputs[0], root, rank_, size_),
             options.timeout, [own = outputs, values = inputs, options](Backend& under) mutable {
               return under.scatter(own, values, options);
             });
}

/// The comparison waits for all ranks, which is all that is asked for.
WorkPointer AgreeingBackend::barrier(const c10d::BarrierOptions& options) {
  return run(OpType::BARRIER, terms_of::barrier(), options.timeout, [](Backend&) -> WorkPointer { return nullptr; });
}

}  // namespace outboard::distributed
