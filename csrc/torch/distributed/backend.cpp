// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/backend.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "runtime/base/interruption.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/releases.h"
#include "torch/bridge/tensor.h"
#include "torch/distributed/terms.h"
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

/// The elements of all tensors, one after the other.
at::Tensor in_a_row(const Tensors& tensors) {
  Tensors rows;
  for (const at::Tensor& tensor : tensors) rows.push_back(tensor.reshape({-1}));
  return at::cat(rows);
}

Tensors flattened(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(flat(tensor));
  return result;
}

bool is_long(const at::Tensor& tensor) { return tensor.nbytes() > kWhole && tensor.is_non_overlapping_and_dense(); }

/// How many parts so many bytes have.
int64_t parts_of(uint64_t bytes) { return std::max<int64_t>(1, static_cast<int64_t>((bytes + kWhole - 1) / kWhole)); }

/// Elements of a dense tensor of the device, in the order of memory.
at::Tensor some_of(const at::Tensor& tensor, int64_t begin, int64_t end) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return tensor.as_strided({end - begin}, {1}, tensor.storage_offset() + begin);
}

/// A part of a dense tensor's elements. Parts are alike, so that ranks with unlike tensors have unlike parts from the
/// first one on.
at::Tensor part_of(const at::Tensor& tensor, int64_t part, int64_t parts) {
  return some_of(tensor, tensor.numel() * part / parts, tensor.numel() * (part + 1) / parts);
}

Tensors part_of_each(const Tensors& tensors, int64_t part, int64_t parts) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(part_of(tensor, part, parts));
  return result;
}

/// What belongs to each rank of a dense tensor of all.
Tensors places_of(const at::Tensor& tensor, int ranks) {
  Tensors places;
  for (int rank = 0; rank < ranks; ++rank) places.push_back(part_of(tensor, rank, ranks));
  return places;
}

/// The same elements in the order of rows, in which ranks exchange lists of tensors.
Tensors contiguous(const Tensors& tensors) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.contiguous());
  return result;
}

/// Tensors to receive into in the order of rows: these, where that is theirs.
Tensors contiguous_places(const Tensors& tensors) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.is_contiguous() ? tensor : at::empty(tensor.sizes(), tensor.options()));
  }
  return result;
}

/// Copies what has arrived elsewhere to where it belongs.
void copy_back(const Tensors& from, const Tensors& to) {
  for (size_t i = 0; i < from.size(); ++i) {
    if (!from[i].is_same(to[i])) to[i].copy_(from[i]);
  }
}

bool are_dense(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); });
}

/// A part that moves nothing: what has arrived elsewhere is copied to where it belongs, behind the parts before it.
template <typename MakePart>
void add_copies(std::vector<MakePart>& parts, const Tensors& from, const Tensors& to, Stream& copies) {
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i].is_same(to[i])) continue;
    parts.push_back([source = from[i], target = to[i], &copies](Exchange&) -> typename MakePart::result_type {
      return {[](c10d::Backend&) -> std::vector<WorkPointer> { return {}; },
              [source, target, &copies] {
                const at::AutoDispatchBelowADInplaceOrView below_autograd;
                const c10::StreamGuard guard(torch_stream(copies));
                target.copy_(source);
              }};
    });
  }
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

/// Greater tags are those of long messages' contents.
void require_tag(int tag) {
  TORCH_CHECK_VALUE(tag >= 0 && tag < kTags, "a message's tag must be from 0 to ", kTags - 1, ", but is ", tag);
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

DeviceBackend::Streams DeviceBackend::streams(c10::DeviceIndex index) {
  const auto place = static_cast<size_t>(index < 0 ? aten::current_device() : index);
  const std::lock_guard lock(mutex_);
  if (streams_.size() <= place) streams_.resize(place + 1);
  Streams& here = streams_[place];
  if (here.transfers == nullptr) {
    aten::translate_errors([&] {
      here.transfers = &aten::device(static_cast<c10::DeviceIndex>(place)).pool_stream();
      here.parts = &aten::device(static_cast<c10::DeviceIndex>(place)).pool_stream();
    });
  }
  return here;
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

void DeviceBackend::come_behind_others(const Call& call, bool on_driver) {
  const Tensors written = joined(call.results);
  std::vector<c10::intrusive_ptr<c10d::Work>> earlier;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : outstanding_) {
      if (WorkPointer work = weak.lock()) earlier.push_back(std::move(work));
    }
  }
  for (const WorkPointer& work : earlier) {
    auto* const collective = dynamic_cast<CollectiveWork*>(work.get());
    if (collective == nullptr || (on_driver && collective->on_driver())) continue;
    if (!collective->is_in_the_way(call.inputs, written)) continue;
    const WithoutPython released;
    wait_interruptibly([&] { return work->isCompleted(); });
    work->synchronize();
  }
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
  const Streams own = streams(index);
  return {std::move(label), std::make_shared<Exchange>(*own.transfers), std::move(inputs), std::move(results),
          own.parts};
}

WorkPointer DeviceBackend::start_on_driver(Call& call, std::chrono::milliseconds timeout, const MakeRequests& make) {
  std::optional<DriverRequests> requests;
  if (driver_ != nullptr) {
    host();  // throws once the group is destroyed
    bool is_there = false;
    with_label(call.label, [&] { is_there = driver_->is_there(call.exchange->transfers()); });
    if (is_there) requests = make();
  }
  come_behind_others(call, requests.has_value());
  if (!requests.has_value()) return nullptr;
  auto work = c10::make_intrusive<CollectiveWork>(rank_, std::move(call.label), call.exchange, call.inputs,
                                                  std::move(call.results), row_);
  work->set_on_driver();
  remember(work);
  with_label(work->label(), [&] { driver_->start(work, std::move(*requests), timeout); });
  return work;
}

WorkPointer DeviceBackend::start(Call call, Issue issue, std::function<void()> after) {
  return start(
      std::move(call), [issue = std::move(issue)](Backend& host, CollectiveWork&) { return issue(host); },
      std::move(after));
}

WorkPointer DeviceBackend::start(Call call, std::function<Works(Backend& host, CollectiveWork& work)> issue,
                                 std::function<void()> after) {
  call.exchange->seal();
  auto work = c10::make_intrusive<CollectiveWork>(rank_, std::move(call.label), call.exchange, call.inputs,
                                                  std::move(call.results), row_);
  remember(work);
  // Follows them when others may be issued: works that are done call back at once, and a callback may wait for others.
  const auto begun = std::make_shared<Works>();
  issuer_->put({call.exchange,
                [this, work, begun, issue = std::move(issue)] {
                  work->begin();
                  with_label(work->label(), [&] { *begun = issue(*host(), *work); });
                },
                [work, begun, after = std::move(after)] { work->follow(*begun, after); },
                [work](const std::exception_ptr& error) { work->fail(error); }});
  return work;
}

WorkPointer DeviceBackend::start_parts(Call call, Plan plan) {
  call.exchange = std::make_shared<Exchange>(call.exchange->transfers(), Exchange::Role::kNone);
  call.exchange->seal();
  auto work = c10::make_intrusive<CollectiveWork>(rank_, std::move(call.label), call.exchange, call.inputs,
                                                  std::move(call.results), row_);
  remember(work);
  const auto issue = [this, work, plan = std::move(plan), exchange = call.exchange, copies = call.parts] {
    work->begin();
    with_label(work->label(), [&] { run_parts(*work, plan(*work), *copies); });
    exchange->give_back_behind(*copies);
  };
  issuer_->put({call.exchange, issue, [work] { work->follow({}, {}); },
                [work](const std::exception_ptr& error) { work->fail(error); }, /*may_be_at_once=*/false});
  return work;
}

void DeviceBackend::run_parts(CollectiveWork& work, const std::vector<MakePart>& parts, Stream& copies) {
  struct Staged {
    std::shared_ptr<Exchange> exchange;
    Part part;
  };
  std::deque<Staged> ahead;
  std::shared_ptr<Exchange> leaving;
  size_t staged = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (; staged < std::min(parts.size(), i + 1 + kAhead); ++staged) {
      auto exchange = std::make_shared<Exchange>(copies, Exchange::Role::kPart);
      Part part = parts[staged](*exchange);
      exchange->seal();
      ahead.push_back({std::move(exchange), std::move(part)});
    }
    const Staged now = std::move(ahead.front());
    ahead.pop_front();
    now.exchange->wait();
    if (i != 0) work.begin();
    wait_for(now.part.issue(*host()), work);
    if (now.part.after) now.part.after();
    if (i + 1 != parts.size()) work.end_part();
    if (leaving != nullptr) leaving->wait_until_given_back();
    leaving = now.exchange;
    leaving->give_back();
  }
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
  std::vector<MakePart> parts;
  for (const at::Tensor& tensor : call.inputs) {
    const int64_t count = parts_of(tensor.nbytes());
    for (int64_t i = 0; i < count; ++i) {
      parts.push_back([host_of, issue, after, some = count == 1 ? tensor : part_of(tensor, i, count)](Exchange& own) {
        at::Tensor value = host_of(own, some);
        Part part{[value, issue](Backend& host) mutable -> Works { return {issue(host, value)}; }, {}};
        if (after) part.after = [value, after] { after(value); };
        return part;
      });
    }
  }
  return start_parts(std::move(call), [parts](CollectiveWork&) { return parts; });
}

WorkPointer DeviceBackend::start_peer(Call call, Use use,
                                      const std::function<std::unique_ptr<Message>(Content content)>& make) {
  const at::Tensor& tensor = only(call.inputs);
  Content content{tensor.nbytes(), {}};
  Stream* copies = nullptr;
  if (is_long(tensor)) {
    copies = call.parts;
    call.exchange = std::make_shared<Exchange>(call.exchange->transfers(), Exchange::Role::kNone);
    content.part = [tensor, use, copies](uint64_t begin, uint64_t end) -> Content::Part {
      const auto item = static_cast<uint64_t>(tensor.itemsize());
      auto exchange = std::make_shared<Exchange>(*copies, Exchange::Role::kPart);
      const at::Tensor host = flat(exchange->elements(some_of(tensor, begin / item, end / item), use));
      exchange->seal();
      return {std::move(exchange), host};
    };
  } else {
    const at::Tensor host = flat(call.exchange->elements(tensor, use));
    content.part = [host](uint64_t, uint64_t) -> Content::Part { return {nullptr, host}; };
  }
  call.exchange->seal();
  auto work =
      c10::make_intrusive<PeerWork>(rank_, std::move(call.label), call.exchange, tensor, make(std::move(content)));
  remember(work);
  // A long message's header does not wait for the device.
  peer_issuer_->put({copies == nullptr ? call.exchange : nullptr,
                     [this, work, copies] { with_label(work->label(), [&] { work->begin(host(), copies); }); },
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
  const auto broadcast_from = [timeout = options.timeout](Backend& host, int root, const at::Tensor& value) {
    c10d::BroadcastOptions from;
    from.rootRank = root;
    from.timeout = timeout;
    Tensors one{value};
    return host.broadcast(one, from);
  };
  if (are_dense({input}) && are_dense(outputs) && std::any_of(outputs.begin(), outputs.end(), is_long)) {
    std::vector<MakePart> parts;
    Tensors places = contiguous_places(outputs);
    places[rank_] = contiguous({input})[0];
    for (int root = 0; root < size_; ++root) {
      const int64_t count = parts_of(outputs[root].nbytes());
      const bool is_own = root == rank_;
      for (int64_t k = 0; k < count; ++k) {
        parts.push_back(
            [is_own, root, broadcast_from, some = part_of(places[root], k, count)](Exchange& exchange) -> Part {
              const at::Tensor value = flat(exchange.elements(some, is_own ? Use::kRead : Use::kWrite));
              return {[=](Backend& host) -> Works { return {broadcast_from(host, root, value)}; }, {}};
            });
      }
    }
    add_copies(parts, places, outputs, *call.parts);
    return start_parts(std::move(call), [parts](CollectiveWork&) { return parts; });
  }
  const at::Tensor own = call.exchange->elements(input, Use::kRead);
  const Tensors values = call.exchange->elements(outputs, Use::kWrite);
  const Tensors places = contiguous_places(values);
  const auto issue = [this, own, places, broadcast_from](Backend& host) {
    places[rank_].copy_(own);
    Works works;
    for (int root = 0; root < size_; ++root) works.push_back(broadcast_from(host, root, flat(places[root])));
    return works;
  };
  return start(std::move(call), issue, [places, values] { copy_back(places, values); });
}

WorkPointer DeviceBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  Call call = begin(OpType::ALLGATHER, "all_gather", inputs, outputs);
  const at::Tensor& input = only(inputs);
  TORCH_CHECK_VALUE(outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_,
                    "all_gather: the output must have a tensor for each of the ", size_, " ranks");
  if (!of_one_shape(outputs[0])) {
    come_behind_others(call, /*on_driver=*/false);
    return all_gather_uneven(std::move(call), outputs[0], input, options);
  }
  if (outputs[0][0].numel() == input.numel() && outputs[0][0].scalar_type() == input.scalar_type()) {
    const auto on_driver = [&] { return requests::all_gather_list(outputs[0], input); };
    if (auto work = start_on_driver(call, options.timeout, on_driver)) return work;
    if (is_long(input) && are_dense(outputs[0])) return all_gather_long(std::move(call), outputs, options);
  }
  const Tensors own{call.exchange->elements(input, Use::kRead)};
  const Tensors values = call.exchange->elements(outputs[0], Use::kWrite);
  const Tensors places = contiguous_places(values);
  const auto issue = [own, places, options](Backend& host) -> Works {
    Tensors leaving = contiguous(own);
    TensorLists arriving{places};
    return {host.allgather(arriving, leaving, options)};
  };
  return start(std::move(call), issue, [places, values] { copy_back(places, values); });
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
    // In the order of memory, as short ones.
    TensorLists places;
    for (const at::Tensor& output : outputs) places.push_back(places_of(output, size_));
    for (at::Tensor& input : call.inputs) input = part_of(input, 0, 1);
    return all_gather_long(std::move(call), places, options);
  }
  Tensors own = flattened(call.exchange->elements(call.inputs, Use::kRead));
  Tensors values = flattened(call.exchange->elements(outputs, Use::kWrite));
  return start(std::move(call), [own, values, options](Backend& host) mutable {
    Works works;
    for (size_t i = 0; i < own.size(); ++i) works.push_back(host._allgather_base(values[i], own[i], options));
    return works;
  });
}

WorkPointer DeviceBackend::all_gather_long(Call call, const TensorLists& outputs,
                                           const c10d::AllgatherOptions& options) {
  const Tensors inputs = contiguous(call.inputs);
  TensorLists places;
  for (const Tensors& list : outputs) places.push_back(contiguous_places(list));
  std::vector<MakePart> parts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int64_t count = parts_of(inputs[i].nbytes());
    for (int64_t k = 0; k < count; ++k) {
      parts.push_back([options, own = part_of(inputs[i], k, count),
                       arriving = part_of_each(places[i], k, count)](Exchange& exchange) -> Part {
        Tensors leaving{flat(exchange.elements(own, Use::kRead))};
        TensorLists values{flattened(exchange.elements(arriving, Use::kWrite))};
        return {[leaving, values, options](Backend& host) mutable -> Works {
                  return {host.allgather(values, leaving, options)};
                },
                {}};
      });
    }
    add_copies(parts, places[i], outputs[i], *call.parts);
  }
  return start_parts(std::move(call), [parts](CollectiveWork&) { return parts; });
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
  come_behind_others(call, /*on_driver=*/false);
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == size_, "all_gather_coalesced: ", outputs.size(),
                    " lists of outputs for ", size_, " ranks");
  TensorLists by_input(inputs.size());
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "all_gather_coalesced: ", list.size(), " outputs for ",
                      inputs.size(), " inputs");
    for (size_t i = 0; i < inputs.size(); ++i) {
      TORCH_CHECK_VALUE(list[i].nbytes() == inputs[i].nbytes(), "all_gather_coalesced: an output has shape ",
                        list[i].sizes(), " and the input ", inputs[i].sizes());
      by_input[i].push_back(list[i]);
    }
  }
  if (std::any_of(inputs.begin(), inputs.end(), is_long) && are_dense(inputs) && are_dense(joined(outputs))) {
    return all_gather_long(std::move(call), by_input, options);
  }
  const Tensors own = call.exchange->elements(inputs, Use::kRead);
  TensorLists values, places;
  for (const Tensors& list : by_input) {
    values.push_back(call.exchange->elements(list, Use::kWrite));
    places.push_back(contiguous_places(values.back()));
  }
  const auto issue = [own, places, options](Backend& host) {
    Works works;
    for (size_t i = 0; i < own.size(); ++i) {
      Tensors leaving = contiguous({own[i]});
      TensorLists arriving{places[i]};
      works.push_back(host.allgather(arriving, leaving, options));
    }
    return works;
  };
  return start(std::move(call), issue, [places, values] { copy_back(joined(places), joined(values)); });
}

WorkPointer DeviceBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  Call call = begin(OpType::GATHER, "gather", inputs, outputs);
  come_behind_others(call, /*on_driver=*/false);
  if (is_long(only(inputs)) && are_dense(joined(outputs))) return gather_long(std::move(call), outputs, options);
  const Tensors own{call.exchange->elements(only(inputs), Use::kRead)};
  TensorLists values, places;
  for (const Tensors& list : outputs) {
    values.push_back(call.exchange->elements(list, Use::kWrite));
    places.push_back(contiguous_places(values.back()));
  }
  const auto issue = [own, places, options](Backend& host) -> Works {
    Tensors leaving = contiguous(own);
    TensorLists arriving = places;
    return {host.gather(arriving, leaving, options)};
  };
  return start(std::move(call), issue, [places, values] { copy_back(joined(places), joined(values)); });
}

WorkPointer DeviceBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  Call call = begin(OpType::SCATTER, "scatter", joined(inputs), {outputs});
  come_behind_others(call, /*on_driver=*/false);
  if (is_long(only(outputs)) && are_dense(joined(inputs))) {
    return scatter_long(std::move(call), outputs, inputs, options);
  }
  const Tensors own{call.exchange->elements(only(outputs), Use::kWrite)};
  const Tensors places = contiguous_places(own);
  TensorLists values;
  for (const Tensors& list : inputs) values.push_back(call.exchange->elements(list, Use::kRead));
  const auto issue = [places, values, options](Backend& host) -> Works {
    Tensors arriving = places;
    TensorLists leaving;
    for (const Tensors& list : values) leaving.push_back(contiguous(list));
    return {host.scatter(arriving, leaving, options)};
  };
  return start(std::move(call), issue, [places, own] { copy_back(places, own); });
}

WorkPointer DeviceBackend::gather_long(Call call, const TensorLists& outputs, const c10d::GatherOptions& options) {
  const Tensors places = contiguous_places(joined(outputs));
  const at::Tensor own = contiguous(call.inputs)[0];
  const int64_t count = parts_of(own.nbytes());
  std::vector<MakePart> parts;
  for (int64_t k = 0; k < count; ++k) {
    parts.push_back([options, is_root = !outputs.empty(), some = part_of(own, k, count),
                     arriving = part_of_each(places, k, count)](Exchange& exchange) -> Part {
      Tensors leaving{flat(exchange.elements(some, Use::kRead))};
      TensorLists values;
      if (is_root) values.push_back(flattened(exchange.elements(arriving, Use::kWrite)));
      return {[=](Backend& host) mutable -> Works { return {host.gather(values, leaving, options)}; }, {}};
    });
  }
  add_copies(parts, places, joined(outputs), *call.parts);
  return start_parts(std::move(call), [parts](CollectiveWork&) { return parts; });
}

WorkPointer DeviceBackend::scatter_long(Call call, const Tensors& outputs, const TensorLists& inputs,
                                        const c10d::ScatterOptions& options) {
  const Tensors places = contiguous_places(outputs);
  const Tensors own = contiguous(joined(inputs));
  const int64_t count = parts_of(places[0].nbytes());
  std::vector<MakePart> parts;
  for (int64_t k = 0; k < count; ++k) {
    parts.push_back([options, is_root = !inputs.empty(), place = part_of(places[0], k, count),
                     some = part_of_each(own, k, count)](Exchange& exchange) -> Part {
      Tensors arriving{flat(exchange.elements(place, Use::kWrite))};
      TensorLists leaving;
      if (is_root) leaving.push_back(flattened(exchange.elements(some, Use::kRead)));
      return {[=](Backend& host) mutable -> Works { return {host.scatter(arriving, leaving, options)}; }, {}};
    });
  }
  add_copies(parts, places, outputs, *call.parts);
  return start_parts(std::move(call), [parts](CollectiveWork&) { return parts; });
}

/// Each rank gets from all what belongs to it, and reduces that in the order of the ranks. The host library would have
/// everybody get and reduce everything.
DeviceBackend::Part DeviceBackend::reduced_part(Tensors own, std::vector<Tensors> pieces,
                                                const c10d::ReduceScatterOptions& options) {
  const Reduction reduction(options.reduceOp);
  Tensors arrived;
  for (const at::Tensor& output : own) {
    std::vector<int64_t> shape{size_};
    shape.insert(shape.end(), output.sizes().begin(), output.sizes().end());
    arrived.push_back(at::empty(shape, output.options()));
  }
  const auto issue = [this, own, pieces, arrived, timeout = options.timeout](Backend& host) {
    Works works;
    for (size_t i = 0; i < own.size(); ++i) {
      c10d::AllToAllOptions host_options;
      host_options.timeout = timeout;
      at::Tensor leaving = pieces[i].size() == 1 ? pieces[i][0] : in_a_row(pieces[i]);
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
  return {issue, after};
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
  } else {
    come_behind_others(call, /*on_driver=*/false);
  }
  if (are_dense(outputs) && are_dense(inputs[0]) && std::any_of(inputs[0].begin(), inputs[0].end(), is_long)) {
    const Tensors places = contiguous_places(outputs);
    std::vector<MakePart> last;
    add_copies(last, places, outputs, *call.parts);
    return reduce_scatter_long(std::move(call), places, {contiguous(inputs[0])}, options, last);
  }
  Tensors own = call.exchange->numbers(outputs, Use::kWrite);
  Tensors pieces = call.exchange->numbers(inputs[0], Use::kRead);
  Part whole = reduced_part(std::move(own), {std::move(pieces)}, options);
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
    TensorLists lists;
    for (const at::Tensor& input : call.inputs) lists.push_back(places_of(input, size_));
    return reduce_scatter_long(std::move(call), outputs, lists, options, {});
  }
  std::vector<Tensors> pieces;
  for (const at::Tensor& input : call.inputs) pieces.push_back({flat(call.exchange->numbers(input, Use::kRead))});
  Tensors own = flattened(call.exchange->numbers(outputs, Use::kWrite));
  Part whole = reduced_part(std::move(own), std::move(pieces), options);
  return start(std::move(call), std::move(whole.issue), std::move(whole.after));
}

WorkPointer DeviceBackend::reduce_scatter_long(Call call, const Tensors& outputs, const TensorLists& inputs,
                                               const c10d::ReduceScatterOptions& options,
                                               const std::vector<MakePart>& last) {
  std::vector<MakePart> parts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    uint64_t longest = 0;
    for (const at::Tensor& input : inputs[i]) longest = std::max<uint64_t>(longest, input.nbytes());
    const int64_t count = parts_of(longest);
    for (int64_t k = 0; k < count; ++k) {
      parts.push_back([this, options, some = part_of_each(inputs[i], k, count),
                       place = part_of(outputs[i], k, count)](Exchange& exchange) {
        Tensors pieces = flattened(exchange.numbers(some, Use::kRead));
        return reduced_part({flat(exchange.numbers(place, Use::kWrite))}, {std::move(pieces)}, options);
      });
    }
  }
  parts.insert(parts.end(), last.begin(), last.end());
  return start_parts(std::move(call), [parts](CollectiveWork&) { return parts; });
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
  const auto rows_of = [](const at::Tensor& tensor, const std::vector<uint64_t>& bytes) {
    Tensors rows;
    int64_t begin = 0;
    for (const uint64_t part : bytes) {
      const auto end = begin + static_cast<int64_t>(part) / tensor.itemsize();
      rows.push_back(some_of(tensor, begin, end));
      begin = end;
    }
    return rows;
  };
  const auto sent = bytes_of_parts(input, input_splits, size_), received = bytes_of_parts(output, output_splits, size_);
  const MakePart whole = [input, output, input_splits, output_splits, options](Exchange& exchange) -> Part {
    const at::Tensor own = exchange.elements(input, Use::kRead), values = exchange.elements(output, Use::kWrite);
    const at::Tensor arriving = contiguous_places({values})[0];
    const auto issue = [own, arriving, received = output_splits, sent = input_splits,
                        options](Backend& host) mutable -> Works {
      at::Tensor leaving = own.contiguous(), place = arriving;
      return {host.alltoall_base(place, leaving, received, sent, options)};
    };
    return {issue, [values, arriving] { copy_back({arriving}, {values}); }};
  };
  TORCH_CHECK_VALUE(are_dense({input, output}), "Tensors must be contiguous");
  const Tensors places = contiguous_places({output}), own = contiguous({input});
  std::vector<MakePart> last;
  add_copies(last, places, {output}, *call.parts);
  return start_all_to_all(std::move(call), whole, rows_of(places[0], received), rows_of(own[0], sent), options, last);
}

int64_t DeviceBackend::greatest(int64_t number, CollectiveWork& work) {
  Tensors one{at::full({1}, number, at::kLong)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  options.asyncOp = false;
  wait_for({host()->allreduce(one, options)}, work);
  return one[0].item<int64_t>();
}

bool DeviceBackend::someone_stages(bool own, CollectiveWork& work) {
  if (!someone_stages_.has_value()) someone_stages_ = greatest(own ? 1 : 0, work) != 0;
  return *someone_stages_;
}

DeviceBackend::MakePart DeviceBackend::part_of_all_to_all(const Tensors& outputs, const Tensors& inputs,
                                                          const c10d::AllToAllOptions& options) {
  return [outputs, inputs, options](Exchange& exchange) -> Part {
    const Tensors own = exchange.elements(inputs, Use::kRead);
    const Tensors values = exchange.elements(outputs, Use::kWrite);
    auto sent = counts_of(own), received = counts_of(values);
    const at::Tensor arrived =
        at::empty({std::accumulate(received.begin(), received.end(), int64_t{0})}, own[0].options());
    const auto issue = [own, arrived, sent, received, options](Backend& host) mutable -> Works {
      at::Tensor all = in_a_row(own), place = arrived;
      return {host.alltoall_base(place, all, received, sent, options)};
    };
    const auto after = [values, arrived, received] {
      int64_t begin = 0;
      for (size_t i = 0; i < values.size(); begin += received[i++]) {
        values[i].copy_(arrived.slice(0, begin, begin + received[i]).view(values[i].sizes()));
      }
    };
    return {issue, after};
  };
}

/// No rank knows how much the others have for each other, so they agree on the number of parts; and on whether that is
/// needed at all, once.
WorkPointer DeviceBackend::start_all_to_all(Call call, const MakePart& whole, Tensors outputs, Tensors inputs,
                                            const c10d::AllToAllOptions& options, std::vector<MakePart> last) {
  const bool stages = !call.exchange->transfers().device().host_accessible();
  uint64_t leaving = 0, arriving = 0;
  for (const at::Tensor& tensor : inputs) leaving += tensor.nbytes();
  for (const at::Tensor& tensor : outputs) arriving += tensor.nbytes();
  const Plan plan = [=, this, longest = std::max(leaving, arriving)](CollectiveWork& work) {
    const int64_t count = greatest(stages ? parts_of(longest) : 1, work);
    std::vector<MakePart> parts;
    for (int64_t k = 0; k < count; ++k) {
      parts.push_back(part_of_all_to_all(part_of_each(outputs, k, count), part_of_each(inputs, k, count), options));
    }
    parts.insert(parts.end(), last.begin(), last.end());
    return parts;
  };
  if (stages) {
    return start_parts(std::move(call), [this, plan](CollectiveWork& work) {
      someone_stages(true, work);
      return plan(work);
    });
  }
  const Part at_once = whole(*call.exchange);
  const auto is_whole = std::make_shared<bool>(false);
  const auto issue = [this, at_once, is_whole, plan, exchange = call.exchange, copies = call.parts](
                         Backend& host, CollectiveWork& work) -> Works {
    *is_whole = !someone_stages(false, work);
    if (*is_whole) return at_once.issue(host);
    run_parts(work, plan(work), *copies);
    exchange->give_back_behind(*copies);
    return {};
  };
  return start(std::move(call), issue, [at_once, is_whole] {
    if (*is_whole && at_once.after) at_once.after();
  });
}

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
  for (const Tensors* tensors : {&outputs, &inputs}) {
    TORCH_CHECK_VALUE(are_dense(*tensors), "Tensors must be contiguous");
  }
  // One tensor of all: the host library takes lists of tensors of one shape alone.
  const MakePart whole = part_of_all_to_all(outputs, inputs, options);
  const Tensors places = contiguous_places(outputs);
  std::vector<MakePart> last;
  add_copies(last, places, outputs, *call.parts);
  return start_all_to_all(std::move(call), whole, places, contiguous(inputs), options, std::move(last));
}

WorkPointer DeviceBackend::send(Tensors& tensors, int target, int tag) {
  require_other(target, rank_);
  require_tag(tag);
  const int content_tag = kTags + static_cast<int>(messages_++ % kTags);
  return start_peer(begin(OpType::SEND, "send", tensors, {}), Use::kRead,
                    [=](Content content) { return outgoing_message(std::move(content), target, tag, content_tag); });
}

WorkPointer DeviceBackend::recv(Tensors& tensors, int source, int tag) {
  require_other(source, rank_);
  require_tag(tag);
  return start_peer(begin(OpType::RECV, "recv", tensors, {}), Use::kWrite,
                    [=](Content content) { return incoming_message(std::move(content), source, tag); });
}

WorkPointer DeviceBackend::recvAnysource(Tensors& tensors, int tag) {
  require_tag(tag);
  return start_peer(begin(OpType::RECVANYSOURCE, "recvAnySource", tensors, {}), Use::kWrite,
                    [=](Content content) { return incoming_message(std::move(content), std::nullopt, tag); });
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
