// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/plans/plan.h"

namespace outboard {

/// What the expressions of a plan's steps and outputs amount to for one set of integer symbols, so that a plan that
/// runs again on the same shapes evaluates none. Arguments of library calls are not among them.
class Evaluation {
 public:
  /// Keeps an evaluation from being updated. Made under the lock that guards updates, it may end without.
  class Reader {
   public:
    explicit Reader(const Evaluation& evaluation) : evaluation_(evaluation) {
      evaluation_.readers_.fetch_add(1, std::memory_order_relaxed);
    }
    ~Reader() { evaluation_.readers_.fetch_sub(1, std::memory_order_release); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

   private:
    const Evaluation& evaluation_;
  };

  explicit Evaluation(const Plan& plan);

  /// Whether it is of these symbols.
  bool is_of(const Scalar* symbols) const;

  /// Whether somebody reads it. If not, all that readers did happened before: `acquire` meets their `release`.
  bool is_read() const { return readers_.load(std::memory_order_acquire) != 0; }

  /// Evaluates everything again. Throws what `evaluate` throws, and Error(OB_INVALID_ARGUMENT) for what no memory holds
  /// and no device counts to; the evaluation is then of no symbols.
  void update(const Plan& plan, const Scalar* symbols);

  /// By kind of step: kAllocate, kSeeds: bytes. kCopy: bytes, offset in the source, offset in the target. kFill: bytes,
  /// offset. kToLayout, kFromLayout: offset. kLaunch: three global sizes, multiples of the local ones, of which the
  /// first is 0 if there is nothing to do; then a value per argument (kPointer, kInt64, kInt32).
  const int64_t* step(size_t number) const { return values_.data() + steps_[number]; }

  /// kTensor: sizes, strides, offset in elements, bytes from there to the end of the last element. kInt: the value.
  const int64_t* output(size_t number) const { return values_.data() + outputs_[number]; }

 private:
  std::vector<uint32_t> steps_, outputs_;  // where the values of each begin
  std::vector<int64_t> values_;
  std::vector<uint32_t> integers_;  // symbols that are integers
  std::vector<int64_t> of_;         // their values here
  bool known_ = false;
  mutable std::atomic<uint32_t> readers_{0};
};

}  // namespace outboard
