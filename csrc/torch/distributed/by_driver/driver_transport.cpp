// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/by_driver/driver_transport.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>

#include "runtime/base/interruption.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/tensor.h"
#include "torch/distributed/staging/exchange.h"
#include "torch/distributed/terms/without_python.h"

namespace outboard::distributed {
namespace {

constexpr std::chrono::microseconds kFirstPause{20}, kLongestPause{500};
/// Between looks for other ranks, each of which may be a message to the store.
constexpr std::chrono::milliseconds kLongestJoiningPause{5};
/// Between looks whether one of them gave up.
constexpr std::chrono::milliseconds kNewsInterval{100};
/// How many looks at ranks' processes must find one ended. Nobody leaves while others join, but from a collective one
/// may, when it has done its part, while those that pass that on to this rank are slow.
constexpr int kAbsencesInJoining = 5, kAbsencesInCollective = 50;

/// How long what is under way may take when the process exits.
constexpr std::chrono::seconds kPatienceAtExit{1};

/// The process's transports.
struct Transports {
  std::mutex mutex;
  std::set<DriverTransport*> all;  ///< guarded by mutex
};

/// Never destroyed: groups may end after this library's variables.
Transports& transports() {
  static auto* const made = new Transports;
  return *made;
}

/// What makes the devices of two processes members of one group: the same text, which is "" without collectives. Any
/// of a process's devices may become the group's, so all of them are alike or none of them counts.
std::string described_devices() {
  std::string common;
  const c10::DeviceIndex count = in_forked_child ? c10::DeviceIndex{0} : aten::device_count();
  for (c10::DeviceIndex index = 0; index < count; ++index) {
    Device& device = aten::device(index);
    if (!has_collectives(device)) return "";
    const std::string own = std::string(device.driver().name) + " " + device.properties().driver_version;
    if (index > 0 && own != common) return "";
    common = own;
  }
  return common;
}

/// What each rank tells the others when the group is made.
struct Introduction {
  uint64_t number;  ///< made up
  ProcessIdentity process;
  char description[512];  ///< of its devices, as far as it fits
};

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

/// Whether it ends on a rank only when all have come to it: then what one that has left did for the others arrives
/// soon.
bool ends_with_all(const DriverRequest& request) {
  return request.kind == OB_ALL_REDUCE || request.kind == OB_ALL_GATHER || request.kind == OB_REDUCE_SCATTER;
}

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
  Introduction own{};
  described_devices().copy(own.description, sizeof(own.description) - 1);
  const WithoutPython released;
  std::random_device random;
  own.number = uint64_t{random()} << 32 | random();
  own.process = own_identity();
  at::Tensor given = at::empty({sizeof(own)}, at::kByte);
  at::Tensor taken = at::empty({static_cast<int64_t>(sizeof(own)) * host.getSize()}, at::kByte);
  std::memcpy(given.data_ptr(), &own, sizeof(own));
  c10d::AllgatherOptions options;
  options.timeout = timeout;
  host._allgather_base(taken, given, options)->wait();
  std::vector<Introduction> all(host.getSize());
  std::memcpy(all.data(), taken.data_ptr(), taken.nbytes());
  const bool agreed = std::all_of(all.begin(), all.end(), [&](const Introduction& other) {
    return other.description[0] != 0 && std::strcmp(other.description, own.description) == 0;
  });
  // A store may outlive the processes that used it: the ranks of now find each other by what rank 0 made up.
  const std::string key = "driver " + std::to_string(all[0].number) + " ";
  std::vector<ProcessIdentity> ranks;
  for (const Introduction& other : all) {
    ranks.push_back(are_near(own.process, other.process) ? other.process : ProcessIdentity{});
  }
  return std::make_unique<DriverTransport>(std::move(store), key, agreed, host.getRank(), std::move(ranks), timeout);
}

DriverTransport::DriverTransport(c10::intrusive_ptr<c10d::Store> store, std::string key, bool agreed, int rank,
                                 std::vector<ProcessIdentity> ranks, std::chrono::milliseconds timeout)
    : store_(std::move(store)),
      key_(std::move(key)),
      agreed_(agreed),
      rank_(rank),
      size_(static_cast<int>(ranks.size())),
      ranks_(std::move(ranks)),
      timeout_(timeout) {
  const std::lock_guard lock(transports().mutex);
  transports().all.insert(this);
}

DriverTransport::~DriverTransport() {
  const WithoutPython released;
  {
    const std::lock_guard lock(transports().mutex);
    transports().all.erase(this);
  }
  {
    const std::lock_guard lock(mutex_);
    if (pending_.empty() || was_interrupted()) abort();
    stop_ = true;
    changed_.notify_all();
  }
  if (watcher_.joinable()) watcher_.join();
}

bool DriverTransport::is_there(Stream& transfers) {
  if (!agreed_) return false;
  const std::lock_guard lock(mutex_);
  if (stream_ == nullptr) {
    stream_ = &transfers.device().pool_stream();
    transfers_ = &transfers;
  }
  TORCH_CHECK_VALUE(&transfers.device() == &stream_->device(), "the group's collectives are those of ",
                    torch_stream(*stream_).device(), ", and not of ", torch_stream(transfers).device(),
                    ": make a group for each device");
  return true;
}

bool DriverTransport::reduces(ob_collective_kind kind, at::ScalarType dtype, ob_reduction reduction) const {
  if (is_supported(stream_->device(), kind, static_cast<uint32_t>(dtype), reduction)) return true;
  transfers_->follow(*stream_);
  return false;
}

DriverTransport::Submitted DriverTransport::submit(const DriverRequest& request) {
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
  auto collective = std::make_shared<DriverCollective>(communicator_, what, request.sent, request.received);
  try {
    stream_->collective(collective);
  } catch (const std::exception&) {
    if (collective->failure() == nullptr) throw;  // else the work tells it, and other ranks are told
  }
  return collective;
}

void DriverTransport::start(c10::intrusive_ptr<CollectiveWork> work, DriverRequests requests,
                            std::chrono::milliseconds timeout) {
  if (timeout == c10d::kUnsetTimeout) timeout = timeout_;
  const std::lock_guard lock(mutex_);
  if (aborted_) throw std::runtime_error("the group is of no use any more: an earlier collective was aborted");
  // First of all: a collective with more parts than the stream's queue has room for waits here until ranks have joined.
  if (!watcher_.joinable()) {
    watcher_ = std::thread([this, timeout] {
      join(timeout);
      run();
    });
  }
  auto end = std::make_unique<Event>(stream_->device());
  std::vector<Submitted> submitted;
  stream_->follow(aten::current_stream(static_cast<c10::DeviceIndex>(stream_->device().index())));
  {
    const c10::StreamGuard guard(torch_stream(*stream_));
    work->begin();
    for (const DriverRequest& request : requests) {
      submitted.push_back(submit(request));
      if (request.after) request.after();
    }
  }
  end->record(*stream_);
  pending_.push_back(
      {std::move(work), std::move(requests), std::move(submitted), std::move(end), timeout, Clock::now() + timeout});
  changed_.notify_all();
}

void DriverTransport::drain() {
  // After Ctrl-C there is no waiting for other ranks.
  if (was_interrupted()) abort();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pending_.empty(); });
}

void DriverTransport::abort() { aborted_ = true; }

void DriverTransport::leave_all() {
  if (in_forked_child) return;  // which has none of the threads
  const Clock::time_point end = Clock::now() + kPatienceAtExit;
  const std::lock_guard lock(transports().mutex);
  for (DriverTransport* const transport : transports().all) transport->leave(end);
}

void DriverTransport::leave(Clock::time_point end) {
  while (Clock::now() < end && !was_interrupted()) {
    {
      // Another thread may hold it as long as it waits for the stream.
      const std::unique_lock lock(mutex_, std::try_to_lock);
      if (lock.owns_lock() && pending_.empty()) return;
    }
    std::this_thread::sleep_for(kLongestPause);
  }
  left_ = true;
  abort();
}

/// Collectives that were called meanwhile wait for the communicator on the stream.
void DriverTransport::join(std::chrono::milliseconds timeout) {
  try {
    const auto store = store_->clone();  // a connection of its own: somebody may be waiting in the other
    try {
      joining_.set_value(join_by(*store, timeout));
    } catch (const std::exception& error) {
      tell_others(*store, error.what());
      throw;
    }
  } catch (const c10::Error& error) {
    give_up(std::make_exception_ptr(std::runtime_error(
        c10::str("The store by which ranks find each other is out of reach: ", error.what_without_backtrace()))));
  } catch (const std::exception&) {
    give_up(std::current_exception());
  }
}

void DriverTransport::give_up(const std::exception_ptr& error) {
  aborted_ = true;
  joining_.set_exception(error);
}

std::shared_ptr<Communicator> DriverTransport::join_by(c10d::Store& store, std::chrono::milliseconds timeout) {
  const Patience patience{timeout, Clock::now() + timeout};
  Device& device = stream_->device();
  const std::string key_of_id = key_ + "id";
  store.set(key_of_rank(rank_), std::vector<uint8_t>{});
  if (rank_ == 0) store.set(key_of_id, bytes_of(Communicator::make_id(device)));
  wait_for_others(store, patience, [&] { return store.check({key_of_id}); });
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(patience.end - Clock::now());
  auto communicator = std::make_shared<Communicator>(device, text_of(store.get(key_of_id)), rank_, size_, left);
  wait_for_others(store, patience, [&] { return communicator->is_joined(); });
  return communicator;
}

/// Throws std::runtime_error once this rank or another has given up, or the time is over.
void DriverTransport::wait_for_others(c10d::Store& store, const Patience& patience,
                                      const std::function<bool()>& is_reached) const {
  std::chrono::microseconds pause = kFirstPause;
  Clock::time_point next_look = Clock::now() + kNewsInterval;
  RollCall roll(ranks_, kAbsencesInJoining);
  for (; !is_reached(); pause = std::min<std::chrono::microseconds>(pause * 2, kLongestJoiningPause)) {
    if (aborted_) throw std::runtime_error(left_ ? "its process exits" : "aborted");
    const std::chrono::duration<double> limit = patience.timeout;
    if (Clock::now() > patience.end) {
      throw std::runtime_error(c10::str("Timed out after ", limit.count(), " s: ", missing_ranks(store)));
    }
    if (Clock::now() > next_look) {
      if (store.check({key_of_news()})) throw std::runtime_error(text_of(store.get(key_of_news())));
      next_look = Clock::now() + kNewsInterval;
    }
    if (const auto lost = roll.lost_rank()) throw std::runtime_error(c10::str("rank ", *lost, " has ended"));
    std::this_thread::sleep_for(pause);
  }
}

std::string DriverTransport::missing_ranks(c10d::Store& store) const {
  std::string missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (!store.check({key_of_rank(rank)})) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (missing.empty()) return "the driver's communicator did not come about, though all ranks were there";
  return "of the group's ranks " + missing + " did not come to the first collective";
}

/// Unless another rank has told them before.
void DriverTransport::tell_others(c10d::Store& store, const std::string& why) const {
  if (store.check({key_of_news()})) return;
  store.set(key_of_news(), bytes_of(c10::str("rank ", rank_, " gave up: ", why)));
}

std::exception_ptr DriverTransport::outcome(const Pending& pending) {
  try {
    const std::shared_ptr<Communicator> communicator = communicator_.get();  // or why there is none
    wait_for_end(pending, *communicator);
    for (const Submitted& submitted : pending.submitted) {
      if (submitted->failure() == nullptr) continue;
      aborted_ = true;  // other ranks wait for what will not come
      communicator->abort();
      std::rethrow_exception(submitted->failure());
    }
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

/// Throws std::runtime_error, with the communicator aborted, for what will not end.
void DriverTransport::wait_for_end(const Pending& pending, Communicator& communicator) {
  const bool needs_all = std::all_of(pending.requests.begin(), pending.requests.end(), ends_with_all);
  const auto give_up = [&](const std::string& why) {
    aborted_ = true;
    communicator.abort();
    throw std::runtime_error(why);
  };
  RollCall roll(ranks_, kAbsencesInCollective);
  std::chrono::microseconds pause = kFirstPause;
  while (!pending.end->query()) {
    if (Clock::now() > pending.deadline) {
      const std::chrono::duration<double> limit = pending.timeout;
      give_up(c10::str("Timed out after ", limit.count(), " s"));
    }
    if (const auto lost = needs_all ? roll.lost_rank() : std::nullopt) give_up(c10::str("rank ", *lost, " has ended"));
    if (aborted_) communicator.abort();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

/// The stream, which others may be given, tells nobody else what a work has told.
void DriverTransport::forget_failure() {
  try {
    stream_->finish();
  } catch (const std::exception&) {
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
    ended = {};  // without the lock: the end of its tensors may wait for Python
    lock.lock();
    pending_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace outboard::distributed
