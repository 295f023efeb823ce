// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "runtime/streams/collectives.h"
#include "torch/distributed/by_driver/driver_requests.h"
#include "torch/distributed/by_driver/roll_call.h"
#include "torch/distributed/works/work.h"

namespace outboard::distributed {

/// Collectives of a group by the driver of its ranks' devices, in stream order, where all of these have the same driver
/// and it has collectives. They run on a stream beside those that compute, one after the other. A thread joins the
/// driver's communicator when the first one is called, for which the stream waits and nobody else, and looks whether
/// they have ended.
class DriverTransport {
 public:
  /// All ranks of the group call this, and agree on whether they use the driver. Opens the devices. Null for a group of
  /// one.
  static std::unique_ptr<DriverTransport> make(c10::intrusive_ptr<c10d::Store> store, c10d::Backend& host,
                                               std::chrono::milliseconds timeout);
  /// `key`: of the ranks' own in the store. `ranks`: their processes, those without a number where it is not known.
  DriverTransport(c10::intrusive_ptr<c10d::Store> store, std::string key, bool agreed, int rank,
                  std::vector<ProcessIdentity> ranks, std::chrono::milliseconds timeout);
  /// Waits for what was begun.
  ~DriverTransport();
  DriverTransport(const DriverTransport&) = delete;
  DriverTransport& operator=(const DriverTransport&) = delete;

  /// Whether the group's collectives on tensors of this stream's device are the driver's. Does not wait. Throws
  /// c10::ValueError for another device than the group's, which is that of the first call.
  bool is_there(Stream& transfers);
  /// Whether the driver reduces numbers of this dtype so. If not, what the transfers of `is_there` are given next comes
  /// behind the collectives so far, one of which may have moved the same numbers.
  bool reduces(ob_collective_kind kind, at::ScalarType dtype, ob_reduction reduction) const;
  /// Behind what the current stream has. Ends the work, too. Throws what the driver reports at once.
  void start(c10::intrusive_ptr<CollectiveWork> work, DriverRequests requests, std::chrono::milliseconds timeout);
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  /// Waits until everything has ended, or ends it where the user has interrupted a wait.
  void drain();
  /// Fails what is under way and what comes, joining too. Does not wait.
  void abort();
  /// For a process that exits without having destroyed its groups: what all of them have under way is given a second,
  /// and aborted then.
  static void leave_all();

 private:
  using Clock = std::chrono::steady_clock;
  using Submitted = std::shared_ptr<DriverCollective>;

  /// With ranks that are to join.
  struct Patience {
    std::chrono::milliseconds timeout;
    Clock::time_point end;
  };

  /// Begun and not ended.
  struct Pending {
    c10::intrusive_ptr<CollectiveWork> work;
    DriverRequests requests;
    std::vector<Submitted> submitted;
    std::unique_ptr<Event> end;
    std::chrono::milliseconds timeout;
    Clock::time_point deadline;
  };

  void leave(Clock::time_point end);
  std::string key_of_rank(int rank) const { return key_ + "rank " + std::to_string(rank); }
  std::string key_of_news() const { return key_ + "gave up"; }
  Submitted submit(const DriverRequest& request);
  void run();
  void join(std::chrono::milliseconds timeout);
  std::shared_ptr<Communicator> join_by(c10d::Store& store, std::chrono::milliseconds timeout);
  void give_up(const std::exception_ptr& error);
  void wait_for_others(c10d::Store& store, const Patience& patience, const std::function<bool()>& is_reached) const;
  std::string missing_ranks(c10d::Store& store) const;
  void tell_others(c10d::Store& store, const std::string& why) const;
  std::exception_ptr outcome(const Pending& pending);
  void wait_for_end(const Pending& pending, Communicator& communicator);
  void forget_failure();

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string key_;
  const bool agreed_;
  const int rank_, size_;
  const std::vector<ProcessIdentity> ranks_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> left_{false};  ///< the process exits
  std::promise<std::shared_ptr<Communicator>> joining_;
  const ComingCommunicator communicator_{joining_.get_future()};
  std::mutex mutex_;  ///< guards what follows, and the order of collectives
  std::condition_variable changed_;
  /// Of the group's collectives, and of what others move. Messages between two ranks need not wait for collectives that
  /// one of them has not come to, so these are not on one stream. Constant once they are there.
  Stream *stream_ = nullptr, *transfers_ = nullptr;
  std::deque<Pending> pending_;
  bool stop_ = false;
  std::thread watcher_;
};

}  // namespace outboard::distributed
