// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

namespace outboard {

/// How a user stops a wait (Ctrl-C). Who embeds the runtime says which threads may be interrupted, and how to find out.
struct Interruptions {
  bool (*concerns_this_thread)();
  /// Called on such a thread, which holds no lock of the runtime. Throws if the user wants the wait to end.
  void (*check)();
  /// Whether `check` is known to throw on this thread. Costs next to nothing.
  bool (*is_certain)();
};

/// Waits look this often.
constexpr std::chrono::milliseconds kInterruptionInterval{50};

/// `interruptions` must stay.
void set_interruptions(const Interruptions* interruptions);
/// Whether `check_interruption` could throw on this thread.
bool may_be_interrupted();
/// Throws what the embedder's check throws.
void check_interruption();
/// The same where that is certain: for waits too short to ask, of which there may be many.
void check_certain_interruption();
/// True once a wait was interrupted.
bool was_interrupted();

/// While it lives, the calling thread is not interrupted: for destructors, in the middle of changes, and with a lock
/// held. A handler of signals may wait for a thread that waits for the lock.
class Uninterrupted {
 public:
  Uninterrupted();
  ~Uninterrupted();
  Uninterrupted(const Uninterrupted&) = delete;
  Uninterrupted& operator=(const Uninterrupted&) = delete;
};

/// Asks `is_reached` until it says true, at intervals that grow with the time spent, and looks for interruptions.
void wait_interruptibly(const std::function<bool()>& is_reached);

}  // namespace outboard
