// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "outboard/runner.h"
#include "runner/model_file.h"
#include "runtime/plans/executor.h"

namespace outboard {

/// One reference of an allocation.
struct Release {
  void operator()(Allocation* allocation) const noexcept { allocation->release(); }
};
using OwnedAllocation = std::unique_ptr<Allocation, Release>;

/// A result in host memory, dense and row-major.
struct HostArray {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> sizes;
  std::vector<uint8_t> data;
};

/// An exported model on a device: its programs built, its weights in place. May be run by several threads at once.
class Model {
 public:
  /// See ob_model_open. Throws Error.
  Model(const std::string& path, const std::string& weights, Device& device);

  const ModelFile& file() const { return file_; }
  /// Smallest and largest sizes of an input or output.
  std::pair<std::vector<int64_t>, std::vector<int64_t>> bounds(const ModelFile::Argument& argument) const;

  /// Runs the model on arrays found by name, and waits. Throws Error.
  std::vector<HostArray> run(const ob_array* inputs, uint32_t count) const;

 private:
  /// A tensor on the device, with its geometry.
  struct DeviceTensor {
    OwnedAllocation allocation;
    DType dtype;
    std::vector<int64_t> sizes, strides;
  };

  std::shared_ptr<HostBuffer> stage(const void* data, uint64_t bytes) const;
  DeviceTensor upload(const void* data, uint64_t bytes, DType dtype, std::vector<int64_t> sizes,
                      std::vector<int64_t> strides) const;
  std::vector<const ob_array*> match(const ob_array* inputs, uint32_t count) const;
  void check_shapes(const std::vector<const ob_array*>& inputs) const;
  HostArray download(const Result& result, const std::vector<Input>& inputs) const;

  ModelFile file_;
  Device& device_;
  std::unique_ptr<Executable> executable_;
  std::vector<DeviceTensor> weights_;
};

}  // namespace outboard
