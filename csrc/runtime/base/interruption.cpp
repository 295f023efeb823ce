// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/interruption.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace outboard {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<const Interruptions*> installed{nullptr};
std::atomic<bool> interrupted{false};
thread_local int uninterrupted = 0;

/// A wait this short costs no sleep.
constexpr auto kSpin = std::chrono::microseconds(100);
/// A wait is found over at most this part of its length too late.
constexpr int kDelay = 32;
constexpr auto kLongestSleep = std::chrono::milliseconds(1);

}  // namespace

void set_interruptions(const Interruptions* interruptions) { installed.store(interruptions); }

bool may_be_interrupted() {
  const Interruptions* const given = installed.load(std::memory_order_acquire);
  return given != nullptr && uninterrupted == 0 && given->concerns_this_thread();
}

void check_interruption() {
  if (!may_be_interrupted()) return;
  try {
    installed.load()->check();
  } catch (...) {
    interrupted.store(true);
    throw;
  }
}

void check_certain_interruption() {
  const Interruptions* const given = installed.load(std::memory_order_acquire);
  if (given != nullptr && given->is_certain()) check_interruption();
}

bool was_interrupted() { return interrupted.load(); }

Uninterrupted::Uninterrupted() { ++uninterrupted; }
Uninterrupted::~Uninterrupted() { --uninterrupted; }

void wait_interruptibly(const std::function<bool()>& is_reached) {
  check_certain_interruption();
  const Clock::time_point begin = Clock::now();
  Clock::time_point next_check = begin + kInterruptionInterval;
  while (!is_reached()) {
    const Clock::time_point now = Clock::now();
    if (now >= next_check) {
      check_interruption();
      next_check = Clock::now() + kInterruptionInterval;
    }
    if (now - begin < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min<Clock::duration>((now - begin) / kDelay, kLongestSleep));
    }
  }
}

}  // namespace outboard
