// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/device.h"
#include "runtime/plans/executor.h"
#include "torch/eager/compiler.h"
#include "torch/eager/eager_arguments.h"
#include "torch/eager/eager_operator.h"
#include "torch/eager/eager_signature.h"
#include "torch/eager/eager_statistics.h"
#include "torch/eager/fallback.h"
#include "torch/eager/hit_costs.h"
#include "torch/eager/plan_table.h"

namespace outboard::aten {

/// What a thread keeps between its calls.
struct PerThread {
  PlanTable::Recent plans;
  std::vector<Scalar> symbols;
  std::vector<Result> results;
  Hits::Counter hits;
};

PerThread& per_thread();

/// Lends a call a vector of the thread's, so that it need not allocate one. A call inside a call gets a new one.
template <typename T>
class Lent {
 public:
  explicit Lent(std::vector<T>& spare) : spare_(spare), items_(std::move(spare)) {}
  ~Lent() { spare_ = std::move(items_); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  std::vector<T>& operator*() { return items_; }

 private:
  std::vector<T>& spare_;
  std::vector<T> items_;
};

/// One eager call from arguments to results.
class EagerCall {
 public:
  /// `library`: whether plans may call the driver's.
  EagerCall(const Operator& op, Arguments& arguments, Batch* batch = nullptr, bool library = true);

  /// Runs the plan. False: the call has none and belongs on the CPU of `device()`.
  bool run();

  c10::DeviceIndex device() const { return device_; }

  /// Why `run` returned false.
  FallbackCause cause() const { return cause_; }

  /// The result of an operator that returns one new tensor, after `run`.
  at::Tensor tensor();

  /// All results in the order of the schema, after `run`.
  c10::SmallVector<c10::IValue, 4> values();

  /// See `hit_costs`; the parts inside a call. The call itself is not made.
  HitCosts costs(int64_t bursts);

 private:
  bool select();
  bool renew_outputs();
  bool runs_on_cpu();
  bool sign(bool bake);
  void sign_sizes();
  bool compile();
  PlanAnswer ask(bool cache, bool compiler);
  bool take_kept(const PlanAnswer& answer);
  const Executable* load_kept(const std::string& plan);
  bool take_made(const PlanAnswer& answer);
  void adopt(const std::string& plan);
  PlanKey key() const { return {op_, device_, signature_.bytes.view(), bake_}; }
  void run_plan();
  void lay_out(std::vector<Result>& results) const;
  c10::IValue fresh(const Result& result) const;

  const Operator& op_;
  Arguments& arguments_;
  Batch* batch_;
  const bool library_;
  PerThread& mine_;
  const Reclaimer::Section reading_;
  c10::DeviceIndex device_ = -1;
  FallbackCause cause_ = FallbackCause::kUnsupported;
  bool bake_ = false;
  CallSignature signature_;
  PlanEntry* entry_ = nullptr;
  Lent<Scalar> symbols_;
  Lent<Result> results_;
  const Executable* executable_ = nullptr;
};

}  // namespace outboard::aten
