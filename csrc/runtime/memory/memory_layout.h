// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "outboard/driver.h"

namespace outboard {

class Allocation;
class LoadedFunction;
class Work;

/// A tensor whose elements are contiguous, in order of its dimensions.
struct DenseTensor {
  uint32_t dtype = 0;  ///< c10::ScalarType
  std::vector<int64_t> sizes;
  uint64_t bytes = 0;

  bool operator==(const DenseTensor& other) const { return dtype == other.dtype && sizes == other.sizes; }
};

/// How contents lie in memory other than by strides, in tiles for example: as another tensor, to and from which the
/// driver's functions bring them. Thread-safe.
class MemoryLayout {
 public:
  /// A function, and how many bytes of memory it needs while it runs.
  struct Relayout {
    std::shared_ptr<const LoadedFunction> function;
    uint64_t scratch = 0;
  };

  /// `strided`: what is laid out; `arranged`: what it then is. The functions take one of them and make the other.
  MemoryLayout(std::string name, DenseTensor strided, DenseTensor arranged, Relayout to, Relayout from);

  /// What users read.
  const std::string& name() const { return name_; }
  uint64_t strided_bytes() const { return strided_.bytes; }
  uint64_t bytes() const { return arranged_.bytes; }
  /// Whether contents in one are contents in the other.
  bool is_same(const MemoryLayout& other) const;

  /// Submits what makes `arranged` of `strided`, or the reverse: pointers of the work's.
  void to(Work& work, ob_ptr strided, ob_ptr arranged) const;
  void from(Work& work, ob_ptr arranged, ob_ptr strided) const;

 private:
  static void submit(Work& work, const std::string& name, const Relayout& relayout, const DenseTensor& read,
                     ob_ptr source, const DenseTensor& made, ob_ptr target);

  const std::string name_;
  const DenseTensor strided_, arranged_;
  const Relayout to_, from_;
};

/// The contents of an allocation in State::kArranged.
class Arrangement {
 public:
  /// Takes a reference of `contents` over, in which nothing writes any more.
  Arrangement(std::shared_ptr<const MemoryLayout> layout, Allocation& contents);
  ~Arrangement();
  Arrangement(const Arrangement&) = delete;
  Arrangement& operator=(const Arrangement&) = delete;

  /// Whether there was one since the process began.
  static bool was_any() { return any_.load(std::memory_order_relaxed); }

  const MemoryLayout& layout() const { return *layout_; }
  Allocation& contents() const { return contents_; }

 private:
  static inline std::atomic<bool> any_{false};

  const std::shared_ptr<const MemoryLayout> layout_;
  Allocation& contents_;
};

}  // namespace outboard
