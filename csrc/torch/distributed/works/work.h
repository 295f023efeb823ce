// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "runtime/streams/tracing.h"
#include "torch/distributed/staging/exchange.h"
#include "torch/distributed/staging/message.h"

namespace outboard::distributed {

/// What a collective is called in errors and profiles.
struct Label {
  c10d::OpType kind;
  const char* profiled;  ///< lives as long as the process
  std::string text;      ///< which call of which group on which rank
  uint64_t number;       ///< of the group's collectives so far
};

/// When the collectives of a group ran, for the profiler: on a row of their own, one after the other. Where the CPU
/// backend has several under way, one is shown from when those that ended before it are done.
class Row {
 public:
  /// A collective was asked for on the calling thread; its times are still missing.
  static TracedWork asked(const Label& label, const Stream& transfers, const std::vector<at::Tensor>& inputs);
  /// It ends now, and began when `work` says. Nothing if nothing is traced.
  void add(TracedWork work);

 private:
  std::mutex mutex_;
  int64_t last_end_ = 0;  ///< guarded by mutex_
};

/// A work's future, which is made when somebody asks for it: completing one records an event on the device.
class LazyFuture {
 public:
  /// `nested`: its value is a list of lists of tensors.
  LazyFuture(Stream& transfers, bool nested) : transfers_(transfers), nested_(nested) {}

  c10::intrusive_ptr<c10::ivalue::Future> get();
  /// Each of these once, or neither. Whether somebody has asked for the future: then `call_back` is due.
  [[nodiscard]] bool succeed(c10::IValue value);
  [[nodiscard]] bool fail(std::exception_ptr error);
  /// Completes the future, with whatever its callbacks do on the calling thread.
  void call_back() const { settle(*future_); }

 private:
  bool end(c10::IValue value, std::exception_ptr error);
  void settle(c10::ivalue::Future& future) const;

  Stream& transfers_;
  const bool nested_;
  std::mutex mutex_;
  bool settled_ = false;  ///< guarded by mutex_, and constant once it is true, as what follows
  c10::IValue value_;
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  ///< guarded by mutex_
};

/// A work whose wait Ctrl-C ends.
class InterruptibleWork : public c10d::Work {
 public:
  using Work::Work;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;

 protected:
  /// The wait is given up.
  virtual void interrupted() {}
};

/// A collective on tensors of the device, which is done when the CPU backend is, and, for a wait on a stream, when
/// its results are there in that stream's order.
class CollectiveWork : public InterruptibleWork {
 public:
  /// `results`: lists of device tensors, one for each tensor that was given.
  CollectiveWork(int rank, Label label, std::shared_ptr<Exchange> exchange, const std::vector<at::Tensor>& inputs,
                 std::vector<std::vector<at::Tensor>> results, std::shared_ptr<Row> row);

  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_.get(); }
  uint64_t getSequencenumber() const override { return label_.number; }
  const Label& label() const { return label_; }
  /// Has the current stream wait for results that are still on their way to the device.
  void synchronize() override;
  /// Ends the wait for it with an error. The CPU backend goes on with the tensors, which stay where they are.
  void abort() override;

  /// Whether it has not ended yet and must before another one reads and writes these tensors: one of the two writes
  /// memory that the other uses.
  bool is_in_the_way(const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& written);
  /// It is the driver's, which has all of its own in stream order.
  void set_on_driver() { on_driver_ = true; }
  bool on_driver() const { return on_driver_; }
  /// The CPU backend is asked for it now.
  void begin() { traced_.begin = traced_.submit_begin == 0 ? 0 : traced_clock(); }
  /// A part of it has ended.
  void end_part() { row_->add(traced_); }
  /// Follows the CPU backend's works: when the last one is done, `after` is called, and this is done, too.
  void follow(const std::vector<WorkPointer>& works, const std::function<void()>& after);
  /// Ends with an error. No-op once it has ended.
  void fail(const std::exception_ptr& error);

 private:
  void succeed(const std::function<void()>& after);
  /// Ends with an error or without. False: it has ended before.
  bool end();
  /// Has the future's callbacks called on a thread where they may wait for other collectives.
  void call_back();

  const Label label_;
  const std::shared_ptr<Exchange> exchange_;
  std::vector<at::Tensor> inputs_;  ///< guarded by mutex_; empty once it has ended
  const std::vector<std::vector<at::Tensor>> results_;
  const std::shared_ptr<Row> row_;
  TracedWork traced_;  ///< without a begin where nothing was traced then
  LazyFuture future_;
  std::atomic<int> missing_{0};
  std::atomic<bool> ended_{false};
  std::atomic<bool> on_driver_{false};
};

/// A tensor on its way to or from one other rank. The CPU backend ends such a transfer in a wait for it, so
/// that is where this one ends: in `wait`, or on another thread if the first caller may be interrupted or does not
/// wait, or if the other rank waits for what this one does next.
class PeerWork : public InterruptibleWork {
 public:
  /// `exchange`: what the message comes behind, and where the copies to the device are made if it has its tensor.
  PeerWork(int rank, Label label, std::shared_ptr<Exchange> exchange, at::Tensor tensor,
           std::unique_ptr<Message> message);

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void abort() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return label_.number; }

  const Label& label() const { return label_; }
  /// Begins the transfer. `parts`: the stream on which parts are copied, if any are.
  void begin(c10::intrusive_ptr<c10d::Backend> host, Stream* parts);
  void fail(const std::exception_ptr& error);

 protected:
  void interrupted() override { abort(); }

 private:
  /// Waits for the message.
  void transfer();
  /// Has another thread do so.
  void watch();
  void end(const std::exception_ptr& error);

  const Label label_;
  const std::shared_ptr<Exchange> exchange_;
  const at::Tensor tensor_;
  const std::unique_ptr<Message> message_;
  LazyFuture future_;
  Stream* parts_ = nullptr;                 ///< constant once `host_` is set
  c10::intrusive_ptr<c10d::Backend> host_;  ///< guarded by mutex_; set once, when it has begun
  bool watched_ = false;                    ///< guarded by mutex_: a thread waits
  std::mutex transferring_;                 ///< held while waiting for the message
};

/// The same error with what failed; errors in arguments as they are.
std::exception_ptr explained(const std::exception_ptr& error, const Label& label);

/// Calls a function, whose errors say what failed.
template <typename Function>
void with_label(const Label& label, Function&& function) {
  try {
    function();
  } catch (...) {
    std::rethrow_exception(explained(std::current_exception(), label));
  }
}

}  // namespace outboard::distributed
