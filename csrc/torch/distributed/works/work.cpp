// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/works/work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/base/interruption.h"
#include "runtime/device.h"
#include "torch/distributed/staging/issuer.h"

namespace outboard::distributed {
namespace {

using c10::ivalue::Future;

/// Whether one of these tensors without gaps uses memory of one of those.
bool shares_memory(const std::vector<at::Tensor>& these, const std::vector<at::Tensor>& those) {
  const auto begin = [](const at::Tensor& tensor) { return tensor.storage_offset() * tensor.itemsize(); };
  const auto end = [&](const at::Tensor& tensor) { return begin(tensor) + static_cast<int64_t>(tensor.nbytes()); };
  return std::any_of(these.begin(), these.end(), [&](const at::Tensor& a) {
    return std::any_of(those.begin(), those.end(), [&](const at::Tensor& b) {
      return a.has_storage() && b.has_storage() && a.is_alias_of(b) && begin(a) < end(b) && begin(b) < end(a);
    });
  });
}

/// Rows of collectives come below those of streams.
constexpr int64_t kFirstRow = int64_t{1} << 20;

std::exception_ptr error_of(const Label& label, const std::string& text) {
  return std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, label.text + ": " + text));
}

/// Calls a function on one of as many threads as there are functions that wait: the CPU backend's own are few, and a
/// callback of a future that waits for a collective may wait for what only they do.
void on_a_thread(std::function<void()> function) {
  static auto* const issuer = new Issuer;  // never destroyed, since works outlive their groups
  issuer->put({nullptr, [] {}, std::move(function), {}, /*may_be_at_once=*/false});
}

}  // namespace

std::exception_ptr explained(const std::exception_ptr& error, const Label& label) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error&) {
    return error;
  } catch (const std::logic_error&) {
    return error;
  } catch (const python_error&) {
    return error;  // what a handler of signals raised
  } catch (const std::exception& other) {
    return error_of(label, other.what());
  }
}

c10::intrusive_ptr<Future> LazyFuture::get() {
  const std::lock_guard lock(mutex_);
  if (future_ != nullptr) return future_;
  const c10::TypePtr list = c10::ListType::create(c10::TensorType::get());
  future_ = c10::make_intrusive<Future>(nested_ ? c10::ListType::create(list) : list,
                                        std::vector<c10::Device>{torch_stream(transfers_).device()});
  if (settled_) settle(*future_);
  return future_;
}

void LazyFuture::settle(Future& future) const {
  if (error_ != nullptr) return future.setError(error_);
  // Callbacks come behind copies to the device, and behind no other work.
  const c10::StreamGuard guard(torch_stream(transfers_));
  future.markCompleted(value_);
}

bool LazyFuture::succeed(c10::IValue value) { return end(std::move(value), nullptr); }

bool LazyFuture::fail(std::exception_ptr error) { return end({}, std::move(error)); }

bool LazyFuture::end(c10::IValue value, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  value_ = std::move(value);
  error_ = std::move(error);
  settled_ = true;
  return future_ != nullptr;
}

TracedWork Row::asked(const Label& label, const Stream& transfers, const std::vector<at::Tensor>& inputs) {
  TracedWork work;
  if (!is_tracing()) return work;
  work.kind = TracedWork::Kind::kCollective;
  work.name = label.profiled;
  for (const at::Tensor& input : inputs) work.bytes += input.nbytes();
  work.device = transfers.device().index();
  work.stream = kFirstRow + transfers.id();
  work.operation = traced_operation();
  work.thread = traced_thread();
  work.submit_begin = work.submit_end = traced_clock();
  return work;
}

void Row::add(TracedWork work) {
  if (work.begin == 0 || !is_tracing()) return;
  const std::lock_guard lock(mutex_);
  work.begin = std::max(work.begin, last_end_);
  work.end = last_end_ = traced_clock();
  trace_ended(std::move(work));
}

CollectiveWork::CollectiveWork(int rank, Label label, std::shared_ptr<Exchange> exchange,
                               const std::vector<at::Tensor>& inputs, std::vector<std::vector<at::Tensor>> results,
                               std::shared_ptr<Row> row)
    : InterruptibleWork(rank, label.kind, label.profiled, inputs),
      label_(std::move(label)),
      exchange_(std::move(exchange)),
      inputs_(inputs),
      results_(std::move(results)),
      row_(std::move(row)),
      traced_(Row::asked(label_, exchange_->transfers(), inputs)),
      future_(exchange_->transfers(), results_.size() > 1) {}

std::vector<at::Tensor> CollectiveWork::result() {
  TORCH_CHECK(isCompleted(), "Work needs to be completed before calling result(). Should call wait() before result().");
  TORCH_CHECK(results_.size() <= 1, "work result does not support list of lists, use .getFuture() and value()");
  return results_.empty() ? std::vector<at::Tensor>() : results_[0];
}

bool CollectiveWork::is_in_the_way(const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& written) {
  std::vector<at::Tensor> own_read;
  {
    const std::lock_guard lock(mutex_);
    own_read = inputs_;
  }
  if (ended_) return false;
  return shares_memory(own_read, written) ||
         std::any_of(results_.begin(), results_.end(), [&](const std::vector<at::Tensor>& own_written) {
           return shares_memory(own_written, written) || shares_memory(own_written, read);
         });
}

bool CollectiveWork::end() {
  if (ended_.exchange(true)) return false;
  // Let go without the lock: a tensor's end may wait for Python's lock, whose holder may wait for this one.
  std::vector<at::Tensor> released;
  const std::lock_guard lock(mutex_);
  released.swap(inputs_);
  return true;
}

bool InterruptibleWork::wait(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = timeout == kNoTimeout ? Clock::time_point::max() : Clock::now() + timeout;
  bool done = false;
  while (!done && Clock::now() < end) {
    {
      std::unique_lock lock(mutex_);
      done = cv_.wait_until(lock, std::min(end, Clock::now() + kInterruptionInterval), [&] { return completed_; });
    }
    if (done) break;
    try {
      check_interruption();
    } catch (...) {
      interrupted();
      throw;
    }
  }
  return Work::wait(done ? kNoTimeout : std::chrono::milliseconds(1));  // which says what happened
}

void CollectiveWork::synchronize() { exchange_->order_current_stream(); }

void CollectiveWork::abort() { fail(error_of(label_, "aborted")); }

void CollectiveWork::follow(const std::vector<WorkPointer>& works, const std::function<void()>& after) {
  if (works.empty()) return succeed(after);
  missing_ = static_cast<int>(works.size());
  const auto self = c10::intrusive_ptr<CollectiveWork>::unsafe_reclaim_from_nonowning(this);
  for (const WorkPointer& work : works) {
    work->getFuture()->addCallback(
        [self, after](Future& future) {
          if (future.hasError()) return self->fail(future.exception_ptr());
          if (self->missing_.fetch_sub(1) == 1) self->succeed(after);
        },
        /*uses_future=*/false);
  }
}

void CollectiveWork::succeed(const std::function<void()>& after) {
  row_->add(traced_);
  try {
    if (after) after();
    exchange_->give_back();
  } catch (...) {
    return fail(std::current_exception());
  }
  if (!end()) return;
  const std::vector<at::Tensor> flat = results_.empty() ? std::vector<at::Tensor>() : results_[0];
  const bool is_awaited = future_.succeed(results_.size() > 1 ? c10::IValue(results_) : c10::IValue(flat));
  finish();
  if (is_awaited) call_back();
}

void CollectiveWork::fail(const std::exception_ptr& error) {
  if (!end()) return;
  const std::exception_ptr shown = explained(error, label_);
  const bool is_awaited = future_.fail(shown);
  finish(shown);
  if (is_awaited) call_back();
}

void CollectiveWork::call_back() {
  const auto self = c10::intrusive_ptr<CollectiveWork>::unsafe_reclaim_from_nonowning(this);
  on_a_thread([self] { self->future_.call_back(); });
}

PeerWork::PeerWork(int rank, Label label, std::shared_ptr<Exchange> exchange, at::Tensor tensor,
                   std::unique_ptr<Message> message)
    : InterruptibleWork(rank, label.kind, label.profiled, std::vector<at::Tensor>{tensor}),
      label_(std::move(label)),
      exchange_(std::move(exchange)),
      tensor_(std::move(tensor)),
      message_(std::move(message)),
      future_(exchange_->transfers(), /*nested=*/false) {}

void PeerWork::begin(c10::intrusive_ptr<c10d::Backend> host, Stream* parts) {
  message_->begin(*host);
  {
    const std::lock_guard lock(mutex_);
    parts_ = parts;
    host_ = std::move(host);
    cv_.notify_all();
  }
  if (message_->is_to_be_watched()) watch();
}

void PeerWork::end(const std::exception_ptr& error) {
  {
    const std::lock_guard lock(mutex_);
    if (completed_) return;
  }
  const std::exception_ptr shown = error == nullptr ? nullptr : explained(error, label_);
  const bool is_awaited = shown == nullptr ? future_.succeed(std::vector<at::Tensor>{tensor_}) : future_.fail(shown);
  finish(shown);
  if (is_awaited) future_.call_back();
}

void PeerWork::fail(const std::exception_ptr& error) {
  const std::lock_guard alone(transferring_);
  end(error);
}

void PeerWork::transfer() {
  c10::intrusive_ptr<c10d::Backend> host;
  {
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [&] { return completed_ || host_ != nullptr; });
    host = host_;
  }
  const std::lock_guard alone(transferring_);
  {
    const std::lock_guard lock(mutex_);
    if (completed_) return;
  }
  try {
    exchange_->wait();
    message_->finish(*host);
    parts_ == nullptr ? exchange_->give_back() : exchange_->give_back_behind(*parts_);
  } catch (...) {
    return end(std::current_exception());
  }
  end(nullptr);
}

bool PeerWork::wait(std::chrono::milliseconds timeout) {
  may_be_interrupted() || timeout != kNoTimeout ? watch() : transfer();
  return InterruptibleWork::wait(timeout);
}

void PeerWork::watch() {
  {
    const std::lock_guard lock(mutex_);
    if (watched_ || completed_) return;
    watched_ = true;
  }
  const auto self = c10::intrusive_ptr<PeerWork>::unsafe_reclaim_from_nonowning(this);
  on_a_thread([self] { self->transfer(); });
}

bool PeerWork::isCompleted() {
  if (Work::isCompleted()) return true;
  watch();
  return false;
}

c10::intrusive_ptr<Future> PeerWork::getFuture() {
  watch();
  return future_.get();
}

void PeerWork::synchronize() { exchange_->order_current_stream(); }

void PeerWork::abort() { message_->abort(); }

int PeerWork::sourceRank() const { return message_->source(); }

std::vector<at::Tensor> PeerWork::result() { return {tensor_}; }

}  // namespace outboard::distributed
