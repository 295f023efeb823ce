// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "outboard/driver.h"
#include "runtime/base/small_array.h"
#include "runtime/memory/allocation.h"
#include "runtime/plans/plan.h"
#include "runtime/streams/stream.h"

namespace outboard {

/// A tensor as a function of the host's sees it: memory of the device, ready in stream order.
struct TensorView {
  ob_ptr data;  ///< element 0 of the view (offset applied); 0 for who computes on the device
  DType dtype;
  Dims sizes, strides;
  Allocation* allocation = nullptr;  ///< where it is, as long as the call lasts
  uint64_t offset = 0;               ///< bytes from there to element 0
};

/// One argument, of a kind that a PyTorch schema can hold.
struct HostArgument {
  CallArgument::Kind kind = CallArgument::kNone;
  TensorView tensor;
  int64_t integer = 0;  ///< kInt, kBool, kDtype, kLayout, kMemoryFormat
  double number = 0;    ///< kFloat, kFloatSymbol
  std::string text;
  std::vector<HostArgument> list;
};

/// A step of a plan that the host carries out.
struct HostCall {
  const Step& step;  ///< name, argument_names, fallback
  Stream& stream;
  std::vector<HostArgument> arguments;
  std::vector<TensorView> results;
};

/// Runs one call in stream order; may synchronise the stream. Throws to report failure.
using HostFunction = std::function<void(HostCall&)>;

/// Functions of the host's that plans may call by name, per process: what a device has nothing for (its driver's own
/// functions are LibraryWork). "device::aten::mm" is asked for where the driver's library has refused a call of
/// aten::mm, and computes on the device. A name ending in '*' is a prefix ("aten::*").
class HostFunctions {
 public:
  static HostFunctions& get();
  void add(const std::string& name, HostFunction function);
  /// nullptr if there is none. The longest match wins. The pointer stays valid; `add` of the same name replaces what it
  /// points to.
  const HostFunction* find(const std::string& name) const;
};

}  // namespace outboard
