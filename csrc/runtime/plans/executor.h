// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/small_array.h"
#include "runtime/memory/allocation.h"
#include "runtime/plans/evaluation.h"
#include "runtime/plans/host_functions.h"
#include "runtime/plans/plan.h"
#include "runtime/programs/program_cache.h"
#include "runtime/streams/batch.h"
#include "runtime/streams/graph.h"
#include "runtime/streams/library_work.h"
#include "runtime/streams/stream.h"

namespace outboard {

/// A tensor given to or made by a plan. `allocation` is not owned by the struct.
/// Geometry pointers must outlive the call they are passed to.
struct TensorBinding {
  Allocation* allocation = nullptr;
  DType dtype = DType::kFloat32;
  int32_t dim = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
  int64_t storage_offset = 0;  ///< elements
};

struct Input {
  TensorBinding tensor;
  Scalar scalar = {0};
};

/// A result. For kTensor on a new buffer the caller owns one reference of `allocation`.
struct Result {
  Output::Kind kind = Output::kNone;
  Allocation* allocation = nullptr;  ///< kTensor
  bool new_allocation = false;       ///< false: it belongs to input number `input`
  uint32_t input = 0;                ///< kInput, or the input viewed
  DType dtype = DType::kFloat32;
  Dims sizes, strides;
  int64_t storage_offset = 0;  ///< elements, from the start of `allocation` or of the input's storage
  Scalar scalar = {0};
};

/// What a plan needs from outside while it runs.
struct ExecutionContext {
  Stream& stream;
  /// Next seeds of the generator in force; called by kSeeds.
  SeedSource seeds = {};
  /// The same for later, when the context is gone: asked for while a graph is captured.
  std::function<SeedSource()> later_seeds = {};
  /// Told the number of each step that was submitted.
  std::function<void(size_t)> submitted = {};
  /// Runs with the same batch do not depend on one another, as far as their inputs go.
  Batch* batch = nullptr;
};

/// Fills `symbols` from the inputs and the device, and tells whether every guard holds.
bool bind_symbols(const Plan& plan, const ob_device_properties& device, const Input* inputs,
                  std::vector<Scalar>& symbols);

/// A function of the driver's library that a step calls, and what does the same where the driver has none for a call's
/// sizes. Thread-safe.
class DriversFunction {
 public:
  /// Of the step that calls the operator of this name.
  DriversFunction(const Step& step, const std::string& name);
  /// Gives a call its function, after it has asked the driver, once for each set of sizes. False if that has none.
  bool find(LibraryWork& call, const Device& device);
  const std::string& name() const { return without_.name; }
  /// The step without the library, and its function: on the device where somebody knows how, else on the host (a
  /// fallback), or nullptr.
  const Step& without() const { return without_; }
  const HostFunction* on_device() const { return on_device_; }
  const HostFunction* on_host() const { return on_host_; }

 private:
  static constexpr size_t kMost = 4096;

  Step without_;
  const HostFunction *on_device_, *on_host_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, ob_function> known_;  // by the calls' keys; nullptr: there is none
};

/// A plan prepared for one device: kernels on their way, buffers laid out. Thread-safe.
class Executable {
 public:
  /// Has the plan's programs loaded or built, and does not wait: who launches a kernel of them does, and learns of
  /// failures. Executables are loaded at once. Throws Error(OB_BUILD_FAILED) for one that the driver refuses.
  Executable(std::shared_ptr<const Plan> plan, Device& device);
  /// Waits for the programs. Throws Error(OB_BUILD_FAILED) with the build log.
  void wait_until_built() const;
  const Plan& plan() const { return *plan_; }
  const std::shared_ptr<const Plan>& shared_plan() const { return plan_; }
  Device& device() const { return device_; }
  /// Whether a step asks for seeds.
  bool draws() const { return draws_; }
  /// `bind_symbols` for the plan and its device.
  bool bind(const Input* inputs, std::vector<Scalar>& symbols) const;
  /// Submits the plan's steps. `symbols` comes from `bind` on the same inputs. If a step throws, buffers are
  /// returned, later steps are not run, and the stream stays usable.
  void run(const Input* inputs, const std::vector<Scalar>& symbols, ExecutionContext& context,
           std::vector<Result>& results) const;

 private:
  const std::shared_ptr<Evaluation>& evaluated(const Scalar* symbols) const;

  std::shared_ptr<const Plan> plan_;
  Device& device_;
  mutable std::shared_ptr<Evaluation> evaluation_;  // the last one; under the device's memory lock
  std::vector<KernelUse> kernels_;
  std::vector<const HostFunction*> functions_;                       // by step; null where none was registered in time
  std::vector<std::unique_ptr<DriversFunction>> drivers_functions_;  // by step; null where it calls none
  std::vector<std::shared_ptr<const LoadedFunction>> loaded_functions_;  // by step; null where it executes nothing
  std::vector<std::shared_ptr<const MemoryLayout>> layouts_;
  ob_ptr assertions_ = 0;        // where kernels tell of failed assertions; 0 if none asserts
  std::vector<uint8_t> leaves_;  // by buffer: 1 if an output views it
  bool launches_once_, draws_;
};

}  // namespace outboard
