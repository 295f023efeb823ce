// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/driver_transport.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>
#include <utility>

#include "runtime/base/interruption.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/tensor.h"
#include "torch/distributed/exchange.h"
#include "torch/distributed/without_python.h"

namespace outboard::distributed {
namespace {

constexpr std::chrono::microseconds kFirstPause{20}, kLongestPause{500};

/// What makes two devices members of one group.
std::string described(Device& device) {
  if (!has_collectives(device)) return "";
  return std::string(device.driver().name) + " " + device.properties().driver_version;
}

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

/// Device pointer of a tensor's first byte; 0 where there is nothing.
ob_ptr pointer(const at::Tensor& tensor, Work& work, Access access) {
  if (!tensor.defined() || tensor.numel() == 0) return 0;
  const TensorBinding binding = aten::binding_of(tensor);
  return work.resolve(*binding.allocation, access) + binding.storage_offset * tensor.itemsize();
}

}  // namespace

std::unique_ptr<DriverTransport> DriverTransport::make(c10::intrusive_ptr<c10d::Store> store, c10d::Backend& host,
                                                       std::chrono::milliseconds timeout) {
  if (host.getSize() < 2) return nullptr;
  const WithoutPython released;
  // A store may outlive the processes that used it: the ranks of now find each other by what rank 0 makes up.
  std::random_device random;
  at::Tensor number = at::empty({1}, at::kLong).fill_(static_cast<int64_t>(random()) << 31 ^ random());
  std::vector<at::Tensor> tensors{number};
  c10d::BroadcastOptions from_first;
  from_first.timeout = timeout;
  host.broadcast(tensors, from_first)->wait();
  const std::string key = "driver " + std::to_string(number.item<int64_t>()) + " rank ";
  return std::make_unique<DriverTransport>(std::move(store), key, host.getRank(), host.getSize(), timeout);
}

DriverTransport::DriverTransport(c10::intrusive_ptr<c10d::Store> store, std::string key, int rank, int size,
                                 std::chrono::milliseconds timeout)
    : store_(std::move(store)), key_(std::move(key)), rank_(rank), size_(size), timeout_(timeout) {}

DriverTransport::~DriverTransport() {
  // Who has pressed Ctrl-C does not want to wait for other ranks.
  if (was_interrupted()) aborted_ = true;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (watcher_.joinable()) watcher_.join();
}

bool DriverTransport::is_there(Stream& transfers) {
  const std::lock_guard lock(joining_);
  if (agreement_ == Agreement::kNone) {
    agreement_ = Agreement::kNo;  // unless the ranks agree, also where asking them fails
    agreement_ = agree(transfers.device());
    if (agreement_ == Agreement::kYes) stream_ = &transfers;
  }
  if (agreement_ == Agreement::kNo) return false;
  TORCH_CHECK_VALUE(&transfers.device() == &stream_->device(), "the group's collectives are those of ",
                    torch_stream(*stream_).device(), ", and not of ", torch_stream(transfers).device(),
                    ": make a group for each device");
  return true;
}

DriverTransport::Agreement DriverTransport::agree(Device& device) {
  const std::string own = described(device);
  if (rank_ == 0 && !own.empty()) store_->set(key_ + "id", bytes_of(Communicator::make_id(device)));
  store_->set(key_of(rank_), bytes_of(own));
  if (own.empty()) return Agreement::kNo;  // which the others will read
  const Clock::time_point end = Clock::now() + timeout_.load();
  std::vector<std::string> keys;
  for (int rank = 0; rank < size_; ++rank) keys.push_back(key_of(rank));
  wait_interruptibly([&] { return store_->check(keys) || aborted_ || Clock::now() > end; });
  if (aborted_) throw std::runtime_error("aborted");
  if (!store_->check(keys)) throw std::runtime_error("Timed out: not all ranks came to their first collective");
  for (const std::string& key : keys) {
    if (text_of(store_->get(key)) != own) return Agreement::kNo;
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  communicator_ = std::make_shared<Communicator>(device, text_of(store_->get(key_ + "id")), rank_, size_,
                                                 std::max(left, std::chrono::milliseconds(1)));
  return Agreement::kYes;
}

bool DriverTransport::reduces(ob_collective_kind kind, at::ScalarType dtype, ob_reduction reduction) const {
  return is_supported(communicator_->device(), kind, static_cast<uint32_t>(dtype), reduction);
}

void DriverTransport::submit(const DriverRequest& request) {
  if (request.before) request.before();
  Work step(stream_->wait_for_room());
  ob_collective what{};
  what.kind = request.kind;
  what.reduction = request.reduction;
  what.dtype = static_cast<uint32_t>(request.dtype);
  what.root = static_cast<uint32_t>(request.root);
  what.count = request.count;
  what.source = pointer(request.source, step, Access::kKeep);
  what.target = pointer(request.target, step, Access::kKeep);
  stream_->collective(std::make_shared<DriverCollective>(communicator_, what, request.sent, request.received));
}

void DriverTransport::start(c10::intrusive_ptr<CollectiveWork> work, DriverRequests requests,
                            std::chrono::milliseconds timeout) {
  if (timeout == c10d::kUnsetTimeout) timeout = timeout_;
  const std::lock_guard lock(mutex_);
  if (aborted_) throw std::runtime_error("the group is of no use any more: an earlier collective was aborted");
  auto end = std::make_unique<Event>(stream_->device());
  stream_->follow(aten::current_stream(static_cast<c10::DeviceIndex>(stream_->device().index())));
  {
    const c10::StreamGuard guard(torch_stream(*stream_));
    work->begin();
    for (const DriverRequest& request : requests) {
      submit(request);
      if (request.after) request.after();
    }
  }
  end->record(*stream_);
  pending_.push_back({std::move(work), std::move(requests), std::move(end), timeout, Clock::now() + timeout});
  if (!watcher_.joinable()) watcher_ = std::thread([this] { run(); });
  changed_.notify_all();
}

void DriverTransport::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pending_.empty(); });
}

void DriverTransport::abort() {
  aborted_ = true;
  const std::lock_guard lock(joining_);
  if (communicator_ != nullptr) communicator_->abort();
}

std::exception_ptr DriverTransport::outcome(const Pending& pending) {
  try {
    std::chrono::microseconds pause = kFirstPause;
    while (!pending.end->query()) {
      const bool late = Clock::now() > pending.deadline;
      if (late && !aborted_.exchange(true)) communicator_->abort();
      if (late) {
        const std::chrono::duration<double> limit = pending.timeout;
        throw std::runtime_error(c10::str("Timed out after ", limit.count(), " s"));
      }
      if (aborted_) communicator_->abort();
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
    }
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

/// The stream, which others may be given, tells nobody else what a work has told.
void DriverTransport::forget_failure() {
  try {
    stream_->finish();
  } catch (const Error&) {
    // It is the failure that the work has just told, or one of what was queued behind it and told as well.
  }
}

void DriverTransport::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !pending_.empty(); });
    if (pending_.empty()) return;
    const Pending& first = pending_.front();  // stays where it is while others are added
    lock.unlock();
    const std::exception_ptr error = outcome(first);
    lock.lock();
    if (error != nullptr && pending_.size() == 1) forget_failure();
    Pending ended = std::move(pending_.front());
    lock.unlock();
    error == nullptr ? ended.work->follow({}, {}) : ended.work->fail(error);
    lock.lock();
    pending_.pop_front();
    changed_.notify_all();
  }
}

namespace requests {
namespace {

using Tensors = std::vector<at::Tensor>;

/// What a driver may take as bytes.
const at::Tensor& usable(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "Tensors must be dense");
  TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(), "Tensors must be contiguous");
  TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), "Tensors must not be views that conjugate or negate");
  return tensor;
}

std::optional<ob_reduction> reduction_of(const c10d::ReduceOp& reduction, at::ScalarType dtype) {
  const bool truth = dtype == at::kBool;
  switch (reduction.op_) {
    case c10d::ReduceOp::SUM:
      return truth ? OB_MAX : OB_SUM;
    case c10d::ReduceOp::PRODUCT:
      return truth ? OB_MIN : OB_PRODUCT;
    case c10d::ReduceOp::MIN:
      return OB_MIN;
    case c10d::ReduceOp::MAX:
      return OB_MAX;
    case c10d::ReduceOp::BAND:
      return OB_BIT_AND;
    case c10d::ReduceOp::BOR:
      return OB_BIT_OR;
    case c10d::ReduceOp::BXOR:
      return OB_BIT_XOR;
    case c10d::ReduceOp::AVG:
      return OB_MEAN;
    default:
      return std::nullopt;
  }
}

/// A request that reduces, without tensors, if the driver does so.
std::optional<DriverRequest> reducing(const DriverTransport& driver, ob_collective_kind kind, at::ScalarType dtype,
                                      const c10d::ReduceOp& asked) {
  const std::optional<ob_reduction> reduction = reduction_of(asked, dtype);
  DriverRequest request(kind);
  request.dtype = dtype == at::kBool ? at::kByte : dtype;
  if (!reduction.has_value() || !driver.reduces(kind, request.dtype, *reduction)) return std::nullopt;
  request.reduction = *reduction;
  return request;
}

void add(DriverRequests& requests, DriverRequest request) {
  if (request.count != 0) requests.push_back(std::move(request));
}

/// New memory for the elements of `list`, one after the other.
at::Tensor joined(const Tensors& list) {
  int64_t count = 0;
  for (const at::Tensor& tensor : list) count += usable(tensor).numel();
  return at::empty({count}, list[0].options());
}

/// Copies between the parts of `whole` and the tensors.
std::function<void()> moving(at::Tensor whole, Tensors list, bool into_whole) {
  return [whole, list, into_whole] {
    int64_t begin = 0;
    for (at::Tensor tensor : list) {
      at::Tensor part = whole.slice(0, begin, begin + tensor.numel());
      begin += tensor.numel();
      at::Tensor elements = tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
      into_whole ? part.copy_(elements, /*non_blocking=*/true) : elements.copy_(part, /*non_blocking=*/true);
    }
  };
}

std::vector<uint64_t> bytes_of_each(const Tensors& list) {
  std::vector<uint64_t> bytes;
  for (const at::Tensor& tensor : list) bytes.push_back(tensor.nbytes());
  return bytes;
}

}  // namespace

DriverRequests broadcast(const Tensors& tensors, int root, int rank) {
  DriverRequests made;
  for (const at::Tensor& tensor : tensors) {
    DriverRequest request(OB_BROADCAST);
    request.root = root;
    request.target = usable(tensor);
    if (rank == root) request.source = tensor;
    request.count = tensor.nbytes();
    add(made, std::move(request));
  }
  return made;
}

std::optional<DriverRequests> all_reduce(const DriverTransport& driver, const Tensors& tensors,
                                         const c10d::ReduceOp& reduction) {
  DriverRequests made;
  for (const at::Tensor& tensor : tensors) {
    auto request = reducing(driver, OB_ALL_REDUCE, tensor.scalar_type(), reduction);
    if (!request.has_value()) return std::nullopt;
    request->source = request->target = usable(tensor);
    request->count = tensor.numel();
    add(made, std::move(*request));
  }
  return made;
}

std::optional<DriverRequests> reduce(const DriverTransport& driver, const at::Tensor& tensor,
                                     const c10d::ReduceOp& reduction, int root, int rank) {
  auto request = reducing(driver, OB_REDUCE, tensor.scalar_type(), reduction);
  if (!request.has_value()) return std::nullopt;
  request->source = usable(tensor);
  if (rank == root) request->target = tensor;
  request->root = root;
  request->count = tensor.numel();
  DriverRequests made;
  add(made, std::move(*request));
  return made;
}

DriverRequests all_gather(const Tensors& outputs, const Tensors& inputs) {
  DriverRequests made;
  for (size_t i = 0; i < outputs.size(); ++i) {
    DriverRequest request(OB_ALL_GATHER);
    request.source = usable(inputs[i]);
    request.target = usable(outputs[i]);
    request.count = inputs[i].nbytes();
    add(made, std::move(request));
  }
  return made;
}

DriverRequests all_gather_list(const Tensors& outputs, const at::Tensor& input) {
  DriverRequests made = all_gather({joined(outputs)}, {input});
  if (!made.empty()) made[0].after = moving(made[0].target, outputs, /*into_whole=*/false);
  return made;
}

std::optional<DriverRequests> reduce_scatter(const DriverTransport& driver, const Tensors& outputs,
                                             const Tensors& inputs, const c10d::ReduceOp& reduction) {
  DriverRequests made;
  for (size_t i = 0; i < outputs.size(); ++i) {
    auto request = reducing(driver, OB_REDUCE_SCATTER, outputs[i].scalar_type(), reduction);
    if (!request.has_value()) return std::nullopt;
    request->source = usable(inputs[i]);
    request->target = usable(outputs[i]);
    request->count = outputs[i].numel();
    add(made, std::move(*request));
  }
  return made;
}

std::optional<DriverRequests> reduce_scatter_list(const DriverTransport& driver, const at::Tensor& output,
                                                  const Tensors& inputs, const c10d::ReduceOp& reduction) {
  const at::Tensor whole = joined(inputs);
  auto made = reduce_scatter(driver, {output}, {whole}, reduction);
  if (made.has_value() && !made->empty()) made->front().before = moving(whole, inputs, /*into_whole=*/true);
  return made;
}

DriverRequests all_to_all(const at::Tensor& output, const at::Tensor& input, std::vector<uint64_t> sent,
                          std::vector<uint64_t> received) {
  DriverRequest request(OB_ALL_TO_ALL);
  request.source = usable(input);
  request.target = usable(output);
  request.sent = std::move(sent);
  request.received = std::move(received);
  return {std::move(request)};
}

DriverRequests all_to_all_list(const Tensors& outputs, const Tensors& inputs) {
  DriverRequests made = all_to_all(joined(outputs), joined(inputs), bytes_of_each(inputs), bytes_of_each(outputs));
  made[0].before = moving(made[0].source, inputs, /*into_whole=*/true);
  made[0].after = moving(made[0].target, outputs, /*into_whole=*/false);
  return made;
}

}  // namespace requests

}  // namespace outboard::distributed
