// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/backend.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "runtime/base/interruption.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/releases.h"
#include "torch/bridge/tensor.h"
#include "torch/distributed/shared_memory_backend.h"
#include "torch/distributed/without_python.h"

namespace outboard::distributed {
namespace {

using c10d::OpType;
using Tensors = DeviceBackend::Tensors;
using TensorLists = DeviceBackend::TensorLists;

/// The same text with a place that lasts.
const char* lasting(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string>* const texts = new std::set<std::string>();
  const std::lock_guard lock(mutex);
  return texts->insert(text).first->c_str();
}

Tensors joined(const TensorLists& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

const at::Tensor& only(const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "Expected one tensor, but got ", tensors.size());
  return tensors[0];
}

/// Dense elements in the order of memory.
at::Tensor flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

/// A reduction as the host library knows it.
struct Reduction {
  c10d::ReduceOp op;
  std::optional<double> factor;

  explicit Reduction(const c10d::ReduceOp& asked) : op(asked) {
    if (asked != c10d::ReduceOp::PREMUL_SUM) return;
    const auto* scale = dynamic_cast<releases::PreMulSumSupplement*>(asked.supplement_.get());
    TORCH_CHECK_VALUE(scale != nullptr, "ReduceOp.PREMUL_SUM needs a factor");
    op = c10d::ReduceOp(c10d::ReduceOp::SUM);
    factor = scale->tensor_factor.defined() ? scale->tensor_factor.item<double>() : scale->double_factor;
  }

  /// The same for numbers of this dtype: a sum of truth values is their "or", and must not be two. The host library has
  /// no mean of integers.
  c10d::ReduceOp of(at::ScalarType dtype) const {
    if (is_mean_of_integers(dtype)) return c10d::ReduceOp(c10d::ReduceOp::SUM);
    if (dtype != at::kBool) return op;
    if (op == c10d::ReduceOp::SUM) return c10d::ReduceOp(c10d::ReduceOp::MAX);
    if (op == c10d::ReduceOp::PRODUCT) return c10d::ReduceOp(c10d::ReduceOp::MIN);
    return op;
  }

  /// Throws c10::ValueError for what is not defined, c10::TypeError for what cannot be computed.
  void require(const at::Tensor& tensor) const {
    TORCH_CHECK_TYPE(tensor.scalar_type() != at::kBool || op != c10d::ReduceOp::AVG,
                     "Cannot use ReduceOp.AVG with Boolean inputs");
    TORCH_CHECK_VALUE(!tensor.is_complex() || c10d::isComplexViewAsRealAllowed(op),
                      "this reduction is not defined for complex tensors");
    switch (c10::toRealValueType(tensor.scalar_type())) {
      case at::kFloat:
      case at::kDouble:
      case at::kHalf:
      case at::kBFloat16:
      case at::kChar:
      case at::kByte:
      case at::kBool:
      case at::kInt:
      case at::kLong:
        return;
      default:
        TORCH_CHECK_TYPE(false, "Reductions across ranks are not there for ", tensor.scalar_type(),
                         ": convert the tensor to another dtype");
    }
  }

  /// What is done to a rank's numbers before the reduction.
  void scale(const at::Tensor& tensor) const {
    if (factor.has_value()) tensor.mul_(*factor);
  }

  /// What is done to the numbers that the host library has reduced over so many ranks: a mean of integers is their sum,
  /// divided without a remainder, as with NCCL.
  void finish(const at::Tensor& tensor, int ranks) const {
    if (is_mean_of_integers(tensor.scalar_type())) tensor.div_(ranks, "trunc");
  }

  /// Reduces the rows of `all`, which serve as scratch memory, into `result`.
  void fold(const at::Tensor& result, const at::Tensor& all) const {
    scale(all);
    result.copy_(all[0]);
    for (int64_t row = 1; row < all.size(0); ++row) add(result, all[row]);
    const auto ranks = static_cast<int>(all.size(0));
    finish(result, ranks);
    if (op == c10d::ReduceOp::AVG && !is_mean_of_integers(result.scalar_type())) result.div_(ranks);
  }

 private:
  bool is_mean_of_integers(at::ScalarType dtype) const {
    return op == c10d::ReduceOp::AVG && c10::isIntegralType(dtype, /*includeBool=*/false);
  }

  void add(const at::Tensor& result, const at::Tensor& other) const {
    at::Tensor target = result;
    switch (op.op_) {
      case c10d::ReduceOp::SUM:
      case c10d::ReduceOp::AVG:
        target.add_(other);
        return;
      case c10d::ReduceOp::PRODUCT:
        target.mul_(other);
        return;
      case c10d::ReduceOp::MIN:
        at::minimum_out(target, target, other);
        return;
      case c10d::ReduceOp::MAX:
        at::maximum_out(target, target, other);
        return;
      case c10d::ReduceOp::BAND:
        target.bitwise_and_(other);
        return;
      case c10d::ReduceOp::BOR:
        target.bitwise_or_(other);
        return;
      case c10d::ReduceOp::BXOR:
        target.bitwise_xor_(other);
        return;
      default:
        TORCH_CHECK(false, "Unhandled ReduceOp");
    }
  }
};

bool of_one_shape(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.sizes() == tensors[0].sizes() && tensor.scalar_type() == tensors[0].scalar_type();
  });
}

std::vector<int64_t> counts_of(const Tensors& tensors) {
  std::vector<int64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
  return counts;
}

Tensors flattened(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(flat(tensor));
  return result;
}

/// Bytes of a rank's tensor, or of its part of one, that go in one piece. All ranks of a group have to agree on parts,
/// so nothing else decides on them, such as where a rank's tensor is.
constexpr size_t kWhole = size_t{4} << 20;

bool is_long(const at::Tensor& tensor) { return tensor.nbytes() > kWhole && tensor.is_non_overlapping_and_dense(); }

/// Where parts of `count` elements begin, and the last one ends. They are alike, so that ranks with unlike tensors have
/// unlike parts from the first one on.
std::vector<int64_t> bounds_of_parts(int64_t count, size_t item) {
  const auto parts = std::max<int64_t>(1, static_cast<int64_t>((count * item + kWhole - 1) / kWhole));
  std::vector<int64_t> bounds;
  for (int64_t part = 0; part <= parts; ++part) bounds.push_back(count * part / parts);
  return bounds;
}

/// Elements of a dense tensor of the device, in the order of memory.
at::Tensor some_of(const at::Tensor& tensor, int64_t begin, int64_t end) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return tensor.as_strided({end - begin}, {1}, tensor.storage_offset() + begin);
}

/// Of elements that each of so many ranks has `count` of, one rank after another, those from `begin` to `end` of each.
std::vector<at::Tensor> some_of_each(const at::Tensor& tensor, int ranks, int64_t count, int64_t begin, int64_t end) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(some_of(tensor, rank * count + begin, rank * count + end));
  return parts;
}

bool are_dense(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); });
}

/// Waits for works of the host library. Throws what failed, or if the whole collective was aborted.
void wait_for(const std::vector<WorkPointer>& works, c10d::Work& whole) {
  wait_interruptibly([&] {
    return whole.isCompleted() ||
           std::all_of(works.begin(), works.end(), [](const WorkPointer& work) { return work->isCompleted(); });
  });
  if (whole.isCompleted()) throw std::runtime_error("aborted");
  for (const WorkPointer& work : works) work->wait();
}

/// The host library has no connection of a rank to itself.
void require_other(int peer, int rank) {
  TORCH_CHECK_VALUE(peer != rank, "rank ", rank, " cannot send to itself, or receive from itself: copy the tensor");
}

/// Calls a function, whose errors say what failed.
template <typename Function>
void with_label(const Label& label, Function&& function) {
  try {
    function();
  } catch (...) {
    std::rethrow_exception(explained(std::current_exception(), label));
  }
}

}  // namespace

DeviceOptions::DeviceOptions(const Group& group) : Options(group.backend, group.timeout) {
  group_name = group.name;
  global_ranks_in_group = group.global_ranks;
}

DeviceBackend::DeviceBackend(Group group, c10::intrusive_ptr<c10d::Backend> host, MakeHost make_host,
                             std::unique_ptr<DriverTransport> driver)
    : Backend(group.rank, group.size),
      group_(std::move(group)),
      options_(c10::make_intrusive<DeviceOptions>(group_)),
      make_host_(std::move(make_host)),
      host_(std::move(host)),
      driver_(std::move(driver)),
      issuer_(std::make_unique<Issuer>()),
      peer_issuer_(std::make_unique<Issuer>()) {}

DeviceBackend::~DeviceBackend() { shutdown(); }

void DeviceBackend::shutdown() {
  const WithoutPython released;
  drain();
  c10::intrusive_ptr<c10d::Backend> host;
  {
    const std::lock_guard lock(mutex_);
    host = std::move(host_);
  }
}

void DeviceBackend::drain() {
  issuer_->drain();
  peer_issuer_->drain();
  if (driver_ != nullptr) driver_->drain();
}

void DeviceBackend::abort() {
  const WithoutPython released;
  error_ = c10d::ErrorType::COMM_ERROR;
  c10::intrusive_ptr<c10d::Backend> host;
  std::vector<c10::weak_intrusive_ptr<c10d::Work>> outstanding;
  {
    const std::lock_guard lock(mutex_);
    host = std::move(host_);
    outstanding = std::move(outstanding_);
  }
  for (const auto& weak : outstanding) {
    if (const WorkPointer work = weak.lock()) work->abort();
  }
  if (driver_ != nullptr) driver_->abort();
  if (host != nullptr) host->abort();
  // Leaked: the host library would wait for its own operations, up to their timeout, and cannot close connections that
  // break meanwhile without ending the process.
  host.release();
}

c10::intrusive_ptr<c10d::Backend> DeviceBackend::host() {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, host_ != nullptr, group_.backend, ": group '", group_.name, "' was ",
                   error_ == c10d::ErrorType::SUCCESS ? "destroyed" : "aborted");
  return host_;
}

void DeviceBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  if (driver_ != nullptr) driver_->set_timeout(timeout);
  host()->setTimeout(timeout);
}

c10::intrusive_ptr<c10d::Backend> DeviceBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                       const std::vector<int>& ranks,
                                                       const c10::intrusive_ptr<Options>& options) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (place == ranks.end()) return nullptr;
  Group part{group_.backend,
             options->group_name,
             static_cast<int>(place - ranks.begin()),
             static_cast<int>(ranks.size()),
             options->timeout,
             {}};
  for (const int rank : ranks) {
    part.global_ranks.push_back(group_.global_ranks.empty() ? rank : group_.global_ranks.at(rank));
  }
  return remade(store, std::move(part));
}

c10::intrusive_ptr<c10d::Backend> DeviceBackend::remade(const c10::intrusive_ptr<c10d::Store>& store, Group group) {
  auto made = make_host_(store, group.rank, group.size, group.timeout, group.global_ranks);
  std::unique_ptr<DriverTransport> driver;
  if (driver_ != nullptr) driver = DriverTransport::make(store, *made, group.timeout);
  return c10::make_intrusive<DeviceBackend>(std::move(group), std::move(made), make_host_, std::move(driver));
}

c10::intrusive_ptr<c10d::Backend> DeviceBackend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                       const c10::intrusive_ptr<Options>& options, const int& rank,
                                                       const int& size) {
  Group whole{group_.backend, options->group_name, rank, size, options->timeout, options->global_ranks_in_group};
  return remade(store, std::move(whole));
}

Stream& DeviceBackend::transfers(c10::DeviceIndex index) {
  const auto place = static_cast<size_t>(index < 0 ? aten::current_device() : index);
  const std::lock_guard lock(mutex_);
  if (transfers_.size() <= place) transfers_.resize(place + 1, nullptr);
  if (transfers_[place] == nullptr) {
    transfers_[place] =
        aten::translate_errors([&] { return &aten::device(static_cast<c10::DeviceIndex>(place)).pool_stream(); });
  }
  return *transfers_[place];
}

void DeviceBackend::remember(const WorkPointer& work) {
  const std::lock_guard lock(mutex_);
  if (outstanding_.size() == outstanding_.capacity()) {
    outstanding_.erase(
        std::remove_if(outstanding_.begin(), outstanding_.end(), [](const auto& weak) { return weak.expired(); }),
        outstanding_.end());
  }
  outstanding_.emplace_back(work);
}

DeviceBackend::Call DeviceBackend::begin(OpType kind, const char* name, Tensors inputs, TensorLists results) {
  const uint64_t number = ++number_;
  c10::DeviceIndex index = -1;
  for (const Tensors& tensors : {inputs, joined(results)}) {
    if (!tensors.empty() && tensors[0].is_privateuseone()) index = tensors[0].device().index();
  }
  Label label{kind, lasting(group_.backend + ":" + name),
              c10::str(group_.backend, ": ", name, ", number ", number, " of group '", group_.name, "', on rank ",
                       rank_, " of ", size_),
              number};
  return {std::move(label), std::make_shared<Exchange>(transfers(index)), std::move(inputs), std::move(results)};
}

WorkPointer DeviceBackend::start_on_driver(Call& call, std::chrono::milliseconds timeout, const MakeRequests& make) {
  if (driver_ == nullptr) return nullptr;
  host();  // throws once the group is destroyed
  bool is_there = false;
  with_label(call.label, [&] { is_there = driver_->is_there(call.exchange->transfers()); });
  std::optional<DriverRequests> requests = is_there ? make() : std::nullopt;
  if (!requests.has_value()) return nullptr;
  auto work = c10::make_intrusive<CollectiveWork>(rank_, std::move(call.label), call.exchange, call.inputs,
                                                  std::move(call.results), row_);
  remember(work);
  with_label(work->label(), [&] { driver_->start(work, std::move(*requests), timeout); });
  return work;
}

WorkPointer DeviceBackend::start(Call call, Issue issue, std::function<void()> after) {
  call.exchange->seal();
  auto work = c10::make_intrusive<CollectiveWork>(rank_, std::move(call.label), call.exchange, call.inputs,
                                                  std::move(call.results), row_);
  remember(work);
  // Follows them when others may be issued: works that are done call back at once, and a callback may wait for others.
  const auto begun = std::make_shared<Works>();
  issuer_->put({call.exchange,
                [this, work, begun, issue = std::move(issue)] {
                  work->begin();
                  with_label(work->label(), [&] { *begun = issue(*host()); });
                },
                [work, begun, after = std::move(after)] { work->follow(*begun, after); },
                [work](const std::exception_ptr& error) { work->fail(error); }});
  return work;
}

WorkPointer DeviceBackend::start_parts(Call call, std::vector<Part> parts) {
  // The copies of all parts are on one stream: behind the last one's, all are there.
  call.exchange = parts.back().exchange;
  auto work = c10::make_intrusive<CollectiveWork>(rank_, std::move(call.label), call.exchange, call.inputs,
                                                  std::move(call.results), row_);
  remember(work);
  const auto issue = [this, work, parts = std::move(parts)] {
    for (const Part& part : parts) {
      part.exchange->wait();
      work->begin();
      with_label(work->label(), [&] { wait_for(part.issue(*host()), *work); });
      if (part.after) part.after();
      if (part.exchange == parts.back().exchange) return;
      work->end_part();
      part.exchange->give_back();
    }
  };
  issuer_->put({nullptr, issue, [work] { work->follow({}, {}); },
                [work](const std::exception_ptr& error) { work->fail(error); }, /*may_be_at_once=*/false});
  return work;
}

WorkPointer DeviceBackend::start_alike(Call call, Use use, IssueSome issue,
                                       std::function<void(const at::Tensor& some)> after) {
  const auto host_of = [use, only_moved = use != Use::kReadWrite](Exchange& exchange, const at::Tensor& tensor) {
    return flat(only_moved ? exchange.elements(tensor, use) : exchange.numbers(tensor, use));
  };
  if (std::none_of(call.inputs.begin(), call.inputs.end(), is_long)) {
    Tensors values;
    for (const at::Tensor& tensor : call.inputs) values.push_back(host_of(*call.exchange, tensor));
    const auto issue_all = [values, issue](Backend& host) mutable {
      Works works;
      for (at::Tensor& value : values) works.push_back(issue(host, value));
      return works;
    };
    if (!after) return start(std::move(call), issue_all);
    return start(std::move(call), issue_all, [values, after] { std::for_each(values.begin(), values.end(), after); });
  }
  std::vector<Part> parts;
  for (const at::Tensor& tensor : call.inputs) {
    const auto bounds = bounds_of_parts(tensor.numel(), tensor.itemsize());
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      auto exchange = std::make_shared<Exchange>(call.exchange->transfers());
      const bool is_whole = bounds.size() == 2;
      at::Tensor value = host_of(*exchange, is_whole ? tensor : some_of(tensor, bounds[i], bounds[i + 1]));
      exchange->seal();
      Part part{
          std::move(exchange), [value, issue](Backend& host) mutable -> Works { return {issue(host, value)}; }, {}};
      if (after) part.after = [value, after] { after(value); };
      parts.push_back(std::move(part));
    }
  }
  return start_parts(std::move(call), std::move(parts));
}

WorkPointer DeviceBackend::start_peer(Call call, std::function<WorkPointer(c10d::Backend& host)> issue) {
  call.exchange->seal();
  auto work = c10::make_intrusive<PeerWork>(rank_, std::move(call.label), call.exchange, only(call.inputs));
  remember(work);
  peer_issuer_->put(
      {call.exchange,
       [this, work, issue = std::move(issue)] { with_label(work->label(), [&] { work->begin(issue(*host())); }); },
       {},
       [work](const std::exception_ptr& error) { work->fail(error); }});
  return work;
}

WorkPointer DeviceBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  only(tensors);
  const Use use = options.rootRank == rank_ ? Use::kRead : Use::kWrite;
  Call call = begin(OpType::BROADCAST, "broadcast", tensors, {tensors});
  const auto on_driver = [&] { return requests::broadcast(tensors, static_cast<int>(options.rootRank), rank_); };
  if (auto work = start_on_driver(call, options.timeout, on_driver)) return work;
  return start_alike(std::move(call), use, [options](Backend& host, at::Tensor& some) {
    Tensors values{some};
    return host.broadcast(values, options);
  });
}

WorkPointer DeviceBackend::all_reduce(Call call, const c10d::AllreduceOptions& options) {
  const Reduction reduction(options.reduceOp);
  for (const at::Tensor& tensor : call.inputs) reduction.require(tensor);
  const auto on_driver = [&] { return requests::all_reduce(*driver_, call.inputs, options.reduceOp); };
  if (auto work = start_on_driver(call, options.timeout, on_driver)) return work;
  const auto issue = [reduction, host_options = options](Backend& host, at::Tensor& some) mutable {
    reduction.scale(some);
    host_options.reduceOp = reduction.of(some.scalar_type());
    Tensors values{some};
    return host.allreduce(values, host_options);
  };
  return start_alike(std::move(call), Use::kReadWrite, issue,
                     [reduction, ranks = size_](const at::Tensor& some) { reduction.finish(some, ranks); });
}

WorkPointer DeviceBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  only(tensors);
  return all_reduce(begin(OpType::ALLREDUCE, "all_reduce", tensors, {tensors}), options);
}

WorkPointer DeviceBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return all_reduce(begin(OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", tensors, {tensors}), options);
}

WorkPointer DeviceBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Call call = begin(OpType::REDUCE, "reduce", tensors, {tensors});
  const Reduction reduction(options.reduceOp);
  reduction.require(only(tensors));
  const auto on_driver = [&] {
    return requests::reduce(*driver_, tensors[0], options.reduceOp, static_cast<int>(options.rootRank), rank_);
  };
  if (auto work = start_on_driver(call, options.timeout, on_driver)) return work;
  const auto issue = [reduction, host_options = options](Backend& host, at::Tensor& some) mutable {
    reduction.scale(some);
    host_options.reduceOp = reduction.of(some.scalar_type());
    Tensors values{some};
    return host.reduce(values, host_options);
  };
  const bool is_root = options.rootRank == rank_;
  return start_alike(std::move(call), Use::kReadWrite, issue,
                     [reduction, is_root, ranks = size_](const at::Tensor& some) {
                       if (is_root) reduction.finish(some, ranks);
                     });
}

/// Each rank sends its tensor to all: the host library gathers tensors of one shape alone.
WorkPointer DeviceBackend::all_gather_uneven(Call call, const Tensors& outputs, const at::Tensor& input,
                                             const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs[rank_].sizes() == input.sizes() && outputs[rank_].scalar_type() == input.scalar_type(),
                    "all_gather: this rank's place in the output has shape ", outputs[rank_].sizes(), " and its input ",
                    input.sizes());
  const at::Tensor own = flat(call.exchange->elements(input, Use::kRead));
  const Tensors values = flattened(call.exchange->elements(outputs, Use::kWrite));
  return start(std::move(call), [this, own, values, timeout = options.timeout](Backend& host) {
    values[rank_].copy_(own);
    Works works;
    for (int root = 0; root < size_; ++root) {
      c10d::BroadcastOptions from;
      from.rootRank = root;
      from.timeout = timeout;
      Tensors one{values[root]};
      works.push_back(host.broadcast(one, from));
    }
    return works;
  });
}

WorkPointer DeviceBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  Call call = begin(OpType::ALLGATHER, "all_gather", inputs, outputs);
  const at::Tensor& input = only(inputs);
  TORCH_CHECK_VALUE(outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_,
                    "all_gather: the output must have a tensor for each of the ", size_, " ranks");
  if (!of_one_shape(outputs[0])) return all_gather_uneven(std::move(call), outputs[0], input, options);
  if (outputs[0][0].numel() == input.numel() && outputs[0][0].scalar_type() == input.scalar_type()) {
    const auto on_driver = [&] { return requests::all_gather_list(outputs[0], input); };
    if (auto work = start_on_driver(call, options.timeout, on_driver)) return work;
  }
  Tensors own{call.exchange->elements(input, Use::kRead)};
  TensorLists values{call.exchange->elements(outputs[0], Use::kWrite)};
  return start(std::move(call), [own, values, options](Backend& host) mutable -> Works {
    return {host.allgather(values, own, options)};
  });
}

WorkPointer DeviceBackend::all_gather_bases(Call call, const Tensors& outputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == call.inputs.size(), "all_gather: ", outputs.size(), " outputs for ",
                    call.inputs.size(), " inputs");
  for (size_t i = 0; i < outputs.size(); ++i) {
    TORCH_CHECK_TYPE(outputs[i].scalar_type() == call.inputs[i].scalar_type(),
                     "output tensor must have the same type as input tensor");
    TORCH_CHECK_VALUE(outputs[i].numel() == call.inputs[i].numel() * size_,
                      "output tensor size must be equal to world_size times input tensor size");
  }
  const auto on_driver = [&] { return requests::all_gather(outputs, call.inputs); };
  if (auto work = start_on_driver(call, options.timeout, on_driver)) return work;
  if (are_dense(outputs) && std::any_of(call.inputs.begin(), call.inputs.end(), is_long)) {
    return all_gather_long(std::move(call), outputs, options);
  }
  Tensors own = flattened(call.exchange->elements(call.inputs, Use::kRead));
  Tensors values = flattened(call.exchange->elements(outputs, Use::kWrite));
  return start(std::move(call), [own, values, options](Backend& host) mutable {
    Works works;
    for (size_t i = 0; i < own.size(); ++i) works.push_back(host._allgather_base(values[i], own[i], options));
    return works;
  });
}

WorkPointer DeviceBackend::all_gather_long(Call call, const Tensors& outputs, const c10d::AllgatherOptions& options) {
  std::vector<Part> parts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int64_t count = call.inputs[i].numel();
    const auto bounds = bounds_of_parts(count, call.inputs[i].itemsize());
    for (size_t k = 0; k + 1 < bounds.size(); ++k) {
      auto exchange = std::make_shared<Exchange>(call.exchange->transfers());
      const Tensors places = some_of_each(outputs[i], size_, count, bounds[k], bounds[k + 1]);
      Tensors own{flat(exchange->elements(some_of(call.inputs[i], bounds[k], bounds[k + 1]), Use::kRead))};
      TensorLists values{flattened(exchange->elements(places, Use::kWrite))};
      exchange->seal();
      parts.push_back(
          {std::move(exchange),
           [own, values, options](Backend& host) mutable -> Works { return {host.allgather(values, own, options)}; },
           {}});
    }
  }
  return start_parts(std::move(call), std::move(parts));
}

WorkPointer DeviceBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::AllgatherOptions& options) {
  return all_gather_bases(begin(OpType::_ALLGATHER_BASE, "all_gather_into_tensor", {input}, {{output}}), {output},
                          options);
}

WorkPointer DeviceBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllgatherOptions& options) {
  return all_gather_bases(begin(OpType::COALESCED, "all_gather_into_tensor_coalesced", inputs, {outputs}), outputs,
                          options);
}

WorkPointer DeviceBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                               const c10d::AllgatherOptions& options) {
  Call call = begin(OpType::ALLGATHER_COALESCED, "all_gather_coalesced", inputs, outputs);
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == size_, "all_gather_coalesced: ", outputs.size(),
                    " lists of outputs for ", size_, " ranks");
  TensorLists values;
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "all_gather_coalesced: ", list.size(), " outputs for ",
                      inputs.size(), " inputs");
    values.push_back(call.exchange->elements(list, Use::kWrite));
  }
  const Tensors own = call.exchange->elements(inputs, Use::kRead);
  return start(std::move(call), [own, values, options](Backend& host) {
    Works works;
    for (size_t i = 0; i < own.size(); ++i) {
      Tensors one{own[i]};
      TensorLists all(1);
      for (const Tensors& list : values) all[0].push_back(list[i]);
      works.push_back(host.allgather(all, one, options));
    }
    return works;
  });
}

WorkPointer DeviceBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  Call call = begin(OpType::GATHER, "gather", inputs, outputs);
  Tensors own{call.exchange->elements(only(inputs), Use::kRead)};
  TensorLists values;
  for (const Tensors& list : outputs) values.push_back(call.exchange->elements(list, Use::kWrite));
  return start(std::move(call),
               [own, values, options](Backend& host) mutable -> Works { return {host.gather(values, own, options)}; });
}

WorkPointer DeviceBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  Call call = begin(OpType::SCATTER, "scatter", joined(inputs), {outputs});
  Tensors own{call.exchange->elements(only(outputs), Use::kWrite)};
  TensorLists values;
  for (const Tensors& list : inputs) values.push_back(call.exchange->elements(list, Use::kRead));
  return start(std::move(call),
               [own, values, options](Backend& host) mutable -> Works { return {host.scatter(own, values, options)}; });
}

/// Each rank gets from all what belongs to it, and reduces that in the order of the ranks. The host library would have
/// everybody get and reduce everything.
DeviceBackend::Part DeviceBackend::reduced_part(std::shared_ptr<Exchange> exchange, Tensors own,
                                                std::vector<Tensors> pieces,
                                                const c10d::ReduceScatterOptions& options) {
  const Reduction reduction(options.reduceOp);
  Tensors arrived;
  for (const at::Tensor& output : own) arrived.push_back(at::empty({size_, output.numel()}, output.options()));
  const auto issue = [this, own, pieces, arrived, timeout = options.timeout](Backend& host) {
    Works works;
    for (size_t i = 0; i < own.size(); ++i) {
      c10d::AllToAllOptions host_options;
      host_options.timeout = timeout;
      at::Tensor leaving = pieces[i].size() == 1 ? pieces[i][0] : at::cat(pieces[i]);
      at::Tensor arriving = flat(arrived[i]);
      std::vector<int64_t> received(size_, own[i].numel());
      std::vector<int64_t> sent = pieces[i].size() == 1 ? received : counts_of(pieces[i]);
      works.push_back(host.alltoall_base(arriving, leaving, received, sent, host_options));
    }
    return works;
  };
  const auto after = [own, arrived, reduction] {
    for (size_t i = 0; i < own.size(); ++i) reduction.fold(own[i], arrived[i]);
  };
  return {std::move(exchange), issue, after};
}

WorkPointer DeviceBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                          const c10d::ReduceScatterOptions& options) {
  Call call = begin(OpType::REDUCE_SCATTER, "reduce_scatter", joined(inputs), {outputs});
  TORCH_CHECK_VALUE(inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_,
                    "reduce_scatter: the input must have a tensor for each of the ", size_, " ranks");
  only(outputs);
  for (const at::Tensor& input : inputs[0]) {
    TORCH_CHECK_TYPE(input.scalar_type() == outputs[0].scalar_type(), "Tensors must have identical type");
  }
  TORCH_CHECK_VALUE(inputs[0][rank_].sizes() == outputs[0].sizes(), "reduce_scatter: the output has shape ",
                    outputs[0].sizes(), " and this rank's place in the input ", inputs[0][rank_].sizes());
  Reduction(options.reduceOp).require(outputs[0]);
  if (of_one_shape(inputs[0])) {
    const auto on_driver = [&] {
      return requests::reduce_scatter_list(*driver_, outputs[0], inputs[0], options.reduceOp);
    };
    if (auto work = start_on_driver(call, options.timeout, on_driver)) return work;
  }
  Tensors own = flattened(call.exchange->numbers(outputs, Use::kWrite));
  Tensors pieces = flattened(call.exchange->numbers(inputs[0], Use::kRead));
  Part whole = reduced_part(call.exchange, std::move(own), {std::move(pieces)}, options);
  return start(std::move(call), std::move(whole.issue), std::move(whole.after));
}

WorkPointer DeviceBackend::reduce_scatter_bases(Call call, const Tensors& outputs,
                                                const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == call.inputs.size(), "reduce_scatter: ", outputs.size(), " outputs for ",
                    call.inputs.size(), " inputs");
  const Reduction reduction(options.reduceOp);
  for (size_t i = 0; i < outputs.size(); ++i) {
    reduction.require(outputs[i]);
    TORCH_CHECK_TYPE(outputs[i].scalar_type() == call.inputs[i].scalar_type(),
                     "input tensor must be the same type as the output tensor.");
    TORCH_CHECK_VALUE(call.inputs[i].numel() == outputs[i].numel() * size_,
                      "input tensor must be the same size as output size times world size");
  }
  const auto on_driver = [&] { return requests::reduce_scatter(*driver_, outputs, call.inputs, options.reduceOp); };
  if (auto work = start_on_driver(call, options.timeout, on_driver)) return work;
  if (are_dense(call.inputs) && std::any_of(outputs.begin(), outputs.end(), is_long)) {
    return reduce_scatter_long(std::move(call), outputs, options);
  }
  std::vector<Tensors> pieces;
  for (const at::Tensor& input : call.inputs) pieces.push_back({flat(call.exchange->numbers(input, Use::kRead))});
  Tensors own = flattened(call.exchange->numbers(outputs, Use::kWrite));
  Part whole = reduced_part(call.exchange, std::move(own), std::move(pieces), options);
  return start(std::move(call), std::move(whole.issue), std::move(whole.after));
}

WorkPointer DeviceBackend::reduce_scatter_long(Call call, const Tensors& outputs,
                                               const c10d::ReduceScatterOptions& options) {
  std::vector<Part> parts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int64_t count = outputs[i].numel();
    const auto bounds = bounds_of_parts(count, outputs[i].itemsize());
    for (size_t k = 0; k + 1 < bounds.size(); ++k) {
      auto exchange = std::make_shared<Exchange>(call.exchange->transfers());
      const Tensors asked = some_of_each(call.inputs[i], size_, count, bounds[k], bounds[k + 1]);
      Tensors pieces = flattened(exchange->numbers(asked, Use::kRead));
      Tensors own{flat(exchange->numbers(some_of(outputs[i], bounds[k], bounds[k + 1]), Use::kWrite))};
      exchange->seal();
      parts.push_back(reduced_part(std::move(exchange), std::move(own), {std::move(pieces)}, options));
    }
  }
  return start_parts(std::move(call), std::move(parts));
}

WorkPointer DeviceBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& options) {
  return reduce_scatter_bases(begin(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", {input}, {{output}}),
                              {output}, options);
}

WorkPointer DeviceBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::ReduceScatterOptions& options) {
  return reduce_scatter_bases(
      begin(OpType::REDUCE_SCATTER_TENSOR_COALESCED, "reduce_scatter_tensor_coalesced", inputs, {outputs}), outputs,
      options);
}

WorkPointer DeviceBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                         std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  Call call = begin(OpType::ALLTOALL_BASE, "all_to_all_single", {input}, {{output}});
  TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(), "Tensors must have identical type");
  const auto on_driver = [&] {
    return requests::all_to_all(output, input, bytes_of_parts(input, input_splits, size_),
                                bytes_of_parts(output, output_splits, size_));
  };
  if (auto work = start_on_driver(call, options.timeout, on_driver)) return work;
  at::Tensor own = call.exchange->elements(input, Use::kRead);
  at::Tensor values = call.exchange->elements(output, Use::kWrite);
  return start(std::move(call), [own, values, output_splits, input_splits, options](Backend& host) mutable -> Works {
    return {host.alltoall_base(values, own, output_splits, input_splits, options)};
  });
}

/// In one piece: the host library takes lists of tensors of one shape alone.
WorkPointer DeviceBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  Call call = begin(OpType::ALLTOALL, "all_to_all", inputs, {outputs});
  const auto ranks = static_cast<size_t>(size_);
  TORCH_CHECK_VALUE(outputs.size() == ranks && inputs.size() == ranks, "all_to_all: ", outputs.size(), " outputs and ",
                    inputs.size(), " inputs for ", size_, " ranks");
  for (const Tensors* tensors : {&outputs, &inputs}) {
    for (const at::Tensor& tensor : *tensors) {
      TORCH_CHECK_TYPE(tensor.scalar_type() == inputs[0].scalar_type(), "Tensors must have identical type");
    }
  }
  const auto on_driver = [&] { return requests::all_to_all_list(outputs, inputs); };
  if (auto work = start_on_driver(call, options.timeout, on_driver)) return work;
  const Tensors own = flattened(call.exchange->elements(inputs, Use::kRead));
  const Tensors values = flattened(call.exchange->elements(outputs, Use::kWrite));
  auto sent = counts_of(own), received = counts_of(values);
  int64_t total = 0;
  for (const int64_t count : received) total += count;
  at::Tensor arrived = at::empty({total}, own[0].options());
  const auto issue = [own, arrived, sent, received, options](Backend& host) mutable -> Works {
    at::Tensor leaving = at::cat(own);
    return {host.alltoall_base(arrived, leaving, received, sent, options)};
  };
  const auto after = [arrived, values, received] {
    int64_t begin = 0;
    for (size_t i = 0; i < values.size(); begin += received[i++]) {
      values[i].copy_(arrived.slice(0, begin, begin + received[i]));
    }
  };
  return start(std::move(call), issue, after);
}

WorkPointer DeviceBackend::send(Tensors& tensors, int target, int tag) {
  require_other(target, rank_);
  Call call = begin(OpType::SEND, "send", tensors, {});
  Tensors values{flat(call.exchange->elements(only(tensors), Use::kRead))};
  return start_peer(std::move(call),
                    [values, target, tag](Backend& host) mutable { return host.send(values, target, tag); });
}

WorkPointer DeviceBackend::recv(Tensors& tensors, int source, int tag) {
  require_other(source, rank_);
  Call call = begin(OpType::RECV, "recv", tensors, {});
  Tensors values{flat(call.exchange->elements(only(tensors), Use::kWrite))};
  return start_peer(std::move(call),
                    [values, source, tag](Backend& host) mutable { return host.recv(values, source, tag); });
}

WorkPointer DeviceBackend::recvAnysource(Tensors& tensors, int tag) {
  Call call = begin(OpType::RECVANYSOURCE, "recvAnySource", tensors, {});
  Tensors values{flat(call.exchange->elements(only(tensors), Use::kWrite))};
  return start_peer(std::move(call), [values, tag](Backend& host) mutable { return host.recvAnysource(values, tag); });
}

WorkPointer DeviceBackend::barrier(const c10d::BarrierOptions& options) {
  return start(begin(OpType::BARRIER, "barrier", {}, {}),
               [options](Backend& host) -> Works { return {host.barrier(options)}; });
}

void DeviceBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  drain();
  host()->monitoredBarrier(options, wait_all_ranks);
}

void DeviceBackend::setSequenceNumberForGroup() { host()->setSequenceNumberForGroup(); }

uint64_t DeviceBackend::getSequenceNumberForGroup() { return host()->getSequenceNumberForGroup(); }

}  // namespace outboard::distributed
