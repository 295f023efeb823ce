// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/plans/plan.h"

namespace outboard {

/// The file of an exported model without its tensors; the format and its fields are those of
/// src/outboard/exporting/format.py.
///
/// The writer of a file can compute its checksums, so these only tell of damage. What `parse` lets through can be
/// worked with: every number is in range, and running the plan stays within its buffers, up to what the kernels do:
/// those are programs and do what they say.
struct ModelFile {
  /// A size that varies between calls.
  struct Symbol {
    std::string name;
    int64_t least, most;
  };
  struct Dimension {
    enum Kind : uint8_t { kFixed = 0, kSymbol = 1, kAny = 2 };
    Kind kind;
    int64_t value;
  };
  struct Argument {
    enum Kind : uint8_t { kTensor = 0, kInt = 1 };
    std::string name;
    Kind kind;
    DType dtype;
    std::vector<Dimension> sizes;
  };
  struct Weight {
    std::string name;
    DType dtype;
    std::vector<int64_t> sizes, strides;
    bool external;
    uint64_t offset, nbytes;
    std::array<uint8_t, 32> digest;
  };
  struct PlanInput {
    enum Source : uint8_t { kInput = 0, kWeight = 1 };
    Source source;
    uint32_t number;
  };
  enum Need : uint8_t { kHalf = 1, kDouble = 2, kInt64Atomics = 4, kSubGroups = 8, kMatrixUnits = 16 };

  std::string producer, dialect;
  uint8_t needs = 0;
  std::vector<Symbol> symbols;
  std::vector<Argument> inputs, outputs;
  std::string call;  ///< for Python: how arguments and results are nested
  std::string weights_file;
  std::vector<Weight> weights;
  std::vector<PlanInput> plan_inputs;
  std::shared_ptr<const Plan> plan;
  std::string device_key;             ///< of the device that made `binaries`; for others they are worth nothing
  std::vector<std::string> binaries;  ///< of the plan's programs, in order

  /// Reads the header out of a whole file. Throws Error(OB_INVALID_ARGUMENT) for anything that is not the header of a
  /// whole file of this version; then every number in it is in range. Tensors are not looked at: see `contents`.
  static ModelFile parse(const uint8_t* data, size_t bytes);
};

/// Bytes of whole blocks, which tensors in a model file are filled up to.
uint64_t padded(uint64_t bytes);

/// The bytes of a weight in the file (of `bytes` bytes) that holds it. Throws Error(OB_INVALID_ARGUMENT) if they are
/// not those that were exported.
const uint8_t* contents(const ModelFile::Weight& weight, const uint8_t* data, size_t bytes);

}  // namespace outboard
