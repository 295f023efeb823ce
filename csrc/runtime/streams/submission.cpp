// SPDX-License-Identifier: Apache-2.0
#include "runtime/streams/submission.h"

#include <pthread.h>

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/driver_call.h"
#include "runtime/base/interruption.h"
#include "runtime/programs/program_cache.h"
#include "runtime/streams/tracing.h"

namespace outboard {
namespace {

/// How long the thread looks for work before it sleeps: waking it costs a system call and a context switch.
constexpr auto kPatience = std::chrono::microseconds(50);
/// Looks in a row between looks at the clock.
constexpr int kLooks = 64;
/// Handing a launch over takes a fraction of this; running what takes no longer keeps the caches of two cores apart.
constexpr uint64_t kCheap = 1000;  // ns
/// What the driver has begun may take so long when the user wants the process to end.
constexpr auto kLastWork = std::chrono::milliseconds(500);

}  // namespace

SubmissionQueue::SubmissionQueue(const DeviceDriver& driver, ob_stream stream, MemoryLock& producers)
    : driver_(driver), stream_(stream), producers_(producers) {}

void SubmissionQueue::put(const Launch& launch, std::shared_ptr<Traced> traced) {
  report();
  std::lock_guard producer(producers_);
  if (stopped_.load(std::memory_order_acquire)) {
    wait_until(put_.load(std::memory_order_relaxed));
    return hand_over(launch, traced);
  }
  if (is_cheap(launch)) return hand_over(launch, traced);
  Slot& slot = next_slot();
  slot.launch.kernel = launch.kernel;
  std::copy_n(launch.global, 3, slot.launch.global);
  std::copy_n(launch.local, 3, slot.launch.local);
  slot.launch.batch = traced == nullptr ? launch.batch : 0;
  slot.launch.arguments.assign(launch.arguments);
  slot.traced = std::move(traced);
  publish();
}

uint64_t SubmissionQueue::put(Command command) {
  report();
  return enqueue(std::move(command));
}

uint64_t SubmissionQueue::enqueue(Command command) {
  std::lock_guard producer(producers_);
  if (stopped_.load(std::memory_order_acquire)) {
    command();
    return 0;
  }
  Slot& slot = next_slot();
  slot.launch.batch = 0;
  slot.command = std::move(command);
  publish();
  return put_.load(std::memory_order_relaxed);
}

uint64_t SubmissionQueue::run_or_put(const Command& command) {
  std::lock_guard producer(producers_);  // nothing can come before it any more
  if (!empty()) return put(command);
  report();
  command();
  return 0;
}

uint64_t SubmissionQueue::mark(const Command& command) {
  std::lock_guard producer(producers_);
  if (!empty()) return enqueue(command);
  command();
  return 0;
}

/// Whether a launch may come before all others and should: looking costs a line of the other thread's cache.
bool SubmissionQueue::is_cheap(const Launch& launch) const {
  const ob_kernel ready = driver_.launch_cost == nullptr ? nullptr : launch.kernel->ready();
  return ready != nullptr && driver_.launch_cost(ready, launch.global, launch.local) <= kCheap && empty();
}

void SubmissionQueue::wait_until_half_empty() {
  if (producers_.held()) return;  // work within work: the outer one has waited
  const uint64_t number = put_.load(std::memory_order_relaxed);
  if (number - done_.load(std::memory_order_acquire) >= kSlots - kReserve) wait_until(number - kSlots / 2);
  known_done_.store(done_.load(std::memory_order_acquire), std::memory_order_relaxed);
}

/// The place of the next entry, when there is room.
SubmissionQueue::Slot& SubmissionQueue::next_slot() {
  if (slots_ == nullptr) start();
  const uint64_t number = put_.load(std::memory_order_relaxed);
  if (number - known_done_.load(std::memory_order_relaxed) >= kSlots) {
    if (number - done_.load(std::memory_order_acquire) >= kSlots) wait_until(number - kSlots / 2);
    known_done_.store(done_.load(std::memory_order_acquire), std::memory_order_relaxed);
  }
  return (*slots_)[number % kSlots];
}

void SubmissionQueue::publish() {
  put_.store(put_.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  if (!asleep_.load(std::memory_order_seq_cst)) return;
  std::lock_guard lock(sleep_);
  wake_.notify_one();
}

void SubmissionQueue::start() {
  slots_ = std::make_unique<std::array<Slot, kSlots>>();
  std::thread([this] { work(); }).detach();  // a process may end without a shutdown
}

void SubmissionQueue::work() {
  pthread_setname_np(pthread_self(), "ob submission");
  std::fesetenv(FE_DFL_ENV);  // and not what is set in the thread that happened to begin this one
  for (uint64_t done = 0; wait_for_work(done);) {
    const uint64_t together = count_together(done);
    if (abandoned_.load(std::memory_order_acquire)) {
      leave_out(done, together);
    } else if (together > 1) {
      carry_out_batch(done, together);
    } else {
      carry_out((*slots_)[done % kSlots]);
    }
    done += together;
    done_.store(done, std::memory_order_seq_cst);
    if (done < wanted_.load(std::memory_order_seq_cst)) continue;
    std::lock_guard lock(sleep_);
    wanted_.store(kNothing, std::memory_order_relaxed);
    progress_.notify_all();
  }
  std::lock_guard lock(sleep_);
  stopped_.store(true, std::memory_order_release);
  progress_.notify_all();
}

/// True when there is work to hand over, false when it is time to end.
bool SubmissionQueue::wait_for_work(uint64_t done) {
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int look = 0; look < kLooks; ++look) {
      if (put_.load(std::memory_order_acquire) != done) return true;
    }
    std::this_thread::yield();  // the cores may be wanted for the kernels themselves
  } while (std::chrono::steady_clock::now() - begin < kPatience);
  std::unique_lock lock(sleep_);
  asleep_.store(true, std::memory_order_seq_cst);
  wake_.wait(lock, [&] { return put_.load(std::memory_order_seq_cst) != done || stopping_.load(); });
  asleep_.store(false, std::memory_order_relaxed);
  return put_.load(std::memory_order_acquire) != done;
}

void SubmissionQueue::hand_over(const Launch& launch, const std::shared_ptr<Traced>& traced) {
  const ob_kernel handle = launch.kernel->get();
  launch.kernel->check_group(launch.local);
  const Arguments::Readable arguments = launch.arguments.read();
  const TimedOnDevice timed(traced, driver_, stream_);
  check(driver_,
        driver_.launch(stream_, handle, launch.global, launch.local, arguments.data(),
                       static_cast<uint32_t>(arguments.size())),
        "launching a kernel");
}

void SubmissionQueue::carry_out(Slot& slot) noexcept {
  try {
    if (slot.command == nullptr) {
      const std::shared_ptr<Traced> traced = std::move(slot.traced);
      return hand_over(slot.launch, traced);
    }
    const Command command = std::exchange(slot.command, nullptr);
    command();
  } catch (...) {
    keep_current();
  }
}

/// What a command holds is let go all the same.
void SubmissionQueue::leave_out(uint64_t first, uint64_t count) noexcept {
  for (uint64_t i = first; i < first + count; ++i) {
    (*slots_)[i % kSlots].command = nullptr;
    (*slots_)[i % kSlots].traced = nullptr;
  }
}

/// How many of the entries that are there, from this one on, can be handed over together.
uint64_t SubmissionQueue::count_together(uint64_t first) const {
  const uint64_t batch = (*slots_)[first % kSlots].launch.batch;
  if (batch == 0 || driver_.launch_batch == nullptr) return 1;
  const uint64_t end = std::min(put_.load(std::memory_order_acquire), first + kMostTogether);
  uint64_t next = first + 1;
  while (next < end && (*slots_)[next % kSlots].launch.batch == batch) ++next;
  return next - first;
}

/// A kernel that cannot be built is left out, as it would be alone.
void SubmissionQueue::carry_out_batch(uint64_t first, uint64_t count) noexcept {
  try {
    size_t arguments = 0;
    for (uint64_t i = first; i < first + count; ++i) arguments += (*slots_)[i % kSlots].launch.arguments.size();
    together_.resize(arguments);
    ob_launch launches[kMostTogether];
    uint32_t ready = 0;
    ob_argument* next = together_.data();
    for (uint64_t i = first; i < first + count; ++i) {
      if (!make_ready((*slots_)[i % kSlots].launch, next, launches[ready])) continue;
      next += launches[ready].argument_count;
      ++ready;
    }
    if (ready != 0) check(driver_, driver_.launch_batch(stream_, launches, ready), "launching kernels");
  } catch (...) {
    keep_current();
  }
}

/// Writes a launch in the driver's form, its arguments to `arguments`. False if the kernel cannot be launched, which is
/// kept.
bool SubmissionQueue::make_ready(const Launch& launch, ob_argument* arguments, ob_launch& readable) noexcept {
  try {
    readable.kernel = launch.kernel->get();
    launch.kernel->check_group(launch.local);
  } catch (...) {
    keep_current();
    return false;
  }
  std::copy_n(launch.global, 3, readable.global);
  std::copy_n(launch.local, 3, readable.local);
  readable.argument_count = static_cast<uint32_t>(launch.arguments.size());
  launch.arguments.read(arguments);
  readable.arguments = arguments;
  return true;
}

void SubmissionQueue::keep(std::shared_ptr<Failure> failure) noexcept {
  if (failure == nullptr || failure->told()) return;
  std::lock_guard lock(sleep_);
  if (failure_ != nullptr && !failure_->told()) return;  // the first is what led to the others
  failure_ = std::move(failure);
  failed_.store(true, std::memory_order_release);
}

std::shared_ptr<Failure> SubmissionQueue::failure() const {
  if (!failed_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(sleep_);
  return failure_ == nullptr || failure_->told() ? nullptr : failure_;
}

void SubmissionQueue::wait_until(uint64_t place) {
  for (int look = 0; look < kLooks; ++look) {
    if (reached(place)) return;
  }
  if (!producers_.held()) check_certain_interruption();
  while (!wait_until(place, kInterruptionInterval)) {
    if (!producers_.held()) check_interruption();
  }
}

/// True once the driver has what was put up to `place`; false if that takes longer than `time`.
bool SubmissionQueue::wait_until(uint64_t place, std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  std::unique_lock lock(sleep_);
  for (;;) {
    wanted_.store(std::min(wanted_.load(std::memory_order_relaxed), place), std::memory_order_seq_cst);
    if (done_.load(std::memory_order_seq_cst) >= place) return true;
    if (progress_.wait_until(lock, end) == std::cv_status::timeout) return reached(place);
  }
}

void SubmissionQueue::drain() {
  hand_over_all();
  report();
}

void SubmissionQueue::report() {
  if (failed_.load(std::memory_order_acquire)) throw_failure();
}

void SubmissionQueue::throw_failure() {
  std::unique_lock lock(sleep_);
  const std::shared_ptr<Failure> failure = std::exchange(failure_, nullptr);
  failed_.store(false, std::memory_order_release);
  lock.unlock();
  if (failure != nullptr) failure->tell();
}

void SubmissionQueue::stop() noexcept { end(std::chrono::hours(24)); }

void SubmissionQueue::abandon() noexcept {
  abandoned_.store(true, std::memory_order_release);
  end(kLastWork);
}

void SubmissionQueue::end(std::chrono::milliseconds patience) noexcept {
  std::lock_guard producer(producers_);
  if (slots_ == nullptr || stopped_.load(std::memory_order_acquire)) return;
  std::unique_lock lock(sleep_);
  stopping_.store(true);
  wake_.notify_one();
  progress_.wait_for(lock, patience, [&] { return stopped_.load(std::memory_order_acquire); });
}

}  // namespace outboard
