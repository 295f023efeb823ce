// SPDX-License-Identifier: Apache-2.0
#include "strict/stream.h"

#include <chrono>
#include <utility>

#include "strict/options.h"
#include "strict/violations.h"

namespace outboard::strict {
namespace {

struct Control {
  std::mutex mutex;
  std::condition_variable released;
  bool held = false;
  uint64_t to_come = 0;
  ob_status status = OB_OK;
};

Control& control() {
  static auto* const instance = new Control;
  return *instance;
}

/// How often what waits for another device looks whether its own is given up.
constexpr std::chrono::milliseconds kLookAgain{2};

/// Waits while queues are held; what the command that begins now shall fail with.
ob_status begin(bool is_work, const std::atomic<bool>& given_up) {
  std::unique_lock<std::mutex> lock(control().mutex);
  control().released.wait(lock, [&] { return !control().held || given_up; });
  if (!is_work || control().to_come == 0 || --control().to_come != 0) return OB_OK;
  return control().status;
}

}  // namespace

void Point::reach(ob_status failure, const std::string& text) {
  std::lock_guard<std::mutex> lock(mutex_);
  failure_ = failure;
  text_ = text;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  nanoseconds_ = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  reached_.notify_all();
}

void Point::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  reached_.wait(lock, [&] { return nanoseconds_ >= 0; });
}

void Point::wait_unless(const std::atomic<bool>& given_up) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (nanoseconds_ < 0 && !given_up) reached_.wait_for(lock, kLookAgain);
}

ob_status Point::status() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (nanoseconds_ < 0) return OB_NOT_READY;
  return failure_ == OB_OK ? OB_OK : fail(failure_, text_);
}

int64_t Point::time() {
  std::lock_guard<std::mutex> lock(mutex_);
  return nanoseconds_;
}

Delay::Delay(uint64_t stream)
    : state_((Options::get().seed + 1) * 0x9E3779B97F4A7C15u ^ (stream * 0xBF58476D1CE4E5B9u)) {
  if (state_ == 0) state_ = 1;
}

uint64_t Delay::next() {
  state_ ^= state_ << 13;
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  return state_ >> 11;
}

std::chrono::microseconds Delay::draw() {
  const uint64_t longest = Options::get().delay;
  const uint64_t chance = longest == 0 ? 64 : next() % 64;
  if (chance >= 16) return {};
  return std::chrono::microseconds(next() % longest * (chance == 0 ? 10 : 1));
}

void Delay::pass() {
  if (const auto time = draw(); time.count() != 0) std::this_thread::sleep_for(time);
}

Queue::~Queue() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Queue::put(Entry entry) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  entries_.push_back(std::move(entry));
  ++put_;
  changed_.notify_all();
}

void Queue::record(std::shared_ptr<Point> point) {
  const Command reach = [this, point = std::move(point)] {
    std::lock_guard<std::mutex> lock(mutex_);
    point->reach(failure_, failure_text_);
    return OB_OK;
  };
  put({reach, false});
}

void Queue::wait_for(std::shared_ptr<Point> point) {
  const Command wait = [this, point = std::move(point)] {
    point->wait_unless(given_up_);
    return point->status();
  };
  put({wait, false});
}

void Queue::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !entries_.empty(); });
    if (entries_.empty()) return;
    Entry entry = std::move(entries_.front());
    entries_.pop_front();
    lock.unlock();
    const ob_status status = carry_out(entry);
    const std::string text = status == OB_OK ? "" : common::last_error();
    entry.command = nullptr;  // what it held is free before anybody hears that it is done
    lock.lock();
    if (status != OB_OK && failure_ == OB_OK) {
      failure_ = status;
      failure_text_ = text;
    }
    ++done_;
    changed_.notify_all();
  }
}

ob_status Queue::carry_out(const Entry& entry) {
  const ob_status injected = begin(entry.is_work, given_up_);
  if (entry.is_work && given_up_) return fail(OB_DEVICE_LOST, "the device was reset");
  late_.pass();
  return injected == OB_OK ? entry.command() : fail(injected, "injected failure of a queued command");
}

ob_status Queue::wait(bool blocking, const std::atomic<bool>& lost) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (blocking) {
    const auto time = later_.draw();
    lock.unlock();
    std::this_thread::sleep_for(time);
    lock.lock();
  }
  const uint64_t target = put_;
  if (!blocking && (done_ < target || (target != 0 && later_.toss()))) return OB_NOT_READY;
  if (blocking) changed_.wait(lock, [&] { return done_ >= target || lost.load(); });
  if (done_ < target) return OB_OK;  // lost: the caller says so
  const ob_status failed = std::exchange(failure_, OB_OK);
  return failed == OB_OK ? OB_OK : fail(failed, failure_text_);
}

void Queue::hold(bool held) {
  std::lock_guard<std::mutex> lock(control().mutex);
  control().held = held;
  control().released.notify_all();
}

void Queue::look_again() {
  std::lock_guard<std::mutex> lock(control().mutex);
  control().released.notify_all();
}

void Queue::fail_command(uint64_t nth, ob_status status) {
  std::lock_guard<std::mutex> lock(control().mutex);
  control().to_come = nth;
  control().status = status;
}

}  // namespace outboard::strict
